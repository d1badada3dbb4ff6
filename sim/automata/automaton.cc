#include "automata/automaton.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace kvferry::sim {
namespace {

std::vector<std::string> split(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (end > 0) {
      parts.emplace_back(text.substr(0, end));
    }
    text.remove_prefix(std::min(end + separator.size(), text.size()));
  }
  return parts;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Calls take(line) for each line that says something; stops at the first reason against one.
Parsed<void> for_each_line(
    std::string_view text,
    const std::function<std::optional<std::string>(std::string_view)>& take) {
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') {
      continue;
    }
    if (const auto reason = take(line)) {
      return tl::unexpected(fmt::format("line {}: {}", number, *reason));
    }
  }
  return {};
}

}  // namespace

Parsed<EventTable> EventTable::parse(std::string_view text) {
  EventTable table;
  const auto read = for_each_line(text, [&](std::string_view line) -> std::optional<std::string> {
    const std::vector<std::string> columns = split(line, "  ");
    if (columns.size() < 3) {
      return "want NAME  KEY...  WHAT";
    }
    Row row{columns[0], split(trimmed(columns[1]), " ")};
    if (!table.by_name_.emplace(row.name, TraceEvent(table.rows_.size())).second) {
      return fmt::format("event {} is there already", row.name);
    }
    table.rows_.push_back(std::move(row));
    return std::nullopt;
  });
  if (!read) {
    return tl::unexpected(read.error());
  }
  return table;
}

std::optional<TraceEvent> EventTable::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

// Reads line by line into the automaton that was named last.
class AutomatonParser {
 public:
  explicit AutomatonParser(const EventTable& events) : events_(events) {}

  std::optional<std::string> take(std::string_view line) {
    const std::vector<std::string> words = split(line, " ");
    if (words[0] == "automaton" && words.size() == 2) {
      Automaton& fresh = made_.emplace_back();
      fresh.name_ = words[1];
      fresh.event_count_ = events_.size();
      fresh.known_.resize(events_.size());
      return std::nullopt;
    }
    if (made_.empty()) {
      return "want `automaton NAME` first";
    }
    Automaton& current = made_.back();
    if (words[0] == "key" && words.size() > 1) {
      current.key_.assign(words.begin() + 1, words.end());
      return std::nullopt;
    }
    if (words[0] == "start" && words.size() == 2 && current.states_.empty()) {
      state(current, words[1]);
      return std::nullopt;
    }
    if (words.size() != 4 || words[2] != "->" || current.states_.empty()) {
      return "want STATE,... EVENT,... -> STATE|=, after `start`";
    }
    return add_moves(current, words);
  }

  std::vector<Automaton> made() && { return std::move(made_); }

 private:
  // Makes the state when it is new.
  static Automaton::State state(Automaton& automaton, const std::string& name) {
    auto& states = automaton.states_;
    const auto found = std::ranges::find(states, name);
    const auto number = static_cast<Automaton::State>(found - states.begin());
    if (found == states.end()) {
      states.push_back(name);
      automaton.next_.resize(states.size() * automaton.event_count_, Automaton::kNowhere);
    }
    return number;
  }

  std::optional<std::string> add_moves(Automaton& automaton,
                                       const std::vector<std::string>& words) {
    for (const std::string& from_name : split(words[0], ",")) {
      for (const std::string& event_name : split(words[1], ",")) {
        const auto event = events_.find(event_name);
        if (!event) {
          return fmt::format("no event {}", event_name);
        }
        if (!keys_agree(automaton.key_, events_.key(*event))) {
          return fmt::format("event {} has another key than {}", event_name, automaton.name_);
        }
        const Automaton::State from = state(automaton, from_name);
        const Automaton::State to = words[3] == "=" ? from : state(automaton, words[3]);
        if (to == Automaton::kStart || automaton.states_.size() >= Automaton::kNowhere) {
          return "nothing leads back to the start, and there are fewer than 255 states";
        }
        const std::size_t event_index = EventTable::index(*event);
        Automaton::State& next = automaton.next_[from * automaton.event_count_ + event_index];
        if (next != Automaton::kNowhere) {
          return fmt::format("{} {} is there already", from_name, event_name);
        }
        next = to;
        automaton.known_[event_index] = true;
      }
    }
    return std::nullopt;
  }

  static bool keys_agree(const std::vector<std::string>& one,
                         const std::vector<std::string>& other) {
    const std::size_t size = std::min(one.size(), other.size());
    return size > 0 &&
           std::equal(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(size), other.begin());
  }

  const EventTable& events_;
  std::vector<Automaton> made_;
};

Parsed<std::vector<Automaton>> Automaton::parse(std::string_view text, const EventTable& events) {
  AutomatonParser parser(events);
  const auto read = for_each_line(text, [&](std::string_view line) { return parser.take(line); });
  if (!read) {
    return tl::unexpected(read.error());
  }
  return std::move(parser).made();
}

}  // namespace kvferry::sim
