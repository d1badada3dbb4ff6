#include "serve/scheduler.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>

#include "base/clock.h"

namespace kvferry::serve {
namespace {

// Deadlines of requests are checked at least this often.
constexpr int kDeadlineCheckMs = 50;

}  // namespace

Scheduler::Scheduler(std::string thread_name, SchedulerLimits limits, ServeMetrics& metrics)
    : thread_name_(std::move(thread_name)), limits_(limits), metrics_(metrics) {}

void Scheduler::start() {
  alive_ = true;
  thread_ = std::thread([this] { run(); });
}

Status Scheduler::submit(Submission submission) {
  std::optional<Failure> refused;
  {
    std::lock_guard lock(mutex_);
    const std::uint32_t now = requests_.load(std::memory_order_acquire);
    if (stopping_ || !alive_) {
      refused = Failure{
          FailureCode::kShuttingDown,
          FailureWhere::kLocal,
          stopping_ ? "this server is stopping" : "this server's scheduler has ended: " + problem_,
          {},
          -1};
    } else if (now >= limits_.max_requests) {
      refused = Failure{FailureCode::kQueueFull,
                        FailureWhere::kLocal,
                        fmt::format("this server holds {} requests, its limit (max requests)", now),
                        {},
                        -1};
    } else {
      requests_.fetch_add(1, std::memory_order_acq_rel);
      inbox_.push_back(std::move(submission));
    }
  }
  if (refused) {
    const ApiError error = to_api_error(*refused);
    metrics_.request_ended(error.status, 0);
    respond_error(*submission.responder, error);
    return tl::unexpected(*refused);
  }
  wake_->raise();
  return {};
}

void Scheduler::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_->raise();
  if (thread_.joinable()) {
    thread_.join();
  }
}

std::string Scheduler::problem() const {
  std::lock_guard lock(mutex_);
  return problem_;
}

void Scheduler::log_failure(RoomId room, Binding binding, const Failure& failure) {
  if (failure.code == FailureCode::kAborted) {
    log::debug("room {} ended: {}", room.value(), to_string(failure));
  } else if (failure_lines_.allow(monotonic_now())) {
    log::write(log::Level::kWarning,
               fmt::format("room {} failed: {} ({} such lines left out before)", room.value(),
                           to_string(failure), failure_lines_.suppressed()),
               binding.to_hex());
  }
}

void Scheduler::run() noexcept {
  pthread_setname_np(pthread_self(), thread_name_.substr(0, 15).c_str());
  std::string problem;
  try {
    loop();
  } catch (const std::exception& error) {
    problem = error.what();
  } catch (...) {
    problem = "an exception of unknown type";
  }
  if (!problem.empty()) {
    log::error("the scheduler thread ended: {}", problem);
  }
  std::vector<Submission> left;
  {
    std::lock_guard lock(mutex_);
    problem_ = problem;
    alive_ = false;
    left.swap(inbox_);
  }
  left.insert(left.begin(), std::make_move_iterator(batch_.begin()),
              std::make_move_iterator(batch_.end()));
  batch_.clear();
  const Failure cause{
      FailureCode::kShuttingDown,
      FailureWhere::kLocal,
      problem.empty() ? "this server is stopping" : "this server's scheduler has ended: " + problem,
      {},
      -1};
  try {
    for (auto& submission : left) {
      accept(std::move(submission));
    }
    fail_all(cause);
  } catch (const std::exception& error) {
    log::error("answering the remaining requests failed: {}", error.what());
  }
}

void Scheduler::loop() {
  bool more = false;
  while (!stopping_) {
    if (!more) {
      sleep();
    }
    wake_->lower();
    {
      std::lock_guard lock(mutex_);
      batch_.assign(std::make_move_iterator(inbox_.begin()), std::make_move_iterator(inbox_.end()));
      inbox_.clear();
    }
    while (!batch_.empty()) {
      Submission submission = std::move(batch_.front());
      batch_.pop_front();
      accept(std::move(submission));
    }
    more = turn(monotonic_now());
  }
}

void Scheduler::sleep() const {
  pollfd descriptors[2] = {{wake_->fd(), POLLIN, 0}, {event_fd(), POLLIN, 0}};
  // poll ignores a descriptor of -1.
  ::poll(descriptors, 2, has_deadlines() ? kDeadlineCheckMs : -1);
}

}  // namespace kvferry::serve
