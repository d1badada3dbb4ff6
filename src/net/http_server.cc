#include "net/http_server.h"

#include <fmt/format.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "net/endpoint.h"
#include "net/http_exchange.h"
#include "net/http_text.h"

namespace kvferry::net {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

// Bytes of later requests that are taken in while one is answered; beyond, a broken connection is
// noticed only at the next write.
constexpr std::size_t kMaxReadAhead = 64U << 10;
constexpr std::size_t kReadBytes = 8U << 10;
// After an error answer the client's bytes are thrown away for this long: closing at once would
// reset the connection and take the answer with it.
constexpr auto kLinger = std::chrono::seconds(1);
// Clients over max_connections that are told so at the same time; further ones are just closed.
constexpr std::size_t kMaxRejects = 256;
constexpr auto kAcceptBackOff = std::chrono::milliseconds(50);

class Connection;

// What connections need of the server.
struct ServerContext {
  HttpServerConfig config;
  HttpHandler handler;
  std::atomic<bool> draining{false};
};

// One client. Everything runs on the strand of its socket. All reading goes through one pending
// read into chunk_, which is never cancelled: while a request is answered it is what notices that
// the client is gone, and what it brings stays for the next request.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ServerContext& server, tcp::socket socket)
      : server_(server),
        socket_(std::move(socket)),
        wake_(socket_.get_executor()),
        deadline_(socket_.get_executor()) {}

  auto executor() { return socket_.get_executor(); }
  asio::awaitable<void> run();
  asio::awaitable<void> reject();  // 503 and close
  void drop_exchange();
  void shut();
  void drain();  // any thread
  void kill();   // any thread

 private:
  struct RequestTraits {
    bool head_only = false;
    bool chunks_understood = true;
    bool keep_alive = true;
  };

  template <typename Ready>
  asio::awaitable<bool> wait_until(Ready ready, Clock::time_point until);
  asio::awaitable<bool> read_more(Clock::time_point until);
  void start_reading();
  void on_read(error_code error, std::size_t bytes);

  using Parser = http::request_parser<http::string_body>;
  asio::awaitable<bool> read_request(HttpRequest& request, RequestTraits& traits);
  asio::awaitable<bool> parse(Parser& parser, bool header_only, Clock::time_point until);
  asio::awaitable<void> refuse(error_code error);

  asio::awaitable<bool> answer(HttpRequest request, RequestTraits traits);
  HttpExchange::Hooks make_hooks();
  asio::awaitable<bool> write_output(HttpExchange::Output output, RequestTraits& traits,
                                     BodyFraming& framing);
  template <typename Buffers>
  asio::awaitable<bool> write(Buffers buffers);
  asio::awaitable<void> linger();
  std::string remote_name() const;

  ServerContext& server_;
  tcp::socket socket_;
  asio::steady_timer wake_;      // cancelled whenever something that run() may wait for has changed
  asio::steady_timer deadline_;  // of the write under way
  std::array<char, kReadBytes> chunk_;
  boost::beast::flat_buffer input_;
  bool reading_ = false;
  bool read_failed_ = false;  // end of file, error, or shut by us
  bool draining_ = false;
  std::shared_ptr<HttpExchange> exchange_;
};

Clock::time_point after_ms(std::uint32_t ms) { return Clock::now() + milliseconds(ms); }

// --- reading ---

