#include "lab/rank/field_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/runtime_guards.h"
#include "lab/rank/loose_parts.h"

namespace kvferry::lab {
namespace {

using Events = std::vector<net::LinkEvent>;
using Frame = std::vector<std::uint8_t>;

// After so long the owner's thread looks again at what nothing would wake it for.
constexpr Duration kLookAgain = milliseconds(1);
// What a socket of the field took in before it was full: four frames.
constexpr std::uint32_t kSocketBytes = 256U << 10;

// A link around another one; what is not overridden goes through.
class Around : public net::ControlLink {
 public:
  explicit Around(std::unique_ptr<net::ControlLink> inner) : inner_(std::move(inner)) {}

  std::string endpoint() const override { return inner_->endpoint(); }
  Status dial(PeerId peer, const PeerAddress& address) override {
    return inner_->dial(peer, address);
  }
  void hang_up(PeerId peer) override { inner_->hang_up(peer); }
  net::LinkSend send(PeerId peer, Frame frame, net::LinkPriority priority) override {
    return inner_->send(peer, std::move(frame), priority);
  }
  void wait(Duration timeout, int wake_fd, Events& events, std::size_t max_events) override {
    const auto before = static_cast<std::ptrdiff_t>(events.size());
    inner_->wait(timeout, wake_fd, events, max_events);
    Events came(std::make_move_iterator(events.begin() + before),
                std::make_move_iterator(events.end()));
    events.erase(events.begin() + before, events.end());
    for (net::LinkEvent& event : came) receive(std::move(event), events);
  }

 protected:
  // What becomes of one event of the inner link.
  virtual void receive(net::LinkEvent event, Events& events) { events.push_back(std::move(event)); }
  net::ControlLink& inner() { return *inner_; }

 private:
  std::unique_ptr<net::ControlLink> inner_;
};

// --- without kWholeMessages ---

// A part is a frame of its own: one byte that says whether more of its message follows, and the
// part. No whole frame begins with that byte, so that a peer that does not send so is found out.
class LinkInParts final : public Around {
 public:
  using Around::Around;

  Status dial(PeerId peer, const PeerAddress& address) override {
    connected_.erase(peer);
    return Around::dial(peer, address);
  }
  void hang_up(PeerId peer) override {
    connected_.erase(peer);
    Around::hang_up(peer);
  }

  net::LinkSend send(PeerId peer, Frame frame, net::LinkPriority) override {
    if (!connected_.contains(peer)) return net::LinkSend::kNotConnected;
    parts_.send(peer, std::move(frame));
    return net::LinkSend::kQueued;
  }

  // Comes back early, without an event, while a message is being cut: nothing would wake it then.
  void wait(Duration timeout, int wake_fd, Events& events, std::size_t max_events) override {
    // Asked first: what is cut by now is there to be taken.
    const bool cutting = parts_.cutting();
    for (const LooseParts::Part& part : parts_.take()) {
      Frame frame;
      frame.reserve(part.bytes.size() + 1);
      frame.push_back(part.more ? 1 : 0);
      frame.insert(frame.end(), part.bytes.begin(), part.bytes.end());
      // One priority, else parts overtake each other. A part that finds no room is gone, as in the
      // field; the core sends its message again.
      inner().send(part.peer, std::move(frame), net::LinkPriority::kNormal);
    }
    if (cutting && (timeout < Duration::zero() || timeout > kLookAgain)) timeout = kLookAgain;
    Around::wait(timeout, wake_fd, events, max_events);
  }

 private:
  void receive(net::LinkEvent event, Events& events) override {
    if (const auto* up = std::get_if<net::LinkConnected>(&event)) {
      connected_.insert(up->peer);
    } else if (const auto* down = std::get_if<net::LinkLost>(&event)) {
      connected_.erase(down->peer);
    } else if (auto* part = std::get_if<net::LinkFrame>(&event)) {
      join(*part, events);
      return;
    }
    events.push_back(std::move(event));
  }

  void join(net::LinkFrame& part, Events& events) {
    // Without a proven key all senders would be one.
    if (part.sender_key.empty() || part.bytes.empty() || part.bytes.front() > 1) {
      events.emplace_back(net::LinkMalformed{fmt::format(
          "{} bytes from key '{}' are no part of a message that can be joined: both ends "
          "must run without this guard, and with curve = true",
          part.bytes.size(), part.sender_key)});
      return;
    }
    Frame& joined = joined_[part.sender_key];
    joined.insert(joined.end(), part.bytes.begin() + 1, part.bytes.end());
    if (part.bytes.front() == 1) return;
    events.emplace_back(net::LinkFrame{part.sender_key, std::exchange(joined, {})});
  }

  std::unordered_set<PeerId> connected_;
  std::unordered_map<std::string, Frame> joined_;  // by sender: what came of a message so far
  LooseParts parts_;
};

// --- without kFreshSocket ---

// Each endpoint has one socket, whoever is dialled there. Sockets are peers of numbers of their own
// to the inner link, so that one can change hands.
class LinkWithKeptSockets final : public Around {
 public:
  using Around::Around;

