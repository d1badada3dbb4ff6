// ZeroMQ sockets as SGLang's ranks have them, for tests of the dialect's own.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>
#include <zmq.hpp>

namespace kvferry::sglang {

inline constexpr auto kPatience = std::chrono::seconds(10);

inline std::uint16_t port_of(zmq::socket_t& socket) {
  const std::string endpoint = socket.get(zmq::sockopt::last_endpoint);
  return static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
}

// What a rank listens at. port 0: a free one.
class PullSocket {
 public:
  explicit PullSocket(zmq::context_t& context, std::uint16_t port = 0)
      : socket_(context, zmq::socket_type::pull) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.bind("tcp://127.0.0.1:" + std::to_string(port));
    port_ = port_of(socket_);
  }
  std::uint16_t port() const { return port_; }
  void close() { socket_.close(); }

  // Takes one message if there is one.
  bool receive(std::vector<std::string>& frames) {
    std::vector<std::string> got;
    for (bool more = true; more;) {
      zmq::message_t frame;
      if (!socket_.recv(frame, zmq::recv_flags::dontwait)) {
        return false;
      }
      got.push_back(frame.to_string());
      more = frame.more();
    }
    frames = std::move(got);
    return true;
  }

 private:
  zmq::socket_t socket_;
  std::uint16_t port_ = 0;
};

// How a rank speaks.
class PushSocket {
 public:
  PushSocket(zmq::context_t& context, std::uint16_t port)
      : socket_(context, zmq::socket_type::push) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.connect("tcp://127.0.0.1:" + std::to_string(port));
  }
  template <typename Frames>
  void send(const Frames& frames) {
    std::size_t left = frames.size();
    for (const auto& frame : frames) {
      socket_.send(zmq::const_buffer(frame.data(), frame.size()),
                   --left > 0 ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
  void send(std::initializer_list<std::string_view> frames) {
    send(std::vector<std::string_view>(frames));
  }

 private:
  zmq::socket_t socket_;
};

// A port that nobody listens at.
inline std::uint16_t free_port() {
  zmq::context_t context(1);
  PullSocket once(context);
  return once.port();
}

}  // namespace kvferry::sglang
