// A room's number comes again: twice at once, after its sender gave up, and while messages of its
// former life are still under way. None of that revives, completes or kills another attempt.
#include <fmt/format.h>

#include <array>

#include "lab/drills/steps.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;

constexpr milliseconds kPatience{10'000};
constexpr std::int64_t kTwins = 1'000;
constexpr std::uint64_t kRoom = 42;
constexpr std::uint64_t kLateRoom = 43;
constexpr std::uint64_t kKeptRoom = 7;
// From a receiver's opening, whose sender has ended, to its failure; nobody else would end it for
// seconds.
constexpr milliseconds kToldWithin{1'000};

// What of the first attempt comes again while the second one lives; as d0's link sees it.
struct Replay {
  std::string_view kind;
  bool incoming;
  bool aborts;  // d0 aborts the first attempt; else it succeeds
};
constexpr Replay kReplays[] = {
    {"grant", false, true},     {"grant", false, false}, {"done", true, false},
    {"consumed", false, false}, {"abort", false, true},  {"drained", true, true},
    {"fenced", false, true},
};

class RoomIdentity {
 public:
  explicit RoomIdentity(DrillScene& scene) : scene_(scene), cluster_(scene.cluster()) {}

  Status run() {
    using Step = Status (RoomIdentity::*)();
    for (const Step step :
         {&RoomIdentity::start, &RoomIdentity::late_grant, &RoomIdentity::twins,
          &RoomIdentity::second_attempt, &RoomIdentity::replays, &RoomIdentity::look_back}) {
      if (Status done = (this->*step)(); !done) return done;
      if (!scene_.findings().empty()) return {};
    }
    return {};
  }

 private:
  RankPair pair() { return {*p0_, *d0_}; }

  Status start() {
    if (Status started = cluster_.start_registry(); !started) return started;
    const std::vector<std::string> options = {"--pages=64", "--page-bytes=4096"};
    const std::vector<std::string> hasty = {options[0], options[1], "--bootstrap-timeout-ms=200"};
    auto prefill = cluster_.start({"p0", Role::kPrefill, hasty, scene_.missing()});
    if (!prefill) return tl::unexpected(prefill.error());
    auto decode = cluster_.start({"d0", Role::kDecode, options, scene_.missing()});
    if (!decode) return tl::unexpected(decode.error());
    p0_ = *prefill;
    d0_ = *decode;
    if (Status paired = cluster_.await_pair(*d0_, *p0_, kPatience); !paired) return paired;
    if (Status ran = run_room({1, 1, 2, false, false}); !ran) return ran;
    for (std::size_t i = 0; i < before_.size(); ++i) {
      const auto counted = count_idle(scene_, i == 0 ? *p0_ : *d0_, 64, kPatience);
      if (!counted) return tl::unexpected(counted.error());
      before_[i] = *counted;
    }
    scene_.say("p0 and d0 are a pair; a sender of p0 waits 200 ms for its grant");
    return {};
  }

  // Decode first: p0's patience is short.
  Status open(const RoomPlan& room) {
    if (Status opened = cluster_.open_decode(*d0_, "p0", room); !opened) return opened;
    if (Status granted = await_room_status(*d0_, room, KvPoll::kTransferring, kPatience);
        !granted) {
      return granted;
    }
    return cluster_.open_prefill(*p0_, room);
  }
  Status run_room(const RoomPlan& room) {
    if (Status opened = open(room); !opened) return opened;
    for (LabRank* rank : {d0_, p0_}) {
      if (Status ended = expect_end(scene_, *rank, room, true, kPatience); !ended) return ended;
    }
    return {};
  }

  Status late_grant() {
    const RoomPlan room{kLateRoom, 1, 2, false, false};
    if (Status opened = cluster_.open_prefill(*p0_, room); !opened) return opened;
    const auto first = p0_->await_end(room.number, room.binding, kPatience);
    if (!first) return tl::unexpected(first.error());
    if (first->success) return vacuous("a sender without a receiver succeeded");
    scene_.say("the sender of room {} has ended: {}", room.number, first->what);
    if (Status opened = cluster_.open_decode(*d0_, "p0", room); !opened) return opened;
    const milliseconds told_within = kToldWithin * scene_.guarded_slack();
    const auto end = d0_->await_end(room.number, room.binding, told_within);
    if (!end && end.error().code != FailureCode::kRoomTimeout) return tl::unexpected(end.error());
    if (!end) {
      scene_.find("I3",
                  fmt::format("the grant of room {}, which came after its sender's end, is an "
                              "orphan: d0 was told nothing in {} ms",
                              room.number, told_within.count()));
      return {};
    }
    if (end->success || end->code != first->code) {
      scene_.find("I6", fmt::format("room {} ended as {} at p0, as {} at d0", room.number,
                                    first->code, end->success ? "Success" : end->code));
    }
    scene_.say("d0 opens it all the same, and is told of the same cause {:.1f} ms later: {}",
               end->after_ms, end->code);
    scene_.figures().number("late_grant_ms", end->after_ms);
    return expect_no_grants("after a late grant");
  }

  // Neither side keeps an entry whose peer has none.
  Status expect_no_grants(std::string_view when) {
    for (LabRank* rank : {p0_, d0_}) {
      const auto empty = scene_.await_status(
          *rank,
          [](JsonView status) { return status["metrics"]["grants"].number().value_or(-1) == 0; },
          "end of all grants", kPatience);
      if (empty) continue;
      if (empty.error().code != FailureCode::kRoomTimeout) return tl::unexpected(empty.error());
      scene_.find("I4", fmt::format("{} still holds a grant {}", rank->name(), when));
    }
    return {};
  }

  Status twins() {
    for (LabRank* rank : {d0_, p0_}) {
      const auto judged = rank->child().ask(
          "twins", JsonObject().integer("first", 100'000).integer("count", kTwins),
          milliseconds(30'000));
      if (!judged) return tl::unexpected(judged.error());
      const JsonView told = (*judged)->root();
      const std::int64_t right = told["one_refused"].integer().value_or(0);
      const double gap_ms = told["widest_gap_ms"].number().value_or(0);
      scene_.say(
          "{}: {} rooms opened twice at once (within {:.3f} ms): {} times exactly one was "
          "refused, as duplicate-room",
          rank->name(), kTwins, gap_ms, right);
      if (right == kTwins) continue;
      scene_.find("I3", fmt::format("{}: both open {}, both refused {}, other causes {}",
                                    rank->name(), told["both_open"].integer().value_or(-1),
                                    told["both_refused"].integer().value_or(-1),
                                    told["other_causes"].integer().value_or(-1)));
    }
    return {};
  }

  // The first attempt's pages stay the caller's and as they were.
  Status second_attempt() {
    const RoomPlan first{kKeptRoom, 1, 2, true, false};
    const RoomPlan second{kKeptRoom, 2, 2, true, false};
    for (const RoomPlan& room : {first, second}) {
      if (Status ran = run_room(room); !ran) return ran;
    }
    const auto seen = d0_->child().ask("inspect", {});
    if (!seen) return tl::unexpected(seen.error());
    for (const std::string_view what : {"wrong", "spoiled"}) {
      if ((*seen)->root()[what].size() > 0) {
        scene_.find("I1", fmt::format("pages of room {} changed when it came again", kKeptRoom));
      }
    }
    for (const RoomPlan& room : {first, second}) {
      if (Status dropped = tell_room(*d0_, "drop", room); !dropped) return dropped;
    }
    scene_.say("room {} succeeds under two bindings; both attempts' pages are right", kKeptRoom);
    return {};
  }

  Status replays() {
    std::uint64_t binding = 10;
    for (const Replay& replay : kReplays) {
      if (Status replayed = replay_once(replay, binding); !replayed) return replayed;
      if (!scene_.findings().empty()) return {};
      binding += 2;
    }
    return {};
  }

  Status await_more(LabRank& rank, std::string_view name, double before) {
    const auto more = scene_.await_status(
        rank,
        [&](JsonView status) { return status["metrics"][name].number().value_or(0) > before; },
        fmt::format("rise of {}", name), kPatience);
    return more ? Status{} : tl::unexpected(more.error());
  }

  // The message is held back, said again by its sender, and let go in the life of the next attempt.
  Status replay_once(const Replay& replay, std::uint64_t binding) {
    const RoomPlan first{kRoom, binding, 2, false, replay.aborts};
    const RoomPlan second{kRoom, binding + 1, 2, false, true};
    LabRank& says = replay.incoming ? *p0_ : *d0_;
    const auto said = metric(says, "retransmissions_total");
    if (!said) return tl::unexpected(said.error());
    const auto told = d0_->child().ask("fault", JsonObject()
                                                    .text("kind", replay.kind)
                                                    .text("way", replay.incoming ? "in" : "out")
                                                    .text("what", "hold"));
    if (!told) return tl::unexpected(told.error());
    if (Status opened = open(first); !opened) return opened;
    if (replay.aborts) {
      if (Status granted = await_room_status(*p0_, first, KvPoll::kWaitingForInput, kPatience);
          !granted) {
        return granted;
      }
      if (Status aborted = tell_room(*d0_, "abort", first); !aborted) return aborted;
    }
    for (LabRank* rank : {d0_, p0_}) {
      if (Status ended = expect_end(scene_, *rank, first, !replay.aborts, kPatience); !ended) {
        return ended;
      }
    }
    if (Status opened = open(second); !opened) return opened;
    if (Status granted = await_room_status(*p0_, second, KvPoll::kWaitingForInput, kPatience);
        !granted) {
      return granted;
    }
    if (Status again = await_more(says, "retransmissions_total", *said); !again) return again;
    LabRank& hears = replay.incoming ? *d0_ : *p0_;
    const auto before = metric(hears, "duplicate_messages_total");
    if (!before) return tl::unexpected(before.error());
    if (const auto released = d0_->child().ask("release", {}); !released) {
      return tl::unexpected(released.error());
    }
    if (Status came = await_more(hears, "duplicate_messages_total", *before); !came) return came;
    if (Status sent = tell_room(*p0_, "send", second); !sent) return sent;
    for (LabRank* rank : {d0_, p0_}) {
      if (Status ended = expect_end(scene_, *rank, second, true, kPatience); !ended) return ended;
    }
    scene_.say("{} of a room's {} attempt comes again in its next one: counted, without effect",
               replay.kind, replay.aborts ? "aborted" : "first");
    return {};
  }

  Status look_back() {
    if (Status none = expect_no_grants("at the end"); !none) return none;
    for (std::size_t i = 0; i < before_.size(); ++i) {
      LabRank& rank = i == 0 ? *p0_ : *d0_;
      if (Status same = expect_baseline(scene_, rank, before_[i], kPatience); !same) return same;
    }
    const auto verdict = scene_.check();
    return verdict ? Status{} : tl::unexpected(verdict.error());
  }

  DrillScene& scene_;
  Cluster& cluster_;
  LabRank* p0_ = nullptr;
  LabRank* d0_ = nullptr;
  std::array<Census, 2> before_{};
};

}  // namespace

Status run_room_identity(DrillScene& scene) { return RoomIdentity(scene).run(); }

}  // namespace kvferry::lab
