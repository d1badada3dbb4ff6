// kvferry bench: speed, always beside a reference that was measured in the same rounds. Its parts
// are commands of their own, named "bench PART".
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "bench/transfer/case_bench.h"
#include "bench/transfer/transfer_bench.h"
#include "bench/transfer/worker.h"
#include "cli/cli_parse.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "data_plane/factory.h"

namespace kvferry::cli {
namespace {

using bench::Goal;
using bench::Row;

constexpr const char* kUsage =
    "Usage: kvferry bench PART [options]\n\nParts:\n"
    "  transfer    the transports of this build against memcpy, a raw stream and other "
    "libraries\n\n"
    "kvferry bench PART --help has the options of a part.\n";

// The line on stderr that says how far it is, when a person looks.
class ProgressLine {
 public:
  ProgressLine() : is_shown_(::isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() { show(""); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text) const {
    if (!is_shown_) return;
    fmt::print(stderr, "\r\x1b[K{}", text);
    std::fflush(stderr);
  }

 private:
  const bool is_shown_;
};

// The transports that move bytes by themselves; "auto" only chooses among them.
std::vector<std::string> measured_transports() {
  std::vector<std::string> names;
  for (const std::string_view name : data_plane::transport_names()) {
    if (name != "auto") names.emplace_back(name);
  }
  return names;
}

// Engines with the references that their ratios need, each reference before its engine.
std::vector<std::string> with_references(const std::vector<std::string>& engines) {
  std::vector<std::string> out;
  const auto add = [&](const std::string& name) {
    if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  };
  for (const std::string& engine : engines) {
    add(std::string(bench::reference_of(engine)));
    add(engine);
  }
  return out;
}

class TransferInvocation final : public Invocation {
 public:
  void declare(Settings& settings) override {
    settings.list("engines", "NAME,...", engines_,
                  "transports to measure, or memcpy and raw-stream alone");
    settings.list("blocks", "SIZE,...", options_.blocks,
                  "bytes of a page (4K, 64K, 1M), or kv-mix: 32 layers of K and V, rooms of 64 "
                  "tokens in pages of 32 KiB, an aux record each");
    settings.number<std::uint32_t>("rounds", "", options_.rounds, 1, 1'000,
                                   "turns of each engine with each block");
    add_seconds(settings);
    settings.number<std::uint32_t>("batch", "writes", options_.batch, 0, 1U << 20,
                                   "writes that are posted in one call; 0: a whole grant, for a "
                                   "peer as many as it likes");
    settings.number<std::uint64_t>("pool_bytes", "bytes", options_.setup.pool_bytes, 32U << 20,
                                   1ULL << 36, "size of each side's pool, a power of two");
    settings.text("cores", "A,B", cores_,
                  "cores of the source and of the target process; 'any' pins none");
    settings.number<std::uint32_t>("lanes", "", options_.setup.lanes_per_peer, 0, 64,
                                   "lanes of the session; 0: the transport's default");
    settings.number<std::uint32_t>("receive_threads", "", options_.setup.receive_threads, 0, 64,
                                   "threads that receive; 0: the transport's default");
    settings.choice("huge", huge_, {"none", "transparent", "reserved"},
                    "huge pages: transparent ones for the target's pool, or also reserved ones "
                    "(vm.nr_hugepages) for the source's");
    settings.text("host", "address", host_, "where the target listens");
    settings.list("peer", "NAME=COMMAND", peers_,
                  "another library: a command that prints 'ready {json}' and answers each line "
                  "'run BLOCK SECONDS BATCH' with {\"gbps\": x}");
    settings.list("case", "NAME,...", cases_,
                  fmt::format("measure behaviour instead of blocks: {}, or all",
                              fmt::join(bench::case_names(), ", ")));
    settings.flag("page_digests", page_digests_,
                  "each write carries a digest of its bytes, which the target compares");
    settings.flag(
        "check", check_,
        "exit with 1 when a goal is missed: shm at least 0.95 of memcpy (4K and kv-mix: "
        "0.90), tcp at least 0.90 of the raw stream, both ahead of each peer; or a case's");
    settings.optional_text("json", "FILE", "-", json_,
                           "write the figures there as JSON; -: stdout");
    settings.text("svg", "FILE", svg_, "write a bar chart there");
  }

