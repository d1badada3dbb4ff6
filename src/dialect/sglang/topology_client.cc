#include "dialect/sglang/topology_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "dialect/sglang/sglang_json.h"
#include "dialect/sglang/stock_prefill.h"

namespace kvferry::sglang {
namespace {

constexpr int kOk = 200;
constexpr Duration kPause = milliseconds(100);  // before a registry is asked again
constexpr std::size_t kMaxShownBytes = 200;
constexpr std::size_t kMaxAnswerBytes = 16U << 20;
constexpr std::size_t kMaxRoomsAsked = 1'024;  // in one request
constexpr std::uint32_t kMaxDpSize = 65'536;

using Rows = std::vector<core::PeerRow>;

bool is_numeric(const std::string& ip) {
  std::array<std::uint8_t, 16> bytes{};
  const int family = ip.find(':') == std::string::npos ? AF_INET : AF_INET6;
  return ::inet_pton(family, ip.c_str(), bytes.data()) == 1;
}

// What time does not mend.
bool is_final(const Failure& failure) { return failure.code == FailureCode::kLayoutMismatch; }

}  // namespace

// One registry and its thread.
class TopologyClient::Registry {
 public:
  Registry(std::string address, const TopologyClientConfig& config, net::HttpClient& client,
           const Answer& answer)
      : address_(std::move(address)),
        config_(config),
        client_(client),
        answer_(answer),
        place_(enrol(config.threads, "kvf-topology",
                     fmt::format("asks SGLang's registry at {} for prefill ranks", address_))),
        thread_([this] { place_->run([this] { run(); }); }) {}
  ~Registry() { stop(); }

  // False: max_rooms questions wait.
  bool ask(const core::ResolvePrefill& query) {
    const Instant give_up_at =
        monotonic_now() + milliseconds(config_.options.http_total_timeout_ms);
    {
      std::lock_guard lock(mutex_);
      if (questions_.size() >= config_.options.max_rooms) {
        return false;
      }
      questions_.push_back({query.receiver, query.room, query.dp_rank, give_up_at});
    }
    changed_.notify_all();
    return true;
  }

  void invalidate(const std::string& endpoint) {
    std::lock_guard lock(mutex_);
    const bool concerned =
        endpoint.empty() || endpoint == address_ ||
        std::ranges::any_of(rows_, [&](const auto& entry) {
          return std::ranges::any_of(entry.second, [&](const core::PeerRow& row) {
            return row.address.endpoint == endpoint;
          });
        });
    ++version_;  // what is on its way may name the lost one, so it is used once and not kept
    if (concerned) {
      topology_.reset();
      rows_.clear();
    }
  }

  void begin_stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
  }
  void stop() {
    begin_stop();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  struct Question {
    core::ReceiverId receiver;
    RoomId room;
    std::uint32_t dp_rank = 0;
    Instant give_up_at;
  };

  void run();
  void work(std::deque<Question>& questions);
  Result<Topology> topology();
  Result<Rows> rows_of(const Topology& topology, std::uint32_t dp_rank);
  Result<PrefillRank> rank_at(const Topology& topology, std::uint32_t dp_rank,
                              const PrefillCoordinates& place);
  Result<std::map<std::int64_t, std::int64_t>> dp_ranks_of(const std::deque<Question>& questions);
  Result<std::uint32_t> dp_rank_of(const Question& question, const Topology& topology,
                                   const std::map<std::int64_t, std::int64_t>& named) const;
  Status check(const Topology& topology) const;
  Result<std::string> fetch(net::HttpRequest request);
  tl::unexpected<Failure> refuse(FailureCode code, std::string what) const {
    return fail(code, fmt::format("registry {}: {}", address_, what), FailureWhere::kPeer,
                address_);
  }

  const std::string address_;
  const TopologyClientConfig& config_;
  net::HttpClient& client_;
  const Answer& answer_;
  const ThreadPlacePtr place_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<Question> questions_;
  // What it has said. The version rises with each loss of a peer.
  std::uint64_t version_ = 0;
  std::optional<Topology> topology_;
  std::map<std::uint32_t, Rows> rows_;  // by dp rank
  std::thread thread_;
};

void TopologyClient::Registry::run() {
  std::deque<Question> waiting;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const auto has_news = [this] { return stopping_ || !questions_.empty(); };
      place_->waits();
      if (waiting.empty()) {
        changed_.wait(lock, has_news);
      } else {
        changed_.wait_for(lock, kPause, [this] { return stopping_; });
      }
      place_->works();
      std::ranges::move(questions_, std::back_inserter(waiting));
      questions_.clear();
      if (stopping_) {
        break;
      }
    }
    work(waiting);
  }
  for (const Question& question : waiting) {
    answer_({question.receiver, refuse(FailureCode::kShuttingDown, "the manager was stopped")});
  }
}

