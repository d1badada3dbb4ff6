// The source end of one lane, whatever carries its frames: connects, proves itself, sends frames,
// takes answers, and connects anew after a back-off when it is lost. Lives on the loop's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/instant.h"
#include "data_plane/lanes/frame.h"
#include "data_plane/transport.h"

namespace kvferry::data_plane {

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
  virtual std::span<const Region> source_regions() const = 0;
  virtual void on_lane_up(SourceLane& lane) = 0;
  // untouched: taken by the lane, no byte sent. sent: some or all bytes sent, unanswered.
  virtual void on_lane_lost(std::uint32_t serial, OutFramePtr untouched,
                            std::vector<OutFramePtr> sent, Failure cause) = 0;
  // The lane can't be made between these two processes, now or later; the reason in words.
  virtual void on_lane_impossible(SourceLane& lane, std::string reason) = 0;
  virtual void on_answers(OutFramePtr frame, std::span<const std::uint8_t> results) = 0;
  // False when no such request is open or the count is wrong.
  virtual bool on_resolved(std::uint64_t request, std::span<const std::uint8_t> results) = 0;
  virtual void after_answers() = 0;
  // A lane for which close() left is_quiet() false: from now on no more byte of it can leave.
  virtual void on_lane_quiet(SourceLane& lane) = 0;

 protected:
  ~LaneOwner() = default;
};

struct LaneSettings {
  TargetBlob target;
  SessionEpoch epoch;
  std::array<std::uint8_t, 32> secret{};
  Duration heartbeat{};
  Duration timeout{};
  bool page_digests = false;  // each write carries one
};

class SourceLane {
 public:
  virtual ~SourceLane() = default;

  virtual bool is_up() const = 0;
  virtual std::uint32_t serial() const = 0;
  virtual void tick(Instant now) = 0;
  // Sends until nothing is left to send or the peer takes no more.
  virtual void pump() = 0;
  // Asks how the tickets of a lost lane's frame ended.
  virtual void ask(std::uint64_t request, std::uint32_t lost_serial, const OutFrame& frame) = 0;
  // Marks the frames that are past their deadline; calls on each that is so for the first time.
  virtual void expire(Instant now, const std::function<void(const OutFrame&)>& call) = 0;
  // The frame that was taken for this lane while no byte of it could leave, if it is of this grant.
  virtual OutFramePtr take_untouched(GrantSlot slot, Generation generation) = 0;
  // Closes for good without telling the owner; gives back the frames it had, sent or not.
  virtual std::vector<OutFramePtr> close() = 0;
  // After close(): whether nobody reads source bytes for this lane any more. A lane whose bytes are
  // fetched by the target has to wait for the target's end to close.
  virtual bool is_quiet() const { return true; }
};

// One way to the target: what makes its lanes.
struct LanePath {
  std::string_view name;
  std::uint32_t lanes = 1;
  // Its lanes tell the target where the regions lie, so that other regions need other lanes.
  bool hands_over_regions = false;
  std::function<std::unique_ptr<SourceLane>(LaneOwner& owner, const LaneSettings& settings,
                                            std::uint32_t& next_serial)>
      make;
};

// The question of SourceLane::ask(), as it goes to the target.
void append_question(std::vector<std::uint8_t>& out, std::uint64_t request,
                     std::uint32_t lost_serial, const OutFrame& frame);

// How long to wait before the next try after so many failures in a row.
Duration lane_backoff(std::uint32_t failures);

// The source's half of the handshake on a fresh connection: challenge, response, welcome.
class LaneProof {
 public:
  LaneProof(const LaneSettings& settings, std::uint32_t serial)
      : settings_(settings), serial_(serial) {}
  // The response to send, or what is wrong with the challenge.
  Result<std::vector<std::uint8_t>> respond(std::span<const std::uint8_t> challenge);
  // Whether the target knows the session's secret, too.
  Status check_welcome(std::span<const std::uint8_t> welcome) const;

 private:
  const LaneSettings& settings_;
  std::uint32_t serial_;
  Nonce target_nonce_{};
  Nonce nonce_{};
};

// Frames in the order of their sending that wait for the target's answers.
class UnansweredFrames {
 public:
  void add(OutFramePtr frame) { frames_.push_back(std::move(frame)); }
  bool empty() const { return frames_.empty(); }
  const OutFrame& front() const { return *frames_.front(); }
  // The frame of this sequence with this many writes; null when there is none.
  OutFramePtr take(std::uint64_t sequence, std::size_t writes);
  std::vector<OutFramePtr> take_all();
  void expire(Instant now, const std::function<void(const OutFrame&)>& call);
  bool has_overdue(Instant now, Duration grace) const;

 private:
  std::deque<OutFramePtr> frames_;
};
void expire_frame(OutFrame& frame, Instant now, const std::function<void(const OutFrame&)>& call);
bool is_overdue(const OutFrame& frame, Instant now, Duration grace);

}  // namespace kvferry::data_plane
