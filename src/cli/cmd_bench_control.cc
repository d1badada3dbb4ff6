// kvferry bench control: the control link alone, beside plain libzmq sockets.
#include <fmt/format.h>

#include <charconv>
#include <string>
#include <vector>

#include "bench/control/control_bench.h"
#include "cli/bench_parts.h"
#include "cli/interrupt.h"
#include "cli/report.h"

namespace kvferry::cli {
namespace {

using bench::ControlRow;
using bench::Figure;

constexpr std::uint32_t kMostBytes = 1U << 20;
constexpr std::uint32_t kMostWindow = 4'096;
constexpr std::uint64_t kMostUnderWay = 12U << 20;  // the link's queue takes no more bytes

class ControlInvocation final : public Invocation {
 public:
  void declare(Settings& settings) override {
    settings.list("sizes", "bytes,...", sizes_, fmt::format("of a frame (1 to {})", kMostBytes));
    settings.list(
        "windows", "frames,...", windows_,
        fmt::format("under way at one time (1 to {}); 1 shows the round trip", kMostWindow));
    settings.number<std::uint32_t>("rounds", "", options_.rounds, 1, 1'000,
                                   "turns of each engine with each size and window");
    add_seconds(settings, "seconds", options_.seconds, "measured in each turn");
    settings.flag("check", check_,
                  fmt::format("exit with 1 unless the link passes at least {} of the messages that "
                              "plain sockets with CURVE pass: one at a time, and under load those "
                              "of {} bytes and more",
                              bench::kLeastOfCurve, bench::kJoinedBytes));
    settings.optional_text("json", "FILE", "-", json_,
                           "write the figures there as JSON; -: stdout");
  }

  Status check() override {
    if (auto taken = take("sizes", sizes_, kMostBytes, options_.sizes); !taken) return taken;
    if (auto taken = take("windows", windows_, kMostWindow, options_.windows); !taken) {
      return taken;
    }
    for (const std::uint32_t bytes : options_.sizes) {
      for (const std::uint32_t window : options_.windows) {
        if (std::uint64_t{bytes} * window <= kMostUnderWay) continue;
        return fail(
            FailureCode::kInvalidArgument,
            fmt::format("options --sizes and --windows: {} frames of {} bytes are more than "
                        "the {} bytes that the link queues",
                        window, bytes, kMostUnderWay));
      }
    }
    return {};
  }

  int run() override {
    const Interrupt interrupt;
    bench::ControlOutcome outcome;
    {
      const ProgressLine line;
      outcome = bench::run_control_bench(
          options_, {[&] { return interrupt.requested(); },
                     [&](const std::string& text) { line.show("kvferry bench: " + text); }});
    }
    const std::vector<ControlRow> rows = bench::make_control_rows(outcome.series);
    const std::vector<Figure> goals = bench::judge_control(rows);
    bool ok = outcome.failure.empty();
    for (const Figure& goal : goals) ok = ok && (!check_ || goal.is_met);
    if (check_ && goals.empty()) ok = false;
    if (json_ != "-") print(rows, goals);
    if (!outcome.failure.empty()) {
      fmt::print(stderr, "kvferry bench control: {}\n", outcome.failure);
    }
    if (!json_.empty()) {
      if (auto written = report(outcome, rows, goals, ok).write(json_); !written) {
        fmt::print(stderr, "kvferry bench control: {}\n", written.error().what);
        return kExitFalse;
      }
    }
    return ok ? kExitTrue : kExitFalse;
  }

 private:
  static Status take(std::string_view option, const std::vector<std::string>& texts,
                     std::uint32_t most, std::vector<std::uint32_t>& values) {
    values.clear();
    for (const std::string& text : texts) {
      std::uint32_t value = 0;
      const char* end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data(), end, value);
      if (error != std::errc{} || stop != end || value < 1 || value > most) {
        return fail(FailureCode::kInvalidArgument,
                    fmt::format("option --{}: '{}' is not a whole number from 1 to {}", option,
                                text, most));
      }
      values.push_back(value);
    }
    if (!values.empty()) return {};
    return fail(FailureCode::kInvalidArgument, fmt::format("option --{}: none is named", option));
  }

