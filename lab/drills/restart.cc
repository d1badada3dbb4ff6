// F2: a prefill process is killed and starts again at its address.
#include <fmt/format.h>

#include <array>
#include <string>
#include <thread>

#include "lab/drills/drill.h"

namespace kvferry::lab {
namespace {

using router::JsonView;

constexpr std::array kPauses{milliseconds(0), milliseconds(50), milliseconds(500)};
constexpr std::uint64_t kRoomsInFlight = 8;
constexpr milliseconds kPatience{10'000};
// From the new life's readiness to the end of its first room.
constexpr double kFirstRoomMs = 1'000;
// So long is waited for it before it counts as never.
constexpr milliseconds kNever{6'000};

// One death and one new life of p0.
class Restart {
 public:
  Restart(DrillScene& scene, LabRank& prefill, LabRank& decode, milliseconds pause,
          std::uint64_t first_room)
      : scene_(scene), prefill_(prefill), decode_(decode), pause_(pause), first_(first_room) {}

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
    scene_.say("p0 lives again at {}, {} ms later, and is ready", prefill_.control(),
               pause_.count());
    if (Status done = first_room(ready); !done) return done;
    return old_rooms();
  }

 private:
  // Their grants are with p0, whose senders hold their pages back.
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
    prefill_.child().kill();
    scene_.say("p0 is killed with {} rooms in flight", kRoomsInFlight);
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
    scene_.say("the first room of the new life succeeds {:.0f} ms after p0 was ready ({} {})",
               after_ms, tries, tries == 1 ? "try" : "tries");
    scene_.figures().number(fmt::format("first_room_ms_{}", pause_.count()), after_ms);
    if (after_ms > kFirstRoomMs * scene_.slack()) {
      scene_.find("I3", fmt::format("the first room of the new life took {:.0f} ms", after_ms));
    }
    return {};
  }

  Status old_rooms() {
    if (!scene_.findings().empty()) return {};
    double last = 0;
    std::string cause;
    for (std::uint64_t i = 0; i < kRoomsInFlight; ++i) {
      const auto end = decode_.await_end(first_ + i, life_of(first_), kPatience);
      if (!end) return tl::unexpected(end.error());
      if (end->success) scene_.find("I2", fmt::format("room {} succeeded without a sender", i));
      last = std::max(last, end->after_ms);
      cause = fmt::format("{} (peer {})", end->code, end->peer);
    }
    scene_.say("the {} rooms of the old life have failed: {}", kRoomsInFlight, cause);
    return {};
  }

  static std::uint64_t life_of(std::uint64_t first) { return first; }

  DrillScene& scene_;
  LabRank& prefill_;
  LabRank& decode_;
  const milliseconds pause_;
  const std::uint64_t first_;
};

}  // namespace

Status run_restart(DrillScene& scene) {
  Cluster& cluster = scene.cluster();
  if (Status started = cluster.start_registry(); !started) return started;
  const std::vector<std::string> options = {"--pages=256", "--page-bytes=4096", "--messages"};
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
    if (Status done = Restart(scene, **p0, **d0, pause, first_room).run(); !done) return done;
    if (!scene.findings().empty()) break;
    first_room += 100;
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
