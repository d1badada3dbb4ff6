#include "dialect/sglang/push_endpoints.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "net/endpoint.h"
#include "net/zmq_sockets.h"

namespace kvferry::sglang {
namespace {

constexpr int kPollBatch = 256;
constexpr Duration kSweepInterval = std::chrono::seconds(1);
// At the limit an endpoint gives way to another after so long without a message: by then the kernel
// has what its socket took.
constexpr Duration kGivesWayAfter = std::chrono::seconds(1);
// What lies in the socket can't be counted when it is lost, so as little as possible does.
constexpr int kSendHighWater = 4;

// What an epoll entry stands for: the serial number of its line, and one bit.
constexpr std::uint64_t kSocketBit = 1;
std::uint64_t tag_of(std::uint64_t serial, bool is_socket) {
  return serial << 1 | (is_socket ? kSocketBit : 0);
}

std::string name_of(const RankEndpoint& endpoint) {
  return net::format_endpoint(endpoint.ip, endpoint.port);
}

bool is_numeric(const RankEndpoint& endpoint) {
  return endpoint.port != 0 &&
         (net::is_ipv4_literal(endpoint.ip) || net::is_ipv6_literal(endpoint.ip));
}

}  // namespace

struct PushEndpoints::Line {
  RankEndpoint endpoint;
  std::uint64_t serial = 0;
  zmq::socket_t socket;
  zmq::socket_t monitor;
  bool handshaken = false;
  bool held = false;
  bool polled = false;  // the socket is in the poll set: only while it is full
  Instant used_at;
  std::deque<std::vector<zmq::message_t>> queue;
  std::size_t queued_bytes = 0;

  Line() = default;
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line() { net::close_monitored(socket, monitor); }
};

Result<std::unique_ptr<PushEndpoints>> PushEndpoints::make(zmq::context_t& context,
                                                           const PushEndpointsConfig& config) {
  data_plane::Fd poll_fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!poll_fd.is_open()) {
    return fail(FailureCode::kOperatingSystem, data_plane::errno_text("epoll_create1"));
  }
  return std::unique_ptr<PushEndpoints>(new PushEndpoints(context, config, std::move(poll_fd)));
}

PushEndpoints::PushEndpoints(zmq::context_t& context, const PushEndpointsConfig& config,
                             data_plane::Fd poll_fd)
    : config_(config), context_(context), poll_fd_(std::move(poll_fd)) {}

PushEndpoints::~PushEndpoints() = default;

// --- opening and closing ---

PushEndpoints::Line* PushEndpoints::open(const RankEndpoint& endpoint, Instant now) {
  const std::string name = name_of(endpoint);
  if (const auto found = lines_.find(name); found != lines_.end()) {
    return found->second.get();
  }
  if (!is_numeric(endpoint)) {
    refuse(endpoint, "its address is not numeric");
    return nullptr;
  }
  if (lines_.size() >= config_.max_endpoints && !make_room(now)) {
    refuse(endpoint, fmt::format("{} endpoints are open", lines_.size()));
    return nullptr;
  }
  auto line = std::make_unique<Line>();
  line->endpoint = endpoint;
  line->serial = next_serial_++;
  line->used_at = now;
  try {
    connect(*line);
  } catch (const zmq::error_t& error) {
    refuse(endpoint, error.what());
    return nullptr;
  }
  handshakes_due_.emplace_back(now + 2 * config_.handshake_timeout, line->serial);
  fresh_.push_back(line->serial);
  by_serial_.emplace(line->serial, line.get());
  return lines_.emplace(name, std::move(line)).first->second.get();
}

