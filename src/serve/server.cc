#include "serve/server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>

#include "base/clock.h"
#include "base/log.h"
#include "serve/decode_scheduler.h"
#include "serve/elapsed.h"
#include "serve/local_scheduler.h"
#include "serve/prefill_scheduler.h"

namespace kvferry::serve {
namespace {

// Time for the last bytes of finished answers to reach their clients.
constexpr std::uint32_t kFlushMs = 2'000;

Status check_options(const ServeOptions& options) {
  auto refuse = [](std::string what) {
    return fail(FailureCode::kInvalidArgument, std::move(what));
  };
  if (options.role != ServeRole::kBoth &&
      (options.pool_pages == 0 || options.pool_pages > 1U << 24)) {
    return refuse(
        fmt::format("pool of {} pages; 1 to {} are possible", options.pool_pages, 1U << 24));
  }
  if (options.limits.max_requests == 0 || options.limits.max_requests > 65'536) {
    return refuse(
        fmt::format("max requests is {}; 1 to 65536 are possible", options.limits.max_requests));
  }
  if (options.limits.import_pages_per_turn == 0) {
    return refuse("import pages per turn is 0; at least 1 is needed");
  }
  if (options.http_threads == 0 || options.http_threads > 64) {
    return refuse(fmt::format("{} HTTP threads; 1 to 64 are possible", options.http_threads));
  }
  if (options.default_chat_tokens == 0) {
    return refuse("default chat tokens is 0; at least 1 is needed");
  }
  return {};
}

Result<std::unique_ptr<Engine>> make_engine(const ServeOptions& options) {
  return options.engine == EngineKind::kLlama ? load_llama_engine(options.llama)
                                              : make_synthetic_engine(options.synthetic);
}

KvArgs make_args(const ServeOptions& options, const EngineInfo& engine, const PagePool& pool) {
  KvArgs args;
  args.role = options.role == ServeRole::kPrefill ? Role::kPrefill : Role::kDecode;
  args.instance = options.instance.empty() ? fmt::format("{}-{}", to_string(options.role), getpid())
                                           : options.instance;
  args.model_fingerprint = engine.model_fingerprint;
  args.page_size_tokens = engine.page_size_tokens;
  args.total_layers = engine.layers;
  args.total_kv_heads = engine.kv_heads;
  args.head_dim = engine.head_dim;
  args.dtype = engine.dtype;
  args.layers = {0, engine.layers};
  args.heads = {0, engine.kv_heads};
  args.vocab_size = engine.vocab_size;
  args.regions = pool.regions();
  args.numerics = engine.numerics;
  return args;
}

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(ServeOptions options) : options_(std::move(options)) {}
  ~ServerImpl() override { stop(); }

  Status start();

  std::string address() const override { return http_->address(); }
  std::string control_endpoint() const override {
    return manager_ ? manager_->control_endpoint() : std::string();
  }
  const EngineInfo& engine() const override { return engine_->info(); }
  void request_drain() override;
  bool wait() override;
  void stop() override;

 private:
  Status start_transfer();
  Status start_http();

