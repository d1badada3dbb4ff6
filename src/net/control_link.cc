#include "net/control_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <zmq.hpp>

#include "base/clock.h"
#include "base/log.h"
#include "net/connect_probe.h"
#include "net/endpoint.h"
#include "net/send_queue.h"
#include "net/zmq_sockets.h"

namespace kvferry::net {
namespace {

// Batches of one turn, so that no socket keeps the others waiting.
constexpr int kPollBatch = 256;
constexpr int kZapBatch = 64;
constexpr std::size_t kFrameBatch = 1'024;
constexpr int kJunkBatch = 16;

// What an epoll entry stands for; the serial number of its link stands above these bits, so that an
// entry of a link that went in the same batch finds nothing.
enum class Source : std::uint64_t { kListener, kHandshakes, kZap, kMonitor, kDealer, kProbe };
constexpr unsigned kSourceBits = 3;

std::uint64_t tag_of(Source source, std::uint64_t serial) {
  return serial << kSourceBits | static_cast<std::uint64_t>(source);
}

// One peer: its DEALER, or after a failed connection the probe that finds out why.
struct Link {
  PeerId peer;
  std::uint64_t serial = 0;
  Endpoint endpoint;
  zmq::socket_t dealer;
  zmq::socket_t monitor;
  ConnectProbe probe;
  bool connected = false;
  bool handshaken = false;
  bool polled = false;  // DEALER is in the poll set: only while something is queued
  Instant dialed_at;
  Instant connected_at;
  SendQueue queue;

  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() { close_monitored(dealer, monitor); }
};

class ZmqControlLink final : public ControlLink {
 public:
  ZmqControlLink(ControlLinkConfig config, IsAllowed is_allowed)
      : config_(std::move(config)),
        is_allowed_(std::move(is_allowed)),
        context_(make_context(config_.max_peers)) {}
  ~ZmqControlLink() override {
    links_.clear();
    close_monitored(listener_, handshakes_);
    if (poll_fd_ >= 0) {
      ::close(poll_fd_);
    }
  }

  Status bind();  // may throw zmq::error_t

  std::string endpoint() const override { return endpoint_; }
  Status dial(PeerId peer, const PeerAddress& address) override;
  void hang_up(PeerId peer) override;
  LinkSend send(PeerId peer, std::vector<std::uint8_t> frame, LinkPriority priority) override;
  void wait(Duration timeout, int wake_fd, std::vector<LinkEvent>& events,
            std::size_t max_events) override;

 private:
  void connect(Link& link, const std::string& server_key);
  void close_sockets(Link& link);
  bool add_to_poll(int fd, std::uint64_t tag, std::uint32_t what);
  Link* find(std::uint64_t serial);

  void report(LinkEvent event);
  bool has_room() const { return out_ != nullptr && out_->size() < out_limit_; }
  void deliver_backlog();
  bool sleep(Duration timeout, int wake_fd);  // true when wake_fd is readable
  void expire_dials(Instant now);

  void serve_turn();
  void serve_source(Source source, std::uint64_t serial);
  void serve_zap();
  void serve_listener();
  bool receive_message();  // false when the listener is empty
  void serve_monitor(Link& link);
  void on_broken(Link& link);
  void on_not_connected(Link& link);
  void serve_dealer(Link& link);

  bool flush(Link& link);  // false when the socket failed
  void poll_dealer(Link& link, bool wanted);
  void lose(Link& link, LinkLost::Why why);

  const ControlLinkConfig config_;
  const IsAllowed is_allowed_;
  // The context is above the sockets: it ends last.
  zmq::context_t context_;
  zmq::socket_t zap_;
  zmq::socket_t listener_;
  zmq::socket_t handshakes_;  // monitor of the listener
  std::string endpoint_;
  int poll_fd_ = -1;

  std::unordered_map<PeerId, std::unique_ptr<Link>> links_;
  std::unordered_map<std::uint64_t, Link*> by_serial_;
  std::uint64_t next_serial_ = 1;
  // Dials that must be decided by a time; the timeout is the same for all, so they are in order.
  std::deque<std::pair<Instant, std::uint64_t>> dial_deadlines_;
  std::vector<std::uint64_t> fresh_;  // links whose monitor was not read yet