  Status dial(PeerId peer, const PeerAddress& address) override {
    hang_up(peer);
    const auto kept = std::ranges::find_if(sockets_, [&](const Socket& socket) {
      return socket.connected && socket.endpoint == address.endpoint;
    });
    if (kept != sockets_.end()) {
      kept->user = peer;
      reused_.push_back(peer);
      return {};
    }
    const PeerId number(next_number_++);
    Status dialled = Around::dial(number, address);
    if (dialled) sockets_.push_back({number, address.endpoint, peer});
    return dialled;
  }

  void hang_up(PeerId peer) override {
    std::erase(reused_, peer);
    const auto found = std::ranges::find(sockets_, std::optional(peer), &Socket::user);
    if (found == sockets_.end()) return;
    if (found->connected) {
      found->user.reset();
      return;
    }
    Around::hang_up(found->number);
    sockets_.erase(found);
  }

  net::LinkSend send(PeerId peer, Frame frame, net::LinkPriority priority) override {
    const auto found = std::ranges::find(sockets_, std::optional(peer), &Socket::user);
    if (found == sockets_.end() || !found->connected) return net::LinkSend::kNotConnected;
    const net::LinkSend sent = Around::send(found->number, std::move(frame), priority);
    // Nobody is at its other end any more; it takes the frame all the same.
    return sent == net::LinkSend::kNotConnected ? net::LinkSend::kQueued : sent;
  }

  void wait(Duration timeout, int wake_fd, Events& events, std::size_t max_events) override {
    if (!reused_.empty()) timeout = Duration::zero();
    for (const PeerId peer : std::exchange(reused_, {})) {
      events.emplace_back(net::LinkConnected{peer});
    }
    Around::wait(timeout, wake_fd, events, max_events);
  }

 private:
  struct Socket {
    PeerId number;
    std::string endpoint;
    std::optional<PeerId> user;
    bool connected = false;  // it was once, which is for ever
  };

  void receive(net::LinkEvent event, Events& events) override {
    if (const auto* up = std::get_if<net::LinkConnected>(&event)) {
      const auto found = std::ranges::find(sockets_, up->peer, &Socket::number);
      if (found == sockets_.end()) return;
      found->connected = true;
      if (found->user) events.emplace_back(net::LinkConnected{*found->user});
    } else if (const auto* down = std::get_if<net::LinkLost>(&event)) {
      const auto found = std::ranges::find(sockets_, down->peer, &Socket::number);
      if (found == sockets_.end() || found->connected) return;
      if (found->user) events.emplace_back(net::LinkLost{*found->user, down->why});
      sockets_.erase(found);
    } else {
      events.push_back(std::move(event));
    }
  }

  std::vector<Socket> sockets_;
  std::uint64_t next_number_ = 1;
  std::vector<PeerId> reused_;  // dialled, and to be told that they are connected
};

// --- without kFullIsAValue ---

class LinkThatWaits final : public Around {
 public:
  using Around::Around;

  // For ever, if it must be, and for a frame that is larger than the link takes.
  net::LinkSend send(PeerId peer, Frame frame, net::LinkPriority priority) override {
    for (;;) {
      const net::LinkSend sent = Around::send(peer, frame, priority);
      if (sent != net::LinkSend::kQueueFull) return sent;
      // The queue empties while its owner waits; what comes meanwhile is for later.
      inner().wait(kLookAgain, -1, came_, kMaxEvents);
    }
  }

  void wait(Duration timeout, int wake_fd, Events& events, std::size_t max_events) override {
    if (came_.empty()) {
      Around::wait(timeout, wake_fd, events, max_events);
      return;
    }
    const auto count = static_cast<std::ptrdiff_t>(std::min(max_events, came_.size()));
    std::move(came_.begin(), came_.begin() + count, std::back_inserter(events));
    came_.erase(came_.begin(), came_.begin() + count);
  }

 private:
  static constexpr std::size_t kMaxEvents = 64;
  Events came_;
};

}  // namespace

std::unique_ptr<net::ControlLink> make_field_link(std::unique_ptr<net::ControlLink> inner) {
  if (!has_guard(RuntimeGuard::kWholeMessages)) {
    return std::make_unique<LinkInParts>(std::move(inner));
  }
  if (!has_guard(RuntimeGuard::kFreshSocket)) {
    return std::make_unique<LinkWithKeptSockets>(std::move(inner));
  }
  if (!has_guard(RuntimeGuard::kFullIsAValue)) {
    return std::make_unique<LinkThatWaits>(std::move(inner));
  }
  return inner;
}

Options field_options(Options options) {
  if (!has_guard(RuntimeGuard::kFullIsAValue)) {
    const std::uint32_t bytes = std::max(options.control_frame_bytes, kSocketBytes);
    options.control_message_max_bytes = std::min(options.control_message_max_bytes, bytes);
    options.control_queue_max_bytes = options.control_message_max_bytes;
  }
  return options;
}

}  // namespace kvferry::lab
