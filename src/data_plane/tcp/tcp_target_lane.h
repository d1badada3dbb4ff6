// The target end of one authenticated lane: moves the frames that come into the pages, through the
// receive gate, and answers them. Lives on the thread of one loop.
//
// Bytes pass through a buffer of the thread that stays in its core's cache: copied on from there
// they reach the pages sooner than received straight into them, and the socket is drained sooner
// (docs/adr/0014). Nothing stays in the buffer between two calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data_plane/lanes/target_lane.h"

namespace kvferry::data_plane::tcp {

class TcpTargetLane final : public TargetLane, public EventLoop::Handler {
 public:
  explicit TcpTargetLane(TargetLaneParts&& parts);
  ~TcpTargetLane() override;
  TcpTargetLane(const TcpTargetLane&) = delete;
  TcpTargetLane& operator=(const TcpTargetLane&) = delete;

  void start(const Digest& proof) override;
  void tick(Instant now) override;
  void retry_held_answers() override;
  void answer_resolve(std::uint64_t request, std::span<const WriteResult> results) override;
  void close() override;

  void on_ready(std::uint32_t epoll_events) override;

 private:
  enum class Stage : std::uint8_t { kHeader, kDescriptors, kPayload, kTrailer, kEntries };
  enum class Step : std::uint8_t { kMoved, kNothing, kLost };

  struct HeldAnswer {
    std::uint64_t sequence = 0;
    IncomingFrame frame;
  };

  Step read_step();
  void take_in(std::span<const std::byte> bytes);
  // Each returns what it left.
  std::span<const std::byte> take_payload(std::span<const std::byte> bytes);
  std::span<const std::byte> take_message(std::span<const std::byte> bytes);
  void on_message();
  std::size_t descriptor_bytes() const;
  void on_header();
  void on_descriptors();
  void on_entries();
  void on_trailer();
  void expect(Stage stage, std::size_t bytes);
  // So many bytes, and what fills them up.
  void expect_padded(Stage stage, std::size_t bytes);
  void expect_trailer();
  void flush();
  void update_interest();

  EventLoop::Token token_ = 0;
  std::uint32_t interest_ = 0;
  Instant last_sent_{};
  Instant last_received_{};

  std::uint64_t received_ = 0;  // bytes of the stream
  Stage stage_ = Stage::kHeader;
  std::vector<std::uint8_t> input_;
  std::size_t input_wanted_ = 0;
  std::size_t input_size_ = 0;
  FrameHeader header_;
  IncomingFrame frame_;
  std::vector<IncomingWrite> writes_;
  std::vector<std::uint64_t> digests_;
  std::vector<WriteResult> results_;

  std::deque<std::unique_ptr<HeldAnswer>> held_;
  std::vector<std::uint8_t> output_;
  std::size_t output_sent_ = 0;
};

}  // namespace kvferry::data_plane::tcp
