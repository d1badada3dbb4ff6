// The contract between the core and whatever moves bytes. Every transport runs the same conformance
// suite (tests/conformance) and states in docs/architecture.md which clauses it gives by itself.
//
//  D1  post(): exactly one outcome per ticket: landed, refused or unknown. Landed means that the
//  bytes
//      are at the target, visible to its reader.
//  D2  After unknown the same ticket later yields quiet (write_quiet), or the target fences.
//  D3  fence(grant) at the target, for all writers' slots of the grant: when fence_done is
//  reported, no
//      write under that grant lands, whatever the writer does.
//  D4  No write outside a registered region and the writer's own slice of the grant; checked at the
//      target wherever the transport can.
//  D5  Each completion is delivered once, from any thread, to a noexcept sink. A posted ticket, a
//      fence and a session each reserve their place in the sink when they are accepted.
//
// Threads: all methods but counters() are called by one thread (the driver) and return without
// waiting for a peer. Completions come from the transport's own threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_roster.h"
#include "kvferry/ids.h"
#include "kvferry/kv_args.h"
#include "kvferry/status.h"
#include "layout/coverage.h"
#include "layout/write.h"

namespace kvferry::data_plane {

using layout::Landing;
using layout::WriteCompletion;

// Implemented by the runtime's mailbox. Every method is noexcept, callable from any thread and
// never waits; spans are only valid during the call.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  // Source side.
  virtual void writes_completed(std::span<const WriteCompletion> completions) noexcept = 0;
  virtual void writes_quiet(SessionEpoch session, std::span<const TicketId> tickets) noexcept = 0;
  // Target side. A landing is reported after its bytes are in place and before its sender is told.
  virtual void writes_landed(std::span<const Landing> landings) noexcept = 0;
  // Not all bytes of a write landed as they were sent, and no more will: the grant's room must
  // fail. how: what happened to it, in words that follow on "the write".
  virtual void write_torn(const Landing& landing, std::string_view how) noexcept = 0;
  virtual void fence_done(GrantId grant) noexcept = 0;
  // Both sides, once per session of a transport that tests its paths (path_test.h): whether a test
  // page went through. After a failure the session goes on; its pair is not shown as ready.
  virtual void path_tested(SessionEpoch /*session*/, const Status& /*result*/) noexcept {}
  // Both sides: a lane of the session broke. The core counts these against lane_failure_limit.
  virtual void lane_failed(SessionEpoch session, Failure cause) noexcept = 0;
  // Source side, at most once per session: for 2 * lane_timeout_ms it has had no lane that proved
  // itself, so nothing it posts will get through. The core ends it.
  virtual void session_unreachable(SessionEpoch session, Failure cause) noexcept = 0;
  // Target side, at most once per session and only after close_session(): no write of the session
  // will land any more, whatever its writer still does. Optional: only for transports without a
  // local fence, and only where a conformance test proves it for the version in use; tcp and memory
  // never call it. The core then frees what the session's writers alone still held.
  virtual void session_torn_down(SessionEpoch session) noexcept = 0;
  // Both sides, once per unregister_regions(kWhenUnused) that succeeded, possibly within that call:
  // nothing reads or writes the regions any more, and others may be registered.
  virtual void regions_released() noexcept = 0;
};

struct TransportConfig {
  Role role = Role::kPrefill;
  ThreadRoster* threads = nullptr;  // where the transport's threads are listed; outlives it
  std::string host = "127.0.0.1";   // address to bind, and to advertise unless told otherwise
  std::uint16_t port = 0;
  std::string advertise_host;        // told to peers instead of host, for example behind a wildcard
  std::uint16_t advertise_port = 0;  // told to peers instead of the bound port; 0: that one
  std::uint32_t lanes_per_peer = 2;
  // prefill: each write carries a digest of its bytes, and one that lands altered is torn. A target
  // compares whatever digest comes.
  bool page_digests = false;
  std::uint32_t receive_threads = 2;  // decode: threads that receive, shared by all sessions
  std::uint32_t frame_bytes = 1U << 20;
  std::uint32_t frame_writes = 128;
  std::uint32_t max_grant_slots = 8'192;
  std::uint64_t max_inflight_bytes = 64ULL << 20;  // posted and not completed, per session
  std::uint32_t max_queued_writes = 4'194'304;     // waiting for that window, per session
  std::uint32_t write_timeout_ms = 30'000;
  std::uint32_t lane_poll_us = 200;  // tcp: see Options::lane_poll_us
  std::uint32_t lane_heartbeat_ms = 750;
  std::uint32_t lane_timeout_ms = 3'000;
  std::uint32_t max_lane_strangers = 256;  // decode: connections that have not proved themselves
  // shm: the folder of the target's socket, which both processes must see; empty: the user's
  // runtime folder.
  std::string shm_folder;
  std::uint32_t shm_lanes = 1;             // prefill: rings per session
  std::uint32_t shm_ring_entries = 4'096;  // prefill: writes under way per ring, a power of two
};

