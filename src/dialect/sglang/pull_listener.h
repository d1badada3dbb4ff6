// Where SGLang's ranks speak to this one: a bound PULL socket that hands out whole messages.
//
// Strangers reach it, and libzmq keeps the frames of a message until its last one has come, without
// a limit (design, section 7): one client that never ends a message takes a gigabyte in a second,
// before any code of ours sees a byte. So the listener watches each connection: what the kernel has
// received on it (TCP_INFO), less what was handed out of it. Where that can't be the messages of
// which libzmq holds some on purpose, the connection is cut; libzmq then frees what it had of it.
// That is exact, whatever else this process does with memory, and costs the other peers nothing.
// What a stranger can hold is so the limit, times some thirty for messages of nothing but empty
// frames, and what it sends between two looks.
//
// Not thread-safe: of the link's owner alone. No method waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <zmq.hpp>

#include "base/instant.h"
#include "data_plane/fd.h"
#include "dialect/sglang/codec.h"
#include "kvferry/status.h"

namespace kvferry::sglang {

struct PullListenerConfig {
  std::string host = "127.0.0.1";  // a numeric address of this host, no wildcard
  std::uint16_t port = 0;          // 0: any free port
  CodecLimits limits;              // of a message
  // Whole messages of one connection that libzmq may hold; then the peer's own queue fills.
  std::uint32_t receive_high_water = 16;
  // Of one connection: received, and not part of a message that is whole. At least
  // limits.max_message_bytes and what frames it.
  std::size_t max_unfinished_bytes = 9U << 20;
  // Of all connections together: beyond, the one with the most is cut.
  std::size_t max_unfinished_total_bytes = 256U << 20;
  std::uint32_t max_connections = 4'096;
  Duration handshake_timeout = std::chrono::seconds(5);
  Duration look_interval = milliseconds(50);  // while something is unfinished; else five times that
};

class PullListener {
 public:
  // The context outlives it. Fails with kOperatingSystem when the port is taken.
  static Result<std::unique_ptr<PullListener>> bind(zmq::context_t& context,
                                                    const PullListenerConfig& config);
  ~PullListener();
  PullListener(const PullListener&) = delete;
  PullListener& operator=(const PullListener&) = delete;

  const std::string& host() const { return config_.host; }
  std::uint16_t port() const { return port_; }

  // Readable when receive() or serve() has something to do. It may fall silent while messages are
  // left, so receive() is called until it gives none.
  int descriptor() const { return poll_fd_.get(); }
  // The next message. Of one that has more frames or bytes than the limits allow, so many frames
  // come that the codec refuses it for that.
  std::optional<Frames> receive();
  // Looks after connections.
  void serve(Instant now);
  Instant next_deadline() const { return next_look_; }

  std::size_t connections() const { return connections_.size(); }
  // Connections that were cut since the start: for what they left unfinished; for there being too
  // many.
  std::uint64_t cut_unfinished() const { return cut_unfinished_; }
  std::uint64_t cut_surplus() const { return cut_surplus_; }

 private:
  struct Connection {
    std::uint64_t taken_bytes = 0;  // of its messages that were handed out
    std::uint64_t unfinished = 0;   // at the last look
    bool is_suspect = false;        // had more than it may have at the last look
    bool is_cut = false;
  };
  PullListener(zmq::context_t& context, const PullListenerConfig& config);

  Status open();  // may throw zmq::error_t
  void take_monitor_events();
  void add_connection(int fd);
  void look();
  bool cut(int fd);
  bool is_ours(int fd) const;

  const PullListenerConfig config_;
  zmq::context_t& context_;
  zmq::socket_t socket_;
  zmq::socket_t monitor_;
  data_plane::Fd poll_fd_;
  std::uint16_t port_ = 0;
  bool drained_ = false;  // receive() has found nothing since it was last called
  std::unordered_map<int, Connection> connections_;  // by descriptor
  Instant next_look_{};
  std::uint64_t cut_unfinished_ = 0;
  std::uint64_t cut_surplus_ = 0;
};

}  // namespace kvferry::sglang
