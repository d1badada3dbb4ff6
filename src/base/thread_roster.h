// Which threads a manager runs, and whether each does its work. A thread says itself when it has
// work in hand and when it waits for some, so that nobody has to wake an idle one: one that works
// at the same turn for too long is stalled, one that ended without being told to is dead. Readers
// are readiness, metrics and the watchdog.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/instant.h"

namespace kvferry {

// One thread's entry. works(), waits() and ends() are the thread's own; the rest is for any thread.
class ThreadPlace {
 public:
  // Whether a manager can go on without it.
  enum class Need : std::uint8_t { kVital, kReplaceable };
  ThreadPlace(std::string name, std::string task, Need need);

  // Takes the name at the system and leaves signals to the program's own threads; then works().
  void begin() noexcept;
  void works() noexcept;
  void waits() noexcept;
  // As its last act. cause: why it ended without being told to; empty when it was told.
  void ends(std::string cause) noexcept;
  // A whole thread: begin(), the body, ends(). What the body throws is logged and is the cause: a
  // thread that can't go on is none to go on with, and whoever reads the roster ends what depends
  // on it.
  void run(const std::function<void()>& body) noexcept;

  const std::string& name() const { return name_; }  // as the system shows it
  const std::string& task() const { return task_; }  // what it does, for people
  bool is_vital() const { return need_ == Need::kVital; }
  // Rises with each call of works() and waits().
  std::uint64_t turn() const { return turn_.load(std::memory_order_acquire); }
  bool is_working() const { return working_.load(std::memory_order_acquire); }
  bool has_ended() const { return ended_.load(std::memory_order_acquire); }
  // Of an end that nobody ordered; empty otherwise.
  std::string cause() const;
  // How long the present turn has lasted; zero for a thread that waits or has ended.
  Duration working_for(Instant now) const;

 private:
  const std::string name_;
  const std::string task_;
  const Need need_;
  std::atomic<std::int64_t> since_ns_{0};
  std::atomic<std::uint64_t> turn_{0};
  std::atomic<bool> working_{false};
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  std::string cause_;
};
using ThreadPlacePtr = std::shared_ptr<ThreadPlace>;

// Threads: any.
class ThreadRoster {
 public:
  // name: at most 15 characters. The place stays in the roster as long as the roster lives, ended
  // or not.
  ThreadPlacePtr enrol(std::string name, std::string task,
                       ThreadPlace::Need need = ThreadPlace::Need::kVital);
  std::vector<ThreadPlacePtr> places() const;
  // What is wrong, one sentence per thread; empty when all is well.
  std::vector<std::string> problems(Instant now, Duration stall_after) const;

 private:
  mutable std::mutex mutex_;
  std::vector<ThreadPlacePtr> places_;
};

// A place in the roster, or one that nobody looks at where there is none.
ThreadPlacePtr enrol(ThreadRoster* roster, std::string name, std::string task,
                     ThreadPlace::Need need = ThreadPlace::Need::kVital);

}  // namespace kvferry
