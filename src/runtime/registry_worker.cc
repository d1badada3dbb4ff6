#include "runtime/registry_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/runtime_guards.h"
#include "runtime/json.h"
#include "runtime/prefill_choice.h"

namespace kvferry::runtime {
namespace {

// Rows answer queries for so long: thousands of rooms that open together cost one look-up.
constexpr Duration kRowsFresh = milliseconds(250);
constexpr Duration kRefreshInterval = milliseconds(200);
constexpr Duration kMinPause = milliseconds(50);
constexpr Duration kMaxLookupPause = milliseconds(500);
constexpr Duration kMaxPairsInterval = milliseconds(1'000);
constexpr const char* kTarget = "/v1/ranks";
// What is asked for by whoever will never register again; the registry grants no more.
constexpr std::uint32_t kForEverMs = 3'600'000;

// A refusal of this kind stays until somebody changes something.
bool is_final(int http_status) { return http_status == 401 || http_status == 409; }

Failure failure_of(const std::string& address, const net::HttpResponse& response) {
  const FailureCode code = response.status == 401   ? FailureCode::kUnauthorized
                           : response.status == 409 ? FailureCode::kConflict
                                                    : FailureCode::kBootstrapFailed;
  const std::string message = decode_error(response.body);
  return Failure{code, FailureWhere::kPeer,
                 fmt::format("registry {} answered {}{}{}", address, response.status,
                             message.empty() ? "" : ": ", message),
                 address, -1};
}

}  // namespace

RegistryWorker::RegistryWorker(RegistryWorkerConfig config, net::HttpClient& client,
                               ClusterTokens& tokens, KeyDirectory& keys,
                               RegistryCounters& counters, PairsChanged pairs_changed)
    : config_(std::move(config)),
      tokens_(tokens),
      keys_(keys),
      counters_(counters),
      pairs_changed_(std::move(pairs_changed)),
      channel_(config_.address, client, tokens),
      prng_(random_u64()),
      place_(enrol(config_.threads, "kvf-bootstrap",
                   fmt::format("asks registry {}", config_.address),
                   ThreadPlace::Need::kReplaceable)) {
  registration_.cause = "not registered yet";
}

RegistryWorker::~RegistryWorker() {
  begin_stop();
  join();
}

Status RegistryWorker::start() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("thread for registry {}: {}", config_.address, error.what()));
  }
  return {};
}

bool RegistryWorker::add_query(core::ResolvePrefill query, Answer answer) {
  if (auto rows = find_fresh(query)) {
    answer(std::move(*rows));
    return true;
  }
  const Instant deadline = monotonic_now() + milliseconds(config_.total_timeout_ms);
  std::unique_lock lock(mutex_);
  if (ended_) {
    lock.unlock();
    answer(tl::unexpected(*ended_));  // it does not change any more
    return true;
  }
  if (waiting_ + incoming_.size() >= config_.max_queries) {
    return false;
  }
  if (silent_) {
    if (auto rows = recall(query)) {
      refresh_requested_ = true;
      changed_.notify_one();
      lock.unlock();
      answer(std::move(rows));
      return true;
    }
  }
  incoming_.push_back(Query{std::move(query), std::move(answer), deadline,
                            Failure{FailureCode::kBootstrapFailed, FailureWhere::kPath,
                                    fmt::format("registry {} was not reached in {} ms",
                                                config_.address, config_.total_timeout_ms),
                                    config_.address, -1},
                            false});
  changed_.notify_one();
  return true;
}

void RegistryWorker::want_pairs() {
  std::lock_guard lock(mutex_);
  pairs_wanted_ = true;
  refresh_requested_ = true;
  changed_.notify_one();
}

void RegistryWorker::request_refresh() {
  std::lock_guard lock(mutex_);
  refresh_requested_ = true;
  changed_.notify_one();
}

void RegistryWorker::invalidate(const std::string& endpoint) {
  std::lock_guard lock(mutex_);
  invalidated_ = true;
  fresh_until_ = {};
  if (endpoint.empty()) {
    last_rows_.reset();
  } else if (last_rows_ != nullptr) {
    doubted_.insert(endpoint);
  }
}

RegistryWorker::Registration RegistryWorker::registration() const {
  std::lock_guard lock(mutex_);
  return registration_;
}

void RegistryWorker::begin_stop() {
  std::lock_guard lock(mutex_);
  if (stopping_) {
    return;
  }
  stopping_ = true;
  // Under the lock, so that it can't come later and cut the farewell short.
  channel_.interrupt();
  changed_.notify_one();
}

