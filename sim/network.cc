#include "sim/network.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "sim/draw.h"
#include "sim/world.h"
#include "wire/codec.h"

namespace kvferry::sim {
namespace {

constexpr std::size_t kOldFrames = 64;
constexpr std::size_t kWeightyFrames = 24;  // per way
constexpr std::uint64_t kMostReplayed = 24;
constexpr std::uint64_t kOneOfSoManyFramesIsOld = 8;
constexpr std::uint64_t kOneOfSoManyFramesIsCoded = 8;
constexpr Duration kResetNoticed = milliseconds(1);
constexpr Duration kDialAgain = milliseconds(10);

bool is_weighty(const wire::Frame& frame) {
  return std::ranges::any_of(frame.messages, [](const wire::Message& message) {
    return std::holds_alternative<wire::Grant>(message) ||
           std::holds_alternative<wire::Abort>(message) ||
           std::holds_alternative<wire::Done>(message) ||
           std::holds_alternative<wire::Drained>(message) ||
           std::holds_alternative<wire::Consumed>(message);
  });
}

}  // namespace

Duration Network::latency() {
  const auto mean = static_cast<std::uint64_t>(world_.profile.link_latency.count());
  return Duration(static_cast<std::int64_t>(mean / 2 + prng_.below(mean + 1)));
}

// --- connections ---

void Network::dial(Node& from, const core::DialPeer& dial) {
  hang_up(from, dial.peer);
  const std::uint64_t number = next_number_++;
  dials_[{&from, dial.peer}] =
      Dial{number, world_.agenda.now() + milliseconds(world_.profile.options.handshake_timeout_ms)};
  world_.agenda.after(latency(), [this, &from, peer = dial.peer, address = dial.address, number] {
    answer_dial(from, peer, address, number);
  });
}

void Network::answer_dial(Node& from, PeerId peer, const PeerAddress& address,
                          std::uint64_t number) {
  const auto current = dials_.find({&from, peer});
  if (current == dials_.end() || current->second.number != number || !from.is_alive()) {
    return;
  }
  const Place* place = world_.place_at(address.endpoint);
  Node* to = place == nullptr ? nullptr : world_.node_at(place->index);
  const Way there{from.place().index, place == nullptr ? 0 : place->index};
  const bool no_answer = place != nullptr && (blocked_.contains(there) ||
                                              blocked_.contains({there.second, there.first}) ||
                                              (to != nullptr && !to->is_running()));
  if (no_answer && world_.agenda.now() < current->second.gives_up_at) {
    // As TCP: the way may come back before the handshake's deadline.
    world_.agenda.after(kDialAgain, [this, &from, peer, address, number] {
      answer_dial(from, peer, address, number);
    });
    return;
  }
  dials_.erase(current);
  if (no_answer) {
    from.receive(core::LinkDown{peer, core::LinkDown::Why::kClosed});
    return;
  }
  world_.trace.line(LogLevel::kFull, world_.agenda.now(), "{} dials {}: {}", from.name(),
                    address.endpoint,
                    to == nullptr                     ? "refused"
                    : to->key() != address.public_key ? "another key"
                                                      : "up");
  if (to == nullptr) {
    from.receive(core::LinkDown{peer, core::LinkDown::Why::kRefused});
  } else if (to->key() != address.public_key) {
    from.receive(core::LinkDown{peer, core::LinkDown::Why::kWrongKey});
  } else {
    connections_[{&from, peer}] = Connection{place->index, to->life(), number, false, {}};
    from.receive(core::LinkUp{peer});
  }
}

void Network::hang_up(Node& from, PeerId peer) {
  connections_.erase({&from, peer});
  dials_.erase({&from, peer});
}

template <typename Which>
void Network::break_connections(Which which) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto& [owner, connection] = *it;
    if (which(*owner.first, connection)) {
      broken_.push_back(owner);
      it = connections_.erase(it);
    } else {
      ++it;
    }
  }
  // In an order that does not depend on where processes lie in memory.
  std::ranges::sort(broken_, {}, [](const Owner& owner) {
    return std::tuple(owner.first->place().index, owner.first->life(), owner.second);
  });
  for (const auto& [node, peer] : std::exchange(broken_, {})) {
    world_.trace.line(LogLevel::kFull, world_.agenda.now(), "{} loses its connection with peer {}",
                      node->name(), peer.value());
    node->receive_after(kResetNoticed, core::LinkDown{peer, core::LinkDown::Why::kClosed});
  }
}

void Network::reset(std::uint32_t a, std::uint32_t b, bool both_ways) {
  break_connections([&](const Node& owner, const Connection& connection) {
    const std::uint32_t from = owner.place().index;
    return (from == a && connection.to == b) || (both_ways && from == b && connection.to == a);
  });
}

