#include "automata/automaton_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "automata/embedded.h"

namespace kvferry::sim {
namespace {

[[noreturn]] void own_bug(const std::string& what) {
  fmt::print(stderr, "automata: {}\n", what);
  std::abort();
}

}  // namespace

TraceKey::TraceKey(std::initializer_list<std::uint64_t> list)
    : size(static_cast<std::uint8_t>(std::min(list.size(), parts.size()))) {
  std::copy_n(list.begin(), size, parts.begin());
}

std::string Rejection::text() const {
  return fmt::format("automaton {} of {}: {} is not allowed in state {}", automaton, key, event,
                     state);
}

AutomatonSet::AutomatonSet(EventTable events, std::vector<Automaton> automata)
    : events_(std::move(events)), concerned_(events_.size()) {
  for (Automaton& automaton : automata) {
    for (std::size_t i = 0; i < events_.size(); ++i) {
      if (automaton.knows(TraceEvent(i))) {
        concerned_[i].push_back(members_.size());
      }
    }
    members_.push_back(Member{std::move(automaton), {}});
  }
}

// Read once: a sweep makes many thousands of sets.
AutomatonSet AutomatonSet::of_transport(bool local_fence) {
  static const AutomatonSet kFenced = read(true);
  static const AutomatonSet kUnfenced = read(false);
  return local_fence ? kFenced : kUnfenced;
}

AutomatonSet AutomatonSet::read(bool local_fence) {
  auto events = EventTable::parse(events_text());
  if (!events) {
    own_bug("events.txt, " + events.error());
  }
  auto automata = Automaton::parse(automata_text(), *events);
  if (!automata) {
    own_bug("spec/automata, " + automata.error());
  }
  const std::string_view other_class = local_fence ? "_unfenced" : "_fenced";
  std::erase_if(*automata, [&](const Automaton& automaton) {
    return automaton.name().ends_with(other_class);
  });
  return AutomatonSet(std::move(*events), std::move(*automata));
}

TraceEvent AutomatonSet::event(std::string_view name) const {
  const auto found = events_.find(name);
  if (!found) {
    own_bug(fmt::format("no event {}", name));
  }
  return *found;
}

std::optional<Rejection> AutomatonSet::step(TraceEvent event, const TraceKey& key) {
  if (key.size != events_.key(event).size()) {
    own_bug(fmt::format("event {} with {} key parts", events_.name(event), key.size));
  }
  for (const std::size_t index : concerned_[EventTable::index(event)]) {
    Member& member = members_[index];
    auto rejected = member.automaton.key_size() <= key.size ? step_one(member, event, key)
                                                            : step_all(member, event, key);
    if (rejected) {
      return rejected;
    }
  }
  return std::nullopt;
}

AutomatonSet::Rest AutomatonSet::rest_of(const TraceKey& key, std::size_t size) {
  return {size > 1 ? key.parts[1] : 0, size > 2 ? key.parts[2] : 0};
}

AutomatonSet::Group::iterator AutomatonSet::place_of(Group& group, const Rest& rest) {
  return std::ranges::lower_bound(group, rest, {}, &Run::rest);
}

std::optional<Rejection> AutomatonSet::step_one(Member& member, TraceEvent event,
                                                const TraceKey& key) {
  const Rest rest = rest_of(key, member.automaton.key_size());
  Group& group = member.groups[key.parts[0]];
  auto run = place_of(group, rest);
  if (run == group.end() || run->rest != rest) {
    run = group.insert(run, Run{rest});
  }
  return move(member, event, key.parts[0], rest, run->state);
}

std::optional<Rejection> AutomatonSet::step_all(Member& member, TraceEvent event,
                                                const TraceKey& key) {
  const auto group = member.groups.find(key.parts[0]);
  if (group == member.groups.end()) {
    return std::nullopt;
  }
  const bool of_writer = key.size > 1;
  auto run = place_of(group->second, {of_writer ? key.parts[1] : 0, 0});
  for (; run != group->second.end(); ++run) {
    if (of_writer && run->rest.first != key.parts[1]) {
      break;
    }
    // One that never left its start state was rejected there; it counts as not being there.
    if (run->state == Automaton::kStart) {
      continue;
    }
    if (auto rejected = move(member, event, group->first, run->rest, run->state)) {
      return rejected;
    }
  }
  return std::nullopt;
}

std::optional<Rejection> AutomatonSet::move(const Member& member, TraceEvent event,
                                            std::uint64_t first, const Rest& rest,
                                            Automaton::State& state) const {
  if (const auto next = member.automaton.next(state, event)) {
    state = *next;
    return std::nullopt;
  }
  const std::array<std::uint64_t, 3> parts{first, rest.first, rest.second};
  std::string key;
  for (std::size_t i = 0; i < member.automaton.key_size(); ++i) {
    key += fmt::format("{}{} {}", i == 0 ? "" : " ", member.automaton.key()[i], parts[i]);
  }
  return Rejection{member.automaton.name(), member.automaton.state_name(state), events_.name(event),
                   std::move(key)};
}

std::string AutomatonSet::state_of(std::string_view automaton, const TraceKey& key) const {
  for (const Member& member : members_) {
    if (member.automaton.name() != automaton) {
      continue;
    }
    const auto group = member.groups.find(key.parts[0]);
    if (group == member.groups.end()) {
      return {};
    }
    const Rest rest = rest_of(key, member.automaton.key_size());
    const auto run = std::ranges::find(group->second, rest, &Run::rest);
    return run == group->second.end() ? std::string{} : member.automaton.state_name(run->state);
  }
  return {};
}

std::size_t AutomatonSet::run_count() const {
  std::size_t count = 0;
  for (const Member& member : members_) {
    for (const auto& [first, group] : member.groups) {
      count += group.size();
    }
  }
  return count;
}

void AutomatonSet::clear() {
  for (Member& member : members_) {
    member.groups.clear();
  }
}

}  // namespace kvferry::sim
