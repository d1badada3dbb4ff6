#include "sim/shrink.h"

#include <utility>

namespace kvferry::sim {
namespace {

class Shrinker {
 public:
  Shrinker(const RunOptions& options, const RunResult& failed, const RunSeed& run,
           const std::function<bool()>& stop)
      : invariant_(failed.violation->invariant), run_(run), stop_(stop) {
    best_.options = options;
    best_.options.log = LogLevel::kNone;
    best_.options.until_event.reset();
    best_.result = failed;
  }

  // Halves the room count. Fewer rooms need not fail where more do, so what fails is kept and what
  // does not only moves the lower end.
  void fewer_rooms(std::uint32_t rooms) {
    std::uint32_t passes = 0;
    std::uint32_t fails = rooms;
    while (fails > passes + 1 && may_run()) {
      const std::uint32_t middle = passes + (fails - passes) / 2;
      RunOptions candidate = best_.options;
      candidate.rooms = middle;
      if (accepts(candidate)) {
        fails = middle;
      } else {
        passes = middle;
      }
    }
  }

  // Kinds that never fired go at once, the others one by one.
  void fewer_faults() {
    FaultSet fired;
    for (std::size_t i = 0; i < kFaultKinds; ++i) {
      fired.set(i, best_.options.faults.test(i) && best_.result.fired[i] > 0);
    }
    RunOptions candidate = best_.options;
    candidate.faults = fired;
    if (!may_run() || !accepts(candidate)) return;
    for (std::size_t i = 0; i < kFaultKinds && may_run(); ++i) {
      if (!best_.options.faults.test(i)) continue;
      candidate = best_.options;
      candidate.faults.reset(i);
      accepts(candidate);
    }
  }

  std::uint32_t rooms_left(std::uint32_t rooms) const {
    return best_.options.rooms.value_or(rooms);
  }
  Shrunk take() { return std::move(best_); }

 private:
  bool may_run() const { return best_.runs < kMaxShrinkRuns && !stop_(); }

  bool accepts(const RunOptions& candidate) {
    ++best_.runs;
    RunResult result = run_(candidate);
    if (!result.violation || result.violation->invariant != invariant_) return false;
    best_.options = candidate;
    best_.result = std::move(result);
    return true;
  }

  const std::string invariant_;
  const RunSeed& run_;
  const std::function<bool()>& stop_;
  Shrunk best_;
};

}  // namespace

Shrunk shrink(const RunOptions& options, const RunResult& failed, std::uint32_t rooms,
              const RunSeed& run, const std::function<bool()>& stop) {
  Shrinker shrinker(options, failed, run, stop);
  shrinker.fewer_rooms(options.rooms.value_or(rooms));
  shrinker.fewer_faults();
  // What was needed with many kinds of faults may be too much with few.
  shrinker.fewer_rooms(shrinker.rooms_left(rooms));
  return shrinker.take();
}

}  // namespace kvferry::sim
