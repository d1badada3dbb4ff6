#include "sim/fault.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvferry::sim {
namespace {

// In the order of the enumeration.
constexpr std::array<std::string_view, kFaultKinds> kNames{
    "loss",
    "delay",
    "reorder",
    "duplicate",
    "replay",
    "partition",
    "partition-one-way",
    "isolate",
    "clog",
    "swizzle-clog",
    "reset",
    "half-open",
    "slow-reader",
    "truncate",
    "bit-flip",
    "slow-write",
    "completion-lost",
    "completion-late",
    "completion-twice",
    "error-landed",
    "error-nothing",
    "partly-landed",
    "write-outlives",
    "lane-reset",
    "frame-twice",
    "bad-key",
    "flush-storm",
    "slow-fence",
    "stalled-frame",
    "slow-copy",
    "crash",
    "restart",
    "pause",
    "slow-turn",
    "stop",
    "relaunch",
    "registry-down",
    "registry-empty",
    "registry-stale",
    "registry-slow",
    "registry-missing",
    "registry-double",
    "early-timer",
    "late-timer",
    "clock-skew",
    "pages-exhausted",
    "aux-exhausted",
    "slots-exhausted",
    "tombstones-full",
    "outbox-full",
    "quarantine-full",
    "abort",
    "abort-twice",
    "abort-after-end",
    "clear-unread",
    "send-after-abort",
    "room-reused",
    "duplicate-room",
    "zero-pages",
    "too-many-pages",
    "wrong-count",
    "broken-aux",
    "same-page-twice",
    "late-sender",
    "one-rank-fails",
    "unlike-grants",
    "late-receiver",
};
static_assert(!kNames.back().empty(), "a fault without a name");

std::string all_names() {
  std::string text = "none, all";
  for (const std::string_view name : kNames) {
    text += fmt::format(", {}", name);
  }
  return text;
}

}  // namespace

std::string_view to_string(Fault fault) {
  const auto index = static_cast<std::size_t>(fault);
  return index < kFaultKinds ? kNames[index] : "unknown";
}

std::optional<Fault> fault_from(std::string_view name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) {
    return std::nullopt;
  }
  return static_cast<Fault>(found - kNames.begin());
}

Result<FaultSet> faults_from_list(std::string_view list) {
  FaultSet faults;
  while (true) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view word = list.substr(0, comma);
    if (word == "all") {
      faults.set();
    } else if (const auto fault = fault_from(word)) {
      faults.set(static_cast<std::size_t>(*fault));
    } else if (word != "none") {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("'{}' is no fault; known are {}", word, all_names()));
    }
    if (comma == list.size()) {
      return faults;
    }
    list.remove_prefix(comma + 1);
  }
}

std::string Faults::list_of_fired() const {
  std::string text;
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    if (fired_[i] > 0) {
      text += fmt::format("{}{}", text.empty() ? "" : ", ", kNames[i]);
    }
  }
  return text.empty() ? "none" : text;
}

}  // namespace kvferry::sim
