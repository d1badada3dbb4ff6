#include "dialect/sglang/pull_listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "net/endpoint.h"
#include "net/zmq_sockets.h"

namespace kvferry::sglang {
namespace {

constexpr int kBacklog = 1'024;
constexpr std::string_view kMonitorAddress = "inproc://sglang-listener-monitor-";
constexpr int kIdleLooks = 5;  // intervals between looks while nothing is unfinished
// A frame's flags and length before it: two bytes, or nine when it is longer than 255.
constexpr std::size_t kShortFrame = 255;
constexpr std::size_t kShortHeader = 2;
constexpr std::size_t kLongHeader = 9;
// Greeting and READY of a handshake, heartbeats and the like.
constexpr std::uint64_t kTalkBytes = 4'096;

std::size_t bytes_on_the_wire(std::size_t frame_bytes) {
  return frame_bytes + (frame_bytes > kShortFrame ? kLongHeader : kShortHeader);
}

std::optional<std::uint64_t> received_bytes(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
      length < offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received) {
    return std::nullopt;
  }
  return info.tcpi_bytes_received;
}

bool watch(const data_plane::Fd& poll_fd, int fd) {
  epoll_event entry{};
  entry.events = EPOLLIN;
  return ::epoll_ctl(poll_fd.get(), EPOLL_CTL_ADD, fd, &entry) == 0;
}

}  // namespace

PullListener::PullListener(zmq::context_t& context, const PullListenerConfig& config)
    : config_(config), context_(context), poll_fd_(::epoll_create1(EPOLL_CLOEXEC)) {}

PullListener::~PullListener() { net::close_monitored(socket_, monitor_); }

Result<std::unique_ptr<PullListener>> PullListener::bind(zmq::context_t& context,
                                                         const PullListenerConfig& config) {
  const std::string where = net::format_endpoint(config.host, config.port);
  const bool is_numeric = net::is_ipv4_literal(config.host) || net::is_ipv6_literal(config.host);
  if (!is_numeric || config.host == "0.0.0.0" || config.host == "::") {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("the SGLang listener at {}: peers are told this address, so it must be "
                            "a numeric one of this host",
                            where));
  }
  std::unique_ptr<PullListener> listener(new PullListener(context, config));
  try {
    if (Status opened = listener->open(); !opened) {
      return tl::unexpected(opened.error());
    }
  } catch (const zmq::error_t& error) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("the SGLang listener at {}: {}", where, error.what()));
  }
  return listener;
}

Status PullListener::open() {
  socket_ = zmq::socket_t(context_, zmq::socket_type::pull);
  socket_.set(zmq::sockopt::linger, 0);
  socket_.set(zmq::sockopt::rcvhwm, static_cast<int>(config_.receive_high_water));
  socket_.set(zmq::sockopt::maxmsgsize,
              static_cast<std::int64_t>(config_.limits.max_frame_bytes));  // of one frame
  socket_.set(zmq::sockopt::handshake_ivl, static_cast<int>(std::max<std::int64_t>(
                                               config_.handshake_timeout / milliseconds(1), 1)));
  socket_.set(zmq::sockopt::backlog, kBacklog);
  socket_.set(zmq::sockopt::ipv6, net::is_ipv6_literal(config_.host));
  const std::string monitor_address =
      fmt::format("{}{}", kMonitorAddress, static_cast<const void*>(this));
  if (zmq_socket_monitor(socket_.handle(), monitor_address.c_str(),
                         ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED) != 0) {
    throw zmq::error_t();
  }
  monitor_ = zmq::socket_t(context_, zmq::socket_type::pair);
  monitor_.set(zmq::sockopt::linger, 0);
  monitor_.connect(monitor_address);
  socket_.bind(net::tcp_address(config_.host, config_.port));
  const std::string bound = socket_.get(zmq::sockopt::last_endpoint);
  const auto parsed = net::parse_endpoint(bound.substr(std::string_view("tcp://").size()));
  if (!parsed) {
    return fail(FailureCode::kOperatingSystem, "libzmq reports the endpoint " + bound);
  }
  port_ = parsed->port;
  if (!watch(poll_fd_, net::descriptor_of(socket_)) ||
      !watch(poll_fd_, net::descriptor_of(monitor_))) {
    return fail(FailureCode::kOperatingSystem, data_plane::errno_text("epoll_ctl"));
  }
  // A descriptor tells of news only once its socket was found empty.
  take_monitor_events();
  return {};
}

