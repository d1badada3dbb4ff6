// Many runs of several automata, one per automaton and key. A trace is handed over event by event;
// the first one that some automaton does not allow is reported.
//
//   auto set = AutomatonSet::of_transport(/*local_fence=*/true);
//   const TraceEvent post = set.event("post");
//   if (auto rejected = set.step(post, {grant, writer, ticket})) ... rejected->text() ...
//
// Delivery: an automaton whose key is a beginning of the event's key gets the event for that run,
// which is made in its start state when there is none. An automaton with a longer key gets it for
// each of its runs whose key begins so.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "automata/automaton.h"

namespace kvferry::sim {

// Up to three parts, as events.txt has them. The caller makes parts unique over process lives: a
// grant of a decode process that restarted is another grant.
struct TraceKey {
  TraceKey(std::initializer_list<std::uint64_t> list);

  std::array<std::uint64_t, 3> parts{};
  std::uint8_t size = 0;
};

// What was not allowed, and where.
struct Rejection {
  std::string automaton;
  std::string state;
  std::string event;
  std::string key;  // of the run, for example "grant 7 writer 2"
  std::string text() const;
};

class AutomatonSet {
 public:
  AutomatonSet(EventTable events, std::vector<Automaton> automata);
  // Those of this binary: *_fenced or *_unfenced, and all that hold for both. The embedded
  // texts are checked by a unit test; one that can't be parsed is a bug and ends the process.
  static AutomatonSet of_transport(bool local_fence);

  // The number of an event that the caller is sure of; an unknown name ends the process.
  TraceEvent event(std::string_view name) const;
  const EventTable& events() const { return events_; }

  // Nothing: every automaton allows it. After a rejection the run stays where it was.
  std::optional<Rejection> step(TraceEvent event, const TraceKey& key);
  // The state of a run by name; empty when there is none.
  std::string state_of(std::string_view automaton, const TraceKey& key) const;
  std::size_t run_count() const;
  // Drops all runs; the automata stay.
  void clear();

 private:
  using Rest = std::pair<std::uint64_t, std::uint64_t>;  // second and third part
  struct Run {
    Rest rest;
    Automaton::State state = Automaton::kStart;
  };
  // Runs that share the first part, by the rest of the key. New ones mostly come last.
  using Group = std::vector<Run>;
  struct Member {
    Automaton automaton;
    std::unordered_map<std::uint64_t, Group> groups;
  };

  static AutomatonSet read(bool local_fence);
  static Rest rest_of(const TraceKey& key, std::size_t size);
  static Group::iterator place_of(Group& group, const Rest& rest);
  std::optional<Rejection> step_one(Member& member, TraceEvent event, const TraceKey& key);
  std::optional<Rejection> step_all(Member& member, TraceEvent event, const TraceKey& key);
  std::optional<Rejection> move(const Member& member, TraceEvent event, std::uint64_t first,
                                const Rest& rest, Automaton::State& state) const;

  EventTable events_;
  std::vector<Member> members_;
  std::vector<std::vector<std::size_t>> concerned_;  // by event: indexes into members_
};

}  // namespace kvferry::sim
