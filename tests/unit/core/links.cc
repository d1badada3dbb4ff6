#include "links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "process.h"
#include "wire/codec.h"
#include "world.h"

namespace kvferry::core::fake {

void Links::dial(Process& from, const DialPeer& dial) {
  hang_up(from, dial.peer);
  const std::uint64_t number = next_number_++;
  dials_[{&from, dial.peer}] = number;
  world_.after(latency ? latency() : milliseconds(1), [this, &from, dial, number] {
    const auto current = dials_.find({&from, dial.peer});
    if (current == dials_.end() || current->second != number || !from.is_alive()) {
      return;
    }
    dials_.erase(current);
    Process* to = world_.process_at(dial.address.endpoint);
    std::optional<LinkDown::Why> obstacle;
    if (to != nullptr && blocked_.contains({&from, to})) {
      obstacle = LinkDown::Why::kClosed;
    } else if (to == nullptr) {
      obstacle = LinkDown::Why::kRefused;
    } else if (to->key() != dial.address.public_key) {
      obstacle = LinkDown::Why::kWrongKey;
    } else if (denied_.contains({to, from.key()})) {
      obstacle = LinkDown::Why::kDenied;
    }
    if (obstacle) {
      from.receive(LinkDown{dial.peer, *obstacle});
    } else {
      connections_[{&from, dial.peer}] = {to, number};
      from.receive(LinkUp{dial.peer});
    }
  });
}

void Links::hang_up(Process& from, PeerId peer) {
  connections_.erase({&from, peer});
  dials_.erase({&from, peer});
}

void Links::send(Process& from, SendFrame send) {
  const auto connection = connections_.find({&from, send.peer});
  if (connection == connections_.end()) {
    return;
  }
  FrameOnLink frame{&from, connection->second.to, connection->second.number, std::move(send.frame)};
  log(frame);
  history_.push_back(frame);
  switch (on_frame ? on_frame(frame) : FrameFate::kDeliver) {
    case FrameFate::kDrop:
      return;
    case FrameFate::kHold:
      held_.push_back(std::move(frame));
      return;
    case FrameFate::kDuplicate:
      launch(frame);
      [[fallthrough]];
    case FrameFate::kDeliver:
      launch(std::move(frame));
  }
}

void Links::launch(FrameOnLink frame) {
  world_.after(latency ? latency() : milliseconds(1),
               [this, frame = std::move(frame)] { arrive(frame, false); });
}

bool Links::is_current(const FrameOnLink& frame) const {
  return std::ranges::any_of(
      connections_, [&](const auto& entry) { return entry.second.number == frame.connection; });
}

// What was under way in a connection that broke is lost with it, as with TCP.
void Links::arrive(const FrameOnLink& frame, bool whatever_link) {
  if (!frame.to->is_alive() || (!whatever_link && !is_current(frame))) {
    return;
  }
  auto decoded = wire::decode(wire::encode(frame.frame));
  if (!decoded) {
    ADD_FAILURE() << "the codec refuses a frame of the core: " << decoded.error().what;
    return;
  }
  frame.to->receive(FrameArrived{frame.from->key(), std::move(*decoded)});
}

void Links::release_held() {
  for (FrameOnLink& frame : std::exchange(held_, {})) {
    launch(std::move(frame));
  }
}

void Links::release_held_backwards() {
  std::ranges::reverse(held_);
  release_held();
}

void Links::deliver_again(const FrameOnLink& old) { arrive(old, true); }

void Links::forge(Process& from, Process& to, wire::Message message) {
  FrameOnLink frame{&from, &to, 0, {}};
  for (const PeerView& peer : to.snapshot().peers) {
    if (peer.endpoint == from.address().endpoint) {
      frame.frame.session = peer.epoch;
    }
  }
  EXPECT_NE(frame.frame.session, SessionEpoch{}) << "the two have no session";
  frame.frame.messages.push_back(std::move(message));
  arrive(frame, true);
}

void Links::cut(Process& a, Process& b) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    Process* owner = it->first.first;
    const bool between =
        (owner == &a && it->second.to == &b) || (owner == &b && it->second.to == &a);
    if (between) {
      owner->receive(LinkDown{it->first.second, LinkDown::Why::kClosed});
      it = connections_.erase(it);
    } else {
      ++it;
    }
  }
}

void Links::block(Process& a, Process& b) {
  blocked_.insert({&a, &b});
  blocked_.insert({&b, &a});
  cut(a, b);
}

void Links::close_all_of(Process& gone) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (it->second.to == &gone || it->first.first == &gone) {
      it->first.first->receive(LinkDown{it->first.second, LinkDown::Why::kClosed});
      it = connections_.erase(it);
    } else {
      ++it;
    }
  }
}

void Links::log(const FrameOnLink& frame) const {
  std::string kinds;
  for (const wire::Message& message : frame.frame.messages) {
    if (std::holds_alternative<wire::Heartbeat>(message) ||
        std::holds_alternative<wire::Ack>(message)) {
      continue;
    }
    kinds += kinds.empty() ? "" : "+";
    kinds += wire::kind_name(message);
  }
  if (!kinds.empty()) {
    world_.note("{} > {} {}", frame.from->name(), frame.to->name(), kinds);
  }
}

}  // namespace kvferry::core::fake