// --- messages ---

std::optional<Frames> PullListener::receive() {
  Frames frames;
  std::size_t kept_bytes = 0;
  std::uint64_t wire_bytes = 0;
  int fd = -1;
  for (bool more = true; more;) {
    zmq::message_t part;
    if (zmq_msg_recv(part.handle(), socket_.handle(), ZMQ_DONTWAIT) < 0) {
      // Between the frames of a message this can't be: a socket hands out whole messages only.
      drained_ = true;
      return std::nullopt;
    }
    more = part.more();
    fd = zmq_msg_get(part.handle(), ZMQ_SRCFD);
    wire_bytes += bytes_on_the_wire(part.size());
    if (frames.size() > config_.limits.max_frames ||
        kept_bytes > config_.limits.max_message_bytes) {
      continue;
    }
    kept_bytes += part.size();
    const auto* data = part.data<std::uint8_t>();
    frames.emplace_back(data, data + part.size());
  }
  drained_ = false;
  if (const auto found = connections_.find(fd); found != connections_.end()) {
    found->second.taken_bytes += wire_bytes;
  }
  return frames;
}

// --- connections ---

void PullListener::serve(Instant now) {
  take_monitor_events();
  if (now < next_look_) {
    return;
  }
  look();
  const bool all_is_whole =
      std::all_of(connections_.begin(), connections_.end(),
                  [](const auto& each) { return each.second.unfinished <= kTalkBytes; });
  next_look_ = now + config_.look_interval * (all_is_whole ? kIdleLooks : 1);
}

void PullListener::take_monitor_events() {
  while (const auto event = net::take_monitor_event(monitor_)) {
    const int fd = static_cast<int>(event->value);
    if (event->id == ZMQ_EVENT_ACCEPTED) {
      add_connection(fd);
    } else {
      connections_.erase(fd);
    }
  }
}

void PullListener::add_connection(int fd) {
  connections_[fd] = {};
  if (connections_.size() > config_.max_connections && cut(fd)) {
    ++cut_surplus_;
  }
}

// With nothing left to receive, all that a connection has more is one unfinished message and what
// lies in buffers; else also whole messages, of which libzmq holds so many at most. Two looks have
// to agree: whole messages may have come since receive() found none.
void PullListener::look() {
  const std::uint64_t held =
      drained_ ? 0 : std::uint64_t{config_.receive_high_water} * config_.limits.max_message_bytes;
  std::uint64_t total = 0;
  std::pair<int, std::uint64_t> largest{-1, 0};
  for (auto& [fd, connection] : connections_) {
    const std::uint64_t received = received_bytes(fd).value_or(0);
    connection.unfinished = received - std::min(received, connection.taken_bytes);
    if (connection.is_cut) {
      continue;
    }
    total += connection.unfinished;
    const bool has_too_much = connection.unfinished > held + config_.max_unfinished_bytes;
    const bool was_suspect = std::exchange(connection.is_suspect, has_too_much);
    if (has_too_much && was_suspect) {
      cut_unfinished_ += cut(fd) ? 1 : 0;
    } else if (connection.unfinished > largest.second) {
      largest = {fd, connection.unfinished};
    }
  }
  if (drained_ && total > config_.max_unfinished_total_bytes && largest.first >= 0) {
    cut_unfinished_ += cut(largest.first) ? 1 : 0;
  }
}

// libzmq's I/O thread then finds the connection's end, takes back what is unfinished and closes it.
bool PullListener::cut(int fd) {
  connections_[fd].is_cut = true;
  return is_ours(fd) && ::shutdown(fd, SHUT_RDWR) == 0;
}

// libzmq closes connections on a thread of its own, and their number may name another file by now.
// What was accepted at this port is a peer's in any case: should it be another one, it connects
// again.
bool PullListener::is_ours(int fd) const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return false;
  }
  int listens = 0;
  socklen_t size = sizeof listens;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens != 0) {
    return false;
  }
  const std::uint16_t port =
      address.ss_family == AF_INET6
          ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
          : (address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                          : std::uint16_t{0});
  return port == htons(port_);
}

}  // namespace kvferry::sglang