// Both ends of one session, opened by each side when the hello has completed.
struct SessionLink {
  SessionEpoch epoch;
  Role local_role = Role::kPrefill;
  std::array<std::uint8_t, 32> secret{};       // authenticates lanes (HMAC over both nonces)
  std::vector<std::uint8_t> peer_blob;         // the other side's local_blob()
  std::vector<std::uint64_t> peer_item_bytes;  // by peer region, for arithmetic and checks
  std::vector<std::uint32_t> peer_item_counts;
};

// One writer's slot of a grant, at the target.
struct SlotGrant {
  SessionEpoch session;
  GrantSlot slot;
  Generation generation;
  layout::GrantExtent extent;
};

struct TransportProperties {
  std::string_view name;
  bool target_executes_copy = false;  // landings are the target's own facts; no Progress needed
  bool local_fence = false;           // D3 without the writer's help
  bool moves_device_memory = false;
};

// How a session's bytes travel, for people: the path in use, and why not one that was preferred.
struct PathReport {
  SessionEpoch session;
  std::string path;  // for example "shm"
  std::string why;   // empty when the preferred path is in use
};

// What unregister_regions does about regions that are in use. At a target a grant uses them from
// open_grant() until its fence is done; at a source a posted write does until it landed, was
// refused or became quiet.
enum class Unregister : std::uint8_t {
  kRefuseWhileUsed,  // fails with kWrongState and says how many use them
  kWhenUnused,       // succeeds; CompletionSink::regions_released() follows the last use
};

// Counts from the transport's start; exported as <name>_total.
struct TransportCounter {
  std::string_view name;  // a literal
  std::uint64_t value = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;  // as stop()

  virtual TransportProperties properties() const = 0;
  // The names under which it pairs with a peer, most wanted first.
  virtual std::vector<std::string_view> offers() const { return {properties().name}; }
  // From any thread, also after stop().
  virtual std::vector<TransportCounter> counters() const { return {}; }
  // From any thread; of each open session that has a choice.
  virtual std::vector<PathReport> paths() const { return {}; }
  // Goes into the hello: how this side is reached.
  virtual std::vector<std::uint8_t> local_blob() const = 0;

  // Regions in RegionId order, before any session. Refused: more than kMaxRegions, two that
  // overlap, device memory (with what could move it), and at a source that may use shm a memory_fd
  // that is no memfd or too short. One registration is in force at a time.
  //
  // After unregister_regions() others may be registered: while sessions are open only regions of
  // the same shape (their number, item_bytes and item_count), since their peers were told of it.
  virtual Status register_regions(std::span<const Region> regions) = 0;
  // When it has succeeded nothing new uses the regions: posted writes are refused, and a grant that
  // is opened takes no write, then or later. stop() ends the wait for regions_released().
  virtual Status unregister_regions(Unregister how) = 0;

  virtual Status open_session(const SessionLink& link) = 0;
  // Source: posted writes become unknown, then quiet once no more byte can leave. Target: nothing
  // of the session lands any more after its grants are fenced; the core fences each of them.
  virtual void close_session(SessionEpoch session) = 0;

  // Target: from here on writes under these slots may land. Never fails for a slot in range whose
  // former grant was fenced.
  virtual void open_grant(GrantId grant, std::vector<SlotGrant> slots) = 0;
  // Target: completes with fence_done(grant), also when the session is gone or nothing ever came.
  virtual void fence(GrantId grant) = 0;

  // Source: queues the writes, each of which will complete once. Source bytes must stay in place
  // until then, and past unknown until quiet (or Fenced from the peer).
  virtual void post(SessionEpoch session, std::span<const layout::Write> writes) = 0;
  // Source: what of the grant is still queued here completes as refused without leaving; what is
  // under way completes as it comes.
  virtual void give_up(SessionEpoch session, GrantSlot slot, Generation generation) = 0;

  // Closes everything and joins the transport's threads; completions may come until it returns.
  virtual void stop() = 0;
};

}  // namespace kvferry::data_plane
