// What a drill judges itself, over the checker's verdict and over processes that live.
#include <fmt/format.h>

#include <algorithm>

#include "lab/rig/checker.h"

namespace kvferry::lab {
namespace {

using router::JsonView;

constexpr std::int64_t kNsPerMs = 1'000'000;
constexpr double kP999Ms = 20;
constexpr double kMaxMs = 50;

std::int64_t whole(JsonView line, std::string_view key) { return line[key].integer().value_or(-1); }
std::string words(JsonView line, std::string_view key) { return line[key].text().value_or(""); }

}  // namespace

std::vector<Finding> judge_span(const JournalVerdict& verdict, std::int64_t room,
                                std::int64_t binding, const std::vector<std::string>& lives,
                                double apart_ms) {
  std::vector<Finding> findings;
  const auto ends = verdict.ends.find({room, binding});
  const ParticipantEnd* first = nullptr;
  const ParticipantEnd* last = nullptr;
  for (const std::string& life : lives) {
    const ParticipantEnd* here = nullptr;
    if (ends != verdict.ends.end()) {
      const auto found = std::ranges::find(ends->second, life, &ParticipantEnd::life);
      if (found != ends->second.end()) here = &*found;
    }
    if (here == nullptr) {
      findings.push_back({"I3", fmt::format("room {}/{} has no end at {}", room, binding, life)});
      continue;
    }
    if (first == nullptr || here->ns < first->ns) first = here;
    if (last == nullptr || here->ns > last->ns) last = here;
  }
  if (first == nullptr || apart_ms == 0) return findings;
  const double apart = static_cast<double>(last->ns - first->ns) / kNsPerMs;
  if (apart > apart_ms) {
    findings.push_back(
        {"I3", fmt::format("room {}/{}: it ended at {} {:.0f} ms after {}, at most {:.0f} may be",
                           room, binding, last->life, apart, first->life, apart_ms)});
  }
  return findings;
}

std::vector<Finding> judge_drained(const JournalVerdict& verdict, std::int64_t room,
                                   std::int64_t binding, const std::vector<std::string>& lives,
                                   std::size_t writers) {
  std::vector<Finding> findings;
  const auto found = verdict.writers.find({room, binding});
  if (found == verdict.writers.end()) return findings;
  for (const std::string& life : lives) {
    std::size_t slots = 0;
    std::size_t heard = 0;
    for (const WriterRecord& record : found->second) {
      if (record.life != life) continue;
      ++slots;
      heard += record.drained > 0 ? 1 : 0;
      if (record.drained > (record.heard_abort ? 2 : 1)) {
        findings.push_back(
            {"I3", fmt::format("room {}/{}: {} was told {} times that one of its writers is quiet",
                               room, binding, life, record.drained)});
      }
    }
    if (slots > 0 && heard != writers) {
      findings.push_back(
          {"I3", fmt::format("room {}/{}: {} heard of {} writers that they are quiet, of {}", room,
                             binding, life, heard, writers)});
    }
  }
  return findings;
}

Census census_of(JsonView status) {
  return {whole(status, "free_pages"), whole(status, "threads"), whole(status, "descriptors"),
          whole(status, "rooms")};
}

std::vector<Finding> compare(const std::string& rank, const Census& before, const Census& after) {
  std::vector<Finding> findings;
  const auto differs = [&](std::string_view what, std::int64_t was, std::int64_t is) {
    findings.push_back(
        {"I4", fmt::format("{}: {} {} at the start, {} at the end", rank, was, what, is)});
  };
  if (after.free_pages != before.free_pages) {
    differs("free pages", before.free_pages, after.free_pages);
  }
  if (after.rooms != before.rooms) differs("rooms", before.rooms, after.rooms);
  if (after.threads > before.threads) differs("threads", before.threads, after.threads);
  if (after.descriptors > before.descriptors) {
    differs("descriptors", before.descriptors, after.descriptors);
  }
  return findings;
}

CallBounds call_bounds_of(JsonView status) {
  const JsonView calls = status["calls"];
  CallBounds bounds;
  bounds.calls = whole(calls, "calls");
  bounds.p999_ms = calls["p999_ms"].number().value_or(0);
  bounds.max_ms = calls["max_ms"].number().value_or(0);
  bounds.slowest = words(calls, "slowest");
  if (const double running = calls["running_ms"].number().value_or(0); running > bounds.max_ms) {
    bounds.max_ms = running;
    bounds.slowest = words(calls, "running") + ", which has not returned";
  }
  return bounds;
}

std::vector<Finding> judge(const std::string& rank, const CallBounds& bounds, double slack) {
  std::vector<Finding> findings;
  if (bounds.p999_ms >= kP999Ms * slack) {
    findings.push_back(
        {"I5", fmt::format("{}: p99.9 of its calls is {:.1f} ms", rank, bounds.p999_ms)});
  }
  if (bounds.max_ms >= kMaxMs * slack) {
    findings.push_back({"I5", fmt::format("{}: its engine's thread was kept for {:.0f} ms by {}",
                                          rank, bounds.max_ms, bounds.slowest)});
  }
  return findings;
}

std::string to_string(const Finding& finding) {
  return finding.invariant + " does not hold: " + finding.what;
}

}  // namespace kvferry::lab
