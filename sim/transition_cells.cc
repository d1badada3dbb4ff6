#include "sim/transition_cells.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/transition_table.h"

namespace kvferry::sim {
namespace {

// More than any enum of the tables has; larger numbers share the last place, which is in no table.
constexpr std::size_t kStates = 16;
constexpr std::size_t kTriggers = 16;
constexpr std::size_t kMachines = 4;

template <typename Rows>
void append(Machine machine, const Rows& rows, std::vector<TransitionCell>& out) {
  for (const auto& row : rows) {
    out.push_back(TransitionCell{machine, static_cast<std::uint8_t>(row.from),
                                 static_cast<std::uint8_t>(row.trigger), to_string(row.from),
                                 to_string(row.trigger), to_string(row.to)});
  }
}

}  // namespace

std::string_view to_string(Machine machine) {
  switch (machine) {
    case Machine::kDecodeRoom:
      return "decode room";
    case Machine::kPrefillRoom:
      return "prefill room";
    case Machine::kGrant:
      return "grant";
    case Machine::kTarget:
      return "target";
  }
  return "?";
}

std::vector<TransitionCell> transition_cells() {
  std::vector<TransitionCell> out;
  append(Machine::kDecodeRoom, core::room_transitions(), out);
  append(Machine::kPrefillRoom, core::room_transitions(), out);
  append(Machine::kGrant, core::grant_transitions(), out);
  append(Machine::kTarget, core::target_transitions(), out);
  return out;
}

std::string to_string(const TransitionCell& cell) {
  return fmt::format("{}: {} --{}--> {}", to_string(cell.machine), cell.from_name,
                     cell.trigger_name, cell.to_name);
}

CellCounts::CellCounts() {
  const std::vector<TransitionCell> cells = transition_cells();
  counts_.resize(cells.size() + 1);
  index_.resize(kMachines * kStates * kTriggers, static_cast<std::uint16_t>(cells.size()));
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const TransitionCell& cell = cells[i];
    index_[key_of(cell.machine, cell.from, cell.trigger)] = static_cast<std::uint16_t>(i);
  }
}

std::size_t CellCounts::key_of(Machine machine, std::uint8_t from, std::uint8_t trigger) {
  return (static_cast<std::size_t>(machine) * kStates + std::min<std::size_t>(from, kStates - 1)) *
             kTriggers +
         std::min<std::size_t>(trigger, kTriggers - 1);
}

void CellCounts::hit(Machine machine, std::uint8_t from, std::uint8_t trigger) {
  ++counts_[index_[key_of(machine, from, trigger)]];
}

}  // namespace kvferry::sim
