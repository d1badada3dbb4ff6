#include "net/loose_parts.h"

#ifdef KVFERRY_LAB

#include <algorithm>
#include <chrono>

namespace kvferry::net {
namespace {

constexpr std::size_t kThreads = 12;
constexpr std::size_t kParts = 4;
// What a sending thread does between two parts of a message: it makes the next one.
constexpr auto kNextPart = std::chrono::microseconds(50);

}  // namespace

void SharedSocket::send_part(zmq::message_t part, bool more) {
  std::lock_guard lock(mutex_);
  if (handle_ != nullptr) {
    // A part that finds no room is gone, as in the field; the core sends its message again.
    zmq_msg_send(part.handle(), handle_, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
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
    const Order order = std::move(orders_.front());
    orders_.pop_front();
    lock.unlock();
    const std::size_t step = std::max<std::size_t>((order.frame.size() + kParts - 1) / kParts, 1);
    for (std::size_t at = 0; at < order.frame.size(); at += step) {
      if (at > 0) std::this_thread::sleep_for(kNextPart);
      const std::size_t size = std::min(step, order.frame.size() - at);
      order.socket->send_part(zmq::message_t(order.frame.data() + at, size),
                              at + size < order.frame.size());
    }
    lock.lock();
  }
}

}  // namespace kvferry::net

#endif
