#include "lab/rank/loose_parts.h"

#include <algorithm>
#include <utility>

namespace kvferry::lab {
namespace {

constexpr std::size_t kThreads = 12;
constexpr std::size_t kParts = 4;
// So many messages wait for a thread: then threads take turns at the queue, part by part. Who is
// alone is through with its message before anybody comes.
constexpr std::size_t kCrowd = 4;

}  // namespace

LooseParts::LooseParts() {
  for (std::size_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
}

LooseParts::~LooseParts() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void LooseParts::send(PeerId peer, std::vector<std::uint8_t> frame) {
  {
    std::lock_guard lock(mutex_);
    orders_.push_back(Order{peer, std::move(frame)});
    ++uncut_;
  }
  changed_.notify_one();
}

bool LooseParts::cutting() const {
  std::lock_guard lock(mutex_);
  return uncut_ > 0;
}

std::deque<LooseParts::Part> LooseParts::take() {
  std::lock_guard lock(parts_mutex_);
  return std::exchange(parts_, {});
}

void LooseParts::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !orders_.empty(); });
    if (stopping_) return;
    const bool in_a_crowd = orders_.size() >= kCrowd;
    const Order order = std::move(orders_.front());
    orders_.pop_front();
    lock.unlock();
    cut(order, in_a_crowd);
    lock.lock();
    --uncut_;
  }
}

void LooseParts::cut(const Order& order, bool in_a_crowd) {
  const std::vector<std::uint8_t>& frame = order.frame;
  const std::size_t step = std::max<std::size_t>((frame.size() + kParts - 1) / kParts, 1);
  std::unique_lock lock(parts_mutex_);
  for (std::size_t at = 0; at < frame.size(); at += step) {
    const std::size_t end = std::min(at + step, frame.size());
    parts_.push_back(Part{order.peer, {frame.data() + at, frame.data() + end}, end < frame.size()});
    if (in_a_crowd) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }
}

}  // namespace kvferry::lab
