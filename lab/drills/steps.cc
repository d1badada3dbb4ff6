#include "lab/drills/steps.h"

#include <fstream>
#include <limits>
#include <thread>
#include <utility>

#include "kvferry/options.h"
#include "net/endpoint.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;

bool names(JsonView told, const RoomPlan& room) {
  return told["room"].integer() == static_cast<std::int64_t>(room.number) &&
         told["binding"].integer() == static_cast<std::int64_t>(room.binding);
}

// A patience that ended without an answer is what a hang looks like.
bool is_hang(const Failure& failure) { return failure.code == FailureCode::kRoomTimeout; }

}  // namespace

double metric(const Told& status, std::string_view name) {
  return status->root()["metrics"][name].number().value_or(0);
}

Result<double> metric(LabRank& rank, std::string_view name) {
  const auto status = rank.status();
  if (!status) return tl::unexpected(status.error());
  return metric(*status, name);
}

Status expect_end(DrillScene& scene, LabRank& rank, const RoomPlan& room, bool success,
                  milliseconds patience) {
  const auto end = rank.await_end(room.number, room.binding, patience);
  if (!end && !is_hang(end.error())) return tl::unexpected(end.error());
  if (!end) {
    scene.find("I3", fmt::format("room {} has no end at {} after {} ms", room.number, rank.name(),
                                 patience.count()));
  } else if (end->success != success) {
    scene.find("I3",
               fmt::format("room {} {} at {}{}", room.number, end->success ? "succeeded" : "failed",
                           rank.name(), end->success ? "" : ": " + end->code + ": " + end->what));
  }
  return {};
}

Status expect_success(DrillScene& scene, RankPair pair, const RoomPlan& room,
                      milliseconds patience) {
  if (Status opened = scene.cluster().open(pair.prefill, pair.decode, room); !opened) {
    return opened;
  }
  const std::size_t before = scene.findings().size();
  for (LabRank* rank : {&pair.decode, &pair.prefill}) {
    if (Status ended = expect_end(scene, *rank, room, true, patience); !ended) return ended;
    // The other end would only say the same.
    if (scene.findings().size() > before) return {};
  }
  return {};
}

Status await_room_status(LabRank& rank, const RoomPlan& room, KvPoll status,
                         milliseconds patience) {
  const auto told = rank.child().await(
      [&](JsonView line) {
        return line["event"].text() == "status" && names(line, room) &&
               line["status"].text() == to_string(status);
      },
      fmt::format("{} of room {}", to_string(status), room.number), patience);
  return told ? Status{} : tl::unexpected(told.error());
}

Status await_returned(LabRank& rank, const RoomPlan& room, milliseconds patience) {
  const auto told = rank.child().await(
      [&](JsonView line) {
        return line["event"].text() == "returned" &&
               line["room"].integer() == static_cast<std::int64_t>(room.number);
      },
      fmt::format("return of room {}'s pages", room.number), patience);
  return told ? Status{} : tl::unexpected(told.error());
}

Status tell_room(LabRank& rank, std::string_view what, const RoomPlan& room) {
  const auto told =
      rank.child().ask(what, JsonObject()
                                 .integer("room", static_cast<std::int64_t>(room.number))
                                 .integer("binding", static_cast<std::int64_t>(room.binding)));
  return told ? Status{} : tl::unexpected(told.error());
}

Status open_held(DrillScene& scene, RankPair pair, const RoomPlan& room, milliseconds patience) {
  RoomPlan held = room;
  held.hold = true;
  if (Status opened = scene.cluster().open(pair.prefill, pair.decode, held); !opened) return opened;
  if (Status granted = await_room_status(pair.decode, held, KvPoll::kTransferring, patience);
      !granted) {
    return granted;
  }
  return await_room_status(pair.prefill, held, KvPoll::kWaitingForInput, patience);
}

milliseconds silence_timeout(const DrillScene& scene) {
  return milliseconds{scene.stretch() * Options{}.heartbeat_timeout_ms};
}

double most_silence_ms(const DrillScene& scene) {
  return 1.1 * static_cast<double>(silence_timeout(scene).count()) * scene.slack();
}

