#include "core/decode_room.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvferry::core {

bool DecodeRoom::apply(RoomTrigger trigger) {
  const auto next = next_state(status, trigger);
  status = next.value_or(status);
  return next.has_value();
}

bool DecodeRoom::apply(GrantTrigger trigger) {
  const auto next = next_state(grant_state, trigger);
  grant_state = next.value_or(grant_state);
  return next.has_value();
}

bool DecodeRoom::is_covered() const {
  return std::ranges::all_of(writers,
                             [](const Writer& writer) { return writer.coverage->is_full(); });
}

bool DecodeRoom::all_done() const { return std::ranges::all_of(writers, &Writer::done); }

bool DecodeRoom::all_quiet() const { return std::ranges::all_of(writers, &Writer::is_quiet); }

bool DecodeRoom::any_torn_down() const {
  return std::ranges::any_of(writers, [](const Writer& writer) {
    return writer.torn_down && !writer.drained && !writer.done;
  });
}

Writer* DecodeRoom::find_writer(SessionEpoch epoch, GrantSlot slot,
                                std::optional<Generation> generation) {
  const auto found = std::ranges::find_if(writers, [&](const Writer& writer) {
    return writer.granted_epoch == epoch && writer.name.slot == slot &&
           (!generation || writer.name.generation == *generation);
  });
  return found == writers.end() ? nullptr : &*found;
}

std::optional<std::string> DecodeRoom::mismatch(const wire::Done& done,
                                                const Writer& writer) const {
  if (done.pages != metadata->pages.size()) {
    return fmt::format("the writer sent {} pages of {} granted", done.pages,
                       metadata->pages.size());
  }
  if (done.bytes != writer.extent->total_bytes()) {
    return fmt::format("the writer landed {} bytes of {} granted", done.bytes,
                       writer.extent->total_bytes());
  }
  return std::nullopt;
}

std::string DecodeRoom::waits_for() const {
  if (status == KvPoll::kBootstrapping) {
    return interests.empty() ? "the registry's answer"
                             : fmt::format("sessions with {} of {} prefill ranks", sessions_missing,
                                           interests.size());
  }
  if (status == KvPoll::kWaitingForInput) {
    return "send_metadata()";
  }
  const auto missing = std::ranges::count_if(writers, [](const Writer& w) { return !w.done; });
  std::uint64_t covered = 0;
  std::uint64_t total = 0;
  for (const Writer& writer : writers) {
    covered += writer.coverage ? writer.coverage->covered_bytes() : 0;
    total += writer.extent ? writer.extent->total_bytes() : 0;
  }
  return fmt::format("{} of {} bytes, Done of {} of {} writers", total - covered, total, missing,
                     writers.size());
}

}  // namespace kvferry::core
