#include "net/zmq_sockets.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace kvferry::net {
namespace {

// Per peer: DEALER, its monitor and our end of it have a wake-up descriptor each; one connection
// goes out and one comes in.
constexpr rlim_t kFilesPerPeer = 5;
// Own files of the process, and strangers in mid-handshake.
constexpr rlim_t kFilesBeside = 256;
constexpr int kSocketLimit = 65'535;  // what libzmq allows per context
constexpr int kSendHighWater = 4;
constexpr int kReceiveHighWater = 64;
constexpr int kBacklog = 1'024;
// CURVE wraps a frame into a command with nonce and authenticator; the limit counts the wrapped
// size.
constexpr std::int64_t kCurveOverheadBytes = 64;
constexpr std::string_view kZapDomain = "kvferry";

int milliseconds_of(Duration duration) {
  const auto count = std::chrono::duration_cast<milliseconds>(duration).count();
  return static_cast<int>(std::clamp<std::int64_t>(count, 1, 3'600'000));
}

void set_common(zmq::socket_t& socket, const ControlLinkConfig& config) {
  // Nothing is worth waiting for when a socket goes: core sends again on the next connection.
  socket.set(zmq::sockopt::linger, 0);
  // A peer that connects and says nothing holds a descriptor for this long only.
  socket.set(zmq::sockopt::handshake_ivl, milliseconds_of(config.handshake_timeout));
  socket.set(zmq::sockopt::maxmsgsize,
             static_cast<std::int64_t>(config.max_message_bytes) + kCurveOverheadBytes);
  // Frees the descriptors of peers whose host vanished. Liveness is core's heartbeat, not this.
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, 30);
  socket.set(zmq::sockopt::tcp_keepalive_intvl, 10);
  socket.set(zmq::sockopt::tcp_keepalive_cnt, 3);
}

// With IPV6 set libzmq turns an IPv4 literal into a mapped address, which then shows in endpoints.
bool wants_ipv6(std::string_view host) { return host != "localhost" && !is_ipv4_literal(host); }

}  // namespace

CurveKeys CurveKeys::generate() {
  std::array<char, kZ85KeyBytes + 1> public_key{};
  std::array<char, kZ85KeyBytes + 1> secret_key{};
  if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
    return {};  // open() then says that the keys are missing
  }
  return {public_key.data(), secret_key.data()};
}

Status reserve_files(std::uint32_t max_peers) {
  const rlim_t needed = kFilesPerPeer * max_peers + kFilesBeside;
  if (max_peers == 0 || 4 * static_cast<std::uint64_t>(max_peers) + 64 > kSocketLimit) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("max_peers is {}, must be between 1 and {}", max_peers,
                            (kSocketLimit - 64) / 4));
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return fail(FailureCode::kOperatingSystem, fmt::format("getrlimit: {}", std::strerror(errno)));
  }
  if (limit.rlim_cur >= needed) {
    return {};
  }
  if (limit.rlim_max < needed) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("max_peers = {} needs {} open files, the limit is {}: raise it "
                            "(ulimit -n {}, or LimitNOFILE of the service) or lower max_peers",
                            max_peers, needed, limit.rlim_max, needed));
  }
  limit.rlim_cur = needed;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("setrlimit to {} open files: {}", needed, std::strerror(errno)));
  }
  return {};
}

bool is_z85_key(std::string_view key) {
  constexpr std::string_view kAlphabet =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
  return key.size() == kZ85KeyBytes && key.find_first_not_of(kAlphabet) == std::string_view::npos;
}

Status check_config(const ControlLinkConfig& config) {
  if (config.host.empty() || config.max_message_bytes == 0 ||
      config.handshake_timeout <= Duration::zero()) {
    return fail(FailureCode::kInvalidArgument,
                "host, max_message_bytes and handshake_timeout must be set");
  }
  if (!config.curve) {
    if (!is_loopback_host(config.host)) {
      return fail(
          FailureCode::kInvalidArgument,
          fmt::format("without CURVE the control link is bound to loopback only, not to {}: "
                      "set curve = true or use 127.0.0.1",
                      config.host));
    }
    log::warning("the control link runs without encryption and authentication (curve = false)");
    return {};
  }
  if (zmq_has("curve") == 0) {
    return fail(FailureCode::kOperatingSystem, "this libzmq was built without CURVE");
  }
  if (!is_z85_key(config.keys.public_key) || !is_z85_key(config.keys.secret_key)) {
    return fail(FailureCode::kInvalidArgument, "the CURVE keys are not 40 characters of Z85 each");
  }
  return {};
}

