#include "data_plane/lanes/source_session.h"

#include <algorithm>

#include "data_plane/receive_gate.h"

namespace kvferry::data_plane {
namespace {

constexpr std::size_t kMaxSpareFrames = 256;

}  // namespace

SourceSession::SourceSession(EventLoop& loop, CompletionSink& sink, const TransportConfig& config,
                             const SessionLink& link, const TargetBlob& target,
                             std::vector<LanePath> paths, const std::vector<Region>& regions,
                             std::atomic<std::uint64_t>& queued_writes_refused)
    : loop_(loop),
      sink_(sink),
      config_(config),
      epoch_(link.epoch),
      peer_item_bytes_(link.peer_item_bytes),
      regions_(regions),
      lane_settings_{target,
                     link.epoch,
                     link.secret,
                     milliseconds(config.lane_heartbeat_ms),
                     milliseconds(config.lane_timeout_ms),
                     config.page_digests},
      frame_bytes_(std::min(config.frame_bytes, target.frame_bytes)),
      frame_writes_(std::min({config.frame_writes, target.frame_writes, kMaxFrameWrites})),
      queued_writes_refused_(queued_writes_refused),
      path_{link.epoch, std::string(paths.front().name), {}},
      paths_(std::move(paths)) {}

PathReport SourceSession::path() const {
  std::lock_guard lock(path_mutex_);
  return path_;
}

void SourceSession::start() {
  last_tick_ = loop_.now();
  start_path();
}

void SourceSession::start_path() {
  const LanePath& path = paths_[path_index_];
  for (std::uint32_t i = 0; i < std::max(1U, path.lanes); ++i) {
    lanes_.push_back(path.make(*this, lane_settings_, next_serial_));
  }
  // Not before all are there: the first one may find that the path is impossible.
  const std::size_t index = path_index_;
  for (std::size_t i = 0; i < lanes_.size() && path_index_ == index; ++i) {
    lanes_[i]->tick(loop_.now());
  }
}

void SourceSession::on_lane_impossible(SourceLane&, std::string reason) {
  if (path_index_ + 1 >= paths_.size()) {
    last_lane_failure_ = reason;
    sink_.lane_failed(
        epoch_,
        Failure{FailureCode::kPeerUnreachable, FailureWhere::kPath, std::move(reason), {}, -1});
    return;
  }
  const std::string_view refused = paths_[path_index_].name;
  ++path_index_;
  {
    std::lock_guard lock(path_mutex_);
    path_.why += (path_.why.empty() ? "" : "; ") + std::string(refused) + ": " + reason;
    path_.path = paths_[path_index_].name;
  }
  // The lane that reports is still on the stack.
  retire_lanes();
  loop_.post([self = shared_from_this()] {
    if (!self->closed_ && self->lanes_.empty()) self->start_path();
  });
}

// What the lanes had is unknown from here on: their target may be copying still, and only its end's
// closing proves that it is not.
void SourceSession::retire_lanes() {
  for (std::unique_ptr<SourceLane>& lane : lanes_) {
    end_lane(*lane);
    retired_.push_back(std::move(lane));
  }
  lanes_.clear();
  flush_completions();
}

void SourceSession::end_lane(SourceLane& lane) {
  std::vector<OutFramePtr> frames = lane.close();
  if (lane.is_quiet()) {
    for (OutFramePtr& frame : frames) {
      end_as_unknown(*frame);
      recycle(std::move(frame));
    }
    return;
  }
  std::vector<TicketId>& waiting = closing_[&lane];
  for (OutFramePtr& frame : frames) {
    for (const layout::Write& write : frame->writes) {
      waiting.push_back(write.ticket);
      if (frame->is_expired) continue;
      completions_.push_back({epoch_, write.ticket, layout::WriteOutcome::kUnknown});
    }
    recycle(std::move(frame));
  }
}

void SourceSession::on_regions_changed() {
  if (closed_ || !paths_[path_index_].hands_over_regions) return;
  retire_lanes();
  start_path();
}

void SourceSession::on_lane_quiet(SourceLane& lane) {
  const auto found = closing_.find(&lane);
  if (found == closing_.end()) return;
  sink_.writes_quiet(epoch_, found->second);
  closing_.erase(found);
}

void SourceSession::mark_given_up(GrantSlot slot, Generation generation) {
  std::lock_guard lock(given_up_mutex_);
  Generation& latest = given_up_[slot];
  latest = std::max(latest, generation);
}

bool SourceSession::is_given_up(GrantSlot slot, Generation generation) {
  std::lock_guard lock(given_up_mutex_);
  const auto found = given_up_.find(slot);
  return found != given_up_.end() && generation <= found->second;
}

const std::byte* SourceSession::source_address(const layout::Write& write) const {
  return regions_[write.source_region.value()].base + write.source_offset;
}

// What can't be read here, or is longer than anything that the peer could take, never leaves. All
// else is the target's to judge.
bool SourceSession::is_acceptable(const layout::Write& write) const {
  if (write.source_region.value() >= regions_.size()) return false;
  const Region& region = regions_[write.source_region.value()];
  const std::uint64_t region_bytes = region.item_bytes * region.item_count;
  if (write.length == 0 || write.source_offset > region_bytes ||
      write.length > region_bytes - write.source_offset) {
    return false;
  }
  if (write.target_region.value() >= peer_item_bytes_.size()) return false;
  return write.length <= peer_item_bytes_[write.target_region.value()] &&
         write.slot.value() < config_.max_grant_slots;
}

void SourceSession::post(std::span<const layout::Write> writes, Instant deadline) {
  bool is_first = false;
  {
    std::lock_guard lock(posted_mutex_);
    is_first = posted_.empty();
    for (const layout::Write& write : writes) posted_.push_back({write, deadline});
  }
  if (is_first && !writes.empty()) loop_.post([self = shared_from_this()] { self->take_posted(); });
}

void SourceSession::take_posted() {
  {
    std::lock_guard lock(posted_mutex_);
    std::swap(posted_, taken_);
  }
  for (const auto& [write, deadline] : taken_) {
    if (closed_) {
      completions_.push_back({epoch_, write.ticket, layout::WriteOutcome::kUnknown});
      quiet_.push_back(write.ticket);
    } else if (!is_acceptable(write)) {
      completions_.push_back({epoch_, write.ticket, layout::WriteOutcome::kRefused});
    } else if (queue_.size() >= config_.max_queued_writes) {
      // Refused rather than let memory grow.
      queued_writes_refused_.fetch_add(1, std::memory_order_relaxed);
      completions_.push_back({epoch_, write.ticket, layout::WriteOutcome::kRefused});
    } else {
      queue_.push_back(Queued{write, deadline});
    }
  }
  taken_.clear();
  flush_completions();
  pump_lanes();
}

void SourceSession::give_up(GrantSlot slot, Generation generation) {
  std::erase_if(queue_, [&](const Queued& queued) {
    if (queued.write.slot != slot || queued.write.generation > generation) return false;
    completions_.push_back({epoch_, queued.write.ticket, layout::WriteOutcome::kRefused});
    return true;
  });
  for (const auto& lane : lanes_) {
    OutFramePtr frame = lane->take_untouched(slot, generation);
    if (!frame) continue;
    for (const layout::Write& write : frame->writes) {
      if (frame->is_expired) {
        quiet_.push_back(write.ticket);
      } else {
        completions_.push_back({epoch_, write.ticket, layout::WriteOutcome::kRefused});
      }
    }
    recycle(std::move(frame));
  }
  flush_completions();
  // A frame of this grant that is stuck in mid-way now goes on with zeros.
  pump_lanes();
}

// Given up on the driver's thread while the loop has not heard of it yet.
void SourceSession::refuse_given_up() {
  while (!queue_.empty() &&
         is_given_up(queue_.front().write.slot, queue_.front().write.generation)) {
    completions_.push_back({epoch_, queue_.front().write.ticket, layout::WriteOutcome::kRefused});
    queue_.pop_front();
  }
  flush_completions();
}

OutFramePtr SourceSession::next_frame() {
  refuse_given_up();
  if (queue_.empty()) return nullptr;
  const std::uint64_t first_bytes = queue_.front().write.length;
  // A write that is larger than the whole window goes alone.
  if (inflight_bytes_ != 0 && inflight_bytes_ + first_bytes > config_.max_inflight_bytes) {
    return nullptr;
  }
  OutFramePtr frame;
  if (spare_frames_.empty()) {
    frame = std::make_unique<OutFrame>();
  } else {
    frame = std::move(spare_frames_.back());
    spare_frames_.pop_back();
  }
  frame->slot = queue_.front().write.slot;
  frame->generation = queue_.front().write.generation;
  while (!queue_.empty() && frame->writes.size() < frame_writes_) {
    const Queued& next = queue_.front();
    if (next.write.slot != frame->slot || next.write.generation != frame->generation) break;
    const std::uint64_t bytes = frame->payload_bytes + next.write.length;
    const bool fits =
        bytes <= frame_bytes_ && inflight_bytes_ + bytes <= config_.max_inflight_bytes;
    if (!frame->writes.empty() && !fits) break;
    frame->writes.push_back(next.write);
    frame->payload_bytes = bytes;
    frame->deadline = next.deadline;
    queue_.pop_front();
  }
  inflight_bytes_ += frame->payload_bytes;
  return frame;
}

void SourceSession::pump_lanes() {
  // Starting with another lane each time keeps small traffic from always using the same one.
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    SourceLane& lane = *lanes_[(first_lane_ + i) % lanes_.size()];
    if (lane.is_up()) lane.pump();
  }
  if (!lanes_.empty()) first_lane_ = (first_lane_ + 1) % lanes_.size();
}

