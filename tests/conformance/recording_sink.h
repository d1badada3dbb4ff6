// A sink that remembers everything and lets a test wait for it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "data_plane/transport.h"

namespace kvferry::data_plane {

// Long enough for a busy machine under sanitizers; a test that waits this long has failed.
inline constexpr std::chrono::seconds kPatience{30};

class RecordingSink final : public CompletionSink {
 public:
  struct TicketRecord {
    std::vector<layout::WriteOutcome> outcomes;
    bool fenced = false;
    std::uint32_t quiets = 0;
    std::uint32_t quiets_before_outcome = 0;
    std::uint64_t outcome_order = 0;
  };
  struct LandingRecord {
    Landing landing;
    std::uint64_t order = 0;
  };
  struct State {
    std::map<std::uint64_t, TicketRecord> tickets;
    std::size_t tickets_completed = 0;
    std::vector<LandingRecord> landings;
    std::set<std::pair<std::uint32_t, std::uint64_t>> landed_lives;  // slot and generation
    std::vector<Landing> torn;
    std::vector<std::string> torn_how;  // parallel to torn
    std::map<std::uint64_t, std::uint32_t> fences;
    std::vector<Failure> lane_failures;
    std::vector<std::pair<SessionEpoch, Failure>> unreachable;
    std::vector<SessionEpoch> torn_down;
    std::uint32_t releases = 0;  // of the regions

    std::size_t completed() const { return tickets_completed; }
    bool has_outcome(std::uint64_t ticket) const {
      const auto found = tickets.find(ticket);
      return found != tickets.end() && !found->second.outcomes.empty();
    }
    bool is_quiet(std::uint64_t ticket) const {
      const auto found = tickets.find(ticket);
      return found != tickets.end() && found->second.quiets != 0;
    }
  };

  // Both ends of a rig count with one clock, so that orders can be compared.
  explicit RecordingSink(std::atomic<std::uint64_t>& clock) : clock_(clock) {}

  // Called in the transport's thread at the moment of a completion or a landing, before anybody
  // else knows of it. Set before any traffic.
  std::function<void(std::span<const WriteCompletion>)> on_completed;
  std::function<void(std::span<const Landing>)> on_landed;
  std::function<void()> on_released;

  void writes_completed(std::span<const WriteCompletion> completions) noexcept override {
    if (on_completed) on_completed(completions);
    change([&](State& state) {
      for (const WriteCompletion& completion : completions) {
        TicketRecord& record = state.tickets[completion.ticket.value()];
        if (record.outcomes.empty()) ++state.tickets_completed;
        record.outcomes.push_back(completion.outcome);
        record.fenced = completion.fenced;
        record.outcome_order = ++clock_;
      }
    });
  }
  void writes_quiet(SessionEpoch, std::span<const TicketId> tickets) noexcept override {
    change([&](State& state) {
      for (const TicketId ticket : tickets) {
        TicketRecord& record = state.tickets[ticket.value()];
        ++record.quiets;
        if (record.outcomes.empty()) ++record.quiets_before_outcome;
      }
    });
  }
  void writes_landed(std::span<const Landing> landings) noexcept override {
    if (on_landed) on_landed(landings);
    change([&](State& state) {
      for (const Landing& landing : landings) {
        state.landings.push_back({landing, ++clock_});
        state.landed_lives.emplace(landing.slot.value(), landing.generation.value());
      }
    });
  }
  void write_torn(const Landing& landing, std::string_view how) noexcept override {
    change([&](State& state) {
      state.torn.push_back(landing);
      state.torn_how.emplace_back(how);
    });
  }
  void regions_released() noexcept override {
    if (on_released) on_released();
    change([](State& state) { ++state.releases; });
  }
  void fence_done(GrantId grant) noexcept override {
    change([&](State& state) { ++state.fences[grant.value()]; });
  }
  void lane_failed(SessionEpoch, Failure cause) noexcept override {
    change([&](State& state) { state.lane_failures.push_back(std::move(cause)); });
  }
  void session_unreachable(SessionEpoch session, Failure cause) noexcept override {
    change([&](State& state) { state.unreachable.emplace_back(session, std::move(cause)); });
  }

  void session_torn_down(SessionEpoch session) noexcept override {
    change([&](State& state) { state.torn_down.push_back(session); });
  }

  // Whether the condition held before patience ran out.
  template <typename Condition>
  bool wait(Condition&& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return condition(state_); });
  }
  bool wait_outcome(std::uint64_t ticket) {
    return wait([&](const State& state) { return state.has_outcome(ticket); });
  }
  bool wait_quiet(std::uint64_t ticket) {
    return wait([&](const State& state) { return state.is_quiet(ticket); });
  }
  bool wait_fence(std::uint64_t grant) {
    return wait([&](const State& state) { return state.fences.contains(grant); });
  }
  // What was recorded so far; for long runs, in which it would be most of the memory.
  void forget() {
    std::lock_guard lock(mutex_);
    state_ = {};
  }
  State snapshot() {
    std::lock_guard lock(mutex_);
    return state_;
  }
  bool is_fenced(std::uint64_t ticket) {
    std::lock_guard lock(mutex_);
    return state_.tickets[ticket].fenced;
  }
  layout::WriteOutcome outcome(std::uint64_t ticket) {
    std::lock_guard lock(mutex_);
    const auto found = state_.tickets.find(ticket);
    const bool known = found != state_.tickets.end() && !found->second.outcomes.empty();
    return known ? found->second.outcomes.front() : layout::WriteOutcome::kUnknown;
  }

 private:
  template <typename Change>
  void change(Change&& apply) {
    std::lock_guard lock(mutex_);
    apply(state_);
    changed_.notify_all();
  }

  std::atomic<std::uint64_t>& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_;
};

}  // namespace kvferry::data_plane