  void print(const std::vector<ControlRow>& rows, const std::vector<Figure>& goals) const {
    fmt::print("{:>6}  {:>6}  {:<13}  {:>11}  {:>19}  {:>9}  {:>9}  {:>10}  {:>9}  {:>13}\n",
               "bytes", "window", "engine", "messages/s", "min..max", "p50 us", "p99 us",
               "CPU us/msg", "x libzmq", "x libzmq-curve");
    std::string block;
    for (const ControlRow& row : rows) {
      const std::string next = fmt::format("{} {}", row.bytes, row.window);
      if (!block.empty() && next != block) fmt::print("\n");
      block = next;
      fmt::print(
          "{:>6}  {:>6}  {:<13}  {:>11.0f}  {:>19}  {:>9.1f}  {:>9.1f}  {:>10.2f}  {:>9.3f}  "
          "{:>13.3f}\n",
          row.bytes, row.window, row.engine, row.median.messages_per_s,
          fmt::format("{:.0f}..{:.0f}", row.min_messages_per_s, row.max_messages_per_s),
          row.median.p50_us, row.median.p99_us, row.median.cpu_us, row.ratio_to_plain,
          row.ratio_to_curve);
    }
    fmt::print(
        "\nMedians of {} rounds of {} s in turn, and of the rounds' ratios. Two processes; every "
        "frame comes back;\nmessages of both ways, round trips, CPU of both processes. link: "
        "net/control_link.h with CURVE.\n",
        options_.rounds, options_.seconds);
    if (!check_) return;
    fmt::print("\n");
    for (const Figure& goal : goals) {
      fmt::print("{}  {:.3f}  {}: {}\n", goal.is_met ? "met   " : "MISSED", goal.value, goal.name,
                 goal.goal);
    }
  }

  Report report(const bench::ControlOutcome& outcome, const std::vector<ControlRow>& rows,
                const std::vector<Figure>& goals, bool ok) const {
    Report out;
    out.command = "bench control";
    out.ok = ok;
    std::vector<std::string> missed;
    for (const Figure& goal : goals) {
      if (!goal.is_met) missed.push_back(router::json_quote(goal.name));
    }
    out.summary.integer("rounds", options_.rounds)
        .number("seconds", options_.seconds)
        .integer("goals", static_cast<std::int64_t>(goals.size()))
        .raw("missed", router::json_array(missed))
        .text("failure", outcome.failure);
    for (const ControlRow& row : rows) {
      out.rows.push_back(router::JsonObject()
                             .text("engine", row.engine)
                             .integer("bytes", row.bytes)
                             .integer("window", row.window)
                             .number("messages_per_s", row.median.messages_per_s)
                             .number("min_messages_per_s", row.min_messages_per_s)
                             .number("max_messages_per_s", row.max_messages_per_s)
                             .number("round_trip_p50_us", row.median.p50_us)
                             .number("round_trip_p99_us", row.median.p99_us)
                             .number("cpu_us_per_message", row.median.cpu_us)
                             .number("ratio_to_libzmq", row.ratio_to_plain)
                             .number("ratio_to_libzmq_curve", row.ratio_to_curve)
                             .integer("rounds", static_cast<std::int64_t>(row.rounds))
                             .str());
    }
    return out;
  }

  bench::ControlOptions options_;
  std::vector<std::string> sizes_ = {"64", "1024", "16384"};
  std::vector<std::string> windows_ = {"1", "256"};
  std::string json_;
  bool check_ = false;
};

}  // namespace

const Command& bench_control_command() {
  static const Command command{
      "bench control",
      "Measures the control link alone between two processes, beside plain libzmq sockets.",
      "Frames go from one process to another and come back: over the control link with CURVE, over "
      "two plain libzmq sockets, and over the same with CURVE, in turn.",
      []() -> std::unique_ptr<Invocation> { return std::make_unique<ControlInvocation>(); }};
  return command;
}

}  // namespace kvferry::cli
