#include "dialect/sglang/prefill_translator.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvferry::sglang {
namespace {

constexpr std::string_view kKeyPrefix = "sglang-";
// After a longer time without a turn the whole process was stopped, and what is heard of the peers
// counts before the core's deadlines (rule 13). A real peer would have gone on talking; a virtual
// one was stopped, too, so it says now that it lives.
constexpr Duration kPause = milliseconds(400);
constexpr std::size_t kRememberedSuccesses = 4'096;  // of a session

std::string to_text(const RankEndpoint& endpoint) {
  return fmt::format("{}:{}", endpoint.ip, endpoint.port);
}

// The peer is in this process, so nothing has to be random; a nonce only has to be another one
// each time.
wire::Nonce nonce_of(std::uint64_t number) {
  wire::Nonce nonce{};
  for (std::size_t i = 0; i < sizeof(number); ++i) {
    nonce[i] = static_cast<std::uint8_t>(number >> (8 * i));
  }
  return nonce;
}

std::size_t page_regions(const LayoutShape& layout) {
  return static_cast<std::size_t>(
      std::count_if(layout.regions.begin(), layout.regions.end(),
                    [](const RegionShape& region) { return holds_pages(region.kind); }));
}

}  // namespace

// One room of one decode rank, from its metadata until nothing is owed for it any more.
struct PrefillTranslator::Attempt {
  AttemptId id;
  GrantSlot slot;
  Generation generation;
  bool is_granted = false;  // else it waits for the session to be live
  RoomTarget target;
  std::optional<std::uint32_t> aux_index;
  std::optional<std::uint64_t> abort_generation;  // an ABORT that wants an acknowledgement
  bool status_sent = false;
};

struct PrefillTranslator::Session {
  MooncakeRegistration registration;
  wire::TransportOffer offer;  // how its memory is reached
  std::string key;             // stands for the CURVE key of one life of the peer
  wire::Nonce nonce{};
  std::optional<std::string> refused;  // why no room of this session is served, for good
  bool over = false;                   // the core ended it; the next metadata greets again
  std::optional<PeerId> peer;
  SessionEpoch epoch;
  bool live = false;
  std::uint64_t next_sequence = 1;
  std::uint64_t heard_through = 0;
  std::map<RoomId, Attempt> attempts;
  std::set<RoomId> early_aborts;  // of rooms without an attempt, until the session is live
  std::set<RoomId> succeeded;     // the last of them, in the order of
  std::deque<RoomId> succeeded_order;
  AttemptId next_attempt{1};
  Generation next_generation{1};
  std::set<GrantSlot> free_slots;
  GrantSlot next_slot{};
};

PrefillTranslator::PrefillTranslator(PrefillTranslatorConfig config) : config_(std::move(config)) {}
PrefillTranslator::~PrefillTranslator() = default;

PrefillTranslator::Session* PrefillTranslator::find(PeerId peer) const {
  for (const auto& [name, session] : sessions_) {
    if (session->peer == peer) {
      return session.get();
    }
  }
  return nullptr;
}

PrefillTranslator::Session* PrefillTranslator::find(const RankEndpoint& endpoint) const {
  for (const auto& [name, session] : sessions_) {
    if (session->registration.endpoint == endpoint) {
      return session.get();
    }
  }
  return nullptr;
}

// --- what goes out ---

void PrefillTranslator::say(Session& session, wire::Message message) {
  wire::Frame frame{session.epoch, session.next_sequence++, session.heard_through, {}};
  frame.messages.push_back(std::move(message));
  outputs_.emplace_back(VirtualFrame{session.key, std::move(frame)});
}

void PrefillTranslator::say_once(Session& session, wire::Message message) {
  wire::Frame frame{session.epoch, 0, session.heard_through, {}};
  frame.messages.push_back(std::move(message));
  outputs_.emplace_back(VirtualFrame{session.key, std::move(frame)});
}

void PrefillTranslator::send(const RankEndpoint& endpoint, Message message) {
  outputs_.emplace_back(ToEndpoint{endpoint, std::move(message)});
}

