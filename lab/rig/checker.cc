#include "lab/rig/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace kvferry::lab {
namespace {

using router::JsonView;

// A landing is told after its copy, off the mark: so much later may its line come.
constexpr std::int64_t kToldLateNs = 50'000'000;
constexpr std::size_t kMaxFindings = 20;
constexpr std::int64_t kComponentsOfOneLayer = 2;
constexpr double kP999Ms = 20;
constexpr double kMaxMs = 50;

using Room = std::pair<std::int64_t, std::int64_t>;  // number and binding

std::int64_t whole(JsonView line, std::string_view key) { return line[key].integer().value_or(-1); }
std::string words(JsonView line, std::string_view key) { return line[key].text().value_or(""); }
Room room_in(JsonView line) { return {whole(line, "room"), whole(line, "binding")}; }
std::string text_of(const Room& room) { return fmt::format("{}/{}", room.first, room.second); }

struct Interval {
  Room owner;
  std::int64_t from = 0;
  std::optional<std::int64_t> until;
};

class Checker {
 public:
  explicit Checker(double deadline_ms) : deadline_ms_(deadline_ms) {}

  Status read(const std::string& life, const std::filesystem::path& path) {
    std::ifstream file(path);
    if (!file) return fail(FailureCode::kOperatingSystem, path.string() + " can't be read");
    life_ = life;
    components_ = kComponentsOfOneLayer;
    pages_.clear();
    slots_.clear();
    sessions_.clear();
    ends_here_.clear();
    std::uint64_t number = 0;
    for (std::string text; std::getline(file, text);) {
      ++number;
      const auto line = router::JsonDocument::parse(text);
      if (!line) {
        if (file.peek() == std::ifstream::traits_type::eof()) break;
        return fail(FailureCode::kMalformed,
                    fmt::format("{}:{}: {}", path.string(), number, line.error().what));
      }
      take(line->root());
    }
    return {};
  }

  JournalVerdict conclude() {
    for (const auto& [room, ends] : verdict_.ends) check_causes(room, ends);
    return std::move(verdict_);
  }

 private:
  void find(std::string invariant, std::string what) {
    if (verdict_.findings.size() < kMaxFindings) {
      verdict_.findings.push_back({std::move(invariant), std::move(what)});
    }
  }

  void take(JsonView line) {
    const std::string at = words(line, "at");
    if (at == "start") {
      components_ = line["components"].integer().value_or(kComponentsOfOneLayer);
    } else if (at == "granted") {
      on_granted(line);
    } else if (at == "returned") {
      on_returned(line);
    } else if (at == "spoiled") {
      find("I1", fmt::format("{}: {} bytes of page {} were written while it was free", life_,
                             whole(line, "bytes"), whole(line, "page")));
    } else if (at == "slot") {
      on_slot(line);
    } else if (at == "landed") {
      on_landed(line);
    } else if (at == "end") {
      on_end(line);
    } else if (at == "message") {
      on_message(line);
    }
  }

  void on_granted(JsonView line) {
    const JsonView pages = line["pages"];
    for (std::size_t i = 0; i < pages.size(); ++i) {
      std::vector<Interval>& owners = pages_[pages.at(i).integer().value_or(-1)];
      if (!owners.empty() && !owners.back().until) {
        find("I1", fmt::format("{}: page {} was granted to room {} while room {} had it", life_,
                               pages.at(i).integer().value_or(-1), text_of(room_in(line)),
                               text_of(owners.back().owner)));
      }
      owners.push_back({room_in(line), whole(line, "ns"), std::nullopt});
    }
  }

  void on_returned(JsonView line) {
    const JsonView pages = line["pages"];
    for (std::size_t i = 0; i < pages.size(); ++i) {
      std::vector<Interval>& owners = pages_[pages.at(i).integer().value_or(-1)];
      if (!owners.empty() && owners.back().owner == room_in(line)) {
        owners.back().until = whole(line, "ns");
      }
    }
  }

