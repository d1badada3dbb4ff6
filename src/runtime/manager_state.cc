#include "runtime/manager_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "data_plane/factory.h"
#include "data_plane/path_test.h"
#include "layout/kv_layout.h"
#include "runtime/bootstrap_client.h"
#include "runtime/core_guards.h"
#include "runtime/json.h"

namespace kvferry::runtime {
namespace {

// endpoint with its host replaced, unless host is empty, and its port, unless port is 0.
std::string advertised(const std::string& endpoint, const std::string& host, std::uint16_t port) {
  const std::size_t colon = endpoint.rfind(':');
  return (host.empty() ? endpoint.substr(0, colon) : host) +
         (port == 0 ? endpoint.substr(colon) : fmt::format(":{}", port));
}

// As the resolver takes it: without brackets, and with a wildcard's number.
std::string bare_host(const std::string& host) {
  if (host == "*") {
    return "0.0.0.0";
  }
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

Incarnation draw_incarnation() { return Incarnation{random_u64(), random_u64() | 1}; }

// Handles live a little longer than their rooms: the caller clears them when it comes round.
std::uint32_t max_handles(const Options& options) {
  constexpr std::uint32_t kMost = 1U << 25;
  return std::min(options.max_rooms, kMost / 2) * 2;
}

std::int32_t global_rank(const RankCoordinates& rank) {
  const std::uint64_t number =
      (std::uint64_t{rank.dp_rank} * rank.pp_size + rank.pp_rank) * rank.tp_size + rank.tp_rank;
  return static_cast<std::int32_t>(
      std::min<std::uint64_t>(number, std::numeric_limits<std::int32_t>::max()));
}

}  // namespace

ManagerState::ManagerState(KvArgs args, Options options)
    : args_(std::move(args)), options_(std::move(options)) {}

ManagerState::~ManagerState() { stop(); }

Result<std::shared_ptr<ManagerState>> ManagerState::create(
    KvArgs args, Options options, data_plane::TransportMaker make_transport,
    const LinkWrapper& wrap_link, const ResolverWrapper& wrap_resolver) {
  std::shared_ptr<ManagerState> state(new ManagerState(std::move(args), std::move(options)));
  state->make_transport_ = std::move(make_transport);
  state->wrap_resolver_ = wrap_resolver;
  for (const auto step : {&ManagerState::prepare, &ManagerState::open_control_link,
                          &ManagerState::open_transport, &ManagerState::start}) {
    if (Status status = (state.get()->*step)(); !status) {
      return tl::unexpected(status.error());
    }
    if (step == &ManagerState::open_control_link && wrap_link) {
      state->link_ = wrap_link(std::move(state->link_));
    }
  }
  return state;
}

Result<std::unique_ptr<KvManager>> ManagerState::create_manager(
    KvArgs args, Options options, data_plane::TransportMaker make_transport,
    const LinkWrapper& wrap_link, const ResolverWrapper& wrap_resolver) {
  Result<std::shared_ptr<ManagerState>> state = create(
      std::move(args), std::move(options), std::move(make_transport), wrap_link, wrap_resolver);
  if (!state) {
    return tl::unexpected(state.error());
  }
  return std::unique_ptr<KvManager>(new KvManager(std::move(*state)));
}

Status ManagerState::prepare() {
  if (Status status = validate(options_); !status) {
    return status;
  }
  if (Status status = check_args(args_); !status) {
    return status;
  }
  Result<LayoutShape> shape = layout::make_shape(args_);
  if (!shape) {
    return tl::unexpected(shape.error());
  }
  shape_ = std::move(*shape);
  incarnation_ = draw_incarnation();
  if (args_.engine_epoch == EngineEpoch{}) {
    args_.engine_epoch = EngineEpoch(random_u64() | 1);
  }
  if (args_.instance.empty()) {
    args_.instance =
        fmt::format("{}-{}", to_string(args_.role), incarnation_.to_hex().substr(0, 8));
  }
  Result<std::unique_ptr<ClusterTokens>> tokens = ClusterTokens::load(options_.cluster_token_file);
  if (!tokens) {
    return tl::unexpected(tokens.error());
  }
  tokens_ = std::move(*tokens);
  keys_ = std::make_unique<KeyDirectory>(milliseconds(options_.lease_ms) * 3);
  table_ = std::make_unique<StatusTable>(max_handles(options_));
  checks_ = std::make_unique<ArgumentChecks>(args_);
  aux_ = std::make_unique<AuxSlots>(args_);
  Result<EventFd> event_fd = EventFd::make();
  if (!event_fd) {
    return tl::unexpected(event_fd.error());
  }
  releases_ = std::make_unique<ReleaseQueue>(std::move(*event_fd));
  Result<std::unique_ptr<Mailbox>> mailbox = Mailbox::make(options_.max_queued_calls);
  if (!mailbox) {
    return tl::unexpected(mailbox.error());
  }
  mailbox_ = std::move(*mailbox);
  return {};
}

Status ManagerState::open_control_link() {
  net::ControlLinkConfig config;
  config.host = options_.control_host;
  config.port = options_.control_port;
  config.curve = options_.curve;
  if (options_.curve) {
    // One pair of keys per process life: with the endpoint it names the incarnation.
    curve_keys_ = net::CurveKeys::generate();
    config.keys = curve_keys_;
  }
  config.max_peers = options_.max_peers;
  config.max_message_bytes = options_.control_message_max_bytes;
  config.queue_max_bytes = options_.control_queue_max_bytes;
  config.handshake_timeout = milliseconds(options_.handshake_timeout_ms);
  Result<std::unique_ptr<net::ControlLink>> link = net::ControlLink::open(
      std::move(config), [keys = keys_.get()](const std::string& public_key) {
        return keys->is_allowed(public_key, monotonic_now());
      });
  if (!link) {
    return tl::unexpected(link.error());
  }
  link_ = std::move(*link);
  control_endpoint_ =
      advertised(link_->endpoint(), options_.advertise_host, options_.advertise_port);
  if (control_endpoint_ == link_->endpoint()) {
    log::info("control link at {}", control_endpoint_);
  } else {
    log::info("control link at {}, told to peers as {} (advertise_host, advertise_port)",
              link_->endpoint(), control_endpoint_);
  }
  return {};
}

Status ManagerState::open_transport() {
  data_plane::TransportConfig config;
  config.role = args_.role;
  config.threads = &threads_;
  config.advertise_port = options_.advertise_data_port;
  config.host = bare_host(options_.data_host.empty() ? options_.control_host : options_.data_host);
  // A data_host of its own (another network card) is what peers dial; only without one do lanes go
  // where the control link is advertised.
  const bool own_address =
      !options_.data_host.empty() && config.host != "0.0.0.0" && config.host != "::";
  if (!own_address) {
    config.advertise_host = bare_host(options_.advertise_host);
  }
  config.port = options_.data_port;
  config.lanes_per_peer = options_.lanes_per_peer;
  config.frame_bytes = options_.data_frame_bytes;
  config.frame_writes = options_.data_frame_writes;
  config.max_grant_slots = options_.max_grant_slots;
  config.max_inflight_bytes = options_.max_inflight_bytes;
  config.max_queued_writes = options_.max_queued_writes;
  config.write_timeout_ms = options_.write_timeout_ms;
  config.lane_poll_us = options_.lane_poll_us;
  config.lane_heartbeat_ms = options_.lane_heartbeat_ms;
  config.lane_timeout_ms = options_.lane_timeout_ms;
  config.max_lane_strangers = options_.max_lane_strangers;
  config.receive_threads = options_.receive_threads;
  config.page_digests = options_.page_digests;
  config.shm_folder = options_.shm_folder;
  config.shm_lanes = options_.shm_lanes;
  config.shm_ring_entries = options_.shm_ring_entries;
  // A transport that the maker brings may move no bytes at all, so that it is not tested.
  Result<std::unique_ptr<data_plane::Transport>> transport =
      make_transport_
          ? make_transport_(config, *mailbox_)
          : data_plane::make_tested_transport(
                [this](const data_plane::TransportConfig& inner, data_plane::CompletionSink& sink) {
                  return data_plane::make_transport(options_.transport, inner, sink);
                },
                config, *mailbox_);
  if (!transport) {
    return tl::unexpected(transport.error());
  }
  transport_ = std::move(*transport);
  return transport_->register_regions(args_.regions);
}

core::ProtocolConfig ManagerState::protocol_config() const {
  const data_plane::TransportProperties properties = transport_->properties();
  core::ProtocolConfig config;
  config.options = options_;
  wire::Introduction& self = config.self;
  self.role = args_.role;
  self.instance = args_.instance;
  self.control_endpoint = control_endpoint_;
  self.incarnation = incarnation_;
  self.engine_epoch = args_.engine_epoch;
  self.layout = shape_;
  self.numerics = args_.numerics;
  self.require_identical = options_.require_identical;
  self.limits = {options_.max_grant_slots, options_.control_message_max_bytes,
                 options_.send_window_messages};
  for (const std::string_view name : transport_->offers()) {
    self.transports.push_back({std::string(name), transport_->local_blob()});
  }
  config.transport_class = {properties.target_executes_copy, properties.local_fence,
                            make_transport_ == nullptr};
  config.guards = core_guards();
  return config;
}

core::RegistryRow ManagerState::registry_row() const {
  core::RegistryRow row;
  row.role = args_.role;
  row.instance = args_.instance;
  row.rank = args_.rank;
  row.endpoint = control_endpoint_;
  row.public_key = curve_keys_.public_key;
  row.incarnation = incarnation_;
  row.engine_epoch = args_.engine_epoch;
  return row;
}

Status ManagerState::start() {
  protocol_ = args_.role == Role::kDecode
                  ? core::make_decode_protocol(protocol_config(), environment_)
                  : core::make_prefill_protocol(protocol_config(), environment_);
  resolver_ = std::make_unique<BootstrapClient>(options_, registry_row(), *tokens_, *keys_,
                                                *mailbox_, &threads_);
  if (wrap_resolver_) {
    resolver_ = wrap_resolver_(
        std::move(resolver_),
        [mailbox = mailbox_.get()](core::PrefillResolved each) {
          mailbox->push_reserved(std::move(each));
        },
        threads_);
  }
  driver_ = std::make_unique<Driver>(
      Driver::Parts{options_, *protocol_, *link_, *mailbox_, *table_, *releases_, *resolver_,
                    threads_.enrol("kvf-driver", "runs the protocol")},
      DriverSink::Parts{*table_, *releases_, *resolver_, *link_, *transport_, *aux_});
  watchdog_ = std::make_unique<Watchdog>(threads_, milliseconds(options_.thread_dead_ms),
                                         [this](const std::string& why) { lose_thread(why); });
  if (Status status = driver_->start(); !status) {
    return status;
  }
  if (Status status = watchdog_->start(); !status) {
    return status;
  }
  return resolver_->start();
}

// Nothing that depends on the thread will come any more: whoever waits is told so, and every later
// call is refused. What the peers hold of it ends by their own deadlines.
void ManagerState::lose_thread(const std::string& why) {
  const Failure cause = failure(FailureCode::kControlThreadDead, why);
  mailbox_->close(cause);
  table_->fail_all(cause);
  releases_->raise();
  driver_->condemn(why);
}

Failure ManagerState::failure(FailureCode code, std::string what) const {
  return Failure{code, FailureWhere::kLocal, std::move(what), {}, global_rank(args_.rank)};
}

std::shared_ptr<StatusCell> ManagerState::open(HandleKind kind, RoomId room, Binding binding) {
  std::shared_ptr<StatusCell> cell = table_->open(kind, room, binding);
  const Role role = kind == HandleKind::kSender ? Role::kPrefill : Role::kDecode;
  if (is_terminal(cell->load())) {
    announce_end(*cell);
    return cell;
  }
  if (role != args_.role) {
    cell->end(KvPoll::kFailed,
              failure(FailureCode::kWrongState,
                      fmt::format("a {} manager has no such handle", to_string(args_.role))));
    announce_end(*cell);
    return cell;
  }
  const Status queued =
      kind == HandleKind::kSender
          ? submit(core::SenderOpened{SenderId(cell->id), room, binding})
          : submit(core::ReceiverOpened{core::ReceiverId(cell->id), room, binding});
  if (!queued) {
    cell->end(KvPoll::kFailed, queued.error());
    announce_end(*cell);
    return cell;
  }
  cell->calls.opened = true;
  return cell;
}

// Of a handle that a call of its own has ended.
void ManagerState::announce_end(const StatusCell& cell) {
  table_->changes().add({&cell.id, 1});
  releases_->raise();
}

tl::unexpected<Failure> ManagerState::refuse(StatusCell& cell, Failure cause) {
  abort(cell, cause);
  return tl::unexpected<Failure>(std::move(cause));
}

tl::unexpected<Failure> ManagerState::refuse(StatusCell& cell, FailureCode code, std::string what) {
  return refuse(cell, failure(code, std::move(what)));
}

Status ManagerState::check_live(const StatusCell& cell, std::string_view call) const {
  const KvPoll status = cell.load();
  if (!is_terminal(status)) {
    return {};
  }
  if (std::optional<Failure> cause = cell.failure(); cause) {
    return tl::unexpected(std::move(*cause));
  }
  return tl::unexpected(
      failure(FailureCode::kWrongState, fmt::format("{} after the room's end", call)));
}

void ManagerState::report_abort(const StatusCell& cell, Failure cause) {
  if (cell.kind == HandleKind::kSender) {
    mailbox_->push_reserved(core::SenderAborted{SenderId(cell.id), std::move(cause)});
  } else {
    mailbox_->push_reserved(core::ReceiverAborted{core::ReceiverId(cell.id), std::move(cause)});
  }
}

void ManagerState::abort(StatusCell& cell, Failure cause) {
  if (!cell.end(KvPoll::kFailed, cause)) {
    return;
  }
  announce_end(cell);
  if (cell.calls.opened) {
    report_abort(cell, std::move(cause));
  }
}

void ManagerState::clear(StatusCell& cell) {
  const Failure cause =
      failure(FailureCode::kAborted, "the handle was cleared before the room's end");
  const StatusCell::Cleared cleared = cell.clear(cause);
  if (!cleared.first) {
    return;
  }
  if (cleared.ended && cell.calls.opened) {
    report_abort(cell, cause);
  }
  // The place is freed once the driver has seen the end; so the number of ends under way is bounded
  // by the places, and no event names an id whose place has a new owner.
  const bool announced =
      cell.calls.opened && (cell.kind == HandleKind::kSender
                                ? mailbox_->push_reserved(core::SenderCleared{SenderId(cell.id)})
                                : mailbox_->push_reserved(core::ReceiverCleared{
                                      core::ReceiverId(cell.id), cleared.unread_success}));
  if (!announced) {
    table_->release(cell.id);
  }
}

Status ManagerState::keep_paired(const std::string& address) {
  if (args_.role != Role::kDecode) {
    return tl::unexpected(
        failure(FailureCode::kWrongState, "keep_paired is for decode: prefill is dialled"));
  }
  return resolver_->keep_paired(address);
}

void ManagerState::stop() {
  std::lock_guard lock(stop_mutex_);
  if (stopped_.exchange(true) || driver_ == nullptr) {
    return;
  }
  if (watchdog_ != nullptr) {
    watchdog_->stop();
  }
  resolver_->begin_stop();
  // Two fifths of the time for telling peers; the rest for joining the transport's threads.
  driver_->request_stop(failure(FailureCode::kShuttingDown, "the manager was stopped"),
                        monotonic_now() + milliseconds(options_.stop_timeout_ms) * 2 / 5);
  driver_->join();
  transport_->stop();  // kept, since metrics() still reads its counters
  resolver_->stop();
  link_.reset();
}

}  // namespace kvferry::runtime
