// Frames under way at their source: what becomes of each is drawn at its launch, then part after
// part leaves, until it has been answered, lost with its lane, or has outlived its process.
#include <algorithm>
#include <utility>

#include "sim/draw.h"
#include "sim/fabric_source.h"
#include "sim/node.h"
#include "sim/world.h"

namespace kvferry::sim {
namespace {

constexpr Duration kRenewMin = std::chrono::milliseconds(20);
constexpr Duration kRenewMax = std::chrono::milliseconds(200);
constexpr Duration kSlowMin = std::chrono::milliseconds(1);
constexpr Duration kCopyMin = std::chrono::microseconds(100);
constexpr Duration kCopyMax = std::chrono::milliseconds(20);
constexpr Duration kLandingDelayMax = std::chrono::milliseconds(2);

}  // namespace

// Every draw is made for every frame, whatever is enabled or fits the kind.
FrameFate FabricSource::draw_fate(std::uint64_t size) {
  Prng own = context_.fates.fork();
  const Options& options = context_.world.profile.options;
  // Past their deadlines at times.
  const Duration slow_max = milliseconds(options.write_timeout_ms * 3ULL / 2 + 2);
  const Duration stall_max = milliseconds(options.lane_timeout_ms * 3ULL + 2);
  const Duration mean = context_.world.profile.write_latency;
  const bool executes = context_.kind != TransportKind::kOneSided;
  const auto strikes = [&](Fault fault, bool fits) {
    if (fits) {
      return context_.strikes(fault, own);
    }
    own.next();
    return false;
  };
  FrameFate fate;
  fate.latency = FabricContext::around(mean, own);
  fate.answer_latency = FabricContext::around(mean, own);
  const Duration slowness = log_uniform(own, kSlowMin, slow_max);
  const Duration lateness = log_uniform(own, kSlowMin, slow_max);
  fate.stall = log_uniform(own, kSlowMin, stall_max);
  fate.stopped_for_good = own.below(3) == 0;
  fate.slow_copy_for = log_uniform(own, kCopyMin, kCopyMax);
  fate.slow_copy_midway = own.below(2) == 0;
  fate.error_is_refusal = own.below(2) == 0;
  const bool header_is_damaged = own.below(4) == 0;
  if (strikes(Fault::kSlowWrite, true)) {
    fate.latency += slowness;
  }
  if (strikes(Fault::kCompletionLate, true)) {
    fate.answer_latency += lateness;
  }
  fate.answer_lost = strikes(Fault::kCompletionLost, true);
  fate.answer_twice = strikes(Fault::kCompletionTwice, true);
  const bool told_late = own.below(4) == 0;
  const Duration delay = uniform(own, Duration{}, kLandingDelayMax);
  fate.landing_delay = told_late && executes ? delay : Duration{};
  fate.landing_twice = strikes(Fault::kCompletionTwice, executes);
  fate.landing_again_after = log_uniform(own, kSlowMin, slow_max);
  fate.told_unknown = strikes(Fault::kErrorLanded, true);
  const bool nothing_lands = strikes(Fault::kErrorNothing, true);
  fate.damaged = nothing_lands && header_is_damaged && executes;
  fate.never_arrives = nothing_lands && !fate.damaged;
  const bool divisible = size > 1 && !nothing_lands;
  fate.torn = strikes(Fault::kPartlyLanded, divisible);
  fate.stalled = strikes(Fault::kStalledFrame, divisible);
  fate.second_copy = strikes(Fault::kFrameTwice, executes && !nothing_lands);
  fate.slow_copy = strikes(Fault::kSlowCopy, executes && !nothing_lands);
  return fate;
}

void FabricSource::cut_into_parts(Frame& frame, Prng& prng) {
  const std::uint64_t size = frame.size();
  const std::uint64_t cut = size > 1 ? 1 + prng.below(size - 1) : size;
  const bool in_two = prng.below(4) == 0 || frame.fate.torn || frame.fate.stalled;
  if (in_two && cut < size) {
    frame.parts.push_back(cut);
  }
  frame.parts.push_back(size);
}

void FabricSource::launch(Session& session, SessionEpoch epoch, std::size_t lane) {
  const layout::Write& head = session.queue.front();
  Frame& frame = context_.add();
  frame.name = WriteName{epoch, head.slot, head.generation};
  frame.source = session.source;
  frame.target = session.target;
  frame.lane = static_cast<std::uint32_t>(lane);
  frame.lane_serial = session.lanes[lane].serial;
  const std::size_t limit = std::max(1U, context_.world.profile.frame_writes);
  std::uint64_t size = 0;
  while (!session.queue.empty() && frame.items.size() < limit) {
    const layout::Write& next = session.queue.front();
    if (next.slot != frame.name.slot || next.generation != frame.name.generation) {
      break;
    }
    FrameItem item;
    item.write = next;
    item.begin = size;
    size += next.length;
    ++session.tickets[next.ticket].copies;
    frame.items.push_back(item);
    session.queue.pop_front();
  }
  frame.payload.resize(size);
  frame.fate = draw_fate(size);
  cut_into_parts(frame, context_.latency);
  session.frames.insert(frame.number);
  session.lanes[lane].frames.push_back(frame.number);
  context_.trace(frame, "launched");
  plan_depart(frame, FabricContext::around(kSoon, context_.latency));
}

// The same bytes again under the same tickets, on another lane where there is one.
void FabricSource::launch_second_copy(Session& session, const Frame& first) {
  Frame& copy = context_.add();
  copy.name = first.name;
  copy.source = first.source;
  copy.target = first.target;
  copy.lane = static_cast<std::uint32_t>((first.lane + 1) % session.lanes.size());
  copy.lane_serial = session.lanes[copy.lane].serial;
  for (const FrameItem& each : first.items) {
    FrameItem item;
    item.write = each.write;
    item.begin = each.begin;
    copy.items.push_back(item);
    ++session.tickets[each.write.ticket].copies;
  }
  copy.payload = first.payload;
  copy.captured = first.captured;
  copy.parts = {first.size()};
  copy.departed = 1;
  copy.is_second_copy = true;
  copy.is_void = first.is_void;
  Prng own = context_.fates.fork();
  const Duration mean = context_.world.profile.write_latency;
  copy.fate.latency = own.below(2) == 0 ? FabricContext::around(mean, own)
                                        : log_uniform(own, kSlowMin, kSlowMin + 1'000 * mean);
  copy.fate.answer_latency = FabricContext::around(mean, own);
  session.frames.insert(copy.number);
  session.lanes[copy.lane].frames.push_back(copy.number);
  context_.trace(copy, "second copy");
  plan_arrival(session, copy, copy.fate.latency);
}

// --- leaving ---

void FabricSource::plan_depart(const Frame& frame, Duration delay) {
  context_.world.agenda.after(
      delay, [this, number = frame.number, part = frame.departed] { depart(number, part); });
}

// A lane carries one frame at a time: the next leaves when this one has.
void FabricSource::depart_next(Session& session, std::uint32_t lane) {
  for (const std::uint64_t number : session.lanes[lane].frames) {
    const Frame* frame = context_.find(number);
    if (frame == nullptr || frame->is_complete()) {
      continue;
    }
    if (frame->departed == 0) {
      plan_depart(*frame, FabricContext::around(kSoon, context_.latency));
    }
    return;
  }
}

void FabricSource::depart(std::uint64_t number, std::size_t part) {
  Frame* found = context_.find(number);
  if (found == nullptr || found->has_ended || found->lane_lost || found->departed != part) {
    return;
  }
  Frame& frame = *found;
  Session& session = sessions_.at(frame.name.session);
  const bool needs_process = context_.kind != TransportKind::kOneSided && !frame.is_orphan;
  if (needs_process && !context_.is_running(frame.source)) {
    session.held_departs.push_back(number);
    return;
  }
  Lane& lane = session.lanes[frame.lane];
  const bool on_lane = lane.serial == frame.lane_serial;
  if (on_lane && !frame.is_orphan) {
    for (const std::uint64_t earlier : lane.frames) {
      const Frame* other = context_.find(earlier);
      if (earlier == number) {
        break;
      }
      if (other != nullptr && !other->is_complete()) {
        return;
      }
    }
  }
  if (on_lane && std::exchange(lane.is_stuck, false)) {
    plan_pump(frame.name.session);
  }
  if (context_.kind == TransportKind::kStream && is_given_up(session, frame.name)) {
    frame.is_void = true;  // zeros from here on, and a void trailer
  }
  if (frame.fate.never_arrives) {
    frame.departed = frame.parts.size();
    context_.world.agenda.after(frame.fate.latency, [this, number] { lose(number); });
    depart_next(session, frame.lane);
    return;
  }
  if (context_.kind != TransportKind::kShared) {
    capture(frame, frame.parts[part]);
  }
  ++frame.departed;
  context_.world.trace.mix(number, part);
  if (part == 0 && frame.fate.told_unknown) {
    context_.world.agenda.after(frame.fate.latency / 2, [this, number] { tell_unknown(number); });
  }
  const Duration mean = context_.world.profile.write_latency;
  plan_arrival(session, frame,
               part == 0 ? frame.fate.latency : FabricContext::around(mean, context_.latency));
  if (!frame.is_complete()) {
    plan_rest(session, frame);
    return;
  }
  depart_next(session, frame.lane);
  if (frame.fate.second_copy && !frame.is_orphan && session.source_open && session.target_open) {
    launch_second_copy(session, frame);
  }
}

void FabricSource::plan_rest(Session& session, Frame& frame) {
  if (!frame.fate.stalled) {
    const Duration mean = context_.world.profile.write_latency;
    plan_depart(frame, FabricContext::around(mean / 2, context_.latency));
    return;
  }
  Lane& lane = session.lanes[frame.lane];
  if (lane.serial == frame.lane_serial) {
    lane.is_stuck = true;
  }
  context_.trace(frame, "stalled");
  if (!frame.fate.stopped_for_good) {
    plan_depart(frame, frame.fate.stall);
  }
}

// What leaves now is read now.
void FabricSource::capture(Frame& frame, std::uint64_t until) {
  Place& place = context_.world.place(frame.source.place);
  const bool lives = context_.alive(frame.source) != nullptr;
  for (const FrameItem& item : frame.items) {
    const std::uint64_t begin = std::max(frame.captured, item.begin);
    const std::uint64_t end = std::min(until, item.end());
    if (begin >= end || frame.is_void) {
      continue;
    }
    const std::uint64_t offset = item.write.source_offset + (begin - item.begin);
    if (lives) {
      context_.world.oracle.reading(place, frame.name, item.write.source_region, offset,
                                    end - begin);
    }
    const auto bytes = place.memory->bytes(item.write.source_region, offset, end - begin);
    std::ranges::copy(bytes, frame.payload.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  frame.captured = std::max(frame.captured, until);
}

void FabricSource::plan_arrival(Session& session, Frame& frame, Duration delay) {
  Instant at = std::max(now() + delay, frame.last_arrival);
  Lane& lane = session.lanes[frame.lane];
  if (lane.serial == frame.lane_serial) {
    at = std::max(at, lane.last_arrival);
    lane.last_arrival = at;
  }
  plan_part(frame, frame.departed - 1, at);
}

void FabricSource::plan_part(Frame& frame, std::size_t part, Instant at) {
  frame.last_arrival = at;
  context_.world.agenda.at(at, [this, number = frame.number, part] { arrive(number, part); });
}

void FabricSource::arrive(std::uint64_t number, std::size_t part) {
  Frame* frame = context_.find(number);
  const bool one_sided = context_.kind == TransportKind::kOneSided;
  if (frame == nullptr || frame->has_ended || frame->arrived != part ||
      (frame->lane_lost && !one_sided)) {
    return;
  }
  ++frame->arrived;
  receiver_->part_arrived(*frame);
}

// An error, and nothing of it has landed or will.
void FabricSource::lose(std::uint64_t number) {
  if (Frame* frame = context_.find(number); frame != nullptr && !frame->has_ended) {
    end_here(*frame, frame->fate.error_is_refusal ? WriteResult::kRefused : WriteResult::kTorn);
  }
}

void FabricSource::end_here(Frame& frame, WriteResult result) {
  for (FrameItem& item : frame.items) {
    item.result = result;
  }
  frame.has_ended = true;
  const ProcessKey target = frame.target;
  const SessionEpoch epoch = frame.name.session;
  frame_ended(frame);
  receiver_->ended_at_source(target, epoch);
}

// Nothing of the frame has left: back into the queue with it, or it never was.
void FabricSource::take_back(Session& session, Frame& frame, bool to_queue, Words& words) {
  const SessionEpoch epoch = frame.name.session;
  for (auto item = frame.items.rbegin(); item != frame.items.rend(); ++item) {
    const TicketId id = item->write.ticket;
    const auto found = session.tickets.find(id);
    if (found == session.tickets.end()) {
      continue;
    }
    Ticket& ticket = found->second;
    --ticket.copies;
    if (ticket.told_unknown) {
      words.quiet.push_back(id);
      session.tickets.erase(id);
    } else if (to_queue) {
      session.queue.push_front(item->write);
    } else {
      words.completed.push_back({epoch, id, layout::WriteOutcome::kRefused});
      session.tickets.erase(id);
    }
  }
  leave_lane(session, frame);
  session.frames.erase(frame.number);
  context_.erase(frame.number);
}

// --- the target's word ---

void FabricSource::frame_ended(Frame& frame) {
  Session& session = sessions_.at(frame.name.session);
  context_.trace(frame, "ended");
  for (const FrameItem& item : frame.items) {
    context_.world.trace.mix(static_cast<std::uint64_t>(item.result));
  }
  if (frame.is_answered) {
    leave_lane(session, frame);
    session.frames.erase(frame.number);
    context_.erase(frame.number);
    return;
  }
  if (!session.source_open) {
    plan_answer(frame, Duration{});
    return;
  }
  if (frame.fate.answer_lost || frame.is_silent) {
    frame.is_silent = true;
    leave_lane(session, frame);
    answer_silent(session, frame);
    return;
  }
  // Of a lane that is lost, the target tells when it is made anew.
  const Duration renewal =
      frame.lane_lost ? uniform(context_.latency, kRenewMin, kRenewMax) : Duration{};
  plan_answer(frame, frame.fate.answer_latency + renewal);
}

void FabricSource::lane_given_up(Frame& frame) {
  Session& session = sessions_.at(frame.name.session);
  if (frame.is_answered || !session.source_open) {
    return;
  }
  if (frame.fate.stopped_for_good) {
    leave_writer(session, frame);
  } else if (session.lanes[frame.lane].serial == frame.lane_serial) {
    reset_lane(frame.name.session, frame.lane);
  }
}

// A frame has been in the middle for lane_timeout_ms past its deadline: its lane is made anew.
void FabricSource::fell_silent(std::uint64_t number) {
  Frame* frame = context_.find(number);
  Session* session = frame == nullptr ? nullptr : find(frame->name.session);
  if (session == nullptr || frame->is_answered || !session->source_open) {
    return;
  }
  if (frame->fate.stopped_for_good && !frame->is_complete()) {
    leave_writer(*session, *frame);
  } else if (session->lanes[frame->lane].serial == frame->lane_serial) {
    reset_lane(frame->name.session, frame->lane);
  }
}

// Its writer has stopped for good and notices nothing: unknown at the deadline, quiet only with the
// close. The old connection stays half open, so that the target's own deadline is what ends the
// frame; others get a new one.
void FabricSource::leave_writer(Session& session, Frame& frame) {
  frame.is_silent = true;
  frame.quiet_is_withheld = true;
  Lane& lane = session.lanes[frame.lane];
  if (lane.serial == frame.lane_serial) {
    std::erase(lane.frames, frame.number);
    reset_lane(frame.name.session, frame.lane);
  }
}

// --- lanes ---

void FabricSource::reset_lane(SessionEpoch epoch, std::size_t index) {
  Session& session = sessions_.at(epoch);
  Lane& lane = session.lanes[index];
  const Duration renewal = uniform(context_.latency, kRenewMin, kRenewMax);
  const std::vector<std::uint64_t> frames = std::exchange(lane.frames, {});
  lane.serial = session.next_serial++;
  lane.is_up = false;
  lane.is_stuck = false;
  lane.last_arrival = now();
  Words words;
  for (auto number = frames.rbegin(); number != frames.rend(); ++number) {
    if (Frame* frame = context_.find(*number); frame != nullptr) {
      reset_frame(session, *frame, renewal, words);
    }
  }
  say(session, epoch, std::move(words));
  context_.world.trace.mix(epoch.value(), index, frames.size());
  context_.world.trace.line(LogLevel::kFull, now(), "lane {} of session {} is reset with {} frames",
                            index, epoch.value(), frames.size());
  fail_lane(session.source, epoch, "connection reset", false);
  context_.world.agenda.after(FabricContext::around(kNotice, context_.latency), [this, epoch] {
    if (const Session* found = find(epoch); found != nullptr && found->target_open) {
      fail_lane(found->target, epoch, "connection reset", false);
    }
  });
  context_.world.agenda.after(renewal, [this, epoch, index, serial = lane.serial] {
    Session* found = find(epoch);
    if (found != nullptr && found->lanes[index].serial == serial) {
      found->lanes[index].is_up = true;
      plan_pump(epoch);
    }
  });
}

void FabricSource::reset_frame(Session& session, Frame& frame, Duration renewal, Words& words) {
  if (frame.departed == 0) {
    take_back(session, frame, true, words);
    return;
  }
  if (!frame.has_ended) {
    receiver_->lane_lost(frame);
    return;
  }
  // Its answer was under way.
  if (frame.is_silent || frame.is_answered) {
    return;
  }
  if (context_.kind == TransportKind::kOneSided) {
    for (FrameItem& item : frame.items) {
      item.result = WriteResult::kTorn;  // there is nobody to ask
    }
    plan_answer(frame, renewal);
    return;
  }
  const bool again = context_.strikes(Fault::kFrameTwice, context_.fates);
  const bool may_repeat = frame.is_complete() && !frame.is_void && !frame.fate.never_arrives &&
                          session.source_open && session.target_open;
  plan_answer(frame, renewal + frame.fate.answer_latency);
  if (again && may_repeat) {
    launch_second_copy(session, frame);
  }
}

void FabricSource::reset_some_lane(Prng& prng) {
  std::vector<std::pair<SessionEpoch, std::size_t>> busy;
  std::vector<std::pair<SessionEpoch, std::size_t>> idle;
  for (const auto& [epoch, session] : sessions_) {
    for (std::size_t i = 0; session.source_open && i < session.lanes.size(); ++i) {
      if (session.lanes[i].is_up) {
        (session.lanes[i].frames.empty() ? idle : busy).emplace_back(epoch, i);
      }
    }
  }
  const auto& from = busy.empty() ? idle : busy;
  const std::uint64_t draw = prng.next();
  if (!from.empty()) {
    const auto [epoch, lane] = from[draw % from.size()];
    reset_lane(epoch, lane);
  }
}

void FabricSource::flush_some_session(Prng& prng) {
  std::vector<SessionEpoch> queued;
  for (const auto& [epoch, session] : sessions_) {
    if (session.source_open && !session.queue.empty()) {
      queued.push_back(epoch);
    }
  }
  const std::uint64_t draw = prng.next();
  if (queued.empty()) {
    return;
  }
  const SessionEpoch epoch = queued[draw % queued.size()];
  Session& session = sessions_.at(epoch);
  Words words;
  for (const layout::Write& write : std::exchange(session.queue, {})) {
    words.completed.push_back({epoch, write.ticket, layout::WriteOutcome::kRefused});
    session.tickets.erase(write.ticket);
  }
  say(session, epoch, std::move(words));
}

void FabricSource::heal(bool leave_stalled) {
  for (auto& [epoch, session] : sessions_) {
    for (const std::uint64_t number : frames_of(epoch)) {
      if (Frame* frame = context_.find(number); frame == nullptr) {
        continue;
      } else if (!frame->fate.stalled || !frame->fate.stopped_for_good) {
        hasten(session, *frame);
      } else if (!leave_stalled) {
        frame->fate.stopped_for_good = false;
        frame->quiet_is_withheld = false;
        answer_silent(session, *frame);
        hasten(session, *frame);
      } else if (session.source_open && frame->departed > 0 && !frame->is_complete()) {
        leave_writer(session, *frame);
      } else {
        hasten(session, *frame);
      }
    }
  }
}

// What was drawn to take long happens now; what was drawn to be lost stays so.
void FabricSource::hasten(Session& session, Frame& frame) {
  if (session.source_open) {
    session.lanes[frame.lane].last_arrival = now();
  }
  if (frame.has_ended) {
    if (!frame.is_silent && !frame.is_answered) {
      plan_answer(frame, FabricContext::around(kSoon, context_.latency));
    }
    return;
  }
  frame.fate.latency = std::min(frame.fate.latency, context_.world.profile.write_latency);
  frame.fate.answer_latency =
      std::min(frame.fate.answer_latency, context_.world.profile.write_latency);
  if (frame.fate.never_arrives && frame.departed > 0) {
    context_.world.agenda.after(kSoon, [this, number = frame.number] { lose(number); });
    return;
  }
  // In order on a lane, since equal instants keep theirs.
  for (std::size_t part = frame.arrived; part < frame.departed; ++part) {
    plan_part(frame, part, now() + kSoon);
  }
  if (frame.departed > 0 && !frame.is_complete()) {
    plan_depart(frame, 2 * kSoon);
  }
}

}  // namespace kvferry::sim
