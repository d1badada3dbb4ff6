// kvferry bench handoff: whole rooms through the public API, and SGLang's control plane beside
// them.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/handoff/abort_case.h"
#include "bench/handoff/handoff_bench.h"
#include "cli/bench_parts.h"
#include "cli/interrupt.h"
#include "cli/report.h"

namespace kvferry::cli {
namespace {

using bench::Figure;
using bench::RoomRow;

constexpr std::uint32_t kMostConcurrency = 131'072;
constexpr std::string_view kAbortCase = "aborts";

tl::unexpected<Failure> invalid(std::string what) {
  return fail(FailureCode::kInvalidArgument, std::move(what));
}

// The command of the peer that `make bench-peers` installs, as the tree has it.
Result<std::string> installed_sglang() {
  const char* shared = std::getenv("KVFERRY_CACHE");
  const std::filesystem::path python =
      std::filesystem::path(shared != nullptr && *shared != '\0' ? shared : ".cache") /
      "venv-peer-sglang" / "bin" / "python";
  const std::filesystem::path program = "bench/peers/sglang_peer.py";
  std::error_code error;
  for (const std::filesystem::path& needed : {python, program}) {
    if (std::filesystem::exists(needed, error)) continue;
    return invalid(
        fmt::format("option --peer: {} is missing; fix: run from the repository's root after "
                    "`make bench-peers`, or give --peer sglang=COMMAND",
                    needed.string()));
  }
  return fmt::format("exec '{}' '{}'", python.string(), program.string());
}

class HandoffInvocation final : public Invocation {
 public:
  void declare(Settings& settings) override {
    settings.list("transports", "NAME,...", options_.transports,
                  "null (its copies are nothing), shm, tcp; with -no-curve, -no-heartbeats or "
                  "-no-retransmission behind the name, and null-no-fence: without it");
    settings.list("concurrency", "rooms,...", concurrency_, "rooms at one time (1 to 131072)");
    settings.number<std::uint32_t>("rounds", "", options_.rounds, 1, 1'000,
                                   "turns of each engine at each concurrency");
    add_seconds(settings, "seconds", options_.seconds, "of each turn, about");
    settings.number<std::uint32_t>("growth_rounds", "", options_.growth_rounds, 0, 1'000,
                                   "turns with 1,000 and with 100,000 rooms at one time; 0: "
                                   "neither growth nor poll_many is measured");
    settings.text("peer", "NAME[=COMMAND]", peer_,
                  "SGLang's control plane in the same rounds: sglang, as `make bench-peers` "
                  "installs it, or a command that prints 'ready {json}' and answers each line "
                  "'rooms CONCURRENCY ROOMS' with {\"rooms_per_s\": x, ...}");
    settings.flag("plain", plain_, "without CURVE on the control link");
    settings.choice("case", case_, {"none", std::string(kAbortCase)},
                    "aborts: rooms of 64 KiB pages, a tenth of them aborted at random states; "
                    "exits with 1 unless no byte is wrong, no room hangs and nothing leaks");
    settings.text("case_transport", "NAME", aborts_.transport, "of the case: tcp or shm");
    settings.number<std::uint64_t>("case_rooms", "rooms", aborts_.rooms, 16, 1ULL << 32,
                                   "of the case");
    settings.number<std::uint32_t>("case_concurrency", "rooms", aborts_.concurrency, 1, 65'536,
                                   "of the case, at one time");
    settings.number<std::uint32_t>("case_patience_ms", "ms", aborts_.patience_ms, 1'000, 3'600'000,
                                   "of the case: a room that has not ended by then hangs");
    settings.number<std::uint64_t>("seed", "", aborts_.seed, 0, 1ULL << 62,
                                   "of the case: which rooms are aborted, by whom and when");
    settings.flag("check", check_,
                  "exit with 1 when a goal is missed: at least 30 times the peer's rate and a p99 "
                  "of at most 5 ms at concurrency 256, of 150 ms at 8,192; poll_many over 8,192 "
                  "rooms p99 at most 100 us; growth at most 1.3");
    settings.optional_text("json", "FILE", "-", json_,
                           "write the figures there as JSON; -: stdout");
  }

  Status check() override {
    for (const std::string& name : options_.transports) {
      if (bench::parse_engine_name(name)) continue;
      return invalid(
          fmt::format("option --transports: '{}' is none of null, shm, tcp, nor one of them with "
                      "-no-curve, -no-heartbeats or -no-retransmission, nor null-no-fence",
                      name));
    }
    if (options_.transports.empty()) return invalid("option --transports: none is named");
    if (aborts_.transport != "tcp" && aborts_.transport != "shm") {
      return invalid(
          fmt::format("option --case-transport: '{}' is neither tcp nor shm", aborts_.transport));
    }
    options_.curve = !plain_;
    if (auto taken = take_concurrency(); !taken) return taken;
    return take_peer();
  }

  int run() override { return case_ == kAbortCase ? run_aborts() : run_rooms(); }