void PrefillTranslator::not_done(std::string_view counter, std::string what) {
  outputs_.emplace_back(NotDone{counter, std::move(what)});
}

void PrefillTranslator::refuse(const RoomTarget& target, std::string reason) {
  send(target.endpoint, RoomStatus{target.room, KvPoll::kFailed, config_.prefill_rank, reason});
  not_done("sglang_rooms_refused",
           fmt::format("room {} of {}: {}", target.room.value(), to_text(target.endpoint), reason));
}

void PrefillTranslator::acknowledge(RoomId room, const RankEndpoint& endpoint,
                                    std::uint64_t generation) {
  send(endpoint, AbortAck{room, config_.prefill_rank, generation});
}

// --- SGLang: registration ---

void PrefillTranslator::handle(const Message& message) {
  std::visit([this](const auto& body) { on(body); }, message);
}

template <typename Other>
void PrefillTranslator::on(const Other& message) {
  not_done("sglang_messages_not_served",
           fmt::format("{} is not served", kind_name(Message(message))));
}

std::optional<std::string> PrefillTranslator::refusal(
    const MooncakeRegistration& registration) const {
  const LayoutShape& own = config_.self.layout;
  const DecodeMemory& memory = registration.memory;
  if (registration.tp_size != own.rank.tp_size) {
    return fmt::format("decode has {} TP ranks, prefill {}: only equal sizes are served",
                       registration.tp_size, own.rank.tp_size);
  }
  if (registration.tp_rank % registration.tp_size != own.rank.tp_rank) {
    return fmt::format("decode's TP rank {} belongs to another prefill rank than {}",
                       registration.tp_rank, own.rank.tp_rank);
  }
  if (registration.dcp_size != 1) {
    return fmt::format("decode context parallelism of {} is not served", registration.dcp_size);
  }
  if (!memory.state_pointers.empty()) {
    return fmt::format("{} state components are not served", memory.state_pointers.size());
  }
  if (memory.kv_pointers.size() != page_regions(own)) {
    return fmt::format("decode has {} KV buffers, prefill {}", memory.kv_pointers.size(),
                       page_regions(own));
  }
  std::size_t buffer = 0;
  for (const RegionShape& region : own.regions) {
    if (!holds_pages(region.kind)) {
      continue;
    }
    if (!memory.kv_layers.empty() && memory.kv_layers[buffer] != region.layer) {
      return fmt::format("KV buffer {} is of layer {} on decode, of {} on prefill", buffer,
                         memory.kv_layers[buffer], region.layer);
    }
    const std::uint64_t theirs =
        memory.kv_item_bytes_of.empty() ? memory.kv_item_bytes : memory.kv_item_bytes_of[buffer];
    if (theirs != region.item_bytes) {
      return fmt::format("a page of KV buffer {} has {} bytes on decode, {} on prefill", buffer,
                         theirs, region.item_bytes);
    }
    ++buffer;
  }
  return std::nullopt;
}

// What a kvferry decode process with this memory would say.
wire::Introduction PrefillTranslator::introduction(const Session& session) const {
  wire::Introduction out = config_.self;
  out.role = Role::kDecode;
  out.instance = "sglang";
  out.control_endpoint = to_text(session.registration.endpoint);
  out.incarnation = Incarnation{0, next_key_};
  out.require_identical = false;
  out.transports = {session.offer};
  for (RegionShape& region : out.layout.regions) {
    const std::uint32_t told =
        holds_pages(region.kind) ? config_.decode_pages : config_.decode_aux_slots;
    region.item_count = told == 0 ? region.item_count : told;
  }
  return out;
}

