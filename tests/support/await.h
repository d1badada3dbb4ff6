// Waits for a condition with a deadline: tests never sleep to order two threads, and a deadline
// that is reached fails the test.
#pragma once

#include <chrono>
#include <thread>

namespace kvferry::test {

template <typename Condition>
bool await(Condition&& condition, std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace kvferry::test
