// The target end of a shm lane: takes descriptors off the ring, copies the source's bytes into the
// pages through the receive gate, and answers in order. Lives on the thread of one loop.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data_plane/lanes/target_lane.h"
#include "data_plane/shm/attach.h"
#include "data_plane/shm/ring.h"
#include "data_plane/shm/source_view.h"

namespace kvferry::data_plane::shm {

class ShmTargetLane final : public TargetLane, public EventLoop::Handler {
 public:
  explicit ShmTargetLane(TargetLaneParts&& parts);
  ~ShmTargetLane() override;
  ShmTargetLane(const ShmTargetLane&) = delete;
  ShmTargetLane& operator=(const ShmTargetLane&) = delete;

  void start(const Digest& proof) override;
  void tick(Instant now) override;
  void retry_held_answers() override;
  void answer_resolve(std::uint64_t request, std::span<const WriteResult> results) override;
  void close() override;

  void on_ready(std::uint32_t epoll_events) override;  // the socket's

 private:
  // The bell: work in the ring. The pidfd: the source's process is gone.
  struct Watch final : public EventLoop::Handler {
    Watch(ShmTargetLane& owner, void (ShmTargetLane::*what)()) : lane(owner), call(what) {}
    void on_ready(std::uint32_t) override { (lane.*call)(); }
    ShmTargetLane& lane;
    void (ShmTargetLane::*call)();
  };

  bool on_attach(std::span<const std::uint8_t> message, std::vector<Fd> fds);
  Status attach(const Attach& attach, std::vector<Fd> fds);
  bool on_question(std::span<const std::uint8_t> message);
  void on_bell();
  void on_source_gone();
  // Copies what is in the ring, as far as one turn goes.
  void work();
  bool take_frame();
  // False when the lane was lost, or the frame waits for another lane.
  bool move_frame();
  bool answer_frame();

  Fd work_bell_;
  Fd source_bell_;
  Fd pidfd_;
  EventLoop::Token socket_token_ = 0;
  EventLoop::Token bell_token_ = 0;
  EventLoop::Token pidfd_token_ = 0;
  Watch bell_watch_{*this, &ShmTargetLane::on_bell};
  Watch pid_watch_{*this, &ShmTargetLane::on_source_gone};
  Instant since_{};
  std::optional<RingReader> ring_;
  std::optional<SourceView> source_;
  bool has_digests_ = false;

  // Taken off the ring, not yet in a frame.
  std::vector<Descriptor> taken_;
  std::size_t taken_begin_ = 0;
  std::size_t taken_end_ = 0;
  // The frame in progress: its writes, and where their bytes are read.
  IncomingFrame frame_;
  std::vector<IncomingWrite> writes_;
  std::vector<std::uint64_t> digests_;
  std::vector<SourcePiece> pieces_;
  bool is_held_ = false;  // waits for the first copy of one of its tickets
  std::vector<WriteResult> results_;
  std::vector<std::uint8_t> answers_;
  std::vector<std::uint8_t> input_;
};

}  // namespace kvferry::data_plane::shm
