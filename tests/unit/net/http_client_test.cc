#include "net/http_client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "latch.h"
#include "net/http_server.h"
#include "raw_client.h"

namespace kvferry::net {
namespace {

std::unique_ptr<HttpServer> serve(HttpHandler handler, HttpServerConfig config = {}) {
  auto server = HttpServer::start(config, std::move(handler));
  EXPECT_TRUE(server);
  return server ? std::move(*server) : nullptr;
}

HttpRequest get(std::string target) {
  HttpRequest request;
  request.target = std::move(target);
  return request;
}

HttpCallOptions to(std::string address) {
  HttpCallOptions options;
  options.address = std::move(address);
  options.total_timeout_ms = 10'000;
  return options;
}

// Collects what one call reports.
struct Record {
  Latch<HttpResponse> head;
  Latch<Status> end;
  std::mutex mutex;
  std::string data;
  std::atomic<int> calls{0};

  HttpCallbacks callbacks() {
    HttpCallbacks made;
    made.on_head = [this](const HttpResponse& response) {
      ++calls;
      head.set(response);
    };
    made.on_data = [this](std::string_view piece) {
      ++calls;
      std::lock_guard lock(mutex);
      data += piece;
    };
    made.on_end = [this](Status status) {
      ++calls;
      end.set(std::move(status));
    };
    return made;
  }
};

TEST(HttpClient, FetchesAndReusesTheConnection) {
  std::mutex mutex;
  std::set<std::string> remotes;
  auto server = serve([&](HttpRequest request, std::shared_ptr<Responder> responder) {
    std::lock_guard lock(mutex);
    remotes.insert(request.remote);
    auto response = json_response(201, request.method + request.body);
    response.headers.set("X-Echo", std::string(request.headers.get("x-ask")));
    responder->respond(std::move(response));
  });
  auto client = HttpClient::start();
  for (int i = 0; i < 5; ++i) {
    HttpRequest request = get("/x");
    request.method = i % 2 == 0 ? "POST" : "PUT";
    request.body = "body";
    request.headers.set("X-Ask", "question");
    const auto response = client->fetch(to(server->address()), request);
    ASSERT_TRUE(response) << response.error().what;
    EXPECT_EQ(response->status, 201);
    EXPECT_EQ(response->body, request.method + "body");
    EXPECT_EQ(response->headers.get("x-echo"), "question");
  }
  EXPECT_EQ(remotes.size(), 1U);
}

TEST(HttpClient, HeadHasNoBodyAndNoContentIsComplete) {
  auto server = serve([](HttpRequest request, std::shared_ptr<Responder> responder) {
    responder->respond(request.path() == "/none" ? text_response(204, "dropped")
                                                 : text_response(200, "12345"));
  });
  auto client = HttpClient::start();
  HttpRequest head = get("/");
  head.method = "HEAD";
  const auto response = client->fetch(to(server->address()), head);
  ASSERT_TRUE(response);
  EXPECT_EQ(response->body, "");
  EXPECT_EQ(response->headers.get("Content-Length"), "5");
  const auto none = client->fetch(to(server->address()), get("/none"));
  ASSERT_TRUE(none);
  EXPECT_EQ(none->status, 204);
  EXPECT_EQ(none->body, "");
  EXPECT_EQ(client->fetch(to(server->address()), get("/"))->body, "12345");
}

TEST(HttpClient, StreamsPiecesAsTheyCome) {
  Latch<std::shared_ptr<Responder>> open;
  auto server = serve([&](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->begin_stream(text_response(200, "", "text/event-stream"));
    responder->write("one");
    open.set(std::move(responder));
  });
  auto client = HttpClient::start();
  Record record;
  Latch<bool> first;
  auto callbacks = record.callbacks();
  callbacks.on_data = [&, inner = callbacks.on_data](std::string_view data) {
    inner(data);
    first.set(true);
  };
  auto call = client->call(to(server->address()), get("/"), callbacks);
  ASSERT_TRUE(record.head.wait());
  ASSERT_TRUE(first.wait());
  EXPECT_FALSE(record.end.is_set());
  const std::string large(300'000, 'l');
  (*open.wait())->write(large);
  (*open.wait())->end();
  auto status = record.end.wait();
  ASSERT_TRUE(status);
  EXPECT_TRUE(*status);
  EXPECT_EQ(record.data, "one" + large);
}

TEST(HttpClient, CancelReachesTheServerAndSilencesTheCall) {
  Latch<bool> gone;
  Latch<std::shared_ptr<Responder>> open;
  auto server = serve([&](HttpRequest request, std::shared_ptr<Responder> responder) {
    responder->on_disconnect([&gone] { gone.set(true); });
    if (request.path() == "/stream") {
      responder->begin_stream(text_response(200, ""));
    }
    open.set(std::move(responder));
  });
  auto client = HttpClient::start();
  for (const char* target : {"/wait", "/stream"}) {
    Record record;
    auto call = client->call(to(server->address()), get(target), record.callbacks());
    ASSERT_TRUE(open.wait());
    if (std::string_view(target) == "/stream") {
      ASSERT_TRUE(record.head.wait());
    }
    call->cancel();
    const int calls = record.calls;
    EXPECT_TRUE(gone.wait());
    call->cancel();
    EXPECT_EQ(record.calls, calls);
    EXPECT_FALSE(record.end.is_set());
  }
}

TEST(HttpClient, CancelFromItsOwnCallbackIsTheLastOne) {
  Latch<bool> gone;
  auto server = serve([&](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->on_disconnect([&gone, responder] { gone.set(true); });
    responder->begin_stream(text_response(200, ""));
    responder->write("data");
  });
  auto client = HttpClient::start();
  std::atomic<int> later{0};
  Latch<std::shared_ptr<HttpCall>> handle;
  HttpCallbacks callbacks;
  callbacks.on_head = [&](const HttpResponse&) { (*handle.wait())->cancel(); };
  callbacks.on_data = [&](std::string_view) { ++later; };
  callbacks.on_end = [&](Status) { ++later; };
  handle.set(client->call(to(server->address()), get("/"), callbacks));
  EXPECT_TRUE(gone.wait());
  client.reset();
  EXPECT_EQ(later, 0);
}

TEST(HttpClient, TimeoutsNameWhatPassed) {
  RawListener silent;
  auto client = HttpClient::start();
  HttpCallOptions options;
  options.address = silent.address();
  options.first_byte_timeout_ms = 50;
  auto response = client->fetch(options, get("/"));
  ASSERT_FALSE(response);
  EXPECT_NE(response.error().what.find("first_byte_timeout_ms"), std::string::npos);
  EXPECT_EQ(response.error().peer, silent.address());

  options.first_byte_timeout_ms = 0;
  options.total_timeout_ms = 50;
  response = client->fetch(options, get("/"));
  ASSERT_FALSE(response);
  EXPECT_NE(response.error().what.find("total_timeout_ms"), std::string::npos);

  RawListener pausing;
  std::thread server(
      [&] { pausing.serve_once("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", false); });
  options = HttpCallOptions{};
  options.address = pausing.address();
  options.idle_timeout_ms = 50;
  response = client->fetch(options, get("/"));
  server.join();
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code, FailureCode::kPeerLost);
  EXPECT_NE(response.error().what.find("idle_timeout_ms"), std::string::npos);
}

TEST(HttpClient, RefusedAndNonsenseAddressesFail) {
  std::string gone;
  { gone = RawListener().address(); }
  auto client = HttpClient::start();
  auto response = client->fetch(to(gone), get("/"));
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code, FailureCode::kPeerUnreachable);
  for (const char* address : {"", "nonsense", "127.0.0.1:0", "http://127.0.0.1:1"}) {
    response = client->fetch(to(address), get("/"));
    ASSERT_FALSE(response) << address;
    EXPECT_EQ(response.error().code, FailureCode::kInvalidArgument) << address;
  }
}

TEST(HttpClient, BrokenAnswersFail) {
  struct Case {
    const char* answer;
    FailureCode code;
  };
  auto client = HttpClient::start();
  for (const Case& test :
       {Case{"", FailureCode::kPeerLost}, Case{"HTTP/1.1 200", FailureCode::kPeerLost},
        Case{"SSH-2.0-x\r\n\r\n", FailureCode::kMalformed},
        Case{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", FailureCode::kPeerLost},
        Case{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
             FailureCode::kMalformed}}) {
    RawListener listener;
    std::thread server([&] { listener.serve_once(test.answer, true); });
    const auto response = client->fetch(to(listener.address()), get("/"));
    server.join();
    ASSERT_FALSE(response) << test.answer;
    EXPECT_EQ(response.error().code, test.code) << test.answer << ": " << response.error().what;
  }
}

TEST(HttpClient, BodyWithoutLengthEndsWithTheConnection) {
  RawListener listener;
  std::thread server([&] {
    listener.serve_once("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nall of it", true);
  });
  auto client = HttpClient::start();
  const auto response = client->fetch(to(listener.address()), get("/"));
  server.join();
  ASSERT_TRUE(response) << response.error().what;
  EXPECT_EQ(response->body, "all of it");
}

TEST(HttpClient, TooLongAnAnswerFails) {
  auto server = serve([](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->respond(text_response(200, std::string(100'000, 'x')));
  });
  auto client = HttpClient::start();
  HttpCallOptions options = to(server->address());
  options.max_body_bytes = 99'999;
  auto response = client->fetch(options, get("/"));
  ASSERT_FALSE(response);
  EXPECT_NE(response.error().what.find("max_body_bytes"), std::string::npos);
  options.max_body_bytes = 0;
  EXPECT_EQ(client->fetch(options, get("/"))->body.size(), 100'000U);
}

TEST(HttpClient, StaleConnectionIsTriedOnceMore) {
  RawListener listener;
  std::thread server([&] {
    listener.serve_once("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst", false);
    // The kept connection ends just as the second request comes.
    listener.drop_kept_at_request();
    listener.serve_once("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond", true);
  });
  auto client = HttpClient::start();
  const auto first = client->fetch(to(listener.address()), get("/"));
  const auto second = client->fetch(to(listener.address()), get("/"));
  server.join();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->body, "first");
  EXPECT_EQ(second->body, "second");
}

TEST(HttpClient, RequestThatTheServerHadIsNotRepeated) {
  RawListener listener;
  std::thread server([&] {
    listener.serve_once("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst", false);
    // Beyond the time in which the end of a kept connection counts as one that crossed the request.
    listener.drop_kept_at_request(std::chrono::milliseconds(300));
  });
  auto client = HttpClient::start();
  ASSERT_TRUE(client->fetch(to(listener.address()), get("/")));
  HttpRequest post = get("/");
  post.method = "POST";
  const auto response = client->fetch(to(listener.address()), post);
  server.join();
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code, FailureCode::kPeerLost);
  EXPECT_FALSE(listener.has_pending_connection());
}

TEST(HttpClient, ServerRestartBetweenRequestsIsNotSeen) {
  auto echo = [](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->respond(text_response(200, "ok"));
  };
  auto server = serve(echo);
  auto client = HttpClient::start();
  HttpServerConfig config;
  config.port = static_cast<std::uint16_t>(
      std::stoi(server->address().substr(server->address().rfind(':') + 1)));
  ASSERT_TRUE(client->fetch(to(server->address()), get("/")));
  server.reset();
  server = serve(echo, config);
  ASSERT_TRUE(server);
  EXPECT_TRUE(client->fetch(to(server->address()), get("/")));
}

TEST(HttpClient, ManyConcurrentRequests) {
  HttpServerConfig config;
  config.threads = 2;
  std::mutex mutex;
  std::vector<std::shared_ptr<Responder>> waiting;
  Latch<bool> all_there;
  constexpr std::size_t kCalls = 200;
  auto server = serve(
      [&](HttpRequest, std::shared_ptr<Responder> responder) {
        std::lock_guard lock(mutex);
        waiting.push_back(std::move(responder));
        if (waiting.size() == kCalls) {
          all_there.set(true);
        }
      },
      config);
  auto client = HttpClient::start(2);
  std::vector<Record> records(kCalls);
  for (auto& record : records) {
    client->call(to(server->address()), get("/"), record.callbacks());
  }
  ASSERT_TRUE(all_there.wait());
  for (auto& responder : waiting) {
    responder->respond(text_response(200, "answer"));
  }
  for (auto& record : records) {
    auto status = record.end.wait();
    ASSERT_TRUE(status && *status);
    EXPECT_EQ(record.data, "answer");
  }
}

TEST(HttpClient, EndOfTheClientCancelsAndUnblocksFetch) {
  RawListener silent;
  auto client = HttpClient::start();
  HttpCallOptions options;
  options.address = silent.address();
  Record record;
  auto call = client->call(options, get("/"), record.callbacks());
  silent.serve_once("", false);
  Latch<Result<HttpResponse>> fetched;
  RawListener other;
  options.address = other.address();
  std::thread fetcher([&, raw = client.get()] { fetched.set(raw->fetch(options, get("/"))); });
  other.serve_once("", false);  // its request has come, so that fetch() is waiting
  client.reset();
  fetcher.join();
  EXPECT_FALSE(record.end.is_set());
  auto result = fetched.wait();
  ASSERT_TRUE(result && !*result);
  EXPECT_EQ(result->error().code, FailureCode::kShuttingDown);
  call->cancel();  // the call outlives its client
}

TEST(HttpClient, CancelSilencesAFlood) {
  Latch<bool> gone;
  std::atomic<bool> stop{false};
  Latch<std::shared_ptr<Responder>> open;
  auto server = serve([&](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->on_disconnect([&gone] { gone.set(true); });
    responder->begin_stream(text_response(200, ""));
    open.set(std::move(responder));
  });
  auto client = HttpClient::start();
  Record record;
  auto call = client->call(to(server->address()), get("/"), record.callbacks());
  auto responder = open.wait();
  ASSERT_TRUE(responder);
  std::thread flood([&] {
    while (!stop) {
      (*responder)->write("data");
    }
  });
  EXPECT_TRUE(record.head.wait());
  call->cancel();
  const int calls = record.calls;
  EXPECT_TRUE(gone.wait());
  stop = true;
  flood.join();
  client.reset();
  EXPECT_EQ(record.calls, calls);
  EXPECT_FALSE(record.end.is_set());
}

TEST(HttpClient, CallbackThatThrowsFailsItsCallOnly) {
  auto server = serve([](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->respond(text_response(200, "ok"));
  });
  auto client = HttpClient::start();
  Record record;
  auto callbacks = record.callbacks();
  callbacks.on_head = [](const HttpResponse&) { throw std::runtime_error("callback"); };
  client->call(to(server->address()), get("/"), callbacks);
  auto status = record.end.wait();
  ASSERT_TRUE(status);
  EXPECT_FALSE(*status);
  EXPECT_TRUE(client->fetch(to(server->address()), get("/")));
}

}  // namespace
}  // namespace kvferry::net
