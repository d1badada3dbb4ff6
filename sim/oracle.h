// Knows what really happened, byte by byte, and compares it with what the protocols claim. Nothing
// here is read by them. The first violation ends the run.
//
// Ownership: every page, aux slot and state slot of a decode place is free, given (the caller
// handed it to send_metadata), granted (to one grant) or the caller's (after a Success that it
// reads). Only a granted one may be written, and only under its grant (S1, S3). A source page may
// be read while its sender holds it, or after the sender gave it up, and then it never counts (S2).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/action.h"
#include "core/room_key.h"
#include "layout/coverage.h"
#include "sim/node.h"

namespace kvferry::sim {

struct Violation {
  std::string invariant;  // "S1", as docs/invariants.md names it
  std::string what;
  std::uint64_t event = 0;
  Instant at;
};

// The name under which a write reaches a target.
struct WriteName {
  SessionEpoch session;
  GrantSlot slot;
  Generation generation;
  friend auto operator<=>(const WriteName&, const WriteName&) = default;
};

class Oracle {
 public:
  explicit Oracle(World& world) : world_(world) {}

  bool has_failed() const { return violation_.has_value(); }
  const std::optional<Violation>& violation() const { return violation_; }
  void violate(std::string_view invariant, std::string what);
  // For scenes that want to see what a violation of this one leads to.
  void overlook(std::string_view invariant) { overlooked_ = invariant; }

  // --- processes ---
  void process_started(Node& node);
  // Its memory is its engine's no more: what its rooms held is free for the next life.
  void process_died(Node& node);

  // --- what a node's protocol ordered or was told (node.cc) ---
  void pages_given(Node& decode, std::uint64_t receiver, const core::MetadataGiven& metadata);
  void attempt_named(Node& decode, std::uint64_t receiver, AttemptId attempt);
  void status_published(Node& node, std::uint64_t owner, KvPoll from, KvPoll to);
  // After the cell was taken; decode's Success compares every byte with its source (S4).
  void terminal_published(Node& node, std::uint64_t owner);
  void grant_opened(Node& decode, const core::OpenGrant& open);
  // For a room that lives coverage is full: every byte must really be there (S4).
  void fence_ordered(Node& decode, GrantId grant);
  void prefix_published(Node& prefill, std::uint64_t sender, std::uint32_t prefix_pages);
  // At the end of the turn in which the session ended here: its rooms have ended, too (rule 7).
  void session_over(Node& node, SessionEpoch session);
  void pages_released(Node& node, const core::ReleasePages& released);
  void writes_posted(Node& prefill, const core::PostWrites& post);
  void frame_sent(Node& from, const wire::Frame& frame);
  void event_taken(Node& node, const core::Event& event);  // just before the protocol sees it
  void session_opened(Node& node, const core::OpenDataSession& open);

  // After a turn that opened rooms with the quarantine at its cap, before and after (node.cc).
  void check_cap(const Node& decode, std::span<const core::Event> events);

  // --- what the fabric does to bytes ---
  // Just before bytes of a write change at the target. False, and a violation, when they must not.
  bool writing(Place& target, const WriteName& name, RegionId region, std::uint32_t item,
               std::uint64_t offset, std::uint64_t length);
  void reading(Place& source, const WriteName& name, RegionId region, std::uint64_t offset,
               std::uint64_t length);
  // The fabric has reported the fence: from here on nothing under the grant may be written.
  void fence_done(Node& decode, GrantId grant);

  // --- the end ---
  // Links and processes work from here on: whoever is told late now was not told.
  void healed();
  void check_aborts();
  // Everything that must be gone when all rooms are cleared and the world is quiet (R1).
  void check_quiescence(Node& node, bool quarantine_allowed);

