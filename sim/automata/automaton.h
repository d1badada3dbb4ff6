// Automata of the protocol's named events: what may follow what. The texts stand in spec/automata;
// SPIN proves that every trace of the models is one of theirs (docs/spec.md), and the simulator
// checks its own traces with this library, so that model and code can't drift apart unseen.
//
// Pure; no threads, no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <unordered_map>
#include <vector>

namespace kvferry::sim {

// An event by number; equal names have equal numbers within one EventTable.
enum class TraceEvent : std::uint16_t {};

// What went wrong in a text: line and reason.
template <typename T>
using Parsed = tl::expected<T, std::string>;

// The events by name, and how many parts the key of each has (events.txt).
class EventTable {
 public:
  static Parsed<EventTable> parse(std::string_view text);

  std::optional<TraceEvent> find(std::string_view name) const;
  const std::string& name(TraceEvent event) const { return rows_[index(event)].name; }
  // The names of the key's parts, for example {"grant", "writer"}.
  const std::vector<std::string>& key(TraceEvent event) const { return rows_[index(event)].key; }
  std::size_t size() const { return rows_.size(); }

  static std::size_t index(TraceEvent event) { return static_cast<std::size_t>(event); }

 private:
  struct Row {
    std::string name;
    std::vector<std::string> key;
  };
  std::vector<Row> rows_;
  std::unordered_map<std::string, TraceEvent> by_name_;
};

// States and transitions of one automaton. State 0 is the start; nothing leads back to it.
class Automaton {
 public:
  using State = std::uint8_t;
  static constexpr State kStart = 0;

  // One text may hold several automata. Refused: an unknown event, a transition given twice, a key
  // that is not a beginning of its events' keys (or they of it).
  static Parsed<std::vector<Automaton>> parse(std::string_view text, const EventTable& events);

  // Nothing: the event is not allowed in this state.
  std::optional<State> next(State from, TraceEvent event) const {
    const State to = next_[from * event_count_ + EventTable::index(event)];
    return to == kNowhere ? std::nullopt : std::optional<State>(to);
  }
  // Whether any of its transitions names the event; others don't concern it.
  bool knows(TraceEvent event) const { return known_[EventTable::index(event)]; }

  const std::string& name() const { return name_; }
  const std::string& state_name(State state) const { return states_[state]; }
  const std::vector<std::string>& key() const { return key_; }
  std::size_t key_size() const { return key_.size(); }

 private:
  friend class AutomatonParser;
  static constexpr State kNowhere = 255;

  std::string name_;
  std::vector<std::string> key_;
  std::vector<std::string> states_;
  std::size_t event_count_ = 0;
  std::vector<State> next_;  // by state, then event
  std::vector<bool> known_;
};

// One automaton on its way.
class AutomatonRun {
 public:
  explicit AutomatonRun(const Automaton& automaton) : automaton_(&automaton) {}

  // False, and nothing changes, when the event is not allowed here.
  bool step(TraceEvent event) {
    if (!automaton_->knows(event)) {
      return true;
    }
    const auto to = automaton_->next(state_, event);
    state_ = to.value_or(state_);
    return to.has_value();
  }
  Automaton::State state() const { return state_; }

 private:
  const Automaton* automaton_;
  Automaton::State state_ = Automaton::kStart;
};

}  // namespace kvferry::sim
