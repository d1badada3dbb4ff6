#include "net/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "latch.h"
#include "raw_client.h"

namespace kvferry::net {
namespace {

std::unique_ptr<HttpServer> start_server(HttpHandler handler, HttpServerConfig config = {}) {
  auto server = HttpServer::start(config, std::move(handler));
  EXPECT_TRUE(server);
  return server ? std::move(*server) : nullptr;
}

void echo(HttpRequest request, std::shared_ptr<Responder> responder) {
  responder->respond(
      text_response(200, request.method + " " + request.target + " " + request.body));
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  auto server = start_server(echo);
  RawClient client(server->address());
  ASSERT_TRUE(client.send("GET /one HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_NE(client.read_until("GET /one "), "");
  ASSERT_TRUE(client.send("POST /two HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"));
  EXPECT_NE(client.read_until("POST /two abc"), "");
  ASSERT_TRUE(client.send("GET /three HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  EXPECT_NE(client.read_until("").find("Connection: close"), std::string::npos);
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  auto server = start_server(echo);
  RawClient client(server->address());
  std::string all;
  for (int i = 0; i < 50; ++i) {
    all += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: x\r\n\r\n";
  }
  ASSERT_TRUE(client.send(all));
  const std::string answers = client.read_until("GET /49 ");
  EXPECT_EQ(count(answers, "200 OK"), 50U);
  EXPECT_LT(answers.find("GET /7 "), answers.find("GET /8 "));
}

TEST(HttpServer, ChunkedRequestAndHead) {
  auto server = start_server(echo);
  RawClient client(server->address());
  ASSERT_TRUE(client.send("POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"));
  ASSERT_TRUE(client.send("2\r\nde\r\n0\r\n\r\n"));
  EXPECT_NE(client.read_until("POST /c abcde"), "");
  ASSERT_TRUE(client.send("HEAD /h HTTP/1.1\r\n\r\nGET /after HTTP/1.1\r\n\r\n"));
  const std::string answers = client.read_until("GET /after ");
  EXPECT_EQ(answers.find("HEAD /h"), std::string::npos);
  EXPECT_NE(answers.find("Content-Length: 8"), std::string::npos);
}

TEST(HttpServer, ExpectContinueIsAnswered) {
  auto server = start_server(echo);
  RawClient client(server->address());
  ASSERT_TRUE(client.send("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"));
  ASSERT_NE(client.read_until("100 Continue\r\n\r\n"), "");
  ASSERT_TRUE(client.send("ok"));
  EXPECT_NE(client.read_until("POST / ok"), "");
}

TEST(HttpServer, LimitsAreAnsweredInOpenAiShape) {
  HttpServerConfig config;
  config.max_body_bytes = 1'000;
  config.max_header_bytes = 2'000;
  auto server = start_server(echo, config);
  {
    RawClient client(server->address());
    ASSERT_TRUE(client.send("POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n"));
    const std::string answer = client.read_until("");
    EXPECT_EQ(answer.find("HTTP/1.1 413 "), 0U);
    EXPECT_NE(answer.find(R"({"error":{"message":)"), std::string::npos);
    EXPECT_NE(answer.find(R"("type":"invalid_request_error","param":null)"), std::string::npos);
  }
  {
    RawClient client(server->address());
    client.send("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send("800\r\n" + std::string(0x800, 'x') + "\r\n0\r\n\r\n");
    EXPECT_EQ(client.read_until("").find("HTTP/1.1 413 "), 0U);
  }
  {
    RawClient client(server->address());
    client.send("GET / HTTP/1.1\r\nX: " + std::string(3'000, 'x') + "\r\n\r\n");
    EXPECT_EQ(client.read_until("").find("HTTP/1.1 431 "), 0U);
  }
  RawClient client(server->address());
  client.send("POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" + std::string(1'000, 'y'));
  EXPECT_NE(client.read_until("yyy\x79"), "");
}

TEST(HttpServer, NonsenseIs400AndClosed) {
  auto server = start_server(echo);
  for (const char* text :
       {"\x16\x03\x01\x02\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "GET / HTTP/1.1\r\nNo colon\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    RawClient client(server->address());
    client.send(text);
    EXPECT_EQ(client.read_until("").find("HTTP/1.1 400 "), 0U) << text;
  }
}

TEST(HttpServer, SlowHeaderAndBodyAreClosed) {
  HttpServerConfig config;
  config.header_timeout_ms = 100;
  config.body_timeout_ms = 100;
  config.idle_timeout_ms = 100;
  auto server = start_server(echo, config);
  RawClient silent(server->address());
  RawClient header(server->address());
  RawClient body(server->address());
  RawClient idle(server->address());
  header.send("GET / HTTP/1.1\r\nX: ");
  body.send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  idle.send("GET /idle HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(silent.at_end());
  EXPECT_TRUE(header.at_end());
  EXPECT_TRUE(body.at_end());
  EXPECT_NE(idle.read_until("").find("GET /idle"), std::string::npos);
}

TEST(HttpServer, StreamsChunks) {
  Latch<std::shared_ptr<Responder>> stream;
  auto server = start_server(
      [&](HttpRequest, std::shared_ptr<Responder> responder) { stream.set(std::move(responder)); });
  RawClient client(server->address());
  client.send("GET / HTTP/1.1\r\n\r\n");
  auto responder = stream.wait();
  ASSERT_TRUE(responder);
  (*responder)->begin_stream(text_response(200, "ignored", "text/event-stream"));
  (*responder)->write("data: 1\n\n");
  EXPECT_NE(client.read_until("9\r\ndata: 1\n\n\r\n"), "");
  (*responder)->write("data: 2\n\n");
  (*responder)->write("");
  EXPECT_NE(client.read_until("data: 2\n\n\r\n"), "");
  (*responder)->end();
  (*responder)->write("too late");
  const std::string answer = client.read_until("0\r\n\r\n");
  EXPECT_NE(answer.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_EQ(answer.find("ignored"), std::string::npos);
  EXPECT_EQ(answer.find("too late"), std::string::npos);
}

TEST(HttpServer, StreamForHttp10EndsWithTheConnection) {
  auto server = start_server([](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->begin_stream(text_response(200, ""));
    responder->write("plain");
    responder->end();
  });
  RawClient client(server->address());
  client.send("GET / HTTP/1.0\r\n\r\n");
  const std::string answer = client.read_until("");
  EXPECT_EQ(answer.find("chunked"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("\r\n\r\nplain"));
}

TEST(HttpServer, DisconnectIsNoticedBeforeTheAnswerAndInAStream) {
  for (const bool streaming : {false, true}) {
    Latch<bool> gone;
    Latch<std::shared_ptr<Responder>> open;
    auto server = start_server([&](HttpRequest, std::shared_ptr<Responder> responder) {
      responder->on_disconnect([&gone] { gone.set(true); });
      if (streaming) {
        responder->begin_stream(text_response(200, ""));
        responder->write("begun");
      }
      open.set(std::move(responder));
    });
    auto client = std::make_unique<RawClient>(server->address());
    client->send("GET / HTTP/1.1\r\n\r\n");
    ASSERT_TRUE(open.wait());
    if (streaming) {
      ASSERT_NE(client->read_until("begun"), "");
    }
    client.reset();
    EXPECT_TRUE(gone.wait());
    // A callback that comes late is told too; answering a client that is gone does nothing.
    Latch<bool> told;
    (*open.wait())->on_disconnect([&told] { told.set(true); });
    EXPECT_TRUE(told.wait());
    (*open.wait())->respond(text_response(200, ""));
    (*open.wait())->end();
    server->stop();
  }
}

TEST(HttpServer, PipelinedBytesDoNotHideADisconnect) {
  Latch<bool> gone;
  Latch<std::shared_ptr<Responder>> open;
  auto server = start_server([&](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->on_disconnect([&gone] { gone.set(true); });
    open.set(std::move(responder));
  });
  auto client = std::make_unique<RawClient>(server->address());
  client->send("GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(open.wait());
  client.reset();
  EXPECT_TRUE(gone.wait());
  server->stop();
}

TEST(HttpServer, HalfCloseCountsAsGoneUnlessAnswered) {
  auto direct = start_server(echo);
  RawClient answered(direct->address());
  answered.send("GET /x HTTP/1.1\r\n\r\n");
  answered.half_close();
  EXPECT_NE(answered.read_until("").find("GET /x"), std::string::npos);

  Latch<bool> gone;
  Latch<std::shared_ptr<Responder>> open;
  auto waiting = start_server([&](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->on_disconnect([&gone] { gone.set(true); });
    open.set(std::move(responder));
  });
  RawClient client(waiting->address());
  client.send("GET /x HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(open.wait());
  client.half_close();
  EXPECT_TRUE(gone.wait());
  EXPECT_TRUE(client.at_end());
  waiting->stop();
}

TEST(HttpServer, CompleteAnswerForgetsTheDisconnectCallback) {
  std::weak_ptr<int> held;
  std::atomic<bool> called{false};
  auto server = start_server([&](HttpRequest, std::shared_ptr<Responder> responder) {
    auto token = std::make_shared<int>(1);
    held = token;
    responder->on_disconnect([token, &called] { called = true; });
    responder->respond(text_response(200, "done"));
  });
  RawClient client(server->address());
  client.send("GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_NE(client.read_until("").find("done"), std::string::npos);
  server->stop();
  EXPECT_FALSE(called);
  EXPECT_TRUE(held.expired());
}

TEST(HttpServer, DroppedResponderIs500AndDroppedStreamBreaks) {
  auto server = start_server([](HttpRequest request, std::shared_ptr<Responder> responder) {
    if (request.path() == "/throw") {
      throw std::runtime_error("handler");
    }
    if (request.path() == "/stream") {
      responder->begin_stream(text_response(200, ""));
      responder->write("part");
    }
  });
  RawClient client(server->address());
  client.send("GET /drop HTTP/1.1\r\n\r\n");
  EXPECT_NE(client.read_until("without an answer"), "");
  client.send("GET /throw HTTP/1.1\r\n\r\n");
  EXPECT_NE(client.read_until("500 Internal"), "");
  client.send("GET /stream HTTP/1.1\r\n\r\n");
  EXPECT_FALSE(client.read_until("").ends_with("0\r\n\r\n"));
}

TEST(HttpServer, ReaderThatIsTooSlowIsCut) {
  HttpServerConfig config;
  config.stream_max_queued_bytes = 100'000;
  Latch<bool> gone;
  Latch<std::shared_ptr<Responder>> open;
  auto server = start_server(
      [&](HttpRequest, std::shared_ptr<Responder> responder) {
        responder->on_disconnect([&gone] { gone.set(true); });
        responder->begin_stream(text_response(200, ""));
        open.set(std::move(responder));
      },
      config);
  RawClient client(server->address());
  client.send("GET / HTTP/1.1\r\n\r\n");
  auto responder = open.wait();
  ASSERT_TRUE(responder);
  const std::string piece(50'000, 'p');
  for (int i = 0; i < 10'000 && !gone.is_set(); ++i) {
    (*responder)->write(piece);
  }
  EXPECT_TRUE(gone.wait());
  server->stop();
}

TEST(HttpServer, PortInUseIsAFailureWithTheAddress) {
  auto first = start_server(echo);
  HttpServerConfig config;
  config.port = static_cast<std::uint16_t>(
      std::stoi(first->address().substr(first->address().rfind(':') + 1)));
  auto second = HttpServer::start(config, echo);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, FailureCode::kOperatingSystem);
  EXPECT_NE(second.error().what.find(first->address()), std::string::npos);
}

TEST(HttpServer, ConnectionsOverTheLimitAreTold) {
  HttpServerConfig config;
  config.max_connections = 2;
  auto server = start_server(echo, config);
  RawClient one(server->address());
  RawClient two(server->address());
  one.send("GET /1 HTTP/1.1\r\n\r\n");
  two.send("GET /2 HTTP/1.1\r\n\r\n");
  ASSERT_NE(one.read_until("GET /1"), "");
  ASSERT_NE(two.read_until("GET /2"), "");
  RawClient three(server->address());
  EXPECT_EQ(three.read_until("").find("HTTP/1.1 503 "), 0U);
  one.send("GET /again HTTP/1.1\r\n\r\n");
  EXPECT_NE(one.read_until("GET /again"), "");
}

TEST(HttpServer, StopDrainsWhatIsOpen) {
  Latch<std::shared_ptr<Responder>> open;
  auto server = start_server(
      [&](HttpRequest, std::shared_ptr<Responder> responder) { open.set(std::move(responder)); });
  RawClient busy(server->address());
  RawClient idle(server->address());
  busy.send("GET / HTTP/1.1\r\n\r\n");
  auto responder = open.wait();
  ASSERT_TRUE(responder);
  std::thread stopper([&] { server->stop(10'000); });
  EXPECT_TRUE(idle.at_end());  // the drain has begun
  (*responder)->respond(text_response(200, "finished"));
  const std::string answer = busy.read_until("");
  EXPECT_NE(answer.find("finished"), std::string::npos);
  EXPECT_NE(answer.find("Connection: close"), std::string::npos);
  stopper.join();
  server->stop(1'000);  // once more does nothing
}

TEST(HttpServer, StopWithOpenStreamsTellsThemAndResponderMayOutliveTheServer) {
  Latch<bool> gone;
  Latch<std::shared_ptr<Responder>> open;
  auto server = start_server([&](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->on_disconnect([&gone] { gone.set(true); });
    responder->begin_stream(text_response(200, ""));
    open.set(std::move(responder));
  });
  RawClient client(server->address());
  client.send("GET / HTTP/1.1\r\n\r\n");
  auto responder = open.wait();
  ASSERT_TRUE(responder);
  server.reset();
  EXPECT_TRUE(gone.is_set());
  EXPECT_TRUE(client.at_end());
  (*responder)->write("into the void");
  (*responder)->end();
}

}  // namespace
}  // namespace kvferry::net