void PushEndpoints::connect(Line& line) {
  const auto timeout_ms =
      static_cast<int>(std::max<std::int64_t>(config_.handshake_timeout / milliseconds(1), 1));
  line.socket = zmq::socket_t(context_, zmq::socket_type::push);
  line.socket.set(zmq::sockopt::linger, 0);
  // 1: no message is taken before the handshake. With 0 what was meant for a dead process waits in
  // the socket and reaches the one that takes its place.
  line.socket.set(zmq::sockopt::immediate, 1);
  line.socket.set(zmq::sockopt::reconnect_ivl, -1);
  line.socket.set(zmq::sockopt::sndhwm, kSendHighWater);
  line.socket.set(zmq::sockopt::handshake_ivl, timeout_ms);
  line.socket.set(zmq::sockopt::connect_timeout, timeout_ms);
  // Tells of a host that vanished; nothing of SGLang's is heard on this connection.
  line.socket.set(zmq::sockopt::tcp_keepalive, 1);
  line.socket.set(zmq::sockopt::tcp_keepalive_idle, 30);
  line.socket.set(zmq::sockopt::tcp_keepalive_intvl, 5);
  line.socket.set(zmq::sockopt::tcp_keepalive_cnt, 3);
  line.socket.set(zmq::sockopt::ipv6, net::is_ipv6_literal(line.endpoint.ip));
  line.monitor = net::make_dial_monitor(context_, line.socket, line.serial);
  epoll_event entry{};
  entry.events = EPOLLIN;
  entry.data.u64 = tag_of(line.serial, false);
  if (::epoll_ctl(poll_fd_.get(), EPOLL_CTL_ADD, net::descriptor_of(line.monitor), &entry) != 0) {
    throw zmq::error_t(errno);
  }
  line.socket.connect(net::tcp_address(line.endpoint.ip, line.endpoint.port));
}

// Closes the one that has been silent for longest, of those that may go.
bool PushEndpoints::make_room(Instant now) {
  Line* oldest = nullptr;
  for (const auto& [name, line] : lines_) {
    if (!line->held && line->queue.empty() && now - line->used_at >= kGivesWayAfter &&
        (oldest == nullptr || line->used_at < oldest->used_at)) {
      oldest = line.get();
    }
  }
  if (oldest == nullptr) {
    return false;
  }
  close(*oldest);
  return true;
}

void PushEndpoints::close(Line& line) {
  // libzmq closes descriptors later, on its own thread; until then they would still wake this one.
  poll_socket(line, false);
  ::epoll_ctl(poll_fd_.get(), EPOLL_CTL_DEL, net::descriptor_of(line.monitor), nullptr);
  by_serial_.erase(line.serial);
  lines_.erase(name_of(line.endpoint));
}

void PushEndpoints::lose(Line& line, std::string why) {
  events_.emplace_back(EndpointLost{line.endpoint, line.queue.size(), std::move(why)});
  close(line);
}

void PushEndpoints::refuse(const RankEndpoint& endpoint, std::string why) {
  events_.emplace_back(EndpointLost{endpoint, 0, std::move(why)});
}

void PushEndpoints::leave(const RankEndpoint& endpoint) {
  if (const auto found = lines_.find(name_of(endpoint)); found != lines_.end()) {
    close(*found->second);
  }
}

void PushEndpoints::hold(const RankEndpoint& endpoint, Instant now) {
  if (Line* line = open(endpoint, now)) {
    line->held = true;
  }
}

// --- sending ---

void PushEndpoints::send(const RankEndpoint& endpoint, const Frames& frames, Instant now) {
  Line* line = open(endpoint, now);
  if (line == nullptr) {
    return;
  }
  std::vector<zmq::message_t> message;
  std::size_t bytes = 0;
  for (const Frame& frame : frames) {
    message.emplace_back(frame.data(), frame.size());
    bytes += frame.size();
  }
  line->used_at = now;
  line->queue.push_back(std::move(message));
  line->queued_bytes += bytes;
  if (line->handshaken && !line->polled) {
    const std::uint64_t serial = line->serial;
    flush(*line);
    if (!by_serial_.contains(serial)) {
      return;
    }
  }
  if (line->queue.size() > config_.queue_max_messages ||
      line->queued_bytes > config_.queue_max_bytes) {
    lose(*line, fmt::format("it takes nothing: {} bytes wait", line->queued_bytes));
  }
}