  Status check() override {
    if (auto cases = take_cases(); !cases) return cases;
    if (cases_.empty()) engines_ = with_references(engines_);
    for (const std::string& engine : engines_) {
      const auto known = measured_transports();
      const bool is_reference = engine == bench::kMemcpyName || engine == bench::kStreamName;
      if (is_reference && cases_.empty()) continue;
      if (std::find(known.begin(), known.end(), engine) != known.end()) continue;
      return invalid(fmt::format("option --engines: '{}' is none of {}, {}, {}", engine,
                                 fmt::join(known, ", "), bench::kMemcpyName, bench::kStreamName));
    }
    for (const std::string& block : options_.blocks) {
      if (auto made = bench::make_block(block, options_.setup.pool_bytes); !made) {
        return invalid("option --blocks: " + made.error().what);
      }
    }
    if (host_.size() >= options_.setup.host.size()) return invalid("option --host is too long");
    host_.copy(options_.setup.host.data(), host_.size());
    if (huge_ == "transparent") {
      options_.setup.huge = static_cast<std::uint32_t>(bench::HugePages::kTransparent);
    } else if (huge_ == "reserved") {
      options_.setup.huge = static_cast<std::uint32_t>(bench::HugePages::kReserved);
    }
    options_.setup.page_digests = page_digests_ ? 1 : 0;
    options_.engines = engines_;
    if (auto cores = take_cores(); !cores) return cores;
    return take_peers();
  }

  int run() override { return cases_.empty() ? run_blocks() : run_cases(); }

 private:
  int run_blocks() {
    const Interrupt interrupt;
    bench::TransferOutcome outcome;
    {
      const ProgressLine line;
      outcome = bench::run_transfer_bench(
          options_, {[&] { return interrupt.requested(); },
                     [&](const std::string& text) { line.show("kvferry bench: " + text); }});
    }
    const std::vector<Row> rows = bench::make_rows(outcome.series);
    const std::vector<Goal> goals = bench::check_goals(outcome.series);
    // A figure on stdout is for one reader.
    if (json_ != "-") print(outcome, rows, goals);
    bool ok = outcome.failure.empty();
    for (const Goal& goal : goals) ok = ok && (!check_ || goal.is_met);
    if (check_ && goals.empty()) ok = false;
    if (!outcome.failure.empty()) {
      fmt::print(stderr, "kvferry bench transfer: {}\n", outcome.failure);
    }
    if (!json_.empty()) {
      if (auto written = report(outcome, rows, goals, ok).write(json_); !written) {
        return complain(written.error());
      }
    }
    if (!svg_.empty()) {
      std::ofstream file(svg_);
      file << bench::to_svg(rows, fmt::format("kvferry {}: bench transfer", version()));
      file.close();
      if (!file) {
        return complain({FailureCode::kOperatingSystem,
                         FailureWhere::kLocal,
                         fmt::format("option --svg: {} can't be written", svg_),
                         {},
                         -1});
      }
    }
    return ok ? kExitTrue : kExitFalse;
  }

  int run_cases() {
    const Interrupt interrupt;
    std::vector<bench::Figure> figures;
    std::vector<std::string> failures;
    {
      const ProgressLine line;
      const bench::Hooks hooks{
          [&] { return interrupt.requested(); },
          [&](const std::string& text) { line.show("kvferry bench: " + text); }};
      for (const std::string& name : cases_) {
        if (interrupt.requested()) break;
        auto outcome = bench::run_case(name, options_, hooks);
        for (bench::Figure& figure : outcome.figures) {
          figure.name = name + ": " + figure.name;
          figures.push_back(std::move(figure));
        }
        if (!outcome.failure.empty()) failures.push_back(outcome.failure);
      }
    }
    bool ok = failures.empty() && !figures.empty();
    for (const bench::Figure& figure : figures) ok = ok && (!check_ || figure.is_met);
    if (json_ != "-") print(figures);
    for (const std::string& failure : failures) {
      fmt::print(stderr, "kvferry bench transfer: {}\n", failure);
    }
    if (!json_.empty()) {
      if (auto written = report(figures, failures, ok).write(json_); !written) {
        return complain(written.error());
      }
    }
    return ok ? kExitTrue : kExitFalse;
  }

  static tl::unexpected<Failure> invalid(std::string what) {
    return fail(FailureCode::kInvalidArgument, std::move(what));
  }
  static int complain(const Failure& failure) {
    fmt::print(stderr, "kvferry bench transfer: {}\n", failure.what);
    return kExitFalse;
  }

  void add_seconds(Settings& settings) {
    Setting setting;
    setting.name = "seconds";
    setting.unit = "s";
    setting.help = "measured in each turn (0.05 to 60)";
    setting.get = [this] { return fmt::format("{}", options_.seconds); };
    setting.set = [this](std::string_view value) -> Status {
      double parsed = 0;
      const char* end = value.data() + value.size();
      const auto [stop, error] = std::from_chars(value.data(), end, parsed);
      if (error != std::errc{} || stop != end || !(parsed >= 0.05 && parsed <= 60)) {
        return invalid(fmt::format("'{}' is not a number from 0.05 to 60 s", value));
      }
      options_.seconds = parsed;
      return {};
    };
    settings.add(std::move(setting));
  }

