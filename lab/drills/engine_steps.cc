#include "lab/drills/engine_steps.h"

#include <algorithm>

namespace kvferry::lab {
namespace {

std::string how(const RoomEnd& end) { return end.success ? "Success" : end.code; }

}  // namespace

Status await_room_status(std::span<LabRank* const> ranks, const RoomPlan& room, KvPoll status,
                         milliseconds patience) {
  for (LabRank* rank : ranks) {
    if (Status entered = await_room_status(*rank, room, status, patience); !entered) {
      return entered;
    }
  }
  return {};
}

Status open_held(DrillScene& scene, const EnginePair& pair, const RoomPlan& room,
                 milliseconds patience) {
  RoomPlan held = room;
  held.hold = true;
  if (Status opened = open_everywhere(scene.cluster(), pair, held); !opened) return opened;
  if (Status granted = await_room_status(pair.decode.ranks, held, KvPoll::kTransferring, patience);
      !granted) {
    return granted;
  }
  return await_room_status(pair.prefill.ranks, held, KvPoll::kWaitingForInput, patience);
}

Result<SpanEnd> expect_ends(DrillScene& scene, std::span<LabRank* const> ranks,
                            const RoomPlan& room, bool success, milliseconds patience) {
  const std::size_t before = scene.findings().size();
  SpanEnd span;
  for (LabRank* rank : ranks) {
    if (Status ended = expect_end(scene, *rank, room, success, patience); !ended) {
      return tl::unexpected(ended.error());
    }
    // The others would wait in vain, too.
    if (scene.findings().size() > before) return SpanEnd{};
    auto end = rank->await_end(room.number, room.binding, patience);
    if (!end) return tl::unexpected(end.error());
    span.ends.push_back(std::move(*end));
  }
  const auto [first, last] = std::ranges::minmax_element(span.ends, {}, &RoomEnd::at);
  span.apart_ms = ms_between(first->at, last->at);
  const auto name = [&](auto end) { return ranks[end - span.ends.begin()]->name(); };
  for (auto end = span.ends.begin(); end != span.ends.end(); ++end) {
    if (end->code == first->code) continue;
    scene.find("I6", fmt::format("room {}: {} at {}, which was the first to end, {} at {}",
                                 room.number, how(*first), name(first), how(*end), name(end)));
  }
  if (const double most = kApartMs * scene.slack(); span.apart_ms > most) {
    scene.find("I3", fmt::format("room {} ended at {} {:.0f} ms after {}, at most {:.0f} may be",
                                 room.number, name(last), span.apart_ms, name(first), most));
  }
  return span;
}

Status expect_success(DrillScene& scene, const EnginePair& pair, const RoomPlan& room,
                      milliseconds patience) {
  if (Status opened = open_everywhere(scene.cluster(), pair, room); !opened) return opened;
  const auto ended = expect_ends(scene, pair.ranks(), room, true, patience);
  return ended ? Status{} : tl::unexpected(ended.error());
}

Result<std::vector<Census>> count_idle(DrillScene& scene, std::span<LabRank* const> ranks,
                                       std::int64_t pages, milliseconds patience) {
  std::vector<Census> counted;
  for (LabRank* rank : ranks) {
    const auto here = count_idle(scene, *rank, pages, patience);
    if (!here) return tl::unexpected(here.error());
    counted.push_back(*here);
  }
  return counted;
}

Status expect_baseline(DrillScene& scene, std::span<LabRank* const> ranks,
                       const std::vector<Census>& before, milliseconds patience) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (Status same = expect_baseline(scene, *ranks[i], before[i], patience); !same) return same;
  }
  return {};
}

}  // namespace kvferry::lab
