// How often each cell of the core's transition tables was taken, for the proof that runs are not
// vacuous. A cell is a row of core/transition_table.h; a room's rows count for each role apart.
// What is in no table is a cell as well, the last one: it must stay at zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::sim {

// Whose table it is.
enum class Machine : std::uint8_t { kDecodeRoom, kPrefillRoom, kGrant, kTarget };

std::string_view to_string(Machine machine);

struct TransitionCell {
  Machine machine;
  std::uint8_t from;     // the state's number in its enum
  std::uint8_t trigger;  // likewise
  std::string_view from_name;
  std::string_view trigger_name;
  std::string_view to_name;
};

// In the order of the tables: decode's rooms, prefill's rooms, grants, targets.
std::vector<TransitionCell> transition_cells();
// "grant: covered --fence-done--> fenced"
std::string to_string(const TransitionCell& cell);

class CellCounts {
 public:
  CellCounts();

  void hit(Machine machine, std::uint8_t from, std::uint8_t trigger);
  // One number per cell of transition_cells(), then that of pairs that are in no table.
  const std::vector<std::uint32_t>& counts() const { return counts_; }

 private:
  // Cell by machine, state and trigger, so that a hit costs one look-up.
  static std::size_t key_of(Machine machine, std::uint8_t from, std::uint8_t trigger);
  std::vector<std::uint16_t> index_;
  std::vector<std::uint32_t> counts_;
};

}  // namespace kvferry::sim