  using Slot = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
  static Slot slot_in(JsonView line) {
    return {whole(line, "session"), whole(line, "slot"), whole(line, "generation")};
  }

  // A slot is its room's whose grant the pages are by then.
  void on_slot(JsonView line) {
    const auto owners = pages_.find(whole(line, "page"));
    if (owners != pages_.end() && !owners->second.empty()) {
      slots_[slot_in(line)] = owners->second.back().owner;
    }
  }

  void on_landed(JsonView line) {
    ++verdict_.landings;
    const auto slot = slots_.find(slot_in(line));
    if (slot == slots_.end() || whole(line, "region") >= components_) return;  // aux
    const std::int64_t ns = whole(line, "ns");
    for (const Interval& interval : pages_[whole(line, "page")]) {
      const bool owned = interval.owner == slot->second && interval.from <= ns &&
                         (!interval.until || ns <= *interval.until + kToldLateNs);
      if (owned) return;
    }
    ++verdict_.late_landings;
    find("I1", fmt::format("{}: a write of room {} landed in page {}, which was not its own", life_,
                           text_of(slot->second), whole(line, "page")));
  }

  void on_end(JsonView line) {
    const Room room = room_in(line);
    const std::string status = words(line, "status");
    ++verdict_.rooms;
    if (!ends_here_.insert(room).second) {
      find("I3", fmt::format("{}: room {} ended twice", life_, text_of(room)));
    }
    const double after_ms = line["after_ms"].number().value_or(0);
    if (deadline_ms_ > 0 && after_ms > deadline_ms_) {
      find("I3", fmt::format("{}: room {} ended after {:.0f} ms, its deadline was {:.0f}", life_,
                             text_of(room), after_ms, deadline_ms_));
    }
    if (status == "Success") {
      ++verdict_.succeeded;
      if (const std::int64_t wrong = line["wrong_bytes"].integer().value_or(0); wrong > 0) {
        find("I2",
             fmt::format("{}: room {} succeeded with {} wrong bytes", life_, text_of(room), wrong));
      }
    } else if (words(line, "code").empty() || words(line, "what").empty()) {
      find("I6", fmt::format("{}: room {} failed without a cause", life_, text_of(room)));
    }
    verdict_.ends[room].push_back({life_, status, words(line, "code"), whole(line, "ns")});
  }

  void on_message(JsonView line) {
    static const std::set<std::string> kHandshake = {
        "hello",         "hello_reply", "hello_confirm", "hello_confirmed",
        "hello_refused", "resume",      "resumed",       "session_ended"};
    const std::string kind = words(line, "kind");
    const std::int64_t session = whole(line, "session");
    if (kind == "hello_reply") sessions_.insert(whole(line, "opens"));
    if (words(line, "way") == "in" && !kHandshake.contains(kind) && kind != "heartbeat" &&
        kind != "ack" && !sessions_.contains(session)) {
      ++verdict_.foreign_messages;
    }
  }

  // Success at one end and a failure at the other may be (a sender that lost its peer after Done);
  // two failures have one first cause.
  void check_causes(const Room& room, const std::vector<ParticipantEnd>& ends) {
    const auto first = std::ranges::find(ends, "Failed", &ParticipantEnd::status);
    for (auto end = first; end != ends.end(); ++end) {
      if (end->status == "Failed" && end->code != first->code) {
        find("I6", fmt::format("room {}: {} at {}, {} at {}", text_of(room), first->code,
                               first->life, end->code, end->life));
      }
    }
  }

  const double deadline_ms_;
  JournalVerdict verdict_;
  // Of the life that is read.
  std::string life_;
  std::int64_t components_ = kComponentsOfOneLayer;
  std::map<std::int64_t, std::vector<Interval>> pages_;
  std::map<Slot, Room> slots_;
  std::set<std::int64_t> sessions_;
  std::set<Room> ends_here_;
};

}  // namespace

