#include "core/outbox.h"

#include <algorithm>
#include <utility>

#include "wire/codec.h"

namespace kvferry::core {

Outbox::Outbox(const Options& options)
    : window_(options.send_window_messages),
      max_waiting_(options.max_queued_messages),
      frame_bytes_(options.control_frame_bytes),
      repeat_min_(milliseconds(options.retransmit_min_ms)),
      repeat_max_(milliseconds(options.retransmit_max_ms)),
      repeat_after_(repeat_min_) {}

bool Outbox::push(wire::Message message, Urgency urgency, OwnerId owner) {
  if (waiting() >= max_waiting_) {
    return false;
  }
  const std::size_t bytes = wire::encoded_size_bound(message);
  const bool urgent = urgency == Urgency::kUrgent;
  auto& queue = urgent ? urgent_ : normal_;
  queue.push_back(Entry{std::move(message), owner, bytes, urgent});
  if (owner != OwnerId{}) {
    ++by_owner_.emplace(owner, 0);
  }
  return true;
}

bool Outbox::next_frame(Instant now, wire::Frame& frame, bool& urgent) {
  frame.messages.clear();
  urgent = false;
  std::size_t bytes = 0;
  const std::uint64_t first = first_out_ + out_.size();
  const bool was_idle = out_.empty();
  while (out_.size() < window_ && waiting() > 0) {
    auto& queue = urgent_.empty() ? normal_ : urgent_;
    Entry& entry = queue.front();
    if (!frame.messages.empty() && bytes + entry.bytes > frame_bytes_) {
      break;
    }
    bytes += entry.bytes;
    urgent = urgent || entry.urgent;
    frame.messages.push_back(entry.message);
    const bool nothing_to_repeat = repeat_next_ == out_.size();
    out_.push_back(std::move(entry));
    queue.pop_front();
    if (nothing_to_repeat) {
      repeat_next_ = out_.size();
    }
  }
  if (frame.messages.empty()) {
    return false;
  }
  frame.sequence = first;
  if (was_idle) {
    start_repeat_timer(now);
  }
  return true;
}

bool Outbox::repeat_frame(Instant now, wire::Frame& frame) {
  frame.messages.clear();
  if (repeat_next_ >= out_.size()) {
    return false;
  }
  frame.sequence = first_out_ + repeat_next_;
  std::size_t bytes = 0;
  while (repeat_next_ < out_.size()) {
    const Entry& entry = out_[repeat_next_];
    if (!frame.messages.empty() && bytes + entry.bytes > frame_bytes_) {
      break;
    }
    bytes += entry.bytes;
    frame.messages.push_back(entry.message);
    ++repeat_next_;
  }
  start_repeat_timer(now);
  return true;
}

void Outbox::rewind() { repeat_next_ = 0; }

bool Outbox::acknowledge(std::uint64_t through, Instant now, std::vector<OwnerId>& settled) {
  if (through >= first_out_ + out_.size()) {
    return false;
  }
  bool progress = false;
  while (!out_.empty() && first_out_ <= through) {
    const OwnerId owner = out_.front().owner;
    if (std::uint32_t* count = by_owner_.find(owner); count != nullptr && --*count == 0) {
      by_owner_.erase(owner);
      settled.push_back(owner);
    }
    out_.pop_front();
    ++first_out_;
    repeat_next_ = repeat_next_ > 0 ? repeat_next_ - 1 : 0;
    progress = true;
  }
  if (progress) {
    repeat_after_ = repeat_min_;
    start_repeat_timer(now);
  }
  return true;
}

void Outbox::note_repeated(Instant now) {
  repeat_after_ = std::min(repeat_after_ * 2, repeat_max_);
  start_repeat_timer(now);
}

void Outbox::start_repeat_timer(Instant now) {
  repeat_at_ = out_.empty() ? Instant::max() : now + repeat_after_;
}

ReceiveWindow::Accept ReceiveWindow::accept(std::uint64_t sequence) {
  if (sequence <= through_ || ahead_.contains(sequence)) {
    return guards_.has(Guard::kReceivedOnce) ? Accept::kDuplicate : Accept::kNew;
  }
  if (sequence - through_ > reach_) {
    return Accept::kTooFar;
  }
  if (sequence == through_ + 1 && ahead_.empty()) {
    ++through_;
    return Accept::kNew;
  }
  ahead_.insert(sequence);
  while (!ahead_.empty() && *ahead_.begin() == through_ + 1) {
    ++through_;
    ahead_.erase(ahead_.begin());
  }
  return Accept::kNew;
}

}  // namespace kvferry::core
