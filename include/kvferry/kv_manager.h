// One per rank and process: owns the protocol's thread, the control link, the transport and every
// room's state. Senders and receivers are thin handles into it.
//
// Threads: every method may be called from any thread and none waits for a peer, a socket or the
// protocol's thread; the one exception is stop() and the destructor, which join the manager's
// threads and end within Options::stop_timeout_ms however many peers are dead. Lifetime: outlives
// all its senders and receivers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvferry/ids.h"
#include "kvferry/kv_args.h"
#include "kvferry/kv_poll.h"
#include "kvferry/options.h"
#include "kvferry/status.h"

namespace kvferry {

class KvReceiver;
class KvSender;

namespace runtime {
class ManagerState;
}

// Pages and slots that left a grant or a source hold and may be used again by the caller.
struct ReleasedPages {
  std::uint64_t owner = 0;  // KvReceiver::id() or KvSender::id()
  RoomId room;
  Binding binding;
  std::vector<PageIndex> pages;  // decode: granted pages; prefill: pages given to send()
  std::int64_t aux_slot = -1;    // -1: none
  std::vector<std::uint32_t> state_slots;
};

// Counters and gauges, read from any thread; names are documented in docs/metrics.md.
struct MetricSample {
  std::string name;    // without the "kvferry_" prefix
  std::string labels;  // Prometheus syntax without braces, may be empty
  double value = 0;
  bool is_counter = true;
};

// One of the things that must be sound for this server to take requests (rule 18).
struct ReadinessCheck {
  std::string name;  // "threads", "protocol", "pages", "registry"; an engine adds its own
  bool ok = true;
  std::string detail;  // what is wrong; empty when ok
};

// One prefill and one decode process that have a session, or want one.
struct PairState {
  std::string peer;      // endpoint
  std::string instance;  // the peer's instance name, empty while unknown
  bool ready = false;
  std::string reason;               // last cause when not ready
  std::int64_t last_heard_ms = -1;  // age of the last sign of life; -1: never
  std::string path{};      // prefill: how its bytes travel, "shm" or "tcp"; empty without a session
  std::string path_why{};  // why not a path that was preferred
};

class KvManager {
 public:
  // Validates, binds, registers at the bootstrap servers (in the background) and starts the
  // threads.
  static Result<std::unique_ptr<KvManager>> create(KvArgs args, Options options);
  ~KvManager();
  KvManager(const KvManager&) = delete;
  KvManager& operator=(const KvManager&) = delete;

  // Fills statuses[i] with the status of handle ids[i] (KvSender::id() or KvReceiver::id()); an id
  // that is unknown or was cleared reads kFailed. A receiver's kSuccess passes its pages as poll()
  // does.
  void poll_many(std::span<const std::uint64_t> ids, std::span<KvPoll> statuses) const;

  // The handles with a new status since the last call, in order, one perhaps more than once, so
  // that a step over 100,000 rooms costs what has changed; read them with poll_many(). nullopt:
  // nothing was noted (the first call), or more changes than four for each handle that may be open
  // wait, or the manager has stopped: look at every handle once. Ends by the handle's own calls
  // (abort(), a refused open or init()) are listed, too.
  std::optional<std::vector<std::uint64_t>> take_changed();

  // Pages released since the last call, in order of release. The caller owns them from here on.
  std::vector<ReleasedPages> take_released();
  // Readable (poll(2), level-triggered) while take_released() has something or a status changed
  // since the last call of drain_event_fd(). For schedulers that sleep when idle. Owned by the
  // manager.
  int event_fd() const;
  void drain_event_fd();

  // Opens sessions to every prefill rank that the given registry lists, ahead of any room, and
  // keeps them open. Decode only.
  Status keep_paired(const std::string& bootstrap_address);

  std::vector<PairState> pairs() const;
  std::vector<MetricSample> metrics() const;
  // Rooms, sessions, grants and queues as one JSON object.
  std::string dump_status() const;
  // Each check with its state; the server should take new requests only while all are ok. Peers
  // that are away are no reason: their pairs show it.
  std::vector<ReadinessCheck> readiness() const;
  // The details of those that are not ok.
  std::vector<std::string> readiness_problems() const;

  const KvArgs& args() const;
  const Options& options() const;
  std::string control_endpoint() const;  // host:port that peers dial

  // Writes the record, with room, binding and CRC, into an aux slot of this rank's aux region.
  // Prefill only; before the last send().
  Status write_aux(std::uint32_t aux_slot, RoomId room, Binding binding, const AuxRecord& record);
  // Reads and checks a record out of an aux slot. Decode only; after Success.
  Result<AuxRecord> read_aux(std::uint32_t aux_slot, RoomId room, Binding binding) const;

  // Fails all rooms with kShuttingDown, ends all sessions and joins the threads. Idempotent.
  void stop();

 private:
  friend class KvReceiver;
  friend class KvSender;
  friend class runtime::ManagerState;
  explicit KvManager(std::shared_ptr<runtime::ManagerState> state);
  std::shared_ptr<runtime::ManagerState> state_;
};

}  // namespace kvferry
