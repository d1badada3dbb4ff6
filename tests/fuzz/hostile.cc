#include "hostile.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "hostile_message.h"
#include "target.h"

namespace kvferry::fuzz {
namespace {

constexpr std::uint32_t kMostMessages = 3;
// Longer than every deadline of a room and of a session together.
constexpr Duration kEverything = milliseconds(4'000);
constexpr int kMostFencesAtEnd = 100;

// Mostly the peer that speaks in the session; else another one, a stranger or nobody.
std::string sender_key(Input& input, RoomWorld& world) {
  RoomNode& right = world.subject().role() == Role::kDecode ? world.prefill(0) : world.decode();
  switch (input.below(8)) {
    case 0:
      return world.prefill(1).key();
    case 1:
      return "key of a stranger";
    case 2:
      return {};
    default:
      return right.key();
  }
}

// The key of whoever the session is with, so that most frames are heard.
std::string key_of_session(RoomWorld& world, SessionEpoch session) {
  for (const std::size_t rank : {0U, 1U}) {
    const auto& sessions = world.prefill(rank).sessions;
    if (world.subject().role() == Role::kDecode &&
        std::ranges::find(sessions, session) != sessions.end()) {
      return world.prefill(rank).key();
    }
  }
  return {};
}

void hostile_frame(Input& input, RoomWorld& world) {
  core::FrameArrived arrived;
  const Names names = names_for(world);
  arrived.frame.session =
      input.below(4) == 0 ? SessionEpoch{} : SessionEpoch(input.near(names.session.value()));
  for (std::uint32_t count = 1 + input.below(kMostMessages); count > 0; --count) {
    arrived.frame.messages.push_back(hostile_message(input, world));
  }
  const std::string right = key_of_session(world, arrived.frame.session);
  arrived.sender_key = right.empty() || input.below(8) == 0 ? sender_key(input, world) : right;
  arrived.frame.sequence = input.near(world.next_sequence(names.session));
  arrived.frame.acknowledge = input.near(std::uint64_t{1});
  world.subject().step(world.now(), std::move(arrived));
}

void replay(Input& input, RoomWorld& world) {
  if (world.heard().empty()) {
    return;
  }
  core::FrameArrived again = world.heard()[input.byte() % world.heard().size()];
  again.frame.session = SessionEpoch(input.near(again.frame.session.value()));
  again.frame.sequence = input.near(again.frame.sequence);
  world.subject().step(world.now(), std::move(again));
}

void link_event(Input& input, RoomWorld& world) {
  const auto& peers = world.subject().peers;
  PeerId peer(1);
  if (!peers.empty()) {
    peer =
        std::next(peers.begin(), input.byte() % static_cast<std::ptrdiff_t>(peers.size()))->first;
  }
  peer = PeerId(input.near(peer.value()));
  if (input.coin()) {
    world.subject().step(world.now(), core::LinkUp{peer});
  } else {
    world.subject().step(world.now(),
                         core::LinkDown{peer, static_cast<core::LinkDown::Why>(input.below(4))});
  }
}

layout::Landing near_landing(Input& input, RoomWorld& world) {
  const Names names = names_for(world);
  layout::Landing landing;
  landing.session = names.session;
  landing.slot = names.slot;
  landing.generation = names.generation;
  const std::size_t rank = input.below(2);
  if (const auto& posted = world.prefill(rank).posted; !posted.empty()) {
    const layout::Write& write = posted[input.byte() % posted.size()];
    landing = {landing.session,     write.slot,        write.generation,     write.ticket,
               write.target_region, write.target_item, write.offset_in_item, write.length};
    const auto& sessions = world.prefill(rank).sessions;
    landing.session = sessions.empty() ? names.session : sessions.back();
  }
  landing.session = SessionEpoch(input.near(landing.session.value()));
  landing.slot = GrantSlot(input.near(landing.slot.value()));
  landing.generation = Generation(input.near(landing.generation.value()));
  landing.item = input.near(landing.item);
  landing.offset_in_item = input.near(landing.offset_in_item);
  landing.length = input.near(landing.length);
  return landing;
}

// A ticket of the subject's, or one near it.
TicketId near_ticket(Input& input, RoomWorld& world) {
  const auto& posted = world.subject().posted;
  const TicketId right = posted.empty() ? TicketId(1) : posted[input.byte() % posted.size()].ticket;
  return TicketId(input.near(right.value()));
}

// Late, repeated and foreign completions. What the contract rules out (D1: a ticket that lands
// after it was quiet) is included: the core must stay sound, whatever the transport's threads
// deliver.
void transport_event(Input& input, RoomWorld& world) {
  RoomNode& subject = world.subject();
  const Names names = names_for(world);
  const SessionEpoch session(input.near(names.session.value()));
  switch (input.below(6)) {
    case 0:
      subject.step(world.now(), core::WritesLanded{{near_landing(input, world)}});
      return;
    case 1:
      subject.step(world.now(), core::WriteTorn{near_landing(input, world)});
      return;
    case 2: {
      // Never asked for: those that were end through finish_fence(), once each (D5).
      const GrantId grant(input.near(subject.grants.empty() ? 1 : subject.grants.back().value()));
      if (!subject.was_fenced(grant)) {
        subject.step(world.now(), core::FenceCompleted{grant});
      }
      return;
    }
    case 3:
      subject.step(world.now(),
                   core::WritesCompleted{{{session, near_ticket(input, world),
                                           static_cast<layout::WriteOutcome>(input.below(3))}}});
      return;
    case 4:
      subject.step(world.now(), core::WritesQuiet{session, {near_ticket(input, world)}});
      return;
    default:
      subject.step(
          world.now(),
          core::LaneFailed{
              session,
              Failure{FailureCode::kPeerLost, FailureWhere::kPath, "a lane failed", {}, -1},
              input.below(4) == 0});
  }
}

std::uint64_t open_room(Input& input, RoomWorld& world) {
  // From a small set, so that numbers and bindings collide.
  const RoomId room(kRoom.value() + input.below(2));
  return world.subject().open(world.now(), room, Binding{1, kBinding.low + input.below(2)});
}

void caller_event(Input& input, RoomWorld& world) {
  RoomNode& subject = world.subject();
  const bool decode = subject.role() == Role::kDecode;
  if (subject.owners() == 0 || input.below(6) == 0) {
    open_room(input, world);
    return;
  }
  const std::uint64_t owner = 1 + input.byte() % subject.owners();
  const std::uint32_t pages = input.below(5);
  switch (input.below(5)) {
    case 0:
      subject.abort(world.now(), owner);
      return;
    case 1:
      subject.clear(world.now(), owner);
      return;
    case 2:
      decode ? subject.name_prefill(world.now(), owner)
             : subject.init_sender(world.now(), owner, pages);
      return;
    case 3:
      decode ? subject.give_metadata(world.now(), owner, pages, input.below(3))
             : subject.send(world.now(), owner, pages);
      return;
    default:
      if (input.below(8) == 0) {
        subject.step(world.now(),
                     core::StopRequested{Failure{
                         FailureCode::kShuttingDown, FailureWhere::kLocal, "stop", {}, -1}});
      } else if (decode) {
        subject.step(world.now(), core::PairsWanted{{world.prefill(input.below(2)).row()}});
      }
  }
}

void pass_time(Input& input, RoomWorld& world) {
  constexpr Duration kSteps[] = {milliseconds(1),   milliseconds(20),   milliseconds(60),
                                 milliseconds(120), milliseconds(250),  milliseconds(450),
                                 milliseconds(700), milliseconds(2'000)};
  world.advance(world.subject(), kSteps[input.below(8)]);
}

void honest_progress(Input& input, RoomWorld& world) {
  RoomNode& subject = world.subject();
  const std::size_t rank = input.below(2);
  switch (input.below(8)) {
    case 0:
      world.deliver_frame(subject);
      return;
    case 1:
      world.deliver_frame(subject.role() == Role::kDecode ? world.prefill(rank) : world.decode());
      return;
    case 2:
      world.finish_fence(world.decode());
      return;
    case 3:
      world.land_write(world.prefill(rank), static_cast<layout::WriteOutcome>(input.below(3)));
      return;
    case 4:
      world.land_all(world.prefill(rank));
      return;
    case 5:
      world.answer_query(world.decode());
      world.answer_dial(subject);
      return;
    case 6:
      if (!subject.frames.empty()) {
        subject.frames.pop_front();  // lost
      }
      return;
    default:
      world.exchange();
  }
}

}  // namespace

void act(Input& input, RoomWorld& world) {
  switch (input.below(12)) {
    case 0:
      replay(input, world);
      return;
    case 1:
      link_event(input, world);
      return;
    case 2:
    case 3:
      transport_event(input, world);
      return;
    case 4:
    case 5:
      caller_event(input, world);
      return;
    case 6:
      pass_time(input, world);
      return;
    case 7:
      honest_progress(input, world);
      return;
    default:
      hostile_frame(input, world);
  }
}

void check_end(RoomWorld& world, bool local_fence) {
  RoomNode& subject = world.subject();
  const auto end_fences = [&] {
    for (int fences = 0; world.finish_fence(subject); ++fences) {
      require(fences < kMostFencesAtEnd, "fences come to an end");
    }
  };
  end_fences();
  world.advance(subject, kEverything);
  end_fences();
  const core::Snapshot snapshot = subject.snapshot(world.now());
  require(snapshot.room_count == 0, "L1: every room ends");
  if (subject.role() == Role::kPrefill) {
    require(snapshot.held_pages_total == snapshot.released_pages_total,
            "R1: every source page is back");
  } else if (local_fence) {
    require(snapshot.grants == 0, "R1: every grant is released");
    require(snapshot.granted_pages_total == snapshot.returned_pages_total,
            "R1: every granted page is back");
    require(snapshot.quarantined_pages == 0, "L2: quarantine is empty");
  }
}

}  // namespace kvferry::fuzz
