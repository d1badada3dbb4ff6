// What a manager tells about itself: pairs, metrics, status, readiness. All from the driver's last
// view, the counters of the cells and the bootstrap client's state; nothing here waits.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "runtime/json.h"
#include "runtime/manager_state.h"

namespace kvferry::runtime {
namespace {

class Samples {
 public:
  void counter(std::string name, double value, std::string labels = {}) {
    samples_.push_back({std::move(name), std::move(labels), value, true});
  }
  void gauge(std::string name, double value) {
    samples_.push_back({std::move(name), {}, value, false});
  }
  void counter(std::string name, const std::atomic<std::uint64_t>& value) {
    counter(std::move(name), static_cast<double>(value.load(std::memory_order_relaxed)));
  }
  std::vector<MetricSample> take() { return std::move(samples_); }

 private:
  std::vector<MetricSample> samples_;
};

void add_rooms(Samples& samples, const RoomCounters& rooms) {
  // Ends before starts: a room that starts in between counts as live, never as less than none.
  std::uint64_t failed = 0;
  for (std::size_t code = 0; code < RoomCounters::kCodes; ++code) {
    const std::uint64_t count = rooms.failed[code].load(std::memory_order_acquire);
    failed += count;
    if (count > 0) {
      samples.counter("rooms_failed_total", static_cast<double>(count),
                      fmt::format("code=\"{}\"", to_string(static_cast<FailureCode>(code))));
    }
  }
  const std::uint64_t succeeded = rooms.succeeded.load(std::memory_order_acquire);
  const std::uint64_t started = rooms.started.load(std::memory_order_acquire);
  samples.counter("rooms_started_total", static_cast<double>(started));
  samples.counter("rooms_succeeded_total", static_cast<double>(succeeded));
  samples.gauge("rooms_live", static_cast<double>(started - succeeded - failed));
}

void add_snapshot(Samples& samples, const core::Snapshot& snapshot) {
  samples.counter("pages_granted_total", static_cast<double>(snapshot.granted_pages_total));
  samples.counter("pages_returned_total", static_cast<double>(snapshot.returned_pages_total));
  samples.counter("pages_held_total", static_cast<double>(snapshot.held_pages_total));
  samples.counter("pages_released_total", static_cast<double>(snapshot.released_pages_total));
  samples.gauge("quarantined_pages", static_cast<double>(snapshot.quarantined_pages));
  samples.gauge("quarantine_oldest_seconds",
                static_cast<double>(snapshot.oldest_quarantine_ms) / 1'000);
  samples.gauge("rooms_oldest_seconds", static_cast<double>(snapshot.oldest_room_ms) / 1'000);
  samples.gauge("grants", static_cast<double>(snapshot.grants));
  samples.gauge("tickets", static_cast<double>(snapshot.tickets));
  samples.gauge("tombstones", static_cast<double>(snapshot.tombstones));
  for (const core::PeerView& peer : snapshot.peers) {
    if (peer.flaps > 0) {
      samples.counter("peer_flaps_total", peer.flaps, fmt::format("peer=\"{}\"", peer.endpoint));
    }
  }
  samples.gauge("peers_live", static_cast<double>(std::count_if(
                                  snapshot.peers.begin(), snapshot.peers.end(),
                                  [](const core::PeerView& peer) { return peer.ready; })));
}

void add_driver(Samples& samples, const DriverView& view) {
  for (std::size_t reason = 0; reason < view.malformed_frames.size(); ++reason) {
    samples.counter(
        "malformed_frames_total", static_cast<double>(view.malformed_frames[reason]),
        fmt::format("reason=\"{}\"", wire::to_string(static_cast<wire::MalformedReason>(reason))));
  }
  samples.counter("malformed_messages_total", static_cast<double>(view.malformed_messages));
  samples.counter("strangers_refused_total", static_cast<double>(view.strangers_refused));
  samples.counter("bad_handshakes_total", static_cast<double>(view.bad_handshakes));
  if (!view.counters.contains("stale_messages")) {
    samples.counter("stale_messages_total", 0.0);
  }
  for (const auto& [name, value] : view.counters) {
    samples.counter(name + "_total", static_cast<double>(value));
  }
  for (const net::LinkCounter& each : view.link_counters) {
    samples.counter(each.name + "_total", static_cast<double>(each.value), each.labels);
  }
}

void add_registries(Samples& samples, const RegistryCounters& counters) {
  samples.counter("registrations_total", counters.registrations);
  samples.counter("registration_failures_total", counters.registration_failures);
  samples.counter("registry_lookups_total", counters.lookups);
  samples.counter("registry_lookup_failures_total", counters.lookup_failures);
  samples.counter("registry_recalled_total", counters.recalled);
  samples.counter("registry_forged_rows_total", counters.forged_rows);
  samples.counter("registry_malformed_rows_total", counters.malformed_rows);
}

std::int64_t age_ms(const DriverView& view) {
  return view.taken_at == Instant{} ? 0 : (monotonic_now() - view.taken_at) / milliseconds(1);
}

ReadinessCheck as_check(std::string name, const std::vector<std::string>& problems) {
  return {std::move(name), problems.empty(), fmt::format("{}", fmt::join(problems, "; "))};
}

}  // namespace

std::vector<PairState> ManagerState::pairs() const {
  const auto view = driver_->view();
  const std::int64_t age = age_ms(*view);
  std::vector<PairState> pairs;
  pairs.reserve(view->snapshot.peers.size());
  const std::vector<data_plane::PathReport> paths = transport_->paths();
  for (const core::PeerView& peer : view->snapshot.peers) {
    PairState& pair = pairs.emplace_back();
    pair = {peer.endpoint,
            peer.instance,
            peer.ready,
            peer.reason,
            peer.last_heard_ms < 0 ? -1 : peer.last_heard_ms + age,
            {},
            {}};
    for (const data_plane::PathReport& path : paths) {
      if (path.session != peer.epoch) continue;
      pair.path = path.path;
      pair.path_why = path.why;
    }
  }
  return pairs;
}

std::vector<MetricSample> ManagerState::metrics() const {
  Samples samples;
  add_rooms(samples, table_->counters());
  const auto view = driver_->view();
  add_snapshot(samples, view->snapshot);
  add_driver(samples, *view);
  samples.counter("lane_failures_dropped_total",
                  static_cast<double>(mailbox_->lane_failures_dropped()));
  for (const data_plane::TransportCounter& counter : transport_->counters()) {
    samples.counter(std::string(counter.name) + "_total", static_cast<double>(counter.value));
  }
  samples.gauge("open_handles", table_->open_handles());
  samples.gauge(
      "threads_unsound",
      static_cast<double>(
          threads_.problems(monotonic_now(), milliseconds(options_.thread_stall_ms)).size()));
  samples.gauge("known_keys", static_cast<double>(keys_->size()));
  add_registries(samples, resolver_->counters());
  return samples.take();
}

std::vector<ReadinessCheck> ManagerState::readiness() const {
  const auto view = driver_->view();
  std::vector<std::string> threads =
      threads_.problems(monotonic_now(), milliseconds(options_.thread_stall_ms));
  if (stopped_.load(std::memory_order_acquire)) {
    threads.emplace_back("the manager was stopped");
  }
  std::vector<std::string> broken;
  for (const std::string& invariant : view->broken_invariants) {
    broken.push_back(fmt::format("broken invariant: {}", invariant));
  }
  return {as_check("threads", threads), as_check("protocol", broken),
          as_check("pages", view->snapshot.readiness_problems),
          as_check("registry", resolver_->readiness_problems())};
}

std::string ManagerState::dump_status() const {
  const auto view = driver_->view();
  StatusReport report;
  report.role = to_string(args_.role);
  report.instance = args_.instance;
  report.endpoint = control_endpoint_;
  report.incarnation = incarnation_;
  report.age_ms = age_ms(*view);
  report.snapshot = &view->snapshot;
  for (const MetricSample& sample : metrics()) {
    if (sample.name == "rooms_live") {
      report.rooms_live = static_cast<std::uint64_t>(sample.value);
    }
  }
  report.open_handles = table_->open_handles();
  for (ReadinessCheck& check : readiness()) {
    if (!check.ok) {
      report.readiness_problems.push_back(std::move(check.detail));
    }
  }
  return encode_status(report);
}

}  // namespace kvferry::runtime
