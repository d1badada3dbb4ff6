#include "sim/chronicle.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "sim/node.h"
#include "sim/world.h"

namespace kvferry::sim {

Chronicle::Names::Names(const AutomatonSet& set)
    : grant(set.event("grant")),
      grant_sent(set.event("grant-sent")),
      covered(set.event("covered")),
      fence_ordered(set.event("fence-ordered")),
      fence_done(set.event("fence-done")),
      done_received(set.event("done-received")),
      drained_received(set.event("drained-received")),
      abort_sent(set.event("abort-sent")),
      consumed_sent(set.event("consumed-sent")),
      torn_down(set.event("torn-down")),
      succeeded(set.event("succeeded")),
      failed(set.event("failed")),
      released(set.event("released")),
      life_ended(set.event("life-ended")),
      post(set.event("post")),
      land(set.event("land")),
      landed(set.event("landed")),
      refused(set.event("refused")),
      unknown(set.event("unknown")),
      quiet(set.event("quiet")),
      grant_received(set.event("grant-received")),
      abort_received(set.event("abort-received")),
      consumed_received(set.event("consumed-received")),
      fenced_received(set.event("fenced-received")),
      all_landed(set.event("all-landed")),
      done_sent(set.event("done-sent")),
      drained_sent(set.event("drained-sent")),
      opened(set.event("opened")),
      committed(set.event("committed")),
      gave_up(set.event("gave-up")),
      sender_succeeded(set.event("sender-succeeded")),
      sender_failed(set.event("sender-failed")),
      source_released(set.event("source-released")),
      source_posted(set.event("source-posted")),
      source_read(set.event("source-read")),
      source_settled(set.event("source-settled")) {}

Chronicle::Chronicle(World& world)
    : world_(world),
      automata_(AutomatonSet::of_transport(world.profile.transport_class().local_fence)),
      names_(automata_),
      local_fence_(world.profile.transport_class().local_fence) {}

void Chronicle::tell(TraceEvent event, const TraceKey& key) {
  if (rejection_) {
    return;
  }
  ++event_count_;
  world_.trace.line(LogLevel::kFull, world_.agenda.now(), "chronicle: {} {}",
                    automata_.events().name(event),
                    fmt::join(key.parts.begin(), key.parts.begin() + key.size, " "));
  rejection_ = automata_.step(event, key);
  if (rejection_) {
    world_.oracle.violate("T1",
                          fmt::format("automaton {}, {}, state {}, event {}", rejection_->automaton,
                                      rejection_->key, rejection_->state, rejection_->event));
  }
}

void Chronicle::tell_writer(TraceEvent event, std::size_t writer) {
  tell(event, {writers_[writer].grant + 1, writer + 1});
}

void Chronicle::tell_ticket(TraceEvent event, std::size_t writer, TicketId ticket) {
  tell(event, {writers_[writer].grant + 1, writer + 1, ticket.value()});
}

// What names nobody's grant is the oracle's business.
std::optional<std::size_t> Chronicle::writer_at(SessionEpoch session, GrantSlot slot,
                                                Generation generation) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return std::nullopt;
  }
  const auto writer = found->second.writers.find({slot, generation});
  return writer == found->second.writers.end() ? std::nullopt : std::optional(writer->second);
}

Chronicle::TicketFacts* Chronicle::ticket_at(SessionEpoch session, TicketId ticket) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || ticket.value() == 0 ||
      ticket.value() > found->second.tickets.size()) {
    return nullptr;
  }
  return &found->second.tickets[ticket.value() - 1];
}

// --- processes and turns ---

void Chronicle::process_died(const Node& node) {
  for (auto grant = grant_by_id_.lower_bound({&node, 0});
       grant != grant_by_id_.end() && grant->first.first == &node; ++grant) {
    grants_[grant->second].has_ended = true;
    tell_grant(names_.life_ended, grant->second);
  }
}

void Chronicle::turn_begins(const Node& node, std::span<const core::Event> events) {
  is_coverage_full_ = is_release_ = gives_source_up_ = false;
  for (const core::Event& event : events) {
    take(node, event);
  }
}

void Chronicle::turn_ends() {
  for (const std::size_t writer : std::exchange(aborts_due_, {})) {
    abort_received(writer);
  }
  for (const std::size_t writer : std::exchange(fenced_in_turn_, {})) {
    tell_writer(names_.fenced_received, writer);
  }
}

void Chronicle::abort_received(std::size_t writer) {
  if (std::exchange(writers_[writer].abort_is_due, false)) {
    tell_writer(names_.abort_received, writer);
  }
}

