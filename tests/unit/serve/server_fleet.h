// A registry, one prefill and one decode server and a reference server in this process, over the
// real transfer layer and real sockets.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <future>

#include "base/crypto.h"
#include "engine_tools.h"
#include "kvferry/bootstrap_server.h"
#include "net/http_client.h"
#include "serve/server.h"

namespace kvferry::serve {

struct Fleet {
  explicit Fleet(ServeOptions options) : client(net::HttpClient::start()) {
    registry = must(BootstrapServer::start({}));
    options.bootstrap_address = registry->address();
    options.role = ServeRole::kPrefill;
    options.instance = "p0";
    prefill = must(start_server(options));
    options.role = ServeRole::kDecode;
    options.instance = "d0";
    decode = must(start_server(options));
    options.role = ServeRole::kBoth;
    both = must(start_server(options));
    paired = becomes_paired();
  }
  ~Fleet() {
    for (auto* server : {prefill.get(), decode.get(), both.get()}) {
      if (server != nullptr) {
        server->stop();
      }
    }
    registry->stop();
  }

  // Asks again and again, for 30 s at the most.
  template <typename Condition>
  static bool eventually(Condition&& condition) {
    for (int tries = 0; tries < 3'000; ++tries) {
      if (condition()) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  bool becomes_paired() {
    return eventually([this] {
      const auto body = fetch(*decode, "GET", "/v1/kvferry/pairs").body;
      return body.find(R"("ready":true)") != std::string::npos;
    });
  }

  net::HttpResponse fetch(const Server& server, const std::string& method, const std::string& path,
                          std::string body = "") {
    net::HttpRequest request;
    request.method = method;
    request.target = path;
    request.body = std::move(body);
    net::HttpCallOptions call;
    call.address = server.address();
    call.total_timeout_ms = 60'000;
    return must(client->fetch(call, std::move(request)));
  }

  // {"prompt":...} plus what the router adds.
  std::string with_room(const std::string& fields, std::uint64_t room) const {
    const std::string address = registry->address();
    const auto colon = address.rfind(':');
    return "{" + fields + R"(,"bootstrap_host":")" + address.substr(0, colon) +
           R"(","bootstrap_port":)" + address.substr(colon + 1) + R"(,"bootstrap_room":)" +
           std::to_string(room) + R"(,"kvferry_binding":")" +
           Binding{random_u64(), random_u64() | 1}.to_hex() + R"(","kvferry_prefill":"p0"})";
  }

  // The same as SGLang's router names it: without a binding. port null: left to the servers.
  std::string with_sglang_room(const std::string& fields, std::uint64_t room,
                               bool name_port = true) const {
    const std::string address = registry->address();
    const auto colon = address.rfind(':');
    return "{" + fields + R"(,"bootstrap_host":")" + address.substr(0, colon) +
           R"(","bootstrap_port":)" + (name_port ? address.substr(colon + 1) : "null") +
           R"(,"bootstrap_room":)" + std::to_string(room) + "}";
  }

  struct Answers {
    net::HttpResponse prefill;
    net::HttpResponse decode;
  };
  std::future<Answers> split(const std::string& fields, std::uint64_t room) {
    return ask_both("/v1/completions", with_room(fields, room));
  }
  // What a router does: the same body to both servers at once.
  std::future<Answers> ask_both(std::string path, std::string body) {
    return std::async(std::launch::async, [this, path = std::move(path), body = std::move(body)] {
      auto other =
          std::async(std::launch::async, [&] { return fetch(*prefill, "POST", path, body); });
      auto answer = fetch(*decode, "POST", path, body);
      return Answers{other.get(), std::move(answer)};
    });
  }
  net::HttpResponse alone(const std::string& fields) {
    return fetch(*both, "POST", "/v1/completions", "{" + fields + "}");
  }

  // Value of a metric line that starts with this name.
  double metric(const Server& server, const std::string& name) {
    const std::string text = "\n" + fetch(server, "GET", "/metrics").body;
    const std::size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }
  bool settles() {
    return eventually([this] {
      for (const auto* server : {prefill.get(), decode.get()}) {
        if (metric(*server, "kvferry_pool_pages_free") != metric(*server, "kvferry_pool_pages") ||
            metric(*server, "kvferry_requests_active") != 0) {
          return false;
        }
      }
      return true;
    });
  }

  std::unique_ptr<net::HttpClient> client;
  std::unique_ptr<BootstrapServer> registry;
  std::unique_ptr<Server> prefill;
  std::unique_ptr<Server> decode;
  std::unique_ptr<Server> both;
  bool paired = false;
};

inline const boost::json::value choice(const net::HttpResponse& response) {
  return boost::json::parse(response.body).at("choices").at(0);
}

}  // namespace kvferry::serve