  Status take_cores() {
    options_.source_core = options_.target_core = -1;
    if (cores_ == "any") return {};
    const char* end = cores_.data() + cores_.size();
    auto [comma, first_error] = std::from_chars(cores_.data(), end, options_.source_core);
    if (first_error == std::errc{} && comma != end && *comma == ',') {
      auto [stop, error] = std::from_chars(comma + 1, end, options_.target_core);
      const bool in_range = options_.source_core >= 0 && options_.target_core >= 0 &&
                            options_.source_core < 1024 && options_.target_core < 1024;
      if (error == std::errc{} && stop == end && in_range) return {};
    }
    return invalid(
        fmt::format("option --cores: '{}' is neither two core numbers such as 0,1 nor "
                    "'any'",
                    cores_));
  }

  Status take_cases() {
    const auto known = bench::case_names();
    if (std::find(cases_.begin(), cases_.end(), "all") != cases_.end()) {
      cases_.assign(known.begin(), known.end());
    }
    for (const std::string& name : cases_) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      return invalid(
          fmt::format("option --case: '{}' is none of {}, all", name, fmt::join(known, ", ")));
    }
    return {};
  }

  Status take_peers() {
    for (const std::string& peer : peers_) {
      const std::size_t equals = peer.find('=');
      if (equals == 0 || equals == std::string::npos || equals + 1 == peer.size()) {
        return invalid(
            fmt::format("option --peer: '{}' is not NAME=COMMAND (a command must not "
                        "have a comma)",
                        peer));
      }
      options_.peers.emplace_back(peer.substr(0, equals), peer.substr(equals + 1));
    }
    return {};
  }

  void print(const bench::TransferOutcome& outcome, const std::vector<Row>& rows,
             const std::vector<Goal>& goals) const {
    fmt::print("{:<8}  {:<20}  {:>6}  {:>15}  {:>7}  {}\n", "block", "engine", "GB/s", "min..max",
               "ratio", "of");
    std::string block;
    for (const Row& row : rows) {
      if (!block.empty() && row.block != block) fmt::print("\n");
      block = row.block;
      if (row.rounds == 0) {
        fmt::print("{:<8}  {:<20}  {}\n", row.block, row.engine,
                   row.failure.empty() ? "not measured" : row.failure);
        continue;
      }
      const std::string range = fmt::format("{:.2f}..{:.2f}", row.min_gbps, row.max_gbps);
      const std::string ratio = row.reference.empty() ? "" : fmt::format("{:.3f}", row.ratio);
      fmt::print("{:<8}  {:<20}  {:>6.2f}  {:>15}  {:>7}  {}{}\n", row.block, row.engine, row.gbps,
                 range, ratio, row.reference, row.failure.empty() ? "" : "  (" + row.failure + ")");
    }
    fmt::print(
        "\nGB = 1e9 bytes of pages that landed; medians of {} rounds of {} s in turn, and of "
        "the rounds' ratios.\nPools of {} MiB, cold and scattered; {} pages compared.\n",
        options_.rounds, options_.seconds, options_.setup.pool_bytes >> 20, outcome.checked_pages);
    for (const bench::PeerNote& peer : outcome.peers) {
      fmt::print("{}: {}; {}\n", peer.name, peer.version, peer.settings);
    }
    if (!check_) return;
    fmt::print("\n");
    for (const Goal& goal : goals) {
      fmt::print("{}  {:.3f}  {}\n", goal.is_met ? "met   " : "MISSED", goal.ratio, goal.what);
    }
  }

  void print(const std::vector<bench::Figure>& figures) const {
    fmt::print("{:<10}  {:<52}  {:>12}  {:<5}  {}\n", "engine", "figure", "value", "unit", "goal");
    for (const bench::Figure& figure : figures) {
      const std::string value = figure.value == std::floor(figure.value)
                                    ? fmt::format("{:.0f}", figure.value)
                                    : fmt::format("{:.3f}", figure.value);
      const std::string goal =
          figure.goal.empty() ? "" : figure.goal + (figure.is_met ? ": met" : ": MISSED");
      fmt::print("{:<10}  {:<52}  {:>12}  {:<5}  {}\n", figure.engine, figure.name, value,
                 figure.unit, goal);
    }
  }