 private:
  Status take_concurrency() {
    options_.concurrency.clear();
    for (const std::string& text : concurrency_) {
      std::uint32_t value = 0;
      const char* end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data(), end, value);
      if (error != std::errc{} || stop != end || value < 1 || value > kMostConcurrency) {
        return invalid(fmt::format("option --concurrency: '{}' is not a whole number from 1 to {}",
                                   text, kMostConcurrency));
      }
      options_.concurrency.push_back(value);
    }
    return concurrency_.empty() ? invalid("option --concurrency: none is named") : Status{};
  }

  Status take_peer() {
    if (peer_.empty()) return {};
    const std::size_t equals = peer_.find('=');
    options_.peer = peer_.substr(0, equals);
    if (equals != std::string::npos) {
      options_.peer_command = peer_.substr(equals + 1);
      const bool is_whole = !options_.peer.empty() && !options_.peer_command.empty();
      return is_whole ? Status{} : invalid(fmt::format("option --peer: '{}'", peer_));
    }
    if (peer_ != "sglang") {
      return invalid(fmt::format("option --peer: '{}' is neither sglang nor NAME=COMMAND", peer_));
    }
    auto command = installed_sglang();
    if (!command) return tl::unexpected(command.error());
    options_.peer_command = *command;
    return {};
  }

  int run_rooms() {
    const Interrupt interrupt;
    bench::HandoffOutcome outcome;
    {
      const ProgressLine line;
      outcome = bench::run_handoff_bench(options_, hooks(interrupt, line));
    }
    const std::vector<RoomRow> rows = bench::make_room_rows(outcome.series);
    const bench::RoomVerdict verdict = bench::judge_rooms(outcome.series, outcome.extras);
    bool ok = outcome.failure.empty();
    for (const RoomRow& row : rows) ok = ok && row.failure.empty();
    for (const Figure& goal : verdict.goals) ok = ok && (!check_ || goal.is_met);
    if (check_ && verdict.goals.empty()) ok = false;
    // A figure on stdout is for one reader.
    if (json_ != "-") print(outcome, rows, verdict);
    return finish(outcome.failure, report(outcome, rows, verdict, ok));
  }

  int run_aborts() {
    const Interrupt interrupt;
    bench::CaseOutcome outcome;
    {
      const ProgressLine line;
      outcome = bench::run_abort_case(aborts_, hooks(interrupt, line));
    }
    bool ok = outcome.failure.empty() && !outcome.figures.empty();
    for (const Figure& figure : outcome.figures) ok = ok && figure.is_met;
    if (json_ != "-") print_figures(outcome.figures);
    return finish(outcome.failure, report(outcome, ok));
  }

  static bench::Hooks hooks(const Interrupt& interrupt, const ProgressLine& line) {
    return {[&] { return interrupt.requested(); },
            [&](const std::string& text) { line.show("kvferry bench: " + text); }};
  }

  int finish(const std::string& failure, const Report& result) const {
    if (!failure.empty()) fmt::print(stderr, "kvferry bench handoff: {}\n", failure);
    if (!json_.empty()) {
      if (auto written = result.write(json_); !written) {
        fmt::print(stderr, "kvferry bench handoff: {}\n", written.error().what);
        return kExitFalse;
      }
    }
    return result.ok ? kExitTrue : kExitFalse;
  }

  void print(const bench::HandoffOutcome& outcome, const std::vector<RoomRow>& rows,
             const bench::RoomVerdict& verdict) const {
    fmt::print("{:>11}  {:<22}  {:>9}  {:>17}  {:>8}  {:>8}  {:>11}  {}\n", "concurrency", "engine",
               "rooms/s", "min..max", "p50 ms", "p99 ms", "CPU us/room",
               options_.peer.empty() ? "" : "times " + options_.peer);
    std::uint32_t concurrency = 0;
    for (const RoomRow& row : rows) {
      if (concurrency != 0 && row.concurrency != concurrency) fmt::print("\n");
      concurrency = row.concurrency;
      if (row.rounds == 0) {
        fmt::print("{:>11}  {:<22}  {}\n", row.concurrency, row.engine,
                   row.failure.empty() ? "not measured" : row.failure);
        continue;
      }
      fmt::print("{:>11}  {:<22}  {:>9.0f}  {:>17}  {:>8.3f}  {:>8.3f}  {:>11.2f}  {}{}\n",
                 row.concurrency, row.engine, row.median.rooms_per_s,
                 fmt::format("{:.0f}..{:.0f}", row.min_rooms_per_s, row.max_rooms_per_s),
                 row.median.p50_ms, row.median.p99_ms, row.median.cpu_us,
                 row.ratio_to_peer > 0 ? fmt::format("{:.1f}", row.ratio_to_peer) : "",
                 row.failure.empty() ? "" : "  (" + row.failure + ")");
    }
    fmt::print(
        "\nMedians of {} rounds of {} s in turn, and of the rounds' ratios. A room: {} pages in {} "
        "regions of {} bytes and an aux record,\nfrom the receiver's open to the Success that its "
        "scheduler reads. CPU: of both processes.\n",
        options_.rounds, options_.seconds, options_.pages_per_room, options_.layers * 2,
        options_.item_bytes);
    if (!outcome.peer_version.empty()) {
      fmt::print("{}: {}; {}. Its control plane is Python, kvferry's is C++.\n", options_.peer,
                 outcome.peer_version, outcome.peer_settings);
    }
    if (outcome.extras.has_polls) {
      fmt::print("poll_many over {} rooms: p50 {:.1f} us, p99 {:.1f} us\n", bench::kPolledRooms,
                 outcome.extras.poll_p50_us, outcome.extras.poll_p99_us);
    }
    if (!check_) return;
    fmt::print("\n");
    print_figures(verdict.goals);
    for (const std::string& text : verdict.not_judged) fmt::print("not judged: {}\n", text);
  }

