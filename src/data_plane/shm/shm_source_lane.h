// A source lane over shared memory: frames go as descriptors through a ring, and the target copies
// their bytes out of this process's regions itself.
//
// What was put into the ring is beyond recall, so a frame that is given up may still be copied,
// with whatever its pages hold by then; its room has failed and its Done is never sent (rule 5).
// For the same reason a lane that this side closes is quiet only when the target's end has closed,
// too.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data_plane/lanes/event_loop.h"
#include "data_plane/lanes/source_lane.h"
#include "data_plane/shm/attach.h"
#include "data_plane/shm/ring.h"

namespace kvferry::data_plane::shm {

class ShmSourceLane final : public SourceLane, public EventLoop::Handler {
 public:
  ShmSourceLane(EventLoop& loop, LaneOwner& owner, const LaneSettings& settings,
                std::uint32_t& next_serial, std::uint32_t ring_entries);
  ~ShmSourceLane() override;
  ShmSourceLane(const ShmSourceLane&) = delete;
  ShmSourceLane& operator=(const ShmSourceLane&) = delete;

  bool is_up() const override { return state_ == State::kUp; }
  std::uint32_t serial() const override { return serial_; }
  void tick(Instant now) override;
  void pump() override;
  void ask(std::uint64_t request, std::uint32_t lost_serial, const OutFrame& frame) override;
  void expire(Instant now, const std::function<void(const OutFrame&)>& call) override;
  OutFramePtr take_untouched(GrantSlot slot, Generation generation) override;
  std::vector<OutFramePtr> close() override;
  bool is_quiet() const override { return state_ != State::kClosing; }

  void on_ready(std::uint32_t epoll_events) override;  // the socket's

 private:
  // kClosing: the target was told to stop and has yet to close its end.
  enum class State : std::uint8_t {
    kDown,
    kChallenged,
    kProving,
    kAttaching,
    kUp,
    kClosing,
    kClosed
  };
  struct AnswerBell final : public EventLoop::Handler {
    explicit AnswerBell(ShmSourceLane& owner) : lane(owner) {}
    void on_ready(std::uint32_t) override { lane.on_answer_bell(); }
    ShmSourceLane& lane;
  };

  void connect();
  // True when the message was expected here and well-formed.
  bool on_message(std::span<const std::uint8_t> message, std::vector<Fd> fds);
  bool on_challenge(std::span<const std::uint8_t> message);
  bool on_welcome(std::span<const std::uint8_t> message);
  bool on_attach_reply(std::span<const std::uint8_t> message, std::vector<Fd> fds);
  bool on_resolved(std::span<const std::uint8_t> message);
  Status send_attach();
  void on_answer_bell();
  // False when the lane was lost on the way.
  bool take_answers();
  std::uint64_t digest_of(const layout::Write& write) const;
  void send_questions();
  void on_target_closed();
  void try_again(const std::string& reason);
  void give_way(std::string reason);
  void lose(FailureCode code, std::string what, FailureWhere where);
  void drop_connection();

  EventLoop& loop_;
  LaneOwner& owner_;
  const LaneSettings& settings_;
  std::uint32_t& next_serial_;
  const std::uint32_t ring_entries_;

  State state_ = State::kDown;
  Fd socket_;
  EventLoop::Token socket_token_ = 0;
  Fd target_bell_;
  Fd answer_bell_;
  EventLoop::Token bell_token_ = 0;
  AnswerBell bell_handler_{*this};
  std::optional<RingWriter> ring_;
  std::optional<LaneProof> proof_;
  const std::uint64_t probe_value_;
  std::uint32_t serial_ = 0;
  std::uint32_t failures_ = 0;  // in a row
  Instant retry_at_{};
  Instant started_at_{};
  bool is_closed_for_good_ = false;
  std::optional<Failure> loss_;  // reported when the target has closed its end

  OutFramePtr current_;  // waits for free entries; none of it is in the ring
  std::uint64_t next_sequence_ = 1;
  UnansweredFrames unanswered_;
  std::vector<std::uint8_t> answers_;
  std::vector<std::vector<std::uint8_t>> questions_;  // the socket took no more
  std::vector<std::uint8_t> input_;
};

}  // namespace kvferry::data_plane::shm
