#include "runtime/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/runtime_guards.h"

namespace kvferry::runtime {
namespace {

// A session ends after lane_failure_limit of them; more than this in one turn says nothing new.
constexpr std::size_t kMaxLaneFailures = 4'096;

}  // namespace

Result<std::unique_ptr<Mailbox>> Mailbox::make(std::size_t max_queued_calls) {
  Result<EventFd> signal = EventFd::make();
  if (!signal) {
    return tl::unexpected(signal.error());
  }
  return std::unique_ptr<Mailbox>(new Mailbox(max_queued_calls, std::move(*signal)));
}

Mailbox::Mailbox(std::size_t max_queued_calls, EventFd signal)
    : max_queued_calls_(max_queued_calls), signal_(std::move(signal)) {}

#ifdef KVFERRY_LAB
void Mailbox::wait_carried_out(std::unique_lock<std::mutex>& lock) {
  if (has_guard(RuntimeGuard::kCallsNeverWait) || std::this_thread::get_id() == driver_) {
    return;
  }
  // The next drain takes the event; the one after it comes when the step is over.
  const std::uint64_t carried_out = drains_ + 2;
  ++waiting_calls_;
  signal_.raise();
  drained_.wait(lock, [&] { return drains_ >= carried_out || closed_.has_value(); });
  --waiting_calls_;
}
#endif

Status Mailbox::push(core::Event event) {
  {
    std::unique_lock lock(calls_mutex_);
    if (closed_) {
      return tl::unexpected(*closed_);
    }
    if (limited_calls_ + limited_backlog_ >= max_queued_calls_) {
      return fail(FailureCode::kQueueFull,
                  fmt::format("max_queued_calls = {} calls wait for the control thread",
                              max_queued_calls_));
    }
    ++limited_calls_;
    calls_.push_back(std::move(event));
#ifdef KVFERRY_LAB
    wait_carried_out(lock);
#endif
  }
  signal_.raise();
  return {};
}

bool Mailbox::push_reserved(core::Event event) {
  {
    std::unique_lock lock(calls_mutex_);
    if (closed_) {
      return false;
    }
    calls_.push_back(std::move(event));
#ifdef KVFERRY_LAB
    wait_carried_out(lock);
#endif
  }
  signal_.raise();
  return true;
}

void Mailbox::close(Failure cause) {
  std::lock_guard lock(calls_mutex_);
  if (!closed_) {
    closed_ = std::move(cause);
  }
#ifdef KVFERRY_LAB
  drained_.notify_all();
#endif
}

// Joins with the last event when it is of the same kind and same() says so, else starts a new one.
template <typename Joined, typename Same, typename Append>
void Mailbox::complete(Same&& same, Append&& append) noexcept {
  {
    std::lock_guard lock(completions_mutex_);
    auto* last = completions_.empty() ? nullptr : std::get_if<Joined>(&completions_.back());
    if (last == nullptr || !same(*last)) {
      last = &std::get<Joined>(completions_.emplace_back(Joined{}));
    }
    append(*last);
  }
  signal_.raise();
}

void Mailbox::writes_completed(std::span<const layout::WriteCompletion> completions) noexcept {
  complete<core::WritesCompleted>(
      [](const auto&) { return true; },
      [&](core::WritesCompleted& event) {
        event.completions.insert(event.completions.end(), completions.begin(), completions.end());
      });
}

void Mailbox::writes_quiet(SessionEpoch session, std::span<const TicketId> tickets) noexcept {
  complete<core::WritesQuiet>([&](const auto& last) { return last.session == session; },
                              [&](core::WritesQuiet& event) {
                                event.session = session;
                                event.tickets.insert(event.tickets.end(), tickets.begin(),
                                                     tickets.end());
                              });
}

void Mailbox::writes_landed(std::span<const layout::Landing> landings) noexcept {
  complete<core::WritesLanded>([](const auto&) { return true; },
                               [&](core::WritesLanded& event) {
                                 event.landings.insert(event.landings.end(), landings.begin(),
                                                       landings.end());
                               });
}

void Mailbox::write_torn(const layout::Landing& landing, std::string_view how) noexcept {
  complete<core::WriteTorn>([](const auto&) { return false; },
                            [&](core::WriteTorn& event) {
                              event.landing = landing;
                              event.how = how;
                            });
}

void Mailbox::fence_done(GrantId grant) noexcept {
  complete<core::FenceCompleted>([](const auto&) { return false; },
                                 [&](core::FenceCompleted& event) { event.grant = grant; });
}

void Mailbox::path_tested(SessionEpoch session, const Status& result) noexcept {
  {
    std::lock_guard lock(completions_mutex_);
    completions_.emplace_back(core::PathTested{session, result});
  }
  signal_.raise();
}

void Mailbox::lane_failed(SessionEpoch session, Failure cause) noexcept {
  {
    std::lock_guard lock(completions_mutex_);
    if (lane_failures_ >= kMaxLaneFailures) {
      lane_failures_dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    ++lane_failures_;
    completions_.emplace_back(core::LaneFailed{session, std::move(cause)});
  }
  signal_.raise();
}

// Never dropped: it comes once, and nothing else would end the session.
void Mailbox::session_unreachable(SessionEpoch session, Failure cause) noexcept {
  {
    std::lock_guard lock(completions_mutex_);
    completions_.emplace_back(core::LaneFailed{session, std::move(cause), true});
  }
  signal_.raise();
}

void Mailbox::session_torn_down(SessionEpoch session) noexcept {
  complete<core::SessionTornDown>([](const auto&) { return false; },
                                  [&](core::SessionTornDown& event) { event.session = session; });
}

void Mailbox::drain(std::vector<core::Event>& events, std::size_t max_calls) {
  events.clear();
  signal_.lower();
  {
    std::lock_guard lock(completions_mutex_);
    events.swap(completions_);
    lane_failures_ = 0;
  }
  std::lock_guard lock(calls_mutex_);
  for (std::size_t room = max_calls; room > 0;) {
    if (backlog_next_ == backlog_.size()) {
      backlog_.clear();
      backlog_next_ = 0;
      backlog_.swap(calls_);
      limited_backlog_ = std::exchange(limited_calls_, 0);
      if (backlog_.empty()) {
        break;
      }
    }
    const std::size_t taken = std::min(room, backlog_.size() - backlog_next_);
    const auto first = backlog_.begin() + static_cast<std::ptrdiff_t>(backlog_next_);
    events.insert(events.end(), std::make_move_iterator(first),
                  std::make_move_iterator(first + static_cast<std::ptrdiff_t>(taken)));
    backlog_next_ += taken;
    room -= taken;
  }
  if (backlog_next_ < backlog_.size() || !calls_.empty()) {
    signal_.raise();
  } else {
    limited_backlog_ = 0;
  }
#ifdef KVFERRY_LAB
  driver_ = std::this_thread::get_id();
  ++drains_;
  drained_.notify_all();
  if (waiting_calls_ > 0) {
    signal_.raise();
  }
#endif
}

}  // namespace kvferry::runtime