void PrefillTranslator::on(const MooncakeRegistration& registration) {
  std::optional<std::string> refused = refusal(registration);
  wire::TransportOffer offer;
  if (!refused) {
    Result<wire::TransportOffer> reached = config_.reach(registration);
    if (reached) {
      offer = std::move(*reached);
    } else {
      refused = reached.error().what;
    }
  }
  const auto found = sessions_.find(registration.session);
  if (found != sessions_.end() && found->second->registration == registration &&
      found->second->offer == offer) {
    return;
  }
  // Its addresses are void, and so is every grant that names them. A port has one owner, so that
  // another session there has taken the place of the one before.
  if (found != sessions_.end()) {
    close(*found->second, "the decode rank registered other memory");
    sessions_.erase(found);
  } else if (Session* former = find(registration.endpoint)) {
    close(*former, "another decode rank registered with this endpoint");
    sessions_.erase(former->registration.session);
  }
  if (sessions_.size() >= config_.max_sessions && !make_place()) {
    not_done("sglang_sessions_refused", fmt::format("{} sessions are open, no place for {}",
                                                    sessions_.size(), registration.session));
    return;
  }
  auto session = std::make_unique<Session>();
  session->registration = registration;
  session->offer = std::move(offer);
  session->refused = std::move(refused);
  if (session->refused) {
    session->over = true;
    not_done("sglang_sessions_refused",
             fmt::format("session {}: {}", registration.session, *session->refused));
  } else {
    greet(*session);
  }
  sessions_.emplace(registration.session, std::move(session));
}

// Drops a session that nobody uses; should its decode rank come back, it is told that it is not
// registered, and so that it has to.
bool PrefillTranslator::make_place() {
  const auto idle = std::find_if(sessions_.begin(), sessions_.end(), [](const auto& each) {
    return each.second->over && each.second->attempts.empty();
  });
  if (idle == sessions_.end()) {
    return false;
  }
  outputs_.emplace_back(LeaveEndpoint{idle->second->registration.endpoint});
  sessions_.erase(idle);
  return true;
}

// A new life of the peer, as the core sees it: SGLang's decode registers again only when it has
// noticed something, so its last registration is what counts.
void PrefillTranslator::greet(Session& session) {
  session.over = false;
  session.key = fmt::format("{}{}", kKeyPrefix, next_key_);
  session.nonce = nonce_of(next_key_);
  session.epoch = {};
  session.next_sequence = 1;
  session.heard_through = 0;
  wire::Frame frame;
  frame.messages.emplace_back(wire::Hello{introduction(session), session.nonce, {}});
  outputs_.emplace_back(HoldEndpoint{session.registration.endpoint});
  outputs_.emplace_back(VirtualFrame{session.key, std::move(frame)});
  greetings_.push_back(
      {now_ + config_.greeting_timeout, session.registration.session, session.key});
  ++next_key_;
}

// Ends the peer for the core. What was granted may still be written to.
void PrefillTranslator::close(Session& session, const std::string& why) {
  for (auto& [room, attempt] : session.attempts) {
    if (!attempt.status_sent) {
      refuse(attempt.target, why);
    }
    if (attempt.is_granted) {
      remember_unproven(session.registration.endpoint, room);
    }
    --open_rooms_;
  }
  session.attempts.clear();
  session.early_aborts.clear();
  session.free_slots.clear();
  session.next_slot = {};
  session.live = false;
  session.over = true;
  if (session.peer) {
    outputs_.emplace_back(VirtualPeerDown{*session.peer});
    session.peer.reset();
  }
}

// Where the table is full nothing of that endpoint is acknowledged any more.
void PrefillTranslator::remember_unproven(const RankEndpoint& endpoint, RoomId room) {
  if (unproven_.size() < config_.max_rooms) {
    unproven_.emplace(to_text(endpoint), room);
  } else {
    distrusted_.insert(to_text(endpoint));
  }
}

bool PrefillTranslator::is_unproven(const RankEndpoint& endpoint, RoomId room) const {
  const std::string name = to_text(endpoint);
  return distrusted_.contains(name) || unproven_.contains({name, room});
}

// --- SGLang: rooms ---

void PrefillTranslator::on(const MooncakeMetadata& metadata) {
  const auto found = sessions_.find(metadata.session);
  if (found == sessions_.end()) {
    refuse(metadata.target, fmt::format("session {} is not registered here", metadata.session));
  } else if (const auto why = refusal(*found->second, metadata)) {
    refuse(metadata.target, *why);
  } else {
    open_room(*found->second, metadata);
  }
}

