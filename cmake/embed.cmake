# Files as bytes of the program, so that they need no folder beside the binary. Included it defines
#   onelane_embed(OUTPUT.cc HEADER FUNCTION PATH=FILE...)   PATH: the name in the program; FILE: where it comes from
# and as a script (cmake -P) it writes OUTPUT.cc: std::span<const EmbeddedFile> FUNCTION(), which HEADER declares.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set_property(GLOBAL PROPERTY ONELANE_EMBED "${CMAKE_CURRENT_LIST_FILE}")

  function(onelane_embed output header function)
    get_property(script GLOBAL PROPERTY ONELANE_EMBED)
    list(TRANSFORM ARGN REPLACE "^[^=]*=" "" OUTPUT_VARIABLE files)
    list(JOIN ARGN "|" entries)
    add_custom_command(OUTPUT "${output}" VERBATIM DEPENDS ${files} "${script}"
                       COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${output}" "-DHEADER=${header}" "-DFUNCTION=${function}"
                       "-DENTRIES=${entries}" -P "${script}")
  endfunction()
  return()
endif()

cmake_minimum_required(VERSION 3.25)
set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")
set(type_json "application/json")

string(REPLACE "|" ";" ENTRIES "${ENTRIES}")
set(bytes "")
set(table "")
set(index 0)
foreach(entry IN LISTS ENTRIES)
  string(REGEX MATCH "^([^=]*)=(.*)\\.([a-z]+)$" matched "${entry}")
  set(path "${CMAKE_MATCH_1}")
  set(type "${type_${CMAKE_MATCH_3}}")
  set(file "${CMAKE_MATCH_2}.${CMAKE_MATCH_3}")
  if(NOT matched OR NOT type)
    message(FATAL_ERROR "embed.cmake: no content type for '${entry}'")
  endif()
  file(READ "${file}" hex HEX)
  file(SIZE "${file}" size)
  file(SHA256 "${file}" hash)
  string(SUBSTRING "${hash}" 0 16 tag)
  string(REGEX REPLACE "(..)" "\\\\x\\1" literal "${hex}")
  string(REPLACE "\\x0a" "\\x0a\"\n    \"" literal "${literal}")  # a line of the file, a line of the source
  string(APPEND bytes "constexpr char kFile${index}[] =\n    \"${literal}\";\n")
  string(APPEND table "    {\"${path}\", \"${type}\", \"\\\"${tag}\\\"\", {kFile${index}, ${size}}},\n")
  math(EXPR index "${index} + 1")
endforeach()

file(WRITE "${OUTPUT}"
"// Written by cmake/embed.cmake.
#include \"${HEADER}\"

namespace onelane {
namespace {

${bytes}
constexpr EmbeddedFile kFiles[] = {
${table}};

}  // namespace

std::span<const EmbeddedFile> ${FUNCTION}() { return kFiles; }

}  // namespace onelane
")