 private:
  enum class Use : std::uint8_t { kFree, kGiven, kGranted, kCaller };
  struct Owner {
    Use use = Use::kFree;
    std::uint64_t receiver = 0;
    GrantId grant;
  };
  // One decode place's pages, aux slots and state slots.
  struct Holdings {
    std::vector<Owner> pages;
    std::vector<Owner> aux;
    std::vector<Owner> state;
    std::vector<std::vector<Owner>*> by_region;
  };
  struct GrantFacts {
    const Node* decode = nullptr;
    std::uint64_t receiver = 0;
    AttemptId attempt;
    GrantId grant;
    std::vector<core::GrantedSlot> slots;
    bool fence_done = false;
  };
  using GrantKey = std::pair<const Node*, GrantId>;
  struct ReceiverFacts {
    core::MetadataGiven metadata;
    std::optional<GrantId> grant;
  };
  struct SenderFacts {
    Instant opened;
    bool end_seen = false;  // its core knows that it has ended
    bool released = false;
    std::vector<WriteName> names;  // of the grants that it serves
  };
  // One writer under one grant: what its own protocol was told of its tickets, and what it said.
  struct WriterFacts {
    const Node* prefill = nullptr;
    core::RoomKey key;
    std::uint64_t sender = 0;  // 0: not known yet
    std::uint64_t posted = 0;
    std::uint64_t landed = 0;
    std::uint64_t refused = 0;
    Instant granted;                // when its core first saw the grant
    bool landed_after_end = false;  // some ticket, when its core knew that the sender had ended
    bool done_sent = false;
    bool done_received = false;
    bool fenced_received = false;
  };
  struct Ends {
    const Node* prefill = nullptr;
    const Node* decode = nullptr;
  };
  using Ticket = std::pair<SessionEpoch, TicketId>;
  using PartKey = std::pair<const Node*, std::uint64_t>;

  // items: whatever lists pages, aux_slot and state_slots. Numbers that the place lacks are passed
  // over.
  template <typename Items, typename Visit>
  void for_each_owner(const Place& place, const Items& items, Visit visit) {
    Holdings& holdings = holdings_.at(place.index);
    for (const PageIndex page : items.pages) {
      if (page.value() < holdings.pages.size()) {
        visit(holdings.pages[page.value()]);
      }
    }
    if (items.aux_slot >= 0 && static_cast<std::size_t>(items.aux_slot) < holdings.aux.size()) {
      visit(holdings.aux[static_cast<std::size_t>(items.aux_slot)]);
    }
    for (const std::uint32_t slot : items.state_slots) {
      if (slot < holdings.state.size()) {
        visit(holdings.state[slot]);
      }
    }
  }
  WriterFacts& writer_of(const WriteName& name);
  void ticket_ended(const layout::WriteCompletion& completion);
  void ticket_landed(const Ticket& ticket);
  void check_word(const Ticket& ticket);
  void message_taken(Node& node, SessionEpoch session, const wire::Message& message);
  void done_leaves(Node& prefill, SessionEpoch session, const wire::Done& done);
  void failed_leaves(Node& prefill, SessionEpoch session, const wire::Failed& failed);
  void check_launch(Node& node, std::optional<EngineEpoch>& launch, EngineEpoch epoch);
  void check_success(Node& decode, std::uint64_t receiver);
  void check_content(Node& decode, const core::MetadataGiven& metadata, const ContentKey& key,
                     std::string_view when);
  void check_sender_success(Node& prefill, std::uint64_t sender);
  void check_deadline(Node& node, std::uint64_t owner);
  void check_told(Node& prefill, std::uint64_t sender);
  void decode_pages_released(Node& decode, const core::ReleasePages& released);
  void source_released(Node& prefill, const core::ReleasePages& released);

  World& world_;
  std::optional<Violation> violation_;
  std::string overlooked_;
  std::map<std::uint32_t, Holdings> holdings_;  // by place
  std::map<GrantKey, GrantFacts> grants_;
  std::map<WriteName, GrantKey> by_name_;
  std::map<WriteName, WriterFacts> writers_;
  std::map<std::pair<const Node*, core::RoomKey>, std::vector<std::uint64_t>> senders_by_key_;
  std::uint64_t granting_ = 0;  // the receiver whose attempt was numbered last
  AttemptId granting_attempt_;
  std::set<std::pair<SessionEpoch, AttemptId>> aborted_;  // Abort has reached the writer's core
  std::map<PartKey, ReceiverFacts> receivers_;
  std::map<PartKey, SenderFacts> senders_;
  std::map<PartKey, Instant> status_since_;
  std::map<SessionEpoch, Ends> sessions_;
  std::map<SessionEpoch, TicketId> last_ticket_;
  std::map<Ticket, WriteName> tickets_;  // not ended yet
  std::set<Ticket> landed_;              // at the target
  std::set<Ticket> refused_;             // told at the source
  std::map<std::pair<SessionEpoch, AttemptId>, WriteName> by_attempt_;
  std::set<std::pair<const Node*, AttemptId>> attempts_;
  std::optional<Instant> healed_at_;
};

}  // namespace kvferry::sim
