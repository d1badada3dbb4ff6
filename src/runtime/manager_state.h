// What stands behind KvManager and its handles: the owner of every part of the runtime. Handles
// hold it, so that a handle that outlives its manager finds a stopped one instead of none.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_roster.h"
#include "core/protocol.h"
#include "data_plane/factory.h"
#include "data_plane/transport.h"
#include "kvferry/kv_manager.h"
#include "net/control_link.h"
#include "runtime/argument_checks.h"
#include "runtime/aux_slots.h"
#include "runtime/cluster_tokens.h"
#include "runtime/driver.h"
#include "runtime/environment.h"
#include "runtime/key_directory.h"
#include "runtime/mailbox.h"
#include "runtime/prefill_resolver.h"
#include "runtime/release_queue.h"
#include "runtime/status_cell.h"
#include "runtime/watchdog.h"

namespace kvferry::runtime {

// Puts a link of the caller's own around the manager's: one that sees, changes or loses frames.
using LinkWrapper =
    std::function<std::unique_ptr<net::ControlLink>(std::unique_ptr<net::ControlLink>)>;

class ManagerState {
 public:
  // make_transport: instead of the transport that options.transport names; empty: that one.
  // wrap_link, wrap_resolver: called once each, on the calling thread; empty: what there is.
  static Result<std::shared_ptr<ManagerState>> create(
      KvArgs args, Options options, data_plane::TransportMaker make_transport = {},
      const LinkWrapper& wrap_link = {}, const ResolverWrapper& wrap_resolver = {});
  // KvManager::create() with parts of the caller's own.
  static Result<std::unique_ptr<KvManager>> create_manager(
      KvArgs args, Options options, data_plane::TransportMaker make_transport,
      const LinkWrapper& wrap_link = {}, const ResolverWrapper& wrap_resolver = {});
  ~ManagerState();
  ManagerState(const ManagerState&) = delete;
  ManagerState& operator=(const ManagerState&) = delete;

  // --- handles ---
  // The cell may have failed already: no place, a full queue, the wrong role, a stopped manager.
  std::shared_ptr<StatusCell> open(HandleKind kind, RoomId room, Binding binding);
  // Queues the event of a call. What is returned is the call's answer; the room goes on in any
  // case, so that a call that met a full queue may be made again.
  Status submit(core::Event event) { return mailbox_->push(std::move(event)); }
  // Fails the room, if it lives, and returns the failure for the caller.
  tl::unexpected<Failure> refuse(StatusCell& cell, Failure cause);
  tl::unexpected<Failure> refuse(StatusCell& cell, FailureCode code, std::string what);
  // Fails with the room's own cause, or with kWrongState after Success, unless the room lives.
  Status check_live(const StatusCell& cell, std::string_view call) const;
  void abort(StatusCell& cell, Failure cause);
  void clear(StatusCell& cell);
  // A local failure of this rank.
  Failure failure(FailureCode code, std::string what) const;

  // --- the manager ---
  StatusTable& table() { return *table_; }
  ReleaseQueue& releases() { return *releases_; }
  AuxSlots& aux() { return *aux_; }
  const ArgumentChecks& checks() const { return *checks_; }
  const KvArgs& args() const { return args_; }
  const Options& options() const { return options_; }
  const std::string& control_endpoint() const { return control_endpoint_; }
  Status keep_paired(const std::string& address);
  std::vector<PairState> pairs() const;
  std::vector<MetricSample> metrics() const;
  std::string dump_status() const;
  std::vector<ReadinessCheck> readiness() const;
  void stop();

 private:
  ManagerState(KvArgs args, Options options);
  Status prepare();
  Status open_control_link();
  Status open_transport();
  Status start();
  core::ProtocolConfig protocol_config() const;
  core::RegistryRow registry_row() const;
  void lose_thread(const std::string& why);
  void report_abort(const StatusCell& cell, Failure cause);
  void announce_end(const StatusCell& cell);

  KvArgs args_;
  Options options_;
  data_plane::TransportMaker make_transport_;
  ResolverWrapper wrap_resolver_;
  LayoutShape shape_;
  Incarnation incarnation_;
  net::CurveKeys curve_keys_;
  std::string control_endpoint_;
  SystemEnvironment environment_;

  // In order of construction; each may refer to those above it.
  ThreadRoster threads_;
  std::unique_ptr<ClusterTokens> tokens_;
  std::unique_ptr<KeyDirectory> keys_;
  std::unique_ptr<StatusTable> table_;
  std::unique_ptr<ArgumentChecks> checks_;
  std::unique_ptr<AuxSlots> aux_;
  std::unique_ptr<ReleaseQueue> releases_;
  std::unique_ptr<Mailbox> mailbox_;
  std::unique_ptr<net::ControlLink> link_;
  std::unique_ptr<data_plane::Transport> transport_;
  std::unique_ptr<core::Protocol> protocol_;
  std::unique_ptr<PrefillResolver> resolver_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<Watchdog> watchdog_;

  std::mutex stop_mutex_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace kvferry::runtime