  static void print_figures(const std::vector<Figure>& figures) {
    fmt::print("{:<8}  {:<58}  {:>10}  {:<4}  {}\n", "engine", "figure", "value", "unit", "goal");
    for (const Figure& figure : figures) {
      const std::string value = figure.value == std::floor(figure.value)
                                    ? fmt::format("{:.0f}", figure.value)
                                    : fmt::format("{:.3f}", figure.value);
      fmt::print("{:<8}  {:<58}  {:>10}  {:<4}  {}\n", figure.engine, figure.name, value,
                 figure.unit,
                 figure.goal.empty() ? "" : figure.goal + (figure.is_met ? ": met" : ": MISSED"));
    }
  }

  static std::string missed_of(const std::vector<Figure>& figures) {
    std::vector<std::string> missed;
    for (const Figure& figure : figures) {
      if (!figure.is_met) missed.push_back(router::json_quote(figure.name));
    }
    return router::json_array(missed);
  }

  Report report(const bench::HandoffOutcome& outcome, const std::vector<RoomRow>& rows,
                const bench::RoomVerdict& verdict, bool ok) const {
    Report out;
    out.command = "bench handoff";
    out.ok = ok;
    std::vector<std::string> not_judged;
    for (const std::string& text : verdict.not_judged) {
      not_judged.push_back(router::json_quote(text));
    }
    out.summary.integer("rounds", options_.rounds)
        .number("seconds", options_.seconds)
        .boolean("curve", options_.curve)
        .integer("goals", static_cast<std::int64_t>(verdict.goals.size()))
        .raw("missed", missed_of(verdict.goals))
        .raw("not_judged", router::json_array(not_judged))
        .text("failure", outcome.failure);
    if (verdict.ratio_to_peer > 0) {
      out.summary.number("ratio_to_" + options_.peer, verdict.ratio_to_peer)
          .text("peer_version", outcome.peer_version)
          .text("peer_settings", outcome.peer_settings);
    }
    for (const Figure& goal : verdict.goals) out.rows.push_back(row_of(goal));
    for (const RoomRow& row : rows) {
      out.rows.push_back(router::JsonObject()
                             .text("engine", row.engine)
                             .integer("concurrency", row.concurrency)
                             .number("rooms_per_s", row.median.rooms_per_s)
                             .number("min_rooms_per_s", row.min_rooms_per_s)
                             .number("max_rooms_per_s", row.max_rooms_per_s)
                             .number("p50_ms", row.median.p50_ms)
                             .number("p99_ms", row.median.p99_ms)
                             .number("cpu_us_per_room", row.median.cpu_us)
                             .number("ratio_to_peer", row.ratio_to_peer)
                             .integer("rounds", static_cast<std::int64_t>(row.rounds))
                             .boolean("is_peer", row.is_peer)
                             .text("failure", row.failure)
                             .str());
    }
    return out;
  }

  static Report report(const bench::CaseOutcome& outcome, bool ok) {
    Report out;
    out.command = "bench handoff";
    out.ok = ok;
    out.summary.text("case", kAbortCase)
        .raw("missed", missed_of(outcome.figures))
        .text("failure", outcome.failure);
    for (const Figure& figure : outcome.figures) out.rows.push_back(row_of(figure));
    return out;
  }

  static std::string row_of(const Figure& figure) {
    return router::JsonObject()
        .text("engine", figure.engine)
        .text("figure", figure.name)
        .number("value", figure.value)
        .text("unit", figure.unit)
        .text("goal", figure.goal)
        .boolean("is_met", figure.is_met)
        .str();
  }

  bench::HandoffOptions options_;
  bench::AbortCaseOptions aborts_;
  std::vector<std::string> concurrency_ = {"1", "256", "8192"};
  std::string peer_;
  std::string case_ = "none";
  std::string json_;
  bool plain_ = false;
  bool check_ = false;
};

}  // namespace

const Command& bench_handoff_command() {
  static const Command command{
      "bench handoff", "Measures whole rooms through the public API between two processes.",
      "A prefill and a decode engine in two processes, each with a scheduler that polls all its "
      "rooms at once. With the null transport the bytes cost nothing and the rest is measured; "
      "with shm and tcp they are moved, and the first word of every page is compared.",
      []() -> std::unique_ptr<Invocation> { return std::make_unique<HandoffInvocation>(); }};
  return command;
}

}  // namespace kvferry::cli
