// The source end of one session: a queue of writes, the window, the lanes, and every ticket's end.
//
// All of it lives on the loop's thread, except that a grant may be given up from the driver's: that
// must hold from the moment the call returns.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "data_plane/lanes/event_loop.h"
#include "data_plane/lanes/source_lane.h"

namespace kvferry::data_plane {

class SourceSession final : public LaneOwner, public std::enable_shared_from_this<SourceSession> {
 public:
  // paths: at least one, most wanted first. The next is taken when one proves impossible. regions
  // are the loop's and may change, see on_regions_changed().
  SourceSession(EventLoop& loop, CompletionSink& sink, const TransportConfig& config,
                const SessionLink& link, const TargetBlob& target, std::vector<LanePath> paths,
                const std::vector<Region>& regions,
                std::atomic<std::uint64_t>& queued_writes_refused);

  // From the driver; writes that are still queued are refused by a later give_up() on the loop.
  void mark_given_up(GrantSlot slot, Generation generation);
  // From the driver. What is posted before the loop gets to it is taken in one turn, so that a
  // caller who posts page by page does not pay a wake-up for each.
  void post(std::span<const layout::Write> writes, Instant deadline);
  // From any thread: the path in use and why none of those before it.
  PathReport path() const;

  // On the loop's thread.
  void start();
  void give_up(GrantSlot slot, Generation generation);
  void tick(Instant now);
  // Other regions of the same shape were registered, which no write uses yet.
  void on_regions_changed();
  // All that is pending becomes unknown and, as soon as no lane can carry its bytes, quiet.
  void close();
  // After close(): whether everything has become quiet.
  bool is_quiet() const { return closing_.empty(); }

  OutFramePtr next_frame() override;
  bool is_given_up(GrantSlot slot, Generation generation) override;
  const std::byte* source_address(const layout::Write& write) const override;
  std::span<const Region> source_regions() const override { return regions_; }
  void on_lane_up(SourceLane& lane) override;
  void on_lane_lost(std::uint32_t serial, OutFramePtr untouched, std::vector<OutFramePtr> sent,
                    Failure cause) override;
  void on_lane_impossible(SourceLane& lane, std::string reason) override;
  void on_lane_quiet(SourceLane& lane) override;
  void on_answers(OutFramePtr frame, std::span<const std::uint8_t> results) override;
  bool on_resolved(std::uint64_t request, std::span<const std::uint8_t> results) override;
  void after_answers() override { pump_lanes(); }

 private:
  struct Queued {
    layout::Write write;
    Instant deadline;
  };
  // A frame of a lost lane whose end the target has not stated yet.
  struct Unresolved {
    std::uint32_t lost_serial = 0;
    OutFramePtr frame;
    std::uint32_t asked_on = 0;  // serial of the lane that carries the question; 0: none
  };

  void start_path();
  void take_posted();
  void retire_lanes();
  void end_lane(SourceLane& lane);
  bool is_acceptable(const layout::Write& write) const;
  void refuse_given_up();
  void pump_lanes();
  void ask_soon();
  void ask_unresolved();
  SourceLane* lane_that_is_up();
  void watch_reachability(Instant now);
  void complete(const OutFrame& frame, std::span<const std::uint8_t> results);
  void end_as_unknown(const OutFrame& frame);
  void recycle(OutFramePtr frame);
  void flush_completions();

  EventLoop& loop_;
  CompletionSink& sink_;
  const TransportConfig& config_;
  const SessionEpoch epoch_;
  const std::vector<std::uint64_t> peer_item_bytes_;
  const std::vector<Region>& regions_;
  LaneSettings lane_settings_;
  std::uint32_t frame_bytes_;
  std::uint32_t frame_writes_;
  std::atomic<std::uint64_t>& queued_writes_refused_;  // of all sessions

  std::mutex given_up_mutex_;
  std::unordered_map<GrantSlot, Generation> given_up_;  // the latest of each slot

  std::mutex posted_mutex_;
  std::vector<Queued> posted_;
  std::vector<Queued> taken_;  // the loop's

  mutable std::mutex path_mutex_;
  PathReport path_;

  bool closed_ = false;
  std::uint32_t next_serial_ = 1;
  const std::vector<LanePath> paths_;
  std::size_t path_index_ = 0;
  std::vector<std::unique_ptr<SourceLane>> lanes_;
  std::vector<std::unique_ptr<SourceLane>> retired_;  // of a former path or of former regions
  // Closed lanes that are not quiet yet, with the tickets that wait for it.
  std::unordered_map<SourceLane*, std::vector<TicketId>> closing_;
  std::size_t first_lane_ = 0;
  Instant last_tick_{};
  Duration without_lane_{};  // since one was last up
  bool unreachable_reported_ = false;
  std::string last_lane_failure_;
  std::deque<Queued> queue_;
  std::uint64_t inflight_bytes_ = 0;
  std::uint64_t next_request_ = 1;
  std::unordered_map<std::uint64_t, Unresolved> unresolved_;
  bool ask_posted_ = false;
  std::vector<OutFramePtr> spare_frames_;
  std::vector<WriteCompletion> completions_;
  std::vector<TicketId> quiet_;
};

}  // namespace kvferry::data_plane