// Answers what can be answered; the rest stays.
void TopologyClient::Registry::work(std::deque<Question>& questions) {
  const Result<Topology> known = topology();
  Result<std::map<std::int64_t, std::int64_t>> named = std::map<std::int64_t, std::int64_t>{};
  if (known && known->dp_size > 1 && !known->follows_room) {
    named = dp_ranks_of(questions);
  }
  std::deque<Question> left;
  for (const Question& question : questions) {
    Result<Rows> rows = tl::unexpected(Failure{});
    if (!known) {
      rows = tl::unexpected(known.error());
    } else if (!named) {
      rows = tl::unexpected(named.error());
    } else if (const auto dp_rank = dp_rank_of(question, *known, *named); !dp_rank) {
      rows = tl::unexpected(dp_rank.error());
    } else {
      rows = rows_of(*known, *dp_rank);
    }
    if (!rows && !is_final(rows.error()) && monotonic_now() < question.give_up_at) {
      left.push_back(question);
    } else {
      answer_({question.receiver, std::move(rows)});
    }
  }
  questions = std::move(left);
}

Result<std::string> TopologyClient::Registry::fetch(net::HttpRequest request) {
  net::HttpCallOptions call;
  call.address = address_;
  call.connect_timeout_ms = config_.options.http_try_timeout_ms;
  call.total_timeout_ms = config_.options.http_try_timeout_ms;
  call.max_body_bytes = kMaxAnswerBytes;
  place_->waits();
  const Result<net::HttpResponse> answer = client_.fetch(std::move(call), std::move(request));
  place_->works();
  if (!answer) {
    return refuse(FailureCode::kBootstrapFailed, answer.error().what);
  }
  if (answer->status != kOk) {
    return refuse(
        FailureCode::kPrefillUnknown,
        fmt::format("it answers {}: {}", answer->status, answer->body.substr(0, kMaxShownBytes)));
  }
  return answer->body;
}

Status TopologyClient::Registry::check(const Topology& topology) const {
  if (topology.dp_size == 0 || topology.dp_size > kMaxDpSize) {
    return refuse(FailureCode::kBootstrapFailed,
                  fmt::format("dp_size is {}, expected 1 to {}", topology.dp_size, kMaxDpSize));
  }
  if (config_.kv_cache_dtype && topology.kv_cache_dtype != config_.kv_cache_dtype) {
    return refuse(FailureCode::kLayoutMismatch,
                  fmt::format("kv_cache_dtype: {} here, {} at the peer", *config_.kv_cache_dtype,
                              topology.kv_cache_dtype.value_or("none")));
  }
  if (topology.allocation_policy != "early") {
    return refuse(FailureCode::kLayoutMismatch,
                  fmt::format("prefill's allocation policy is {}, served is early",
                              topology.allocation_policy));
  }
  return {};
}

Result<Topology> TopologyClient::Registry::topology() {
  std::uint64_t version = 0;
  {
    std::lock_guard lock(mutex_);
    if (topology_) {
      return *topology_;
    }
    version = version_;
  }
  net::HttpRequest request;
  request.target =
      "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1";
  const Result<std::string> body = fetch(std::move(request));
  if (!body) {
    return tl::unexpected(body.error());
  }
  Result<Topology> parsed = parse_topology(*body);
  if (!parsed) {
    return refuse(FailureCode::kBootstrapFailed, parsed.error().what);
  }
  if (const Status sound = check(*parsed); !sound) {
    return tl::unexpected(sound.error());
  }
  std::lock_guard lock(mutex_);
  if (version == version_) {
    topology_ = *parsed;
  }
  return parsed;
}

