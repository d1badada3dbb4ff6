#include "dialect/sglang/route_registration.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread_roster.h"
#include "dialect/sglang/sglang_json.h"

namespace kvferry::sglang {
namespace {

constexpr int kOk = 200;
constexpr int kNotFound = 404;
constexpr int kNotComplete = 503;
constexpr std::size_t kMaxShownBytes = 200;

}  // namespace

RouteRegistration::RouteRegistration(RouteRegistrationConfig config)
    : config_(std::move(config)), client_(net::HttpClient::start()), thread_([this] {
        enrol(nullptr, "kvf-routes", "registers at SGLang's bootstrap routes")->run([this] {
          run();
        });
      }) {}

RouteRegistration::~RouteRegistration() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool RouteRegistration::wait_registered(Duration timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return is_registered(); });
}

void RouteRegistration::set_registered(bool registered) {
  {
    std::lock_guard lock(mutex_);
    registered_.store(registered, std::memory_order_release);
  }
  changed_.notify_all();
}

bool RouteRegistration::sleep(Duration duration) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, duration, [this] { return stopping_; });
}

void RouteRegistration::run() {
  Duration back_off = config_.retry_min;
  log::RateLimit limit(std::chrono::seconds(10));
  const auto failed = [&](const Failure& failure) {
    if (limit.allow(monotonic_now())) {
      log::warning("registering at {}: {} ({} further lines left out)", config_.registry,
                   failure.what, limit.suppressed());
    }
    const Duration now = std::exchange(back_off, std::min(back_off * 2, config_.retry_max));
    return sleep(now);
  };
  for (bool goes_on = true; goes_on;) {
    if (!is_registered()) {
      if (const Status said = say(); !said) {
        goes_on = failed(said.error());
        continue;
      }
      registrations_.fetch_add(1, std::memory_order_relaxed);
      was_complete_ = false;
      set_registered(true);
      log::info("registered at {} as tp {} pp {} dp {}", config_.registry, config_.row.tp.rank,
                config_.row.pp.rank, config_.row.dp.rank);
    }
    goes_on = sleep(config_.check_interval);
    const Result<Known> known = goes_on ? ask() : Known::kYes;
    if (!known) {
      goes_on = failed(known.error());
      continue;
    }
    back_off = config_.retry_min;
    const bool forgot = *known == Known::kNo || (*known == Known::kNotTold && was_complete_);
    was_complete_ = was_complete_ || *known == Known::kYes;
    if (forgot) {
      set_registered(false);
    }
  }
}

Result<net::HttpResponse> RouteRegistration::fetch(net::HttpRequest request) {
  net::HttpCallOptions options;
  options.address = config_.registry;
  options.connect_timeout_ms = config_.http_timeout_ms;
  options.total_timeout_ms = config_.http_timeout_ms;
  return client_->fetch(std::move(options), std::move(request));
}

Status RouteRegistration::say() {
  net::HttpRequest request;
  request.method = "PUT";
  request.target = "/route";
  request.headers.set("Content-Type", "application/json");
  request.body = rank_row_json(config_.row);
  const Result<net::HttpResponse> answer = fetch(std::move(request));
  if (!answer) {
    return tl::unexpected(answer.error());
  }
  if (answer->status != kOk) {
    return fail(
        FailureCode::kBootstrapFailed,
        fmt::format("it answers {}: {}", answer->status, answer->body.substr(0, kMaxShownBytes)),
        FailureWhere::kPeer, config_.registry);
  }
  return {};
}

Result<RouteRegistration::Known> RouteRegistration::ask() {
  net::HttpRequest request;
  request.target = fmt::format(
      "/route?prefill_dp_rank={}&prefill_cp_rank={}&target_tp_rank={}&target_pp_rank={}",
      config_.row.dp.rank, config_.row.cp.rank, config_.row.tp.rank, config_.row.pp.rank);
  const Result<net::HttpResponse> answer = fetch(std::move(request));
  if (!answer) {
    return tl::unexpected(answer.error());
  }
  if (answer->status == kNotFound) {
    return Known::kNo;
  }
  if (answer->status == kNotComplete) {
    return Known::kNotTold;
  }
  const Result<RankAddress> address = parse_address(answer->body);
  if (answer->status != kOk || !address) {
    return fail(
        FailureCode::kBootstrapFailed,
        fmt::format("it answers {}: {}", answer->status, answer->body.substr(0, kMaxShownBytes)),
        FailureWhere::kPeer, config_.registry);
  }
  if (*address != RankAddress{config_.row.ip, config_.row.port}) {
    return fail(FailureCode::kConflict,
                fmt::format("this rank stands there at {}:{}, not at {}:{}: another process has "
                            "registered as it",
                            address->ip, address->port, config_.row.ip, config_.row.port),
                FailureWhere::kPeer, config_.registry);
  }
  return Known::kYes;
}

}  // namespace kvferry::sglang
