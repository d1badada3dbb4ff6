// What waits for one peer's DEALER: frames by priority, and how many bytes they have. libzmq's own
// queue is kept as short as it goes (net/zmq_sockets.cc): what lies there can be neither counted
// nor overtaken.
//
// Not thread-safe: of the control link's owner alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>
#include <zmq.hpp>

#include "net/control_link.h"

namespace kvferry::net {

class SendQueue {
 public:
  enum class Flushed : std::uint8_t { kAll, kSocketFull, kSocketFailed };

  std::size_t bytes() const { return bytes_; }
  void push(std::vector<std::uint8_t> frame, LinkPriority priority);
  // Hands over what the socket takes, urgent frames first; never waits.
  Flushed flush(zmq::socket_t& dealer);

 private:
  std::array<std::deque<zmq::message_t>, 2> frames_;  // by LinkPriority
  std::size_t bytes_ = 0;
};

}  // namespace kvferry::net
