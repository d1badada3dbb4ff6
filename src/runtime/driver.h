// The one thread that owns the protocol, the control link and the calls to the transport (rule 14).
// A turn: wait for news or a deadline, gather events, step, carry out the actions, publish a view.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/instant.h"
#include "base/log.h"
#include "core/protocol.h"
#include "kvferry/options.h"
#include "net/control_link.h"
#include "runtime/driver_sink.h"
#include "runtime/mailbox.h"
#include "runtime/prefill_resolver.h"
#include "runtime/status_cell.h"
#include "wire/codec.h"

namespace kvferry::runtime {

inline constexpr std::size_t kMalformedReasons =
    static_cast<std::size_t>(wire::MalformedReason::kBadLength) + 1;

// What other threads see of the protocol: a copy made on its thread, at most 50 ms behind while
// something happens (longer when making it is expensive, so that it never costs more than a
// twentieth of the driver's time).
struct DriverView {
  core::Snapshot snapshot;
  Counters counters;
  std::vector<net::LinkCounter> link_counters;
  std::array<std::uint64_t, kMalformedReasons> malformed_frames{};
  std::uint64_t malformed_messages = 0;  // not even one frame
  std::uint64_t strangers_refused = 0;
  std::uint64_t bad_handshakes = 0;
  std::vector<std::string> broken_invariants;
  Instant taken_at{};
};

class Driver {
 public:
  struct Parts {
    const Options& options;
    core::Protocol& protocol;
    net::ControlLink& link;
    Mailbox& mailbox;
    StatusTable& table;
    ReleaseQueue& releases;
    PrefillResolver& resolver;
    ThreadPlacePtr place;  // of its thread
  };
  Driver(const Parts& parts, const DriverSink::Parts& sink_parts);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  Status start();

  // --- any thread ---
  std::shared_ptr<const DriverView> view() const;
  // The manager has lost a thread that it can't do without: the driver's ends at its next turn, as
  // after an error of its own. why: one sentence.
  void condemn(const std::string& why);
  // Fails all rooms with the cause, tells the peers until the deadline and ends the thread.
  void request_stop(Failure cause, Instant deadline);
  void join();

 private:
  void run();
  void turn();
  Duration time_to_wait(Instant now) const;
  void gather(std::size_t max_calls);
  void settle_after_pause();
  void add_link_events();
  void add_link_event(net::LinkFrame&& frame);
  void add_link_event(net::LinkConnected&& connected);
  void add_link_event(net::LinkLost&& lost);
  void add_link_event(net::LinkStranger&& stranger);
  void add_link_event(net::LinkBadHandshake&&);
  void add_link_event(net::LinkMalformed&& malformed);
  void count_malformed(const wire::Malformed& malformed);
  bool has_seen_malformed() const;
  void note_owners_cleared();
  void publish_view(Instant now);
  void check_invariants(Instant now, DriverView& view);
  bool is_finished(Instant now);
  void die(std::string_view why);

  Parts parts_;
  DriverSink sink_;
  const Duration max_wait_;
  const Duration pause_threshold_;
  wire::CodecLimits codec_limits_;

  // The thread's own.
  std::vector<core::Event> events_;
  std::vector<core::Event> carried_;  // caused by the last turn's actions
  std::vector<net::LinkEvent> link_events_;
  std::vector<std::uint64_t> cleared_;
  Instant last_turn_{};
  bool dirty_ = true;
  Instant next_view_{};
  Instant next_invariants_{};
  std::vector<std::string> broken_invariants_;
  std::array<std::uint64_t, kMalformedReasons> malformed_frames_{};
  std::array<log::RateLimit, kMalformedReasons> malformed_limits_;
  log::RateLimit message_limit_;
  log::RateLimit stranger_limit_;
  std::uint64_t malformed_messages_ = 0;
  std::uint64_t strangers_refused_ = 0;
  std::uint64_t bad_handshakes_ = 0;
  bool stop_seen_ = false;
  std::uint64_t frames_sent_before_ = 0;
  std::uint64_t link_counted_before_ = 0;
  Instant quiet_since_ = Instant::max();

  // Shared.
  std::atomic<bool> condemned_{false};
  std::atomic<std::int64_t> stop_deadline_ns_{0};  // 0: go on
  mutable std::atomic<bool> view_requested_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<const DriverView> view_;
  std::string verdict_;  // why it was condemned
  std::thread thread_;
};

}  // namespace kvferry::runtime
