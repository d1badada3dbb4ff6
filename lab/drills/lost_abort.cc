// A message that is lost is said again until its receiver's core has processed it: the k-th of
// every kind of message is dropped once, and each room ends on both sides with the same first
// cause.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "lab/drills/steps.h"
#include "lab/rank/faulty_link.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;

constexpr milliseconds kPatience{15'000};
// So long a lost message may keep a room: several repetitions.
constexpr double kRetryBudgetMs = 2'000;
constexpr std::uint64_t kRooms = 3;  // of each story; the first, the second and the last are hit
constexpr std::uint32_t kHeartbeatTimeoutMs = 2'000;

// What makes a kind of message be sent.
enum class Story : std::uint8_t {
  kSuccess,        // rooms succeed
  kDecodeAborts,   // d0 aborts rooms whose grant is out
  kPrefillAborts,  // p0 does
  kSign,           // comes by itself
  kBareAck,        // d0 aborts rooms, and has nothing to say but that it heard
  kNewLife,        // p0 is killed and starts again
  kCut,            // the connection from d0 to p0 is cut
  kSilence,        // p0 is stopped until d0 ends the session
  kRefusal,        // a prefill of another layout comes
  kNone,           // not sent here
};

struct KindStory {
  std::string_view kind;
  bool incoming = false;  // at d0, which loses it
  Story story = Story::kNone;
  std::string_view why_none;
};

// One line for each of the wire's kinds; the drill can't be run when one is missing. The drill's
// own first: its control ends the drill there.
constexpr KindStory kKinds[] = {
    {"abort", false, Story::kDecodeAborts, ""},
    {"fenced", false, Story::kDecodeAborts, ""},
    {"drained", true, Story::kDecodeAborts, ""},
    {"failed", true, Story::kPrefillAborts, ""},
    {"grant", false, Story::kSuccess, ""},
    {"done", true, Story::kSuccess, ""},
    {"consumed", false, Story::kSuccess, ""},
    {"heartbeat", false, Story::kSign, ""},
    {"ack", false, Story::kBareAck, ""},
    {"resume", false, Story::kCut, ""},
    {"resumed", true, Story::kCut, ""},
    {"hello", false, Story::kNewLife, ""},
    {"hello_reply", true, Story::kNewLife, ""},
    {"hello_confirm", false, Story::kNewLife, ""},
    {"hello_confirmed", true, Story::kNewLife, ""},
    {"session_ended", false, Story::kSilence, ""},
    {"hello_refused", true, Story::kRefusal, ""},
    {"progress", true, Story::kNone, "the target of tcp and shm executes the copy itself"},
    {"stale", true, Story::kNone, "answers what this drill's peers never send"},
    {"unsupported", true, Story::kNone, "answers kinds of another version"},
};

Status check_kinds() {
  std::string wrong;
  for (const std::string& kind : message_kinds()) {
    if (std::ranges::find(kKinds, kind, &KindStory::kind) == std::end(kKinds)) {
      wrong += " " + kind;
    }
  }
  return wrong.empty() ? Status{} : vacuous("kinds of message without a story:" + wrong);
}

class LostMessages {
 public:
  explicit LostMessages(DrillScene& scene) : scene_(scene), cluster_(scene.cluster()) {}

  Status run() {
    if (Status told = check_kinds(); !told) return told;
    if (Status started = start(); !started) return started;
    for (const KindStory& kind : kKinds) {
      if (kind.story == Story::kNone) continue;
      if (Status lost = lose(kind); !lost) return lost;
      if (!scene_.findings().empty()) return {};
    }
    return look_back();
  }

 private:
  RankPair pair() { return {*p0_, *d0_}; }

  Status start() {
    if (Status started = cluster_.start_registry(); !started) return started;
    options_ = {"--pages=64", "--page-bytes=4096", "--messages",
                fmt::format("--heartbeat-timeout-ms={}", kHeartbeatTimeoutMs)};
    auto prefill = cluster_.start({"p0", Role::kPrefill, options_, scene_.missing()});
    if (!prefill) return tl::unexpected(prefill.error());
    auto decode = cluster_.start({"d0", Role::kDecode, options_, scene_.missing()});
    if (!decode) return tl::unexpected(decode.error());
    p0_ = *prefill;
    d0_ = *decode;
    auto wire = cluster_.relay_control(*d0_, *p0_);
    if (!wire) return tl::unexpected(wire.error());
    wire_ = *wire;
    if (Status paired = cluster_.await_pair(*d0_, *p0_, kPatience); !paired) return paired;
    if (Status ran = expect_success(scene_, pair(), next_room(false), kPatience); !ran) return ran;
    const auto counted = count_idle(scene_, *d0_, 64, kPatience);
    if (!counted) return tl::unexpected(counted.error());
    before_ = *counted;
    scene_.say("p0 and d0 are a pair; d0's link loses what it is told to, both ways");
    return {};
  }

  // A message that nobody says again is not waited for longer on a busy machine either.
  milliseconds retry_budget() const {
    const double slack = scene_.guard_on() ? scene_.slack() : 1;
    return milliseconds(static_cast<std::int64_t>(kRetryBudgetMs * slack));
  }
  RoomPlan next_room(bool hold) { return {next_++, 1, 2, false, hold}; }

  // Of rooms the first, the second and the last message; of the rest the first.
  Status lose(const KindStory& kind) {
    const bool of_rooms = kind.story == Story::kSuccess || kind.story == Story::kDecodeAborts ||
                          kind.story == Story::kPrefillAborts;
    const double began = scene_.seconds();
    slowest_ms_ = 0;
    for (std::uint64_t k = 1; k <= (of_rooms ? kRooms : 1); ++k) {
      const auto before = struck();
      if (!before) return tl::unexpected(before.error());
      const auto told = d0_->child().ask("fault", JsonObject()
                                                      .text("kind", kind.kind)
                                                      .text("way", kind.incoming ? "in" : "out")
                                                      .text("what", "drop")
                                                      .integer("k", static_cast<std::int64_t>(k)));
      if (!told) return tl::unexpected(told.error());
      if (Status played = play(kind, *before); !played) return played;
      if (!scene_.findings().empty()) {
        scene_.say("after {} number {} was lost", kind.kind, k);
        return {};
      }
      if (Status hit = strike_again(kind, *before); !hit) return hit;
      if (!scene_.findings().empty()) return {};
    }
    scene_.say(
        "{:<15} {}: {}, all done in {:.2f} s{}", kind.kind, kind.incoming ? "to d0 " : "from d0",
        of_rooms ? "lost the first, second and last time" : "lost once", scene_.seconds() - began,
        of_rooms ? fmt::format(", the slowest room in {:.0f} ms", slowest_ms_) : "");
    return {};
  }

  Result<std::int64_t> struck() {
    const auto status = d0_->status();
    if (!status) return tl::unexpected(status.error());
    return (*status)->root()["struck"].integer().value_or(0);
  }

  Status await_struck(const KindStory& kind, std::int64_t before,
                      milliseconds patience = kPatience) {
    const auto hit = scene_.await_status(
        *d0_, [&](JsonView status) { return status["struck"].integer().value_or(0) > before; },
        fmt::format("loss of {}", kind.kind), patience);
    if (hit) return {};
    if (hit.error().code != FailureCode::kRoomTimeout) return tl::unexpected(hit.error());
    return vacuous(fmt::format("no {} was sent that could be lost", kind.kind));
  }

  // A bare acknowledgement is only sent where nothing else is due that could carry it, which on a
  // busy machine may be so each time: then the story is told once more.
  Status strike_again(const KindStory& kind, std::int64_t before) {
    constexpr int kTries = 20;
    constexpr milliseconds kSoon{300};
    for (int tries = 1; kind.story == Story::kBareAck && tries < kTries; ++tries) {
      const Status hit = await_struck(kind, before, kSoon);
      if (hit || hit.error().code != FailureCode::kWrongState) return hit;
      if (Status played = play(kind, before); !played || !scene_.findings().empty()) return played;
    }
    return await_struck(kind, before);
  }

  Status play(const KindStory& kind, std::int64_t struck_before) {
    switch (kind.story) {
      case Story::kSuccess:
        return play_rooms(nullptr);
      case Story::kDecodeAborts:
      case Story::kBareAck:
        return play_rooms(d0_);
      case Story::kPrefillAborts:
        return play_rooms(p0_);
      case Story::kSign:
        return {};
      case Story::kNewLife:
        return play_new_life(kind, struck_before);
      case Story::kCut:
        return play_cut();
      case Story::kSilence:
        return play_silence(kind, struck_before);
      case Story::kRefusal:
        return play_refusal(kind, struck_before);
      case Story::kNone:
        break;
    }
    return {};
  }

  // aborts: who aborts the rooms once they are granted; null: they succeed.
  Status play_rooms(LabRank* aborts) {
    std::vector<RoomPlan> rooms;
    for (std::uint64_t i = 0; i < kRooms; ++i) rooms.push_back(next_room(aborts != nullptr));
    for (const RoomPlan& room : rooms) {
      const Status opened = aborts != nullptr ? open_held(scene_, pair(), room, kPatience)
                                              : cluster_.open(*p0_, *d0_, room);
      if (!opened) return opened;
    }
    for (const RoomPlan& room : rooms) {
      if (aborts == nullptr) continue;
      if (Status told = tell_room(*aborts, "abort", room); !told) return told;
    }
    return await_ends(rooms, aborts == nullptr);
  }

  Status await_ends(const std::vector<RoomPlan>& rooms, bool success) {
    const double began = scene_.seconds();
    for (const RoomPlan& room : rooms) {
      for (LabRank* rank : {d0_, p0_}) {
        if (Status ended = expect_end(scene_, *rank, room, success, retry_budget()); !ended) {
          return ended;
        }
        if (!scene_.findings().empty()) return {};
      }
    }
    slowest_ms_ = std::max(slowest_ms_, (scene_.seconds() - began) * 1'000);
    return {};
  }

  Status play_new_life(const KindStory& kind, std::int64_t struck_before) {
    if (Status started = cluster_.restart(*p0_); !started) return started;
    if (Status hit = await_struck(kind, struck_before); !hit) return hit;
    if (Status paired = cluster_.await_pair(*d0_, *p0_, kPatience); !paired) return paired;
    return play_rooms(nullptr);
  }

  Status play_cut() {
    std::vector<RoomPlan> rooms;
    for (std::uint64_t i = 0; i < kRooms; ++i) {
      rooms.push_back(next_room(true));
      if (Status held = open_held(scene_, pair(), rooms.back(), kPatience); !held) return held;
    }
    wire_->cut();
    for (const RoomPlan& room : rooms) {
      if (Status told = tell_room(*p0_, "send", room); !told) return told;
    }
    return await_ends(rooms, true);
  }

  Status play_silence(const KindStory& kind, std::int64_t struck_before) {
    const RoomPlan room = next_room(true);
    if (Status held = open_held(scene_, pair(), room, kPatience); !held) return held;
    p0_->child().stop();
    if (Status ended = expect_end(scene_, *d0_, room, false, kPatience); !ended) return ended;
    p0_->child().resume();
    if (Status ended = expect_end(scene_, *p0_, room, false, kPatience); !ended) return ended;
    if (Status hit = await_struck(kind, struck_before); !hit) return hit;
    if (Status paired = cluster_.await_pair(*d0_, *p0_, kPatience); !paired) return paired;
    return play_rooms(nullptr);
  }

  Status play_refusal(const KindStory& kind, std::int64_t struck_before) {
    std::vector<std::string> options = options_;
    options[1] = "--page-bytes=8192";
    auto other = cluster_.start({"p1", Role::kPrefill, options, ""});
    if (!other) return tl::unexpected(other.error());
    if (Status hit = await_struck(kind, struck_before); !hit) return hit;
    std::string reason;
    const auto refused = scene_.await_status(
        *d0_,
        [&](JsonView status) {
          const JsonView pairs = status["pairs"];
          for (std::size_t i = 0; i < pairs.size(); ++i) {
            if (pairs.at(i)["peer"].text() != (*other)->control()) continue;
            reason = pairs.at(i)["reason"].text().value_or("");
          }
          return reason.find(to_string(FailureCode::kLayoutMismatch)) != std::string::npos;
        },
        "refusal of p1", kPatience);
    if (!refused && refused.error().code == FailureCode::kRoomTimeout) {
      scene_.find("I6", fmt::format("d0 never learns why p1 refuses it: {}", reason));
      return {};
    }
    if (!refused) return tl::unexpected(refused.error());
    scene_.say("d0 says of p1: {}", reason);
    return play_rooms(nullptr);
  }

  // --- afterwards ---

  Status look_back() {
    const auto verdict = scene_.check();
    if (!verdict) return tl::unexpected(verdict.error());
    if (Status told = check_absent(); !told) return told;
    const auto now = count_idle(scene_, *d0_, 64, kPatience);
    if (!now) return tl::unexpected(now.error());
    // p1 is one peer more than before, with its own descriptors.
    Census before = before_;
    before.descriptors = std::max(before.descriptors, now->descriptors);
    if (Status same = expect_baseline(scene_, *d0_, before, kPatience); !same) return same;
    scene_.say("{} rooms ended, {} with success; at both ends each with the same first cause",
               verdict->rooms, verdict->succeeded);
    return {};
  }

  // What has no story must not have been sent.
  Status check_absent() {
    std::map<std::string, std::uint64_t> seen;
    for (const auto& [life, path] : cluster_.journals()) {
      std::ifstream file(path);
      for (std::string text; std::getline(file, text);) {
        const auto line = router::JsonDocument::parse(text);
        if (line && line->root()["at"].text() == "message") {
          ++seen[line->root()["kind"].text().value_or("")];
        }
      }
    }
    for (const KindStory& kind : kKinds) {
      const std::uint64_t count = seen[std::string(kind.kind)];
      if (kind.story == Story::kNone && count > 0) {
        return vacuous(fmt::format("{} was sent {} times, and none was lost", kind.kind, count));
      }
      if (kind.story == Story::kNone) scene_.say("{}: not sent here: {}", kind.kind, kind.why_none);
    }
    return {};
  }

  DrillScene& scene_;
  Cluster& cluster_;
  std::vector<std::string> options_;
  LabRank* p0_ = nullptr;
  LabRank* d0_ = nullptr;
  support::Relay* wire_ = nullptr;
  Census before_;
  std::uint64_t next_ = 1;
  double slowest_ms_ = 0;
};

}  // namespace

Status run_lost_abort(DrillScene& scene) { return LostMessages(scene).run(); }

}  // namespace kvferry::lab
