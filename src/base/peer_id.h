// Local name of a peer process that this one dials or was greeted by; never reused, never on the
// wire.
#pragma once

#include <string>

#include "kvferry/ids.h"

namespace kvferry {

using PeerId = StrongId<struct PeerTag>;

// Where and who: host:port of the peer's ROUTER and its CURVE public key in Z85 (40 characters;
// empty in plain mode). A new process life has a new key, so the pair names an incarnation.
struct PeerAddress {
  std::string endpoint;
  std::string public_key;
  friend bool operator==(const PeerAddress&, const PeerAddress&) = default;
};

}  // namespace kvferry