void SourceSession::on_lane_up(SourceLane& lane) {
  without_lane_ = {};
  ask_soon();
  lane.pump();
}

void SourceSession::on_lane_lost(std::uint32_t serial, OutFramePtr untouched,
                                 std::vector<OutFramePtr> sent, Failure cause) {
  if (untouched && untouched->is_expired) {
    sent.push_back(std::move(untouched));
  } else if (untouched) {
    for (auto write = untouched->writes.rbegin(); write != untouched->writes.rend(); ++write) {
      queue_.push_front(Queued{*write, untouched->deadline});
    }
    recycle(std::move(untouched));
  }
  for (OutFramePtr& frame : sent) {
    if (frame->is_expired) {
      end_as_unknown(*frame);
      recycle(std::move(frame));
    } else {
      unresolved_.emplace(next_request_++, Unresolved{serial, std::move(frame), 0});
    }
  }
  flush_completions();
  ask_soon();
  last_lane_failure_ = cause.what;
  sink_.lane_failed(epoch_, std::move(cause));
}

// Asking is left to a task of its own, so that a lane that is lost while it is asked is not
// re-entered.
void SourceSession::ask_soon() {
  if (ask_posted_ || unresolved_.empty()) return;
  ask_posted_ = true;
  loop_.post([self = shared_from_this()] {
    self->ask_posted_ = false;
    if (!self->closed_) self->ask_unresolved();
  });
}