void RegistryWorker::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void RegistryWorker::run() {
  place_->begin();
  try {
    while (wait_for_work()) {
      if (monotonic_now() >= register_at_) {
        register_self();
      }
      answer_queries();
      if (const Instant now = monotonic_now(); next_lookup(now) <= now) {
        look_up();
      }
      expire_queries(monotonic_now());
    }
    leave();
    place_->ends({});
  } catch (const std::exception& error) {
    thread_failed(error.what());
    place_->ends(error.what());
  }
}

// On the thread, as its last act. Whatever throws here ends the process, as elsewhere where an
// answer that is owed can't be given.
void RegistryWorker::thread_failed(const char* why) {
  log::error("registry {}: thread ended: {}", config_.address, why);
  const Failure failure{FailureCode::kBootstrapFailed, FailureWhere::kLocal,
                        fmt::format("the thread for registry {} ended: {}", config_.address, why),
                        config_.address, -1};
  {
    std::lock_guard lock(mutex_);
    registration_.refused = true;
    registration_.cause = fmt::format("its thread ended: {}", why);
    ended_ = failure;
    for (Query& query : incoming_) {
      answer(query, tl::unexpected(failure));
    }
    incoming_.clear();
    waiting_ = 0;
  }
  for (Query& query : queries_) {
    if (!query.answered) {
      answer(query, tl::unexpected(failure));
    }
  }
  queries_.clear();
}

// False once the worker shall leave.
// The registry may take its time, within timeout_ms: that is no stall of this thread.
Result<net::HttpResponse> RegistryWorker::ask(std::string method, std::string target,
                                              std::string body, std::uint32_t timeout_ms) {
  place_->waits();
  auto response =
      channel_.exchange(std::move(method), std::move(target), std::move(body), timeout_ms);
  place_->works();
  return response;
}

bool RegistryWorker::wait_for_work() {
  std::unique_lock lock(mutex_);
  const Instant now = monotonic_now();
  Instant wake = std::min(register_at_, next_lookup(now));
  for (const Query& query : queries_) {
    wake = std::min(wake, query.deadline);
  }
  if (wake > now) {
    const Duration pause = std::min<Duration>(wake - now, std::chrono::hours(1));
    place_->waits();
    changed_.wait_for(lock, pause,
                      [this] { return stopping_ || refresh_requested_ || !incoming_.empty(); });
    place_->works();
  }
  queries_.reserve(queries_.size() + incoming_.size());  // all of them move or none
  std::move(incoming_.begin(), incoming_.end(), std::back_inserter(queries_));
  incoming_.clear();
  waiting_ = queries_.size();
  refresh_wanted_ = std::exchange(refresh_requested_, false) || refresh_wanted_;
  if (std::exchange(invalidated_, false)) {
    rows_usable_ = false;
  }
  watches_pairs_ = pairs_wanted_;
  return !stopping_;
}

// When rows are wanted next; Instant::max() when nobody asks.
Instant RegistryWorker::next_lookup(Instant now) const {
  Instant next = Instant::max();
  if (!queries_.empty()) {
    next = now;
  }
  if (refresh_wanted_) {
    next = std::min(next, rows_at_ + kRefreshInterval);
  }
  if (watches_pairs_) {
    const Duration interval =
        std::min<Duration>(milliseconds(std::max(config_.lease_ms / 5, 1U)), kMaxPairsInterval);
    next = std::min(next, rows_at_ + interval);
  }
  return next == Instant::max() ? next : std::max(next, lookup_not_before_);
}

Duration RegistryWorker::jittered(Duration duration) {
  // Nine to eleven tenths, so that ranks that started together do not stay in step.
  return duration * static_cast<std::int64_t>(900 + prng_.below(201)) / 1'000;
}

core::RegistryRow RegistryWorker::signed_row() {
  core::RegistryRow row = config_.self;
  row.signature = tokens_.sign(row_text(row));
  return row;
}

void RegistryWorker::register_self() {
  const std::uint32_t lease_ms =
      has_guard(RuntimeGuard::kRegistersAgain) ? config_.lease_ms : kForEverMs;
  const Result<net::HttpResponse> response =
      ask("PUT", kTarget, encode_registration({signed_row(), lease_ms}), config_.try_timeout_ms);
  if (!response) {
    registration_failed(response.error(), false);
    return;
  }
  if (response->status != 200) {
    registration_failed(failure_of(config_.address, *response), is_final(response->status));
    return;
  }
  counters_.registrations.fetch_add(1, std::memory_order_relaxed);
  const Instant now = monotonic_now();
  register_pause_ = {};
  registered_ = true;
  registered_at_ = now;
  register_at_ = has_guard(RuntimeGuard::kRegistersAgain)
                     ? now + jittered(milliseconds(config_.lease_ms) / 3)
                     : Instant::max();
  // A renewal is the occasion to learn of keys that came and went.
  refresh_wanted_ = true;
  std::lock_guard lock(mutex_);
  if (!registration_.cause.empty()) {
    log::info("registered at registry {}", config_.address);
  }
  registration_ = Registration{true, false, {}};
}