void Chronicle::take(const Node& node, const core::Event& event) {
  if (const auto* arrived = std::get_if<core::FrameArrived>(&event)) {
    take(node, arrived->frame);
  } else if (const auto* completed = std::get_if<core::WritesCompleted>(&event)) {
    for (const layout::WriteCompletion& completion : completed->completions) {
      take(completion);
    }
  } else if (const auto* quiet = std::get_if<core::WritesQuiet>(&event)) {
    for (const TicketId ticket : quiet->tickets) {
      if (TicketFacts* facts = ticket_at(quiet->session, ticket)) {
        tell_ticket(names_.quiet, facts->writer, ticket);
        settle(*facts);
      }
    }
  } else if (const auto* opened = std::get_if<core::SenderOpened>(&event)) {
    const std::size_t sender = senders_.size();
    senders_.emplace_back();
    sender_by_id_[{&node, opened->sender.value()}] = sender;
    senders_by_key_[{&node, {opened->room, opened->binding}}].push_back(sender);
    tell_sender(names_.opened, sender);
  } else if (const auto* fenced = std::get_if<core::FenceCompleted>(&event)) {
    const auto grant = grant_by_id_.find({&node, fenced->grant.value()});
    if (grant != grant_by_id_.end()) {
      tell_grant(names_.fence_done, grant->second);
    }
  } else if (const auto* torn = std::get_if<core::SessionTornDown>(&event)) {
    torn_down(torn->session);
  }
}

// What reaches a process that is no end of its session is no word to it: a former life's, for
// example.
void Chronicle::take(const Node& node, const wire::Frame& frame) {
  const auto session = sessions_.find(frame.session);
  if (session == sessions_.end()) {
    return;
  }
  for (const wire::Message& message : frame.messages) {
    if (session->second.prefill == &node) {
      take_from_decode(frame.session, message);
    } else if (session->second.decode == &node) {
      take_from_prefill(frame.session, message);
    }
  }
}

void Chronicle::take_from_decode(SessionEpoch session, const wire::Message& message) {
  if (const auto* grant = std::get_if<wire::Grant>(&message)) {
    if (const auto writer = writer_at(session, grant->slot, grant->generation)) {
      writers_[*writer].key = {grant->room, grant->binding};
      tell_writer(names_.grant_received, *writer);
      count_landed(writers_[*writer], *writer, 0);
    }
  } else if (const auto* abort = std::get_if<wire::Abort>(&message)) {
    const auto writer = writer_at(session, abort->slot, abort->generation);
    if (writer && !std::exchange(writers_[*writer].abort_is_due, true)) {
      aborts_due_.push_back(*writer);
    }
  } else if (const auto* consumed = std::get_if<wire::Consumed>(&message)) {
    const auto& attempts = sessions_[session].by_attempt;
    if (const auto writer = attempts.find(consumed->attempt); writer != attempts.end()) {
      tell_writer(names_.consumed_received, writer->second);
    }
  } else if (const auto* fenced = std::get_if<wire::Fenced>(&message)) {
    if (const auto writer = writer_at(session, fenced->slot, fenced->generation)) {
      writers_[*writer].has_fenced_word = true;
      tell_writer(names_.fenced_received, *writer);
      fenced_in_turn_.push_back(*writer);
    }
  }
}

void Chronicle::take_from_prefill(SessionEpoch session, const wire::Message& message) {
  if (const auto* done = std::get_if<wire::Done>(&message)) {
    if (const auto writer = writer_at(session, done->slot, done->generation)) {
      tell_writer(names_.done_received, *writer);
    }
  } else if (const auto* drained = std::get_if<wire::Drained>(&message)) {
    const auto writer = writer_at(session, drained->slot, drained->generation);
    if (writer && drained->clean) {
      tell_writer(names_.drained_received, *writer);
    }
  }
}

// --- decode's side ---

void Chronicle::session_opened(const Node& node, SessionEpoch session) {
  Session& ends = sessions_[session];
  (node.place().role == Role::kPrefill ? ends.prefill : ends.decode) = &node;
}

void Chronicle::attempt_named(core::ReceiverId receiver, AttemptId attempt) {
  receiver_ = receiver.value();
  attempt_ = attempt;
}

void Chronicle::grant_opened(const Node& decode, const core::OpenGrant& open) {
  const std::size_t number = grants_.size();
  GrantFacts& grant = grants_.emplace_back();
  grant_by_id_[{&decode, open.grant.value()}] = number;
  grant_by_receiver_[{&decode, receiver_}] = number;
  for (const core::GrantedSlot& slot : open.slots) {
    const std::size_t writer = writers_.size();
    WriterFacts& facts = writers_.emplace_back();
    facts.grant = number;
    facts.missing_bytes = slot.extent.total_bytes();
    grant.missing_bytes += slot.extent.total_bytes();
    grant.writers.push_back(writer);
    Session& session = sessions_[slot.session];
    session.writers[{slot.slot, slot.generation}] = writer;
    session.by_attempt[attempt_] = writer;
    tell_writer(names_.grant, writer);
  }
  cover_if_full(number);
}

