// What stands between the core and one direction of SGLang's protocol (docs/adr/0015): for the core
// it is a number of kvferry processes (virtual peers), for SGLang it is one of its own ranks. Pure:
// what happened goes in, what is to be done comes out through take_outputs(), in order; time is an
// argument. Single-threaded; belongs to the driver's thread. dialect_link.h puts sockets around it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/instant.h"
#include "base/peer_id.h"
#include "dialect/sglang/messages.h"
#include "wire/messages.h"

namespace kvferry::sglang {

// --- what goes out ---

// For the core. The peer's connection is there; it is gone, for good.
struct VirtualPeerUp {
  PeerId peer;
};
struct VirtualPeerDown {
  PeerId peer;
};
// A frame that the core is to take as arrived. key: proves the sender, as a CURVE key would.
struct VirtualFrame {
  std::string key;
  wire::Frame frame;
};
// For SGLang. Opens the endpoint's socket if there is none.
struct ToEndpoint {
  RankEndpoint endpoint;
  Message message;
  Flavour flavour = Flavour::kMooncake;  // of the rank there
};
// Opens the endpoint's socket if there is none and keeps it although nothing is said, so that its
// loss is noticed; until it is lost or left.
struct HoldEndpoint {
  RankEndpoint endpoint;
};
// Nothing more is said to the endpoint: its socket goes, with what is queued there.
struct LeaveEndpoint {
  RankEndpoint endpoint;
};
// Something was not done. counter: a name for a metric; what: one sentence.
struct NotDone {
  std::string_view counter;
  std::string what;
};
using TranslatorOutput = std::variant<VirtualPeerUp, VirtualPeerDown, VirtualFrame, ToEndpoint,
                                      HoldEndpoint, LeaveEndpoint, NotDone>;

class Translator {
 public:
  virtual ~Translator() = default;

  // --- from SGLang ---
  virtual void handle(const Message& message) = 0;
  // A socket that this translator's outputs opened finished its handshake; it was lost, with what
  // was queued, and a later message opens another one.
  virtual void handle_endpoint_up(const RankEndpoint& endpoint) = 0;
  virtual void handle_endpoint_lost(const RankEndpoint& endpoint) = 0;

  // --- from the core ---
  // Whether the address, or the peer that dialled one, is a virtual one. Only those are told.
  virtual bool owns(const PeerAddress& address) const = 0;
  virtual bool owns(PeerId peer) const = 0;
  virtual void handle_dial(PeerId peer, const PeerAddress& address) = 0;
  virtual void handle_hang_up(PeerId peer) = 0;
  virtual void handle_frame(PeerId peer, const wire::Frame& frame) = 0;

  // --- time ---
  // Does what is due. Before the first call time stands at 0.
  virtual void advance(Instant now) = 0;
  // When advance() has something to do; none: not before something else happens.
  virtual std::optional<Instant> next_deadline() const = 0;

  virtual std::vector<TranslatorOutput> take_outputs() = 0;
};

}  // namespace kvferry::sglang