SourceLane* SourceSession::lane_that_is_up() {
  for (const auto& lane : lanes_) {
    if (lane->is_up()) return lane.get();
  }
  return nullptr;
}

void SourceSession::ask_unresolved() {
  for (auto& [request, waiting] : unresolved_) {
    const bool carried = std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
      return lane->is_up() && lane->serial() == waiting.asked_on;
    });
    if (carried) continue;
    SourceLane* lane = lane_that_is_up();
    if (lane == nullptr) return;
    waiting.asked_on = lane->serial();
    lane->ask(request, waiting.lost_serial, *waiting.frame);
    // A lane that was lost meanwhile may have changed the table; its loss asks anew.
    if (!lane->is_up()) return;
  }
}

bool SourceSession::on_resolved(std::uint64_t request, std::span<const std::uint8_t> results) {
  if (request == 0 || request >= next_request_) return false;
  const auto found = unresolved_.find(request);
  // The deadline may have ended it before the answer came.
  if (found == unresolved_.end()) return true;
  if (found->second.frame->writes.size() != results.size()) return false;
  OutFramePtr frame = std::move(found->second.frame);
  unresolved_.erase(found);
  complete(*frame, results);
  recycle(std::move(frame));
  return true;
}

void SourceSession::on_answers(OutFramePtr frame, std::span<const std::uint8_t> results) {
  complete(*frame, results);
  recycle(std::move(frame));
}

void SourceSession::complete(const OutFrame& frame, std::span<const std::uint8_t> results) {
  for (std::size_t i = 0; i < frame.writes.size(); ++i) {
    const TicketId ticket = frame.writes[i].ticket;
    if (frame.is_expired) {
      quiet_.push_back(ticket);
      continue;
    }
    switch (static_cast<WriteResult>(results[i])) {
      case WriteResult::kLanded:
        completions_.push_back({epoch_, ticket, layout::WriteOutcome::kLanded});
        break;
      case WriteResult::kRefused:
      case WriteResult::kFenced:
        completions_.push_back(
            {.session = epoch_,
             .ticket = ticket,
             .outcome = layout::WriteOutcome::kRefused,
             .fenced = static_cast<WriteResult>(results[i]) == WriteResult::kFenced});
        break;
      default:
        // Torn, no longer known, or a result of a newer version: not known to have landed, and no
        // more bytes of it will come.
        completions_.push_back({epoch_, ticket, layout::WriteOutcome::kUnknown,
                                static_cast<WriteResult>(results[i]) == WriteResult::kTorn});
        quiet_.push_back(ticket);
        break;
    }
  }
  flush_completions();
}