Result<JournalVerdict> check_journals(const std::map<std::string, std::filesystem::path>& journals,
                                      double deadline_ms) {
  Checker checker(deadline_ms);
  for (const auto& [life, path] : journals) {
    if (const Status read = checker.read(life, path); !read) return tl::unexpected(read.error());
  }
  return checker.conclude();
}

std::vector<Finding> judge_span(const JournalVerdict& verdict, std::int64_t room,
                                std::int64_t binding, const std::vector<std::string>& lives,
                                double apart_ms) {
  constexpr double kNsPerMs = 1e6;
  std::vector<Finding> findings;
  const auto ends = verdict.ends.find({room, binding});
  const ParticipantEnd* first = nullptr;
  const ParticipantEnd* last = nullptr;
  for (const std::string& life : lives) {
    const ParticipantEnd* here = nullptr;
    if (ends != verdict.ends.end()) {
      const auto found = std::ranges::find(ends->second, life, &ParticipantEnd::life);
      if (found != ends->second.end()) here = &*found;
    }
    if (here == nullptr) {
      findings.push_back({"I3", fmt::format("room {}/{} has no end at {}", room, binding, life)});
      continue;
    }
    if (first == nullptr || here->ns < first->ns) first = here;
    if (last == nullptr || here->ns > last->ns) last = here;
  }
  if (first == nullptr || apart_ms == 0) return findings;
  const double apart = static_cast<double>(last->ns - first->ns) / kNsPerMs;
  if (apart > apart_ms) {
    findings.push_back(
        {"I3", fmt::format("room {}/{}: it ended at {} {:.0f} ms after {}, at most {:.0f} may be",
                           room, binding, last->life, apart, first->life, apart_ms)});
  }
  return findings;
}

Census census_of(JsonView status) {
  return {whole(status, "free_pages"), whole(status, "threads"), whole(status, "descriptors"),
          whole(status, "rooms")};
}

std::vector<Finding> compare(const std::string& rank, const Census& before, const Census& after) {
  std::vector<Finding> findings;
  const auto differs = [&](std::string_view what, std::int64_t was, std::int64_t is) {
    findings.push_back(
        {"I4", fmt::format("{}: {} {} at the start, {} at the end", rank, was, what, is)});
  };
  if (after.free_pages != before.free_pages) {
    differs("free pages", before.free_pages, after.free_pages);
  }
  if (after.rooms != before.rooms) differs("rooms", before.rooms, after.rooms);
  if (after.threads > before.threads) differs("threads", before.threads, after.threads);
  if (after.descriptors > before.descriptors) {
    differs("descriptors", before.descriptors, after.descriptors);
  }
  return findings;
}

CallBounds call_bounds_of(JsonView status) {
  const JsonView calls = status["calls"];
  CallBounds bounds;
  bounds.calls = whole(calls, "calls");
  bounds.p999_ms = calls["p999_ms"].number().value_or(0);
  bounds.max_ms = calls["max_ms"].number().value_or(0);
  bounds.slowest = words(calls, "slowest");
  if (const double running = calls["running_ms"].number().value_or(0); running > bounds.max_ms) {
    bounds.max_ms = running;
    bounds.slowest = words(calls, "running") + ", which has not returned";
  }
  return bounds;
}

std::vector<Finding> judge(const std::string& rank, const CallBounds& bounds, double slack) {
  std::vector<Finding> findings;
  if (bounds.p999_ms >= kP999Ms * slack) {
    findings.push_back(
        {"I5", fmt::format("{}: p99.9 of its calls is {:.1f} ms", rank, bounds.p999_ms)});
  }
  if (bounds.max_ms >= kMaxMs * slack) {
    findings.push_back({"I5", fmt::format("{}: its engine's thread was kept for {:.0f} ms by {}",
                                          rank, bounds.max_ms, bounds.slowest)});
  }
  return findings;
}

std::string to_string(const Finding& finding) {
  return finding.invariant + " does not hold: " + finding.what;
}

}  // namespace kvferry::lab
