// The prefill translator's sessions: registrations that come, lives that begin and end.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dialect/sglang/prefill_session.h"
#include "dialect/sglang/virtual_nonce.h"

namespace kvferry::sglang {

// What a kvferry decode process with this memory would say.
wire::Introduction PrefillTranslator::introduction(const Session& session) const {
  wire::Introduction out = config_.self;
  out.role = Role::kDecode;
  out.instance = "sglang";
  out.control_endpoint = to_text(session.rank.endpoint);
  out.incarnation = Incarnation{0, next_key_};
  out.require_identical = false;
  out.transports = {session.offer};
  out.layout = session.layout;
  const std::uint32_t pages = session.rank.kv_pages ? 0 : config_.decode_pages;
  for (RegionShape& region : out.layout.regions) {
    const std::uint32_t told = holds_pages(region.kind) ? pages : config_.decode_aux_slots;
    region.item_count = told == 0 ? region.item_count : told;
  }
  return out;
}

// An agent's name is drawn by its process, so that no other process comes by it; SGLang's prefill
// ignores it there, too. (Mooncake's names are addresses, which a process may get after another.)
bool PrefillTranslator::is_claimed_by_another(const DecodeRank& rank) {
  const auto found = sessions_.find(rank.name);
  if (rank.flavour() != Flavour::kNixl || found == sessions_.end() || found->second->over ||
      found->second->rank.endpoint == rank.endpoint) {
    return false;
  }
  not_done("sglang_sessions_refused",
           fmt::format("{} registers as agent {}, which is that of {}", to_text(rank.endpoint),
                       rank.name.second, to_text(found->second->rank.endpoint)));
  return true;
}

void PrefillTranslator::enrol(DecodeRank rank) {
  if (is_claimed_by_another(rank)) {
    return;
  }
  Result<LayoutShape> layout = layout_of(rank, config_.self.layout);
  std::optional<std::string> refused = layout ? std::nullopt : std::optional(layout.error().what);
  wire::TransportOffer offer;
  if (!refused) {
    Result<wire::TransportOffer> reached = config_.reach(rank);
    if (reached) {
      offer = std::move(*reached);
    } else {
      refused = reached.error().what;
    }
  }
  const auto found = sessions_.find(rank.name);
  if (found != sessions_.end() && found->second->rank == rank && found->second->offer == offer) {
    return;
  }
  // Its addresses are void, and so is every grant that names them. A port has one owner, so that
  // another session there has taken the place of the one before.
  if (found != sessions_.end()) {
    close(*found->second, "the decode rank registered other memory");
    sessions_.erase(found);
  }
  if (Session* former = find(rank.endpoint)) {
    close(*former, "another decode rank registered with this endpoint");
    sessions_.erase(SessionName(former->rank.name));
  }
  if (sessions_.size() >= config_.max_sessions && !make_place()) {
    not_done("sglang_sessions_refused", fmt::format("{} sessions are open, no place for {}",
                                                    sessions_.size(), rank.name.second));
    return;
  }
  auto session = std::make_unique<Session>();
  session->rank = std::move(rank);
  session->layout = layout.value_or(LayoutShape{});
  session->offer = std::move(offer);
  session->refused = std::move(refused);
  if (session->refused) {
    session->over = true;
    not_done("sglang_sessions_refused",
             fmt::format("session {}: {}", session->rank.name.second, *session->refused));
  } else {
    greet(*session);
  }
  const SessionName name = session->rank.name;
  sessions_.emplace(name, std::move(session));
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
  outputs_.emplace_back(LeaveEndpoint{idle->second->rank.endpoint});
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
  outputs_.emplace_back(HoldEndpoint{session.rank.endpoint});
  outputs_.emplace_back(VirtualFrame{session.key, std::move(frame)});
  greetings_.push_back({now_ + config_.greeting_timeout, session.rank.name, session.key});
  ++next_key_;
}

// Ends the peer for the core. What was granted may still be written to.
void PrefillTranslator::close(Session& session, const std::string& why) {
  for (auto& [room, attempt] : session.attempts) {
    if (!attempt.status_sent) {
      refuse(session.rank.flavour(), attempt.target, why);
    }
    if (attempt.is_granted) {
      remember_unproven(session.rank.endpoint, room);
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