  const ServeOptions options_;
  // In order of dependence: what is below uses what is above.
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<KvManager> manager_;
  std::unique_ptr<Transfer> transfer_;
  RoomLog rooms_;
  ServeMetrics metrics_;
  std::unique_ptr<Scheduler> scheduler_;
  std::atomic<bool> draining_{false};
  std::unique_ptr<HttpApi> api_;
  std::unique_ptr<net::HttpServer> http_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  Instant drain_since_;
  std::mutex stop_mutex_;
  bool stop_done_ = false;
};

Status ServerImpl::start() {
  if (auto status = check_options(options_); !status) {
    return status;
  }
  auto engine = make_engine(options_);
  if (!engine) {
    return tl::unexpected(engine.error());
  }
  engine_ = std::move(*engine);
  if (options_.role == ServeRole::kBoth) {
    scheduler_ = std::make_unique<LocalScheduler>(*engine_, rooms_, metrics_, options_.limits);
  } else if (auto status = start_transfer(); !status) {
    return status;
  }
  scheduler_->start();
  if (auto status = start_http(); !status) {
    return status;
  }
  log::info("{} server of {} on http://{}", to_string(options_.role), engine_->info().model_name,
            http_->address());
  return {};
}

Status ServerImpl::start_transfer() {
  // Each accepted request may need an aux slot, while that of a failed one may still be held.
  auto pool =
      PagePool::create(engine_->info(), options_.pool_pages, 2 * options_.limits.max_requests,
                       options_.role == ServeRole::kPrefill ? PagePool::Memory::kShared
                                                            : PagePool::Memory::kPrivate);
  if (!pool) {
    return tl::unexpected(pool.error());
  }
  pool_ = std::move(*pool);
  Options library = options_.library;
  if (options_.role == ServeRole::kPrefill) {
    // A sender waits for its grants as long as decode may queue the request for want of pages.
    constexpr std::uint32_t kMarginMs = 10'000;
    library.bootstrap_timeout_ms =
        std::max(library.bootstrap_timeout_ms, options_.limits.queue_timeout_ms + kMarginMs);
  }
  auto& registries = library.bootstrap_addresses;
  if (!options_.bootstrap_address.empty() &&
      std::find(registries.begin(), registries.end(), options_.bootstrap_address) ==
          registries.end()) {
    registries.push_back(options_.bootstrap_address);
  }
  auto manager =
      KvManager::create(make_args(options_, engine_->info(), *pool_), std::move(library));
  if (!manager) {
    return tl::unexpected(manager.error());
  }
  manager_ = std::move(*manager);
  transfer_ = make_kv_transfer(*manager_);
  if (options_.role == ServeRole::kPrefill) {
    scheduler_ = std::make_unique<PrefillScheduler>(*engine_, *pool_, *transfer_, rooms_, metrics_,
                                                    options_.limits);
    return {};
  }
  scheduler_ = std::make_unique<DecodeScheduler>(*engine_, *pool_, *transfer_, rooms_, metrics_,
                                                 options_.limits);
  if (options_.keep_paired) {
    for (const auto& address : manager_->options().bootstrap_addresses) {
      if (auto status = manager_->keep_paired(address); !status) {
        return status;
      }
    }
  }
  return {};
}

Status ServerImpl::start_http() {
  ApiContext context;
  context.instance = manager_ ? manager_->args().instance : std::string();
  context.role = options_.role;
  context.engine = engine_.get();
  context.scheduler = scheduler_.get();
  context.pool = pool_.get();
  context.transfer = transfer_.get();
  context.rooms = &rooms_;
  context.metrics = &metrics_;
  context.draining = &draining_;
  context.default_chat_tokens = options_.default_chat_tokens;
  if (manager_) {
    context.library = &manager_->options();
  }
  api_ = std::make_unique<HttpApi>(context);
  net::HttpServerConfig config;
  config.host = options_.http_host;
  config.port = options_.http_port;
  config.threads = options_.http_threads;
  config.max_body_bytes = options_.max_body_bytes;
  auto http = net::HttpServer::start(
      config,
      [api = api_.get()](net::HttpRequest request, std::shared_ptr<net::Responder> responder) {
        try {
          api->handle(std::move(request), std::move(responder));
        } catch (const std::exception& error) {
          // The responder that was dropped on the way answers 500.
          log::error("a request failed: {}", error.what());
        }
      });
  if (!http) {
    return tl::unexpected(http.error());
  }
  http_ = std::move(*http);
  return {};
}

void ServerImpl::request_drain() {
  std::lock_guard lock(mutex_);
  if (!draining_.exchange(true)) {
    drain_since_ = monotonic_now();
    log::info("draining: {} requests are running", scheduler_->requests());
  }
  changed_.notify_all();
}

bool ServerImpl::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return draining_ || stopped_; });
  while (!stopped_ && scheduler_->requests() > 0 &&
         elapsed_ms(drain_since_, monotonic_now()) < options_.drain_timeout_ms) {
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
  const std::uint32_t left = scheduler_->requests();
  if (left > 0) {
    log::warning("{} requests did not finish within the drain timeout of {} ms", left,
                 options_.drain_timeout_ms);
  }
  return left == 0;
}

void ServerImpl::stop() {
  draining_ = true;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  std::lock_guard lock(stop_mutex_);
  if (std::exchange(stop_done_, true)) {
    return;
  }
  // First the scheduler, so that every request has an answer; then the connections, so that the
  // answers leave; then the manager, whose peers are told.
  if (scheduler_) {
    scheduler_->stop();
  }
  if (http_) {
    http_->stop(kFlushMs);
  }
  if (manager_) {
    manager_->stop();
  }
}

}  // namespace

Result<std::unique_ptr<Server>> start_server(ServeOptions options) {
  auto server = std::make_unique<ServerImpl>(std::move(options));
  if (auto status = server->start(); !status) {
    return tl::unexpected(status.error());
  }
  return server;
}

}  // namespace kvferry::serve
