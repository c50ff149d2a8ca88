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
target_compile_options(onelane_options INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
                       -Wno-missing-field-initializers  # designated initialisers leave the rest to the defaults
                       -Werror -ffp-contract=off)
target_include_directories(onelane_options INTERFACE "${CMAKE_SOURCE_DIR}/src")

# onelane_library(NAME files... LINKS targets...): the static library of one src/ folder.
function(onelane_library name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "LINKS;PRIVATE_LINKS")
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC onelane_options ${ARG_LINKS} PRIVATE ${ARG_PRIVATE_LINKS})
endfunction()

function(onelane_sanitize)
  if(ONELANE_SANITIZE)
    add_compile_options(-fsanitize=${ONELANE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${ONELANE_SANITIZE})
  endif()
  if(ONELANE_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
  endif()
endfunction()