  Report report(const std::vector<bench::Figure>& figures, const std::vector<std::string>& failures,
                bool ok) const {
    Report out;
    out.command = "bench transfer";
    out.ok = ok;
    std::vector<std::string> missed;
    for (const bench::Figure& figure : figures) {
      if (!figure.is_met) missed.push_back(router::json_quote(figure.engine + " " + figure.name));
      out.rows.push_back(router::JsonObject()
                             .text("engine", figure.engine)
                             .text("figure", figure.name)
                             .number("value", figure.value)
                             .text("unit", figure.unit)
                             .text("goal", figure.goal)
                             .boolean("is_met", figure.is_met)
                             .str());
    }
    out.summary.integer("rounds", options_.rounds)
        .number("seconds", options_.seconds)
        .raw("missed", router::json_array(missed))
        .text("failure", fmt::format("{}", fmt::join(failures, "; ")));
    return out;
  }

  Report report(const bench::TransferOutcome& outcome, const std::vector<Row>& rows,
                const std::vector<Goal>& goals, bool ok) const {
    Report out;
    out.command = "bench transfer";
    out.ok = ok;
    std::vector<std::string> missed;
    for (const Goal& goal : goals) {
      if (!goal.is_met) missed.push_back(router::json_quote(goal.what));
    }
    std::vector<std::string> peers;
    for (const bench::PeerNote& peer : outcome.peers) {
      peers.push_back(router::JsonObject()
                          .text("name", peer.name)
                          .text("version", peer.version)
                          .text("settings", peer.settings)
                          .str());
    }
    out.summary.integer("rounds", options_.rounds)
        .number("seconds", options_.seconds)
        .integer("batch", options_.batch)
        .integer("pool_bytes", static_cast<std::int64_t>(options_.setup.pool_bytes))
        .integer("checked_pages", static_cast<std::int64_t>(outcome.checked_pages))
        .integer("goals", static_cast<std::int64_t>(goals.size()))
        .raw("missed", router::json_array(missed))
        .raw("peers", router::json_array(peers))
        .text("failure", outcome.failure);
    for (const Row& row : rows) {
      out.rows.push_back(router::JsonObject()
                             .text("engine", row.engine)
                             .text("block", row.block)
                             .number("gbps", row.gbps)
                             .number("ratio", row.ratio)
                             .text("reference", row.reference)
                             .number("min_gbps", row.min_gbps)
                             .number("max_gbps", row.max_gbps)
                             .integer("rounds", static_cast<std::int64_t>(row.rounds))
                             .boolean("is_peer", row.is_peer)
                             .text("failure", row.failure)
                             .str());
    }
    return out;
  }

  bench::TransferOptions options_ = [] {
    bench::TransferOptions defaults;
    defaults.blocks = {"4K", "64K", "1M", std::string(bench::kMixName)};
    defaults.setup.pool_bytes = 1ULL << 30;
    return defaults;
  }();
  std::vector<std::string> engines_ = measured_transports();
  std::vector<std::string> peers_;
  std::string cores_ = "0,1";
  std::string host_ = "127.0.0.1";
  std::string huge_ = "none";
  std::string json_;
  std::string svg_;
  std::vector<std::string> cases_;
  bool page_digests_ = false;
  bool check_ = false;
};

const Command& transfer_command() {
  static const Command command{
      "bench transfer",
      "Measures the transports: scattered pages from one process to another, against references.",
      "Two processes, pinned, each with a pool that no cache holds. Each round gives every engine "
      "one turn with the same block; a ratio compares the turns of one round. Pages are compared "
      "after each turn; one with wrong bytes fails the bench.",
      []() -> std::unique_ptr<Invocation> { return std::make_unique<TransferInvocation>(); }};
  return command;
}

int run_part(std::span<const std::string> words) {
  const std::string part = words.empty() ? "" : words.front();
  if (part == "worker" && words.size() == 2) return bench::run_worker(words[1]);
  if (part == "--help" || part == "-h" || part == "help") {
    fmt::print("{}", kUsage);
    return kExitTrue;
  }
  if (part != "transfer") {
    fmt::print(stderr, "kvferry bench: {}\n{}",
               part.empty() ? "which part?" : fmt::format("unknown part '{}'", part), kUsage);
    return kExitUsage;
  }
  std::vector<const char*> argv = {"kvferry", transfer_command().name.data()};
  for (const std::string& word : words.subspan(1)) argv.push_back(word.c_str());
  const std::array<const Command*, 1> commands = {&transfer_command()};
  return run_command_line(static_cast<int>(argv.size()), argv.data(), commands);
}

}  // namespace

const Command& bench_command() {
  static const Command command{"bench",
                               "Speed of the transports against references; --help has its parts.",
                               "", nullptr, &run_part};
  return command;
}

}  // namespace kvferry::cli
