// What is checked before bytes may move: the caller's pages on decode, every number of a grant on
// prefill, and that the grants of one sender belong together.
#include <gtest/gtest.h>

#include <algorithm>

#include "scenario.h"

namespace kvferry::core::fake {
namespace {

constexpr RegionId kStateRegion{3};
constexpr std::uint32_t kStateBytes = 24;

void add_state_region(wire::Introduction& self) {
  self.layout.regions.push_back({RegionKind::kState, 0, kStateBytes, 4, MemoryKind::kHost});
}

class GrantChecks : public Scenario {
 protected:
  void engines_with_state() {
    world.add("p0", {Role::kPrefill, 0, 1, 32, options_, {}, add_state_region});
    world.add("d0", {Role::kDecode, 0, 1, 32, options_, {}, add_state_region});
  }
  // A sender that waits for its grant, and a grant for it that is sound until somebody changes it.
  std::uint64_t waiting_sender(std::int64_t aux_slot = 0) {
    const std::uint64_t sender = send(p(), name_room(2), {4, 5, 6}, aux_slot);
    world.run_for(10);
    return sender;
  }
  wire::Grant sound_grant() {
    wire::Grant grant;
    grant.room = name_room(2).room;
    grant.binding = name_room(2).binding;
    grant.attempt = AttemptId(500);
    grant.decode_engine_epoch = d().self().engine_epoch;
    grant.slot = GrantSlot(40);
    grant.generation = Generation(40);
    grant.expected_grants = 1;
    grant.pages = {PageIndex(11), PageIndex(12), PageIndex(13)};
    grant.aux_slot = 1;
    return grant;
  }
  void expect_refused(const wire::Grant& grant, std::uint64_t sender, FailureCode code,
                      const std::string& text) {
    const std::uint64_t posted = world.fabric().writes_posted();
    world.links().forge(d(), p(), grant);
    world.run_for(20);
    expect_failed(p(), sender, code);
    EXPECT_NE(p().cause(sender).find(text), std::string::npos) << p().cause(sender);
    EXPECT_EQ(world.fabric().writes_posted(), posted) << "not one byte of it was written";
    EXPECT_EQ(world.links().last<wire::Failed>().attempt, grant.attempt);
    EXPECT_EQ(world.links().last<wire::Drained>().attempt, grant.attempt);
    expect_rest();
  }
};

TEST_F(GrantChecks, StateGoesWithTheLastChunk) {
  engines_with_state();
  const auto source = p().memory().item(kStateRegion, 3);
  std::ranges::fill(source, std::byte{0x5A});
  const std::uint64_t receiver = d().open(name_room(1));
  d().init_receiver(receiver);
  d().give(receiver, {1, 2}, 0, 1, 0, {2});
  const std::uint64_t sender = p().open(name_room(1));
  p().init_sender(sender, 2, 0);
  p().send(sender, {4, 5}, {3});
  world.run_for(50);
  expect_success(d(), receiver);
  expect_success(p(), sender);
  EXPECT_TRUE(std::ranges::equal(d().memory().item(kStateRegion, 2), source));
  for (const std::uint32_t other : {0U, 1U, 3U}) {
    const auto slot = d().memory().item(kStateRegion, other);
    EXPECT_TRUE(std::ranges::all_of(slot, [](std::byte each) { return each == kCanary; }))
        << "state slot " << other << " was not granted";
  }
  expect_rest();
}

TEST_F(GrantChecks, PagesSlotsAndStateMustBeThisRanksOwn) {
  engines_with_state();
  transfer(name_room(9));
  struct Case {
    std::vector<std::uint32_t> pages;
    std::int64_t aux_slot;
    std::vector<std::uint32_t> state_slots;
    std::string text;
  };
  const std::vector<Case> cases{
      {{8, 32}, -1, {}, "page 32 of 32"},
      {{8}, 8, {}, "aux slot 8 of 8"},
      {{8}, -1, {0, 4}, "state slot 4 of 4"},
  };
  const std::size_t grants = world.links().sent<wire::Grant>();
  for (const Case& each : cases) {
    const std::uint64_t receiver = d().open(name_room(1));
    d().init_receiver(receiver);
    d().give(receiver, each.pages, each.aux_slot, 1, 0, each.state_slots);
    world.run_for(20);
    expect_failed(d(), receiver, FailureCode::kInvalidArgument);
    EXPECT_NE(d().cause(receiver).find(each.text), std::string::npos) << d().cause(receiver);
    EXPECT_EQ(d().cell(receiver).released.size(), 1U) << "they go straight back";
  }
  EXPECT_EQ(world.links().sent<wire::Grant>(), grants);
  expect_rest();
}

TEST_F(GrantChecks, AGrantIsOneOfAtLeastOne) {
  engines();
  transfer(name_room(1));
  const std::uint64_t sender = waiting_sender();
  wire::Grant grant = sound_grant();
  grant.expected_grants = 0;
  expect_refused(grant, sender, FailureCode::kInvalidArgument, "one of 0");
}

TEST_F(GrantChecks, AGrantedPageMustBeInThePeersRegion) {
  engines();
  transfer(name_room(1));
  const std::uint64_t sender = waiting_sender();
  wire::Grant grant = sound_grant();
  grant.pages[1] = PageIndex(32);
  expect_refused(grant, sender, FailureCode::kOutsideGrant, "granted page 32 of 32");
}

TEST_F(GrantChecks, AGrantedAuxSlotMustBeInThePeersRegion) {
  engines();
  transfer(name_room(1));
  const std::uint64_t sender = waiting_sender();
  wire::Grant grant = sound_grant();
  grant.aux_slot = 8;
  expect_refused(grant, sender, FailureCode::kOutsideGrant, "granted aux slot 8 of 8");
}

TEST_F(GrantChecks, AGrantedStateSlotMustBeInThePeersRegion) {
  engines_with_state();
  transfer(name_room(1));
  const std::uint64_t sender = waiting_sender();
  wire::Grant grant = sound_grant();
  grant.state_slots = {1, 4};
  expect_refused(grant, sender, FailureCode::kOutsideGrant, "granted state slot 4 of 4");
}

TEST_F(GrantChecks, AuxThatIsExpectedMustBeThere) {
  engines();
  transfer(name_room(1));
  const std::uint64_t sender = waiting_sender(-1);
  expect_refused(sound_grant(), sender, FailureCode::kAuxInvalid, "no aux slot");
}

TEST_F(GrantChecks, TheSameGrantUnchangedIsTaken) {
  engines();
  transfer(name_room(1));
  const std::uint64_t sender = waiting_sender();
  world.fabric().on_write = [](const PostedWrite&) { return WriteFate::kHold; };
  world.links().forge(d(), p(), sound_grant());
  world.run_for(20);
  expect_status(p(), sender, KvPoll::kTransferring);
  expect_rest();
}

// p1 holds the other head: nothing of it belongs on d0.
TEST_F(GrantChecks, ARankWithNothingToGiveServesNoGrant) {
  engines(2, 2);
  receive(d(0), name_room(1), {1});
  world.run_for(50);
  const std::uint64_t sender = send(p(1), name_room(2), {4, 5, 6}, 0);
  world.run_for(10);
  world.links().forge(d(0), p(1), sound_grant());
  world.run_for(20);
  expect_failed(p(1), sender, FailureCode::kLayoutMismatch);
  EXPECT_NE(p(1).cause(sender).find("holds nothing"), std::string::npos);
  EXPECT_EQ(world.fabric().writes_posted(), 0U);
  expect_rest();
}

class UnlikeGrants : public GrantChecks {
 protected:
  struct Part {
    std::vector<std::uint32_t> pages;
    std::uint32_t prefix = 0;
    std::uint32_t expected = 2;
  };
  // Two decode ranks grant to one sender, which announces two pages if it announces.
  void grant_both(const Part& first, const Part& second, bool announce) {
    engines(1, 2);
    std::uint32_t rank = 0;
    for (const Part& part : {first, second}) {
      Process& decode = d(rank++);
      receivers_.push_back(decode.open(name_room(1)));
      decode.init_receiver(receivers_.back());
      decode.give(receivers_.back(), part.pages, -1, part.expected, part.prefix);
    }
    sender_ = p().open(name_room(1));
    if (announce) {
      p().init_sender(sender_, 2);
    }
    world.run_for(50);
  }
  void expect_all_failed() {
    expect_failed(p(), sender_, FailureCode::kDoneMismatch);
    expect_failed(d(0), receivers_[0], FailureCode::kDoneMismatch);
    expect_failed(d(1), receivers_[1], FailureCode::kDoneMismatch);
    EXPECT_EQ(world.fabric().writes_posted(), 0U);
    expect_rest();
  }
  std::vector<std::uint64_t> receivers_;
  std::uint64_t sender_ = 0;
};

// What one rank has already and the other has not would be missing there.
TEST_F(UnlikeGrants, AnotherPrefixIsRefused) {
  grant_both({{1, 2}, 0}, {{1, 2}, 1}, true);
  EXPECT_NE(p().cause(sender_).find("different amounts"), std::string::npos);
  expect_all_failed();
}

TEST_F(UnlikeGrants, AnotherAmountIsRefusedBeforeTheSenderHasNamedIts) {
  grant_both({{1, 2}, 0}, {{1, 2, 3}, 0}, false);
  EXPECT_NE(p().cause(sender_).find("different amounts"), std::string::npos);
  expect_all_failed();
}

TEST_F(UnlikeGrants, AnotherNumberOfRanksIsRefused) {
  grant_both({{1, 2}, 0, 2}, {{1, 2}, 0, 3}, true);
  EXPECT_NE(p().cause(sender_).find("different amounts"), std::string::npos);
  expect_all_failed();
}

TEST_F(UnlikeGrants, OneMoreThanAnnouncedIsRefused) {
  grant_both({{1, 2}, 0, 1}, {{1, 2}, 0, 1}, true);
  EXPECT_NE(p().cause(sender_).find("more grants than the 1"), std::string::npos)
      << p().cause(sender_);
  expect_all_failed();
}

TEST_F(UnlikeGrants, LikeOnesAreServed) {
  grant_both({{1, 2}, 3}, {{1, 2}, 3}, true);
  EXPECT_EQ(p().cell(sender_).prefix, 3U);
  p().send(sender_, {7, 8});
  world.run_for(50);
  expect_success(d(0), receivers_[0]);
  expect_success(d(1), receivers_[1]);
  expect_success(p(), sender_);
  expect_rest();
}

}  // namespace
}  // namespace kvferry::core::fake
