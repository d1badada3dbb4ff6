#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvferry {
namespace {

using Queue = BoundedQueue<int>;

TEST(BoundedQueue, TellsTheFirstPushFromTheOthersAndRefusesWhenFull) {
  Queue queue(2);
  EXPECT_EQ(queue.push(1), Queue::Push::kFirst);
  EXPECT_EQ(queue.push(2), Queue::Push::kMore);
  EXPECT_EQ(queue.push(3), Queue::Push::kFull);
  std::vector<int> batch{9};
  queue.drain(batch);
  EXPECT_EQ(batch, (std::vector<int>{1, 2}));
  EXPECT_EQ(queue.push(4), Queue::Push::kFirst);
}

TEST(BoundedQueue, LosesNothingBetweenThreads) {
  constexpr int kItemsPerThread = 10'000;
  Queue queue(4 * kItemsPerThread);
  std::vector<std::thread> producers;
  for (int t = 0; t < 4; ++t) {
    producers.emplace_back([&queue, t] {
      for (int i = 0; i < kItemsPerThread; ++i) {
        queue.push(t * kItemsPerThread + i);
      }
    });
  }
  std::vector<bool> seen(4 * kItemsPerThread);
  std::vector<int> last(4, -1);
  std::vector<int> batch;
  for (std::size_t count = 0; count < seen.size(); count += batch.size()) {
    queue.drain(batch);
    for (const int item : batch) {
      EXPECT_FALSE(seen[static_cast<std::size_t>(item)]);
      seen[static_cast<std::size_t>(item)] = true;
      const auto thread = static_cast<std::size_t>(item / kItemsPerThread);
      EXPECT_LT(last[thread], item);
      last[thread] = item;
    }
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
}

}  // namespace
}  // namespace kvferry
