// The texts of spec/automata, as they were when this binary was built.
#pragma once

#include <string_view>

namespace kvferry::sim {

std::string_view events_text();
std::string_view automata_text();

}  // namespace kvferry::sim