void Network::process_died(Node& gone) {
  std::erase_if(connections_, [&](const auto& entry) { return entry.first.first == &gone; });
  std::erase_if(dials_, [&](const auto& entry) { return entry.first.first == &gone; });
  const std::uint32_t place = gone.place().index;
  // Through a blocked way nobody hears of it.
  break_connections([&](const Node& owner, const Connection& connection) {
    return connection.to == place && connection.life == gone.life() &&
           !blocked_.contains({place, owner.place().index});
  });
}

void Network::half_open(std::uint32_t from, std::uint32_t to) {
  for (auto& [owner, connection] : connections_) {
    if (owner.first->place().index == from && connection.to == to) {
      connection.half_open = true;
    }
  }
}

// --- frames ---

void Network::send(Node& from, core::SendFrame send) {
  const auto found = connections_.find({&from, send.peer});
  if (found == connections_.end()) {
    return;
  }
  Connection& connection = found->second;
  ++frames_sent_;
  const auto strikes = [this](Fault fault) {
    return world_.faults.strikes(fault, prng_, world_.profile.rate_of(fault));
  };
  const bool full = strikes(Fault::kSlowReader);
  const bool lost = strikes(Fault::kLoss);
  const bool twice = strikes(Fault::kDuplicate);
  const bool delayed = strikes(Fault::kDelay);
  const bool reordered = strikes(Fault::kReorder);
  const bool truncated = strikes(Fault::kTruncate);
  const bool flipped = strikes(Fault::kBitFlip);
  const Duration delay = milliseconds(prng_.below(2'000));
  const bool coded = prng_.below(kOneOfSoManyFramesIsCoded) == 0;
  auto flight = std::make_shared<Flight>();
  flight->from = from.place().index;
  flight->from_key = from.key();
  flight->to = connection.to;
  flight->to_life = connection.life;
  flight->owner = {&from, send.peer};
  flight->connection = connection.number;
  flight->frame = std::move(send.frame);
  remember(*flight);
  note_session(*flight);
  log(*flight, full || lost || connection.half_open);
  if (full || lost || connection.half_open) {
    return;
  }
  if (truncated || flipped) {
    damage(*flight, truncated);
    return;
  }
  if (coded) {
    auto decoded = wire::decode(wire::encode(flight->frame));
    if (!decoded) {
      world_.oracle.violate("S10",
                            "the codec refuses a frame of the core: " + decoded.error().what);
      return;
    }
    flight->frame = std::move(*decoded);
  }
  if (twice) {
    launch(std::make_shared<Flight>(*flight), world_.agenda.now() + latency());
  }
  Instant arrives = world_.agenda.now() + latency() + (delayed ? delay : Duration{});
  if (!reordered) {
    arrives = std::max(arrives, connection.last_arrival);
    connection.last_arrival = arrives;
  }
  launch(std::move(flight), arrives);
}

// What carries no more than signs of life is left out.
void Network::log(const Flight& flight, bool lost) {
  if (!world_.trace.wants(LogLevel::kFull)) {
    return;
  }
  std::string kinds;
  for (const wire::Message& message : flight.frame.messages) {
    if (!std::holds_alternative<wire::Heartbeat>(message) &&
        !std::holds_alternative<wire::Ack>(message)) {
      kinds.append(kinds.empty() ? "" : "+").append(wire::kind_name(message));
    }
  }
  if (!kinds.empty()) {
    world_.trace.line(LogLevel::kFull, world_.agenda.now(), "{} > {} {}{}",
                      world_.place(flight.from).name, world_.place(flight.to).name, kinds,
                      lost ? " (lost)" : "");
  }
}

void Network::launch(std::shared_ptr<Flight> flight, Instant arrives) {
  world_.agenda.at(arrives, [this, flight = std::move(flight)] { arrive(*flight); });
}

// What was under way in a connection that broke is lost with it, as with TCP.
void Network::arrive(Flight& flight) {
  const Way way{flight.from, flight.to};
  if (const auto clog = clogged_.find(way); clog != clogged_.end()) {
    clog->second.push_back(std::move(flight));
    return;
  }
  const auto connection = connections_.find(flight.owner);
  if (blocked_.contains(way) || connection == connections_.end() ||
      connection->second.number != flight.connection) {
    return;
  }
  deliver(flight);
}

void Network::deliver(Flight& flight) {
  Node* to = world_.node_at(flight.to);
  if (to == nullptr || to->life() != flight.to_life) {
    return;
  }
  if (gate_ && !gate_(world_.place(flight.from), *to, flight.frame)) {
    return;
  }
  to->receive(core::FrameArrived{flight.from_key, std::move(flight.frame)});
}

// A damaged frame never reaches a core: the link's checks end the connection, or the codec drops
// it. The codec is asked all the same, and must not fall over.
void Network::damage(const Flight& flight, bool truncate) {
  std::vector<std::uint8_t> bytes = wire::encode(flight.frame);
  const std::uint64_t where = prng_.below(bytes.size() * 8);
  const bool breaks = prng_.below(2) == 0;
  if (truncate) {
    bytes.resize(where / 8);
  } else {
    bytes[where / 8] = static_cast<std::uint8_t>(bytes[where / 8] ^ (1U << (where % 8)));
  }
  const auto decoded = wire::decode(bytes);
  world_.trace.mix(decoded.has_value() ? 1 : 0, where);
  if (breaks) {
    reset(flight.from, flight.to, false);
  }
}

void Network::remember(const Flight& flight) {
  if (hellos_.size() < kOldFrames && !flight.frame.messages.empty() &&
      std::holds_alternative<wire::Hello>(flight.frame.messages.front())) {
    hellos_.push_back(flight);
  }
  const std::uint64_t draw = prng_.below(kOneOfSoManyFramesIsOld);
  const std::uint64_t place = prng_.next();
  if (!world_.faults.may(Fault::kReplay)) {
    return;
  }
  const auto keep = [&](std::vector<Flight>& sample, std::size_t most) {
    if (sample.size() < most) {
      sample.push_back(flight);
    } else {
      sample[place % most] = flight;
    }
  };
  if (draw == 0) {
    keep(old_, kOldFrames);
  }
  if (flight.frame.session != SessionEpoch{} && is_weighty(flight.frame)) {
    keep(weighty_[{flight.from, flight.to}], kWeightyFrames);
  }
}

// What a session of its own left behind is told apart best while it is young.
void Network::note_session(const Flight& flight) {
  const Way way{flight.from, flight.to};
  if (flight.frame.session == SessionEpoch{}) {
    return;
  }
  const SessionEpoch former = std::exchange(present_[way], flight.frame.session);
  if (former == SessionEpoch{} || former == flight.frame.session) {
    return;
  }
  const Duration delay = exponential(prng_, 4 * world_.profile.link_latency);
  const std::uint64_t count = 1 + prng_.below(kMostReplayed);
  world_.agenda.after(delay, [this, way, count] {
    if (world_.faults.may(Fault::kReplay)) {
      replay_former(way, count);
    }
  });
}

bool Network::is_of_former_session(const Flight& flight) const {
  const auto present = present_.find({flight.from, flight.to});
  return present != present_.end() && present->second != flight.frame.session;
}

void Network::replay_former(const Way& way, std::uint64_t count) {
  const std::vector<Flight>& known = weighty_[way];
  std::vector<std::size_t> former;
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (is_of_former_session(known[i])) {
      former.push_back(i);
    }
  }
  for (std::uint64_t i = 0; i < count && !former.empty(); ++i) {
    world_.faults.note(Fault::kReplay);
    replay(known[former[prng_.below(former.size())]]);
  }
}

void Network::replay_some() {
  const std::uint64_t count = 1 + prng_.below(kMostReplayed);
  const bool of_former = prng_.below(4) != 0;
  const std::uint64_t pick = prng_.next();
  std::vector<Way> ways;
  for (const auto& [way, known] : weighty_) {
    if (std::ranges::any_of(
            known, [this](const Flight& flight) { return is_of_former_session(flight); })) {
      ways.push_back(way);
    }
  }
  if (of_former && !ways.empty()) {
    replay_former(ways[pick % ways.size()], count);
    return;
  }
  for (std::uint64_t i = 0; i < count && !old_.empty(); ++i) {
    replay(old_[prng_.below(old_.size())]);
  }
}

// Behind CURVE only the process that a frame was meant for can read it.
void Network::replay(Flight flight) {
  if (!world_.profile.curve) {
    flight.to_life = world_.place(flight.to).life;
  }
  deliver(flight);
}

// The first hellos of the run once more, to whoever can read them.
void Network::replay_hellos() {
  for (const Flight& flight : hellos_) {
    replay(flight);
  }
}

// --- ways ---

void Network::block(std::uint32_t from, std::uint32_t to) { blocked_.insert({from, to}); }
void Network::unblock(std::uint32_t from, std::uint32_t to) { blocked_.erase({from, to}); }
void Network::clog(std::uint32_t from, std::uint32_t to) { clogged_.try_emplace({from, to}); }

void Network::unclog(std::uint32_t from, std::uint32_t to) {
  const auto found = clogged_.find({from, to});
  if (found == clogged_.end()) {
    return;
  }
  std::vector<Flight> waiting = std::move(found->second);
  clogged_.erase(found);
  for (Flight& flight : waiting) {
    arrive(flight);
  }
}

void Network::heal() {
  blocked_.clear();
  while (!clogged_.empty()) {
    const Way way = clogged_.begin()->first;
    unclog(way.first, way.second);
  }
  // A connection that had gone dead unnoticed: the keep-alive finds out.
  break_connections([](const Node&, const Connection& connection) { return connection.half_open; });
}

}  // namespace kvferry::sim