  // A ZeroMQ descriptor tells of changes, not of states: a socket that was not read until it was
  // empty is remembered here, else its messages would lie there unseen.
  bool zap_ready_ = true;
  bool listener_ready_ = true;

  std::deque<LinkEvent> backlog_;
  std::vector<LinkEvent>* out_ = nullptr;
  std::size_t out_limit_ = 0;  // size that *out_ may grow to
};

Status ZmqControlLink::bind() {
  poll_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (poll_fd_ < 0) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("epoll_create1: {}", std::strerror(errno)));
  }
  zap_ = make_zap_handler(context_);
  listener_ = make_listener(context_, config_);
  handshakes_ = make_handshake_monitor(context_, listener_);
  const std::string bound = listener_.get(zmq::sockopt::last_endpoint);
  const auto parsed =
      parse_endpoint(std::string_view(bound).substr(std::string_view("tcp://").size()));
  if (!parsed) {
    return fail(FailureCode::kOperatingSystem, "libzmq reports the endpoint " + bound);
  }
  endpoint_ = format_endpoint(config_.host, parsed->port);
  if (!add_to_poll(descriptor_of(listener_), tag_of(Source::kListener, 0), EPOLLIN) ||
      !add_to_poll(descriptor_of(handshakes_), tag_of(Source::kHandshakes, 0), EPOLLIN) ||
      !add_to_poll(descriptor_of(zap_), tag_of(Source::kZap, 0), EPOLLIN)) {
    return fail(FailureCode::kOperatingSystem, fmt::format("epoll_ctl: {}", std::strerror(errno)));
  }
  // Its descriptor tells of news only once it was found empty.
  while (receive_dial_step(handshakes_)) {
  }
  return {};
}

bool ZmqControlLink::add_to_poll(int fd, std::uint64_t tag, std::uint32_t what) {
  epoll_event entry{};
  entry.events = what;
  entry.data.u64 = tag;
  return ::epoll_ctl(poll_fd_, EPOLL_CTL_ADD, fd, &entry) == 0;
}

Link* ZmqControlLink::find(std::uint64_t serial) {
  const auto found = by_serial_.find(serial);
  return found == by_serial_.end() ? nullptr : found->second;
}

// --- dialling ---

Status ZmqControlLink::dial(PeerId peer, const PeerAddress& address) {
  hang_up(peer);
  auto endpoint = parse_endpoint(address.endpoint);
  if (!endpoint || endpoint->port == 0) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("'{}' is not host:port", address.endpoint.substr(0, 300)));
  }
  if (config_.curve && !is_z85_key(address.public_key)) {
    return fail(FailureCode::kInvalidArgument, "the peer's public key is not 40 characters of Z85",
                FailureWhere::kPeer, address.endpoint);
  }
  if (!config_.curve && !is_loopback_host(endpoint->host)) {
    return fail(FailureCode::kInvalidArgument,
                "without CURVE only peers on loopback are dialled: set curve = true",
                FailureWhere::kLocal, address.endpoint);
  }
  if (links_.size() >= config_.max_peers) {
    return fail(FailureCode::kTableFull,
                fmt::format("max_peers = {} connections are open", config_.max_peers));
  }
  auto link = std::make_unique<Link>();
  link->peer = peer;
  link->serial = next_serial_++;
  link->endpoint = std::move(*endpoint);
  try {
    connect(*link, address.public_key);
  } catch (const zmq::error_t& error) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("dialling {}: {}", address.endpoint, error.what()));
  }
  fresh_.push_back(link->serial);
  by_serial_.emplace(link->serial, link.get());
  links_.emplace(peer, std::move(link));
  return {};
}

void ZmqControlLink::connect(Link& link, const std::string& server_key) {
  link.dealer = make_dealer(context_, config_, server_key, link.endpoint.host);
  link.monitor = make_dial_monitor(context_, link.dealer, link.serial);
  if (!add_to_poll(descriptor_of(link.monitor), tag_of(Source::kMonitor, link.serial), EPOLLIN)) {
    throw zmq::error_t(errno);
  }
  link.dialed_at = monotonic_now();
  link.dealer.connect(tcp_address(link.endpoint.host, link.endpoint.port));
  // Longer than connection and handshake may take by themselves: libzmq tells nothing at all when
  // it could not even make a socket or resolve a name.
  dial_deadlines_.emplace_back(
      link.dialed_at + 2 * config_.handshake_timeout + std::chrono::seconds(1), link.serial);
}

