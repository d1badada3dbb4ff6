// How control messages left in the field before one thread owned every socket (F1): many threads
// share a peer's socket and send a message part by part. The socket is a queue here, which its
// owner empties, and each part is put there under a mutex, so that what is shown is the field's
// failure and no undefined behaviour.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/peer_id.h"

namespace kvferry::lab {

// Threads: its owner calls; those that cut are its own.
class LooseParts {
 public:
  struct Part {
    PeerId peer;
    std::vector<std::uint8_t> bytes;
    bool more = false;  // another part of the same message follows
  };

  LooseParts();
  ~LooseParts();
  LooseParts(const LooseParts&) = delete;
  LooseParts& operator=(const LooseParts&) = delete;

  // Some thread cuts the frame. Where many wait for one, another frame's parts may come in between.
  void send(PeerId peer, std::vector<std::uint8_t> frame);
  // A frame is not cut to its end yet.
  bool cutting() const;
  // All parts that are there, in the order in which they came.
  std::deque<Part> take();

 private:
  struct Order {
    PeerId peer;
    std::vector<std::uint8_t> frame;
  };
  void work();
  void cut(const Order& order, bool in_a_crowd);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Order> orders_;
  std::size_t uncut_ = 0;  // those of orders_, and those that are being cut
  bool stopping_ = false;

  std::mutex parts_mutex_;
  std::deque<Part> parts_;

  std::vector<std::thread> threads_;
};

}  // namespace kvferry::lab
