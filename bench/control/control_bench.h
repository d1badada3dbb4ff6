// The controller of `kvferry bench control`: two processes, the control link and plain libzmq
// sockets between them, and rounds in which each has one turn with the same frames.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/transfer/case_bench.h"
#include "bench/transfer/worker_pair.h"

namespace kvferry::bench {

struct ControlOptions {
  std::vector<std::uint32_t> sizes = {64, 1'024, 16'384};  // bytes of a frame
  std::vector<std::uint32_t> windows = {1, 256};           // frames under way at one time
  std::uint32_t rounds = 5;
  double seconds = 0.5;  // of each turn
};

struct ControlTurn {
  double messages_per_s = 0;  // both ways together
  double p50_us = 0;          // round trip
  double p99_us = 0;
  double cpu_us = 0;  // of both processes, for each message
};

// One engine with one size and window, one entry for each round.
struct ControlSeries {
  std::string engine;
  std::uint32_t bytes = 0;
  std::uint32_t window = 0;
  std::vector<ControlTurn> turns;
};

struct ControlRow {
  std::string engine;
  std::uint32_t bytes = 0;
  std::uint32_t window = 0;
  ControlTurn median;
  double min_messages_per_s = 0;
  double max_messages_per_s = 0;
  double ratio_to_plain = 0;  // medians of the rounds' ratios
  double ratio_to_curve = 0;
  std::size_t rounds = 0;
};

struct ControlOutcome {
  std::vector<ControlSeries> series;  // by size and window
  std::string failure;
};

ControlOutcome run_control_bench(const ControlOptions& options, const Hooks& hooks);
std::vector<ControlRow> make_control_rows(const std::vector<ControlSeries>& all);
// The link beside a plain socket with CURVE: at least kLeastOfCurve of its round trips one at a
// time, and of frames of kJoinedBytes and more under load. Smaller frames under load are shown and
// not judged: the link leaves no more than a few in a socket, so that none is old when it gets
// through, and whoever uses it joins all messages of one turn into a frame.
inline constexpr double kLeastOfCurve = 0.5;
inline constexpr std::uint32_t kJoinedBytes = 16'384;
std::vector<Figure> judge_control(const std::vector<ControlRow>& rows);

}  // namespace kvferry::bench
