#include "scenario.h"

#include <utility>

namespace kvferry::core::fake {

Options quick_options() {
  Options options;
  options.bootstrap_timeout_ms = 1'000;
  options.input_timeout_ms = 2'000;
  options.transfer_timeout_ms = 3'000;
  options.unopened_room_timeout_ms = 800;
  options.source_hold_timeout_ms = 500;
  options.fence_timeout_ms = 400;
  options.lane_failure_limit = 3;
  return options;
}

std::string stage_name(Stage stage) {
  switch (stage) {
    case Stage::kUnresolved:
      return "Unresolved";
    case Stage::kGreeting:
      return "Greeting";
    case Stage::kWaitingForPages:
      return "WaitingForPages";
    case Stage::kWaitingForSender:
      return "WaitingForSender";
    case Stage::kWaitingForChunks:
      return "WaitingForChunks";
    case Stage::kWriting:
      return "Writing";
    case Stage::kFencing:
      return "Fencing";
    case Stage::kWaitingForDone:
      return "WaitingForDone";
    case Stage::kWaitingForConsumed:
      return "WaitingForConsumed";
  }
  return "?";
}

std::uint64_t Scenario::receive(Process& decode, RoomName room, std::vector<std::uint32_t> pages,
                                std::int64_t aux_slot, std::uint32_t expected_grants) {
  const std::uint64_t receiver = decode.open(room);
  decode.init_receiver(receiver);
  decode.give(receiver, std::move(pages), aux_slot, expected_grants);
  return receiver;
}

std::uint64_t Scenario::send(Process& prefill, RoomName room, std::vector<std::uint32_t> pages,
                             std::int64_t aux_slot) {
  const std::uint64_t sender = prefill.open(room);
  prefill.init_sender(sender, static_cast<std::uint32_t>(pages.size()), aux_slot);
  prefill.send(sender, std::move(pages));
  return sender;
}

RoomPair Scenario::transfer(RoomName room) {
  RoomPair pair;
  pair.receiver = receive(d(), room, {1, 2, 3}, 0);
  pair.sender = send(p(), room, {4, 5, 6}, 0);
  world.run_for(100);
  return pair;
}

RoomPair Scenario::reach(Stage stage, RoomName room) {
  constexpr std::uint32_t kAlways = 1'000'000;
  switch (stage) {
    case Stage::kUnresolved:
      d().registry_answers = false;
      break;
    case Stage::kGreeting:
      world.links().drop<wire::Hello>(kAlways);
      break;
    case Stage::kWriting:
      world.fabric().on_write = [](const PostedWrite&) { return WriteFate::kHold; };
      break;
    case Stage::kFencing:
      world.fabric().hold_fences = true;
      break;
    case Stage::kWaitingForDone:
      world.links().drop<wire::Done>(kAlways);
      break;
    case Stage::kWaitingForConsumed:
      world.links().drop<wire::Consumed>(kAlways);
      break;
    default:
      break;
  }
  RoomPair pair;
  pair.receiver = d().open(room);
  d().init_receiver(pair.receiver);
  if (stage != Stage::kWaitingForPages) {
    d().give(pair.receiver, {1, 2, 3}, 0);
  }
  if (stage != Stage::kWaitingForSender) {
    pair.sender = p().open(room);
    p().init_sender(pair.sender, 3, 0);
    if (stage != Stage::kWaitingForChunks) {
      p().send(pair.sender, {4, 5, 6});
    }
  }
  world.run_for(50);
  return pair;
}

void Scenario::heal() {
  for (Process* process : world.living()) {
    process->let_registry_answer();
  }
  world.links().on_frame = nullptr;
  world.links().unblock();
  world.links().allow_all();
  world.links().release_held();
  world.fabric().on_write = nullptr;
  world.fabric().hold_fences = false;
  world.fabric().release_held();
  world.fabric().release_fences();
}

void Scenario::expect_rest() {
  heal();
  for (Process* process : world.living()) {
    for (const auto& [owner, cell] : process->cells()) {
      process->clear(owner);
    }
  }
  world.run_for(3'000);
  world.fabric().say_quiet();
  world.run_for(3'000);
  for (Process* process : world.living()) {
    SCOPED_TRACE(process->name());
    const Snapshot view = process->snapshot();
    EXPECT_EQ(view.room_count, 0U);
    EXPECT_EQ(view.rooms.size(), 0U)
        << view.rooms.front().state << " " << view.rooms.front().grant_state;
    EXPECT_EQ(view.grants, 0U);
    EXPECT_EQ(view.quarantined_pages, 0U);
    EXPECT_EQ(view.tickets, 0U);
    EXPECT_EQ(view.granted_pages_total, view.returned_pages_total);
    EXPECT_EQ(view.held_pages_total, view.released_pages_total);
    EXPECT_TRUE(view.readiness_problems.empty());
    EXPECT_TRUE(process->pages_out().empty());
    for (const PeerView& peer : view.peers) {
      EXPECT_EQ(peer.queued_messages, 0U);
      EXPECT_EQ(peer.unacknowledged, 0U);
    }
  }
}

}  // namespace kvferry::core::fake
