// The run as the named events of spec/automata, each handed to the automata that the spec proves
// for the models: what they reject is a step of the code that no model takes (T1). Reads facts
// where they arise, at the protocols' sinks and mailboxes and where the fabric touches bytes; asks
// no protocol.
//
// A fact is not always at hand when it happens, so some events are placed:
//   - What a turn takes in is told before the protocol's step, which handles it in order with its
//   own
//     orders in between. That is early, and every automaton allows more when it hears early, but
//     for abort-received, which forbids: it waits for the writer's Drained or the end of the turn.
//     fenced-received is told again at the end of the turn, for the tickets that the writer posted
//     in it, before it came to the word.
//   - all-landed and committed are due when the last ticket of a writer's whole slice has landed,
//   since
//     the core makes Done there; its frame may leave much later, after the room's end.
//   - gave-up by decode's word is told when the source is released on the strength of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/action.h"
#include "core/event.h"
#include "core/room_key.h"
#include "sim/automata/automaton_set.h"

namespace kvferry::sim {

class Node;
class World;

class Chronicle {
 public:
  explicit Chronicle(World& world);

  // The first event that an automaton did not allow. Nothing is told to them after it.
  const std::optional<Rejection>& rejection() const { return rejection_; }
  std::uint64_t event_count() const { return event_count_; }

  // --- processes ---
  void process_died(const Node& node);

  // --- what a node's protocol is about to take in, and that it has ---
  void turn_begins(const Node& node, std::span<const core::Event> events);
  void turn_ends();

  // --- what it orders ---
  void session_opened(const Node& node, SessionEpoch session);
  void attempt_named(core::ReceiverId receiver, AttemptId attempt);
  void grant_opened(const Node& decode, const core::OpenGrant& open);
  void moved(core::Machine machine,
             std::uint8_t trigger);  // just before the order that it is about
  void fence_ordered(const Node& decode, GrantId grant);
  // won: the cell was not ended by the caller before.
  void terminal_published(const Node& node, std::uint64_t owner, KvPoll status, bool won);
  void pages_released(const Node& node, const core::ReleasePages& released);
  void writes_posted(const Node& prefill, const core::PostWrites& post);
  void frame_sent(const wire::Frame& frame);
  void counted(std::string_view counter);

  // --- what the fabric does to bytes ---
  void bytes_landed(SessionEpoch session, TicketId ticket, std::uint64_t length);
  void source_read(SessionEpoch session, TicketId ticket);

 private:
  // The events by number, so that no name is looked up during a run.
  struct Names {
    explicit Names(const AutomatonSet& set);
    TraceEvent grant, grant_sent, covered, fence_ordered, fence_done, done_received,
        drained_received, abort_sent, consumed_sent, torn_down, succeeded, failed, released,
        life_ended, post, land, landed, refused, unknown, quiet, grant_received, abort_received,
        consumed_received, fenced_received, all_landed, done_sent, drained_sent, opened, committed,
        gave_up, sender_succeeded, sender_failed, source_released, source_posted, source_read,
        source_settled;
  };
  // Keys of the trace are places in these tables, plus one.
  struct GrantFacts {
    bool has_ended = false;
    bool is_covered = false;
    std::uint64_t missing_bytes = 0;  // of all writers' slices
    std::vector<std::size_t> writers;
  };
  struct WriterFacts {
    std::size_t grant = 0;
    std::uint64_t missing_bytes = 0;  // of its slice: its core was not told yet that they landed
    std::optional<std::size_t> sender;
    std::optional<core::RoomKey> key;  // of the Grant that it took
    bool all_landed = false;
    bool is_committed = false;
    bool has_fenced_word = false;  // decode said that it fenced
    bool abort_is_due = false;
  };
  struct SenderFacts {
    bool has_ended = false;
    bool is_released = false;
    std::map<std::size_t, std::uint64_t> reading;  // by writer: tickets that are not settled
  };
  struct TicketFacts {
    std::size_t writer = 0;
    std::uint64_t length = 0;
    std::uint64_t number = 0;  // of all sessions' tickets
    std::uint64_t in_page = 0;
    bool is_settled = false;
    bool has_landed = false;
  };
  // Tickets of a session are numbered from 1.
  using Tickets = std::vector<TicketFacts>;
  struct Session {
    const Node* prefill = nullptr;
    const Node* decode = nullptr;
    std::map<std::pair<GrantSlot, Generation>, std::size_t> writers;
    std::map<AttemptId, std::size_t> by_attempt;
    Tickets tickets;
  };
  using PartKey = std::pair<const Node*, std::uint64_t>;

  void tell(TraceEvent event, const TraceKey& key);
  void tell_grant(TraceEvent event, std::size_t grant) { tell(event, {grant + 1}); }
  void tell_writer(TraceEvent event, std::size_t writer);
  void tell_ticket(TraceEvent event, std::size_t writer, TicketId ticket);
  void tell_sender(TraceEvent event, std::size_t sender) { tell(event, {sender + 1}); }

  std::optional<std::size_t> writer_at(SessionEpoch session, GrantSlot slot, Generation generation);
  TicketFacts* ticket_at(SessionEpoch session, TicketId ticket);
  void take(const Node& node, const core::Event& event);
  void take(const Node& node, const wire::Frame& frame);
  void take_from_decode(SessionEpoch session, const wire::Message& message);
  void take_from_prefill(SessionEpoch session, const wire::Message& message);
  void take(const layout::WriteCompletion& completion);
  void settle(TicketFacts& facts);
  void count_landed(WriterFacts& writer, std::size_t number, std::uint64_t length);
  void torn_down(SessionEpoch session);
  void cover_if_full(std::size_t grant);
  void find_sender(const Node& prefill, WriterFacts& writer);
  void abort_received(std::size_t writer);
  void done_leaves(std::size_t writer);
  void source_released(std::size_t sender);

  World& world_;
  AutomatonSet automata_;
  const Names names_;
  const bool local_fence_;
  std::optional<Rejection> rejection_;
  std::uint64_t event_count_ = 0;

  std::vector<GrantFacts> grants_;
  std::vector<WriterFacts> writers_;
  std::vector<SenderFacts> senders_;
  std::uint64_t ticket_count_ = 0;
  std::unordered_map<SessionEpoch, Session> sessions_;
  std::map<PartKey, std::size_t> grant_by_id_;  // GrantId's value
  std::map<PartKey, std::size_t> grant_by_receiver_;
  std::map<PartKey, std::size_t> sender_by_id_;
  std::map<std::pair<const Node*, core::RoomKey>, std::vector<std::size_t>> senders_by_key_;

  // --- between two calls of one turn ---
  std::uint64_t receiver_ = 0;  // whose attempt was numbered last
  AttemptId attempt_;
  bool is_coverage_full_ = false;
  bool is_release_ = false;
  bool gives_source_up_ = false;
  std::vector<std::size_t> aborts_due_;      // writers
  std::vector<std::size_t> fenced_in_turn_;  // writers
};

}  // namespace kvferry::sim
