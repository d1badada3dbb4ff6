#include "lab/tally.h"

#include <fmt/format.h>

#include <algorithm>

#include "router/json.h"
#include "sim/transition_cells.h"

namespace kvferry::lab {
namespace {

constexpr double kFaultPercent = 1.0;
constexpr double kRoomPercent = 30.0;
constexpr std::uint64_t kCellHits = 100;
constexpr std::uint64_t kCellSeeds = 20'000;
constexpr std::size_t kFaultColumns = 3;

std::string_view fault_name(std::size_t index) {
  return sim::to_string(static_cast<sim::Fault>(index));
}

double percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Tally::Tally() : cells_(sim::transition_cells().size() + 1) {}

void Tally::add(const sim::RunResult& result) {
  ++seeds_;
  events_ += result.events;
  hash_ = (hash_ ^ result.hash) * 0x9E3779B97F4A7C15ULL;
  hash_ ^= hash_ >> 32;
  bool any_fired = false;
  for (std::size_t i = 0; i < sim::kFaultKinds; ++i) {
    if (result.fired[i] == 0) continue;
    any_fired = true;
    ++fired_in_[i];
  }
  Rooms& rooms = any_fired ? faulty_ : quiet_;
  rooms.succeeded += result.rooms_succeeded;
  rooms.failed += result.rooms_failed;
  rooms.unknown += result.rooms_unknown;
  for (std::size_t i = 0; i < std::min(cells_.size(), result.cells.size()); ++i) {
    cells_[i] += result.cells[i];
  }
}

std::uint64_t Tally::wanted_hits() const {
  return std::max<std::uint64_t>(1, kCellHits * seeds_ / kCellSeeds);
}

double Tally::percent_of_seeds(std::uint64_t count) const { return percent(count, seeds_); }

std::string Tally::cell_name(std::size_t index) const {
  return is_unlisted(index) ? "in no table" : sim::to_string(sim::transition_cells()[index]);
}

std::vector<std::string> Tally::shortfalls() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < sim::kFaultKinds; ++i) {
    const double share = percent_of_seeds(fired_in_[i]);
    if (share < kFaultPercent) {
      out.push_back(fmt::format("fault {} fired in {:.2f} % of the seeds, not in {} %",
                                fault_name(i), share, kFaultPercent));
    }
  }
  for (const auto& [what, count] :
       {std::pair{"succeeded", faulty_.succeeded}, {"failed", faulty_.failed}}) {
    const double share = percent(count, faulty_.all());
    if (share < kRoomPercent) {
      out.push_back(fmt::format("{:.1f} % of the rooms under faults {}, not {} %", share, what,
                                kRoomPercent));
    }
  }
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    if (is_unlisted(i) ? cells_[i] > 0 : cells_[i] < wanted_hits()) {
      out.push_back(fmt::format("transition {}: {} times, not {}", cell_name(i), cells_[i],
                                is_unlisted(i) ? 0 : wanted_hits()));
    }
  }
  return out;
}

std::string Tally::table() const {
  std::string out = fmt::format("faults, by share of the {} seeds in which they fired\n", seeds_);
  for (std::size_t i = 0; i < sim::kFaultKinds; ++i) {
    const double share = percent_of_seeds(fired_in_[i]);
    out += fmt::format("  {:<18}{:>6.1f} %{}", fault_name(i), share,
                       share < kFaultPercent ? " LOW" : "    ");
    if ((i + 1) % kFaultColumns == 0 || i + 1 == sim::kFaultKinds) out += "\n";
  }
  out += fmt::format("\n{:<20}{:>12}{:>20}{:>20}{:>20}\n", "rooms of seeds", "rooms", "succeeded",
                     "failed", "unknown");
  for (const auto& [name, rooms] : {std::pair{"with faults", &faulty_}, {"without", &quiet_}}) {
    out += fmt::format("  {:<18}{:>12}", name, rooms->all());
    for (const std::uint64_t count : {rooms->succeeded, rooms->failed, rooms->unknown}) {
      out += fmt::format("{:>11} {:>6.1f} %", count, percent(count, rooms->all()));
    }
    out += "\n";
  }
  out += "\ntransitions, by how often they were taken\n";
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    const bool is_wrong = is_unlisted(i) ? cells_[i] > 0 : cells_[i] < wanted_hits();
    out += fmt::format("  {:<62}{:>12}{}\n", cell_name(i), cells_[i],
                       !is_wrong ? "" : (is_unlisted(i) ? " WRONG" : " LOW"));
  }
  return out;
}

std::vector<std::string> Tally::json_rows() const {
  using router::JsonObject;
  std::vector<std::string> out;
  for (std::size_t i = 0; i < sim::kFaultKinds; ++i) {
    out.push_back(JsonObject()
                      .text("kind", "fault")
                      .text("name", fault_name(i))
                      .integer("seeds", static_cast<std::int64_t>(fired_in_[i]))
                      .number("percent", percent_of_seeds(fired_in_[i]))
                      .str());
  }
  for (const auto& [name, rooms] :
       {std::pair{"with faults", &faulty_}, {"without faults", &quiet_}}) {
    out.push_back(JsonObject()
                      .text("kind", "rooms")
                      .text("name", name)
                      .integer("succeeded", static_cast<std::int64_t>(rooms->succeeded))
                      .integer("failed", static_cast<std::int64_t>(rooms->failed))
                      .integer("unknown", static_cast<std::int64_t>(rooms->unknown))
                      .str());
  }
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    out.push_back(JsonObject()
                      .text("kind", "cell")
                      .text("name", cell_name(i))
                      .boolean("legal", !is_unlisted(i))
                      .integer("hits", static_cast<std::int64_t>(cells_[i]))
                      .str());
  }
  return out;
}

}  // namespace kvferry::lab
