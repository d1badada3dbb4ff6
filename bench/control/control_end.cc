#include "bench/control/control_end.h"

#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <zmq.hpp>

#include "base/clock.h"
#include "net/control_link.h"

namespace kvferry::bench {
namespace {

constexpr std::chrono::seconds kConnectPatience{10};
const PeerId kPeer{1};

// Address text: endpoint and public key, apart by a blank.
std::string join(const std::string& endpoint, const std::string& key) {
  return endpoint + " " + key;
}
PeerAddress split(const std::string& text) {
  const std::size_t blank = text.find(' ');
  return {text.substr(0, blank), blank == std::string::npos ? "" : text.substr(blank + 1)};
}

class LinkEnd final : public ControlEnd {
 public:
  static Result<std::unique_ptr<ControlEnd>> make() {
    std::unique_ptr<LinkEnd> end(new LinkEnd);
    net::ControlLinkConfig config;
    config.keys = end->keys_;
    auto link = net::ControlLink::open(
        std::move(config),
        [self = end.get()](const std::string& key) { return key == self->peer_.public_key; });
    if (!link) return tl::unexpected(link.error());
    end->link_ = std::move(*link);
    return end;
  }

  std::string address() const override { return join(link_->endpoint(), keys_.public_key); }

  Status connect(const std::string& address) override {
    peer_ = split(address);
    const Instant end = monotonic_now() + kConnectPatience;
    while (!is_connected_) {
      if (monotonic_now() >= end) {
        return fail(FailureCode::kPeerUnreachable, "the control link does not connect");
      }
      // The other end may not have known this one's key yet.
      if (!is_dialling_) {
        if (Status dialled = link_->dial(kPeer, peer_); !dialled) return dialled;
        is_dialling_ = true;
      }
      if (Status received = turn(std::chrono::milliseconds(5), -1, early_); !received) {
        return received;
      }
    }
    return {};
  }

  Status send(ControlFrame frame) override {
    if (link_->send(kPeer, std::move(frame), net::LinkPriority::kNormal) ==
        net::LinkSend::kQueued) {
      return {};
    }
    return fail(FailureCode::kQueueFull, "the control link does not take a frame");
  }

  Status receive(std::chrono::milliseconds patience, int wake_fd,
                 std::vector<ControlFrame>& frames) override {
    if (early_.empty()) return turn(patience, wake_fd, frames);
    frames.insert(frames.end(), std::make_move_iterator(early_.begin()),
                  std::make_move_iterator(early_.end()));
    early_.clear();
    return {};
  }

 private:
  LinkEnd() = default;

  Status turn(std::chrono::milliseconds patience, int wake_fd, std::vector<ControlFrame>& frames) {
    events_.clear();
    link_->wait(patience, wake_fd, events_);
    for (net::LinkEvent& event : events_) {
      if (auto* frame = std::get_if<net::LinkFrame>(&event)) {
        frames.push_back(std::move(frame->bytes));
      } else if (std::holds_alternative<net::LinkConnected>(event)) {
        is_connected_ = true;
      } else if (std::holds_alternative<net::LinkLost>(event)) {
        if (is_connected_) return fail(FailureCode::kPeerLost, "the control link broke");
        is_dialling_ = false;
      }
    }
    return {};
  }

  const net::CurveKeys keys_ = net::CurveKeys::generate();
  PeerAddress peer_;
  bool is_dialling_ = false;
  bool is_connected_ = false;
  std::vector<ControlFrame> early_;  // came while this end was still connecting
  std::unique_ptr<net::ControlLink> link_;
  std::vector<net::LinkEvent> events_;
};

class PlainEnd final : public ControlEnd {
 public:
  static Result<std::unique_ptr<ControlEnd>> make(bool curve, bool is_listener) {
    try {
      return std::unique_ptr<ControlEnd>(new PlainEnd(curve, is_listener));
    } catch (const zmq::error_t& error) {
      return failed(error);
    }
  }

  std::string address() const override { return join(endpoint_, keys_.public_key); }

  Status connect(const std::string& address) override {
    if (is_listener_) return {};
    const PeerAddress peer = split(address);
    try {
      if (curve_) socket_.set(zmq::sockopt::curve_serverkey, peer.public_key);
      socket_.connect(peer.endpoint);
    } catch (const zmq::error_t& error) {
      return failed(error);
    }
    return {};
  }

  Status send(ControlFrame frame) override {
    try {
      zmq::message_t message(frame.data(), frame.size());
      if (socket_.send(message, zmq::send_flags::dontwait)) return {};
    } catch (const zmq::error_t& error) {
      return failed(error);
    }
    return fail(FailureCode::kQueueFull, "libzmq does not take a message");
  }

  Status receive(std::chrono::milliseconds patience, int wake_fd,
                 std::vector<ControlFrame>& frames) override {
    std::array<zmq::pollitem_t, 2> items = {zmq::pollitem_t{socket_.handle(), 0, ZMQ_POLLIN, 0},
                                            zmq::pollitem_t{nullptr, wake_fd, ZMQ_POLLIN, 0}};
    try {
      zmq::poll(items.data(), wake_fd >= 0 ? 2 : 1, patience);
      zmq::message_t message;
      while (socket_.recv(message, zmq::recv_flags::dontwait)) {
        const auto* bytes = message.data<std::uint8_t>();
        frames.emplace_back(bytes, bytes + message.size());
      }
    } catch (const zmq::error_t& error) {
      return failed(error);
    }
    return {};
  }

 private:
  PlainEnd(bool curve, bool is_listener)
      : curve_(curve), is_listener_(is_listener), socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::sndhwm, 0);
    socket_.set(zmq::sockopt::rcvhwm, 0);
    if (curve_) {
      keys_ = net::CurveKeys::generate();
      if (is_listener_) {
        socket_.set(zmq::sockopt::curve_server, true);
      } else {
        socket_.set(zmq::sockopt::curve_publickey, keys_.public_key);
      }
      socket_.set(zmq::sockopt::curve_secretkey, keys_.secret_key);
    }
    if (is_listener_) {
      socket_.bind("tcp://127.0.0.1:*");
      endpoint_ = socket_.get(zmq::sockopt::last_endpoint);
    }
  }

  static tl::unexpected<Failure> failed(const zmq::error_t& error) {
    return fail(FailureCode::kOperatingSystem, fmt::format("libzmq: {}", error.what()));
  }

  const bool curve_;
  const bool is_listener_;
  net::CurveKeys keys_;
  std::string endpoint_;
  zmq::context_t context_;
  zmq::socket_t socket_;
};

}  // namespace

Result<std::unique_ptr<ControlEnd>> make_control_end(std::string_view name, bool is_listener) {
  if (name == kLinkName) return LinkEnd::make();
  return PlainEnd::make(name == kPlainCurveName, is_listener);
}

}  // namespace kvferry::bench
