// A peer that stops in the middle of something: whatever state a room is in, it leaves it by that
// state's deadline, and nothing of it is left when the peer goes on.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/transition_table.h"
#include "lab/drills/steps.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;
using support::Way;

// So many bytes more, and a frame is in the middle of an item.
constexpr std::uint64_t kCutAfterBytes = 40'001;
constexpr milliseconds kPatience{10'000};
// Of each state; heartbeats and lanes are given ten times as long, so that it is the deadline which
// ends a room.
constexpr std::uint32_t kDeadlineMs = 1'500;
constexpr std::uint32_t kLongMs = 20'000;
constexpr std::uint32_t kSourceHoldMs = 500;
// What an end may be late: a tenth, and what the processes wait for a core.
constexpr double kLateMs = kDeadlineMs * 0.1 + 250;
constexpr std::uint32_t kPages = 64;
constexpr std::uint32_t kRoomPages = 16;
// A room's 1 MiB takes ten seconds.
constexpr std::uint64_t kSlowBytesPerSecond = 50'000;
constexpr std::uint64_t kUnderWayBytes = 20'000;

// What stands for a state in this drill; a state of the library's tables that has no line here
// makes the drill fail to run.
struct StateStory {
  std::string_view machine;
  std::string_view state;
  std::string_view story;
};
constexpr StateStory kStories[] = {
    {"room", "Bootstrapping", "a sender without a grant, a receiver without a session"},
    {"room", "WaitingForInput", "a sender whose caller sends nothing, a receiver without pages"},
    {"room", "Transferring", "writes under way, and a grant whose sender sends nothing"},
    {"grant", "none", "the receiver without pages"},
    {"grant", "granted", "as Transferring"},
    {"grant", "covered", "lasts no longer than the fence, which needs no peer"},
    {"grant", "fenced", "left in the turn in which it is entered"},
    {"grant", "quiet", "only on transports without a fence"},
    {"grant", "torn-down", "only on transports without a fence"},
    {"grant", "revoking", "the receiver's abort with writes under way"},
    {"target", "granted", "the sender whose caller sends nothing"},
    {"target", "posting", "as Transferring"},
    {"target", "done", "Done was said, Consumed never comes"},
    {"target", "given-up", "sources of a room that has failed in mid-write"},
};

Status check_stories() {
  std::string missing;
  const auto look = [&](std::string_view machine, std::string_view state) {
    const bool told = std::ranges::any_of(kStories, [&](const StateStory& story) {
      return story.machine == machine && story.state == state;
    });
    if (!told) missing += fmt::format(" {} {};", machine, state);
  };
  for (const auto& row : core::room_transitions()) look("room", to_string(row.from));
  for (const auto& row : core::grant_transitions()) look("grant", to_string(row.from));
  for (const auto& row : core::target_transitions()) look("target", to_string(row.from));
  return missing.empty() ? Status{} : vacuous("states without a story:" + missing);
}

// A room that sits in a state at one of its ends.
struct Sitting {
  RoomPlan room;
  LabRank* where = nullptr;
  KvPoll state = KvPoll::kBootstrapping;
  double since = 0;  // s
};

class FrozenStates {
 public:
  explicit FrozenStates(DrillScene& scene) : scene_(scene), cluster_(scene.cluster()) {}

  Status run() {
    using Step = Status (FrozenStates::*)();
    if (Status told = check_stories(); !told) return told;
    for (const Step step : {&FrozenStates::start, &FrozenStates::stop_receiver,
                            &FrozenStates::stop_sender, &FrozenStates::reset_connections}) {
      if (Status done = (this->*step)(); !done) return done;
      if (!scene_.findings().empty()) return {};
    }
    scene_.figures().number("deadline_ms", kDeadlineMs).number("slowest_ms", slowest_ms_);
    return {};
  }

 private:
  RankPair pair() { return {*p0_, *d0_}; }

  Status start() {
    if (Status started = cluster_.start_registry(); !started) return started;
    const std::vector<std::string> options = {
        fmt::format("--pages={}", kPages),
        fmt::format("--bootstrap-timeout-ms={}", kDeadlineMs),
        fmt::format("--input-timeout-ms={}", kDeadlineMs),
        fmt::format("--transfer-timeout-ms={}", kDeadlineMs),
        fmt::format("--source-hold-timeout-ms={}", kSourceHoldMs),
        fmt::format("--heartbeat-timeout-ms={}", kLongMs),
        fmt::format("--lane-timeout-ms={}", kLongMs),
        fmt::format("--lease-ms={}", kLongMs)};
    std::array<LabRank**, 3> ranks = {&p0_, &d0_, &d1_};
    constexpr std::array kNames = {"p0", "d0", "d1"};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      auto rank = cluster_.start(
          {kNames[i], i == 0 ? Role::kPrefill : Role::kDecode, options, scene_.missing()});
      if (!rank) return tl::unexpected(rank.error());
      *ranks[i] = *rank;
    }
    auto data = cluster_.relay_data(*p0_, *d0_);
    auto to_p0 = cluster_.relay_control(*d0_, *p0_);
    auto to_d0 = cluster_.relay_control(*p0_, *d0_);
    for (auto* relay : {&data, &to_p0, &to_d0}) {
      if (!*relay) return tl::unexpected(relay->error());
    }
    data_ = *data;
    control_ = {*to_p0, *to_d0};
    if (Status paired = cluster_.await_pair(*d0_, *p0_, kPatience); !paired) return paired;
    if (Status ran = expect_success(scene_, pair(), plan(1), kPatience); !ran) return ran;
    if (Status counted = count_before(); !counted) return counted;
    scene_.say("p0 and d0 are a pair, d1 knows nobody yet; each state has {} ms", kDeadlineMs);
    return {};
  }

  Status count_before() {
    for (std::size_t i = 0; i < before_.size(); ++i) {
      const auto counted = count_idle(scene_, i == 0 ? *p0_ : *d0_, kPages, kPatience);
      if (!counted) return tl::unexpected(counted.error());
      before_[i] = *counted;
    }
    return {};
  }

  static RoomPlan plan(std::uint64_t number, bool hold = false) {
    return {number, 1, kRoomPages, false, hold};
  }
  void slow(bool slowed) {
    data_->set(Way::kToTarget, {.bytes_per_s = slowed ? kSlowBytesPerSecond : 0});
  }

  // Until some of the room's bytes are under way, and far from all.
  Status start_writing(const RoomPlan& room) {
    slow(true);
    const std::uint64_t before = data_->taken(Way::kToTarget);
    if (Status opened = cluster_.open(*p0_, *d0_, room); !opened) return opened;
    if (data_->wait_taken(Way::kToTarget, before + kUnderWayBytes, kPatience)) return {};
    return vacuous(fmt::format("room {}'s bytes did not come under way", room.number));
  }

  // Until the room is in the state there.
  Result<Sitting> sit(const RoomPlan& room, LabRank& where, KvPoll state) {
    // Nobody is told of the state in which every room begins.
    if (state != KvPoll::kBootstrapping) {
      if (Status entered = await_room_status(where, room, state, kPatience); !entered) {
        return tl::unexpected(entered.error());
      }
    }
    return Sitting{room, &where, state, scene_.seconds()};
  }

  Status expect_bounded(const Sitting& sitting) {
    const double slack = scene_.guard_on() ? scene_.slack() : 1;
    const double bound_ms = kDeadlineMs + kLateMs * slack;
    const double left_ms = bound_ms - (scene_.seconds() - sitting.since) * 1'000;
    const auto end = sitting.where->await_end(
        sitting.room.number, sitting.room.binding,
        milliseconds(std::max<std::int64_t>(static_cast<std::int64_t>(left_ms), 1)));
    const double after_ms = (scene_.seconds() - sitting.since) * 1'000;
    if (!end && end.error().code != FailureCode::kRoomTimeout) return tl::unexpected(end.error());
    const std::string_view name = sitting.where->name();
    if (!end) {
      scene_.find(
          "I3",
          fmt::format("{} at {} is unbounded: room {} is in it after {:.0f} ms, and its "
                      "deadline was {}",
                      to_string(sitting.state), name, sitting.room.number, after_ms, kDeadlineMs));
    } else if (end->success) {
      return vacuous(
          fmt::format("room {} succeeded although its peer was stopped", sitting.room.number));
    } else {
      scene_.say("{:<15} at {} ended after {:4.0f} ms: {}", to_string(sitting.state), name,
                 after_ms, end->code);
      slowest_ms_ = std::max(slowest_ms_, after_ms);
    }
    return {};
  }

  Status await_returned(LabRank& rank, const RoomPlan& room, std::string_view whose) {
    const auto back = rank.child().await(
        [&](JsonView told) {
          return told["event"].text() == "returned" &&
                 told["room"].integer() == static_cast<std::int64_t>(room.number);
        },
        fmt::format("return of room {}'s pages", room.number), kPatience);
    if (back) {
      scene_.say("{} pages of room {} are back while its peer is stopped", whose, room.number);
      return {};
    }
    if (back.error().code != FailureCode::kRoomTimeout) return tl::unexpected(back.error());
    scene_.find("I4", back.error().what);
    return {};
  }

  // --- the receiver is stopped ---

  Status stop_receiver() {
    std::vector<Sitting> sitting;
    const auto add = [&](Result<Sitting> next) -> Status {
      if (!next) return tl::unexpected(next.error());
      sitting.push_back(std::move(*next));
      return {};
    };
    const RoomPlan done = plan(10);
    const RoomPlan alone = plan(11);
    const RoomPlan held = plan(12, true);
    const RoomPlan writing = plan(13);
    const auto lost = d0_->child().ask("fault", JsonObject()
                                                    .text("kind", "consumed")
                                                    .text("way", "out")
                                                    .text("what", "drop")
                                                    .integer("count", 3));
    if (!lost) return tl::unexpected(lost.error());
    if (Status opened = cluster_.open(*p0_, *d0_, done); !opened) return opened;
    if (Status added = add(sit(done, *p0_, KvPoll::kTransferring)); !added) return added;
    if (Status ended = expect_end(scene_, *d0_, done, true, kPatience); !ended) return ended;
    slow(true);
    if (Status opened = cluster_.open_prefill(*p0_, alone); !opened) return opened;
    if (Status added = add(sit(alone, *p0_, KvPoll::kBootstrapping)); !added) return added;
    if (Status opened = open_held(scene_, pair(), held, kPatience); !opened) return opened;
    if (Status added = add(sit(held, *p0_, KvPoll::kWaitingForInput)); !added) return added;
    if (Status opened = cluster_.open(*p0_, *d0_, writing); !opened) return opened;
    if (Status added = add(sit(writing, *p0_, KvPoll::kTransferring)); !added) return added;
    d0_->child().stop();
    scene_.say(
        "d0 is stopped (SIGSTOP); p0 has a room in each state, and one more that only lacks "
        "Consumed");
    for (const Sitting& each : sitting) {
      if (Status bounded = expect_bounded(each); !bounded) return bounded;
    }
    if (!scene_.findings().empty()) return {};
    if (Status back = await_returned(*p0_, writing, "the source"); !back) return back;
    d0_->child().resume();
    for (const RoomPlan& room : {held, writing}) {
      if (Status ended = expect_end(scene_, *d0_, room, false, kPatience); !ended) return ended;
    }
    return look_back("d0 goes on", 19);
  }

  // --- the sender is stopped ---

  Status stop_sender() {
    const RoomPlan held = plan(20, true);
    RoomPlan greedy = plan(21);
    greedy.pages = kPages + 1;  // they never come, so that its caller gives none
    const RoomPlan writing = plan(22);
    const RoomPlan strange = plan(23);
    if (Status started = start_writing(writing); !started) return started;
    if (Status opened = open_held(scene_, pair(), held, kPatience); !opened) return opened;
    auto granted = sit(held, *d0_, KvPoll::kTransferring);
    if (!granted) return tl::unexpected(granted.error());
    if (Status opened = cluster_.open_decode(*d0_, "p0", greedy); !opened) return opened;
    auto waiting = sit(greedy, *d0_, KvPoll::kWaitingForInput);
    if (!waiting) return tl::unexpected(waiting.error());
    p0_->child().stop();
    scene_.say("p0 is stopped (SIGSTOP); d0 has a room in each state but the first, d1 opens one");
    if (Status opened = cluster_.open_decode(*d1_, "p0", strange); !opened) return opened;
    auto unknown = sit(strange, *d1_, KvPoll::kBootstrapping);
    if (!unknown) return tl::unexpected(unknown.error());
    if (Status aborted = tell_room(*d0_, "abort", writing); !aborted) return aborted;
    if (Status ended = expect_end(scene_, *d0_, writing, false, kPatience); !ended) return ended;
    if (Status back = await_returned(*d0_, writing, "d0's"); !back) return back;
    for (const Sitting& each : {*granted, *waiting, *unknown}) {
      if (Status bounded = expect_bounded(each); !bounded) return bounded;
    }
    if (!scene_.findings().empty()) return {};
    p0_->child().resume();
    for (const RoomPlan& room : {held, writing}) {
      if (Status ended = expect_end(scene_, *p0_, room, false, kPatience); !ended) return ended;
    }
    if (Status same = look_back("p0 goes on", 28); !same) return same;
    if (Status ran = expect_success(scene_, {*p0_, *d1_}, plan(29), kPatience); !ran) return ran;
    // The last step has a room whose two ends each see the same torn copy in their own way.
    if (const auto verdict = scene_.check(); !verdict) return tl::unexpected(verdict.error());
    // d1 is a peer of p0 from here on.
    return count_before();
  }

  // --- connections are reset ---

  static std::string how(const RoomEnd& end) { return end.success ? "Success" : end.code; }

  // In the midst of a copy. Returns once no byte more goes to d0 over the old lanes: a room that is
  // sent after that is not torn by the cut. False: too few bytes were under way.
  bool reset() {
    for (support::Relay* relay : control_) relay->cut();
    data_->cut_after(kCutAfterBytes);
    return data_->wait_cut(kPatience);
  }

  // Both processes live: rooms that wait go on, and one whose bytes were under way may fail, but
  // soon and at both ends.
  Status reset_connections() {
    const RoomPlan alone = plan(30);
    const RoomPlan held = plan(31, true);
    const RoomPlan writing = plan(32);
    if (Status opened = cluster_.open_prefill(*p0_, alone); !opened) return opened;
    if (Status opened = open_held(scene_, pair(), held, kPatience); !opened) return opened;
    if (Status started = start_writing(writing); !started) return started;
    if (!reset()) return vacuous("nothing was under way when connections were cut");
    slow(false);
    scene_.say("all connections of p0 and d0 are cut, with a room in each state");
    if (Status opened = cluster_.open_decode(*d0_, "p0", alone); !opened) return opened;
    if (Status told = tell_room(*p0_, "send", held); !told) return told;
    for (const RoomPlan& room : {alone, held}) {
      for (LabRank* rank : {d0_, p0_}) {
        if (Status ended = expect_end(scene_, *rank, room, true, kPatience); !ended) return ended;
      }
    }
    const auto source = p0_->await_end(writing.number, 1, kPatience);
    const auto target = d0_->await_end(writing.number, 1, kPatience);
    if (!source || !target) return tl::unexpected((source ? target : source).error());
    if (source->success != target->success) {
      scene_.find("I6", fmt::format("room {}: {} at p0, {} at d0", writing.number, how(*source),
                                    how(*target)));
    }
    scene_.say("the rooms that waited succeed; the one in mid-write: {} at p0, {} at d0",
               how(*source), how(*target));
    return look_back("connections are back", 39);
  }

  Status look_back(std::string_view when, std::uint64_t probe) {
    slow(false);
    for (std::size_t i = 0; i < before_.size(); ++i) {
      LabRank& rank = i == 0 ? *p0_ : *d0_;
      if (Status same = expect_baseline(scene_, rank, before_[i], kPatience); !same) return same;
    }
    if (Status ran = expect_success(scene_, pair(), plan(probe), kPatience); !ran) return ran;
    if (scene_.findings().empty()) {
      scene_.say("{}: nothing is left at p0 and d0, and the next room succeeds", when);
    }
    return {};
  }

  DrillScene& scene_;
  Cluster& cluster_;
  LabRank* p0_ = nullptr;
  LabRank* d0_ = nullptr;
  LabRank* d1_ = nullptr;
  support::Relay* data_ = nullptr;
  std::array<support::Relay*, 2> control_{};
  std::array<Census, 2> before_{};
  double slowest_ms_ = 0;
};

}  // namespace

Status run_frozen_state(DrillScene& scene) { return FrozenStates(scene).run(); }

}  // namespace kvferry::lab