template <typename Ready>
asio::awaitable<bool> Connection::wait_until(Ready ready, Clock::time_point until) {
  while (!ready()) {
    if (Clock::now() >= until) {
      co_return false;
    }
    error_code ignored;
    wake_.expires_at(until);
    co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  co_return true;
}

void Connection::start_reading() {
  if (reading_ || read_failed_ ||
      input_.size() >= kMaxReadAhead + server_.config.max_header_bytes) {
    return;
  }
  reading_ = true;
  socket_.async_read_some(asio::buffer(chunk_),
                          [self = shared_from_this()](error_code error, std::size_t bytes) {
                            self->on_read(error, bytes);
                          });
}

void Connection::on_read(error_code error, std::size_t bytes) {
  reading_ = false;
  if (error) {
    read_failed_ = true;
  } else {
    asio::buffer_copy(input_.prepare(bytes), asio::buffer(chunk_.data(), bytes));
    input_.commit(bytes);
    if (exchange_) {
      start_reading();
    }
  }
  wake_.cancel();
}

// True when input_ has grown; false when the time is over or nothing comes any more.
asio::awaitable<bool> Connection::read_more(Clock::time_point until) {
  const std::size_t before = input_.size();
  start_reading();
  const bool ready =
      co_await wait_until([&] { return input_.size() > before || read_failed_; }, until);
  co_return ready&& input_.size() > before;
}

asio::awaitable<bool> Connection::parse(Parser& parser, bool header_only, Clock::time_point until) {
  const auto finished = [&] { return header_only ? parser.is_header_done() : parser.is_done(); };
  while (!finished()) {
    error_code error;
    std::size_t used = 0;
    if (input_.size() > 0) {
      used = parser.put(input_.data(), error);
      input_.consume(used);
      if (error && error != http::error::need_more) {
        co_await refuse(error);
        co_return false;
      }
    }
    // What is left, if anything, is too little for the parser.
    const bool stuck = error || used == 0;
    if (stuck && !finished() && !co_await read_more(until)) {
      co_return false;
    }
  }
  co_return true;
}

asio::awaitable<bool> Connection::read_request(HttpRequest& request, RequestTraits& traits) {
  Parser parser;
  parser.header_limit(server_.config.max_header_bytes);
  parser.body_limit(server_.config.max_body_bytes);
  if (!co_await parse(parser, true, after_ms(server_.config.header_timeout_ms))) {
    co_return false;
  }
  const auto& message = parser.get();
  if (!parser.is_done() && equal_ignoring_case(message[http::field::expect], "100-continue")) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    if (!co_await write(asio::buffer(kContinue))) {
      co_return false;
    }
  }
  parser.eager(true);
  if (!co_await parse(parser, false, after_ms(server_.config.body_timeout_ms))) {
    co_return false;
  }
  request.method = message.method_string();
  request.target = message.target();
  for (const auto& field : message) {
    request.headers.fields.emplace_back(field.name_string(), field.value());
  }
  request.remote = remote_name();
  traits.head_only = message.method() == http::verb::head;
  traits.chunks_understood = message.version() >= 11;
  traits.keep_alive = parser.keep_alive();
  request.body = std::move(parser.get().body());
  co_return true;
}

// A request that is not answered by the handler: says why and closes.
asio::awaitable<void> Connection::refuse(error_code error) {
  HttpResponse response;
  if (error == http::error::body_limit) {
    response = error_response(
        413, fmt::format("the body is longer than {} bytes", server_.config.max_body_bytes),
        "body_too_large");
  } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    response = error_response(
        431, fmt::format("the header is longer than {} bytes", server_.config.max_header_bytes),
        "header_too_large");
  } else {
    response = error_response(400, "not a valid HTTP request: " + error.message(), "bad_request");
  }
  const std::string text =
      response_head(response, BodyFraming::kLength, response.body.size(), false) + response.body;
  if (co_await write(asio::buffer(text))) {
    co_await linger();
  }
}

asio::awaitable<void> Connection::linger() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  const auto until = Clock::now() + kLinger;
  do {
    input_.clear();
  } while (co_await read_more(until));
}

// --- answering ---

template <typename Buffers>
asio::awaitable<bool> Connection::write(Buffers buffers) {
  deadline_.expires_after(milliseconds(server_.config.write_timeout_ms));
  deadline_.async_wait([self = shared_from_this()](error_code error) {
    // An expiry that was queued just before the write ended has been overtaken by its cancellation.
    if (!error && self->deadline_.expiry() <= Clock::now()) {
      self->shut();
    }
  });
  error_code error;
  co_await asio::async_write(socket_, buffers, asio::redirect_error(asio::use_awaitable, error));
  deadline_.expires_at(Clock::time_point::max());
  co_return !error;
}

HttpExchange::Hooks Connection::make_hooks() {
  HttpExchange::Hooks hooks;
  hooks.wake = [self = shared_from_this()] {
    asio::post(self->executor(), [self] { self->wake_.cancel(); });
  };
  hooks.run = [self = shared_from_this()](std::function<void()> call) {
    asio::post(self->executor(), [call = std::move(call)] {
      try {
        call();
      } catch (const std::exception& error) {
        log::error("http server: a disconnect callback threw: {}", error.what());
      }
    });
  };
  return hooks;
}

asio::awaitable<bool> Connection::answer(HttpRequest request, RequestTraits traits) {
  exchange_ = std::make_shared<HttpExchange>(make_hooks(), server_.config.stream_max_queued_bytes);
  const auto exchange = exchange_;
  start_reading();
  try {
    // When the handler throws, its responder goes and sends 500.
    server_.handler(std::move(request), exchange->make_responder());
  } catch (const std::exception& error) {
    log::error("http server: a handler threw: {}", error.what());
  }
  BodyFraming framing = BodyFraming::kLength;
  bool complete = false;
  for (bool alive = true; alive && !complete;) {
    co_await wait_until([&] { return exchange->has_output() || read_failed_; },
                        Clock::time_point::max());
    // What is already answered is still written to a client that has closed its own direction.
    if (!exchange->has_output()) {
      break;
    }
    HttpExchange::Output output = exchange->take_output();
    complete = output.complete;
    alive = !output.abandoned && co_await write_output(std::move(output), traits, framing);
    complete = complete && alive;
  }
  if (!complete) {
    exchange->client_gone();
  }
  exchange->detach();
  exchange_.reset();
  co_return complete&& traits.keep_alive;
}

