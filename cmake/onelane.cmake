# Settings and helpers that every target of the project shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()

add_library(onelane_options INTERFACE)
# -ffp-contract=off: a*b+c is fused by default on machines with FMA and not on others, so the same source would give
# other bits. Code that wants FMA asks for it by name.
target_compile_options(onelane_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion>"
  # designated initialisers leave the rest to the defaults
  "$<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers;-Werror;-ffp-contract=off>")
target_include_directories(onelane_options INTERFACE "${CMAKE_SOURCE_DIR}/src")

# onelane_library(NAME files... LINKS targets...): the static library of one src/ folder.
function(onelane_library name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "LINKS;PRIVATE_LINKS")
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC onelane_options ${ARG_LINKS} PRIVATE ${ARG_PRIVATE_LINKS})
endfunction()

function(onelane_sanitize)
  if(ONELANE_SANITIZE)
    set(options -O1 -g1 -fsanitize=${ONELANE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    set_property(GLOBAL PROPERTY ONELANE_SANITIZE_OPTIONS ${options})
    add_compile_options(${options})
    add_link_options(-fsanitize=${ONELANE_SANITIZE})
  endif()
  if(ONELANE_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
  endif()
endfunction()

# onelane_alone(FILE...): files that give a neighbour's names to other things; in a unity build they are compiled alone.
function(onelane_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# onelane_sanitized_for(LABEL TARGET...): where the tests LABEL are left out, these targets, which would only be slow
# help for the other tests, are compiled as in a release: with the same flags, so that ccache has the objects.
function(onelane_sanitized_for label)
  if(NOT ONELANE_SANITIZE OR NOT ONELANE_TEST_SKIP OR NOT label MATCHES "${ONELANE_TEST_SKIP}")
    return()
  endif()
  get_property(sanitize GLOBAL PROPERTY ONELANE_SANITIZE_OPTIONS)
  foreach(target IN LISTS ARGN)
    get_target_property(options ${target} COMPILE_OPTIONS)
    list(REMOVE_ITEM options ${sanitize} -O0)
    set_target_properties(${target} PROPERTIES COMPILE_OPTIONS "${options}" UNITY_BUILD OFF)
  endforeach()
endfunction()

# onelane_exports(TARGET PATTERN...): a shared library that shows these symbols and no others, has none left open, and
# stays loaded once it is.
function(onelane_exports target)
  list(JOIN ARGN "; " patterns)
  set(script "${CMAKE_CURRENT_BINARY_DIR}/${target}.map")
  file(CONFIGURE OUTPUT "${script}" CONTENT "{ global: @patterns@; local: *; };\n" @ONLY)
  target_link_options(${target} PRIVATE "-Wl,--version-script=${script}" -Wl,--exclude-libs,ALL -Wl,-z,nodelete)
  if(NOT ONELANE_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)  # the sanitizers' symbols are the program's
  endif()
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX LINK_DEPENDS "${script}")
endfunction()

# ONELANE_BUILD_ID: equal in a program and a plugin that fit. A hash of the headers that both are compiled with, so that
# it changes when and only when they do.
set(build_id_text "${PROJECT_VERSION}")
foreach(header include/onelane/attention.h src/device/plugin_interface.h src/kernels/kernels.h src/numerics/records.h src/device/memory.h)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/${header}")
  file(SHA256 "${CMAKE_SOURCE_DIR}/${header}" header_hash)
  string(APPEND build_id_text " ${header_hash}")
endforeach()
string(SHA256 build_id_hash "${build_id_text}")
string(SUBSTRING "${build_id_hash}" 0 12 build_id_hash)
set(ONELANE_BUILD_ID "${PROJECT_VERSION}-${build_id_hash}")