zmq::context_t make_context(std::uint32_t max_peers) {
  zmq::context_t context(1);
  // Three sockets per peer, and a fourth because closed ones count until the reaper is through.
  context.set(zmq::ctxopt::max_sockets, static_cast<int>(4 * max_peers + 64));
  // Also sockets that libzmq makes by itself must not hold up the end of the context.
  context.set(zmq::ctxopt::blocky, 0);
  return context;
}

zmq::socket_t make_zap_handler(zmq::context_t& context) {
  zmq::socket_t handler(context, zmq::socket_type::rep);
  handler.set(zmq::sockopt::linger, 0);
  handler.bind(std::string(kZapEndpoint));
  return handler;
}

zmq::socket_t make_listener(zmq::context_t& context, const ControlLinkConfig& config) {
  zmq::socket_t listener(context, zmq::socket_type::router);
  set_common(listener, config);
  // Routing ids stay automatic: with a chosen one either the newcomer or the old peer falls mute.
  listener.set(zmq::sockopt::rcvhwm, kReceiveHighWater);
  // Many peers dial at once after a restart.
  listener.set(zmq::sockopt::backlog, kBacklog);
  listener.set(zmq::sockopt::ipv6, wants_ipv6(bare_host(config.host)));
  if (config.curve) {
    listener.set(zmq::sockopt::curve_server, true);
    listener.set(zmq::sockopt::curve_secretkey, config.keys.secret_key);
    // The handler that is bound by now is asked for each key.
    listener.set(zmq::sockopt::zap_domain, std::string(kZapDomain));
  }
  listener.bind(tcp_address(config.host, config.port));
  return listener;
}

zmq::socket_t make_dealer(zmq::context_t& context, const ControlLinkConfig& config,
                          const std::string& server_key, std::string_view host) {
  zmq::socket_t dealer(context, zmq::socket_type::dealer);
  set_common(dealer, config);
  // 1: no message is taken before the handshake. With 0 the messages meant for a dead peer wait in
  // the socket and reach the process that takes its place.
  dealer.set(zmq::sockopt::immediate, 1);
  // A connection is used once. A peer that comes back is dialled with a new socket, so that nothing
  // of the old life is left; after a refusal the socket is mute for ever anyway.
  dealer.set(zmq::sockopt::reconnect_ivl, -1);
  // The queue is ours, with priorities and a limit in bytes; libzmq holds as little as possible.
  dealer.set(zmq::sockopt::sndhwm, kSendHighWater);
  // Peers send nothing on this connection; what comes is dropped.
  dealer.set(zmq::sockopt::rcvhwm, 1);
  dealer.set(zmq::sockopt::connect_timeout, milliseconds_of(config.handshake_timeout));
  dealer.set(zmq::sockopt::ipv6, wants_ipv6(host));
  if (config.curve) {
    dealer.set(zmq::sockopt::curve_serverkey, server_key);
    dealer.set(zmq::sockopt::curve_publickey, config.keys.public_key);
    dealer.set(zmq::sockopt::curve_secretkey, config.keys.secret_key);
  }
  return dealer;
}

namespace {

zmq::socket_t make_monitor(zmq::context_t& context, zmq::socket_t& watched, int events,
                           const std::string& address) {
  if (zmq_socket_monitor(watched.handle(), address.c_str(), events) != 0) {
    throw zmq::error_t();
  }
  zmq::socket_t monitor(context, zmq::socket_type::pair);
  monitor.set(zmq::sockopt::linger, 0);
  monitor.connect(address);
  return monitor;
}

}  // namespace