asio::awaitable<bool> Connection::write_output(HttpExchange::Output output, RequestTraits& traits,
                                               BodyFraming& framing) {
  std::string before;
  std::string_view after;
  if (output.head) {
    HttpResponse& head = *output.head;
    traits.keep_alive = traits.keep_alive && !server_.draining &&
                        !has_token(head.headers.get("Connection"), "close");
    if (!status_has_body(head.status)) {
      framing = BodyFraming::kNone;
    } else if (!output.streamed) {
      framing = BodyFraming::kLength;
      output.data = std::move(head.body);
    } else {
      framing = traits.chunks_understood ? BodyFraming::kChunked : BodyFraming::kUntilClose;
      traits.keep_alive = traits.keep_alive && traits.chunks_understood;
    }
    before = response_head(head, framing, output.data.size(), traits.keep_alive);
  }
  if (traits.head_only || framing == BodyFraming::kNone) {
    output.data.clear();
  } else if (framing == BodyFraming::kChunked) {
    if (!output.data.empty()) {
      before += fmt::format("{:x}\r\n", output.data.size());
      output.data += "\r\n";
    }
    after = output.complete ? kLastChunk : std::string_view();
  }
  const std::array<asio::const_buffer, 3> buffers = {
      asio::buffer(before), asio::buffer(output.data), asio::buffer(after)};
  const bool written = co_await write(buffers);
  co_return written;
}

// --- life ---

asio::awaitable<void> Connection::run() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  auto first_byte_until = after_ms(server_.config.header_timeout_ms);
  for (bool open = true; open;) {
    start_reading();
    co_await wait_until([this] { return input_.size() > 0 || read_failed_ || draining_; },
                        first_byte_until);
    if (input_.size() == 0) {
      break;
    }
    HttpRequest request;
    RequestTraits traits;
    open = co_await read_request(request, traits);
    if (open) {
      open = co_await answer(std::move(request), traits);
    }
    first_byte_until = after_ms(server_.config.idle_timeout_ms);
  }
  shut();
}

asio::awaitable<void> Connection::reject() {
  const HttpResponse response = error_response(
      503, fmt::format("{} connections are open (max_connections)", server_.config.max_connections),
      "too_many_connections", "server_error");
  const std::string text =
      response_head(response, BodyFraming::kLength, response.body.size(), false) + response.body;
  if (co_await write(asio::buffer(text))) {
    co_await linger();
  }
  shut();
}

void Connection::shut() {
  read_failed_ = true;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  deadline_.cancel();
  wake_.cancel();
}

void Connection::drop_exchange() {
  if (exchange_) {
    exchange_->detach();
    exchange_.reset();
  }
}

void Connection::drain() {
  asio::post(executor(), [self = shared_from_this()] {
    self->draining_ = true;
    self->wake_.cancel();
  });
}

void Connection::kill() {
  asio::post(executor(), [self = shared_from_this()] { self->shut(); });
}

std::string Connection::remote_name() const {
  error_code error;
  const tcp::endpoint remote = socket_.remote_endpoint(error);
  return error ? std::string() : format_endpoint(remote.address().to_string(), remote.port());
}

// --- server ---

class BeastHttpServer final : public HttpServer {
 public:
  BeastHttpServer(HttpServerConfig config, HttpHandler handler)
      : io_(static_cast<int>(std::max(config.threads, 1U))),
        acceptor_(asio::make_strand(io_)),
        accept_retry_(acceptor_.get_executor()),
        work_(asio::make_work_guard(io_)) {
    context_.config = std::move(config);
    context_.handler = std::move(handler);
  }
  ~BeastHttpServer() override { stop(0); }

  Status listen();
  void run();

  std::string address() const override { return address_; }
  void stop(std::uint32_t drain_timeout_ms) override;

 private:
  asio::awaitable<void> accept_loop();
  void add(tcp::socket socket);
  void remove(const std::shared_ptr<Connection>& connection);

  ServerContext context_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  asio::steady_timer accept_retry_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::string address_;
  std::vector<std::thread> threads_;
  log::RateLimit accept_log_;

