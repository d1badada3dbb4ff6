// F1: a burst of aborts in one process; many threads tell one peer of them at once.
#include <fmt/format.h>

#include "lab/drills/drill.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;

constexpr std::int64_t kRooms = 1'200;
constexpr std::int64_t kRoomsPerStep = 2;
constexpr std::int64_t kThreads = 12;
constexpr std::int64_t kRoomsAfter = 20;
constexpr std::int64_t kFirstInBurst = 1'000;
constexpr std::int64_t kFirstAfter = 5'000;
constexpr milliseconds kPatience{15'000};
// What is long for an abort that goes from one process of a host to another.
constexpr milliseconds kLong{5'000};

JsonObject of_rooms(std::int64_t first, std::int64_t count) {
  JsonObject command;
  return command.integer("first", first).integer("count", count).integer("binding", 1);
}

std::function<bool(JsonView)> ended_at_least(std::int64_t failed, std::int64_t succeeded) {
  return [=](JsonView status) {
    return status["failed"].integer() >= failed && status["succeeded"].integer() >= succeeded;
  };
}

double malformed(const Told& status) {
  return status->root()["metrics"]["malformed_frames_total"].number().value_or(0);
}

struct Pair {
  LabRank& prefill;
  LabRank& decode;
};

// Opens rooms at both ends; at prefill they send nothing by themselves when they are held.
Status open_rooms(DrillScene& scene, Pair pair, std::int64_t first, std::int64_t count, bool hold) {
  const auto granted =
      pair.decode.child().ask("open", of_rooms(first, count)
                                          .integer("pages", 2)
                                          .text("registry", scene.cluster().registry_address())
                                          .text("prefill", pair.prefill.name()));
  if (!granted) return tl::unexpected(granted.error());
  const auto opened = pair.prefill.child().ask(
      "open", of_rooms(first, count).integer("pages", 2).boolean("hold", hold));
  if (!opened) return tl::unexpected(opened.error());
  return {};
}

// A patience that ends is what the failure looks like.
Status await_ends(DrillScene& scene, LabRank& rank, std::int64_t failed, std::int64_t succeeded,
                  std::string_view what) {
  const auto status = scene.await_status(rank, ended_at_least(failed, succeeded), what,
                                         kLong * scene.guarded_slack());
  if (status) return {};
  if (status.error().code != FailureCode::kRoomTimeout) return tl::unexpected(status.error());
  scene.find("I3", status.error().what);
  return {};
}

// In small steps, as rooms come to a server.
Status fill_house(DrillScene& scene, Pair pair) {
  for (std::int64_t first = kFirstInBurst; first < kFirstInBurst + kRooms; first += kRoomsPerStep) {
    if (Status opened = open_rooms(scene, pair, first, kRoomsPerStep, true); !opened) return opened;
    const auto granted = pair.prefill.child().await(
        [&](JsonView told) {
          return told["event"].text() == "status" && told["status"].text() == "WaitingForInput" &&
                 told["room"].integer() == first + kRoomsPerStep - 1;
        },
        fmt::format("grant of room {}", first + kRoomsPerStep - 1), kLong * scene.guarded_slack());
    if (granted) continue;
    if (granted.error().code != FailureCode::kRoomTimeout) return tl::unexpected(granted.error());
    scene.find("I3", granted.error().what);
    return {};
  }
  scene.say("{} rooms are open, their pages granted", kRooms);
  return {};
}

Status burst(DrillScene& scene, Pair pair) {
  if (Status filled = fill_house(scene, pair); !filled || !scene.findings().empty()) return filled;
  const auto aborted = pair.prefill.child().ask(
      "storm", of_rooms(kFirstInBurst, kRooms).integer("threads", kThreads));
  if (!aborted) return tl::unexpected(aborted.error());
  const auto count = (*aborted)->root()["aborted"].integer().value_or(0);
  if (count < kRooms) return vacuous("not all rooms lived when they were to be aborted");
  scene.say("p0: {} threads abort {} rooms at once", kThreads, count);
  return await_ends(scene, pair.decode, kRooms, 0,
                    fmt::format("end of {} rooms that p0 has aborted", kRooms));
}

Status after_burst(DrillScene& scene, Pair pair) {
  if (Status opened = open_rooms(scene, pair, kFirstAfter, kRoomsAfter, false); !opened) {
    return opened;
  }
  return await_ends(scene, pair.decode, 0, kRoomsAfter + 1,
                    fmt::format("success of the {} rooms that came next", kRoomsAfter));
}

}  // namespace

Status run_interleave(DrillScene& scene) {
  Cluster& cluster = scene.cluster();
  if (Status started = cluster.start_registry(); !started) return started;
  const std::vector<std::string> options = {"--pages=4096", "--page-bytes=1024"};
  auto p0 = cluster.start({"p0", Role::kPrefill, options, scene.missing()});
  auto d0 = cluster.start({"d0", Role::kDecode, options, scene.missing()});
  for (const auto* rank : {&p0, &d0}) {
    if (!*rank) return tl::unexpected(rank->error());
  }
  const Pair pair{**p0, **d0};
  if (Status paired = cluster.await_pair(pair.decode, pair.prefill, kPatience); !paired) {
    return paired;
  }
  if (Status opened = open_rooms(scene, pair, 1, 1, false); !opened) return opened;
  const auto first = pair.decode.await_end(1, 1, kPatience);
  if (!first) return tl::unexpected(first.error());
  if (!first->success) {
    if (scene.guard_on()) return vacuous("the first room failed: " + first->what);
    scene.find("I3", "even the first room failed: " + first->what);
    return {};
  }
  scene.say("p0 and d0 are a pair; one room has succeeded");
  if (Status done = burst(scene, pair); !done) return done;
  if (Status done = after_burst(scene, pair); !done) return done;

  const auto decode = pair.decode.status();
  const auto prefill = pair.prefill.status();
  if (!decode || !prefill) return tl::unexpected((decode ? prefill : decode).error());
  for (const auto* status : {&prefill, &decode}) {
    const std::string name = status == &decode ? "d0" : "p0";
    const JsonView problems = (**status)->root()["problems"];
    if (const double bad = malformed(**status); bad > 0) {
      scene.find("I3", fmt::format("{} got {:.0f} malformed frames", name, bad));
    }
    for (std::size_t i = 0; i < problems.size(); ++i) {
      scene.find("I3", fmt::format("{}: {}", name, problems.at(i).text().value_or("")));
    }
  }
  scene.say("d0: {} rooms failed, {} succeeded, {:.0f} frames were malformed",
            (*decode)->root()["failed"].integer().value_or(-1),
            (*decode)->root()["succeeded"].integer().value_or(-1), malformed(*decode));
  scene.figures()
      .integer("aborted", kRooms)
      .integer("succeeded_after", kRoomsAfter)
      .number("malformed", malformed(*decode) + malformed(*prefill));
  if (!scene.findings().empty()) return {};
  const auto verdict = scene.check();
  if (!verdict) return tl::unexpected(verdict.error());
  return {};
}

}  // namespace kvferry::lab
