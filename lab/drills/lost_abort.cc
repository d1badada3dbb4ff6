// A message that is lost is said again until its receiver's core has processed it: the k-th of
// every kind of message is dropped once, and each room, which spans two ranks of prefill and four
// of decode, ends at all six of them with the same first cause.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "lab/drills/engine_steps.h"
#include "lab/rank/faulty_link.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;

constexpr milliseconds kPatience{15'000};
// So long a lost message may keep a room: several repetitions.
constexpr double kRetryBudgetMs = 2'000;
constexpr std::uint32_t kHeartbeatTimeoutMs = 2'000;
// Much less than participants may be apart (kApartMs).
constexpr std::uint32_t kRetransmitMs = 20;
constexpr std::int64_t kPages = 256;
constexpr std::uint64_t kLongRooms = 20;
constexpr std::uint32_t kLongChunks = 8;

// What makes a kind of message be sent.
enum class Story : std::uint8_t {
  kSuccess,        // rooms succeed
  kDecodeAborts,   // d0 aborts rooms whose grants are out
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
  bool incoming = false;  // at ranks of decode, which lose it
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

// Who loses what of a kind.
struct Loss {
  std::vector<LabRank*> where;
  std::uint64_t first = 1;  // each of them: the k-th and those after it
  std::uint64_t count = 1;
  std::string_view which;
};

class LostMessages {
 public:
  explicit LostMessages(DrillScene& scene) : scene_(scene), cluster_(scene.cluster()) {}

  Status run() {
    if (Status told = check_kinds(); !told) return told;
    if (Status started = start(); !started) return started;
    for (const KindStory& kind : kKinds) {
      if (kind.story == Story::kNone) continue;
      if (Status lost = lose_each_way(pair(), kind); !lost) return lost;
      if (!scene_.findings().empty()) return {};
    }
    if (scene_.long_form()) {
      if (Status lost = lose_with_heads_shared(); !lost) return lost;
      if (!scene_.findings().empty()) return {};
    }
    return look_back();
  }

 private:
  EnginePair pair() { return {p_, d_}; }
  LabRank& p0() { return *p_.ranks.front(); }
  LabRank& d0() { return *d_.ranks.front(); }

  Status start() {
    if (Status started = cluster_.start_registry(); !started) return started;
    options_ = {fmt::format("--pages={}", kPages), "--page-bytes=4096", "--messages",
                fmt::format("--heartbeat-timeout-ms={}", kHeartbeatTimeoutMs),
                fmt::format("--retransmit-min-ms={}", kRetransmitMs)};
    if (Status started = start(p_, {"p", Role::kPrefill, 1, 2, options_, scene_.missing()});
        !started) {
      return started;
    }
    if (Status started = start(d_, {"d", Role::kDecode, 4, 1, options_, scene_.missing()});
        !started) {
      return started;
    }
    auto wire = cluster_.relay_control(d0(), p0());
    if (!wire) return tl::unexpected(wire.error());
    wire_ = *wire;
    if (Status paired = await_pairs(cluster_, pair(), kPatience); !paired) return paired;
    if (Status ran = expect_success(scene_, pair(), next_room(false), kPatience); !ran) return ran;
    auto counted = count_idle(scene_, d_.ranks, kPages, kPatience);
    if (!counted) return tl::unexpected(counted.error());
    before_ = std::move(*counted);
    scene_.say(
        "p0 and p1, each with half of the layers, are pairs with d0 to d3, each with a quarter of "
        "the heads; the links of d0 to d3 lose what they are told to, both ways");
    return {};
  }

  Status start(LabEngine& engine, const EnginePlan& plan) {
    auto started = start_engine(cluster_, plan);
    if (!started) return tl::unexpected(started.error());
    engine = std::move(*started);
    return {};
  }

  // A message that nobody says again is not waited for longer on a busy machine either.
  milliseconds retry_budget() const {
    return milliseconds(static_cast<std::int64_t>(kRetryBudgetMs * scene_.guarded_slack()));
  }
  std::uint64_t rooms() const { return scene_.long_form() ? kLongRooms : 1; }
  RoomPlan next_room(bool hold) {
    RoomPlan room{next_++, 1, 2, false, hold};
    if (scene_.long_form()) room.pages = room.chunks = kLongChunks;
    return room;
  }

  static bool is_of_rooms(const KindStory& kind) {
    return kind.story == Story::kSuccess || kind.story == Story::kDecodeAborts ||
           kind.story == Story::kPrefillAborts;
  }

  // In short form each of d0 to d3 loses the first message to (or from) each of its peers, so that
  // no participant hears of it on another way; in long form also the second and the last, and one
  // rank alone loses one.
  Status lose_each_way(const EnginePair& with, const KindStory& kind) {
    if (!is_of_rooms(kind)) return lose(with, kind, {{&d0()}, 1, 1, "once"});
    // A rank of prefill that has heard of an abort from decode says nothing of it.
    const std::uint64_t of_each = kind.story == Story::kPrefillAborts ? 1 : with.writers_of_each();
    const std::uint64_t last = rooms() * of_each;
    std::vector<Loss> losses = {{d_.ranks, 1, of_each, "the first, everywhere"}};
    if (scene_.long_form()) {
      losses.push_back({d_.ranks, 2, of_each, "the second, everywhere"});
      losses.push_back({d_.ranks, last - of_each + 1, of_each, "the last, everywhere"});
      LabRank* one = d_.ranks.back();
      losses.push_back({{one}, 1, 1, "the first at d3"});
      losses.push_back({{one}, 2, 1, "the second at d3"});
      losses.push_back({{one}, last, 1, "the last at d3"});
    }
    for (const Loss& loss : losses) {
      const Status lost = lose(with, kind, loss);
      if (!lost || !scene_.findings().empty()) return lost;
    }
    return {};
  }

  // The same rooms where each rank of prefill writes to two of decode alone, and each of decode is
  // written by one.
  Status lose_with_heads_shared() {
    if (Status started = start(t_, {"t", Role::kPrefill, 2, 1, options_, scene_.missing()});
        !started) {
      return started;
    }
    const EnginePair with{t_, d_};
    if (Status paired = await_pairs(cluster_, with, kPatience); !paired) return paired;
    scene_.say("t0 and t1, each with half of the heads, stand in for p0 and p1");
    for (const KindStory& kind : kKinds) {
      if (!is_of_rooms(kind)) continue;
      const Status lost = lose_each_way(with, kind);
      if (!lost || !scene_.findings().empty()) return lost;
    }
    return {};
  }

  Status lose(const EnginePair& with, const KindStory& kind, const Loss& loss) {
    const double began = scene_.seconds();
    slowest_ms_ = apart_ms_ = 0;
    std::vector<std::int64_t> before;
    for (LabRank* rank : loss.where) {
      const auto here = struck(*rank);
      if (!here) return tl::unexpected(here.error());
      before.push_back(*here);
      const auto told =
          rank->child().ask("fault", JsonObject()
                                         .text("kind", kind.kind)
                                         .text("way", kind.incoming ? "in" : "out")
                                         .text("what", "drop")
                                         .integer("k", static_cast<std::int64_t>(loss.first))
                                         .integer("count", static_cast<std::int64_t>(loss.count)));
      if (!told) return tl::unexpected(told.error());
    }
    if (Status played = play(with, kind, before.front()); !played) return played;
    if (!scene_.findings().empty()) {
      scene_.say("after {} was lost: {}", kind.kind, loss.which);
      return {};
    }
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (Status hit = strike_again(with, kind, *loss.where[i], before[i]); !hit) return hit;
      if (!scene_.findings().empty()) return {};
    }
    scene_.say("{:<15} {} decode, lost {}; all done in {:.2f} s{}", kind.kind,
               kind.incoming ? "to" : "from", loss.which, scene_.seconds() - began,
               apart_ms_ == 0 ? ""
                              : fmt::format(", the slowest room in {:.0f} ms, its ends at most "
                                            "{:.0f} ms apart",
                                            slowest_ms_, apart_ms_));
    most_apart_ms_ = std::max(most_apart_ms_, apart_ms_);
    return {};
  }

  static Result<std::int64_t> struck(LabRank& rank) {
    const auto status = rank.status();
    if (!status) return tl::unexpected(status.error());
    return (*status)->root()["struck"].integer().value_or(0);
  }

  Status await_struck(const KindStory& kind, LabRank& rank, std::int64_t before,
                      milliseconds patience = kPatience) {
    const auto hit = scene_.await_status(
        rank, [&](JsonView status) { return status["struck"].integer().value_or(0) > before; },
        fmt::format("loss of {}", kind.kind), patience);
    if (hit) return {};
    if (hit.error().code != FailureCode::kRoomTimeout) return tl::unexpected(hit.error());
    return vacuous(fmt::format("no {} that could be lost was sent at {}", kind.kind, rank.name()));
  }

  // A bare acknowledgement is only sent where nothing else is due that could carry it, which on a
  // busy machine may be so each time: then the story is told once more.
  Status strike_again(const EnginePair& with, const KindStory& kind, LabRank& rank,
                      std::int64_t before) {
    constexpr int kTries = 20;
    constexpr milliseconds kSoon{300};
    for (int tries = 1; kind.story == Story::kBareAck && tries < kTries; ++tries) {
      const Status hit = await_struck(kind, rank, before, kSoon);
      if (hit || hit.error().code != FailureCode::kWrongState) return hit;
      const Status played = play(with, kind, before);
      if (!played || !scene_.findings().empty()) return played;
    }
    return await_struck(kind, rank, before);
  }

  Status play(const EnginePair& with, const KindStory& kind, std::int64_t struck_before) {
    switch (kind.story) {
      case Story::kSuccess:
        return play_rooms(with, nullptr);
      case Story::kDecodeAborts:
      case Story::kBareAck:
        return play_rooms(with, &d0());
      case Story::kPrefillAborts:
        return play_rooms(with, with.prefill.ranks.front());
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

  // aborts: who aborts the rooms once they are granted everywhere; null: they succeed.
  Status play_rooms(const EnginePair& with, LabRank* aborts) {
    std::vector<RoomPlan> played;
    for (std::uint64_t i = 0; i < rooms(); ++i) {
      played.push_back(next_room(aborts != nullptr));
      const Status opened = aborts != nullptr ? open_held(scene_, with, played.back(), kPatience)
                                              : open_everywhere(cluster_, with, played.back());
      if (!opened) return opened;
    }
    for (const RoomPlan& room : played) {
      if (aborts == nullptr) continue;
      if (Status told = tell_room(*aborts, "abort", room); !told) return told;
    }
    return await_ends(with, played, aborts == nullptr);
  }

  Status await_ends(const EnginePair& with, const std::vector<RoomPlan>& played, bool success) {
    const double began = scene_.seconds();
    for (const RoomPlan& room : played) {
      const auto ended = expect_ends(scene_, with.ranks(), room, success, retry_budget());
      if (!ended) return tl::unexpected(ended.error());
      if (!scene_.findings().empty()) return {};
      apart_ms_ = std::max(apart_ms_, ended->apart_ms);
    }
    slowest_ms_ = std::max(slowest_ms_, (scene_.seconds() - began) * 1'000);
    return {};
  }

  Status play_new_life(const KindStory& kind, std::int64_t struck_before) {
    if (Status started = cluster_.restart(p0()); !started) return started;
    if (Status hit = await_struck(kind, d0(), struck_before); !hit) return hit;
    if (Status paired = await_pairs(cluster_, pair(), kPatience); !paired) return paired;
    return play_rooms(pair(), nullptr);
  }

  Status play_cut() {
    std::vector<RoomPlan> held;
    for (std::uint64_t i = 0; i < rooms(); ++i) {
      held.push_back(next_room(true));
      if (Status opened = open_held(scene_, pair(), held.back(), kPatience); !opened) return opened;
    }
    wire_->cut();
    for (const RoomPlan& room : held) {
      for (LabRank* rank : p_.ranks) {
        if (Status told = tell_room(*rank, "send", room); !told) return told;
      }
    }
    return await_ends(pair(), held, true);
  }

  Status play_silence(const KindStory& kind, std::int64_t struck_before) {
    const RoomPlan room = next_room(true);
    if (Status held = open_held(scene_, pair(), room, kPatience); !held) return held;
    std::vector<LabRank*> awake = d_.ranks;
    awake.insert(awake.end(), p_.ranks.begin() + 1, p_.ranks.end());
    p0().child().stop();
    const auto ended = expect_ends(scene_, awake, room, false, kPatience);
    // Whoever ended its session first has told the others; d0's own comes to its end, too.
    const Status hit = await_struck(kind, d0(), struck_before);
    p0().child().resume();
    if (!ended) return tl::unexpected(ended.error());
    if (!hit || !scene_.findings().empty()) return hit;
    if (Status last = expect_end(scene_, p0(), room, false, kPatience); !last) return last;
    if (Status paired = await_pairs(cluster_, pair(), kPatience); !paired) return paired;
    return play_rooms(pair(), nullptr);
  }

  Status play_refusal(const KindStory& kind, std::int64_t struck_before) {
    std::vector<std::string> options = options_;
    options[1] = "--page-bytes=8192";
    auto other = cluster_.start({"x0", Role::kPrefill, options, ""});
    if (!other) return tl::unexpected(other.error());
    if (Status hit = await_struck(kind, d0(), struck_before); !hit) return hit;
    std::string reason;
    const auto refused = scene_.await_status(
        d0(),
        [&](JsonView status) {
          const JsonView pairs = status["pairs"];
          for (std::size_t i = 0; i < pairs.size(); ++i) {
            if (pairs.at(i)["peer"].text() != (*other)->control()) continue;
            reason = pairs.at(i)["reason"].text().value_or("");
          }
          return reason.find(to_string(FailureCode::kLayoutMismatch)) != std::string::npos;
        },
        "refusal of x0", kPatience);
    if (!refused && refused.error().code == FailureCode::kRoomTimeout) {
      scene_.find("I6", fmt::format("d0 never learns why x0 refuses it: {}", reason));
      return {};
    }
    if (!refused) return tl::unexpected(refused.error());
    scene_.say("d0 says of x0: {}", reason);
    return play_rooms(pair(), nullptr);
  }

  // --- afterwards ---

  Status look_back() {
    const auto verdict = scene_.check();
    if (!verdict) return tl::unexpected(verdict.error());
    if (Status told = check_absent(); !told) return told;
    // x0, and in long form t0 and t1, are more peers than before, with their own descriptors.
    const auto now = count_idle(scene_, d_.ranks, kPages, kPatience);
    if (!now) return tl::unexpected(now.error());
    std::vector<Census> before = before_;
    for (std::size_t i = 0; i < before.size(); ++i) {
      before[i].descriptors = std::max(before[i].descriptors, (*now)[i].descriptors);
    }
    if (Status same = expect_baseline(scene_, d_.ranks, before, kPatience); !same) return same;
    scene_.figures().number("most_apart_ms", most_apart_ms_);
    scene_.say(
        "{} ends of rooms, {} of them with success; each at all six ranks with the same first "
        "cause, at most {:.0f} ms apart",
        verdict->rooms, verdict->succeeded, most_apart_ms_);
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
  LabEngine p_;
  LabEngine d_;
  LabEngine t_;
  support::Relay* wire_ = nullptr;
  std::vector<Census> before_;
  std::uint64_t next_ = 1;
  double slowest_ms_ = 0;
  double apart_ms_ = 0;
  double most_apart_ms_ = 0;
};

}  // namespace

Status run_lost_abort(DrillScene& scene) { return LostMessages(scene).run(); }

}  // namespace kvferry::lab
