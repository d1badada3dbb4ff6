#include "net/loose_parts.h"

#ifdef KVFERRY_LAB

#include <algorithm>

namespace kvferry::net {
namespace {

constexpr std::size_t kThreads = 12;
constexpr std::size_t kParts = 4;
// So many messages wait for a thread: then threads take turns at the socket, part by part. Who is
// alone is through with its message before anybody comes.
constexpr std::size_t kCrowd = 4;

}  // namespace

void SharedSocket::send(const std::vector<std::uint8_t>& frame, bool in_a_crowd) {
  std::unique_lock lock(mutex_);
  const std::size_t step = std::max<std::size_t>((frame.size() + kParts - 1) / kParts, 1);
  for (std::size_t at = 0; at < frame.size() && handle_ != nullptr; at += step) {
    const std::size_t size = std::min(step, frame.size() - at);
    const bool more = at + size < frame.size();
    zmq::message_t part(frame.data() + at, size);
    // A part that finds no room is gone, as in the field; the core sends its message again.
    zmq_msg_send(part.handle(), handle_, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
    if (in_a_crowd) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }
}

void SharedSocket::leave() {
  std::lock_guard lock(mutex_);
  handle_ = nullptr;
}

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

void LooseParts::send(std::shared_ptr<SharedSocket> socket, std::vector<std::uint8_t> frame) {
  {
    std::lock_guard lock(mutex_);
    orders_.push_back(Order{std::move(socket), std::move(frame)});
  }
  changed_.notify_one();
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
    order.socket->send(order.frame, in_a_crowd);
    lock.lock();
  }
}

}  // namespace kvferry::net

#endif
