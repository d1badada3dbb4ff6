#include "net/http_client.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/log.h"
#include "net/endpoint.h"
#include "net/http_text.h"
#include "net/name_lookup.h"

namespace kvferry::net {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kMaxHeaderBytes = 64U << 10;
constexpr std::size_t kPieceBytes = 16U << 10;
// Shorter than what servers usually keep an idle connection for.
constexpr auto kIdleLifetime = std::chrono::seconds(30);
constexpr auto kSweepInterval = std::chrono::seconds(5);
constexpr std::size_t kMaxIdlePerAddress = 256;
// A reused connection that ends so soon after the request was closed before that one arrived.
constexpr auto kStaleWindow = std::chrono::milliseconds(100);

class Worker;

// One connection with what was read from it beyond the last answer (nothing, once it is idle).
struct Wire {
  explicit Wire(asio::io_context& io) : socket(io) {}
  tcp::socket socket;
  boost::beast::flat_buffer input;
  bool reused = false;
  Clock::time_point idle_since;
};

// How calls, which may outlive the client, reach their worker from other threads.
struct WorkerHandle {
  std::mutex mutex;
  Worker* worker = nullptr;  // null once the worker is gone
};

// Lives on its worker's thread; only cancel() comes from elsewhere.
class Call final : public HttpCall, public std::enable_shared_from_this<Call> {
 public:
  Call(std::shared_ptr<WorkerHandle> handle, HttpCallOptions options, HttpRequest request,
       HttpCallbacks callbacks)
      : handle_(std::move(handle)),
        options_(std::move(options)),
        request_(std::move(request)),
        callbacks_(std::move(callbacks)) {}

  void cancel() override;

  // On the worker's thread.
  asio::awaitable<void> run(Worker& worker);
  // The last callback, after run(); then all that belongs to the worker or the caller is released.
  void finish(std::exception_ptr thrown);
  void mark_cancelled();
  void shut();

 private:
  // What the deadline that is running stands for.
  enum class Phase : std::uint8_t { kConnect, kFirstByte, kIdle };
  enum class Attempt : std::uint8_t { kEnded, kStale };
  using Parser = http::response_parser<http::buffer_body>;

  asio::awaitable<Attempt> attempt(Worker& worker, bool may_reuse);
  asio::awaitable<bool> connect(asio::io_context& io);
  asio::awaitable<std::vector<tcp::endpoint>> resolve(asio::io_context& io, Endpoint target);
  asio::awaitable<bool> read_answer(Worker& worker, bool& stale);
  asio::awaitable<bool> read_body(Parser& parser);

  void arm(Phase phase, std::uint32_t timeout_ms);
  void watch_deadline();
  void on_deadline();
  void set_failure(FailureCode code, FailureWhere where, std::string what);
  void fail_by(std::string_view doing, error_code error);
  template <typename Function, typename... Arguments>
  bool invoke(const Function& function, Arguments&&... arguments);

  const std::shared_ptr<WorkerHandle> handle_;
  const HttpCallOptions options_;
  HttpRequest request_;
  std::unique_ptr<Wire> wire_;
  std::optional<asio::steady_timer> deadline_;
  std::optional<asio::steady_timer> resolved_;  // cancelled when names are resolved
  Phase phase_ = Phase::kConnect;
  std::uint32_t phase_timeout_ms_ = 0;
  Clock::time_point phase_until_ = Clock::time_point::max();
  Clock::time_point total_until_ = Clock::time_point::max();
  Clock::time_point watched_until_ = Clock::time_point::max();
  Clock::time_point stale_until_ = Clock::time_point::min();
  bool closed_ = false;
  std::uint64_t body_bytes_ = 0;
  std::optional<Failure> failure_;

  // Held while a callback runs, so that cancel() can wait for its end; recursive, because a
  // callback may cancel its own call.
  std::recursive_mutex callback_mutex_;
  bool cancelled_ = false;
  HttpCallbacks callbacks_;
};

// One thread with its connections.
class Worker {
 public:
  Worker();
  ~Worker();

  std::shared_ptr<HttpCall> start(HttpCallOptions options, HttpRequest request,
                                  HttpCallbacks callbacks);
  asio::io_context& io() { return io_; }