std::vector<std::string> soon_full_options(const DrillScene& scene) {
  return {"--pages=131072", "--page-bytes=256", "--control-message-max-bytes=1048576",
          "--control-queue-max-bytes=1048576",
          fmt::format("--heartbeat-timeout-ms={}", silence_timeout(scene).count())};
}

Result<std::vector<support::Relay*>> relay_everything(Cluster& cluster, RankPair pair) {
  auto to_prefill = cluster.relay_control(pair.decode, pair.prefill);
  auto to_decode = cluster.relay_control(pair.prefill, pair.decode);
  auto data = cluster.relay_data(pair.prefill, pair.decode);
  std::vector<support::Relay*> relays;
  for (const auto* relay : {&to_prefill, &to_decode, &data}) {
    if (!*relay) return tl::unexpected(relay->error());
    relays.push_back(**relay);
  }
  return relays;
}

Result<data_plane::tcp::Listener> kill_and_squat(LabRank& rank) {
  rank.child().kill();
  const auto address = net::parse_endpoint(rank.control());
  return data_plane::tcp::listen_on(address->host, address->port);
}

Status expect_ready(DrillScene& scene, LabRank& rank, std::string_view when) {
  const auto status = rank.status();
  if (!status) return tl::unexpected(status.error());
  const JsonView problems = (*status)->root()["problems"];
  for (std::size_t i = 0; i < problems.size(); ++i) {
    scene.find("I3", fmt::format("{} is not ready {}: {}", rank.name(), when,
                                 problems.at(i).text().value_or("")));
  }
  return {};
}

Result<Census> count_idle(DrillScene& scene, LabRank& rank, std::int64_t pages,
                          milliseconds patience) {
  Census census;
  const auto idle = scene.await_status(
      rank,
      [&](JsonView status) {
        census = census_of(status);
        return census.rooms == 0 && census.free_pages == pages;
      },
      fmt::format("{} free pages and no room", pages), patience);
  if (!idle) return tl::unexpected(idle.error());
  return census;
}

Status expect_baseline(DrillScene& scene, LabRank& rank, const Census& before,
                       milliseconds patience) {
  Census last;
  const auto settled = scene.await_status(
      rank,
      [&](JsonView status) {
        last = census_of(status);
        return compare(rank.name(), before, last).empty();
      },
      "baseline", patience);
  if (settled) return {};
  if (!is_hang(settled.error())) return tl::unexpected(settled.error());
  scene.find_all(compare(rank.name(), before, last));
  return {};
}

Result<ProcessFigures> expect_figures(DrillScene& scene, const std::string& name, pid_t pid,
                                      const ProcessFigures& before, std::int64_t growth_kib,
                                      milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const std::int64_t bound_kib =
      kMemoryTells ? growth_kib : std::numeric_limits<std::int32_t>::max();
  for (;;) {
    const auto now = figures_of(pid);
    if (!now) return now;
    auto findings = compare(name, before, *now, bound_kib);
    if (findings.empty()) return now;
    if (scene.interrupted()) return fail(FailureCode::kAborted, "interrupted");
    if (std::chrono::steady_clock::now() >= deadline) {
      scene.find_all(std::move(findings));
      return now;
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

Result<RoomEnds> ends_of(DrillScene& scene, LabRank& rank) {
  const auto journal = scene.cluster().journals().find(rank.child().name());
  if (journal == scene.cluster().journals().end()) {
    return fail(FailureCode::kWrongState, rank.child().name() + " has no journal");
  }
  RoomEnds ends;
  std::ifstream file(journal->second);
  for (std::string text; std::getline(file, text);) {
    if (text.find(R"("at":"end")") == std::string::npos) continue;
    const auto parsed = router::JsonDocument::parse(text);
    if (!parsed) continue;
    const JsonView line = parsed->root();
    ends[{static_cast<std::uint64_t>(line["room"].integer().value_or(0)),
          static_cast<std::uint64_t>(line["binding"].integer().value_or(0))}] =
        Instant(Duration(line["ns"].integer().value_or(0)));
  }
  return ends;
}

}  // namespace kvferry::lab
