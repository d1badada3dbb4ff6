// What both roles must never see (docs/invariants.md). Each check costs the same however many rooms
// have ended: it counts, or looks at what lives. What can break only at one point is checked there,
// and its report is kept.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/decode_protocol.h"
#include "core/prefill_protocol.h"

namespace kvferry::core {
namespace {

// One broken fact may be seen again in every step.
constexpr std::size_t kMaxReports = 32;

}  // namespace

void RoleProtocol::report_broken(std::string text) {
  if (violations_.size() < kMaxReports) {
    violations_.push_back(std::move(text));
  }
}

void RoleProtocol::report_missing_row(std::string_view machine, std::string_view state,
                                      std::string_view trigger) {
  report_broken(fmt::format("S5: {}: {} --{}--> nowhere", machine, state, trigger));
}

void RoleProtocol::note_moved(std::uint64_t owner, KvPoll from, KvPoll to) {
  if (is_terminal(to)) {
    live_.erase(owner);
  }
  if (from == to) {
    return;
  }
  if (is_terminal(from) || (to != KvPoll::kFailed && to < from)) {
    report_broken(fmt::format("S5: a room went from {} to {}", to_string(from), to_string(to)));
  }
  succeeded_rooms_ += to == KvPoll::kSuccess ? 1 : 0;
  failed_rooms_ += to == KvPoll::kFailed ? 1 : 0;
}

void RoleProtocol::check_room_count(std::size_t live, std::vector<std::string>& broken) const {
  if (opened_rooms_ != succeeded_rooms_ + failed_rooms_ + live) {
    broken.push_back(fmt::format("R4: {} rooms were opened; {} succeeded, {} failed, {} live",
                                 opened_rooms_, succeeded_rooms_, failed_rooms_, live));
  }
}

// --- decode ---

// S12: what names a grant was never given before.
void DecodeProtocol::note_named(SessionSlots& session, const SlotName& name) {
  if (name.generation <= session.last_generation) {
    report_broken(fmt::format("S12: generation {} of slot {} after {}", name.generation.value(),
                              name.slot.value(), session.last_generation.value()));
  }
  session.last_generation = name.generation;
}

std::vector<std::string> DecodeProtocol::check_invariants() const {
  std::vector<std::string> broken = violations_;
  if (!ledger_.is_consistent()) {
    broken.emplace_back("S1: the page ledger is inconsistent");
  }
  if (ledger_.grants() != holding_rooms_ || grants_.size() != holding_rooms_) {
    broken.push_back(fmt::format("S1: {} rooms hold a grant, the ledger has {}, named are {}",
                                 holding_rooms_, ledger_.grants(), grants_.size()));
  }
  grants_.for_each([&](GrantId grant, ReceiverId receiver) {
    const DecodeRoom* room = find(receiver);
    if (room == nullptr || room->grant != grant || !room->holds_grant() || !ledger_.holds(grant)) {
      broken.push_back(
          fmt::format("S1: grant {} of receiver {} is held by nobody or not in the ledger",
                      grant.value(), receiver.value()));
    }
  });
  attempts_.for_each([&](AttemptId attempt, ReceiverId) {
    if (attempt >= next_attempt_) {
      broken.push_back(fmt::format("S12: attempt {} comes again", next_attempt_.value()));
    }
  });
  for (const auto& [key, receiver] : open_) {
    const DecodeRoom* room = find(receiver);
    if (room == nullptr || room->is_terminal()) {
      broken.push_back(fmt::format("R4: receiver {} is open and has ended", receiver.value()));
    }
  }
  check_room_count(open_.size(), broken);
  return broken;
}

// --- prefill ---

// S2: a room whose pages are the caller's again reads none of them, unless it has given up.
void PrefillProtocol::check_source(const PrefillRoom& room) {
  if (room.released && !room.gave_up && !room.is_settled()) {
    report_broken(
        fmt::format("S2: sender {} released pages that a write reads", room.sender.value()));
  }
}

std::vector<std::string> PrefillProtocol::check_invariants() const {
  std::vector<std::string> broken = violations_;
  for (const auto& [epoch, record] : records_) {
    if (!record->writes.has_risen()) {
      broken.push_back(fmt::format("S12: a ticket of session {} comes again", epoch.value()));
    }
    if (record->tombstones.size() > options_.max_tombstones) {
      broken.push_back(fmt::format("S12: {} tombstones of {} (max_tombstones)",
                                   record->tombstones.size(), options_.max_tombstones));
    }
  }
  std::size_t waiting = 0;
  for (const auto& [key, grants] : unopened_) {
    waiting += grants.size();
  }
  if (waiting != unopened_count_) {
    broken.push_back(
        fmt::format("R3: {} grants wait for their sender, counted {}", waiting, unopened_count_));
  }
  for (const auto& [key, sender] : open_) {
    const PrefillRoom* room = find(sender);
    if (room == nullptr || room->is_terminal()) {
      broken.push_back(fmt::format("R4: sender {} is open and has ended", sender.value()));
    }
  }
  check_room_count(open_.size(), broken);
  return broken;
}

}  // namespace kvferry::core
