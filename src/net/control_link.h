// The control link: ZeroMQ sockets of one manager, all owned by the one thread that calls this
// class (the driver). One bound ROUTER receives; one DEALER per peer sends. How libzmq 4.3.4
// behaves, and why each option is set, stands in docs/architecture.md and in control_link.cc beside
// the option.
//
// Not thread-safe; no method blocks except wait().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/instant.h"
#include "base/peer_id.h"
#include "kvferry/status.h"

namespace kvferry::net {

struct CurveKeys {
  std::string public_key;  // Z85
  std::string secret_key;  // Z85
  static CurveKeys generate();
};

struct ControlLinkConfig {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free port
  bool curve = true;       // false: loopback only
  CurveKeys keys;
  std::uint32_t max_peers = 1'024;
  std::uint32_t max_message_bytes = 4U << 20;
  std::uint32_t queue_max_bytes = 16U << 20;  // per peer, encoded and not yet taken by the socket
  Duration handshake_timeout = std::chrono::seconds(5);
};

// The peer's DEALER finished its handshake: frames sent from now on can arrive.
struct LinkConnected {
  PeerId peer;
};
// The DEALER is gone and was destroyed with what it held. The core redials or gives up.
struct LinkLost {
  // kDenied: the peer lives and has its key, but does not allow ours (yet).
  enum class Why : std::uint8_t { kRefused, kClosed, kHandshakeFailed, kDenied };
  PeerId peer;
  Why why = Why::kClosed;
};
struct LinkFrame {
  std::string sender_key;  // Z85 key proven by CURVE; empty in plain mode
  std::vector<std::uint8_t> bytes;
};
// A connection attempt with a key that is not allowed. Counted; may be a peer that the registry
// lists but this process has not heard of yet.
struct LinkStranger {
  std::string public_key;
};
// A connection whose handshake failed before it named a key: plain text, another protocol, a probe.
struct LinkBadHandshake {};
// A message that is not {routing id, one frame}: dropped.
struct LinkMalformed {
  std::string what;
};
using LinkEvent =
    std::variant<LinkConnected, LinkLost, LinkFrame, LinkStranger, LinkBadHandshake, LinkMalformed>;

// Counts from the link's start; exported as <name>_total.
struct LinkCounter {
  std::string name;
  std::string labels;  // Prometheus syntax without braces, may be empty
  std::uint64_t value = 0;
};

enum class LinkPriority : std::uint8_t {
  kUrgent,
  kNormal
};  // urgent: heartbeat, abort, drained, acks
enum class LinkSend : std::uint8_t { kQueued, kQueueFull, kNotConnected };

class ControlLink {
 public:
  // is_allowed is asked, on the owner's thread, for each connecting key (ZAP).
  using IsAllowed = std::function<bool(const std::string& public_key)>;
  static Result<std::unique_ptr<ControlLink>> open(ControlLinkConfig config, IsAllowed is_allowed);
  virtual ~ControlLink() = default;

  virtual std::string endpoint() const = 0;  // host:port that the ROUTER is bound to

  // Makes a new DEALER for the peer; one that exists is destroyed first, with its queue.
  virtual Status dial(PeerId peer, const PeerAddress& address) = 0;
  virtual void hang_up(PeerId peer) = 0;
  // Hands over one encoded frame. Never waits; a full queue is a value.
  virtual LinkSend send(PeerId peer, std::vector<std::uint8_t> frame, LinkPriority priority) = 0;

  // Waits until there is something to report, timeout passes or wake_fd is readable; appends to
  // events (at most max_events; the rest comes with the next call). A negative timeout waits for
  // ever.
  virtual void wait(Duration timeout, int wake_fd, std::vector<LinkEvent>& events,
                    std::size_t max_events = 4'096) = 0;

  // Of a link that has more to count than its events tell; the sum of all, to see whether one rose.
  virtual std::vector<LinkCounter> counters() const { return {}; }
  virtual std::uint64_t counted() const { return 0; }
};

}  // namespace kvferry::net