std::optional<std::string> PrefillTranslator::refusal(const Session& session,
                                                      const MooncakeMetadata& metadata) const {
  const RoomTarget& target = metadata.target;
  const std::uint64_t page_tokens = config_.self.layout.page_size_tokens;
  if (session.registration.endpoint != target.endpoint) {
    return fmt::format("session {} is that of {}", metadata.session,
                       to_text(session.registration.endpoint));
  }
  if (session.refused) {
    return session.refused;
  }
  if (target.room == RoomId{0}) {
    // SGLang's decode takes it for an aux slot that was not written.
    return "room 0 can't be used";
  }
  if (metadata.is_dummy()) {
    return "a rank that sends nothing is not served";
  }
  if (!target.state_indices.empty() || !metadata.device_pages.empty()) {
    return "state components and device pages are not served";
  }
  if (target.prefix_tokens % page_tokens != 0) {
    return fmt::format("a prefix of {} tokens is no multiple of the page size {}",
                       target.prefix_tokens, page_tokens);
  }
  if (session.attempts.contains(target.room)) {
    // The first may still be written: a second list of pages for it can't be taken back.
    return "this room is still open here";
  }
  if (is_unproven(target.endpoint, target.room)) {
    return "an earlier life of this room is not known to be over";
  }
  if (open_rooms_ >= config_.max_rooms ||
      session.attempts.size() >= config_.self.limits.max_grant_slots) {
    return fmt::format("{} rooms are open here, {} of this session", open_rooms_,
                       session.attempts.size());
  }
  return std::nullopt;
}

AttemptId PrefillTranslator::low_water_mark(const Session& session) const {
  AttemptId lowest = session.next_attempt;
  for (const auto& [room, attempt] : session.attempts) {
    lowest = attempt.is_granted ? std::min(lowest, attempt.id) : lowest;
  }
  return lowest;
}

void PrefillTranslator::open_room(Session& session, const MooncakeMetadata& metadata) {
  Attempt& attempt = session.attempts[metadata.target.room];
  attempt.target = metadata.target;
  attempt.aux_index = metadata.aux_index;
  ++open_rooms_;
  if (session.over) {
    greet(session);
  }
  if (session.live) {
    grant(session, attempt);
  }
}

void PrefillTranslator::grant(Session& session, Attempt& attempt) {
  const RoomTarget& target = attempt.target;
  attempt.is_granted = true;
  attempt.id = std::exchange(session.next_attempt, session.next_attempt.next());
  attempt.generation = std::exchange(session.next_generation, session.next_generation.next());
  if (session.free_slots.empty()) {
    attempt.slot = std::exchange(session.next_slot, session.next_slot.next());
  } else {
    attempt.slot = session.free_slots.extract(session.free_slots.begin()).value();
  }
  wire::Grant message;
  message.room = target.room;
  message.attempt = attempt.id;
  message.low_water_mark = low_water_mark(session);
  message.decode_engine_epoch = EngineEpoch(1);
  message.slot = attempt.slot;
  message.generation = attempt.generation;
  message.expected_grants = target.decode_ranks;
  message.decode_prefix_pages =
      static_cast<std::uint32_t>(target.prefix_tokens / config_.self.layout.page_size_tokens);
  message.pages = target.pages;
  message.aux_slot = attempt.aux_index ? std::int64_t{*attempt.aux_index} : -1;
  say(session, std::move(message));
}

wire::Abort PrefillTranslator::abort_of(const Session& session, RoomId room) const {
  wire::Abort message;
  message.room = room;
  message.cause = {FailureCode::kAborted, FailureWhere::kPeer, "aborted by the decode rank",
                   to_text(session.registration.endpoint), -1};
  message.low_water_mark = low_water_mark(session);
  return message;
}