void SourceSession::end_as_unknown(const OutFrame& frame) {
  for (const layout::Write& write : frame.writes) {
    if (!frame.is_expired) {
      completions_.push_back({epoch_, write.ticket, layout::WriteOutcome::kUnknown});
    }
    quiet_.push_back(write.ticket);
  }
}

void SourceSession::recycle(OutFramePtr frame) {
  inflight_bytes_ -= frame->payload_bytes;
  if (spare_frames_.size() >= kMaxSpareFrames) return;
  frame->writes.clear();
  frame->payload_bytes = 0;
  frame->is_expired = false;
  spare_frames_.push_back(std::move(frame));
}

void SourceSession::flush_completions() {
  if (!completions_.empty()) sink_.writes_completed(completions_);
  if (!quiet_.empty()) sink_.writes_quiet(epoch_, quiet_);
  completions_.clear();
  quiet_.clear();
}

// A port that swallows everything makes lanes fail too seldom to be counted, so the time without
// any lane is measured. A tick that comes late says nothing about the peer and counts in part only.
void SourceSession::watch_reachability(Instant now) {
  const Duration step = std::min<Duration>(now - last_tick_, lane_settings_.timeout / 4);
  last_tick_ = now;
  if (lane_that_is_up() != nullptr) {
    without_lane_ = {};
    return;
  }
  without_lane_ += step;
  if (unreachable_reported_ || without_lane_ < 2 * lane_settings_.timeout) return;
  unreachable_reported_ = true;
  const TargetBlob& target = lane_settings_.target;
  const std::string address =
      target.host.empty() ? target.unix_path : target.host + ":" + std::to_string(target.port);
  std::string what = "no data lane to " + address + " for " +
                     std::to_string(2ULL * config_.lane_timeout_ms) + " ms (2 * lane_timeout_ms)";
  if (!last_lane_failure_.empty()) what += ", the last try: " + last_lane_failure_;
  sink_.session_unreachable(epoch_, Failure{FailureCode::kPeerUnreachable, FailureWhere::kPath,
                                            std::move(what), address, -1});
}

void SourceSession::tick(Instant now) {
  std::erase_if(retired_, [](const auto& lane) { return lane->is_quiet(); });
  while (!queue_.empty() && now >= queue_.front().deadline) {
    const TicketId ticket = queue_.front().write.ticket;
    completions_.push_back({epoch_, ticket, layout::WriteOutcome::kUnknown});
    quiet_.push_back(ticket);
    queue_.pop_front();
  }
  for (const auto& lane : lanes_) {
    lane->expire(now, [this](const OutFrame& frame) {
      for (const layout::Write& write : frame.writes) {
        completions_.push_back({epoch_, write.ticket, layout::WriteOutcome::kUnknown});
      }
    });
  }
  for (auto waiting = unresolved_.begin(); waiting != unresolved_.end();) {
    if (now < waiting->second.frame->deadline) {
      ++waiting;
      continue;
    }
    end_as_unknown(*waiting->second.frame);
    recycle(std::move(waiting->second.frame));
    waiting = unresolved_.erase(waiting);
  }
  flush_completions();
  watch_reachability(now);
  // A lane that proves its path impossible takes its siblings along, so no iterator may be held.
  // NOLINTNEXTLINE(modernize-loop-convert)
  for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i]->tick(now);
}

void SourceSession::close() {
  closed_ = true;
  for (const auto& lane : lanes_) end_lane(*lane);
  for (auto& [request, waiting] : unresolved_) end_as_unknown(*waiting.frame);
  for (const Queued& queued : queue_) {
    completions_.push_back({epoch_, queued.write.ticket, layout::WriteOutcome::kUnknown});
    quiet_.push_back(queued.write.ticket);
  }
  unresolved_.clear();
  queue_.clear();
  flush_completions();
}

}  // namespace kvferry::data_plane
