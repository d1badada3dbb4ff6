// The two ends of a session's numbering. Outbox: messages wait, get numbers, go out in frames and
// stay until acknowledged; one copy each, a window per peer. ReceiveWindow: which numbers were
// processed. Numbers are given when a message first leaves, so that urgent ones overtake those
// still waiting.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <variant>
#include <vector>

#include "base/instant.h"
#include "core/guards.h"
#include "core/number_map.h"
#include "kvferry/ids.h"
#include "kvferry/options.h"
#include "wire/messages.h"

namespace kvferry::core {

// Who waits for the acknowledgement of what it has sent: the value of a ReceiverId or a SenderId.
using OwnerId = StrongId<struct OwnerTag>;

enum class Urgency : std::uint8_t { kUrgent, kNormal };

class Outbox {
 public:
  explicit Outbox(const Options& options);

  // owner: 0 when nobody waits for the acknowledgement. False: the queue is at max_queued_messages.
  bool push(wire::Message message, Urgency urgency, OwnerId owner);

  // Fills sequence and messages of the next frame of messages that never left, within the window
  // and the frame size; a longer message travels alone. False: nothing may leave now.
  bool next_frame(Instant now, wire::Frame& frame, bool& urgent);
  // As above for messages that left but are not acknowledged, from the oldest on; called repeatedly
  // after rewind() until false.
  bool repeat_frame(Instant now, wire::Frame& frame);
  // Repeat everything that is not acknowledged (timeout, or a resumed session).
  void rewind();

  // The peer has processed everything up to and including through; appends the owners of
  // whom nothing is unacknowledged any more. A number that was never given is ignored and returns
  // false.
  bool acknowledge(std::uint64_t through, Instant now, std::vector<OwnerId>& settled);

  // When rewind() is due for want of an acknowledgement; Instant::max() when nothing is out.
  Instant repeat_at() const { return repeat_at_; }
  // After a repetition: back off.
  void note_repeated(Instant now);

  bool has_unsettled(OwnerId owner) const { return by_owner_.contains(owner); }
  // The number of the last message that left.
  std::uint64_t last_number() const { return first_out_ + out_.size() - 1; }
  // Says an owner's messages of one kind no more, acknowledged or not. Their numbers stay taken,
  // since the peer counts on them. Only where kAbortUntilAcknowledged is missing.
  template <typename Kind>
  void withdraw(OwnerId owner);
  std::size_t waiting() const { return urgent_.size() + normal_.size(); }
  std::size_t unacknowledged() const { return out_.size(); }

 private:
  struct Entry {
    wire::Message message;
    OwnerId owner;
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
  NumberMap<OwnerId, std::uint32_t> by_owner_;  // messages waiting or out
  Duration repeat_after_;
  Instant repeat_at_ = Instant::max();
};

template <typename Kind>
void Outbox::withdraw(OwnerId owner) {
  for (auto* queue : {&urgent_, &normal_, &out_}) {
    for (Entry& entry : *queue) {
      if (entry.owner == owner && std::holds_alternative<Kind>(entry.message)) {
        entry.message = wire::Ack{};
        entry.owner = OwnerId{};
        if (--*by_owner_.find(owner) == 0) {
          by_owner_.erase(owner);
        }
      }
    }
  }
}

class ReceiveWindow {
 public:
  explicit ReceiveWindow(std::uint32_t reach, Guards guards = {})
      : reach_(reach), guards_(guards) {}

  enum class Accept : std::uint8_t { kNew, kDuplicate, kTooFar };
  Accept accept(std::uint64_t sequence);
  std::uint64_t processed_through() const { return through_; }

 private:
  const std::uint32_t reach_;  // numbers beyond through_ + reach_ are not taken
  Guards guards_;
  std::uint64_t through_ = 0;
  std::set<std::uint64_t> ahead_;
};

}  // namespace kvferry::core