void PrefillTranslator::on(const AbortRoom& abort) {
  Session* session = abort.endpoint ? find(*abort.endpoint) : nullptr;
  if (session == nullptr) {
    not_done("sglang_aborts_of_strangers",
             fmt::format("ABORT of room {}: its sender is not registered", abort.room.value()));
    return;
  }
  wire::Abort message = abort_of(*session, abort.room);
  const auto found = session->attempts.find(abort.room);
  if (found != session->attempts.end() && found->second.is_granted) {
    Attempt& attempt = found->second;
    if (abort.generation) {
      attempt.abort_generation = abort.generation;
    }
    attempt.status_sent = true;  // who aborts needs no word of the failure
    message.attempt = attempt.id;
    message.slot = attempt.slot;
    message.generation = attempt.generation;
    say(*session, std::move(message));
    return;
  }
  if (found != session->attempts.end()) {
    session->attempts.erase(found);
    --open_rooms_;
  }
  if (is_unproven(*abort.endpoint, abort.room)) {
    not_done("sglang_aborts_unproven",
             fmt::format("ABORT of room {} of {}: its session ended before its writes did",
                         abort.room.value(), to_text(*abort.endpoint)));
    return;
  }
  // Nothing was granted to anybody under this session, so nothing will be written. A generation
  // says that the room's metadata came before; of one that succeeded since the core need not hear,
  // and must not, as without bindings it would take the next life of the number for this one.
  if (abort.generation && session->succeeded.contains(abort.room)) {
    acknowledge(abort.room, *abort.endpoint, *abort.generation);
    return;
  }
  if (session->live) {
    say(*session, std::move(message));
  } else if (!session->refused && session->early_aborts.size() < config_.max_rooms) {
    session->early_aborts.insert(abort.room);
    if (session->over) {
      greet(*session);
    }
  }
  if (abort.generation) {
    acknowledge(abort.room, *abort.endpoint, *abort.generation);
  }
}

// Nothing is owed for the room any more: its slot is free, and the room may come again.
void PrefillTranslator::finish(Session& session, RoomId room) {
  const auto found = session.attempts.find(room);
  session.free_slots.insert(found->second.slot);
  session.attempts.erase(found);
  --open_rooms_;
}

// --- the core ---

void PrefillTranslator::handle_dial(PeerId peer, const PeerAddress& address) {
  const auto found = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& each) {
    return each.second->key == address.public_key && !each.second->over;
  });
  if (found == sessions_.end()) {
    outputs_.emplace_back(VirtualPeerDown{peer});
    return;
  }
  found->second->peer = peer;
  outputs_.emplace_back(VirtualPeerUp{peer});
}

bool PrefillTranslator::owns(const PeerAddress& address) const {
  return address.public_key.starts_with(kKeyPrefix);
}

// --- time ---

void PrefillTranslator::advance(Instant now) {
  if (now - now_ > kPause) {
    for (auto& [name, session] : sessions_) {
      if (session->live) {
        say_once(*session, wire::Heartbeat{});
      }
    }
  }
  now_ = now;
  while (!greetings_.empty() && greetings_.front().due <= now) {
    const Greeting greeting = std::move(greetings_.front());
    greetings_.pop_front();
    const auto found = sessions_.find(greeting.session);
    if (found != sessions_.end() && found->second->key == greeting.key && !found->second->live &&
        !found->second->over) {
      close(*found->second, "this prefill rank did not take the session up in time");
    }
  }
}

std::optional<Instant> PrefillTranslator::next_deadline() const {
  return greetings_.empty() ? std::nullopt : std::optional(greetings_.front().due);
}

void PrefillTranslator::handle_endpoint_lost(const RankEndpoint& endpoint) {
  if (Session* session = find(endpoint)) {
    close(*session, "the connection to decode was lost");
  }
}

void PrefillTranslator::handle_hang_up(PeerId peer) {
  if (Session* session = find(peer)) {
    session->peer.reset();
    close(*session, "prefill ended the session");
  }
}

