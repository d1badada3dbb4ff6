# Writes a .cc with the automata's texts:  cmake -DFOLDER=... -DOUTPUT=... -P embed.cmake
file(GLOB FILES ${FOLDER}/*.txt)
list(SORT FILES)
set(AUTOMATA "")
foreach(FILE ${FILES})
  get_filename_component(NAME ${FILE} NAME)
  file(READ ${FILE} TEXT)
  if(NAME STREQUAL "events.txt")
    set(EVENTS "${TEXT}")
  elseif(NOT NAME STREQUAL "unreached.txt")
    string(APPEND AUTOMATA "${TEXT}\n")
  endif()
endforeach()
file(WRITE ${OUTPUT} "// Made by embed.cmake from spec/automata.
#include \"automata/embedded.h\"

namespace kvferry::sim {

std::string_view events_text() {
  return R\"kvferry(${EVENTS})kvferry\";
}

std::string_view automata_text() {
  return R\"kvferry(${AUTOMATA})kvferry\";
}

}  // namespace kvferry::sim
")