void ZmqControlLink::hang_up(PeerId peer) {
  const auto found = links_.find(peer);
  if (found != links_.end()) {
    close_sockets(*found->second);
    by_serial_.erase(found->second->serial);
    links_.erase(found);
  }
}

void ZmqControlLink::close_sockets(Link& link) {
  if (link.dealer.handle() == nullptr) {
    return;
  }
  // libzmq closes descriptors later, on its own thread; until then they would still wake this one.
  poll_dealer(link, false);
  ::epoll_ctl(poll_fd_, EPOLL_CTL_DEL, descriptor_of(link.monitor), nullptr);
  close_monitored(link.dealer, link.monitor);
}

void ZmqControlLink::lose(Link& link, LinkLost::Why why) {
  const PeerId peer = link.peer;
  hang_up(peer);
  report(LinkLost{peer, why});
}

void ZmqControlLink::expire_dials(Instant now) {
  while (!dial_deadlines_.empty() && dial_deadlines_.front().first <= now) {
    Link* link = find(dial_deadlines_.front().second);
    dial_deadlines_.pop_front();
    if (link != nullptr && !link->handshaken) {
      lose(*link, LinkLost::Why::kClosed);
    }
  }
}

// --- sending ---

LinkSend ZmqControlLink::send(PeerId peer, std::vector<std::uint8_t> frame, LinkPriority priority) {
  const auto found = links_.find(peer);
  if (found == links_.end() || !found->second->handshaken) {
    return LinkSend::kNotConnected;
  }
  Link& link = *found->second;
  const std::size_t bytes = frame.size();
  if (bytes > config_.max_message_bytes || link.queue.bytes() + bytes > config_.queue_max_bytes) {
    return LinkSend::kQueueFull;
  }
  link.queue.push(std::move(frame), priority);
  // A DEALER in the poll set was full at the last try and will be reported when it is not.
  if (!link.polled && !flush(link)) {
    return LinkSend::kNotConnected;
  }
  return LinkSend::kQueued;
}

bool ZmqControlLink::flush(Link& link) {
  const SendQueue::Flushed flushed = link.queue.flush(link.dealer);
  if (flushed == SendQueue::Flushed::kSocketFailed) {
    lose(link, LinkLost::Why::kClosed);
    return false;
  }
  poll_dealer(link, flushed == SendQueue::Flushed::kSocketFull);
  return true;
}