void RegistryWorker::registration_failed(Failure cause, bool refused) {
  counters_.registration_failures.fetch_add(1, std::memory_order_relaxed);
  const Duration longest = milliseconds(std::max(config_.lease_ms / 3, 1U));
  // A conflict is usually the former life of this rank, whose lease is about to run out.
  register_pause_ = cause.code == FailureCode::kConflict ? std::min(longest, kMaxLookupPause)
                    : refused                            ? longest
                              : std::min(longest, std::max(register_pause_ * 2, kMinPause));
  const Instant now = monotonic_now();
  register_at_ = now + jittered(register_pause_);
  std::lock_guard lock(mutex_);
  if (stopping_) {
    return;  // the exchange was cut short, which is no failure of the registry
  }
  registered_ = false;
  if (warning_limit_.allow(now)) {
    log::warning("registration failed, tried again in {} ms: {}", register_pause_ / milliseconds(1),
                 cause.what);
  }
  registration_.refused = refused;
  registration_.cause = std::move(cause.what);
}

Result<std::vector<core::RegistryRow>> RegistryWorker::fetch_rows(bool& final) {
  counters_.lookups.fetch_add(1, std::memory_order_relaxed);
  Result<net::HttpResponse> response = ask("GET", kTarget, {}, config_.try_timeout_ms);
  if (!response) {
    return tl::unexpected(response.error());
  }
  if (response->status != 200) {
    final = is_final(response->status);
    return tl::unexpected(failure_of(config_.address, *response));
  }
  std::size_t skipped = 0;
  Result<std::vector<core::RegistryRow>> rows = decode_rows(response->body, skipped);
  if (!rows) {
    return fail(FailureCode::kBootstrapFailed,
                fmt::format("registry {}: {}", config_.address, rows.error().what),
                FailureWhere::kPeer, config_.address);
  }
  counters_.malformed_rows.fetch_add(skipped, std::memory_order_relaxed);
  // The registry only carries rows; what makes one true is its owner's signature.
  const std::size_t forged = std::erase_if(*rows, [this](const core::RegistryRow& row) {
    return !tokens_.verify(row_text(row), row.signature);
  });
  counters_.forged_rows.fetch_add(forged, std::memory_order_relaxed);
  if (forged + skipped > 0 && warning_limit_.allow(monotonic_now())) {
    log::warning("registry {}: ignored {} rows with a wrong signature and {} that do not parse",
                 config_.address, forged, skipped);
  }
  return rows;
}

void RegistryWorker::look_up() {
  bool final = false;
  Result<std::vector<core::RegistryRow>> rows = fetch_rows(final);
  const Instant now = monotonic_now();
  if (!rows) {
    lookup_failed(rows.error(), final);
    return;
  }
  use_rows(std::move(*rows), now);
  answer_queries();
  // Whoever is still waiting waits for ranks that are not registered yet: look again, but not at
  // once.
  lookup_pause_ =
      queries_.empty() ? Duration{} : std::clamp(lookup_pause_ * 2, kMinPause, kMaxLookupPause);
  lookup_not_before_ = now + jittered(lookup_pause_);
}

// Rows in use are looked up again before they are too old, so that no room waits for it.
std::optional<std::vector<core::PeerRow>> RegistryWorker::find_fresh(
    const core::ResolvePrefill& question) {
  std::shared_ptr<const std::vector<core::RegistryRow>> rows;
  {
    std::lock_guard lock(mutex_);
    const Instant now = monotonic_now();
    if (now >= fresh_until_) {
      return std::nullopt;
    }
    if (now + (kRowsFresh - kRefreshInterval) >= fresh_until_ &&
        !std::exchange(refresh_requested_, true)) {
      changed_.notify_one();
    }
    rows = last_rows_;
  }
  auto chosen = choose_prefill(*rows, question);
  return chosen ? std::optional(std::move(*chosen)) : std::nullopt;
}

