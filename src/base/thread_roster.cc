#include "base/thread_roster.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread_setup.h"

namespace kvferry {

ThreadPlace::ThreadPlace(std::string name, std::string task, Need need)
    : name_(std::move(name)), task_(std::move(task)), need_(need) {}

void ThreadPlace::begin() noexcept {
  set_up_thread(name_.c_str());
  works();
}

void ThreadPlace::works() noexcept {
  since_ns_.store(monotonic_now().since_start().count(), std::memory_order_release);
  working_.store(true, std::memory_order_release);
  turn_.fetch_add(1, std::memory_order_acq_rel);
}

void ThreadPlace::waits() noexcept {
  working_.store(false, std::memory_order_release);
  turn_.fetch_add(1, std::memory_order_acq_rel);
}

void ThreadPlace::ends(std::string cause) noexcept {
  {
    std::lock_guard lock(mutex_);
    cause_ = std::move(cause);
  }
  working_.store(false, std::memory_order_release);
  ended_.store(true, std::memory_order_release);
}

void ThreadPlace::run(const std::function<void()>& body) noexcept {
  begin();
  try {
    body();
    ends({});
  } catch (const std::exception& error) {
    log::error("thread {}: {}", name_, error.what());
    ends(error.what());
  }
}

std::string ThreadPlace::cause() const {
  std::lock_guard lock(mutex_);
  return cause_;
}

Duration ThreadPlace::working_for(Instant now) const {
  if (!is_working()) {
    return {};
  }
  const Instant since{Duration(since_ns_.load(std::memory_order_acquire))};
  return std::max(now - since, Duration::zero());
}

ThreadPlacePtr ThreadRoster::enrol(std::string name, std::string task, ThreadPlace::Need need) {
  auto place = std::make_shared<ThreadPlace>(std::move(name), std::move(task), need);
  std::lock_guard lock(mutex_);
  places_.push_back(place);
  return place;
}

std::vector<ThreadPlacePtr> ThreadRoster::places() const {
  std::lock_guard lock(mutex_);
  return places_;
}

std::vector<std::string> ThreadRoster::problems(Instant now, Duration stall_after) const {
  std::vector<std::string> found;
  for (const ThreadPlacePtr& place : places()) {
    if (const std::string cause = place->cause(); !cause.empty()) {
      found.push_back(fmt::format("thread {} ({}) ended: {}", place->name(), place->task(), cause));
    } else if (const Duration stall = place->working_for(now); stall >= stall_after) {
      found.push_back(fmt::format("thread {} ({}) stalled: at the same turn for {} ms",
                                  place->name(), place->task(), stall / milliseconds(1)));
    }
  }
  return found;
}

ThreadPlacePtr enrol(ThreadRoster* roster, std::string name, std::string task,
                     ThreadPlace::Need need) {
  return roster != nullptr ? roster->enrol(std::move(name), std::move(task), need)
                           : std::make_shared<ThreadPlace>(std::move(name), std::move(task), need);
}

}  // namespace kvferry
