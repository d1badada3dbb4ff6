#include "sim/fabric_one_sided.h"

#include <algorithm>
#include <utility>

#include "sim/fabric_target.h"
#include "sim/node.h"
#include "sim/world.h"

namespace kvferry::sim {
namespace {

constexpr Duration kTeardown = std::chrono::milliseconds(5);

}  // namespace

bool OneSidedTarget::open_session(ProcessKey target, SessionEpoch epoch) {
  Session& session = sessions_[{target, epoch}];
  session.is_torn_down = false;
  return !std::exchange(session.is_open, true);
}

void OneSidedTarget::close_session(ProcessKey target, SessionEpoch epoch) {
  const auto found = sessions_.find({target, epoch});
  if (found == sessions_.end() || !found->second.is_open) {
    return;
  }
  found->second.is_open = false;
  // Once the fabric has said what becomes of each frame that is under way.
  context_.world.agenda.after(Duration{},
                              [this, target, epoch] { tear_down_if_quiet(target, epoch); });
}

// A registration dies with its process.
bool OneSidedTarget::may_land(const Frame& frame) const {
  return sessions_.contains({frame.target, frame.name.session}) &&
         (context_.alive(frame.target) != nullptr ||
          context_.lacks(ModelGuard::kFenceAfterRestart));
}

void OneSidedTarget::part_arrived(Frame& frame) {
  const bool lands = may_land(frame);
  const Place& place = context_.world.place(frame.target.place);
  const bool is_rest = frame.taken + 1 == frame.parts.size();
  if (frame.taken == 0) {
    frame.has_begun = true;
    for (FrameItem& item : frame.items) {
      item.goes_to_page = lands && is_registered(*place.memory, item.write);
    }
  }
  if (lands && !(frame.fate.torn && is_rest)) {
    const std::uint64_t from = frame.taken == 0 ? 0 : frame.parts[frame.taken - 1];
    move_bytes(context_, frame, from, frame.parts[frame.taken]);
  }
  ++frame.taken;
  if (frame.taken < frame.parts.size()) {
    return;
  }
  for (FrameItem& item : frame.items) {
    const bool landed = lands && item.goes_to_page && !(frame.fate.torn && is_rest);
    item.result = landed ? WriteResult::kLanded : WriteResult::kTorn;
  }
  if (lands && frame.is_orphan) {
    context_.world.faults.note(Fault::kWriteOutlives);
  }
  end(frame);
}

// What has left its source may still land, and then is the frame's end; what has not never will.
void OneSidedTarget::lane_lost(Frame& frame) {
  if (frame.has_ended) {
    return;
  }
  frame.lane_lost = true;
  if (frame.is_complete() && context_.threads.below(2) == 0) {
    return;
  }
  for (FrameItem& item : frame.items) {
    item.result = WriteResult::kTorn;
  }
  end(frame);
}

void OneSidedTarget::end(Frame& frame) {
  frame.has_ended = true;
  const ProcessKey target = frame.target;
  const SessionEpoch epoch = frame.name.session;
  listener_.frame_ended(frame);
  tear_down_if_quiet(target, epoch);
}

void OneSidedTarget::tear_down_if_quiet(ProcessKey target, SessionEpoch epoch) {
  const auto found = sessions_.find({target, epoch});
  if (found == sessions_.end() || found->second.is_open || found->second.is_torn_down) {
    return;
  }
  const std::vector<std::uint64_t> frames = listener_.frames_of(epoch);
  const bool under_way = std::ranges::any_of(frames, [&](std::uint64_t number) {
    const Frame* frame = context_.find(number);
    return frame != nullptr && frame->target == target && !frame->has_ended;
  });
  if (under_way || context_.alive(target) == nullptr) {
    return;
  }
  found->second.is_torn_down = true;
  context_.tell_after(target, FabricContext::around(kTeardown, context_.threads),
                      core::SessionTornDown{epoch});
}

}  // namespace kvferry::sim
