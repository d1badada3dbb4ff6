// The commands of a rank, one JSON object a line; "do" names it, "id" comes back in its answer
// {"event": "answer", "id", "ok", "error"}.
//
//   open    first, count, pages, [binding, stride, chunks, grants, registry, prefill, hold, keep,
//           quiet]      rooms first to first + count - 1
//   send    room, [binding]     abort, clear, drop: as send
//   storm   first, count, threads, [binding]     all are aborted, by so many threads at once
//   churn   [prefills, registry, pages, every_ticks, life_ticks]   without prefills: no more
//   inspect                     what kept rooms and free pages hold
//   pair    registry            keeps sessions to all its prefill ranks
//   route   from, to            where an endpoint is really dialled
//   fault   kind, way, what, [k, count]     way: in, out; what: drop, duplicate, hold
//   fail_write                  one write ends in an error ("struck"), the others go on
//   mend                        no fault holds any more
//   release [seed]              what is held goes on
//   twins   first, count        each room is opened twice at once; answered when all are judged
//   end_thread                  the control thread ends by an exception
//   status                      answered at once, whatever the engine's thread does
//   restart_times               call times count from now on
//   quit
#include <dirent.h>
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <utility>

#include "lab/rank/rank.h"
#include "lab/rank/twins.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;

std::uint64_t whole(JsonView command, std::string_view key, std::uint64_t otherwise = 0) {
  const auto value = command[key].integer();
  return value ? static_cast<std::uint64_t>(*value) : otherwise;
}

std::uint32_t small(JsonView command, std::string_view key, std::uint32_t otherwise) {
  return static_cast<std::uint32_t>(whole(command, key, otherwise));
}

std::string words(JsonView command, std::string_view key) {
  return command[key].text().value_or("");
}

bool is_set(JsonView command, std::string_view key) {
  return command[key].boolean().value_or(false);
}

RoomName name_in(JsonView command) { return {whole(command, "room"), whole(command, "binding")}; }

std::int64_t entries_of(const char* folder) {
  DIR* opened = ::opendir(folder);
  if (opened == nullptr) return -1;
  std::int64_t count = 0;
  while (const dirent* entry = ::readdir(opened)) count += entry->d_name[0] == '.' ? 0 : 1;
  ::closedir(opened);
  return count;
}

std::string pairs_json(const KvManager& manager) {
  std::vector<std::string> rows;
  for (const PairState& pair : manager.pairs()) {
    rows.push_back(JsonObject()
                       .text("peer", pair.peer)
                       .text("instance", pair.instance)
                       .boolean("ready", pair.ready)
                       .text("reason", pair.reason)
                       .integer("last_heard_ms", pair.last_heard_ms)
                       .str());
  }
  return router::json_array(rows);
}

// Samples of one name are added up, whatever their labels; those with labels are there alone, too,
// as name{label=value}.
std::string metrics_json(const KvManager& manager) {
  std::map<std::string, double> sums;
  for (const MetricSample& sample : manager.metrics()) {
    sums[sample.name] += sample.value;
    if (sample.labels.empty()) continue;
    std::string labels = sample.labels;
    std::erase(labels, '"');
    sums[fmt::format("{}{{{}}}", sample.name, labels)] += sample.value;
  }
  JsonObject metrics;
  for (const auto& [name, value] : sums) metrics.number(name, value);
  return metrics.str();
}

std::string calls_json(const CallFigures& figures) {
  return JsonObject()
      .integer("calls", static_cast<std::int64_t>(figures.calls))
      .number("p999_ms", figures.p999_ms)
      .number("max_ms", figures.max_ms)
      .text("slowest", figures.slowest)
      .number("running_ms", figures.running_ms)
      .text("running", figures.running)
      .str();
}

Status unknown_room(const RoomName& name) {
  return fail(FailureCode::kRoomUnknown, fmt::format("room {} does not live here", name.first));
}

}  // namespace

