// Work on several threads whose results come out in order, so that what is printed does not depend
// on the number of threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::lab {

// Calls work(0) to work(count - 1), each on one of jobs threads, and take(index, result) in order
// on the calling thread, until take returns false. stop is asked several times a second on the
// calling thread; once it says true, no work is begun and what is complete without a gap is still
// taken. work must not throw.
template <typename T>
void in_order(std::uint64_t count, std::uint32_t jobs, const std::function<T(std::uint64_t)>& work,
              const std::function<bool(std::uint64_t, T)>& take,
              const std::function<bool()>& stop) {
  constexpr std::chrono::milliseconds kAsk{100};
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, T> ready;
  std::uint64_t next = 0;
  bool ended = false;

  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < jobs && i < count; ++i) {
    threads.emplace_back([&] {
      std::unique_lock lock(mutex);
      while (!ended && next < count) {
        const std::uint64_t index = next++;
        lock.unlock();
        T result = work(index);
        lock.lock();
        ready.emplace(index, std::move(result));
        changed.notify_one();
      }
    });
  }

  std::uint64_t taken = 0;
  const auto take_ready = [&](std::unique_lock<std::mutex>& lock) {
    while (!ready.empty() && ready.begin()->first == taken) {
      T result = std::move(ready.begin()->second);
      ready.erase(ready.begin());
      lock.unlock();
      const bool goes_on = take(taken++, std::move(result));
      lock.lock();
      if (!goes_on) return false;
    }
    return true;
  };
  std::unique_lock lock(mutex);
  bool wanted = true;
  while (wanted && taken < count && !stop()) {
    changed.wait_for(lock, kAsk, [&] { return ready.contains(taken); });
    wanted = take_ready(lock);
  }
  ended = true;
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
  lock.lock();
  if (wanted) take_ready(lock);
}

}  // namespace kvferry::lab
