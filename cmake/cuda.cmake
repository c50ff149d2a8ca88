# Whether there is a CUDA compiler, and what it compiles for. Sets ONELANE_HAS_CUDA.
#
# The program never needs it: CUDA is a plugin (src/cuda), and without one everything runs on the CPU.
set(ONELANE_CUDA AUTO CACHE STRING "the CUDA plugin: AUTO (when nvcc is found), ON (or fail), OFF")
set_property(CACHE ONELANE_CUDA PROPERTY STRINGS AUTO ON OFF)
# Code for the architectures with an `a` runs on them alone, the others also on later minors of the same major.
set(ONELANE_CUDA_ARCHITECTURES "80;89;90a;100a;103a;120a" CACHE STRING "what the CUDA plugin is compiled for")
set(ONELANE_HAS_CUDA OFF)

if(NOT ONELANE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "ONELANE_CUDA is '${ONELANE_CUDA}'; AUTO, ON or OFF is needed")
endif()
if(ONELANE_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: switched off, building without")
  return()
endif()

# Before enable_language, or CMake takes 75.
list(TRANSFORM ONELANE_CUDA_ARCHITECTURES APPEND "-real" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
include(CheckLanguage)
# check_language is chatty; one clear line of ours follows.
set(CMAKE_MESSAGE_LOG_LEVEL_SAVED "${CMAKE_MESSAGE_LOG_LEVEL}")
set(CMAKE_MESSAGE_LOG_LEVEL WARNING)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(ONELANE_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda/bin)
  if(ONELANE_NVCC)
    set(ENV{CUDACXX} "${ONELANE_NVCC}")
  endif()
endif()
check_language(CUDA)
set(CMAKE_MESSAGE_LOG_LEVEL "${CMAKE_MESSAGE_LOG_LEVEL_SAVED}")
if(NOT CMAKE_CUDA_COMPILER)
  if(ONELANE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ONELANE_CUDA is ON, but no CUDA compiler works: put nvcc on PATH, or name it in CUDACXX")
  endif()
  message(STATUS "CUDA: no compiler found, building without")
  return()
endif()

set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()
enable_language(CUDA)
# CMake 3.25 does not know that CUDA 13 speaks C++20: it drops the standard without a word, or refuses it when required.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
find_package(CUDAToolkit REQUIRED)
if(CUDAToolkit_VERSION VERSION_LESS 13)
  if(ONELANE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ONELANE_CUDA is ON; CUDA 13 or newer is needed, this is ${CUDAToolkit_VERSION}")
  endif()
  message(STATUS "CUDA: ${CUDAToolkit_VERSION} is older than 13, building without")
  return()
endif()
set(ONELANE_HAS_CUDA ON)
list(JOIN ONELANE_CUDA_ARCHITECTURES " " architectures)
message(STATUS "CUDA: ${CUDAToolkit_VERSION}, compiling for ${architectures}")

# A compiler run of one file takes 650 MB an architecture: on small machines one file at a time, two architectures of it.
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR cuda_jobs "(${cores} + 1) / 2")
set_property(GLOBAL APPEND PROPERTY JOB_POOLS cuda=${cuda_jobs})

add_library(onelane_cuda_options INTERFACE)
target_compile_options(onelane_cuda_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers;--threads=2;-lineinfo;--expt-relaxed-constexpr>")
target_include_directories(onelane_cuda_options INTERFACE "${CMAKE_SOURCE_DIR}/src" "${CMAKE_SOURCE_DIR}/include")
