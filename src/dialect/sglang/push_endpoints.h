// What is said to SGLang ranks: one PUSH socket for each endpoint. A socket is used for one
// connection only, for the reasons that docs/architecture.md gives for DEALERs: nothing is handed
// to it before its handshake is through, it never connects again by itself, and once its connection
// is refused, lost or silent it is destroyed with all that waited for it. The owner is told, and
// the next message opens another socket; so a process that takes over a port never gets what was
// meant for the one before it.
//
// Endpoints are named by strangers (a registration holds an address): only numeric addresses are
// dialled, and their number is limited. One that nobody holds is closed when it has been idle.
//
// Not thread-safe: of the link's owner alone. No method waits or throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>
#include <zmq.hpp>

#include "base/instant.h"
#include "data_plane/fd.h"
#include "dialect/sglang/codec.h"
#include "dialect/sglang/messages.h"
#include "kvferry/status.h"

namespace kvferry::sglang {

struct PushEndpointsConfig {
  std::uint32_t max_endpoints = 4'096;       // open at one time
  std::uint32_t queue_max_messages = 4'096;  // of one endpoint, not yet taken by its socket
  std::size_t queue_max_bytes = 16U << 20;   // of one endpoint, as above
  // For the connection and for ZeroMQ's handshake, each.
  Duration handshake_timeout = std::chrono::seconds(5);
  Duration idle_timeout = std::chrono::seconds(60);  // without a message; held ones are kept
};

// What is there is handed over from now on.
struct EndpointUp {
  RankEndpoint endpoint;
};
// Its socket is gone, with so many messages that it had not taken.
struct EndpointLost {
  RankEndpoint endpoint;
  std::size_t messages = 0;
  std::string why;  // "the connection was refused or closed"
};
using EndpointEvent = std::variant<EndpointUp, EndpointLost>;

class PushEndpoints {
 public:
  // The context outlives it. Fails when the system has no descriptors left.
  static Result<std::unique_ptr<PushEndpoints>> make(zmq::context_t& context,
                                                     const PushEndpointsConfig& config);
  ~PushEndpoints();
  PushEndpoints(const PushEndpoints&) = delete;
  PushEndpoints& operator=(const PushEndpoints&) = delete;

  // Opens the endpoint's socket if there is none, and keeps it until leave() or its loss, so that
  // the loss is noticed although nothing is said.
  void hold(const RankEndpoint& endpoint, Instant now);
  // Queues a message, whole. Whatever goes wrong, a full queue too, comes as EndpointLost.
  void send(const RankEndpoint& endpoint, const Frames& frames, Instant now);
  // Closes the endpoint's socket at once; of that nothing is told.
  void leave(const RankEndpoint& endpoint);

  // Readable when serve() has something to do.
  int descriptor() const { return poll_fd_.get(); }
  void serve(Instant now);
  // When serve() is to be called although nothing is readable.
  std::optional<Instant> next_deadline() const;
  // In the order in which they happened.
  std::vector<EndpointEvent> take_events() { return std::exchange(events_, {}); }

  std::size_t size() const { return lines_.size(); }

 private:
  struct Line;
  PushEndpoints(zmq::context_t& context, const PushEndpointsConfig& config, data_plane::Fd poll_fd);

  Line* open(const RankEndpoint& endpoint, Instant now);
  bool make_room(Instant now);
  void connect(Line& line);
  void serve_monitor(Line& line);
  void flush(Line& line);
  void poll_socket(Line& line, bool wanted);
  void lose(Line& line, std::string why);
  void refuse(const RankEndpoint& endpoint, std::string why);
  void close(Line& line);
  void expire(Instant now);

  const PushEndpointsConfig config_;
  zmq::context_t& context_;
  const data_plane::Fd poll_fd_;
  std::unordered_map<std::string, std::unique_ptr<Line>> lines_;  // by ip:port
  std::unordered_map<std::uint64_t, Line*> by_serial_;
  std::uint64_t next_serial_ = 1;
  // Handshakes that must be through by a time; the timeout is the same for all, so in order.
  std::deque<std::pair<Instant, std::uint64_t>> handshakes_due_;
  // Their monitors were not read yet: a descriptor tells of what comes after it was found empty.
  std::vector<std::uint64_t> fresh_;
  Instant next_sweep_{};  // for idle ones
  std::vector<EndpointEvent> events_;
};

}  // namespace kvferry::sglang
