// Sessions, queues, tickets, processes, and what the source's core is told. Frames under way:
// fabric_lanes.cc.
#include "sim/fabric_source.h"

#include <algorithm>
#include <utility>

#include "sim/node.h"
#include "sim/world.h"

namespace kvferry::sim {
namespace {

constexpr std::size_t kLaneWindow = 2;  // frames on a lane that are not answered
constexpr Duration kLateQuiet = std::chrono::milliseconds(200);

layout::WriteCompletion completion(SessionEpoch epoch, TicketId ticket,
                                   layout::WriteOutcome outcome) {
  return layout::WriteCompletion{epoch, ticket, outcome};
}

// Landed is a fact; torn is worse than refused, of which nothing is there; fenced says more.
WriteResult better(WriteResult a, WriteResult b) {
  for (const WriteResult result :
       {WriteResult::kLanded, WriteResult::kTorn, WriteResult::kFenced}) {
    if (a == result || b == result) {
      return result;
    }
  }
  return WriteResult::kRefused;
}

}  // namespace

FabricSource::Session* FabricSource::find(SessionEpoch epoch) {
  const auto found = sessions_.find(epoch);
  return found == sessions_.end() ? nullptr : &found->second;
}

Instant FabricSource::now() const { return context_.world.agenda.now(); }

bool FabricSource::is_given_up(const Session& session, const WriteName& name) const {
  const auto found = session.given_up.find(name.slot);
  return found != session.given_up.end() && name.generation <= found->second;
}

std::vector<std::uint64_t> FabricSource::frames_of(SessionEpoch epoch) const {
  const auto found = sessions_.find(epoch);
  if (found == sessions_.end()) {
    return {};
  }
  return {found->second.frames.begin(), found->second.frames.end()};
}

void FabricSource::say(const Session& session, SessionEpoch epoch, Words words, bool twice) {
  for (const layout::WriteCompletion& each : words.completed) {
    context_.world.trace.mix(each.ticket.value(), static_cast<std::uint64_t>(each.outcome));
  }
  if (!words.completed.empty()) {
    if (twice) {
      context_.tell_after(session.source, FabricContext::around(kSoon, context_.latency),
                          core::WritesCompleted{words.completed});
    }
    context_.tell(session.source, core::WritesCompleted{std::move(words.completed)});
  }
  if (!words.quiet.empty()) {
    context_.tell(session.source, core::WritesQuiet{epoch, std::move(words.quiet)});
  }
}

void FabricSource::fail_lane(ProcessKey process, SessionEpoch epoch, const char* what,
                             bool all_lanes) {
  context_.tell(process, core::LaneFailed{epoch,
                                          Failure{all_lanes ? FailureCode::kPeerUnreachable
                                                            : FailureCode::kPeerLost,
                                                  FailureWhere::kPath,
                                                  what,
                                                  {},
                                                  -1},
                                          all_lanes});
}

// --- sessions ---

// One that was closed may be opened again: that no core does so is not for the fabric to ensure.
bool FabricSource::open_source(ProcessKey source, SessionEpoch epoch) {
  Session& session = sessions_[epoch];
  if (session.source != kNobody && (session.source != source || session.source_open)) {
    return false;
  }
  session.source = source;
  session.lanes.clear();
  session.source_open = true;
  session.lanes.resize(std::max(1U, context_.world.profile.lanes));
  for (Lane& lane : session.lanes) {
    lane.serial = session.next_serial++;
  }
  watch_reachability(epoch);
  plan_pump(epoch);
  return true;
}

void FabricSource::open_target(ProcessKey target, SessionEpoch epoch) {
  Session& session = sessions_[epoch];
  session.target = target;
  session.target_open = true;
  plan_pump(epoch);
}

// For twice lane_timeout_ms no lane has led anywhere: none will.
void FabricSource::watch_reachability(SessionEpoch epoch) {
  Session& session = sessions_[epoch];
  session.unreachable_since = now();
  const auto patience = milliseconds(2ULL * context_.world.profile.options.lane_timeout_ms);
  context_.world.agenda.after(patience, [this, epoch, since = now()] {
    Session* found = find(epoch);
    if (found == nullptr || !found->source_open || found->target_open || found->unreachable_told ||
        found->unreachable_since != since) {
      return;
    }
    found->unreachable_told = true;
    fail_lane(found->source, epoch, "no data lane for 2 * lane_timeout_ms", true);
  });
}

void FabricSource::close_source(ProcessKey source, SessionEpoch epoch) {
  Session* session = find(epoch);
  if (session == nullptr || session->source != source || !session->source_open) {
    return;
  }
  session->source_open = false;
  Words words;
  const bool refuses = context_.fates.below(2) == 0;
  for (const layout::Write& write : std::exchange(session->queue, {})) {
    words.completed.push_back(
        completion(epoch, write.ticket,
                   refuses ? layout::WriteOutcome::kRefused : layout::WriteOutcome::kUnknown));
    if (!refuses) {
      words.quiet.push_back(write.ticket);
    }
    session->tickets.erase(write.ticket);
  }
  for (const std::uint64_t number : frames_of(epoch)) {
    if (Frame* frame = context_.find(number); frame != nullptr) {
      close_frame(*session, *frame, words);
    }
  }
  say(*session, epoch, std::move(words));
  if (session->target_open) {
    context_.world.agenda.after(FabricContext::around(kNotice, context_.latency),
                                [this, epoch, target = session->target] {
                                  fail_lane(target, epoch, "the source closed the lane", false);
                                });
  }
}

// What is under way is unknown from here on, and quiet as soon as no byte of it can leave the
// source.
void FabricSource::close_frame(Session& session, Frame& frame, Words& words) {
  if (frame.departed == 0) {
    take_back(session, frame, false, words);
    return;
  }
  make_unknown(session, frame, words);
  frame.quiet_is_withheld = false;
  if (frame.has_ended) {
    plan_answer(frame, Duration{});
    return;
  }
  const bool goes_on = frame.is_complete() && context_.fates.below(2) == 0;
  if (context_.kind == TransportKind::kShared && !frame.has_begun &&
      context_.alive(frame.target) != nullptr && !context_.is_running(frame.target)) {
    end_here(frame, WriteResult::kRefused);  // the descriptor is taken back out of the ring
    return;
  }
  if (context_.kind == TransportKind::kStream) {
    // The sockets are closed: what has left may still land, and reads nothing here.
    plan_answer(frame, FabricContext::around(kSoon, context_.latency));
  }
  if (!goes_on) {
    receiver_->lane_lost(frame);
  }
}

void FabricSource::target_gone(ProcessKey target, SessionEpoch epoch) {
  Session* session = find(epoch);
  if (session == nullptr || session->target != target || !session->target_open) {
    return;
  }
  session->target_open = false;
  Words words;
  for (const std::uint64_t number : frames_of(epoch)) {
    Frame* frame = context_.find(number);
    if (frame == nullptr) {
      continue;
    }
    if (frame->departed == 0) {
      take_back(*session, *frame, true, words);
      continue;
    }
    const bool answer_is_lost = context_.fates.below(2) == 0;
    if (!frame->has_ended || answer_is_lost) {
      frame->is_silent = frame->is_silent || session->source_open;
    }
    if (frame->has_ended && answer_is_lost && session->source_open) {
      ++frame->answer_number;
      leave_lane(*session, *frame);
      answer_silent(*session, *frame);
    } else if (!frame->has_ended) {
      receiver_->lane_lost(*frame);
    }
  }
  say(*session, epoch, std::move(words));
  if (!session->source_open) {
    return;
  }
  for (std::size_t i = 0; i < session->lanes.size(); ++i) {
    context_.world.agenda.after(FabricContext::around(kNotice, context_.latency), [this, epoch] {
      if (const Session* found = find(epoch); found != nullptr && found->source_open) {
        fail_lane(found->source, epoch, "the target closed the lane", false);
      }
    });
  }
  watch_reachability(epoch);
}

// Its target had closed the session, and died before its threads came round to what was under way.
void FabricSource::end_unserved(SessionEpoch epoch) {
  for (const std::uint64_t number : frames_of(epoch)) {
    if (Frame* frame = context_.find(number); frame != nullptr && frame->departed > 0) {
      receiver_->lane_lost(*frame);
    }
  }
}

// --- queue ---

void FabricSource::post(ProcessKey source, const core::PostWrites& post) {
  Session* session = find(post.session);
  const bool is_open = session != nullptr && session->source == source && session->source_open;
  Words words;
  std::vector<TicketId> tickets;
  for (const layout::Write& write : post.writes) {
    const WriteName name{post.session, write.slot, write.generation};
    if (!is_open || write.length == 0 || is_given_up(*session, name)) {
      words.completed.push_back(
          completion(post.session, write.ticket, layout::WriteOutcome::kRefused));
      continue;
    }
    session->queue.push_back(write);
    session->tickets.emplace(write.ticket, Ticket{});
    tickets.push_back(write.ticket);
  }
  if (!words.completed.empty()) {
    context_.tell(source, core::WritesCompleted{std::move(words.completed)});
  }
  if (tickets.empty()) {
    return;
  }
  context_.world.agenda.after(
      milliseconds(context_.world.profile.options.write_timeout_ms),
      [this, epoch = post.session, expired = std::move(tickets)] { expire(epoch, expired); });
  plan_pump(post.session);
}

void FabricSource::give_up(ProcessKey source, const core::GiveUpWrites& order) {
  Session* session = find(order.session);
  if (session == nullptr || session->source != source || !session->source_open) {
    return;
  }
  Generation& latest = session->given_up[order.slot];
  latest = std::max(latest, order.generation);
  Words words;
  std::erase_if(session->queue, [&](const layout::Write& write) {
    if (!is_given_up(*session, {order.session, write.slot, write.generation})) {
      return false;
    }
    words.completed.push_back(
        completion(order.session, write.ticket, layout::WriteOutcome::kRefused));
    session->tickets.erase(write.ticket);
    return true;
  });
  for (const std::uint64_t number : frames_of(order.session)) {
    Frame* frame = context_.find(number);
    if (frame != nullptr && frame->departed == 0 && is_given_up(*session, frame->name)) {
      take_back(*session, *frame, false, words);
    }
  }
  say(*session, order.session, std::move(words));
}

void FabricSource::plan_pump(SessionEpoch epoch) {
  Session& session = sessions_[epoch];
  if (session.pump_planned) {
    return;
  }
  session.pump_planned = true;
  context_.world.agenda.after(FabricContext::around(kSoon, context_.latency), [this, epoch] {
    sessions_[epoch].pump_planned = false;
    pump(epoch);
  });
}

void FabricSource::pump(SessionEpoch epoch) {
  Session& session = sessions_[epoch];
  if (!session.source_open || !session.target_open || !context_.is_running(session.source)) {
    return;
  }
  while (!session.queue.empty()) {
    std::vector<std::size_t> free;
    for (std::size_t i = 0; i < session.lanes.size(); ++i) {
      const Lane& lane = session.lanes[i];
      if (lane.is_up && !lane.is_stuck && lane.frames.size() < kLaneWindow) {
        free.push_back(i);
      }
    }
    if (free.empty()) {
      return;
    }
    launch(session, epoch, free[context_.latency.below(free.size())]);
  }
}

// --- tickets ---

// The deadline of the writes of one post.
void FabricSource::expire(SessionEpoch epoch, const std::vector<TicketId>& tickets) {
  Session* session = find(epoch);
  if (session == nullptr || !session->source_open) {
    return;
  }
  Words words;
  std::set<TicketId> queued;
  for (const TicketId ticket : tickets) {
    const auto found = session->tickets.find(ticket);
    if (found == session->tickets.end() || found->second.is_settled || found->second.told_unknown) {
      continue;
    }
    words.completed.push_back(completion(epoch, ticket, layout::WriteOutcome::kUnknown));
    found->second.told_unknown = true;
    if (found->second.copies == 0) {
      words.quiet.push_back(ticket);
      session->tickets.erase(found);
      queued.insert(ticket);
    }
  }
  std::erase_if(session->queue,
                [&](const layout::Write& write) { return queued.contains(write.ticket); });
  for (const std::uint64_t number : frames_of(epoch)) {
    Frame* frame = context_.find(number);
    if (frame == nullptr || !all_unknown(*session, *frame)) {
      continue;
    }
    if (frame->departed == 0) {
      take_back(*session, *frame, false, words);
      continue;
    }
    if (!frame->is_complete()) {
      context_.world.agenda.after(milliseconds(context_.world.profile.options.lane_timeout_ms),
                                  [this, number] { fell_silent(number); });
    }
    answer_silent(*session, *frame);
  }
  say(*session, epoch, std::move(words));
}

bool FabricSource::all_unknown(Session& session, const Frame& frame) const {
  return std::ranges::all_of(frame.items, [&](const FrameItem& item) {
    const auto found = session.tickets.find(item.write.ticket);
    return found == session.tickets.end() || found->second.told_unknown || found->second.is_settled;
  });
}

void FabricSource::make_unknown(Session& session, Frame& frame, Words& words) {
  for (const FrameItem& item : frame.items) {
    const auto found = session.tickets.find(item.write.ticket);
    if (found == session.tickets.end() || found->second.told_unknown || found->second.is_settled) {
      continue;
    }
    found->second.told_unknown = true;
    words.completed.push_back(
        completion(frame.name.session, item.write.ticket, layout::WriteOutcome::kUnknown));
  }
}

void FabricSource::tell_unknown(std::uint64_t number) {
  Frame* frame = context_.find(number);
  Session* session = frame == nullptr ? nullptr : find(frame->name.session);
  if (session == nullptr || frame->is_answered || !session->source_open) {
    return;
  }
  Words words;
  make_unknown(*session, *frame, words);
  say(*session, frame->name.session, std::move(words));
}

// Nobody answers it: once its tickets are unknown, quiet is all that is left to say.
void FabricSource::answer_silent(Session& session, Frame& frame) {
  if (!frame.is_silent || !frame.has_ended || frame.quiet_is_withheld ||
      frame.is_last_word_planned || !all_unknown(session, frame)) {
    return;
  }
  frame.is_last_word_planned = true;
  plan_answer(frame, FabricContext::around(kLateQuiet, context_.latency));
}

void FabricSource::plan_answer(Frame& frame, Duration delay) {
  const std::uint32_t answer = ++frame.answer_number;
  context_.world.agenda.after(delay, [this, number = frame.number, answer] {
    Frame* found = context_.find(number);
    if (found != nullptr && found->answer_number == answer && !found->is_answered) {
      finish(*found);
    }
  });
}

// The answer has come, or the last word that there will be.
void FabricSource::finish(Frame& frame) {
  const SessionEpoch epoch = frame.name.session;
  Session& session = sessions_.at(epoch);
  context_.trace(frame, "answered");
  Words words;
  apply(session, frame, words);
  say(session, epoch, std::move(words), frame.fate.answer_twice);
  leave_lane(session, frame);
  if (frame.has_ended) {
    session.frames.erase(frame.number);
    context_.erase(frame.number);
  } else {
    frame.is_answered = true;
  }
  if (session.source_open) {
    plan_pump(epoch);
  }
}

void FabricSource::apply(Session& session, Frame& frame, Words& words) {
  const SessionEpoch epoch = frame.name.session;
  for (const FrameItem& item : frame.items) {
    const TicketId id = item.write.ticket;
    const auto found = session.tickets.find(id);
    if (found == session.tickets.end()) {
      continue;
    }
    Ticket& ticket = found->second;
    const bool is_known = item.result != WriteResult::kOpen;
    const WriteResult result = is_known ? item.result : WriteResult::kTorn;
    --ticket.copies;
    ticket.best = ticket.best == WriteResult::kOpen ? result : better(ticket.best, result);
    const bool is_last = ticket.copies == 0;
    if (ticket.told_unknown && !ticket.is_settled) {
      if (is_last) {
        words.quiet.push_back(id);
        ticket.is_settled = true;
      }
    } else if (!ticket.is_settled && ticket.best == WriteResult::kLanded) {
      words.completed.push_back(completion(epoch, id, layout::WriteOutcome::kLanded));
      ticket.is_settled = true;
    } else if (!ticket.is_settled && (is_last || item.refused_at_once)) {
      // Another copy may still be claimed, so its refusal is no word about the ticket.
      const bool is_torn = ticket.best == WriteResult::kTorn && !item.refused_at_once;
      words.completed.push_back(completion(
          epoch, id, is_torn ? layout::WriteOutcome::kUnknown : layout::WriteOutcome::kRefused));
      if (is_torn) {
        words.completed.back().torn = true;
        words.quiet.push_back(id);
      }
      words.completed.back().fenced = !is_torn && ticket.best == WriteResult::kFenced;
      ticket.is_settled = true;
    }
    if (is_last) {
      session.tickets.erase(found);
    }
  }
}

void FabricSource::leave_lane(Session& session, const Frame& frame) {
  if (frame.lane < session.lanes.size() && session.lanes[frame.lane].serial == frame.lane_serial) {
    std::erase(session.lanes[frame.lane].frames, frame.number);
    depart_next(session, frame.lane);
  }
}

// --- processes ---

void FabricSource::process_died(ProcessKey process) {
  for (auto& [epoch, session] : sessions_) {
    if (session.target == process && !session.target_open) {
      end_unserved(epoch);
    }
    target_gone(process, epoch);
    if (session.source != process) {
      continue;
    }
    const bool was_open = std::exchange(session.source_open, false);
    session.queue.clear();
    session.tickets.clear();
    for (const std::uint64_t number : frames_of(epoch)) {
      Frame* frame = context_.find(number);
      if (frame == nullptr) {
        session.frames.erase(number);
      } else if (frame->departed == 0 || frame->has_ended) {
        session.frames.erase(number);
        context_.erase(number);
      } else {
        orphan(session, *frame);
      }
    }
    if (was_open && session.target_open) {
      context_.world.agenda.after(FabricContext::around(kNotice, context_.latency),
                                  [this, epoch = epoch, target = session.target] {
                                    fail_lane(target, epoch, "the source closed the lane", false);
                                  });
    }
  }
}

// Nobody is left to be told. Bytes that had not left yet are the kernel's or the device's by now,
// or they never leave.
void FabricSource::orphan(Session& session, Frame& frame) {
  const bool outlives =
      context_.fates.below(1'000) < context_.world.profile.rate_of(Fault::kWriteOutlives) &&
      context_.world.faults.may(Fault::kWriteOutlives);
  frame.is_answered = true;
  if (outlives || context_.kind == TransportKind::kShared) {
    capture(frame, frame.size());  // a mapping outlives its process, too
  }
  if (!outlives) {
    receiver_->lane_lost(frame);
    return;
  }
  frame.is_orphan = true;
  leave_lane(session, frame);
  if (!frame.is_complete()) {
    plan_depart(frame, frame.fate.stall);
  }
}

void FabricSource::process_resumed(ProcessKey process) {
  for (auto& [epoch, session] : sessions_) {
    if (session.source != process) {
      continue;
    }
    for (const std::uint64_t number : std::exchange(session.held_departs, {})) {
      if (const Frame* frame = context_.find(number); frame != nullptr) {
        plan_depart(*frame, FabricContext::around(kSoon, context_.latency));
      }
    }
    plan_pump(epoch);
  }
}

// --- for the oracle ---

bool FabricSource::reads_source(const WriteName& name) const {
  const auto found = sessions_.find(name.session);
  if (found == sessions_.end()) {
    return false;
  }
  const Session& session = found->second;
  const bool queued = std::ranges::any_of(session.queue, [&](const layout::Write& write) {
    return write.slot == name.slot && write.generation == name.generation;
  });
  return queued || std::ranges::any_of(session.frames, [&](std::uint64_t number) {
           const Frame* frame = context_.find(number);
           if (frame == nullptr || frame->name != name || frame->is_orphan || frame->has_ended ||
               all_settled(session, *frame)) {
             return false;
           }
           return context_.kind == TransportKind::kShared
                      ? frame->captured < frame->size()
                      : !frame->is_complete() && !frame->lane_lost;
         });
}

// A second copy whose tickets the first one has settled copies nothing any more.
bool FabricSource::all_settled(const Session& session, const Frame& frame) {
  return std::ranges::all_of(frame.items, [&](const FrameItem& item) {
    const auto found = session.tickets.find(item.write.ticket);
    return found == session.tickets.end() || found->second.is_settled;
  });
}

std::uint64_t FabricSource::writes_under_way() const {
  std::uint64_t count = 0;
  for (const auto& [epoch, session] : sessions_) {
    count += session.queue.size();
    for (const std::uint64_t number : session.frames) {
      const Frame* frame = context_.find(number);
      count += frame == nullptr || frame->has_ended ? 0 : frame->items.size();
    }
  }
  return count;
}

}  // namespace kvferry::sim
