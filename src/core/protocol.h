// What both roles have in common, seen from the world that drives them. Single-threaded, sans-I/O:
// time comes in with step(), actions go out through the sink.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/instant.h"
#include "base/layout_shape.h"
#include "core/action.h"
#include "core/event.h"
#include "core/guards.h"
#include "kvferry/options.h"
#include "wire/messages.h"

namespace kvferry::core {

// What the transport in use can do; decides which half of rule 3 holds.
struct TransportClass {
  bool target_executes_copy = true;
  bool local_fence = true;
  bool tests_path = false;  // each session gets one PathTested, and is not ready before
};

struct ProtocolConfig {
  Options options;
  // Own part of every hello: version, instance, endpoint, incarnation, epochs, layout, numerics,
  // limits, transports in order of preference.
  wire::Introduction self;
  TransportClass transport_class;
  Guards guards{};  // which of them stand: in the product all
};

// What stands behind dump_status(), pairs() and the gauges; a copy made on the protocol's thread.
struct PeerView {
  std::string endpoint;
  std::string instance;
  std::string state;  // "dialling", "greeting", "testing", "live", "suspended", "refused"
  bool ready = false;
  std::string reason;  // last cause when not ready
  SessionEpoch epoch;
  std::int64_t last_heard_ms = -1;
  std::uint32_t flaps = 0;  // sessions with it that ended
  std::uint64_t queued_messages = 0;
  std::uint64_t unacknowledged = 0;
};
struct RoomView {
  std::uint64_t owner = 0;
  RoomId room;
  Binding binding;
  AttemptId attempt;
  std::string state;
  std::string grant_state;  // decode: the grant's; prefill: the targets', joined by commas
  std::int64_t age_ms = 0;
  std::uint64_t pages = 0;
};
struct Snapshot {
  std::vector<PeerView> peers;
  std::vector<RoomView> rooms;            // at most max_rooms_shown
  std::uint64_t room_count = 0;           // without a terminal status
  std::int64_t oldest_room_ms = 0;        // of these
  std::int64_t oldest_quarantine_ms = 0;  // decode: of the grants whose pages wait
  std::uint64_t grants = 0;               // decode: not yet released
  std::uint64_t quarantined_pages = 0;
  std::uint64_t granted_pages_total = 0;   // decode: ever granted
  std::uint64_t returned_pages_total = 0;  // decode: left their grant (Success or release)
  std::uint64_t held_pages_total = 0;      // prefill: ever given to send()
  std::uint64_t released_pages_total = 0;  // prefill: ever released
  std::uint64_t tickets = 0;               // prefill: posted and not settled
  std::uint64_t tombstones = 0;
  std::vector<std::string> readiness_problems;  // quarantine at its cap, fence overdue
};

class Protocol {
 public:
  virtual ~Protocol() = default;
  // Settles the events in order, then the timers that are due. After a pause longer than
  // pause_threshold_ms the timers wait for the next call, so that the inbox is drained first.
  virtual void step(Instant now, std::span<Event> events, ActionSink& sink) = 0;
  // When step() must be called again even without events.
  virtual Instant next_deadline() const = 0;
  virtual Snapshot snapshot(Instant now, std::size_t max_rooms_shown) const = 0;
  // Empty when every invariant of docs/invariants.md that the core can check holds.
  virtual std::vector<std::string> check_invariants() const = 0;
};

std::unique_ptr<Protocol> make_decode_protocol(ProtocolConfig config, Environment& environment);
std::unique_ptr<Protocol> make_prefill_protocol(ProtocolConfig config, Environment& environment);

}  // namespace kvferry::core
