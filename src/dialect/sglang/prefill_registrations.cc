// The prefill translator's sessions: registrations that come, lives that begin and end.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dialect/sglang/prefill_session.h"
#include "dialect/sglang/virtual_nonce.h"

namespace kvferry::sglang {
namespace {

std::size_t page_regions(const LayoutShape& layout) {
  return static_cast<std::size_t>(
      std::count_if(layout.regions.begin(), layout.regions.end(),
                    [](const RegionShape& region) { return holds_pages(region.kind); }));
}

}  // namespace

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
  session.key = fmt::format("{}{}", kVirtualKeyPrefix, next_key_);
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
    part_from_peer(session);
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

}  // namespace kvferry::sglang
