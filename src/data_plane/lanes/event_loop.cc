#include "data_plane/lanes/event_loop.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "base/clock.h"

namespace kvferry::data_plane {
namespace {

constexpr EventLoop::Token kWakeToken = 0;
constexpr std::size_t kEventsPerTurn = 128;

}  // namespace

EventLoop::~EventLoop() { stop(); }

Status EventLoop::open(Settings settings, std::function<void(Instant)> on_tick,
                       ThreadPlacePtr place) {
  place_ = std::move(place);
  settings_ = settings;
  on_tick_ = std::move(on_tick);
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.is_open()) return fail(FailureCode::kOperatingSystem, errno_text("epoll_create1"));
  wake_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake_.is_open()) return fail(FailureCode::kOperatingSystem, errno_text("eventfd"));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeToken;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  now_ = monotonic_now();
  return {};
}

void EventLoop::start() {
  thread_ = std::thread([this] { run(); });
}

void EventLoop::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (!thread_.joinable()) return;
  raise_event(wake_);
  thread_.join();
}

void EventLoop::post(Task task) {
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    first = tasks_.empty();
    tasks_.push_back(std::move(task));
  }
  if (!first) return;
  raise_event(wake_);
}

EventLoop::Token EventLoop::add(int fd, std::uint32_t epoll_events, Handler* handler) {
  const Token token = next_token_++;
  handlers_.emplace(token, handler);
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = token;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  return token;
}

void EventLoop::change(Token token, int fd, std::uint32_t epoll_events) {
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = token;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::remove(Token token, int fd) {
  handlers_.erase(token);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

bool EventLoop::run_tasks() {
  bool stopping = false;
  {
    std::lock_guard lock(mutex_);
    running_.swap(tasks_);
    stopping = stopping_;
  }
  for (Task& task : running_) task();
  running_.clear();
  return !stopping;
}

// A completion that is lost would hold its pages for ever, so that nothing is caught on the way.
void EventLoop::run() {
  place_->run([this] { turn_until_stopped(); });
}

int EventLoop::wait_for_events(std::span<epoll_event> events, int timeout_ms) {
  const auto wait = [&](int at_most_ms) {
    return ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), at_most_ms);
  };
  while (timeout_ms != 0 && monotonic_now() < awake_until_) {
    if (const int count = wait(0); count != 0) {
      place_->works();  // the next turn, though nobody has slept
      return count;
    }
  }
  place_->waits();
  const int count = wait(timeout_ms);
  place_->works();
  return count;
}

void EventLoop::turn_until_stopped() {
  std::array<epoll_event, kEventsPerTurn> events{};
  Instant next_tick = monotonic_now() + settings_.period;
  for (;;) {
    int timeout_ms = -1;
    if (ticking_) {
      const auto left = std::chrono::ceil<milliseconds>(next_tick - monotonic_now());
      timeout_ms = static_cast<int>(std::max<std::int64_t>(0, left.count()));
    }
    const int count = wait_for_events(events, timeout_ms);
    now_ = monotonic_now();
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (event.data.u64 == kWakeToken) {
        clear_event(wake_);
        continue;
      }
      const auto handler = handlers_.find(event.data.u64);
      if (handler != handlers_.end()) handler->second->on_ready(event.events);
    }
    if (!run_tasks()) return;
    // Timers only after the sockets were read: after a long pause peers are judged by what they
    // sent.
    const bool more_to_read = count == static_cast<int>(kEventsPerTurn);
    now_ = monotonic_now();
    if (std::exchange(stays_awake_, false)) awake_until_ = now_ + settings_.poll;
    if (ticking_ && !more_to_read && now_ >= next_tick) {
      on_tick_(now_);
      next_tick = now_ + settings_.period;
    }
  }
}

}  // namespace kvferry::data_plane