void Rank::read_commands() {
  for (std::string line; !stopping_ && std::getline(std::cin, line);) {
    auto parsed = router::JsonDocument::parse(line);
    if (!parsed) {
      output_.write(JsonObject()
                        .text("event", "answer")
                        .boolean("ok", false)
                        .text("error", parsed.error().what));
      continue;
    }
    auto command = std::make_shared<router::JsonDocument>(std::move(*parsed));
    if (answer_at_once(command->root())) continue;
    std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  stopping_ = true;
}

void Rank::answer(JsonView command, const Status& status, JsonObject more) {
  more.text("event", "answer")
      .integer("id", static_cast<std::int64_t>(whole(command, "id")))
      .boolean("ok", status.has_value());
  if (!status) more.text("error", to_string(status.error()));
  output_.write(more);
}

bool Rank::answer_at_once(JsonView command) {
  const std::string what = words(command, "do");
  if (what == "status") {
    report(command);
  } else if (what == "restart_times") {
    calls_.restart();
    answer(command, {});
  } else if (what == "route") {
    routes_.set(words(command, "from"), words(command, "to"));
    answer(command, {});
  } else if (what == "fault") {
    MessageFault fault;
    fault.kind = words(command, "kind");
    fault.incoming = words(command, "way") == "in";
    const std::string does = words(command, "what");
    fault.what = does == "hold"        ? MessageFault::What::kHold
                 : does == "duplicate" ? MessageFault::What::kDuplicate
                                       : MessageFault::What::kDrop;
    fault.first = whole(command, "k", 1);
    fault.count = whole(command, "count", 1);
    answer(command, faults_.add(std::move(fault)));
  } else if (what == "fail_write") {
    answer(command, {}, JsonObject().boolean("struck", writes_.fail_one()));
  } else if (what == "mend") {
    faults_.mend();
    answer(command, {});
  } else if (what == "release") {
    const auto seed = command["seed"].integer();
    faults_.release(seed ? std::optional<std::uint64_t>(*seed) : std::nullopt);
    answer(command, {});
  } else if (what == "twins") {
    twins(command);
  } else if (what == "end_thread") {
    faults_.end_thread();
    answer(command, {});
  } else if (what == "quit") {
    stopping_ = true;
  } else {
    return false;
  }
  return true;
}

// On the reader's thread, so that the engine's goes on polling meanwhile.
void Rank::twins(JsonView command) {
  const TwinFigures figures =
      open_twins(*manager_, whole(command, "first"), whole(command, "count", 1));
  answer(command, {},
         JsonObject()
             .integer("pairs", static_cast<std::int64_t>(figures.pairs))
             .integer("one_refused", static_cast<std::int64_t>(figures.one_refused))
             .integer("both_refused", static_cast<std::int64_t>(figures.both_refused))
             .integer("both_open", static_cast<std::int64_t>(figures.both_open))
             .integer("other_causes", static_cast<std::int64_t>(figures.other_causes))
             .number("widest_gap_ms", figures.widest_gap_ms));
}

void Rank::report(JsonView command) {
  std::vector<std::string> problems;
  for (const std::string& problem : manager_->readiness_problems()) {
    problems.push_back(router::json_quote(problem));
  }
  JsonObject more;
  more.integer("rooms", static_cast<std::int64_t>(live_rooms_.load()))
      .integer("succeeded", static_cast<std::int64_t>(rooms_->ended(KvPoll::kSuccess)))
      .integer("failed", static_cast<std::int64_t>(rooms_->ended(KvPoll::kFailed)))
      .integer("free_pages", static_cast<std::int64_t>(rooms_->free_pages()))
      .integer("threads", entries_of("/proc/self/task"))
      .integer("descriptors", entries_of("/proc/self/fd"))
      .integer("struck", static_cast<std::int64_t>(faults_.struck()))
      .integer("writes", static_cast<std::int64_t>(writes_.running()))
      .raw("calls", calls_json(calls_.figures()))
      .raw("pairs", pairs_json(*manager_))
      .raw("metrics", metrics_json(*manager_))
      .raw("problems", router::json_array(problems));
  answer(command, {}, std::move(more));
}

void Rank::carry_out(JsonView command) {
  const std::string what = words(command, "do");
  const RoomName name = name_in(command);
  const auto of_room = [&](bool (RankRooms::*call)(const RoomName&)) {
    answer(command, (rooms_.get()->*call)(name) ? Status{} : unknown_room(name));
  };
  if (what == "open") return open_rooms(command);
  if (what == "send") return of_room(&RankRooms::send);
  if (what == "abort") return of_room(&RankRooms::abort);
  if (what == "clear") return of_room(&RankRooms::clear);
  if (what == "drop") return of_room(&RankRooms::drop);
  if (what == "storm") return storm(command);
  if (what == "inspect") return answer(command, {}, rooms_->inspect());
  if (what == "pair") return answer(command, manager_->keep_paired(words(command, "registry")));
  if (what == "churn") {
    churn_.reset();
    if (const JsonView prefills = command["prefills"]; prefills.size() > 0) {
      churn_ = std::make_unique<Churn>();
      for (std::size_t i = 0; i < prefills.size(); ++i) {
        churn_->prefills.push_back(prefills.at(i).text().value_or(""));
      }
      churn_->registry = words(command, "registry");
      churn_->pages = small(command, "pages", 1);
      churn_->every_ticks = std::max(small(command, "every_ticks", 1), 1U);
      churn_->life_ticks = small(command, "life_ticks", 1);
    }
    return answer(command, {});
  }
  answer(command, fail(FailureCode::kInvalidArgument, fmt::format("'{}' is no command", what)));
}

void Rank::open_rooms(JsonView command) {
  const std::uint64_t first = whole(command, "first");
  for (std::uint64_t i = 0; i < whole(command, "count", 1); ++i) {
    RoomOrder order;
    order.name = {first + i, whole(command, "binding")};
    order.pages = small(command, "pages", 1);
    order.stride = small(command, "stride", 1);
    order.chunks = std::max(small(command, "chunks", 1), 1U);
    order.grants = small(command, "grants", 1);
    order.registry = words(command, "registry");
    order.prefill = words(command, "prefill");
    order.hold = is_set(command, "hold");
    order.keep = is_set(command, "keep");
    order.quiet = is_set(command, "quiet");
    rooms_->open(std::move(order));
  }
  answer(command, {});
}

void Rank::storm(JsonView command) {
  std::vector<RoomName> names;
  const std::uint64_t first = whole(command, "first");
  for (std::uint64_t i = 0; i < whole(command, "count", 1); ++i) {
    names.emplace_back(first + i, whole(command, "binding"));
  }
  const std::size_t aborted = rooms_->abort_all(names, whole(command, "threads", 1));
  answer(command, {}, JsonObject().integer("aborted", static_cast<std::int64_t>(aborted)));
}

}  // namespace kvferry::lab
