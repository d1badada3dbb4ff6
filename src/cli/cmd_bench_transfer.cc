// kvferry bench transfer: the transports against a copy, a raw stream and other libraries.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "base/runtime_guards.h"
#include "bench/transfer/case_bench.h"
#include "bench/transfer/transfer_bench.h"
#include "cli/bench_parts.h"
#include "cli/interrupt.h"
#include "cli/lab_program.h"
#include "cli/report.h"
#include "data_plane/factory.h"

namespace kvferry::cli {
namespace {

using bench::Goal;
using bench::Row;

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

// Each transport, and again with digests.
std::vector<std::string> with_digests(const std::vector<std::string>& engines) {
  std::vector<std::string> out;
  for (const std::string& engine : engines) {
    out.push_back(engine);
    if (engine == bench::kMemcpyName || engine == bench::kStreamName) continue;
    out.push_back(engine + std::string(bench::kDigestsSuffix));
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
    add_seconds(settings, "seconds", options_.seconds, "measured in each turn");
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
                  "measure each transport a second time, each write with a digest of its bytes, "
                  "which the target compares; cases: with digests only");
    settings.number<std::uint64_t>("releases", "", options_.releases, 1, 10'000'000,
                                   "releases that the fence case watches");
    settings.choice("guard", guard_, {"on", "off"},
                    "off: the fence case without the target's check of the generation, which "
                    "kvferry-lab can miss; it must show late bytes, and ends with 1");
    settings.text("namespaces", "A,B", namespaces_,
                  "network namespaces (of `ip netns`) that the source and the target enter; takes "
                  "root, see bench/transfer/veth.py");
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
    options_.setup.page_digests = page_digests_ && !cases_.empty() ? 1 : 0;
    if (page_digests_ && cases_.empty()) engines_ = with_digests(engines_);
    options_.engines = engines_;
    if (auto guard = take_guard(); !guard) return guard;
    if (auto namespaces = take_namespaces(); !namespaces) return namespaces;
    if (auto cores = take_cores(); !cores) return cores;
    return take_peers();
  }

  int run() override {
#ifndef KVFERRY_LAB
    if (guard_ == "off") return become_lab("kvferry bench transfer", own_words());
#endif
    return cases_.empty() ? run_blocks() : run_cases();
  }

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
    for (const bench::Figure& figure : figures) {
      ok = ok && (figure.is_met || (!check_ && !figure.is_about_safety));
    }
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

  Status take_guard() {
    if (guard_ == "on") return {};
    if (cases_ != std::vector<std::string>{"fence"}) {
      return invalid("option --guard: off is for --case fence alone");
    }
    options_.setup.missing_guard = static_cast<std::uint32_t>(RuntimeGuard::kReceiveCheck);
    return {};
  }

  Status take_namespaces() {
    if (namespaces_.empty()) return {};
    const std::size_t comma = namespaces_.find(',');
    const std::string source = namespaces_.substr(0, comma);
    const std::string target = comma == std::string::npos ? "" : namespaces_.substr(comma + 1);
    bench::WorkerSetup& setup = options_.setup;
    const bool are_names = !source.empty() && !target.empty() &&
                           namespaces_.find('/') == std::string::npos &&
                           std::max(source.size(), target.size()) < setup.source_namespace.size();
    if (!are_names) {
      return invalid(
          fmt::format("option --namespaces: '{}' is not two names such as a,b", namespaces_));
    }
    source.copy(setup.source_namespace.data(), source.size());
    target.copy(setup.target_namespace.data(), target.size());
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
        .text("guard", guard_)
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
  std::string guard_ = "on";
  std::string namespaces_;
  std::string json_;
  std::string svg_;
  std::vector<std::string> cases_;
  bool page_digests_ = false;
  bool check_ = false;
};

}  // namespace

const Command& bench_transfer_command() {
  static const Command command{
      "bench transfer",
      "Measures the transports: scattered pages from one process to another, against references.",
      "Two processes, pinned, each with a pool that no cache holds. Each round gives every engine "
      "one turn with the same block; a ratio compares the turns of one round. Pages are compared "
      "after each turn; one with wrong bytes fails the bench.",
      []() -> std::unique_ptr<Invocation> { return std::make_unique<TransferInvocation>(); }};
  return command;
}

}  // namespace kvferry::cli
