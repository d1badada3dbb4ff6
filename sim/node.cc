#include "sim/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/world.h"

namespace kvferry::sim {
namespace {

constexpr std::int64_t kMaxSkewSeconds = 100'000;
constexpr std::uint64_t kMaxDriftPerMille = 20;

wire::Introduction introduce(const Place& place, EngineEpoch epoch, const Options& options,
                             std::uint32_t life) {
  wire::Introduction self;
  self.role = place.role;
  self.instance = place.instance;
  self.control_endpoint = place.endpoint;
  self.incarnation = Incarnation{place.index + 1, life};
  self.engine_epoch = epoch;
  self.layout = place.memory->shape();
  self.limits = {options.max_grant_slots, options.control_message_max_bytes,
                 options.send_window_messages};
  self.transports = {{"sim", {}}};
  return self;
}

// Rooms are opened, and nothing happens that could free a page.
bool opens_rooms_only(std::span<const core::Event> events) {
  bool opens = false;
  for (const core::Event& event : events) {
    opens = opens || std::holds_alternative<core::ReceiverOpened>(event);
    if (std::holds_alternative<core::FenceCompleted>(event) ||
        std::holds_alternative<core::FrameArrived>(event) ||
        std::holds_alternative<core::SessionTornDown>(event)) {
      return false;
    }
  }
  return opens;
}

core::ProtocolConfig configure(const World& world, const wire::Introduction& self) {
  core::ProtocolConfig config;
  config.options = world.profile.options;
  config.self = self;
  config.transport_class = world.profile.transport_class();
#ifdef KVFERRY_LAB
  config.guards = core::Guards(world.missing.core);
#endif
  return config;
}

}  // namespace

Node::Node(World& world, Place& place, EngineEpoch engine_epoch)
    : world_(world),
      place_(place),
      life_(place.life),
      name_(fmt::format("{}#{}", place.name, place.life)),
      key_(world.profile.curve ? fmt::format("key of {}", name_) : std::string()),
      prng_(world.profile.seed * 31 + place.index * 1'009 + place.life),
      timing_(prng_.fork()),
      self_(introduce(place, engine_epoch, world.profile.options, place.life)) {
  // Every process has a clock of its own; only the fault makes it matter.
  const auto skew = static_cast<std::int64_t>(timing_.below(kMaxSkewSeconds));
  const auto drift = static_cast<std::int64_t>(timing_.below(2 * kMaxDriftPerMille + 1));
  if (world.faults.may(Fault::kClockSkew)) {
    world.faults.note(Fault::kClockSkew);
    skew_ = std::chrono::seconds(skew);
    drift_per_mille_ = drift - static_cast<std::int64_t>(kMaxDriftPerMille);
  }
  core::ProtocolConfig config = configure(world, self_);
  protocol_ = place.role == Role::kPrefill ? core::make_prefill_protocol(std::move(config), *this)
                                           : core::make_decode_protocol(std::move(config), *this);
}

Node::~Node() = default;

// --- the caller's side ---

std::uint64_t Node::open(const core::RoomKey& key) {
  const std::uint64_t owner = next_owner_++;
  cells_[owner].key = key;
  if (place_.role == Role::kPrefill) {
    receive(core::SenderOpened{SenderId(owner), key.room, key.binding});
  } else {
    receive(core::ReceiverOpened{core::ReceiverId(owner), key.room, key.binding});
  }
  return owner;
}

void Node::name_prefill(std::uint64_t receiver, const std::string& instance) {
  receive(core::PrefillNamed{core::ReceiverId(receiver), "registry:1", instance, 0});
}

void Node::give(std::uint64_t receiver, core::MetadataGiven metadata) {
  metadata.receiver = core::ReceiverId(receiver);
  world_.oracle.pages_given(*this, receiver, metadata);
  receive(std::move(metadata));
}

void Node::init_sender(std::uint64_t sender, std::uint32_t page_count, std::int64_t aux_slot) {
  receive(core::SenderInitialized{SenderId(sender), page_count, aux_slot});
}

void Node::send(std::uint64_t sender, std::vector<PageIndex> pages,
                std::vector<std::uint32_t> state_slots) {
  receive(core::ChunkGiven{SenderId(sender), std::move(pages), std::move(state_slots)});
}

void Node::abort(std::uint64_t owner, FailureCode code) {
  Cell& cell = cells_.at(owner);
  if (is_terminal(cell.status) || !alive_) {
    return;
  }
  end_by_caller(cell, code, "the client went away");
  world_.trace.line(LogLevel::kBrief, world_.agenda.now(), "{} room {} aborted by its caller",
                    name_, cell.key.room.value());
  if (place_.role == Role::kPrefill) {
    receive(core::SenderAborted{SenderId(owner), *cell.failure});
  } else {
    receive(core::ReceiverAborted{core::ReceiverId(owner), *cell.failure});
  }
  world_.oracle.terminal_published(*this, owner);
}

// The caller wins the compare-and-swap; its event follows.
void Node::end_by_caller(Cell& cell, FailureCode code, std::string_view what) {
  cell.status = KvPoll::kFailed;
  cell.failure = Failure{code, FailureWhere::kLocal, std::string(what), {}, 0};
  cell.ended = world_.agenda.now();
  cell.by_caller = true;
}

KvPoll Node::poll(std::uint64_t owner) {
  Cell& cell = cells_.at(owner);
  cell.read_success = cell.read_success || cell.status == KvPoll::kSuccess;
  return cell.status;
}

void Node::clear(std::uint64_t owner) {
  Cell& cell = cells_.at(owner);
  if (std::exchange(cell.cleared, true) || !alive_) {
    return;  // A handle goes once.
  }
  const bool unread = cell.status == KvPoll::kSuccess && !cell.read_success;
  if (!is_terminal(cell.status)) {
    end_by_caller(cell, FailureCode::kAborted, "the caller cleared the room");
    world_.oracle.terminal_published(*this, owner);
  }
  if (place_.role == Role::kPrefill) {
    receive(core::SenderCleared{SenderId(owner)});
  } else {
    receive(core::ReceiverCleared{core::ReceiverId(owner), unread});
  }
}

// --- the world's side ---

void Node::receive(core::Event event) {
  if (!alive_) {
    return;
  }
  if (paused_) {
    door_.push_back(std::move(event));
    return;
  }
  inbox_.push_back(std::move(event));
  const bool slow =
      world_.faults.strikes(Fault::kSlowTurn, timing_, world_.profile.rate_of(Fault::kSlowTurn));
  const Duration slowness = milliseconds(timing_.below(300));
  plan_turn(slow ? slowness : world_.profile.turn_delay);
}

void Node::receive_after(Duration delay, core::Event event) {
  world_.agenda.after(delay,
                      [this, held = std::make_shared<core::Event>(std::move(event))]() mutable {
                        receive(std::move(*held));
                      });
}

void Node::die() { alive_ = false; }

void Node::stop(const Failure& cause) {
  stopped_ = true;
  receive(core::StopRequested{cause});
}

void Node::pause() {
  paused_ = true;
  paused_since_ = world_.agenda.now();
}

// The driver wakes first; the threads that read sockets bring what waited a moment later. A pause
// right after a turn that came late itself is not judged: timers wait for one turn only.
void Node::resume() {
  const Duration threshold = milliseconds(world_.profile.options.pause_threshold_ms);
  paused_ = false;
  paused_long_ = !timers_wait_ && world_.agenda.now() - paused_since_ > threshold * 11 / 10;
  plan_turn(Duration{});
  world_.agenda.after(Duration{}, [this] {
    if (paused_) {
      return;
    }
    for (core::Event& event : std::exchange(door_, {})) {
      receive(std::move(event));
    }
    paused_long_ = false;
  });
}

Instant Node::local_now() const {
  const Duration since = world_.agenda.now().since_start();
  return Instant(since + skew_ + since / 1'000 * drift_per_mille_);
}

Instant Node::to_world(Instant local) const {
  const Duration since = local.since_start() - skew_;
  // A little late rather than early, so that a timer is due when its turn comes.
  return Instant(since / (1'000 + drift_per_mille_) * 1'000 + std::chrono::microseconds(2));
}

void Node::plan_turn(Duration delay) {
  if (std::exchange(turn_planned_, true)) {
    return;
  }
  world_.agenda.after(delay, [this] {
    turn_planned_ = false;
    if (is_running()) {
      turn();
    }
  });
}

void Node::plan_timer() {
  const Instant deadline = protocol_->next_deadline();
  if (deadline == Instant::max()) {
    return;
  }
  const auto strikes = [this](Fault fault) {
    return world_.faults.strikes(fault, timing_, world_.profile.rate_of(fault));
  };
  const bool late = strikes(Fault::kLateTimer);
  const bool early = strikes(Fault::kEarlyTimer);
  const Duration lateness = milliseconds(timing_.below(100));
  const std::uint64_t share = timing_.below(1'000);
  const Instant due = std::max(to_world(deadline), world_.agenda.now());
  const Instant wake = late ? due + lateness : due;
  if (early) {
    const Duration wait = due - world_.agenda.now();
    world_.agenda.after(wait / 1'000 * static_cast<std::int64_t>(share),
                        [this] { plan_turn(Duration{}); });
  }
  if (timer_planned_ <= wake) {
    return;
  }
  timer_planned_ = wake;
  world_.agenda.at(wake, [this, wake] {
    if (timer_planned_ == wake) {
      timer_planned_ = Instant::max();
    }
    if (!is_running()) {
      return;
    }
    if (protocol_->next_deadline() <= local_now()) {
      turn();
    } else {
      plan_timer();
    }
  });
}

void Node::turn() {
  std::vector<core::Event> events = std::exchange(inbox_, {});
  for (const core::Event& event : events) {
    world_.oracle.event_taken(*this, event);
  }
  world_.chronicle.turn_begins(*this, events);
  world_.trace.mix(place_.index, life_, events.size(),
                   static_cast<std::uint64_t>(world_.agenda.now().since_start().count()));
  const bool judges_cap = opens_rooms_only(events) && is_quarantine_full();
  const Instant now = local_now();
  const Duration since_last = now - std::exchange(last_turn_, now);
  timers_wait_ =
      !timers_wait_ && since_last > milliseconds(world_.profile.options.pause_threshold_ms);
  protocol_->step(now, events, *this);
  if (judges_cap && is_quarantine_full()) {
    world_.oracle.check_cap(*this, events);
  }
  world_.chronicle.turn_ends();
  for (const SessionEpoch session : std::exchange(over_, {})) {
    world_.oracle.session_over(*this, session);
  }
  for (const std::string& broken : protocol_->check_invariants()) {
    world_.oracle.violate(broken.substr(0, broken.find(':')), name_ + ": " + broken);
  }
  plan_timer();
}

bool Node::is_quarantine_full() const {
  return brief().quarantined_pages >= world_.profile.options.quarantine_max_pages;
}

core::PeerRow Node::row() const {
  return core::PeerRow{address(), self_.instance, self_.layout.rank, self_.engine_epoch};
}

core::Snapshot Node::snapshot() const { return protocol_->snapshot(local_now(), 1'000); }
core::Snapshot Node::brief() const { return protocol_->snapshot(local_now(), 0); }

std::uint64_t Node::counter(std::string_view name) const {
  const auto found = counters_.find(name);
  return found == counters_.end() ? 0 : found->second;
}

bool Node::holds_session(SessionEpoch epoch) const {
  const core::Snapshot view = brief();
  return std::ranges::any_of(view.peers, [&](const core::PeerView& known) {
    return known.epoch == epoch && known.state == "live";
  });
}

// --- ActionSink ---

void Node::publish_status(std::uint64_t owner, KvPoll status) {
  Cell& cell = cells_.at(owner);
  if (is_terminal(cell.status)) {
    return;  // The caller ended it, and its event is on the way.
  }
  world_.oracle.status_published(*this, owner, cell.status, status);
  cell.status = status;
  world_.trace.line(LogLevel::kBrief, world_.agenda.now(), "{} room {} {}", name_,
                    cell.key.room.value(), to_string(status));
  world_.workload.status_changed(*this, owner);
}

bool Node::publish_terminal(std::uint64_t owner, KvPoll status,
                            const std::optional<Failure>& failure) {
  Cell& cell = cells_.at(owner);
  if (is_terminal(cell.status)) {
    world_.chronicle.terminal_published(*this, owner, status, false);
    return false;
  }
  cell.status = status;
  cell.failure = failure;
  cell.ended = world_.agenda.now();
  world_.trace.mix(owner, static_cast<std::uint64_t>(status),
                   failure ? static_cast<std::uint64_t>(failure->code) : 0);
  world_.trace.line(LogLevel::kBrief, world_.agenda.now(), "{} room {} {}{}", name_,
                    cell.key.room.value(), to_string(status),
                    failure ? ": " + to_string(*failure) : std::string());
  world_.oracle.terminal_published(*this, owner);
  world_.chronicle.terminal_published(*this, owner, status, true);
  world_.workload.status_changed(*this, owner);
  return true;
}

void Node::publish_attempt(core::ReceiverId receiver, AttemptId attempt) {
  cells_.at(receiver.value()).attempt = attempt;
  world_.oracle.attempt_named(*this, receiver.value(), attempt);
  world_.chronicle.attempt_named(receiver, attempt);
}

void Node::publish_prefix(SenderId sender, std::uint32_t decode_prefix_pages) {
  cells_.at(sender.value()).prefix = decode_prefix_pages;
  world_.oracle.prefix_published(*this, sender.value(), decode_prefix_pages);
  world_.workload.prefix_known(*this, sender.value());
}

void Node::publish_landed_bytes(SenderId, std::uint64_t) {}

void Node::release_pages(core::ReleasePages released) {
  world_.trace.mix(released.owner, released.pages.size());
  world_.trace.line(LogLevel::kBrief, world_.agenda.now(), "{} room {} releases {} pages", name_,
                    released.room.value(), released.pages.size());
  world_.oracle.pages_released(*this, released);
  world_.chronicle.pages_released(*this, released);
  world_.workload.pages_released(*this, released);
}

void Node::resolve_prefill(core::ResolvePrefill query) { world_.registry.ask(*this, query); }
void Node::dial_peer(core::DialPeer dial) { world_.network.dial(*this, dial); }
void Node::hang_up(PeerId peer) { world_.network.hang_up(*this, peer); }

void Node::send_frame(core::SendFrame send) {
  world_.oracle.frame_sent(*this, send.frame);
  world_.chronicle.frame_sent(send.frame);
  world_.network.send(*this, std::move(send));
}

Status Node::open_data_session(core::OpenDataSession open) {
  world_.oracle.session_opened(*this, open);
  const Status opened = world_.fabric.open_session(*this, open);
  if (opened) {
    world_.chronicle.session_opened(*this, open.epoch);
  }
  return opened;
}

void Node::close_data_session(SessionEpoch epoch) {
  over_.push_back(epoch);
  world_.fabric.close_session(*this, epoch);
}

void Node::open_grant(core::OpenGrant open) {
  world_.oracle.grant_opened(*this, open);
  world_.chronicle.grant_opened(*this, open);
  world_.fabric.open_grant(*this, open);
}

void Node::fence_grant(GrantId grant) {
  world_.trace.mix(grant.value(), 0xFE);
  world_.trace.line(LogLevel::kFull, world_.agenda.now(), "{} fences grant {}", name_,
                    grant.value());
  world_.oracle.fence_ordered(*this, grant);
  world_.chronicle.fence_ordered(*this, grant);
  world_.fabric.fence(*this, grant);
}

void Node::post_writes(core::PostWrites post) {
  world_.trace.mix(post.session.value(), post.writes.size());
  world_.trace.line(LogLevel::kFull, world_.agenda.now(), "{} posts {} writes", name_,
                    post.writes.size());
  world_.oracle.writes_posted(*this, post);
  world_.chronicle.writes_posted(*this, post);
  world_.fabric.post(*this, post);
}

void Node::give_up_writes(core::GiveUpWrites give_up) { world_.fabric.give_up(*this, give_up); }

Status Node::inspect_aux(std::uint32_t aux_slot, RoomId room, Binding binding) {
  return memory().inspect_aux(aux_slot, room, binding);
}

void Node::transitioned(core::Machine machine, std::uint8_t from, std::uint8_t trigger) {
  const bool decode = place_.role == Role::kDecode;
  const Machine whose = machine == core::Machine::kGrant    ? Machine::kGrant
                        : machine == core::Machine::kTarget ? Machine::kTarget
                        : decode                            ? Machine::kDecodeRoom
                                                            : Machine::kPrefillRoom;
  world_.cells.hit(whose, from, trigger);
  world_.chronicle.moved(machine, trigger);
}

void Node::count(std::string_view counter, std::uint64_t by) {
  world_.chronicle.counted(counter);
  const auto found = counters_.find(counter);
  if (found != counters_.end()) {
    found->second += by;
  } else {
    counters_.emplace(counter, by);
  }
}

void Node::note(std::string_view text) {
  world_.trace.line(LogLevel::kFull, world_.agenda.now(), "{} notes: {}", name_, text);
}

}  // namespace kvferry::sim