  std::mutex stop_mutex_;  // one stop() at a time
  bool stopped_ = false;
  std::mutex mutex_;
  std::condition_variable empty_;
  std::set<std::shared_ptr<Connection>> connections_;  // under mutex_
};

Status BeastHttpServer::listen() {
  const HttpServerConfig& config = context_.config;
  const std::string where = format_endpoint(config.host, config.port);
  error_code error;
  const std::string_view host = config.host == "localhost" ? "127.0.0.1" : bare_host(config.host);
  auto address = asio::ip::make_address(host, error);
  if (error) {
    tcp::resolver resolver(io_);
    const auto found = resolver.resolve(host, "0", error);
    if (error || found.empty()) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("HTTP server host {}: {}", config.host, error.message()));
    }
    address = found.begin()->endpoint().address();
  }
  const tcp::endpoint endpoint(address, config.port);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) {
    acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  }
  if (!error) {
    acceptor_.bind(endpoint, error);
  }
  if (!error) {
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
  }
  if (error) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("HTTP server at {}: {}", where, error.message()));
  }
  address_ = format_endpoint(config.host, acceptor_.local_endpoint(error).port());
  return {};
}

void BeastHttpServer::run() {
  asio::co_spawn(acceptor_.get_executor(), accept_loop(), [](std::exception_ptr failure) {
    if (failure) {
      log::error("http server: the accept loop ended by an exception");
    }
  });
  for (unsigned i = 0; i < std::max(context_.config.threads, 1U); ++i) {
    threads_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "kvf-http-srv");
      for (;;) {
        try {
          io_.run();
          return;
        } catch (const std::exception& error) {
          log::error("http server: {}", error.what());
        }
      }
    });
  }
}

asio::awaitable<void> BeastHttpServer::accept_loop() {
  while (acceptor_.is_open() && !context_.draining) {
    error_code error;
    tcp::socket socket = co_await acceptor_.async_accept(
        asio::make_strand(io_), asio::redirect_error(asio::use_awaitable, error));
    if (!error) {
      add(std::move(socket));
    } else if (error != asio::error::operation_aborted) {
      if (accept_log_.allow(monotonic_now())) {
        log::warning("http server {}: accept: {}", address_, error.message());
      }
      // Out of descriptors, most likely: trying again at once would only spin.
      accept_retry_.expires_after(kAcceptBackOff);
      co_await accept_retry_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
  }
}

void BeastHttpServer::add(tcp::socket socket) {
  auto connection = std::make_shared<Connection>(context_, std::move(socket));
  bool over = false;
  {
    std::lock_guard lock(mutex_);
    over = connections_.size() >= context_.config.max_connections;
    if (context_.draining || connections_.size() >= context_.config.max_connections + kMaxRejects) {
      return;
    }
    connections_.insert(connection);
  }
  asio::co_spawn(connection->executor(), over ? connection->reject() : connection->run(),
                 [this, connection](std::exception_ptr failure) {
                   if (failure) {
                     log::error("http server: a connection ended by an exception");
                     connection->shut();
                   }
                   // Also after an exception: a responder must not reach what is gone.
                   connection->drop_exchange();
                   remove(connection);
                 });
}

void BeastHttpServer::remove(const std::shared_ptr<Connection>& connection) {
  std::lock_guard lock(mutex_);
  connections_.erase(connection);
  if (connections_.empty()) {
    empty_.notify_all();
  }
}

void BeastHttpServer::stop(std::uint32_t drain_timeout_ms) {
  std::lock_guard only_one(stop_mutex_);
  if (stopped_) {
    return;
  }
  stopped_ = true;
  {
    std::unique_lock lock(mutex_);
    context_.draining = true;
    asio::post(acceptor_.get_executor(), [this] {
      error_code ignored;
      acceptor_.close(ignored);
      accept_retry_.cancel();
    });
    for (const auto& connection : connections_) {
      connection->drain();
    }
    empty_.wait_for(lock, milliseconds(drain_timeout_ms), [this] { return connections_.empty(); });
    for (const auto& connection : connections_) {
      connection->kill();
    }
    // Their coroutines end now, for every wait in them ends when the socket is shut.
    empty_.wait(lock, [this] { return connections_.empty() || threads_.empty(); });
  }
  work_.reset();
  for (auto& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerConfig config,
                                                      HttpHandler handler) {
  auto server = std::make_unique<BeastHttpServer>(std::move(config), std::move(handler));
  if (auto listening = server->listen(); !listening) {
    return tl::unexpected(std::move(listening.error()));
  }
  server->run();
  return server;
}

}  // namespace kvferry::net