// Out of what the registry said last; under the mutex. A row that is out of date does no harm: a
// peer proves its key and its incarnation.
Result<std::vector<core::PeerRow>> RegistryWorker::recall(
    const core::ResolvePrefill& question) const {
  const auto unknown =
      fail(FailureCode::kBootstrapFailed, "", FailureWhere::kPath, config_.address);
  if (last_rows_ == nullptr) {
    return unknown;
  }
  auto rows = choose_prefill(*last_rows_, question);
  if (!rows || std::any_of(rows->begin(), rows->end(), [this](const core::PeerRow& row) {
        return doubted_.contains(row.address.endpoint);
      })) {
    return unknown;
  }
  counters_.recalled.fetch_add(1, std::memory_order_relaxed);
  return rows;
}

void RegistryWorker::lookup_failed(const Failure& cause, bool final) {
  counters_.lookup_failures.fetch_add(1, std::memory_order_relaxed);
  const Instant now = monotonic_now();
  lookup_pause_ = std::clamp(lookup_pause_ * 2, kMinPause, kMaxLookupPause);
  lookup_not_before_ = now + jittered(lookup_pause_);
  for (Query& query : queries_) {
    query.last = cause;
    if (final) {
      query.deadline = now;
    }
  }
  if (final) {
    return;
  }
  std::vector<Result<std::vector<core::PeerRow>>> recalled;
  recalled.reserve(queries_.size());
  {
    std::lock_guard lock(mutex_);
    silent_ = true;
    for (const Query& query : queries_) {
      recalled.push_back(recall(query.question));
    }
  }
  for (std::size_t i = 0; i < queries_.size(); ++i) {
    if (recalled[i]) {
      answer(queries_[i], std::move(recalled[i]));
    }
  }
  drop_answered();
}

void RegistryWorker::use_rows(std::vector<core::RegistryRow> rows, Instant now) {
  std::vector<std::string> keys;
  bool own_row = false;
  std::vector<core::PeerRow> prefills;
  for (const core::RegistryRow& row : rows) {
    if (!row.public_key.empty()) {
      keys.push_back(row.public_key);
    }
    own_row = own_row || row.incarnation == config_.self.incarnation;
    if (watches_pairs_ && row.role == Role::kPrefill) {
      prefills.push_back(to_peer_row(row));
    }
  }
  // Before any answer goes out: the peers that a room learns of dial back with these keys.
  keys_.update(config_.address, keys, now);
  {
    std::lock_guard lock(mutex_);
    last_rows_ = std::make_shared<const std::vector<core::RegistryRow>>(rows);
    fresh_until_ = invalidated_ ? Instant{} : now + kRowsFresh;
    doubted_.clear();
    silent_ = false;
  }
  rows_ = std::move(rows);
  rows_at_ = now;
  rows_usable_ = true;
  refresh_wanted_ = false;
  if (registered_ && !own_row && has_guard(RuntimeGuard::kRegistersAgain)) {
    // The registry restarted empty: do not wait for the next renewal.
    register_at_ = std::min(register_at_, std::max(now, registered_at_ + kRefreshInterval));
  }
  if (watches_pairs_) {
    pairs_changed_(config_.address, std::move(prefills));
  }
}

void RegistryWorker::answer_queries() {
  if (queries_.empty() || !rows_usable_ || monotonic_now() >= rows_at_ + kRowsFresh) {
    return;
  }
  for (Query& query : queries_) {
    Result<std::vector<core::PeerRow>> rows = choose_prefill(rows_, query.question);
    if (rows) {
      answer(query, std::move(rows));
    } else {
      query.last = std::move(rows.error());
    }
  }
  drop_answered();
}

// Noted at once, so that an exception on the way does not lead to a second answer.
void RegistryWorker::answer(Query& query, Result<std::vector<core::PeerRow>> rows) {
  query.tell(std::move(rows));
  query.answered = true;
}

void RegistryWorker::drop_answered() {
  std::erase_if(queries_, [](const Query& query) { return query.answered; });
}

void RegistryWorker::expire_queries(Instant now) {
  for (Query& query : queries_) {
    if (query.deadline <= now) {
      answer(query, tl::unexpected(std::move(query.last)));
    }
  }
  drop_answered();
}

void RegistryWorker::leave() {
  if (!registered_) {
    return;
  }
  channel_.resume();
  // Best effort: a lease that nobody renews runs out.
  static_cast<void>(ask("DELETE", kTarget, encode_registration({signed_row(), config_.lease_ms}),
                        config_.leave_timeout_ms));
}

}  // namespace kvferry::runtime