// A message of which the socket took the first frame is taken whole, or the connection is over.
void PushEndpoints::flush(Line& line) {
  while (!line.queue.empty()) {
    std::vector<zmq::message_t>& frames = line.queue.front();
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      bytes += frames[i].size();
      const int flags = ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
      int sent = 0;
      do {
        sent = zmq_msg_send(frames[i].handle(), line.socket.handle(), flags);
      } while (sent < 0 && zmq_errno() == EINTR);
      if (sent < 0 && zmq_errno() == EAGAIN && i == 0) {
        poll_socket(line, true);
        return;
      }
      if (sent < 0) {
        lose(line, fmt::format("its socket failed: {}", zmq_strerror(zmq_errno())));
        return;
      }
    }
    line.queued_bytes -= bytes;
    line.queue.pop_front();
  }
  poll_socket(line, false);
}

void PushEndpoints::poll_socket(Line& line, bool wanted) {
  if (line.polled == wanted) {
    return;
  }
  const int fd = net::descriptor_of(line.socket);
  epoll_event entry{};
  entry.events = EPOLLIN;
  entry.data.u64 = tag_of(line.serial, true);
  ::epoll_ctl(poll_fd_.get(), wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &entry);
  line.polled = wanted;
}

// --- turning ---

void PushEndpoints::serve(Instant now) {
  std::vector<std::uint64_t> ready = std::exchange(fresh_, {});
  for (std::uint64_t& serial : ready) {
    serial = tag_of(serial, false);
  }
  std::array<epoll_event, kPollBatch> entries;
  const int count = ::epoll_wait(poll_fd_.get(), entries.data(), kPollBatch, 0);
  for (int i = 0; i < count; ++i) {
    ready.push_back(entries[static_cast<std::size_t>(i)].data.u64);
  }
  for (const std::uint64_t tag : ready) {
    const auto found = by_serial_.find(tag >> 1);
    if (found == by_serial_.end()) {
      continue;  // closed earlier in this batch
    }
    Line& line = *found->second;
    if ((tag & kSocketBit) == 0) {
      serve_monitor(line);
    } else if ((line.socket.get(zmq::sockopt::events) & ZMQ_POLLOUT) != 0) {
      flush(line);
    }
  }
  expire(now);
}

void PushEndpoints::serve_monitor(Line& line) {
  while (const auto step = net::receive_dial_step(line.monitor)) {
    switch (*step) {
      case net::DialStep::kNone:
      case net::DialStep::kConnected:
        break;
      case net::DialStep::kHandshaken: {
        line.handshaken = true;
        events_.emplace_back(EndpointUp{line.endpoint});
        const std::uint64_t serial = line.serial;
        flush(line);
        if (!by_serial_.contains(serial)) {
          return;
        }
        break;
      }
      case net::DialStep::kDenied:
      case net::DialStep::kBroken:
        lose(line, line.handshaken ? "its connection ended" : "it can't be reached");
        return;
    }
  }
}

void PushEndpoints::expire(Instant now) {
  while (!handshakes_due_.empty() && handshakes_due_.front().first <= now) {
    const auto found = by_serial_.find(handshakes_due_.front().second);
    handshakes_due_.pop_front();
    if (found != by_serial_.end() && !found->second->handshaken) {
      lose(*found->second, "its handshake takes too long");
    }
  }
  if (now < next_sweep_) {
    return;
  }
  next_sweep_ = now + kSweepInterval;
  std::vector<Line*> idle;
  for (const auto& [name, line] : lines_) {
    if (!line->held && line->queue.empty() && now - line->used_at >= config_.idle_timeout) {
      idle.push_back(line.get());
    }
  }
  for (Line* line : idle) {
    close(*line);
  }
}

std::optional<Instant> PushEndpoints::next_deadline() const {
  if (!fresh_.empty() || !events_.empty()) {
    return Instant{};
  }
  if (lines_.empty()) {
    return std::nullopt;
  }
  return handshakes_due_.empty() ? next_sweep_
                                 : std::min(next_sweep_, handshakes_due_.front().first);
}

}  // namespace kvferry::sglang
