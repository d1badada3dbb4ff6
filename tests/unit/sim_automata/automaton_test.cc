// Parsing, and delivery of events to runs.
#include "automata/automaton.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "automata/automaton_set.h"
#include "automata/embedded.h"

namespace kvferry::sim {
namespace {

using testing::HasSubstr;

constexpr std::string_view kEvents = R"(
# comment
open   door        it opens
pass   door guest  somebody passes
close  door        it closes
ring   bell        it rings
)";

constexpr std::string_view kDoor = R"(
automaton door
key door
start none
none open -> open
open pass -> =
open close -> closed
)";

EventTable door_events() { return EventTable::parse(kEvents).value(); }

AutomatonSet set_of(std::string_view text) {
  EventTable events = door_events();
  auto automata = Automaton::parse(text, events).value();
  return AutomatonSet(std::move(events), std::move(automata));
}

std::string error_of(const std::string& text) {
  const auto parsed = Automaton::parse(text, door_events());
  return parsed ? "" : parsed.error();
}

TEST(EventTable, NumbersNamesAndKnowsTheirKeys) {
  const EventTable events = door_events();
  ASSERT_EQ(events.size(), 4U);
  const auto pass = events.find("pass");
  ASSERT_TRUE(pass.has_value());
  EXPECT_EQ(events.name(*pass), "pass");
  EXPECT_THAT(events.key(*pass), testing::ElementsAre("door", "guest"));
  EXPECT_FALSE(events.find("knock").has_value());
}

TEST(EventTable, RefusesANameTwiceAndALineWithoutKey) {
  EXPECT_THAT(EventTable::parse("a  k  x\na  k  y\n").error(), HasSubstr("line 2"));
  EXPECT_FALSE(EventTable::parse("a only").has_value());
}

TEST(AutomatonParse, ALineMayNameSeveralStatesAndEvents) {
  const EventTable events = door_events();
  const auto automata =
      Automaton::parse("automaton a\nkey door\nstart none\nnone,ajar open,close -> ajar\n", events);
  ASSERT_TRUE(automata.has_value()) << automata.error();
  AutomatonRun run(automata->front());
  EXPECT_TRUE(run.step(*events.find("close")));
  EXPECT_TRUE(run.step(*events.find("open")));
  EXPECT_EQ(automata->front().state_name(run.state()), "ajar");
}

TEST(AutomatonParse, SaysLineAndReason) {
  const std::string head = "automaton a\nkey door\nstart none\n";
  EXPECT_THAT(error_of("none open -> open\n"), HasSubstr("line 1: want `automaton NAME` first"));
  EXPECT_THAT(error_of(head + "none knock -> open\n"), HasSubstr("line 4: no event knock"));
  EXPECT_THAT(error_of(head + "none open open\n"), HasSubstr("want STATE"));
  EXPECT_THAT(error_of(head + "none open -> a\nnone open -> b\n"), HasSubstr("there already"));
  EXPECT_THAT(error_of(head + "none ring -> a\n"), HasSubstr("another key"));
  EXPECT_THAT(error_of(head + "none open -> none\n"), HasSubstr("start"));
}

TEST(AutomatonRun, ARejectedEventChangesNothing) {
  const EventTable events = door_events();
  const auto automata = Automaton::parse(kDoor, events).value();
  AutomatonRun run(automata.front());
  EXPECT_FALSE(run.step(*events.find("close")));
  EXPECT_EQ(run.state(), Automaton::kStart);
  EXPECT_TRUE(run.step(*events.find("ring"))) << "of no concern to it";
  EXPECT_TRUE(run.step(*events.find("open")));
}

TEST(AutomatonSet, KeepsOneRunPerKey) {
  AutomatonSet set = set_of(kDoor);
  EXPECT_FALSE(set.step(set.event("open"), {1}));
  const auto rejected = set.step(set.event("close"), {2});
  ASSERT_TRUE(rejected.has_value());
  EXPECT_EQ(rejected->text(), "automaton door of door 2: close is not allowed in state none");
  EXPECT_EQ(set.state_of("door", {1}), "open");
}

TEST(AutomatonSet, ALongerKeyReachesTheRunOfItsBeginning) {
  AutomatonSet set = set_of(kDoor);
  EXPECT_FALSE(set.step(set.event("open"), {1}));
  EXPECT_FALSE(set.step(set.event("pass"), {1, 7}));
  EXPECT_TRUE(set.step(set.event("pass"), {2, 7}));
}

TEST(AutomatonSet, AShorterKeyReachesEveryRunThatBeginsSo) {
  AutomatonSet set = set_of(
      "automaton guest\nkey door guest\nstart none\nnone pass -> inside\ninside close -> stuck\n");
  EXPECT_FALSE(set.step(set.event("close"), {1})) << "nobody there";
  EXPECT_FALSE(set.step(set.event("pass"), {1, 7}));
  EXPECT_FALSE(set.step(set.event("pass"), {1, 8}));
  EXPECT_FALSE(set.step(set.event("pass"), {2, 9}));
  EXPECT_FALSE(set.step(set.event("close"), {1}));
  EXPECT_EQ(set.state_of("guest", {1, 7}), "stuck");
  EXPECT_EQ(set.state_of("guest", {1, 8}), "stuck");
  EXPECT_EQ(set.state_of("guest", {2, 9}), "inside");
  EXPECT_EQ(set.run_count(), 3U);
  set.clear();
  EXPECT_EQ(set.run_count(), 0U);
}

TEST(EmbeddedAutomata, ParseForBothTransportClasses) {
  const auto events = EventTable::parse(events_text());
  ASSERT_TRUE(events.has_value()) << events.error();
  const auto automata = Automaton::parse(automata_text(), *events);
  ASSERT_TRUE(automata.has_value()) << automata.error();
  std::vector<std::string> names;
  for (const Automaton& automaton : *automata) {
    names.push_back(automaton.name());
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"page_fenced", "page_unfenced", "writer", "ticket",
                                            "sender", "source", "message_grant"}));
}

}  // namespace
}  // namespace kvferry::sim