zmq::socket_t make_dial_monitor(zmq::context_t& context, zmq::socket_t& dealer,
                                std::uint64_t serial) {
  return make_monitor(context, dealer,
                      ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |
                          ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
                      fmt::format("inproc://monitor-{}", serial));
}

zmq::socket_t make_handshake_monitor(zmq::context_t& context, zmq::socket_t& listener) {
  return make_monitor(context, listener,
                      ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL,
                      "inproc://monitor-listener");
}

void close_monitored(zmq::socket_t& socket, zmq::socket_t& monitor) noexcept {
  // First libzmq's end of the monitor: its I/O thread would wait for ever for a reader that is
  // gone.
  if (socket.handle() != nullptr) {
    zmq_socket_monitor(socket.handle(), nullptr, 0);
  }
  monitor.close();
  socket.close();
}

std::string tcp_address(std::string_view host, std::uint16_t port) {
  if (host == "localhost") {
    host = "127.0.0.1";
  }
  return "tcp://" + format_endpoint(host, port);
}

std::optional<ZapRequest> receive_zap(zmq::socket_t& handler) {
  // version, request id, domain, address, routing id, mechanism, credentials...
  constexpr std::size_t kFrames = 7;
  std::array<std::string, kFrames> frames;
  std::size_t count = 0;
  for (bool more = true; more;) {
    zmq::message_t part;
    if (zmq_msg_recv(part.handle(), handler.handle(), ZMQ_DONTWAIT) < 0) {
      return std::nullopt;
    }
    if (count < kFrames) {
      frames[count] = part.to_string();
    }
    ++count;
    more = part.more();
  }
  ZapRequest request;
  request.id = frames[1];
  if (count == kFrames && frames[5] == "CURVE" && frames[6].size() == 32) {
    char text[kZ85KeyBytes + 1];
    if (zmq_z85_encode(text, reinterpret_cast<const std::uint8_t*>(frames[6].data()), 32) !=
        nullptr) {
      request.public_key = text;
    }
  }
  return request;
}

void answer_zap(zmq::socket_t& handler, const ZapRequest& request, bool allow) {
  // version, request id, status code, status text, user id, metadata. The user id comes back with
  // each message of the connection: that is how a frame's sender is known.
  const std::array<std::string, 6> frames = {"1.0",
                                             request.id,
                                             allow ? "200" : "400",
                                             allow ? "OK" : "key not registered",
                                             allow ? request.public_key : std::string(),
                                             std::string()};
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    // The asker may be gone; then REP drops the answer by itself.
    zmq_send(handler.handle(), frames[i].data(), frames[i].size(), flags);
  }
}

std::optional<MonitorEvent> take_monitor_event(zmq::socket_t& monitor) {
  zmq::message_t message;
  if (zmq_msg_recv(message.handle(), monitor.handle(), ZMQ_DONTWAIT) < 0) {
    return std::nullopt;
  }
  for (bool more = message.more(); more;) {
    zmq::message_t address;
    if (zmq_msg_recv(address.handle(), monitor.handle(), ZMQ_DONTWAIT) < 0) {
      break;
    }
    more = address.more();
  }
  MonitorEvent event;
  if (message.size() >= sizeof event.id + sizeof event.value) {
    const char* const data = message.data<char>();
    std::memcpy(&event.id, data, sizeof event.id);
    std::memcpy(&event.value, data + sizeof event.id, sizeof event.value);
  }
  return event;
}

std::optional<DialStep> receive_dial_step(zmq::socket_t& monitor) {
  const std::optional<MonitorEvent> event = take_monitor_event(monitor);
  if (!event) {
    return std::nullopt;
  }
  switch (event->id) {
    case ZMQ_EVENT_CONNECTED:
      return DialStep::kConnected;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      return DialStep::kHandshaken;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      return DialStep::kDenied;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
    case ZMQ_EVENT_CLOSED:
    case ZMQ_EVENT_DISCONNECTED:
      return DialStep::kBroken;
    default:
      return DialStep::kNone;
  }
}

int descriptor_of(zmq::socket_t& socket) { return socket.get(zmq::sockopt::fd); }

}  // namespace kvferry::net