Result<std::map<std::int64_t, std::int64_t>> TopologyClient::Registry::dp_ranks_of(
    const std::deque<Question>& questions) {
  std::vector<std::int64_t> rooms;
  for (const Question& question : questions) {
    if (question.dp_rank == 0 && rooms.size() < kMaxRoomsAsked) {
      rooms.push_back(static_cast<std::int64_t>(question.room.value()));
    }
  }
  std::map<std::int64_t, std::int64_t> named;
  if (rooms.empty()) {
    return named;
  }
  net::HttpRequest request;
  request.method = "POST";
  request.target = "/query_dp_ranks";
  request.headers.set("Content-Type", "application/json");
  request.body = rooms_json(rooms);
  const Result<std::string> body = fetch(std::move(request));
  if (!body) {
    return tl::unexpected(body.error());
  }
  const auto parsed = parse_room_ranks(*body);
  if (!parsed) {
    return refuse(FailureCode::kBootstrapFailed, parsed.error().what);
  }
  for (const RoomRank& room : *parsed) {
    named[room.room] = room.dp_rank;
  }
  return named;
}

Result<std::uint32_t> TopologyClient::Registry::dp_rank_of(
    const Question& question, const Topology& topology,
    const std::map<std::int64_t, std::int64_t>& named) const {
  if (question.dp_rank >= topology.dp_size) {
    return refuse(FailureCode::kLayoutMismatch, fmt::format("dp rank {} is named, prefill has {}",
                                                            question.dp_rank, topology.dp_size));
  }
  if (question.dp_rank > 0 || topology.dp_size == 1) {
    return question.dp_rank;
  }
  if (topology.follows_room) {
    return static_cast<std::uint32_t>(question.room.value() % topology.dp_size);
  }
  const auto found = named.find(static_cast<std::int64_t>(question.room.value()));
  if (found == named.end()) {
    return refuse(FailureCode::kPrefillUnknown,
                  fmt::format("no dp rank has said that it has room {}", question.room.value()));
  }
  if (found->second < 0 || found->second >= topology.dp_size) {
    return refuse(FailureCode::kBootstrapFailed,
                  fmt::format("room {} has dp rank {} of {}", question.room.value(), found->second,
                              topology.dp_size));
  }
  return static_cast<std::uint32_t>(found->second);
}

Result<PrefillRank> TopologyClient::Registry::rank_at(const Topology& topology,
                                                      std::uint32_t dp_rank,
                                                      const PrefillCoordinates& place) {
  net::HttpRequest request;
  request.target = fmt::format(
      "/route?prefill_dp_rank={}&prefill_cp_rank={}&target_tp_rank={}&target_pp_rank={}", dp_rank,
      place.cp_rank, place.tp_rank, place.pp_rank);
  const Result<std::string> body = fetch(std::move(request));
  if (!body) {
    return tl::unexpected(body.error());
  }
  const Result<RankAddress> address = parse_address(*body);
  if (!address) {
    return refuse(FailureCode::kBootstrapFailed, address.error().what);
  }
  if (address->port == 0 || !is_numeric(address->ip)) {
    return refuse(FailureCode::kBootstrapFailed,
                  fmt::format("tp rank {} is at '{}' port {}, expected a numeric address",
                              place.tp_rank, address->ip, address->port));
  }
  PrefillRank rank;
  rank.endpoint = {address->ip, address->port};
  rank.registry = address_;
  rank.dp_rank = dp_rank;
  rank.shape = {topology.tp_size, topology.cp_size, topology.pp_size,
                topology.dsa_cache_layer_split, topology.kv_cache_sharding};
  rank.place = place;
  rank.page_tokens = topology.page_tokens;
  return rank;
}

