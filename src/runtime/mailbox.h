// The one way into the protocol's thread: calls of the API, answers of the bootstrap client and
// completions of the transport, in batches, with one eventfd that wakes the driver.
//
// Three kinds of entry, so that nothing that is owed can be refused:
//   push           an API call. The queue has a limit; beyond it the caller gets kQueueFull.
//   push_reserved  an event that is bounded by something accepted before: the end of a handle (each
//                  handle has a place in the table until the driver has seen its end), an answer to
//                  a query. Keeps its order with push.
//   completions    bounded by posted tickets, fences and sessions (D5); consecutive ones are joined
//                  into one event.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#ifdef KVFERRY_LAB
#include <condition_variable>
#include <thread>
#endif

#include "core/event.h"
#include "data_plane/transport.h"
#include "kvferry/status.h"
#include "runtime/event_fd.h"

namespace kvferry::runtime {

class Mailbox final : public data_plane::CompletionSink {
 public:
  static Result<std::unique_ptr<Mailbox>> make(std::size_t max_queued_calls);

  // --- any thread ---
  Status push(core::Event event);
  // False once closed.
  bool push_reserved(core::Event event);
  // Makes the driver turn, though nothing was pushed.
  void wake() noexcept { signal_.raise(); }
  // From here on every push is refused with this cause. What is queued stays.
  void close(Failure cause);
  std::uint64_t lane_failures_dropped() const {
    return lane_failures_dropped_.load(std::memory_order_relaxed);
  }

  // --- the transport's threads; running out of memory here ends the process, since a completion
  // that is lost would hold its pages for ever ---
  void writes_completed(std::span<const layout::WriteCompletion> completions) noexcept override;
  void writes_quiet(SessionEpoch session, std::span<const TicketId> tickets) noexcept override;
  void writes_landed(std::span<const layout::Landing> landings) noexcept override;
  void write_torn(const layout::Landing& landing, std::string_view how) noexcept override;
  void fence_done(GrantId grant) noexcept override;
  void path_tested(SessionEpoch session, const Status& result) noexcept override;
  void lane_failed(SessionEpoch session, Failure cause) noexcept override;
  void session_unreachable(SessionEpoch session, Failure cause) noexcept override;
  void session_torn_down(SessionEpoch session) noexcept override;
  // Nobody waits for it: a manager registers its regions once, for its whole life.
  void regions_released() noexcept override {}

  // --- the driver ---
  int wake_fd() const { return signal_.fd(); }
  // Replaces events by what is queued: all completions, then at most max_calls calls, each in order
  // of arrival. With more calls the descriptor stays readable: they come with the next call.
  void drain(std::vector<core::Event>& events,
             std::size_t max_calls = std::numeric_limits<std::size_t>::max());

 private:
  Mailbox(std::size_t max_queued_calls, EventFd signal);
  template <typename Joined, typename Same, typename Append>
  void complete(Same&& same, Append&& append) noexcept;

#ifdef KVFERRY_LAB
  // Without RuntimeGuard::kCallsNeverWait: until the driver has carried out what the call queued.
  void wait_carried_out(std::unique_lock<std::mutex>& lock);
#endif

  const std::size_t max_queued_calls_;
  EventFd signal_;

  std::mutex calls_mutex_;
  std::vector<core::Event> calls_;
  std::size_t limited_calls_ = 0;    // of calls_, those that count against the limit
  std::size_t limited_backlog_ = 0;  // of backlog_, the same, until the last of it was taken
  std::optional<Failure> closed_;
#ifdef KVFERRY_LAB
  std::condition_variable drained_;
  std::uint64_t drains_ = 0;
  std::size_t waiting_calls_ = 0;
  std::thread::id driver_;
#endif

  // The driver's own: what was taken from calls_ and is still to come.
  std::vector<core::Event> backlog_;
  std::size_t backlog_next_ = 0;

  std::mutex completions_mutex_;
  std::vector<core::Event> completions_;
  std::size_t lane_failures_ = 0;  // of completions_
  std::atomic<std::uint64_t> lane_failures_dropped_{0};
};

}  // namespace kvferry::runtime