void Chronicle::moved(core::Machine machine, std::uint8_t trigger) {
  if (machine == core::Machine::kGrant) {
    const auto what = static_cast<core::GrantTrigger>(trigger);
    is_coverage_full_ = is_coverage_full_ || what == core::GrantTrigger::kCoverageFull;
    is_release_ = is_release_ || what == core::GrantTrigger::kRelease;
  }
}

void Chronicle::fence_ordered(const Node& decode, GrantId grant) {
  const std::size_t number = grant_by_id_.at({&decode, grant.value()});
  if (std::exchange(is_coverage_full_, false)) {
    tell_grant(names_.covered, number);
  }
  tell_grant(names_.fence_ordered, number);
}

// A grant whose Success is published is the caller's at once; what comes back later is what the
// caller never fetched.
void Chronicle::terminal_published(const Node& node, std::uint64_t owner, KvPoll status, bool won) {
  const bool success = status == KvPoll::kSuccess;
  if (success && !won) {
    return;  // The core hears of it and fails the room.
  }
  if (node.place().role == Role::kPrefill) {
    const auto sender = sender_by_id_.find({&node, owner});
    if (sender != sender_by_id_.end()) {
      senders_[sender->second].has_ended = true;
      tell_sender(success ? names_.sender_succeeded : names_.sender_failed, sender->second);
    }
    return;
  }
  const auto found = grant_by_receiver_.find({&node, owner});
  if (found == grant_by_receiver_.end()) {
    return;
  }
  grants_[found->second].has_ended = true;
  tell_grant(success ? names_.succeeded : names_.failed, found->second);
  if (success) {
    tell_grant(names_.released, found->second);
  }
}

void Chronicle::pages_released(const Node& node, const core::ReleasePages& released) {
  if (node.place().role == Role::kPrefill) {
    const auto sender = sender_by_id_.find({&node, released.owner});
    if (sender != sender_by_id_.end()) {
      source_released(sender->second);
    }
    return;
  }
  // Else pages that never were in a grant, or a Success that nobody fetched.
  if (!std::exchange(is_release_, false)) {
    return;
  }
  const auto found = grant_by_receiver_.find({&node, released.owner});
  if (found != grant_by_receiver_.end()) {
    tell_grant(names_.released, found->second);
  }
}

void Chronicle::torn_down(SessionEpoch session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return;
  }
  for (const auto& [name, writer] : found->second.writers) {
    tell_writer(names_.torn_down, writer);
  }
}

// --- prefill's side ---

// Of the senders with the grant's room and binding the one that lives: a second one is refused
// while the first does.
void Chronicle::find_sender(const Node& prefill, WriterFacts& writer) {
  if (writer.sender || !writer.key) {
    return;
  }
  for (const std::size_t sender : senders_by_key_[{&prefill, *writer.key}]) {
    if (!senders_[sender].has_ended) {
      writer.sender = sender;
      return;
    }
  }
}

void Chronicle::writes_posted(const Node& prefill, const core::PostWrites& post) {
  Session& session = sessions_[post.session];
  for (const layout::Write& write : post.writes) {
    const auto writer = writer_at(post.session, write.slot, write.generation);
    if (!writer) {
      continue;
    }
    if (session.tickets.size() < write.ticket.value()) {
      session.tickets.resize(write.ticket.value());
    }
    TicketFacts& ticket = session.tickets[write.ticket.value() - 1];
    ticket = TicketFacts{*writer, write.length, ++ticket_count_};
    tell_ticket(names_.post, *writer, write.ticket);
    WriterFacts& facts = writers_[*writer];
    find_sender(prefill, facts);
    if (facts.sender) {
      ++senders_[*facts.sender].reading[*writer];
      tell(names_.source_posted, {*facts.sender + 1, ticket.number});
    }
  }
}

void Chronicle::take(const layout::WriteCompletion& completion) {
  TicketFacts* facts = ticket_at(completion.session, completion.ticket);
  if (facts == nullptr) {
    return;
  }
  switch (completion.outcome) {
    case layout::WriteOutcome::kLanded:
      tell_ticket(names_.landed, facts->writer, completion.ticket);
      if (!facts->is_settled && !std::exchange(facts->has_landed, true)) {
        count_landed(writers_[facts->writer], facts->writer, facts->length);
      }
      break;
    case layout::WriteOutcome::kRefused:
      tell_ticket(names_.refused, facts->writer, completion.ticket);
      break;
    case layout::WriteOutcome::kUnknown:
      tell_ticket(names_.unknown, facts->writer, completion.ticket);
      return;
  }
  settle(*facts);
}

