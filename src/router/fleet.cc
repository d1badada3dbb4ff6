#include "router/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "router/json.h"
#include "router/metrics.h"

namespace kvferry::router {
namespace {

// An error text names this many servers or pairs; more would hide the message.
constexpr std::size_t kMaxReasons = 8;

std::string join_reasons(const std::vector<std::string>& reasons) {
  std::string out;
  for (std::size_t i = 0; i < std::min(reasons.size(), kMaxReasons); ++i) {
    out += (i == 0 ? "" : "; ") + reasons[i];
  }
  if (reasons.size() > kMaxReasons) {
    out += fmt::format("; and {} more", reasons.size() - kMaxReasons);
  }
  return out;
}

}  // namespace

Fleet::Fleet(std::vector<std::string> prefill, std::vector<std::string> decode) {
  for (std::string& address : prefill) prefill_.emplace_back().address = std::move(address);
  for (std::string& address : decode) decode_.emplace_back().address = std::move(address);
}

void Fleet::server_answered(Role role, std::size_t index, ServerReport report) {
  std::lock_guard lock(mutex_);
  Server& server = servers(role)[index];
  // A server that is away for a moment keeps its name, so that the table still says who it was.
  if (report.instance.empty()) report.instance = server.last.instance;
  server.last = std::move(report);
}

void Fleet::pairs_answered(std::size_t decode, Result<std::vector<PairReport>> pairs) {
  std::lock_guard lock(mutex_);
  Server& server = decode_[decode];
  if (pairs) {
    server.pairs = std::move(*pairs);
    server.pairs_problem.clear();
  } else {
    server.pairs.clear();
    server.pairs_problem = pairs.error().what;
  }
}

void Fleet::connection_failed(Role role, std::size_t index, std::string reason) {
  std::lock_guard lock(mutex_);
  Server& server = servers(role)[index];
  server.last.ready = false;
  server.last.reason = std::move(reason);
}

bool Fleet::instance_is_unique(const std::string& instance) const {
  return std::count_if(prefill_.begin(), prefill_.end(),
                       [&](const Server& server) { return server.last.instance == instance; }) == 1;
}

bool Fleet::can_prefill(const Server& prefill) const {
  return prefill.last.ready && !prefill.last.instance.empty() &&
         instance_is_unique(prefill.last.instance);
}

bool Fleet::is_paired(const Server& prefill, const Server& decode) {
  // A restarted prefill may leave a second row of its former life behind; one that is ready counts.
  return decode.last.ready &&
         std::any_of(decode.pairs.begin(), decode.pairs.end(), [&](const PairReport& pair) {
           return pair.ready && pair.instance == prefill.last.instance;
         });
}

Fleet::Verdict Fleet::verdict(const Server& prefill, const Server& decode) const {
  if (!prefill.last.ready) return {false, "prefill is not ready: " + prefill.last.reason};
  if (!decode.last.ready) return {false, "decode is not ready: " + decode.last.reason};
  const std::string& instance = prefill.last.instance;
  if (instance.empty()) return {false, "prefill does not name its instance in /readyz"};
  if (!instance_is_unique(instance)) {
    return {false, fmt::format("instance name '{}' is used by two prefill servers", instance)};
  }
  if (!decode.pairs_problem.empty()) return {false, decode.pairs_problem};
  if (is_paired(prefill, decode)) return {true, ""};
  std::string reason;
  std::vector<std::string> nameless;
  for (const PairReport& pair : decode.pairs) {
    if (pair.instance == instance) {
      reason = pair.reason.empty() ? "the pair has no session yet" : pair.reason;
    } else if (pair.instance.empty() && !pair.reason.empty()) {
      nameless.push_back(pair.reason);
    }
  }
  if (!reason.empty()) return {false, reason};
  // A refused peer never told its name, so its reason may be this pair's.
  reason = fmt::format("decode has no session with instance '{}' yet", instance);
  if (!nameless.empty()) reason += "; refused: " + join_reasons(nameless);
  return {false, reason};
}

std::string Fleet::why_none(Role role) const {
  const std::vector<Server>& list = role == Role::kPrefill ? prefill_ : decode_;
  std::vector<std::string> reasons;
  for (const Server& server : list) {
    if (server.last.ready) return "";
    reasons.push_back(fmt::format("{}: {}", server.address, server.last.reason));
  }
  return fmt::format("no {} server is ready: {}", to_string(role), join_reasons(reasons));
}

Failure Fleet::why_no_pair() const {
  Failure failure{FailureCode::kPeerUnreachable, FailureWhere::kPeer, "", "", -1};
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    failure.what = why_none(role);
    if (!failure.what.empty()) return failure;
  }
  std::vector<std::string> reasons;
  for (const Server& prefill : prefill_) {
    for (const Server& decode : decode_) {
      const Verdict pair = verdict(prefill, decode);
      if (!pair.ready) {
        reasons.push_back(
            fmt::format("{} with {}: {}", prefill.address, decode.address, pair.reason));
      }
    }
  }
  failure.what = "no pair is ready: " + join_reasons(reasons);
  return failure;
}

