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

// A landing is told after its copy, off the mark: so much later may its line come, on a machine
// that is not busy.
constexpr std::int64_t kToldLateNs = 50'000'000;
constexpr std::int64_t kNsPerMs = 1'000'000;
constexpr std::size_t kMaxFindings = 20;
constexpr std::int64_t kComponentsOfOneLayer = 2;

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
  Checker(double deadline_ms, double slack)
      : deadline_ms_(deadline_ms),
        told_late_ns_(static_cast<std::int64_t>(static_cast<double>(kToldLateNs) * slack)) {}

  Status read(const std::string& life, const std::filesystem::path& path) {
    std::ifstream file(path);
    if (!file) return fail(FailureCode::kOperatingSystem, path.string() + " can't be read");
    life_ = life;
    components_ = kComponentsOfOneLayer;
    has_messages_ = false;
    pages_.clear();
    slots_.clear();
    grants_.clear();
    fenced_grants_.clear();
    writing_.clear();
    fences_heard_.clear();
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
    for (const auto& [slot, owner] : owners_) conclude(slot, owner);
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
      source_hold_ns_ = line["source_hold_ms"].integer().value_or(0) * kNsPerMs;
      has_messages_ = line["messages"].boolean().value_or(false);
    } else if (at == "granted") {
      on_granted(line);
    } else if (at == "returned") {
      on_returned(line);
    } else if (at == "spoiled") {
      find("I1", fmt::format("{}: {} bytes of page {} were written while it was free", life_,
                             whole(line, "bytes"), whole(line, "page")));
    } else if (at == "slot") {
      on_slot(line);
    } else if (at == "fenced") {
      fenced_grants_.insert(whole(line, "grant"));
    } else if (at == "landed") {
      on_landed(line);
    } else if (at == "posted") {
      on_posted(line);
    } else if (at == "written") {
      on_written(line);
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
    verdict_.granted[room_in(line)].try_emplace(life_, whole(line, "ns"));
  }

  void on_returned(JsonView line) {
    const Room room = room_in(line);
    const JsonView pages = line["pages"];
    std::set<std::int64_t> returned;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const std::int64_t page = pages.at(i).integer().value_or(-1);
      std::vector<Interval>& owners = pages_[page];
      if (!owners.empty() && owners.back().owner == room) owners.back().until = whole(line, "ns");
      returned.insert(page);
    }
    if (const std::int64_t foreign = line["foreign"].integer().value_or(0); foreign > 0) {
      find("I1", fmt::format("{}: {} bytes of room {}'s pages were not its sender's", life_,
                             foreign, text_of(room)));
    }
    check_fenced(room);
    check_unread(room, returned, whole(line, "ns"));
  }

  // Rule 3: pages of a grant leave through its fence.
  void check_fenced(const Room& room) {
    const auto grants = grants_.extract(room);
    const bool fenced =
        grants.empty() || std::ranges::all_of(grants.mapped(), [this](std::int64_t grant) {
          return fenced_grants_.contains(grant);
        });
    if (!fenced) {
      find("I1", fmt::format("{}: the pages of room {} came back before its grant was fenced",
                             life_, text_of(room)));
    }
  }

  // Rule 5: source pages leave when nothing reads them, when what reads them can't land any more,
  // or when they are given up, which is so long after the room's end. What can land is known where
  // the journal has the messages.
  void check_unread(const Room& room, const std::set<std::int64_t>& pages, std::int64_t ns) {
    const auto end = ends_here_.find(room);
    const bool given_up = end != ends_here_.end() && source_hold_ns_ > 0 &&
                          ns + told_late_ns_ >= end->second + source_hold_ns_;
    if (given_up || !has_messages_) return;
    for (const auto& [slot, writing] : writing_) {
      if (fences_heard_.contains(slot)) continue;
      const bool reads = std::ranges::any_of(
          pages, [&](std::int64_t page) { return writing.pages.contains(page); });
      if (!reads) continue;
      find("I1", fmt::format("{}: source pages of room {} came back while {} writes that may land "
                             "read them",
                             life_, text_of(room), writing.running + writing.unknown));
      return;
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
      const Room& owner = owners->second.back().owner;
      slots_[slot_in(line)] = owner;
      if (const auto grant = line["grant"].integer()) grants_[owner].insert(*grant);
      owners_.emplace_back(slot_in(line), std::pair(owner, life_));
    }
  }

  // --- a writer's own record ---

  void on_posted(JsonView line) {
    const std::int64_t writes = whole(line, "writes");
    Writing& writing = writing_[slot_in(line)];
    writing.running += writes;
    Words& words = words_[slot_in(line)];
    words.writer = life_;
    words.posted += writes;
    const JsonView pages = line["pages"];
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const std::int64_t page = pages.at(i).integer().value_or(-1);
      writing.pages.insert(page);
      const std::vector<Interval>& owners = pages_[page];
      if (owners.empty() || owners.back().until) {
        find("I1",
             fmt::format("{}: a write was given page {} to read, which was free", life_, page));
      }
    }
  }

  void on_written(JsonView line) {
    const auto found = writing_.find(slot_in(line));
    if (found == writing_.end()) return;
    Writing& writing = found->second;
    writing.running -= whole(line, "settled") + whole(line, "unknown");
    writing.unknown += whole(line, "unknown") - whole(line, "quiet");
    if (writing.running == 0 && writing.unknown == 0) writing_.erase(found);
  }

  // Rule 3: Drained says that every ticket has ended; an unknown one's end may be the fence.
  void on_drained_said(JsonView line) {
    const auto writing = writing_.find(slot_in(line));
    const bool is_quiet = writing == writing_.end() ||
                          (writing->second.running == 0 && fences_heard_.contains(writing->first));
    if (!is_quiet) {
      find("I1", fmt::format("{}: it said that it is quiet while {} of its writes were under way",
                             life_, writing->second.running + writing->second.unknown));
    }
    std::int64_t& said_ns = words_[slot_in(line)].said_ns;
    if (said_ns == 0) said_ns = whole(line, "ns");
  }

  void on_drained_heard(JsonView line) {
    Words& words = words_[slot_in(line)];
    if (words.heard.empty()) words.heard_ns = whole(line, "ns");
    words.heard.insert(whole(line, "number"));
    ++words.heard_copies;
  }

  void on_landed(JsonView line) {
    ++verdict_.landings;
    const auto slot = slots_.find(slot_in(line));
    last_landed_ns_[slot_in(line)] = whole(line, "ns");
    if (slot == slots_.end() || whole(line, "region") >= components_) return;  // aux
    const std::int64_t ns = whole(line, "ns");
    for (const Interval& interval : pages_[whole(line, "page")]) {
      const bool owned = interval.owner == slot->second && interval.from <= ns &&
                         (!interval.until || ns <= *interval.until + told_late_ns_);
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
    if (!ends_here_.emplace(room, whole(line, "ns")).second) {
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
    const std::string fate = words(line, "fate");
    const bool went_on = fate != "dropped" && fate != "held";
    if (kind == "fenced" && words(line, "way") == "in" && went_on) {
      fences_heard_.insert(slot_in(line));
    } else if (kind == "abort" && words(line, "way") == "in" && went_on) {
      words_[slot_in(line)].heard_abort = true;
    } else if (kind == "drained" && words(line, "way") == "out") {
      on_drained_said(line);
    } else if (kind == "drained" && went_on) {
      on_drained_heard(line);
    }
  }

  // What both ends of a slot have told.
  void conclude(const Slot& slot, const std::pair<Room, std::string>& owner) {
    const auto& [room, life] = owner;
    WriterRecord record;
    record.life = life;
    if (const auto found = words_.find(slot); found != words_.end()) {
      const Words& words = found->second;
      record.writer = words.writer;
      record.posted = words.posted;
      record.drained = static_cast<std::int64_t>(words.heard.size());
      record.drained_copies = words.heard_copies;
      record.drained_ns = words.heard_ns;
      record.heard_abort = words.heard_abort;
      const auto landed = last_landed_ns_.find(slot);
      if (words.said_ns > 0 && landed != last_landed_ns_.end() && landed->second > words.said_ns) {
        find("I1", fmt::format("{}: a write of room {} landed {:.3f} ms after its writer had said "
                               "that it is quiet",
                               life, text_of(room),
                               static_cast<double>(landed->second - words.said_ns) / kNsPerMs));
      }
    }
    verdict_.writers[room].push_back(std::move(record));
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

  // Of one writer under one grant, while its writes are not over.
  struct Writing {
    std::int64_t running = 0;
    std::int64_t unknown = 0;
    std::set<std::int64_t> pages;
  };
  // What was said of one slot between the two ends.
  struct Words {
    std::string writer;
    std::int64_t posted = 0;
    std::int64_t said_ns = 0;  // Drained, first
    std::int64_t heard_ns = 0;
    std::int64_t heard_copies = 0;
    bool heard_abort = false;
    std::set<std::int64_t> heard;  // its numbers
  };

  const double deadline_ms_;
  const std::int64_t told_late_ns_;
  JournalVerdict verdict_;
  // Of all lives.
  std::vector<std::pair<Slot, std::pair<Room, std::string>>> owners_;
  std::map<Slot, Words> words_;
  std::map<Slot, std::int64_t> last_landed_ns_;
  // Of the life that is read.
  std::string life_;
  std::int64_t components_ = kComponentsOfOneLayer;
  std::map<std::int64_t, std::vector<Interval>> pages_;
  bool has_messages_ = false;
  std::int64_t source_hold_ns_ = 0;
  std::map<Slot, Room> slots_;
  std::map<Room, std::set<std::int64_t>> grants_;  // of rooms whose pages are out
  std::set<std::int64_t> fenced_grants_;
  std::map<Slot, Writing> writing_;
  std::set<Slot> fences_heard_;  // whose targets say that nothing lands any more
  std::set<std::int64_t> sessions_;
  std::map<Room, std::int64_t> ends_here_;
};

}  // namespace

Result<JournalVerdict> check_journals(const std::map<std::string, std::filesystem::path>& journals,
                                      double deadline_ms, double slack) {
  Checker checker(deadline_ms, slack);
  for (const auto& [life, path] : journals) {
    if (const Status read = checker.read(life, path); !read) return tl::unexpected(read.error());
  }
  return checker.conclude();
}

}  // namespace kvferry::lab
