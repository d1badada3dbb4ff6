#include "bench/handoff/abort_case.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvferry::bench {
namespace {

constexpr std::uint64_t kWarmRooms = 64;
constexpr std::uint32_t kWarmConcurrency = 16;

std::uint64_t gained(std::uint64_t before, std::uint64_t after) {
  return after > before ? after - before : 0;
}

}  // namespace

std::vector<Figure> judge_aborts(const AbortCaseOptions& options, const PairTurn& before,
                                 const PairTurn& after) {
  std::vector<Figure> figures;
  const auto tell = [&](std::string name, double value, std::string unit) {
    figures.push_back({options.transport, std::move(name), value, std::move(unit), "", true});
  };
  const auto none = [&](std::string name, std::uint64_t count) {
    figures.push_back(
        {options.transport, std::move(name), static_cast<double>(count), "", "0", count == 0});
  };
  const SideResult& decode = after.decode;
  const SideResult& prefill = after.prefill;
  const std::uint64_t aborts = decode.aborts + prefill.aborts;
  tell("rooms that succeeded on decode", static_cast<double>(decode.succeeded), "");
  tell("rooms that failed on decode", static_cast<double>(decode.failed), "");
  tell("rooms that failed on prefill", static_cast<double>(prefill.failed), "");
  tell("time", static_cast<double>(decode.duration.count()) / 1e9, "s");
  // A case without aborts, or in which all that were called came too late, shows nothing.
  figures.push_back({options.transport, "aborts that were called", static_cast<double>(aborts), "",
                     "some, and some rooms that failed of them",
                     aborts > 0 && decode.failed + prefill.failed > 0});
  none("pages with wrong bytes", decode.wrong_items);
  none("pages that changed while nobody's", decode.touched_items);
  const auto ends = [&](const char* side, const SideResult& result, std::uint64_t descriptors) {
    const auto name = [&](const char* what) { return fmt::format("{}: {}", side, what); };
    none(name("rooms that did not end, or whose pages stayed away"), result.hung);
    none(name("rooms that failed without an abort"), result.unasked);
    none(name("rooms whose terminal status changed"), result.changed_ends);
    none(name("rooms without exactly one end"),
         gained(options.rooms, result.succeeded + result.failed + result.hung) +
             gained(result.succeeded + result.failed + result.hung, options.rooms));
    none(name("pages that came back twice or uncalled"), result.stray_pages);
    none(name("handles left"), result.open_handles);
    none(name("rooms left"), result.open_rooms);
    none(name("grants left"), result.open_grants);
    none(name("writes left"), result.open_tickets);
    none(name("pages left in quarantine"), result.quarantine_pages);
    none(name("descriptors gained"), gained(descriptors, result.descriptors));
  };
  ends("decode", decode, before.decode.descriptors);
  ends("prefill", prefill, before.prefill.descriptors);
  return figures;
}

CaseOutcome run_abort_case(const AbortCaseOptions& options, const Hooks& hooks) {
  CaseOutcome outcome;
  HandoffSetup setup;
  options.transport.copy(setup.transport.data(), setup.transport.size() - 1);
  setup.lanes = std::max(options.concurrency, kWarmConcurrency);
  setup.pages_per_room = options.pages_per_room;
  setup.layers = 1;
  setup.item_bytes = options.page_bytes / 2;
  HandoffPair pair(hooks);
  hooks.progress("aborts: filling the pools");
  const auto turn = [&](std::uint64_t rooms, std::uint32_t concurrency,
                        std::uint32_t permille) -> Result<PairTurn> {
    HandoffOrder order;
    order.rooms = rooms;
    order.concurrency = concurrency;
    order.abort_permille = permille;
    order.content = Content::kFull;
    order.patience_ms = options.patience_ms;
    order.seed = options.seed;
    return pair.run(order);
  };
  Status done = pair.start(setup);
  Result<PairTurn> before = PairTurn{};
  Result<PairTurn> after = PairTurn{};
  if (done) {
    hooks.progress("aborts: warming up");
    before = turn(kWarmRooms, kWarmConcurrency, 0);
    if (!before) done = tl::unexpected(before.error());
  }
  if (done) {
    hooks.progress(
        fmt::format("aborts: {} rooms, {} at one time", options.rooms, options.concurrency));
    after = turn(options.rooms, options.concurrency, options.abort_permille);
    if (!after) done = tl::unexpected(after.error());
  }
  if (!done) {
    outcome.failure = fmt::format("aborts: {}", done.error().what);
    return outcome;
  }
  outcome.figures = judge_aborts(options, *before, *after);
  for (const SideResult* side : {&after->decode, &after->prefill}) {
    if (side->unasked > 0 || side->hung > 0) {
      outcome.failure = fmt::format("aborts: first: {}", side->first_failure.data());
      break;
    }
  }
  return outcome;
}

}  // namespace kvferry::bench