Result<Choice> Fleet::choose(const Avoid& avoid) {
  std::lock_guard lock(mutex_);
  Server* best_prefill = nullptr;
  Server* best_decode = nullptr;
  const auto load = [](const Server& prefill, const Server& decode) {
    return std::tuple(prefill.in_flight + decode.in_flight,
                      std::max(prefill.last_chosen, decode.last_chosen),
                      std::min(prefill.last_chosen, decode.last_chosen));
  };
  bool avoided = false;
  for (std::size_t p = 0; p < prefill_.size(); ++p) {
    if (!can_prefill(prefill_[p])) continue;
    for (std::size_t d = 0; d < decode_.size(); ++d) {
      if (!is_paired(prefill_[p], decode_[d])) continue;
      if (avoid.prefill == p || avoid.decode == d) {
        avoided = true;
        continue;
      }
      if (best_prefill == nullptr ||
          load(prefill_[p], decode_[d]) < load(*best_prefill, *best_decode)) {
        best_prefill = &prefill_[p];
        best_decode = &decode_[d];
      }
    }
  }
  if (best_prefill == nullptr) {
    Failure failure = why_no_pair();
    if (avoided) failure.what = "no other pair is ready";
    return tl::unexpected<Failure>(std::move(failure));
  }
  ++choices_;
  for (Server* server : {best_prefill, best_decode}) {
    ++server->in_flight;
    server->last_chosen = choices_;
  }
  return Choice{static_cast<std::size_t>(best_prefill - prefill_.data()),
                static_cast<std::size_t>(best_decode - decode_.data()), best_prefill->address,
                best_decode->address, best_prefill->last.instance};
}

void Fleet::release(const Choice& choice) {
  std::lock_guard lock(mutex_);
  --prefill_[choice.prefill].in_flight;
  --decode_[choice.decode].in_flight;
}

std::optional<std::string> Fleet::any_ready_server() const {
  std::lock_guard lock(mutex_);
  for (const std::vector<Server>* list : {&decode_, &prefill_}) {
    for (const Server& server : *list) {
      if (server.last.ready) return server.address;
    }
  }
  return std::nullopt;
}

std::size_t Fleet::ready_pairs() const {
  std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const Server& prefill : prefill_) {
    if (!can_prefill(prefill)) continue;
    for (const Server& decode : decode_) count += is_paired(prefill, decode) ? 1U : 0U;
  }
  return count;
}

std::string Fleet::to_json() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> servers;
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    for (const Server& server : role == Role::kPrefill ? prefill_ : decode_) {
      servers.push_back(JsonObject()
                            .text("role", to_string(role))
                            .text("address", server.address)
                            .text("instance", server.last.instance)
                            .boolean("ready", server.last.ready)
                            .text("reason", server.last.ready ? "" : server.last.reason)
                            .integer("in_flight", static_cast<std::int64_t>(server.in_flight))
                            .str());
    }
  }
  std::vector<std::string> pairs;
  std::int64_t ready = 0;
  for (const Server& prefill : prefill_) {
    for (const Server& decode : decode_) {
      const Verdict pair = verdict(prefill, decode);
      ready += pair.ready ? 1 : 0;
      pairs.push_back(JsonObject()
                          .text("prefill", prefill.address)
                          .text("instance", prefill.last.instance)
                          .text("decode", decode.address)
                          .boolean("ready", pair.ready)
                          .text("reason", pair.reason)
                          .str());
    }
  }
  return JsonObject()
      .integer("ready_pairs", ready)
      .raw("servers", json_array(servers))
      .raw("pairs", json_array(pairs))
      .str();
}

std::string Fleet::metrics() const {
  const std::size_t pairs = ready_pairs();
  std::vector<ServerSample> samples;
  {
    std::lock_guard lock(mutex_);
    for (const Role role : {Role::kPrefill, Role::kDecode}) {
      for (const Server& server : role == Role::kPrefill ? prefill_ : decode_) {
        samples.push_back({role, server.address, server.last.ready, server.in_flight});
      }
    }
  }
  return fleet_metrics_text(pairs, samples);
}

}  // namespace kvferry::router
