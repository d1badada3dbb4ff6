// Every limit and deadline of the library, each with its unit in its name, its default here and its
// range in options.cc (rule 13). Validated once, when a manager or a server is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/status.h"

namespace kvferry {

struct Options {
  // Rooms.
  std::uint32_t bootstrap_timeout_ms = 10'000;  // open until WaitingForInput
  std::uint32_t input_timeout_ms = 300'000;  // WaitingForInput until the caller's metadata or send
  std::uint32_t transfer_timeout_ms = 120'000;      // Transferring until the end
  std::uint32_t unopened_room_timeout_ms = 30'000;  // a grant waits this long for its sender
  std::uint32_t max_rooms = 65'536;
  std::uint32_t max_unopened_grants = 4'096;  // grants that wait for their sender
  std::uint32_t max_queued_calls = 262'144;   // API calls on their way to the core
  std::uint32_t max_ended_senders = 4'096;    // senders that ended before any grant, remembered

  // Pages.
  std::uint32_t fence_timeout_ms = 2'000;  // overdue: counted, readiness falls, nothing freed
  std::uint32_t quarantine_max_pages = 1'048'576;  // rule 6
  std::uint32_t max_grant_slots = 8'192;           // per session
  std::uint32_t max_tombstones = 65'536;           // per session

  // Writes.
  std::uint32_t write_timeout_ms = 30'000;  // a posted write without outcome becomes unknown
  // After a failure; then the sender gives up (rule 5).
  std::uint32_t source_hold_timeout_ms = 5'000;
  std::uint64_t max_inflight_bytes = 64ULL << 20;  // posted, not completed, per session
  std::uint32_t max_queued_writes = 4'194'304;     // waiting for that window, per session

  // Peers and sessions.
  std::uint32_t heartbeat_interval_ms = 250;
  std::uint32_t heartbeat_timeout_ms = 3'000;  // silence that ends a session
  std::uint32_t session_grace_ms = 2'000;      // how long a session outlives its connection
  std::uint32_t redial_min_ms = 20;
  std::uint32_t redial_max_ms = 2'000;
  std::uint32_t hello_timeout_ms = 5'000;
  std::uint32_t retransmit_min_ms = 100;
  std::uint32_t retransmit_max_ms = 2'000;
  std::uint32_t send_window_messages = 1'024;  // unacknowledged, per peer
  std::uint32_t max_queued_messages = 65'536;  // waiting for the window, per peer
  std::uint32_t max_peers = 1'024;
  std::uint32_t pause_threshold_ms = 500;  // a longer turn than this drains the inbox first
  std::uint32_t lane_failure_limit = 6;    // within session_grace_ms: the session ends

  // Control link.
  std::string control_host = "127.0.0.1";  // address to bind
  std::uint16_t control_port = 0;          // 0: any free port
  std::string advertise_host;  // told to peers, for control and data; empty: the bound address
  std::uint16_t advertise_port = 0;               // told to peers, for control; 0: the bound port
  std::uint16_t advertise_data_port = 0;          // told to peers, for tcp lanes; 0: the bound port
  bool curve = true;                              // false only on loopback, with a warning
  std::uint32_t control_frame_bytes = 64U << 10;  // one turn's messages, coalesced
  std::uint32_t control_message_max_bytes = 4U << 20;
  std::uint32_t control_queue_max_bytes = 16U << 20;  // encoded, waiting for the socket, per peer
  std::uint32_t handshake_timeout_ms = 5'000;

  // Data plane.
  std::string transport = "auto";  // shm where it works between the two processes, else tcp
  std::string data_host;           // empty: control_host
  std::uint16_t data_port = 0;
  std::uint32_t lanes_per_peer = 2;
  std::uint32_t data_frame_bytes = 1U << 20;
  std::uint32_t data_frame_writes = 128;
  // How long the thread of tcp lanes polls for more after bytes have moved, before it sleeps. 0: it
  // sleeps at once, which leaves its core to others and costs a tenth of the rate between two
  // cores.
  std::uint32_t lane_poll_us = 200;
  std::uint32_t lane_heartbeat_ms = 750;
  std::uint32_t lane_timeout_ms = 3'000;   // twice this without any lane ends a session
  std::uint32_t max_lane_strangers = 256;  // connections that have not proved themselves
  // Writes carry a digest of their bytes: one that lands altered fails its room. Prefill decides.
  bool page_digests = false;
  std::uint32_t receive_threads = 2;  // decode: shared by all sessions
  std::string shm_folder;  // of the shm socket, seen by both processes; empty: the runtime folder
  std::uint32_t shm_lanes = 1;             // prefill: rings per session
  std::uint32_t shm_ring_entries = 4'096;  // prefill: writes under way per ring, a power of two

  // Bootstrap.
  std::vector<std::string> bootstrap_addresses;  // host:port of the registries of this fleet
  // Further host:port that a request may name; "*:port" is every host at that port.
  std::vector<std::string> bootstrap_allow;
  std::string cluster_token_file;  // first line: the token; second, optional: the next
  std::uint32_t lease_ms = 3'000;
  std::uint32_t http_try_timeout_ms = 1'000;
  std::uint32_t http_total_timeout_ms = 5'000;

  std::uint32_t stop_timeout_ms = 1'000;  // stop() with every peer dead
  // A thread at one turn for so long makes readiness fall ...
  std::uint32_t thread_stall_ms = 1'000;
  // ... and for so long it is taken for dead: the manager's rooms fail and it takes no more.
  std::uint32_t thread_dead_ms = 5'000;

  // Pairing.
  bool require_identical = false;  // refuse a pair whose numerics differ
};

// One row per option: name as in the struct, environment variable KVFERRY_<NAME>, and command-line
// option --<name-with-dashes>.
struct OptionRow {
  std::string_view name;
  std::string_view unit;  // "ms", "bytes", "messages", "" ...
  std::string_view help;
  // Parses and range-checks; the failure names option, value and range.
  std::function<Status(Options&, std::string_view value)> set;
  std::function<std::string(const Options&)> get;
};
std::span<const OptionRow> option_rows();

// Checks what depends on more than one option (grace below heartbeat timeout, plain mode only on
// loopback, ...). Every failure says what to change.
Status validate(const Options& options);

}  // namespace kvferry