void ZmqControlLink::poll_dealer(Link& link, bool wanted) {
  if (link.polled == wanted) {
    return;
  }
  const int fd = descriptor_of(link.dealer);
  if (wanted) {
    add_to_poll(fd, tag_of(Source::kDealer, link.serial), EPOLLIN);
  } else {
    ::epoll_ctl(poll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  }
  link.polled = wanted;
}

void ZmqControlLink::serve_dealer(Link& link) {
  // Asking for the state also takes in what the descriptor announced, so that it falls silent.
  const int state = link.dealer.get(zmq::sockopt::events);
  if ((state & ZMQ_POLLIN) != 0) {
    for (int i = 0; i < kJunkBatch; ++i) {
      zmq::message_t junk;
      if (zmq_msg_recv(junk.handle(), link.dealer.handle(), ZMQ_DONTWAIT) < 0) {
        break;
      }
    }
  }
  if ((state & ZMQ_POLLOUT) != 0) {
    flush(link);
  }
}

// --- waiting ---

void ZmqControlLink::wait(Duration timeout, int wake_fd, std::vector<LinkEvent>& events,
                          std::size_t max_events) {
  const Instant start = monotonic_now();
  const std::size_t before = events.size();
  out_ = &events;
  out_limit_ = before + std::max<std::size_t>(max_events, 1);
  try {
    deliver_backlog();
    for (Instant now = start;; now = monotonic_now()) {
      expire_dials(now);
      Duration left = timeout < Duration::zero() ? Duration::max() : timeout - (now - start);
      const bool last = left <= Duration::zero();
      if (events.size() > before || last) {
        left = Duration::zero();
      } else if (!dial_deadlines_.empty()) {
        left = std::min(left, dial_deadlines_.front().first - now);
      }
      const bool woken = sleep(left, wake_fd);
      serve_turn();
      if (woken || last || events.size() > before) {
        break;
      }
    }
  } catch (const zmq::error_t& error) {
    // Only a socket or context that is no more throws here; the owner goes on without this turn.
    log::error("control link {}: {}", endpoint_, error.what());
  }
  out_ = nullptr;
}

bool ZmqControlLink::sleep(Duration timeout, int wake_fd) {
  std::array<pollfd, 2> fds{pollfd{poll_fd_, POLLIN, 0}, pollfd{wake_fd, POLLIN, 0}};
  timespec left{};
  timespec* wait_for = &left;
  if (zap_ready_ || listener_ready_ || !fresh_.empty()) {
    // Something is known to be there: look at the others and do not sleep.
  } else if (timeout == Duration::max()) {
    wait_for = nullptr;
  } else {
    const auto nanoseconds = std::max<std::int64_t>(timeout.count(), 0);
    left.tv_sec = nanoseconds / 1'000'000'000;
    left.tv_nsec = nanoseconds % 1'000'000'000;
  }
  if (::ppoll(fds.data(), fds.size(), wait_for, nullptr) <= 0) {
    return false;
  }
  return fds[1].revents != 0;
}

void ZmqControlLink::report(LinkEvent event) {
  if (has_room() && backlog_.empty()) {
    out_->push_back(std::move(event));
  } else {
    backlog_.push_back(std::move(event));
  }
}

void ZmqControlLink::deliver_backlog() {
  while (!backlog_.empty() && has_room()) {
    out_->push_back(std::move(backlog_.front()));
    backlog_.pop_front();
  }
}

// Connections and strangers come first, then queues, then frames: a flood of frames can't hide a
// lost peer. Every link event is at most two per dial, so that they are not counted against the
// limit.
void ZmqControlLink::serve_turn() {
  std::vector<std::uint64_t> fresh;
  fresh.swap(fresh_);
  for (const std::uint64_t serial : fresh) {
    serve_source(Source::kMonitor, serial);
  }
  std::array<epoll_event, kPollBatch> entries;
  const int count = ::epoll_wait(poll_fd_, entries.data(), kPollBatch, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t tag = entries[static_cast<std::size_t>(i)].data.u64;
    serve_source(static_cast<Source>(tag & ((1U << kSourceBits) - 1)), tag >> kSourceBits);
  }
  if (zap_ready_) {
    serve_zap();
  }
  if (listener_ready_) {
    serve_listener();
  }
}

void ZmqControlLink::serve_source(Source source, std::uint64_t serial) {
  if (source == Source::kListener) {
    listener_ready_ = true;
    return;
  }
  if (source == Source::kHandshakes) {
    while (const auto step = receive_dial_step(handshakes_)) {
      if (*step == DialStep::kBroken) {
        report(LinkBadHandshake{});
      }
    }
    return;
  }
  if (source == Source::kZap) {
    zap_ready_ = true;
    return;
  }
  Link* link = find(serial);
  if (link == nullptr) {
    return;
  }
  if (source == Source::kProbe) {
    lose(*link, link->probe.refused() ? LinkLost::Why::kRefused : LinkLost::Why::kClosed);
  } else if (link->dealer.handle() == nullptr) {
    return;  // given up earlier in this batch, the probe is still out
  } else if (source == Source::kMonitor) {
    serve_monitor(*link);
  } else {
    serve_dealer(*link);
  }
}

void ZmqControlLink::serve_monitor(Link& link) {
  while (const auto step = receive_dial_step(link.monitor)) {
    switch (*step) {
      case DialStep::kNone:
        break;
      case DialStep::kConnected:
        link.connected = true;
        link.connected_at = monotonic_now();
        break;
      case DialStep::kHandshaken:
        link.handshaken = true;
        report(LinkConnected{link.peer});
        break;
      case DialStep::kDenied:
        // The peer lives and has the key it should have: it has not heard of us yet, or no more.
        lose(link, LinkLost::Why::kDenied);
        return;
      case DialStep::kBroken:
        on_broken(link);
        return;
    }
  }
}

void ZmqControlLink::on_broken(Link& link) {
  if (link.handshaken) {
    lose(link, LinkLost::Why::kClosed);
    return;
  }
  if (!link.connected) {
    on_not_connected(link);
    return;
  }
  // A peer with another key closes the connection at its first look at ours. A peer that is stopped
  // or busy lets the time run out, on whichever side it ends first: that is silence and no
  // evidence.
  const Duration elapsed = monotonic_now() - link.connected_at;
  lose(link, elapsed < config_.handshake_timeout / 2 ? LinkLost::Why::kHandshakeFailed
                                                     : LinkLost::Why::kClosed);
}

void ZmqControlLink::on_not_connected(Link& link) {
  close_sockets(link);
  if (monotonic_now() - link.dialed_at >= config_.handshake_timeout) {
    lose(link, LinkLost::Why::kClosed);
    return;
  }
  const auto refused = link.probe.start(link.endpoint.host, link.endpoint.port);
  if (!refused &&
      add_to_poll(link.probe.descriptor(), tag_of(Source::kProbe, link.serial), EPOLLOUT)) {
    return;
  }
  lose(link, refused.value_or(false) ? LinkLost::Why::kRefused : LinkLost::Why::kClosed);
}

void ZmqControlLink::serve_zap() {
  for (int i = 0; i < kZapBatch; ++i) {
    if (!has_room()) {
      return;
    }
    auto request = receive_zap(zap_);
    if (!request) {
      zap_ready_ = false;
      return;
    }
    bool allow = false;
    try {
      allow = !request->public_key.empty() && is_allowed_ && is_allowed_(request->public_key);
    } catch (const std::exception& error) {
      log::error("control link {}: the check of a key threw: {}", endpoint_, error.what());
    }
    answer_zap(zap_, *request, allow);
    if (!allow) {
      report(LinkStranger{std::move(request->public_key)});
    }
  }
}

void ZmqControlLink::serve_listener() {
  for (std::size_t i = 0; i < kFrameBatch && has_room(); ++i) {
    if (!receive_message()) {
      listener_ready_ = false;
      return;
    }
  }
}

bool ZmqControlLink::receive_message() {
  zmq::message_t routing_id;
  zmq::message_t frame;
  if (zmq_msg_recv(routing_id.handle(), listener_.handle(), ZMQ_DONTWAIT) < 0) {
    return zmq_errno() == EINTR;
  }
  std::size_t frames = 0;
  bool more = routing_id.more();
  while (more) {
    // A ROUTER hands out whole messages only, so the parts are there.
    zmq::message_t part;
    if (zmq_msg_recv(part.handle(), listener_.handle(), ZMQ_DONTWAIT) < 0) {
      break;
    }
    more = part.more();
    if (++frames == 1) {
      frame = std::move(part);
    }
  }
  const char* user = frames == 0 ? nullptr : zmq_msg_gets(frame.handle(), "User-Id");
  std::string sender = config_.curve && user != nullptr ? user : "";
  if (frames != 1) {
    report(LinkMalformed{fmt::format("message of {} frames from key '{}'", frames, sender)});
  } else if (config_.curve && sender.empty()) {
    report(LinkMalformed{"message without a proven sender"});
  } else {
    const auto* data = frame.data<std::uint8_t>();
    report(LinkFrame{std::move(sender), std::vector<std::uint8_t>(data, data + frame.size())});
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<ControlLink>> ControlLink::open(ControlLinkConfig config,
                                                       IsAllowed is_allowed) {
  if (auto checked = check_config(config); !checked) {
    return tl::unexpected(std::move(checked.error()));
  }
  if (auto reserved = reserve_files(config.max_peers); !reserved) {
    return tl::unexpected(std::move(reserved.error()));
  }
  const std::string where = format_endpoint(config.host, config.port);
  try {
    auto link = std::make_unique<ZmqControlLink>(std::move(config), std::move(is_allowed));
    if (auto bound = link->bind(); !bound) {
      return tl::unexpected(std::move(bound.error()));
    }
    return link;
  } catch (const zmq::error_t& error) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("control link at {}: {}", where, error.what()));
  }
}

}  // namespace kvferry::net
