// The control link's ZeroMQ sockets, with every option set and each option's reason beside it. What
// libzmq 4.3.4 does without them was measured; none of them is a matter of taste.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <zmq.hpp>

#include "kvferry/status.h"
#include "net/control_link.h"
#include "net/endpoint.h"

namespace kvferry::net {

inline constexpr std::size_t kZ85KeyBytes = 40;
inline constexpr std::string_view kZapEndpoint = "inproc://zeromq.zap.01";

// Raises the soft limit of open files to what max_peers need, or says what to change.
Status reserve_files(std::uint32_t max_peers);
bool is_z85_key(std::string_view key);
// Also warns of plain mode.
Status check_config(const ControlLinkConfig& config);

// These throw zmq::error_t; ControlLink translates.
zmq::context_t make_context(std::uint32_t max_peers);
// Before the listener: libzmq lets every stranger in while no handler is bound.
zmq::socket_t make_zap_handler(zmq::context_t& context);
zmq::socket_t make_listener(zmq::context_t& context, const ControlLinkConfig& config);
// Not connected yet, so that the monitor misses nothing.
zmq::socket_t make_dealer(zmq::context_t& context, const ControlLinkConfig& config,
                          const std::string& server_key, std::string_view host);
// Reports every step of a DEALER's connection.
zmq::socket_t make_dial_monitor(zmq::context_t& context, zmq::socket_t& dealer,
                                std::uint64_t serial);
// Reports handshakes that fail at the listener before ZAP is asked, each as DialStep::kBroken.
zmq::socket_t make_handshake_monitor(zmq::context_t& context, zmq::socket_t& listener);
void close_monitored(zmq::socket_t& socket, zmq::socket_t& monitor) noexcept;

// tcp address of an endpoint; "localhost" is 127.0.0.1, as libzmq would prefer ::1 for it.
std::string tcp_address(std::string_view host, std::uint16_t port);

struct ZapRequest {
  std::string id;
  std::string public_key;  // Z85, empty when the mechanism is not CURVE
};
// Takes one request if there is one. REP accepts the next only after answer_zap.
std::optional<ZapRequest> receive_zap(zmq::socket_t& handler);
void answer_zap(zmq::socket_t& handler, const ZapRequest& request, bool allow);

struct MonitorEvent {
  std::uint16_t id = 0;  // ZMQ_EVENT_...; 0: a message that is too short to be one
  std::uint32_t value = 0;
};
// Takes one event of a socket's monitor; empty when there is none left.
std::optional<MonitorEvent> take_monitor_event(zmq::socket_t& monitor);

enum class DialStep : std::uint8_t {
  kNone,       // no event, or one that says nothing new
  kConnected,  // TCP is up, the handshake begins
  kHandshaken,
  kDenied,  // the peer proved its key and refused ours
  kBroken,  // connection or handshake ended
};
// Takes one monitor event; empty when there is none left.
std::optional<DialStep> receive_dial_step(zmq::socket_t& monitor);

int descriptor_of(zmq::socket_t& socket);

}  // namespace kvferry::net
