// F2: a prefill process is killed and starts again at its address. Its long form goes on for a
// minute, in which a prefill and a decode rank are killed every two seconds.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>

#include "base/clock.h"
#include "lab/drills/steps.h"

namespace kvferry::lab {
namespace {

using router::JsonView;

constexpr std::array kPauses{milliseconds(0), milliseconds(50), milliseconds(500),
                             milliseconds(2'000)};
constexpr std::uint64_t kRoomsInFlight = 8;
constexpr std::int64_t kPages = 256;
constexpr milliseconds kPatience{10'000};
// From the new life's readiness to the end of its first room.
constexpr double kFirstRoomMs = 1'000;
// From the kill until the rooms in flight have failed.
constexpr double kFailedMs = 1'000;
// So long is waited for it before it counts as never.
constexpr milliseconds kNever{6'000};

// The long form.
constexpr milliseconds kBeat{2'000};
constexpr milliseconds kStorm{60'000};
// Before the figures of the survivors are taken: allocators and tables have their size then.
constexpr int kWarmUpKills = 5;
// The times of a rank's calls, which the drill itself makes it keep, are some 500 KiB of it.
constexpr std::int64_t kGrowthKib = 2'048;

// One death and one new life of the prefill rank.
class Restart {
 public:
  // quiet: what is as it must be is not told.
  Restart(DrillScene& scene, RankPair pair, milliseconds pause, std::uint64_t first_room,
          bool quiet)
      : scene_(scene),
        prefill_(pair.prefill),
        decode_(pair.decode),
        pause_(pause),
        first_(first_room),
        quiet_(quiet) {}

  Status run() {
    if (Status killed = kill_in_flight(); !killed) return killed;
    std::this_thread::sleep_for(pause_);
    if (Status started = scene_.cluster().restart(prefill_); !started) return started;
    // The registry takes it once the former life's row has given way.
    const auto ready_status = scene_.await_status(
        prefill_, [](JsonView status) { return status["problems"].size() == 0; }, "readiness",
        kPatience);
    if (!ready_status) return tl::unexpected(ready_status.error());
    const double ready = scene_.seconds();
    if (!quiet_) {
      scene_.say("{} lives again at {}, {} ms later, and is ready", prefill_.name(),
                 prefill_.control(), pause_.count());
    }
    if (Status done = first_room(ready); !done) return done;
    return old_rooms();
  }

  double first_room_ms() const { return first_room_ms_; }
  double failed_ms() const { return failed_ms_; }

 private:
  // Their grants are with the prefill rank, whose senders hold their pages back.
  Status kill_in_flight() {
    for (std::uint64_t i = 0; i < kRoomsInFlight; ++i) {
      const RoomPlan room{first_ + i, life_of(first_), 2, false, true};
      if (Status opened = scene_.cluster().open(prefill_, decode_, room); !opened) return opened;
    }
    const auto granted = decode_.child().await(
        [&](JsonView told) {
          return told["event"].text() == "status" && told["status"].text() == "Transferring" &&
                 told["room"].integer() == static_cast<std::int64_t>(first_ + kRoomsInFlight - 1);
        },
        "grant of the last room", kPatience);
    if (!granted) return tl::unexpected(granted.error());
    killed_ = monotonic_now();
    prefill_.child().kill();
    if (!quiet_) scene_.say("p0 is killed with {} rooms in flight", kRoomsInFlight);
    return {};
  }

  // Asks again when the answer was that the peer is gone, as every router does.
  Status first_room(double ready) {
    RoomPlan room{first_ + kRoomsInFlight, life_of(first_), 2, false, false};
    const auto after_ms = [&] { return (scene_.seconds() - ready) * 1'000; };
    std::string last;
    for (int tries = 1; after_ms() < kNever.count(); ++tries, ++room.binding) {
      if (Status opened = scene_.cluster().open(prefill_, decode_, room); !opened) return opened;
      const auto left = milliseconds(static_cast<std::int64_t>(kNever.count() - after_ms()) + 1);
      const auto end = decode_.await_end(room.number, room.binding, left);
      if (!end && end.error().code != FailureCode::kRoomTimeout) {
        return tl::unexpected(end.error());
      }
      if (end && end->success) return judge_first(after_ms(), tries);
      last = end ? end->what : end.error().what;
    }
    scene_.find("I3", fmt::format("{:.0f} ms after p0 was ready no room of its new life has "
                                  "succeeded: {}",
                                  after_ms(), last));
    return {};
  }

  Status judge_first(double after_ms, int tries) {
    first_room_ms_ = after_ms;
    if (!quiet_) {
      scene_.say("the first room of the new life succeeds {:.0f} ms after p0 was ready ({} {})",
                 after_ms, tries, tries == 1 ? "try" : "tries");
      scene_.figures().number(fmt::format("first_room_ms_{}", pause_.count()), after_ms);
    }
    if (after_ms > kFirstRoomMs * scene_.slack()) {
      scene_.find("I3", fmt::format("the first room of the new life took {:.0f} ms", after_ms));
    }
    return {};
  }

  Status old_rooms() {
    if (!scene_.findings().empty()) return {};
    std::string cause;
    for (std::uint64_t i = 0; i < kRoomsInFlight; ++i) {
      const auto end = decode_.await_end(first_ + i, life_of(first_), kPatience);
      if (!end) return tl::unexpected(end.error());
      if (end->success) scene_.find("I2", fmt::format("room {} succeeded without a sender", i));
      cause = fmt::format("{} (peer {})", end->code, end->peer);
    }
    const auto ends = ends_of(scene_, decode_);
    if (!ends) return tl::unexpected(ends.error());
    for (std::uint64_t i = 0; i < kRoomsInFlight; ++i) {
      failed_ms_ = std::max(failed_ms_, ms_between(killed_, ends->at({first_ + i, first_})));
    }
    if (!quiet_) {
      scene_.say("the {} rooms of the old life had failed {:.0f} ms after the kill: {}",
                 kRoomsInFlight, failed_ms_, cause);
      scene_.figures().number(fmt::format("failed_ms_{}", pause_.count()), failed_ms_);
    }
    if (failed_ms_ > kFailedMs * scene_.slack()) {
      scene_.find("I3", fmt::format("rooms of the killed p0 failed only after {:.0f} ms: {}",
                                    failed_ms_, cause));
    }
    return {};
  }

  static std::uint64_t life_of(std::uint64_t first) { return first; }

  DrillScene& scene_;
  LabRank& prefill_;
  LabRank& decode_;
  const milliseconds pause_;
  const std::uint64_t first_;
  const bool quiet_;
  Instant killed_;
  double first_room_ms_ = 0;
  double failed_ms_ = 0;
};

// p0 and d1 are killed again and again; d0, p1 and the registry live through it.
class KillStorm {
 public:
  KillStorm(DrillScene& scene, RankPair survivors, RankPair victims)
      : scene_(scene),
        cluster_(scene.cluster()),
        survivors_(survivors),
        victims_(victims),
        watched_{{"d0", survivors.decode.child().pid(), {}},
                 {"p1", survivors.prefill.child().pid(), {}},
                 {"registry", cluster_.registry().pid(), {}}} {}

  Status run() {
    scene_.say("from here on p0 and d1 are killed every {} s, with rooms in flight",
               kBeat.count() / 1'000);
    for (int kill = 0; kill < kWarmUpKills; ++kill) {
      if (Status done = beat(); !done || !scene_.findings().empty()) return done;
    }
    if (Status counted = take_before(); !counted) return counted;
    const Instant began = monotonic_now();
    int kills = 0;
    for (; monotonic_now() - began < kStorm; ++kills) {
      if (Status done = beat(); !done || !scene_.findings().empty()) return done;
    }
    scene_.say(
        "{} kills of each in {:.0f} s; rooms in flight failed within {:.0f} ms, the first "
        "room of each new life succeeded within {:.0f} ms of its readiness",
        kills, ms_between(began, monotonic_now()) / 1'000, failed_ms_, first_room_ms_);
    scene_.figures()
        .integer("kills", kills)
        .number("storm_failed_ms", failed_ms_)
        .number("storm_first_room_ms", first_room_ms_);
    return judge_survivors();
  }

 private:
  struct Watched {
    std::string name;
    pid_t pid;
    ProcessFigures before;
  };
  RankPair of_d1() { return {survivors_.prefill, victims_.decode}; }

  Status beat() {
    const Instant began = monotonic_now();
    std::vector<RoomPlan> rooms;
    for (std::uint64_t i = 0; i < kRoomsInFlight; ++i) {
      rooms.push_back({next_++, 1, 2, false, true});
      if (Status held = open_held(scene_, of_d1(), rooms.back(), kPatience); !held) return held;
    }
    victims_.decode.child().kill();
    Restart restart(scene_, {victims_.prefill, survivors_.decode}, milliseconds(0), next_, true);
    next_ += kRoomsInFlight + 1;
    if (Status done = restart.run(); !done || !scene_.findings().empty()) return done;
    first_room_ms_ = std::max(first_room_ms_, restart.first_room_ms());
    failed_ms_ = std::max(failed_ms_, restart.failed_ms());
    if (Status started = cluster_.restart(victims_.decode); !started) return started;
    for (const RoomPlan& room : rooms) {
      if (Status ended = expect_end(scene_, survivors_.prefill, room, false, kPatience); !ended) {
        return ended;
      }
    }
    if (Status paired = cluster_.await_pair(victims_.decode, survivors_.prefill, kPatience);
        !paired) {
      return paired;
    }
    if (Status ran = expect_success(scene_, of_d1(), {next_++, 1, 2, false, false}, kPatience);
        !ran) {
      return ran;
    }
    std::this_thread::sleep_for(kBeat - (monotonic_now() - began));
    return {};
  }

  // What the call times of a rank keep of each call is the drill's own.
  Status forget_calls() {
    for (LabRank* rank : {&survivors_.decode, &survivors_.prefill}) {
      const auto told = rank->child().ask("restart_times", {});
      if (!told) return tl::unexpected(told.error());
    }
    return {};
  }

  Status await_idle() {
    for (LabRank* rank : {&survivors_.decode, &survivors_.prefill}) {
      const auto idle = count_idle(scene_, *rank, kPages, kPatience);
      if (!idle) return tl::unexpected(idle.error());
    }
    return forget_calls();
  }

  Status take_before() {
    if (Status idle = await_idle(); !idle) return idle;
    for (Watched& watched : watched_) {
      const auto figures = figures_of(watched.pid);
      if (!figures) return tl::unexpected(figures.error());
      watched.before = *figures;
    }
    return {};
  }

  Status judge_survivors() {
    if (Status idle = await_idle(); !idle) return idle;
    for (const Watched& watched : watched_) {
      const auto after =
          expect_figures(scene_, watched.name, watched.pid, watched.before, kGrowthKib, kPatience);
      if (!after) return tl::unexpected(after.error());
      scene_.say("{}: before {}; after {}", watched.name, to_string(watched.before),
                 to_string(*after));
      scene_.figures()
          .integer(watched.name + "_resident_kib_before", watched.before.resident_kib)
          .integer(watched.name + "_resident_kib_after", after->resident_kib)
          .integer(watched.name + "_descriptors_before", watched.before.descriptors)
          .integer(watched.name + "_descriptors_after", after->descriptors);
    }
    return {};
  }

  DrillScene& scene_;
  Cluster& cluster_;
  RankPair survivors_;
  RankPair victims_;
  std::vector<Watched> watched_;
  std::uint64_t next_ = 10'000;
  double first_room_ms_ = 0;
  double failed_ms_ = 0;
};

Status storm(DrillScene& scene, LabRank& p0, LabRank& d0, const std::vector<std::string>& options) {
  Cluster& cluster = scene.cluster();
  auto p1 = cluster.start({"p1", Role::kPrefill, options, ""});
  auto d1 = cluster.start({"d1", Role::kDecode, options, ""});
  for (const auto* rank : {&p1, &d1}) {
    if (!*rank) return tl::unexpected(rank->error());
  }
  for (const auto& [decode, prefill] : {std::pair{&d0, *p1}, std::pair{*d1, *p1}}) {
    if (Status paired = cluster.await_pair(*decode, *prefill, kPatience); !paired) return paired;
  }
  return KillStorm(scene, {**p1, d0}, {p0, **d1}).run();
}

}  // namespace

Status run_restart(DrillScene& scene) {
  Cluster& cluster = scene.cluster();
  if (Status started = cluster.start_registry(); !started) return started;
  const std::vector<std::string> options = {fmt::format("--pages={}", kPages), "--page-bytes=4096",
                                            "--messages"};
  auto p0 = cluster.start({"p0", Role::kPrefill, options, ""});
  auto d0 = cluster.start({"d0", Role::kDecode, options, scene.missing()});
  for (const auto* rank : {&p0, &d0}) {
    if (!*rank) return tl::unexpected(rank->error());
  }
  if (Status paired = cluster.await_pair(**d0, **p0, kPatience); !paired) return paired;
  if (Status opened = cluster.open(**p0, **d0, {1, 1, 2, false, false}); !opened) return opened;
  if (auto end = (*d0)->await_end(1, 1, kPatience); !end || !end->success) {
    return end ? vacuous("the first room failed: " + end->what) : tl::unexpected(end.error());
  }
  scene.say("p0 and d0 are a pair; one room has succeeded");
  std::uint64_t first_room = 100;
  for (const milliseconds pause : kPauses) {
    Restart restart(scene, {**p0, **d0}, pause, first_room, false);
    if (Status done = restart.run(); !done) return done;
    if (!scene.findings().empty()) break;
    first_room += 100;
  }
  if (scene.long_form() && scene.findings().empty()) {
    if (Status done = storm(scene, **p0, **d0, options); !done) return done;
  }
  const auto verdict = scene.check();
  if (!verdict) return tl::unexpected(verdict.error());
  scene.say("{} messages of sessions of an old life came to a new one", verdict->foreign_messages);
  scene.figures().integer("foreign_messages", static_cast<std::int64_t>(verdict->foreign_messages));
  if (verdict->foreign_messages > 0) {
    scene.find("I3", fmt::format("{} messages that were meant for an old life reached a new one",
                                 verdict->foreign_messages));
  }
  return {};
}

}  // namespace kvferry::lab
