// The source end of one lane: connects, proves itself, sends frames, takes answers, and connects
// anew after a back-off when it is lost. Lives on the loop's thread.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data_plane/tcp/event_loop.h"
#include "data_plane/tcp/frame.h"
#include "data_plane/transport.h"

namespace kvferry::data_plane::tcp {

// Writes of one slot and generation that travel, are answered and expire together.
struct OutFrame {
  GrantSlot slot;
  Generation generation;
  std::vector<layout::Write> writes;
  std::uint64_t payload_bytes = 0;
  std::uint64_t sequence = 0;  // on its lane
  Instant deadline;            // of its last write
  Instant expired_at;          // when unknown was reported, while is_expired
  bool is_expired = false;
};
using OutFramePtr = std::unique_ptr<OutFrame>;

class SourceLane;

// What a lane needs of its session. on_lane_lost comes at most once per connection.
class LaneOwner {
 public:
  virtual OutFramePtr next_frame() = 0;  // null when nothing may be sent now
  virtual bool is_given_up(GrantSlot slot, Generation generation) = 0;
  virtual const std::byte* source_address(const layout::Write& write) const = 0;
  virtual void on_lane_up(SourceLane& lane) = 0;
  // untouched: taken by the lane, no byte sent. sent: some or all bytes sent, unanswered.
  virtual void on_lane_lost(std::uint32_t serial, OutFramePtr untouched,
                            std::vector<OutFramePtr> sent, Failure cause) = 0;
  virtual void on_answers(OutFramePtr frame, std::span<const std::uint8_t> results) = 0;
  // False when no such request is open or the count is wrong.
  virtual bool on_resolved(std::uint64_t request, std::span<const std::uint8_t> results) = 0;
  virtual void after_answers() = 0;

 protected:
  ~LaneOwner() = default;
};

struct LaneSettings {
  std::string host;
  std::uint16_t port = 0;
  SessionEpoch epoch;
  std::array<std::uint8_t, 32> secret{};
  Duration heartbeat{};
  Duration timeout{};
};

class SourceLane final : public EventLoop::Handler {
 public:
  // next_serial is the session's counter: each connection of any lane takes one.
  SourceLane(EventLoop& loop, LaneOwner& owner, const LaneSettings& settings,
             std::uint32_t& next_serial);
  ~SourceLane();
  SourceLane(const SourceLane&) = delete;
  SourceLane& operator=(const SourceLane&) = delete;

  bool is_up() const { return state_ == State::kUp; }
  std::uint32_t serial() const { return serial_; }
  void tick(Instant now);
  // Sends until nothing is left to send or the socket is full.
  void pump();
  // Asks how the tickets of a lost lane's frame ended.
  void ask(std::uint64_t request, std::uint32_t lost_serial, const OutFrame& frame);
  // Marks the frames that are past their deadline; calls on each that is so for the first time.
  template <typename Call>
  void expire(Instant now, Call&& call) {
    for (const OutFramePtr& frame : unanswered_) expire_one(*frame, now, call);
    if (current_) expire_one(*current_, now, call);
  }
  // The frame that was taken for this lane while no byte of it could leave, if it is of this grant.
  OutFramePtr take_untouched(GrantSlot slot, Generation generation);
  // Closes without telling the owner; gives back the frames it had, sent or not.
  std::vector<OutFramePtr> close();

  void on_ready(std::uint32_t epoll_events) override;

 private:
  enum class State : std::uint8_t { kDown, kConnecting, kChallenged, kProving, kUp, kClosed };

  template <typename Call>
  void expire_one(OutFrame& frame, Instant now, Call&& call) {
    if (frame.is_expired || now < frame.deadline) return;
    frame.is_expired = true;
    frame.expired_at = now;
    call(frame);
  }

  void connect();
  bool read_input();
  bool handle_input();
  bool handle_challenge();
  bool handle_welcome();
  bool handle_frames();
  bool handle_answer(const FrameHeader& header, std::span<const std::uint8_t> results);
  void start_frame(OutFramePtr frame);
  std::size_t gather(std::vector<iovec>& parts);
  void consume(std::uint64_t sent);
  void finish_payload();
  bool has_output() const { return small_sent_ < small_.size() || current_ != nullptr; }
  void watch_output(bool wanted);
  bool has_overdue_frame(Instant now) const;
  void lose(FailureCode code, std::string what, FailureWhere where = FailureWhere::kPath);
  void drop_connection();
  std::string peer_text() const;

  EventLoop& loop_;
  LaneOwner& owner_;
  const LaneSettings& settings_;
  std::uint32_t& next_serial_;

  State state_ = State::kDown;
  Fd fd_;
  EventLoop::Token token_ = 0;
  bool watching_output_ = false;
  std::uint32_t serial_ = 0;
  Nonce nonce_{};
  Nonce target_nonce_{};
  std::uint32_t failures_ = 0;  // in a row, for the back-off
  Instant retry_at_{};
  Instant started_at_{};
  Instant last_sent_{};
  Instant last_received_{};

  // Going out: small_ first (handshake, trailers, heartbeats, questions), then the current frame.
  std::vector<std::uint8_t> small_;
  std::size_t small_sent_ = 0;
  std::vector<std::uint8_t> questions_;  // wait for the end of the current frame
  OutFramePtr current_;
  std::vector<std::uint8_t> head_;
  std::size_t head_sent_ = 0;
  std::size_t write_index_ = 0;
  std::uint64_t write_sent_ = 0;
  bool is_void_ = false;
  std::uint64_t next_sequence_ = 1;
  std::deque<OutFramePtr> unanswered_;
  std::vector<iovec> parts_;

  std::vector<std::uint8_t> input_;
  std::size_t input_size_ = 0;
};

}  // namespace kvferry::data_plane::tcp
