// The two ends of a session's numbering. Outbox: messages wait, get numbers, go out in frames and
// stay until acknowledged; one copy each, a window per peer. ReceiveWindow: which numbers were
// processed. Numbers are given when a message first leaves, so that urgent ones overtake those
// still waiting.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "base/instant.h"
#include "kvferry/ids.h"
#include "kvferry/options.h"
#include "wire/messages.h"

namespace kvferry::core {

enum class Urgency : std::uint8_t { kUrgent, kNormal };

class Outbox {
 public:
  explicit Outbox(const Options& options);

  // attempt: 0 when the message belongs to none. False: the queue is at max_queued_messages.
  bool push(wire::Message message, Urgency urgency, AttemptId attempt);

  // Fills sequence and messages of the next frame of messages that never left, within the window
  // and the frame size; a longer message travels alone. False: nothing may leave now.
  bool next_frame(Instant now, wire::Frame& frame, bool& urgent);
  // As above for messages that left but are not acknowledged, from the oldest on; called repeatedly
  // after rewind() until false.
  bool repeat_frame(Instant now, wire::Frame& frame);
  // Repeat everything that is not acknowledged (timeout, or a resumed session).
  void rewind();

  // The peer has processed everything up to and including through; appends attempts of which
  // nothing is unacknowledged any more. A number that was never given is ignored and returns false.
  bool acknowledge(std::uint64_t through, Instant now, std::vector<AttemptId>& settled);

  // When rewind() is due for want of an acknowledgement; Instant::max() when nothing is out.
  Instant repeat_at() const { return repeat_at_; }
  // After a repetition: back off.
  void note_repeated(Instant now);

  bool has_unsettled(AttemptId attempt) const { return by_attempt_.contains(attempt); }
  std::size_t waiting() const { return urgent_.size() + normal_.size(); }
  std::size_t unacknowledged() const { return out_.size(); }

 private:
  struct Entry {
    wire::Message message;
    AttemptId attempt;
    std::size_t bytes;
    bool urgent;
  };

  void start_repeat_timer(Instant now);

  const std::uint32_t window_;
  const std::uint32_t max_waiting_;
  const std::size_t frame_bytes_;
  const Duration repeat_min_;
  const Duration repeat_max_;
  std::deque<Entry> urgent_;
  std::deque<Entry> normal_;
  std::deque<Entry> out_;  // numbers first_out_ .. first_out_ + size - 1
  std::uint64_t first_out_ = 1;
  std::size_t repeat_next_ = 0;  // index into out_ of the next to repeat; size(): none
  std::map<AttemptId, std::uint32_t> by_attempt_;  // messages waiting or out
  Duration repeat_after_;
  Instant repeat_at_ = Instant::max();
};

class ReceiveWindow {
 public:
  explicit ReceiveWindow(std::uint32_t reach) : reach_(reach) {}

  enum class Accept : std::uint8_t { kNew, kDuplicate, kTooFar };
  Accept accept(std::uint64_t sequence);
  std::uint64_t processed_through() const { return through_; }

 private:
  const std::uint32_t reach_;  // numbers beyond through_ + reach_ are not taken
  std::uint64_t through_ = 0;
  std::set<std::uint64_t> ahead_;
};

}  // namespace kvferry::core