  // On the worker's thread.
  std::unique_ptr<Wire> take_idle(const std::string& address);
  void put_idle(const std::string& address, std::unique_ptr<Wire> wire);

 private:
  void run_call(std::shared_ptr<Call> call);
  void sweep_later();

  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::map<std::string, std::vector<std::unique_ptr<Wire>>> idle_;
  asio::steady_timer sweep_timer_;
  bool sweeping_ = false;
  bool stopping_ = false;
  std::unordered_set<std::shared_ptr<Call>> calls_;
  std::shared_ptr<WorkerHandle> handle_ = std::make_shared<WorkerHandle>();
  std::thread thread_;
};

// --- call: cancelling, callbacks, deadlines ---

void Call::mark_cancelled() {
  std::lock_guard lock(callback_mutex_);
  cancelled_ = true;
}

void Call::cancel() {
  mark_cancelled();
  std::lock_guard lock(handle_->mutex);
  if (handle_->worker != nullptr) {
    asio::post(handle_->worker->io(), [self = shared_from_this()] { self->shut(); });
  }
}

void Call::shut() {
  closed_ = true;
  if (wire_) {
    error_code ignored;
    wire_->socket.close(ignored);
  }
  if (resolved_) {
    resolved_->cancel();
  }
}

// False when the call is to end.
template <typename Function, typename... Arguments>
bool Call::invoke(const Function& function, Arguments&&... arguments) {
  std::lock_guard lock(callback_mutex_);
  if (cancelled_) {
    return false;
  }
  try {
    if (function) {
      function(std::forward<Arguments>(arguments)...);
    }
  } catch (const std::exception& error) {
    log::error("http client: a callback threw: {}", error.what());
    set_failure(FailureCode::kInvalidArgument, FailureWhere::kLocal, "a callback threw");
    return false;
  }
  return !cancelled_;
}

void Call::finish(std::exception_ptr thrown) {
  if (thrown) {
    set_failure(FailureCode::kOperatingSystem, FailureWhere::kLocal,
                "the call ended by an exception");
  }
  wire_.reset();
  deadline_.reset();
  resolved_.reset();
  invoke(callbacks_.on_end, failure_ ? Status(tl::unexpected(*failure_)) : Status());
  HttpCallbacks released;
  {
    std::lock_guard lock(callback_mutex_);
    cancelled_ = true;
    std::swap(released, callbacks_);
  }
}

void Call::arm(Phase phase, std::uint32_t timeout_ms) {
  phase_ = phase;
  phase_timeout_ms_ = timeout_ms;
  phase_until_ =
      timeout_ms == 0 ? Clock::time_point::max() : Clock::now() + milliseconds(timeout_ms);
  // A timer that is set too early looks again when it fires: cheaper than setting it for each
  // piece.
  if (std::min(phase_until_, total_until_) < watched_until_) {
    watch_deadline();
  }
}

void Call::watch_deadline() {
  watched_until_ = std::min(phase_until_, total_until_);
  if (watched_until_ == Clock::time_point::max()) {
    return;
  }
  deadline_->expires_at(watched_until_);
  deadline_->async_wait([self = shared_from_this()](error_code error) {
    if (!error && self->deadline_) {
      self->on_deadline();
    }
  });
}

void Call::on_deadline() {
  const auto now = Clock::now();
  if (now < std::min(phase_until_, total_until_)) {
    watch_deadline();
    return;
  }
  if (now >= total_until_) {
    set_failure(FailureCode::kPeerUnreachable, FailureWhere::kPath,
                fmt::format("not answered in full within {} ms (total_timeout_ms)",
                            options_.total_timeout_ms));
  } else if (phase_ == Phase::kConnect) {
    set_failure(FailureCode::kPeerUnreachable, FailureWhere::kPath,
                fmt::format("no connection within {} ms (connect_timeout_ms)", phase_timeout_ms_));
  } else if (phase_ == Phase::kFirstByte) {
    set_failure(FailureCode::kPeerUnreachable, FailureWhere::kPeer,
                fmt::format("no answer within {} ms (first_byte_timeout_ms)", phase_timeout_ms_));
  } else {
    set_failure(FailureCode::kPeerLost, FailureWhere::kPeer,
                fmt::format("the answer paused for {} ms (idle_timeout_ms)", phase_timeout_ms_));
  }
  shut();
}

// The first cause stays.
void Call::set_failure(FailureCode code, FailureWhere where, std::string what) {
  if (!failure_) {
    failure_ = Failure{code, where, std::move(what), options_.address, -1};
  }
}

void Call::fail_by(std::string_view doing, error_code error) {
  const std::string what = fmt::format("{}: {}", doing, error.message());
  if (error == asio::error::no_descriptors || error == asio::error::no_memory ||
      error == asio::error::no_buffer_space) {
    set_failure(FailureCode::kOperatingSystem, FailureWhere::kLocal, what);
  } else if (phase_ == Phase::kConnect) {
    set_failure(
        FailureCode::kPeerUnreachable,
        error == asio::error::connection_refused ? FailureWhere::kPeer : FailureWhere::kPath, what);
  } else if (error == http::error::end_of_stream || error == http::error::partial_message ||
             error == asio::error::eof || error == asio::error::connection_reset) {
    set_failure(FailureCode::kPeerLost, FailureWhere::kPeer, what);
  } else if (error.category() == http::make_error_code(http::error::bad_version).category()) {
    set_failure(FailureCode::kMalformed, FailureWhere::kPeer, what);
  } else {
    set_failure(FailureCode::kPeerLost, FailureWhere::kPath, what);
  }
}

// --- call: the conversation ---

asio::awaitable<void> Call::run(Worker& worker) {
  deadline_.emplace(worker.io());
  if (options_.total_timeout_ms != 0) {
    total_until_ = Clock::now() + milliseconds(options_.total_timeout_ms);
  }
  // A server may close an idle connection just when a request is on its way to it.
  const Attempt first = co_await attempt(worker, true);
  if (first == Attempt::kStale && !closed_) {
    co_await attempt(worker, false);
  }
}

asio::awaitable<Call::Attempt> Call::attempt(Worker& worker, bool may_reuse) {
  wire_ = may_reuse ? worker.take_idle(options_.address) : nullptr;
  if (!wire_) {
    const bool connected = co_await connect(worker.io());
    if (!connected) {
      co_return Attempt::kEnded;
    }
  }
  arm(Phase::kFirstByte, options_.first_byte_timeout_ms);
  const std::string head = request_head(request_, options_.address);
  const std::array<asio::const_buffer, 2> buffers = {asio::buffer(head),
                                                     asio::buffer(request_.body)};
  // A server that refuses a long body answers and closes before it is written, so that the answer
  // is looked for in any case; a dead connection shows there too.
  error_code unwritten;
  co_await asio::async_write(wire_->socket, buffers,
                             asio::redirect_error(asio::use_awaitable, unwritten));
  stale_until_ = unwritten ? Clock::time_point::max() : Clock::now() + kStaleWindow;
  bool stale = false;
  co_await read_answer(worker, stale);
  co_return stale ? Attempt::kStale : Attempt::kEnded;
}

asio::awaitable<bool> Call::connect(asio::io_context& io) {
  auto target = parse_endpoint(options_.address);
  if (!target || target->port == 0) {
    set_failure(FailureCode::kInvalidArgument, FailureWhere::kLocal,
                "the address is not host:port");
    co_return false;
  }
  arm(Phase::kConnect, options_.connect_timeout_ms);
  const auto endpoints = co_await resolve(io, std::move(*target));
  if (endpoints.empty() || closed_) {
    co_return false;
  }
  wire_ = std::make_unique<Wire>(io);
  error_code error;
  co_await asio::async_connect(wire_->socket, endpoints,
                               asio::redirect_error(asio::use_awaitable, error));
  if (error) {
    fail_by("connecting", error);
    co_return false;
  }
  wire_->socket.set_option(tcp::no_delay(true), error);
  co_return !closed_;
}

// Literals at once. Names on a thread of the lookups, for which nobody waits: neither this call
// beyond its deadline nor the client's end, as Asio's own resolver would have it.
asio::awaitable<std::vector<tcp::endpoint>> Call::resolve(asio::io_context& io, Endpoint target) {
  std::vector<tcp::endpoint> endpoints;
  error_code error;
  if (target.host == "localhost") {
    endpoints.emplace_back(asio::ip::address_v4::loopback(), target.port);
    endpoints.emplace_back(asio::ip::address_v6::loopback(), target.port);
    co_return endpoints;
  }
  const auto literal = asio::ip::make_address(target.host, error);
  if (!error) {
    endpoints.emplace_back(literal, target.port);
    co_return endpoints;
  }
  const auto answer = std::make_shared<std::optional<NameAnswer>>();
  resolved_.emplace(io, Clock::time_point::max());
  const auto lookup = look_up_name(
      target.host, [handle = handle_, weak = weak_from_this(), answer](NameAnswer found) {
        std::lock_guard lock(handle->mutex);
        if (handle->worker == nullptr) {
          return;
        }
        asio::post(handle->worker->io(), [weak, answer, found = std::move(found)]() mutable {
          *answer = std::move(found);
          if (const auto self = weak.lock(); self && self->resolved_) {
            self->resolved_->cancel();
          }
        });
      });
  if (!lookup) {
    set_failure(FailureCode::kOperatingSystem, FailureWhere::kLocal,
                "resolving the name: the system refuses a thread");
    resolved_.reset();
    co_return endpoints;
  }
  error_code ignored;
  co_await resolved_->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  resolved_.reset();
  if (!answer->has_value()) {
    co_return endpoints;  // shut, by whom is noted there
  }
  const NameAnswer& found = **answer;
  if (found.error != 0) {
    set_failure(found.is_local() ? FailureCode::kOperatingSystem : FailureCode::kPeerUnreachable,
                found.is_local() ? FailureWhere::kLocal : FailureWhere::kPath,
                fmt::format("resolving the name: {}", found.message()));
  }
  for (const std::string& literal_address : found.addresses) {
    const auto address = asio::ip::make_address(literal_address, error);
    if (!error) {
      endpoints.emplace_back(address, target.port);
    }
  }
  if (endpoints.empty()) {
    set_failure(FailureCode::kPeerUnreachable, FailureWhere::kPath,
                "resolving the name: no usable address");
  }
  co_return endpoints;
}

// True when the answer came in full. stale: the server had closed the idle connection before.
asio::awaitable<bool> Call::read_answer(Worker& worker, bool& stale) {
  for (;;) {
    Parser parser;
    parser.header_limit(kMaxHeaderBytes);
    parser.body_limit(boost::none);  // counted by read_body, whose limit is the caller's
    parser.skip(request_.method == "HEAD");
    error_code error;
    co_await http::async_read_header(wire_->socket, wire_->input, parser,
                                     asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      stale = wire_->reused && !closed_ && !parser.got_some() && wire_->input.size() == 0 &&
              Clock::now() < stale_until_;
      if (!stale) {
        fail_by("waiting for the answer", error);
      }
      co_return false;
    }
    const auto& message = parser.get();
    HttpResponse head;
    head.status = static_cast<int>(message.result_int());
    if (head.status < 200) {
      continue;  // 100 and 103 announce the answer
    }
    for (const auto& field : message) {
      head.headers.fields.emplace_back(field.name_string(), field.value());
    }
    if (!invoke(callbacks_.on_head, head)) {
      co_return false;
    }
    const bool whole = co_await read_body(parser);
    if (whole && parser.keep_alive() && wire_->input.size() == 0 && !closed_) {
      worker.put_idle(options_.address, std::move(wire_));
    }
    co_return whole;
  }
}

asio::awaitable<bool> Call::read_body(Parser& parser) {
  std::array<char, kPieceBytes> piece;
  arm(Phase::kIdle, options_.idle_timeout_ms);
  while (!parser.is_done()) {
    auto& body = parser.get().body();
    body.data = piece.data();
    body.size = piece.size();
    error_code error;
    co_await http::async_read_some(wire_->socket, wire_->input, parser,
                                   asio::redirect_error(asio::use_awaitable, error));
    const std::size_t bytes = piece.size() - body.size;
    if (bytes > 0) {
      body_bytes_ += bytes;
      if (options_.max_body_bytes != 0 && body_bytes_ > options_.max_body_bytes) {
        set_failure(FailureCode::kMalformed, FailureWhere::kPeer,
                    fmt::format("the answer is longer than {} bytes (max_body_bytes)",
                                options_.max_body_bytes));
        co_return false;
      }
      if (!invoke(callbacks_.on_data, std::string_view(piece.data(), bytes))) {
        co_return false;
      }
      arm(Phase::kIdle, options_.idle_timeout_ms);
    }
    if (error && error != http::error::need_buffer) {
      fail_by("reading the answer", error);
      co_return false;
    }
  }
  co_return true;
}

// --- worker ---

Worker::Worker() : work_(asio::make_work_guard(io_)), sweep_timer_(io_) {
  handle_->worker = this;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "kvf-http-cli");
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::exception& error) {
        log::error("http client: {}", error.what());
      }
    }
  });
}

