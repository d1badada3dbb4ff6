// How control messages left in the field before one thread owned every socket (F1): many threads
// share one cached socket and send a message part by part. Exists in the lab's build alone, where
// the control link sends so without RuntimeGuard::kWholeMessages; the drill `interleave` shows what
// comes of it. Each part is sent under a mutex, so that what is shown is the field's failure and no
// undefined behaviour of libzmq.
#pragma once

#ifdef KVFERRY_LAB

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#include <zmq.hpp>

namespace kvferry::net {

// A socket that several threads use. Threads: any; the owner nulls it before it closes the socket.
class SharedSocket {
 public:
  explicit SharedSocket(zmq::socket_t& socket) : handle_(socket.handle()) {}
  // In parts; in a crowd another thread's parts may come between them.
  void send(const std::vector<std::uint8_t>& frame, bool in_a_crowd);
  // From here on nobody touches the socket.
  void leave();

 private:
  std::mutex mutex_;
  void* handle_;
};

class LooseParts {
 public:
  LooseParts();
  ~LooseParts();
  LooseParts(const LooseParts&) = delete;
  LooseParts& operator=(const LooseParts&) = delete;

  // Some thread sends the frame, in parts.
  void send(std::shared_ptr<SharedSocket> socket, std::vector<std::uint8_t> frame);

 private:
  struct Order {
    std::shared_ptr<SharedSocket> socket;
    std::vector<std::uint8_t> frame;
  };
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Order> orders_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvferry::net

#endif
