// What one frame goes through at the target: claims, the copy, its end and who is told of it.
#include <algorithm>

#include "sim/fabric_target.h"
#include "sim/node.h"
#include "sim/world.h"

namespace kvferry::sim {

layout::Landing landing_of(const Frame& frame, const FrameItem& item) {
  return layout::Landing{frame.name.session,        frame.name.slot,
                         frame.name.generation,     item.write.ticket,
                         item.write.target_region,  item.write.target_item,
                         item.write.offset_in_item, item.write.length};
}

bool is_registered(const EngineMemory& memory, const layout::Write& write) {
  const auto& regions = memory.shape().regions;
  if (write.target_region.value() >= regions.size() || write.length == 0) {
    return false;
  }
  const RegionShape& region = regions[write.target_region.value()];
  return write.target_item < region.item_count && write.offset_in_item < region.item_bytes &&
         write.length <= region.item_bytes - write.offset_in_item;
}

void move_bytes(FabricContext& context, Frame& frame, std::uint64_t from, std::uint64_t to) {
  Place& target = context.world.place(frame.target.place);
  for (FrameItem& item : frame.items) {
    const std::uint64_t begin = std::max(from, item.begin);
    const std::uint64_t end = std::min(to, item.end());
    if (!item.goes_to_page || begin >= end) {
      continue;
    }
    const std::uint64_t skipped = begin - item.begin;
    const std::uint64_t length = end - begin;
    const layout::Write& write = item.write;
    const std::uint64_t offset = write.offset_in_item + skipped;
    const bool is_allowed = context.world.oracle.writing(target, frame.name, write.target_region,
                                                         write.target_item, offset, length);
    context.world.chronicle.bytes_landed(frame.name.session, write.ticket, length);
    if (!is_allowed) {
      continue;
    }
    const auto page = target.memory->item(write.target_region, write.target_item);
    const auto to_bytes = page.subspan(offset, length);
    if (end <= frame.captured) {
      std::ranges::copy(std::span(frame.payload).subspan(begin, length), to_bytes.begin());
    } else {
      Place& source = context.world.place(frame.source.place);
      const std::uint64_t at = write.source_offset + skipped;
      context.world.oracle.reading(source, frame.name, write.source_region, at, length);
      context.world.chronicle.source_read(frame.name.session, write.ticket);
      std::ranges::copy(source.memory->bytes(write.source_region, at, length), to_bytes.begin());
    }
    item.touched = true;
  }
}

// --- claims ---

void FabricTarget::claim(Frame& frame, bool live) {
  frame.has_begun = true;
  Slot* slot = slot_of(frame);
  Life* life = slot == nullptr ? nullptr : slot->life.get();
  for (FrameItem& item : frame.items) {
    claim_item(frame, item, life, live);
    if (!item.claimed && !item.is_second_copy) {
      item.result = live ? WriteResult::kRefused : WriteResult::kFenced;
    }
  }
  context_.trace(frame, live ? "claimed" : "fenced");
}

void FabricTarget::claim_item(Frame& frame, FrameItem& item, Life* life, bool live) {
  const bool reached = life != nullptr && (life->generation == frame.name.generation ||
                                           context_.lacks(ModelGuard::kGenerationChecked));
  if (!reached) {
    return;
  }
  const bool claims = !context_.lacks(ModelGuard::kClaim);
  if (claims && life->claims.find(item.write.ticket)) {
    item.refused_at_once = context_.lacks(ModelGuard::kSecondCopyAnswered);
    item.is_second_copy = !item.refused_at_once;
    return;
  }
  if (!live) {
    return;
  }
  if (frame.fate.damaged && &item == &frame.items.front()) {
    damage(frame, item, *life);
  }
  const layout::Write& write = item.write;
  const bool inside = context_.lacks(ModelGuard::kExtentChecked) ||
                      life->extent.contains(write.target_region, write.target_item,
                                            write.offset_in_item, write.length);
  const Place& place = context_.world.place(frame.target.place);
  if (!inside || !is_registered(*place.memory, write)) {
    return;
  }
  if (claims && !life->claims.take(write)) {
    return;
  }
  item.claimed = true;
  item.goes_to_page = true;
}

// The header names another item than its writer wrote. Only damage that the extent tells apart is
// modelled: what stays within the grant is for the authentication of a lane's bytes to find.
void FabricTarget::damage(Frame& frame, FrameItem& item, const Life& life) {
  const Place& place = context_.world.place(frame.target.place);
  const RegionShape& region = place.memory->shape().regions.at(item.write.target_region.value());
  layout::Write damaged = item.write;
  damaged.target_item = static_cast<std::uint32_t>(context_.threads.below(region.item_count));
  if (!life.extent.contains(damaged.target_region, damaged.target_item, damaged.offset_in_item,
                            damaged.length)) {
    item.write = damaged;
    context_.trace(frame, "damaged");
  }
}

void FabricTarget::copy(Frame& frame, std::uint64_t from, std::uint64_t to) {
  if (context_.alive(frame.target) != nullptr) {
    move_bytes(context_, frame, from, to);
  }
}

// --- the end ---

void FabricTarget::report_early(Frame& frame) {
  std::vector<layout::Landing> landings;
  for (FrameItem& item : frame.items) {
    if (item.goes_to_page) {
      item.result = WriteResult::kLanded;
      landings.push_back(landing_of(frame, item));
    }
  }
  settle_second_copies(frame, true);
  frame.is_reported_early = true;
  context_.tell(frame.target, core::WritesLanded{std::move(landings)});
  if (!frame.is_answered) {
    listener_.frame_ended(frame);
  }
}

// The whole payload has come. valid: its writer stands by its bytes; otherwise what was touched is
// torn.
void FabricTarget::finish(Frame& frame, bool valid) {
  const bool live = is_live(frame);
  Slot* slot = slot_of(frame);
  Life* life = slot == nullptr ? nullptr : slot->life.get();
  const bool known = life != nullptr && life->generation == frame.name.generation;
  for (FrameItem& item : frame.items) {
    if (!item.claimed) {
      continue;
    }
    using State = FabricClaims::State;
    const bool landed = item.goes_to_page && valid && live;
    if (!frame.is_reported_early) {
      item.result = landed         ? WriteResult::kLanded
                    : item.touched ? WriteResult::kTorn
                    : live         ? WriteResult::kRefused
                                   : WriteResult::kFenced;
    }
    if (known) {
      life->claims.settle(item.write, landed         ? State::kLanded
                                      : item.touched ? State::kTorn
                                                     : State::kRefused);
    }
  }
  if (!frame.is_reported_early) {
    tell_core(frame, live);
  }
  const ProcessKey target = frame.target;
  const SessionEpoch epoch = frame.name.session;
  if (settle_second_copies(frame, frame.lane_lost || !valid)) {
    end(frame);
  } else {
    session_of(frame)->held.push_back(frame.number);
  }
  retry_held(target, epoch);
}

// The lane is lost, or the frame was made void: what was touched is torn, what was not is refused.
void FabricTarget::abandon(Frame& frame) {
  if (frame.has_begun && frame.taken == frame.parts.size()) {
    return;  // finished, and held for a first copy
  }
  for (FrameItem& item : frame.items) {
    if (!frame.has_begun) {
      item.result = WriteResult::kRefused;
    }
  }
  finish(frame, false);
}

// Under the name that the write came with (rule 9). The mark is cleared before, so a thread that
// loses its core in between tells it after the fence; and a landing told again, perhaps when its
// slot has a new owner, must count nothing. Of a torn copy its writer's unknown outcome tells, too.
void FabricTarget::tell_core(Frame& frame, bool live) {
  std::vector<layout::Landing> landings;
  for (const FrameItem& item : frame.items) {
    if (item.result == WriteResult::kLanded && item.claimed) {
      landings.push_back(landing_of(frame, item));
    }
  }
  if (!landings.empty()) {
    if (frame.is_orphan) {
      context_.world.faults.note(Fault::kWriteOutlives);
    }
    if (frame.fate.landing_twice) {
      context_.tell_after(frame.target, frame.fate.landing_delay + frame.fate.landing_again_after,
                          core::WritesLanded{landings});
    }
    if (frame.fate.landing_delay > Duration{}) {
      context_.tell_after(frame.target, frame.fate.landing_delay,
                          core::WritesLanded{std::move(landings)});
    } else {
      context_.tell(frame.target, core::WritesLanded{std::move(landings)});
    }
  }
  if (!live) {
    return;
  }
  for (const FrameItem& item : frame.items) {
    if (item.claimed && item.result == WriteResult::kTorn) {
      context_.tell(frame.target, core::WriteTorn{landing_of(frame, item)});
    }
  }
}

// True when every second copy has its first copy's outcome. A frame that must end takes what is
// still being copied as not known.
bool FabricTarget::settle_second_copies(Frame& frame, bool must_end) {
  bool complete = true;
  for (FrameItem& item : frame.items) {
    if (!item.is_second_copy || item.result != WriteResult::kOpen) {
      continue;
    }
    if (const auto outcome = outcome_of(frame, item.write.ticket)) {
      item.result = *outcome;
    } else if (must_end) {
      item.result = WriteResult::kTorn;
    } else {
      complete = false;
    }
  }
  return complete;
}

std::optional<WriteResult> FabricTarget::outcome_of(const Frame& frame, TicketId ticket) {
  const Slot* slot = slot_of(frame);
  const Life* life = slot == nullptr ? nullptr : slot->life.get();
  // A generation that this slot has not reached can't have been claimed.
  if (life == nullptr || life->generation < frame.name.generation) {
    return WriteResult::kRefused;
  }
  if (frame.name.generation < life->generation) {
    return WriteResult::kTorn;  // no longer known; no more of it will come
  }
  const auto state = life->claims.find(ticket);
  if (!state) {
    return is_live(frame) ? WriteResult::kRefused : WriteResult::kFenced;
  }
  switch (*state) {
    case FabricClaims::State::kCopying:
      return std::nullopt;
    case FabricClaims::State::kLanded:
      return WriteResult::kLanded;
    case FabricClaims::State::kTorn:
      return WriteResult::kTorn;
    case FabricClaims::State::kRefused:
      return WriteResult::kRefused;
  }
  return WriteResult::kTorn;
}

void FabricTarget::end(Frame& frame) {
  frame.has_ended = true;
  if (!frame.is_reported_early || frame.is_answered) {
    listener_.frame_ended(frame);
  }
}

void FabricTarget::retry_held(ProcessKey key, SessionEpoch epoch) {
  Process* process = find_process(key);
  const auto session =
      process == nullptr ? decltype(process->sessions.end()){} : process->sessions.find(epoch);
  if (process == nullptr || session == process->sessions.end()) {
    return;
  }
  std::vector<std::uint64_t> settled;
  std::erase_if(session->second.held, [&](std::uint64_t number) {
    Frame* frame = context_.find(number);
    if (frame == nullptr || frame->has_ended) {
      return true;
    }
    if (!settle_second_copies(*frame, false)) {
      return false;
    }
    settled.push_back(number);
    return true;
  });
  for (const std::uint64_t number : settled) {
    if (Frame* frame = context_.find(number); frame != nullptr) {
      end(*frame);
    }
  }
}

// The target's own deadline for a lane: a writer that stops in the middle of a frame holds nobody.
void FabricTarget::give_up_lane(std::uint64_t number, std::size_t arrived) {
  Frame* frame = context_.find(number);
  if (frame == nullptr || frame->has_ended || frame->lane_lost || frame->arrived != arrived) {
    return;
  }
  Process* process = find_process(frame->target);
  if (process == nullptr || thread_of(*process, *frame).stage == Stage::kWait) {
    return;
  }
  context_.trace(*frame, "given up");
  lane_lost(*frame);
  context_.tell(frame->target,
                core::LaneFailed{frame->name.session,
                                 Failure{FailureCode::kPeerLost,
                                         FailureWhere::kPath,
                                         "the source was silent on this lane for lane_timeout_ms",
                                         {},
                                         -1}});
  listener_.lane_given_up(*frame);
}

}  // namespace kvferry::sim
