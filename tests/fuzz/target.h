// What every fuzz target and the replay of its corpus share. A target is one function; libFuzzer
// calls it with inputs that it makes (preset fuzz), the replay with the stored ones (every tree).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace kvferry::fuzz {

// Ends the process with the text when the condition does not hold: what both libFuzzer and the
// replay take for a finding.
void require(bool condition, std::string_view what);

}  // namespace kvferry::fuzz
