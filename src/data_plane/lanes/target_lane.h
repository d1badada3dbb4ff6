// The target end of one lane, whatever carries its frames. Belongs to one receiving thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/instant.h"
#include "data_plane/incoming_frame.h"
#include "data_plane/lanes/event_loop.h"
#include "data_plane/lanes/frame.h"
#include "data_plane/receive_gate.h"

namespace kvferry::data_plane {

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
  // A longer write than a frame goes alone, up to an item. Changes with the regions.
  std::atomic<std::uint64_t> largest_write_bytes{0};
  Duration heartbeat{};
  Duration timeout{};
};

// Answers as they go to the source: of a frame (kAck), or of a resolve request (kResolved).
void append_answers(std::vector<std::uint8_t>& out, FrameType type, std::uint64_t sequence,
                    std::span<const WriteResult> results);

class TargetLane;

class TargetLaneOwner {
 public:
  // The lane has closed its socket and ended its frame; it may be destroyed after the call returns.
  virtual void on_lane_lost(TargetLane& lane, Failure cause) = 0;
  // The lane ended before it carried anything, by agreement: no failure, and nothing is told.
  virtual void on_lane_over(TargetLane& lane) = 0;
  // Some claims of the session got their outcome.
  virtual void on_claims_ended(TargetSession& session) = 0;
  // The source wants to know how tickets of a lost lane ended. Answered later by answer_resolve().
  virtual void on_resolve(TargetLane& lane, std::uint32_t lost_serial, std::uint64_t request,
                          std::vector<ResolveEntry> entries) = 0;

 protected:
  ~TargetLaneOwner() = default;
};

// What a lane is made of.
struct TargetLaneParts {
  EventLoop& loop;
  ReceiveGate::Reader& reader;
  TargetLaneOwner& owner;
  const TargetLimits& limits;
  std::shared_ptr<TargetSession> session;
  std::uint32_t serial = 0;
  Fd fd;
  std::string peer;  // for messages
};

class TargetLane {
 public:
  explicit TargetLane(TargetLaneParts&& parts)
      : loop_(parts.loop),
        reader_(parts.reader),
        owner_(parts.owner),
        limits_(parts.limits),
        session_(std::move(parts.session)),
        serial_(parts.serial),
        peer_(std::move(parts.peer)),
        fd_(std::move(parts.fd)) {
    session_->lanes.fetch_add(1);
  }
  virtual ~TargetLane() { session_->lanes.fetch_sub(1); }
  TargetLane(const TargetLane&) = delete;
  TargetLane& operator=(const TargetLane&) = delete;

  // Sends the welcome and starts to read.
  virtual void start(const Digest& proof) = 0;
  virtual void tick(Instant now) = 0;
  // Sends what was held back, as far as the first copies have ended by now.
  virtual void retry_held_answers() {}
  virtual void answer_resolve(std::uint64_t request, std::span<const WriteResult> results) = 0;
  // Ends the frame in progress and closes without telling the owner.
  virtual void close() = 0;

  std::uint32_t serial() const { return serial_; }
  TargetSession& session() { return *session_; }
  bool is_closed() const { return !fd_.is_open(); }

 protected:
  void lose(FailureCode code, std::string what, FailureWhere where) {
    if (is_closed()) return;
    close();
    owner_.on_claims_ended(*session_);
    owner_.on_lane_lost(*this, Failure{code, where, std::move(what), peer_, -1});
  }
  // Hands a resolve request on. False, and the lane is lost, when it names this lane itself.
  bool ask_owner(std::uint64_t request, std::uint32_t lost_serial,
                 std::span<const std::uint8_t> entries);

  EventLoop& loop_;
  ReceiveGate::Reader& reader_;
  TargetLaneOwner& owner_;
  const TargetLimits& limits_;
  const std::shared_ptr<TargetSession> session_;
  const std::uint32_t serial_;
  const std::string peer_;
  Fd fd_;
};

}  // namespace kvferry::data_plane