Worker::~Worker() {
  asio::post(io_, [this] {
    stopping_ = true;
    idle_.clear();
    sweep_timer_.cancel();
    for (const auto& call : calls_) {
      call->mark_cancelled();
      call->shut();
    }
  });
  work_.reset();
  thread_.join();
  std::lock_guard lock(handle_->mutex);
  handle_->worker = nullptr;
}

std::shared_ptr<HttpCall> Worker::start(HttpCallOptions options, HttpRequest request,
                                        HttpCallbacks callbacks) {
  auto call =
      std::make_shared<Call>(handle_, std::move(options), std::move(request), std::move(callbacks));
  asio::post(io_, [this, call] { run_call(call); });
  return call;
}

void Worker::run_call(std::shared_ptr<Call> call) {
  if (stopping_) {
    call->mark_cancelled();
    call->finish(nullptr);
    return;
  }
  calls_.insert(call);
  asio::co_spawn(io_, call->run(*this), [this, call](std::exception_ptr thrown) {
    call->finish(thrown);
    calls_.erase(call);
  });
}

std::unique_ptr<Wire> Worker::take_idle(const std::string& address) {
  const auto found = idle_.find(address);
  if (found == idle_.end()) {
    return nullptr;
  }
  auto& wires = found->second;
  while (!wires.empty()) {
    auto wire = std::move(wires.back());
    wires.pop_back();
    // Anything but silence on an idle connection, its end above all, makes it useless.
    char byte = 0;
    const auto peeked = ::recv(wire->socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (peeked < 0 && errno == EAGAIN && Clock::now() - wire->idle_since < kIdleLifetime) {
      wire->reused = true;
      return wire;
    }
  }
  return nullptr;
}

void Worker::put_idle(const std::string& address, std::unique_ptr<Wire> wire) {
  auto& wires = idle_[address];
  if (stopping_ || wires.size() >= kMaxIdlePerAddress) {
    return;
  }
  wire->idle_since = Clock::now();
  wires.push_back(std::move(wire));
  if (!sweeping_) {
    sweep_later();
  }
}

void Worker::sweep_later() {
  sweeping_ = true;
  sweep_timer_.expires_after(kSweepInterval);
  sweep_timer_.async_wait([this](error_code error) {
    sweeping_ = false;
    if (error || stopping_) {
      return;
    }
    const auto oldest = Clock::now() - kIdleLifetime;
    for (auto& [address, wires] : idle_) {
      std::erase_if(wires, [oldest](const auto& wire) { return wire->idle_since < oldest; });
    }
    std::erase_if(idle_, [](const auto& entry) { return entry.second.empty(); });
    if (!idle_.empty()) {
      sweep_later();
    }
  });
}

class AsioHttpClient final : public HttpClient {
 public:
  explicit AsioHttpClient(unsigned threads) {
    for (unsigned i = 0; i < std::max(threads, 1U); ++i) {
      workers_.push_back(std::make_unique<Worker>());
    }
  }

  std::shared_ptr<HttpCall> call(HttpCallOptions options, HttpRequest request,
                                 HttpCallbacks callbacks) override {
    Worker& worker = *workers_[next_.fetch_add(1, std::memory_order_relaxed) % workers_.size()];
    return worker.start(std::move(options), std::move(request), std::move(callbacks));
  }

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<std::size_t> next_{0};
};

}  // namespace

std::unique_ptr<HttpClient> HttpClient::start(unsigned threads) {
  return std::make_unique<AsioHttpClient>(threads);
}

}  // namespace kvferry::net