void PrefillTranslator::handle_frame(PeerId peer, const wire::Frame& frame) {
  Session* session = find(peer);
  if (session == nullptr) {
    return;
  }
  if (frame.sequence != 0) {
    if (frame.session != session->epoch || frame.sequence > session->heard_through + 1) {
      return;  // of another life, or one before it was lost: the core says it again
    }
    session->heard_through =
        std::max(session->heard_through, frame.sequence + frame.messages.size() - 1);
  }
  for (const wire::Message& message : frame.messages) {
    // Looked up each time: a message may end the session.
    session = find(peer);
    if (session == nullptr) {
      return;
    }
    std::visit([&](const auto& body) { on(*session, body); }, message);
  }
  session = find(peer);
  if (session != nullptr && frame.sequence != 0) {
    say_once(*session, wire::Ack{});
  }
}

void PrefillTranslator::on(Session& session, const wire::HelloReply& reply) {
  if (reply.echoed_nonce != session.nonce) {
    return;
  }
  wire::Frame frame;
  frame.messages.emplace_back(wire::HelloConfirm{reply.epoch, reply.nonce});
  session.epoch = reply.epoch;
  outputs_.emplace_back(VirtualFrame{session.key, std::move(frame)});
}

void PrefillTranslator::on(Session& session, const wire::HelloConfirmed& confirmed) {
  if (session.live || confirmed.epoch != session.epoch) {
    return;
  }
  session.live = true;
  // Metadata that came after an ABORT is a new life of its room.
  for (const RoomId room : std::exchange(session.early_aborts, {})) {
    say(session, abort_of(session, room));
  }
  for (auto& [room, attempt] : session.attempts) {
    grant(session, attempt);
  }
}

void PrefillTranslator::on(Session& session, const wire::HelloRefused& refused) {
  if (refused.echoed_nonce == session.nonce) {
    session.refused = refused.reason.what;
    close(session, refused.reason.what);
  }
}

void PrefillTranslator::on(Session& session, const wire::SessionEnded& ended) {
  if (ended.epoch == session.epoch) {
    close(session, ended.reason.what);
  }
}

void PrefillTranslator::on(Session& session, const wire::Heartbeat&) {
  say_once(session, wire::Heartbeat{});
}

void PrefillTranslator::on(Session& session, const wire::Done& done) {
  const auto found = session.attempts.find(done.room);
  if (found == session.attempts.end() || found->second.id != done.attempt ||
      found->second.status_sent) {
    return;  // said twice, or its Abort has crossed it and Drained follows
  }
  send(session.registration.endpoint,
       RoomStatus{done.room, KvPoll::kSuccess, config_.prefill_rank, {}});
  finish(session, done.room);
  if (session.succeeded.insert(done.room).second) {
    session.succeeded_order.push_back(done.room);
  }
  if (session.succeeded_order.size() > kRememberedSuccesses) {
    session.succeeded.erase(session.succeeded_order.front());
    session.succeeded_order.pop_front();
  }
  wire::Consumed consumed;
  consumed.room = done.room;
  consumed.attempt = done.attempt;
  consumed.low_water_mark = low_water_mark(session);
  say(session, consumed);
}

void PrefillTranslator::on(Session& session, const wire::Failed& failed) {
  const auto found = session.attempts.find(failed.room);
  const bool names_it = found != session.attempts.end() &&
                        (failed.attempt == AttemptId{} || failed.attempt == found->second.id);
  if (!names_it || found->second.status_sent) {
    return;
  }
  found->second.status_sent = true;
  send(session.registration.endpoint,
       RoomStatus{failed.room, KvPoll::kFailed, config_.prefill_rank, failed.cause.what});
}

void PrefillTranslator::on(Session& session, const wire::Drained& drained) {
  const auto found =
      std::find_if(session.attempts.begin(), session.attempts.end(), [&](const auto& each) {
        return each.second.is_granted && each.second.id == drained.attempt;
      });
  if (found == session.attempts.end() || !drained.clean) {
    return;
  }
  if (found->second.abort_generation) {
    acknowledge(found->first, session.registration.endpoint, *found->second.abort_generation);
  }
  finish(session, found->first);
}

}  // namespace kvferry::sglang