Result<Rows> TopologyClient::Registry::rows_of(const Topology& topology, std::uint32_t dp_rank) {
  std::uint64_t version = 0;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = rows_.find(dp_rank); found != rows_.end()) {
      return found->second;
    }
    version = version_;
  }
  const Result<RankMapping> mapping =
      map_stock({topology.tp_size, topology.cp_size, topology.pp_size,
                 topology.dsa_cache_layer_split, topology.kv_cache_sharding},
                config_.layout);
  if (!mapping) {
    // A size of 0 or the like is of the peer, too, and time does not mend it.
    return refuse(FailureCode::kLayoutMismatch, mapping.error().what);
  }
  Rows rows;
  for (const std::uint32_t tp_rank : mapping->tp_ranks) {
    for (const std::uint32_t pp_rank : mapping->pp_ranks) {
      for (const std::uint32_t cp_rank : mapping->cp_ranks) {
        const Result<PrefillRank> rank = rank_at(topology, dp_rank, {tp_rank, pp_rank, cp_rank});
        if (!rank) {
          return tl::unexpected(rank.error());
        }
        core::PeerRow row;
        row.address = to_address(*rank);
        row.instance = address_;
        row.rank = {tp_rank,          topology.tp_size, pp_rank,
                    topology.pp_size, dp_rank,          topology.dp_size};
        rows.push_back(std::move(row));
      }
    }
  }
  std::lock_guard lock(mutex_);
  if (version == version_) {
    rows_[dp_rank] = rows;
  }
  return rows;
}

TopologyClient::TopologyClient(TopologyClientConfig config,
                               std::unique_ptr<runtime::PrefillResolver> inner, Answer answer)
    : config_(std::move(config)),
      inner_(std::move(inner)),
      answer_(std::move(answer)),
      client_(net::HttpClient::start()) {}

TopologyClient::~TopologyClient() { stop(); }

Result<TopologyClient::Registry*> TopologyClient::registry_for(const std::string& address) {
  if (Status allowed = runtime::check_registry_allowed(config_.options, address); !allowed) {
    return tl::unexpected(allowed.error());
  }
  std::lock_guard lock(mutex_);
  if (stopping_) {
    return fail(FailureCode::kShuttingDown, "the manager was stopped");
  }
  // A thread each, and with "*:port" a request names them.
  if (!registries_.contains(address) && registries_.size() >= config_.options.max_peers) {
    return fail(FailureCode::kTableFull,
                fmt::format("registry '{}' would be one more than max_peers = {}", address,
                            config_.options.max_peers));
  }
  std::unique_ptr<Registry>& registry = registries_[address];
  if (registry == nullptr) {
    registry = std::make_unique<Registry>(address, config_, *client_, answer_);
  }
  return registry.get();
}

void TopologyClient::resolve(const core::ResolvePrefill& query) {
  const Result<Registry*> registry = registry_for(query.bootstrap_address);
  if (!registry) {
    answer_({query.receiver, tl::unexpected(registry.error())});
  } else if (!(*registry)->ask(query)) {
    answer_({query.receiver, fail(FailureCode::kQueueFull,
                                  fmt::format("max_rooms = {} rooms wait for an answer of their "
                                              "registry",
                                              config_.options.max_rooms))});
  }
}

Status TopologyClient::keep_paired(const std::string& address) {
  return fail(FailureCode::kInvalidArgument,
              fmt::format("keep_paired({}): SGLang's registries list no servers, a pair is made "
                          "with its first room",
                          address));
}

void TopologyClient::invalidate(const std::string& endpoint) {
  inner_->invalidate(endpoint);
  std::lock_guard lock(mutex_);
  for (const auto& [address, registry] : registries_) {
    registry->invalidate(endpoint);
  }
}

void TopologyClient::begin_stop() {
  inner_->begin_stop();
  std::lock_guard lock(mutex_);
  stopping_ = true;
  for (const auto& [address, registry] : registries_) {
    registry->begin_stop();
  }
}

void TopologyClient::stop() {
  begin_stop();
  // registries_ does not change any more; joined outside the mutex, which invalidate() takes.
  for (const auto& [address, registry] : registries_) {
    registry->stop();
  }
  inner_->stop();
}

}  // namespace kvferry::sglang
