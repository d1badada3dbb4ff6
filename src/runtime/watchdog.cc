#include "runtime/watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace kvferry::runtime {
namespace {

constexpr Duration kMaxInterval = milliseconds(200);
constexpr std::int64_t kLooksBeforeDeath = 5;  // at least

}  // namespace

Watchdog::Watchdog(ThreadRoster& roster, Duration dead_after, OnDead on_dead)
    : roster_(roster),
      interval_(std::min<Duration>(kMaxInterval, dead_after / kLooksBeforeDeath)),
      dead_after_looks_(static_cast<std::uint32_t>(dead_after / interval_)),
      on_dead_(std::move(on_dead)),
      place_(roster.enrol("kvf-watchdog", "looks after the other threads",
                          ThreadPlace::Need::kReplaceable)) {}

Watchdog::~Watchdog() { stop(); }

Status Watchdog::start() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return fail(FailureCode::kOperatingSystem, fmt::format("watchdog thread: {}", error.what()));
  }
  return {};
}

void Watchdog::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Watchdog::run() {
  place_->begin();
  std::unique_lock lock(mutex_);
  for (;;) {
    place_->waits();
    if (changed_.wait_for(lock, interval_, [this] { return stopping_; })) {
      break;
    }
    place_->works();
    if (const std::string why = look(); !why.empty()) {
      lock.unlock();
      log::error("{}", why);
      on_dead_(why);
      break;
    }
  }
  place_->ends({});
}

std::string Watchdog::look() {
  for (const ThreadPlacePtr& place : roster_.places()) {
    if (!place->is_vital()) {
      continue;
    }
    if (const std::string cause = place->cause(); !cause.empty()) {
      return fmt::format("thread {} ({}) ended: {}", place->name(), place->task(), cause);
    }
    Seen& seen = seen_[place.get()];
    const std::uint64_t turn = place->turn();
    const bool same_turn = place->is_working() && turn == seen.turn;
    seen = {turn, same_turn ? seen.looks + 1 : 0};
    if (seen.looks >= dead_after_looks_) {
      return fmt::format("thread {} ({}) is taken for dead: at the same turn for {} ms",
                         place->name(), place->task(), interval_ * seen.looks / milliseconds(1));
    }
  }
  return {};
}

}  // namespace kvferry::runtime
