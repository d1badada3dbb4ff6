// A source lane over TCP: frames with their payload on one connection, answers back on it.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data_plane/lanes/event_loop.h"
#include "data_plane/lanes/frame.h"
#include "data_plane/lanes/source_lane.h"

namespace kvferry::data_plane::tcp {

class TcpSourceLane final : public SourceLane, public EventLoop::Handler {
 public:
  // next_serial is the session's counter: each connection of any lane takes one.
  TcpSourceLane(EventLoop& loop, LaneOwner& owner, const LaneSettings& settings,
                std::uint32_t& next_serial);
  ~TcpSourceLane() override;
  TcpSourceLane(const TcpSourceLane&) = delete;
  TcpSourceLane& operator=(const TcpSourceLane&) = delete;

  bool is_up() const override { return state_ == State::kUp; }
  std::uint32_t serial() const override { return serial_; }
  void tick(Instant now) override;
  void pump() override;
  void ask(std::uint64_t request, std::uint32_t lost_serial, const OutFrame& frame) override;
  void expire(Instant now, const std::function<void(const OutFrame&)>& call) override;
  OutFramePtr take_untouched(GrantSlot slot, Generation generation) override;
  std::vector<OutFramePtr> close() override;

  void on_ready(std::uint32_t epoll_events) override;

 private:
  enum class State : std::uint8_t { kDown, kConnecting, kChallenged, kProving, kUp, kClosed };

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
  std::optional<LaneProof> proof_;
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
  UnansweredFrames unanswered_;
  std::vector<iovec> parts_;

  std::vector<std::uint8_t> input_;
  std::size_t input_size_ = 0;
};

}  // namespace kvferry::data_plane::tcp
