// Sessions, slots, fences and the steps of receiving threads. What a frame goes through:
// fabric_copy.cc.
#include "sim/fabric_target.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/node.h"
#include "sim/world.h"

namespace kvferry::sim {
namespace {

constexpr Duration kStep = std::chrono::microseconds(20);
constexpr Duration kFenceStep = std::chrono::microseconds(5);

}  // namespace

FabricTarget::Process& FabricTarget::process_of(ProcessKey key) {
  Process& process = processes_[key];
  if (process.threads.empty()) {
    process.threads.resize(std::max(1U, context_.world.profile.receive_threads));
  }
  return process;
}

FabricTarget::Process* FabricTarget::find_process(ProcessKey key) {
  const auto found = processes_.find(key);
  return found == processes_.end() ? nullptr : &found->second;
}

FabricTarget::Session* FabricTarget::session_of(const Frame& frame) {
  Process* process = find_process(frame.target);
  if (process == nullptr) {
    return nullptr;
  }
  const auto found = process->sessions.find(frame.name.session);
  return found == process->sessions.end() ? nullptr : &found->second;
}

FabricTarget::Slot* FabricTarget::slot_of(const Frame& frame) {
  Session* session = session_of(frame);
  if (session == nullptr) {
    return nullptr;
  }
  const auto found = session->slots.find(frame.name.slot);
  return found == session->slots.end() ? nullptr : &found->second;
}

FabricTarget::Thread& FabricTarget::thread_of(Process& process, const Frame& frame) {
  return process.threads[frame.lane_serial % process.threads.size()];
}

bool FabricTarget::is_live(const Frame& frame) {
  const Slot* slot = slot_of(frame);
  if (slot == nullptr || slot->life == nullptr) {
    return false;
  }
  return context_.lacks(ModelGuard::kGenerationChecked) ||
         (slot->is_open && slot->life->generation == frame.name.generation);
}

// --- sessions and grants ---

bool FabricTarget::open_session(ProcessKey target, SessionEpoch epoch) {
  Session& session = process_of(target).sessions[epoch];
  return !std::exchange(session.is_open, true);
}

void FabricTarget::close_session(ProcessKey target, SessionEpoch epoch) {
  Process* process = find_process(target);
  if (process == nullptr) {
    return;
  }
  if (const auto found = process->sessions.find(epoch); found != process->sessions.end()) {
    found->second.is_open = false;
  }
}

void FabricTarget::open_grant(ProcessKey target, const core::OpenGrant& open) {
  Process& process = process_of(target);
  std::vector<HeldSlot>& held = process.grants[open.grant];
  for (const core::GrantedSlot& granted : open.slots) {
    const auto session = process.sessions.find(granted.session);
    // It may have ended while its grant was on the way here: nothing can be written then.
    if (session == process.sessions.end() || !session->second.is_open) {
      continue;
    }
    Slot& slot = session->second.slots[granted.slot];
    if (slot.is_open || (slot.life != nullptr && granted.generation <= slot.life->generation)) {
      context_.world.oracle.violate(
          "S12", fmt::format("grant {} gets slot {} with generation {} while it is {}",
                             open.grant.value(), granted.slot.value(), granted.generation.value(),
                             slot.is_open ? "open" : "past that generation"));
      continue;
    }
    slot.life = std::make_unique<Life>(Life{granted.generation, granted.extent, {}});
    slot.is_open = true;
    held.push_back(HeldSlot{granted.session, granted.slot, granted.generation});
  }
}

// The generation first, then the marks (D3).
void FabricTarget::fence(ProcessKey target, GrantId grant) {
  Process& process = process_of(target);
  Fence fence{grant, {}};
  const auto held = process.grants.find(grant);
  if (held != process.grants.end()) {
    for (const HeldSlot& each : held->second) {
      process.sessions.at(each.session).slots.at(each.slot).is_open = false;
    }
    if (context_.lacks(ModelGuard::kMarkPerThread)) {
      if (process.shared_flag) {
        fence.watched.emplace_back(0, 0);
      }
    } else if (!context_.lacks(ModelGuard::kFenceWaitsForMarks)) {
      for (std::size_t i = 0; i < process.threads.size(); ++i) {
        // Slots of two sessions may share a number; the fence then waits for one copy too many.
        const Thread& thread = process.threads[i];
        const bool concerned =
            thread.mark_up && std::ranges::any_of(held->second, [&](const HeldSlot& each) {
              return each.slot == thread.marked;
            });
        if (concerned) {
          fence.watched.emplace_back(i, thread.marks);
        }
      }
    }
    process.grants.erase(held);
  }
  context_.world.trace.mix(grant.value(), fence.watched.size());
  if (fence.watched.empty()) {
    finish_fence(target, grant);
  } else {
    process.fences.push_back(std::move(fence));
  }
}

void FabricTarget::finish_fence(ProcessKey key, GrantId grant) {
  const bool slow = context_.strikes(Fault::kSlowFence, context_.threads);
  // Past its deadline at times.
  const std::uint32_t patience = context_.world.profile.options.fence_timeout_ms;
  const Duration slowness = milliseconds(1 + context_.threads.below(patience * 3ULL / 2));
  const Duration step = FabricContext::around(kFenceStep, context_.threads);
  process_of(key).unseen.push_back(grant);
  context_.world.agenda.after(slow ? slowness : step,
                              [this, key, grant] { report_fence(key, grant); });
}

void FabricTarget::report_fence(ProcessKey key, GrantId grant) {
  Node* node = context_.alive(key);
  if (node == nullptr) {
    return;
  }
  Process& process = process_of(key);
  if (std::erase(process.unseen, grant) == 0) {
    return;  // healing was faster
  }
  if (!node->is_running()) {
    process.unreported.push_back(grant);
    return;
  }
  context_.world.oracle.fence_done(*node, grant);
  context_.tell_after(key, FabricContext::around(kStep, context_.threads),
                      core::FenceCompleted{grant});
}

// --- processes ---

void FabricTarget::process_died(ProcessKey target) { processes_.erase(target); }

void FabricTarget::process_resumed(ProcessKey target) {
  Process* process = find_process(target);
  if (process == nullptr) {
    return;
  }
  for (std::size_t i = 0; i < process->threads.size(); ++i) {
    Thread& thread = process->threads[i];
    // A step that is planned still comes by itself.
    const bool in_hand = thread.frame != 0 && thread.stage != Stage::kWait;
    if (std::exchange(thread.step_held, false) || !in_hand) {
      plan_step(target, i, kStep);
    }
  }
  for (const GrantId grant : std::exchange(process->unreported, {})) {
    process->unseen.push_back(grant);
    context_.world.agenda.after(kFenceStep, [this, target, grant] { report_fence(target, grant); });
  }
}

void FabricTarget::heal() {
  for (const auto& [key, process] : processes_) {
    for (const GrantId grant : process.unseen) {
      context_.world.agenda.after(kFenceStep,
                                  [this, key = key, grant] { report_fence(key, grant); });
    }
  }
}

// --- a thread's steps ---

void FabricTarget::part_arrived(Frame& frame) {
  Process* process = find_process(frame.target);
  if (process == nullptr) {
    frame.lane_lost = true;
    lane_lost(frame);
    return;
  }
  if (frame.arrived < frame.parts.size()) {
    const auto patience = milliseconds(context_.world.profile.options.lane_timeout_ms);
    context_.world.agenda.after(patience, [this, number = frame.number, arrived = frame.arrived] {
      give_up_lane(number, arrived);
    });
  }
  Thread& thread = thread_of(*process, frame);
  thread.ready.push_back(Turn{frame.number, false});
  serve(frame.target, static_cast<std::size_t>(&thread - process->threads.data()));
}

void FabricTarget::lane_lost(Frame& frame) {
  if (frame.has_ended) {
    return;
  }
  frame.lane_lost = true;
  frame.skips_rest = context_.threads.below(2) == 0;
  Process* process = find_process(frame.target);
  if (process == nullptr) {
    // Its threads are gone, and with them what they had not copied. There is nobody to tell.
    for (FrameItem& item : frame.items) {
      item.result = item.result == WriteResult::kOpen ? WriteResult::kTorn : item.result;
    }
    frame.is_silent = true;
    end(frame);
    return;
  }
  Thread& thread = thread_of(*process, frame);
  thread.ready.push_back(Turn{frame.number, true});
  // Not at once: the caller may be in the middle of a list of frames.
  const auto index = static_cast<std::size_t>(&thread - process->threads.data());
  context_.world.agenda.after(FabricContext::around(kStep, context_.threads),
                              [this, key = frame.target, index] { serve(key, index); });
}

void FabricTarget::serve(ProcessKey key, std::size_t index) {
  for (;;) {
    Process* process = find_process(key);
    if (process == nullptr || !context_.is_running(key)) {
      return;
    }
    Thread& thread = process->threads[index];
    if (thread.stage == Stage::kWait) {
      go_on_waiting(key, index);
      return;
    }
    if (thread.frame != 0 || thread.ready.empty()) {
      return;
    }
    const Turn turn = thread.ready.front();
    thread.ready.pop_front();
    Frame* frame = context_.find(turn.frame);
    if (frame == nullptr || frame->has_ended) {
      continue;
    }
    if (turn.abandons) {
      abandon(*frame);
    } else if (!frame->skips_rest) {
      begin_part(key, index, *frame);
    }
  }
}

void FabricTarget::plan_step(ProcessKey key, std::size_t index, Duration delay) {
  context_.world.agenda.after(delay, [this, key, index] { step(key, index); });
}

void FabricTarget::step(ProcessKey key, std::size_t index) {
  Process* process = find_process(key);
  if (process == nullptr) {
    return;
  }
  Thread& thread = process->threads[index];
  if (!context_.is_running(key)) {
    thread.step_held = true;
    return;
  }
  Frame* frame = context_.find(thread.frame);
  if (frame == nullptr) {
    // Its source ended the session before the look at the generation: nothing of it is copied.
    if (thread.frame != 0) {
      put_down(key, index);
      lower_mark(key, index);
    }
    serve(key, index);
    return;
  }
  switch (thread.stage) {
    case Stage::kIdle:
    case Stage::kWait:
      serve(key, index);
      return;
    case Stage::kMarked:
      check(key, index, *frame);
      return;
    case Stage::kUnmarked:
      raise_mark(*process, thread, frame->name.slot);
      thread.stage = Stage::kCopy;
      plan_step(key, index, FabricContext::around(kStep, context_.threads));
      return;
    case Stage::kCopy:
    case Stage::kRest:
      copy_step(key, index, *frame);
      return;
    case Stage::kClear:
      clear_step(key, index, *frame);
      return;
    case Stage::kReport:
      put_down(key, index);
      finish(*frame, !frame->is_void);
      serve(key, index);
      return;
  }
}

void FabricTarget::begin_part(ProcessKey key, std::size_t index, Frame& frame) {
  Thread& thread = find_process(key)->threads[index];
  const Session* session = session_of(frame);
  if (session == nullptr || (!session->is_open && !frame.has_begun)) {
    abandon(frame);
    return;
  }
  if (frame.fate.torn && frame.taken + 1 == frame.parts.size()) {
    abandon(frame);  // what comes is not the frame's rest but a void trailer
    return;
  }
  thread.frame = frame.number;
  thread.copied = 0;
  if (context_.lacks(ModelGuard::kMarkBeforeCheck)) {
    judge(frame, is_live(frame));
    thread.stage = Stage::kUnmarked;
    plan_step(key, index,
              frame.fate.slow_copy ? frame.fate.slow_copy_for
                                   : FabricContext::around(kStep, context_.threads));
    return;
  }
  raise_mark(*find_process(key), thread, frame.name.slot);
  // Another thread may get between the mark and the look at the generation, too.
  if (context_.threads.below(4) == 0) {
    thread.stage = Stage::kMarked;
    plan_step(key, index, FabricContext::around(kStep, context_.threads));
  } else {
    check(key, index, frame);
  }
}

void FabricTarget::judge(Frame& frame, bool live) {
  if (!frame.has_begun) {
    claim(frame, live);
    return;
  }
  if (live) {
    return;
  }
  // Fenced since the claim. Claims stay as they are: the slot's life is over, and finish() settles
  // them.
  for (FrameItem& item : frame.items) {
    item.goes_to_page = false;
  }
}

void FabricTarget::check(ProcessKey key, std::size_t index, Frame& frame) {
  judge(frame, is_live(frame));
  Thread& thread = find_process(key)->threads[index];
  const bool copies =
      std::ranges::any_of(frame.items, [](const FrameItem& item) { return item.goes_to_page; });
  if (copies && context_.lacks(ModelGuard::kLandedAfterCopy) && !frame.is_reported_early) {
    report_early(frame);
  }
  thread.stage = copies ? Stage::kCopy : Stage::kClear;
  const bool slow = copies && frame.fate.slow_copy && !frame.fate.slow_copy_midway;
  plan_step(key, index,
            slow ? frame.fate.slow_copy_for : FabricContext::around(kStep, context_.threads));
}

void FabricTarget::copy_step(ProcessKey key, std::size_t index, Frame& frame) {
  Thread& thread = find_process(key)->threads[index];
  const std::uint64_t from = frame.taken == 0 ? 0 : frame.parts[frame.taken - 1];
  const std::uint64_t to = frame.parts[frame.taken];
  const bool halves = thread.stage == Stage::kCopy && frame.fate.slow_copy &&
                      frame.fate.slow_copy_midway && to - from > 1;
  const std::uint64_t until = halves ? from + (to - from) / 2 : to;
  copy(frame, from + thread.copied, until);
  thread.copied = until - from;
  thread.stage = halves ? Stage::kRest : Stage::kClear;
  plan_step(key, index,
            halves ? frame.fate.slow_copy_for : FabricContext::around(kStep, context_.threads));
}

void FabricTarget::clear_step(ProcessKey key, std::size_t index, Frame& frame) {
  Thread& thread = find_process(key)->threads[index];
  ++frame.taken;
  const bool is_last = frame.taken == frame.parts.size();
  if (!is_last && context_.lacks(ModelGuard::kNoMarkWhileWaiting)) {
    thread.stage = Stage::kWait;
    go_on_waiting(key, index);
    return;
  }
  lower_mark(key, index);
  if (is_last && context_.threads.below(4) == 0) {
    thread.stage = Stage::kReport;
    plan_step(key, index, FabricContext::around(kStep, context_.threads));
    return;
  }
  put_down(key, index);
  if (is_last) {
    finish(frame, !frame.is_void);
  }
  serve(key, index);
}

// Without kNoMarkWhileWaiting: the thread blocks in the middle of a frame, its mark up.
void FabricTarget::go_on_waiting(ProcessKey key, std::size_t index) {
  Thread& thread = find_process(key)->threads[index];
  const auto turn = std::ranges::find_if(
      thread.ready, [&](const Turn& each) { return each.frame == thread.frame; });
  Frame* frame = context_.find(thread.frame);
  if (frame != nullptr && turn == thread.ready.end()) {
    return;
  }
  const bool abandons = frame == nullptr || turn->abandons || frame->skips_rest ||
                        (frame->fate.torn && frame->taken + 1 == frame->parts.size());
  if (turn != thread.ready.end()) {
    thread.ready.erase(turn);
  }
  if (!abandons) {
    thread.copied = 0;
    check(key, index, *frame);
    return;
  }
  lower_mark(key, index);
  put_down(key, index);
  if (frame != nullptr) {
    abandon(*frame);
  }
  serve(key, index);
}

void FabricTarget::put_down(ProcessKey key, std::size_t index) {
  Thread& thread = find_process(key)->threads[index];
  thread.frame = 0;
  thread.stage = Stage::kIdle;
}

void FabricTarget::raise_mark(Process& process, Thread& thread, GrantSlot slot) {
  thread.mark_up = true;
  thread.marked = slot;
  ++thread.marks;
  process.shared_flag = true;
}

void FabricTarget::lower_mark(ProcessKey key, std::size_t index) {
  Process& process = *find_process(key);
  Thread& thread = process.threads[index];
  thread.mark_up = false;
  process.shared_flag = false;
  const bool shared = context_.lacks(ModelGuard::kMarkPerThread);
  std::erase_if(process.fences, [&](Fence& fence) {
    std::erase_if(fence.watched, [&](const auto& watched) {
      return shared || watched == std::pair(index, thread.marks);
    });
    if (!fence.watched.empty()) {
      return false;
    }
    finish_fence(key, fence.grant);
    return true;
  });
}

}  // namespace kvferry::sim
