#include "net/send_queue.h"

#include <cerrno>
#include <memory>
#include <utility>

namespace kvferry::net {
namespace {

// Smaller frames are copied into the message; larger ones are handed over with their buffer.
constexpr std::size_t kCopyBytes = 512;

zmq::message_t message_of(std::vector<std::uint8_t> frame) {
  if (frame.size() <= kCopyBytes) {
    return zmq::message_t(frame.data(), frame.size());
  }
  auto owned = std::make_unique<std::vector<std::uint8_t>>(std::move(frame));
  void* data = owned->data();
  const std::size_t size = owned->size();
  zmq::message_t message(
      data, size, [](void*, void* hint) { delete static_cast<std::vector<std::uint8_t>*>(hint); },
      owned.get());
  owned.release();
  return message;
}

}  // namespace

void SendQueue::push(std::vector<std::uint8_t> frame, LinkPriority priority) {
  const std::size_t bytes = frame.size();
  frames_[static_cast<std::size_t>(priority)].push_back(message_of(std::move(frame)));
  bytes_ += bytes;
}

SendQueue::Flushed SendQueue::flush(zmq::socket_t& dealer) {
  for (auto& frames : frames_) {
    while (!frames.empty()) {
      const std::size_t bytes = frames.front().size();
      if (zmq_msg_send(frames.front().handle(), dealer.handle(), ZMQ_DONTWAIT) < 0) {
        if (zmq_errno() == EINTR) {
          continue;
        }
        return zmq_errno() == EAGAIN ? Flushed::kSocketFull : Flushed::kSocketFailed;
      }
      frames.pop_front();
      bytes_ -= bytes;
    }
  }
  return Flushed::kAll;
}

}  // namespace kvferry::net
