// The control links: one connection per (process, peer), as a DEALER has it, towards the ROUTER at
// the peer's address. Loses, delays, reorders, duplicates and replays frames, breaks and blocks
// connections. Frames that a fault touches cross the codec; so does a drawn share of the others.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "core/action.h"
#include "sim/node.h"

namespace kvferry::sim {

class Network {
 public:
  Network(World& world, Prng prng) : world_(world), prng_(prng) {}

  // --- orders of the protocols ---
  void dial(Node& from, const core::DialPeer& dial);
  void hang_up(Node& from, PeerId peer);
  void send(Node& from, core::SendFrame send);

  // --- the nemesis; places by index ---
  void block(std::uint32_t from, std::uint32_t to);  // one way: nothing arrives, nothing is told
  void unblock(std::uint32_t from, std::uint32_t to);
  void clog(std::uint32_t from, std::uint32_t to);  // one way: everything waits
  void unclog(std::uint32_t from, std::uint32_t to);
  void reset(std::uint32_t a, std::uint32_t b, bool both_ways);
  void half_open(std::uint32_t from,
                 std::uint32_t to);  // the present connection goes dead, unnoticed
  void replay_some();                // old frames arrive again
  void replay_hellos();
  void heal();  // links work from here on; blocks are over
  void process_died(Node& gone);

  std::uint64_t frames_sent() const { return frames_sent_; }

  // --- for scripted scenes ---
  // Asked about each frame that arrives; false: it is lost on the last metre.
  using Gate = std::function<bool(const Place& from, const Node& to, const wire::Frame& frame)>;
  void set_gate(Gate gate) { gate_ = std::move(gate); }

 private:
  struct Connection {
    std::uint32_t to = 0;    // place
    std::uint32_t life = 0;  // of the process that accepted it
    std::uint64_t number = 0;
    bool half_open = false;
    Instant last_arrival;
  };
  struct Dial {
    std::uint64_t number = 0;
    Instant gives_up_at;
  };
  using Owner = std::pair<Node*, PeerId>;
  using Way = std::pair<std::uint32_t, std::uint32_t>;
  struct Flight {  // a frame under way
    std::uint32_t from = 0;
    std::string from_key;
    std::uint32_t to = 0;
    std::uint32_t to_life = 0;
    Owner owner;
    std::uint64_t connection = 0;
    wire::Frame frame;
  };

  void answer_dial(Node& from, PeerId peer, const PeerAddress& address, std::uint64_t number);
  // Erases those of which which(owner, connection) is true, and tells their owners.
  template <typename Which>
  void break_connections(Which which);
  void launch(std::shared_ptr<Flight> flight, Instant arrives);
  void arrive(Flight& flight);
  void deliver(Flight& flight);
  void remember(const Flight& flight);
  void note_session(const Flight& flight);
  void replay(Flight flight);
  void replay_former(const Way& way, std::uint64_t count);
  bool is_of_former_session(const Flight& flight) const;
  void log(const Flight& flight, bool lost);
  void damage(const Flight& flight, bool truncate);
  Duration latency();

  World& world_;
  Prng prng_;
  std::map<Owner, Connection> connections_;
  std::map<Owner, Dial> dials_;
  std::set<Way> blocked_;
  std::map<Way, std::vector<Flight>> clogged_;
  std::vector<Flight> old_;  // a sample of all, for replays
  std::map<Way, std::vector<Flight>>
      weighty_;                          // a sample per way of what moves pages or ends rooms
  std::map<Way, SessionEpoch> present_;  // of the newest frame on that way
  std::vector<Flight> hellos_;           // a few, from the first on
  Gate gate_;
  std::vector<Owner> broken_;  // while break_connections() runs
  std::uint64_t next_number_ = 1;
  std::uint64_t frames_sent_ = 0;
};

}  // namespace kvferry::sim