void Chronicle::settle(TicketFacts& facts) {
  const auto sender = writers_[facts.writer].sender;
  if (!sender) {
    return;
  }
  if (!std::exchange(facts.is_settled, true)) {
    auto& reading = senders_[*sender].reading;
    if (const auto found = reading.find(facts.writer); --found->second == 0) {
      reading.erase(found);
    }
  }
  tell(names_.source_settled, {*sender + 1, facts.number});
}

// Done is due: the core makes it in the step that hears of the last landing.
void Chronicle::count_landed(WriterFacts& writer, std::size_t number, std::uint64_t length) {
  writer.missing_bytes -= std::min(writer.missing_bytes, length);
  if (writer.missing_bytes > 0 || std::exchange(writer.all_landed, true)) {
    return;
  }
  tell_writer(names_.all_landed, number);
  const bool lives = writer.sender && !senders_[*writer.sender].has_ended;
  writer.is_committed = lives || length == 0;  // without a byte to write there is nothing to commit
  if (lives) {
    tell_sender(names_.committed, *writer.sender);
  }
}

void Chronicle::done_leaves(std::size_t number) {
  WriterFacts& writer = writers_[number];
  if (!std::exchange(writer.is_committed, true) && writer.sender) {
    tell_sender(names_.committed, *writer.sender);
  }
  abort_received(number);
  tell_writer(names_.done_sent, number);
}

void Chronicle::counted(std::string_view counter) {
  gives_source_up_ = gives_source_up_ || counter == "sources_given_up";
}

// What is handed over after the release goes straight back, which is no event.
void Chronicle::source_released(std::size_t number) {
  SenderFacts& sender = senders_[number];
  if (std::exchange(sender.is_released, true)) {
    return;
  }
  const bool by_word =
      !sender.reading.empty() && std::ranges::all_of(sender.reading, [this](const auto& reading) {
        return writers_[reading.first].has_fenced_word;
      });
  if (std::exchange(gives_source_up_, false) || by_word) {
    tell_sender(names_.gave_up, number);
  }
  tell_sender(names_.source_released, number);
}

// --- links and bytes ---

void Chronicle::frame_sent(const wire::Frame& frame) {
  for (const wire::Message& message : frame.messages) {
    const auto name = [&](const auto& body) {
      return writer_at(frame.session, body.slot, body.generation);
    };
    if (const auto* grant = std::get_if<wire::Grant>(&message)) {
      if (const auto writer = name(*grant)) tell_writer(names_.grant_sent, *writer);
    } else if (const auto* abort = std::get_if<wire::Abort>(&message)) {
      if (const auto writer = name(*abort)) tell_writer(names_.abort_sent, *writer);
    } else if (const auto* done = std::get_if<wire::Done>(&message)) {
      if (const auto writer = name(*done)) done_leaves(*writer);
    } else if (const auto* drained = std::get_if<wire::Drained>(&message)) {
      if (const auto writer = name(*drained)) {
        abort_received(*writer);
        tell_writer(names_.drained_sent, *writer);
      }
    } else if (const auto* consumed = std::get_if<wire::Consumed>(&message)) {
      const auto& attempts = sessions_[frame.session].by_attempt;
      if (const auto writer = attempts.find(consumed->attempt); writer != attempts.end()) {
        tell_writer(names_.consumed_sent, writer->second);
      }
    }
  }
}

void Chronicle::bytes_landed(SessionEpoch session, TicketId ticket, std::uint64_t length) {
  TicketFacts* facts = ticket_at(session, ticket);
  if (facts == nullptr) {
    return;
  }
  tell_ticket(names_.land, facts->writer, ticket);
  const bool was_whole = facts->in_page >= facts->length;
  facts->in_page += length;
  if (!was_whole && facts->in_page >= facts->length) {
    const std::size_t grant = writers_[facts->writer].grant;
    grants_[grant].missing_bytes -= std::min(grants_[grant].missing_bytes, facts->length);
    cover_if_full(grant);
  }
}

// With a fence its order tells of coverage. Without one nobody does in time: it is full when all
// bytes are in the pages.
void Chronicle::cover_if_full(std::size_t number) {
  GrantFacts& grant = grants_[number];
  if (!local_fence_ && grant.missing_bytes == 0 && !grant.has_ended &&
      !std::exchange(grant.is_covered, true)) {
    tell_grant(names_.covered, number);
  }
}

void Chronicle::source_read(SessionEpoch session, TicketId ticket) {
  const TicketFacts* facts = ticket_at(session, ticket);
  const auto sender = facts == nullptr ? std::nullopt : writers_[facts->writer].sender;
  if (sender) {
    tell(names_.source_read, {*sender + 1, facts->number});
  }
}

}  // namespace kvferry::sim
