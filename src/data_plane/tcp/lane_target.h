// The target end of one authenticated lane: reads frames straight into the pages through the
// receive gate and answers them. Lives on the thread of one loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data_plane/incoming_frame.h"
#include "data_plane/tcp/event_loop.h"
#include "data_plane/tcp/frame.h"
#include "data_plane/transport.h"

namespace kvferry::data_plane::tcp {

// One session at the target, shared by its lanes on all loops.
struct TargetSession {
  SessionEpoch epoch;
  std::array<std::uint8_t, 32> secret{};
  std::shared_ptr<SessionSlots> slots;
  std::atomic<bool> closed{false};
  std::atomic<std::uint32_t> lanes{0};
  // Lanes that hold back an answer until another lane has ended the first copy of a ticket.
  std::atomic<std::uint32_t> held_answers{0};
};

struct TargetLimits {
  std::uint32_t frame_bytes = 0;
  std::uint32_t frame_writes = 0;
  std::uint64_t largest_write_bytes = 0;  // a longer write than a frame goes alone, up to an item
  Duration heartbeat{};
  Duration timeout{};
};

class TargetLane;

class TargetLaneOwner {
 public:
  // The lane has closed its socket and ended its frame; it may be destroyed after the call returns.
  virtual void on_lane_lost(TargetLane& lane, Failure cause) = 0;
  // Some claims of the session got their outcome.
  virtual void on_claims_ended(TargetSession& session) = 0;
  // The source wants to know how tickets of a lost lane ended. Answered later by answer_resolve().
  virtual void on_resolve(TargetLane& lane, std::uint32_t lost_serial, std::uint64_t request,
                          std::vector<ResolveEntry> entries) = 0;

 protected:
  ~TargetLaneOwner() = default;
};

class TargetLane final : public EventLoop::Handler {
 public:
  TargetLane(EventLoop& loop, ReceiveGate::Reader& reader, TargetLaneOwner& owner,
             const TargetLimits& limits, std::shared_ptr<TargetSession> session,
             std::uint32_t serial, Fd fd, std::string peer);
  ~TargetLane();
  TargetLane(const TargetLane&) = delete;
  TargetLane& operator=(const TargetLane&) = delete;

  // Sends the welcome and starts to read.
  void start(const Digest& proof);
  void tick(Instant now);
  // Sends what was held back, as far as the first copies have ended by now.
  void retry_held_answers();
  void answer_resolve(std::uint64_t request, std::span<const WriteResult> results);
  // Ends the frame in progress and closes without telling the owner.
  void close();

  std::uint32_t serial() const { return serial_; }
  TargetSession& session() { return *session_; }
  bool is_closed() const { return !fd_.is_open(); }

  void on_ready(std::uint32_t epoll_events) override;

 private:
  enum class Stage : std::uint8_t { kHeader, kDescriptors, kPayload, kTrailer, kEntries };
  enum class Step : std::uint8_t { kMoved, kNothing, kLost };

  struct HeldAnswer {
    std::uint64_t sequence = 0;
    IncomingFrame frame;
  };

  Step read_step();
  Step read_exactly(std::size_t bytes);
  Step read_payload();
  Step after_read(std::ptrdiff_t got);
  bool on_header();
  void on_descriptors();
  void on_entries();
  bool on_trailer();
  void expect(Stage stage, std::size_t bytes);
  void answer(std::uint64_t sequence, std::span<const WriteResult> results, FrameType type);
  void flush();
  void update_interest();
  void lose(FailureCode code, std::string what, FailureWhere where);

  EventLoop& loop_;
  ReceiveGate::Reader& reader_;
  TargetLaneOwner& owner_;
  const TargetLimits& limits_;
  std::shared_ptr<TargetSession> session_;
  const std::uint32_t serial_;
  const std::string peer_;
  Fd fd_;
  EventLoop::Token token_ = 0;
  std::uint32_t interest_ = 0;
  Instant last_sent_{};
  Instant last_received_{};

  Stage stage_ = Stage::kHeader;
  std::vector<std::uint8_t> input_;
  std::size_t input_wanted_ = 0;
  std::size_t input_size_ = 0;
  FrameHeader header_;
  IncomingFrame frame_;
  std::vector<IncomingWrite> writes_;
  std::vector<WriteResult> results_;

  std::deque<std::unique_ptr<HeldAnswer>> held_;
  std::vector<std::uint8_t> output_;
  std::size_t output_sent_ = 0;
};

}  // namespace kvferry::data_plane::tcp
