#include "cli/command.h"
#include "cli/server_main.h"
#include "router/request_body.h"
#include "router/router.h"

namespace kvferry::cli {
namespace {

class RouterInvocation final : public Invocation {
 public:
  void declare(Settings& settings) override {
    settings.text("host", "", options_.host, "address to listen on");
    settings.number<std::uint16_t>("port", "", options_.port, 0, 65'535,
                                   "port to listen on; 0 takes any free one");
    settings.list("prefill", "host:port,...", options_.prefill, "prefill servers");
    settings.list("decode", "host:port,...", options_.decode, "decode servers");
    settings.text("bootstrap", "host:port", options_.bootstrap,
                  "bootstrap server that decode servers ask for the prefill ranks");
    settings.number<std::uint32_t>("poll_interval_ms", "ms", options_.poll_interval_ms, 10, 60'000,
                                   "time between two questions to the same server");
    settings.number<std::uint32_t>("poll_timeout_ms", "ms", options_.poll_timeout_ms, 10, 60'000,
                                   "a server that has not answered by then is not ready");
    settings.number<std::uint32_t>("connect_timeout_ms", "ms", options_.connect_timeout_ms, 10,
                                   60'000, "time for a connection to a server");
    settings.number<std::uint32_t>("request_timeout_ms", "ms", options_.request_timeout_ms, 1'000,
                                   86'400'000, "time for a whole request; then 504");
    settings.number<std::uint32_t>("max_in_flight", "requests", options_.max_in_flight, 1,
                                   1'000'000, "requests under way; beyond: 503");
    settings.number<std::uint32_t>("max_body_bytes", "bytes", options_.max_body_bytes, 1'024,
                                   1U << 30, "size of a request body; beyond: 413");
    settings.number<std::uint32_t>("max_answer_bytes", "bytes", options_.max_answer_bytes, 1'024,
                                   1U << 30, "size of one answer");
    settings.number<std::uint32_t>("threads", "", options_.threads, 1, 256,
                                   "threads that read requests and write answers");
    process_.declare(settings);
  }

  Status check() override {
    const auto missing = [](std::string_view what) {
      return fail(FailureCode::kInvalidArgument, std::string(what));
    };
    if (options_.prefill.empty()) {
      return missing("option --prefill is needed: host:port of at least one prefill server");
    }
    if (options_.decode.empty()) {
      return missing("option --decode is needed: host:port of at least one decode server");
    }
    if (options_.bootstrap.empty()) {
      return missing("option --bootstrap is needed: host:port of the bootstrap server");
    }
    return check_addresses();
  }

  int run() override {
    ServerProcess process(process_);
    auto router = router::Router::start(options_);
    if (!router) {
      fmt::print(stderr, "kvferry router: {}\n", router.error().what);
      return kExitFalse;
    }
    router::Router& server = **router;
    return process.serve({"router", server.address(),
                          [&](std::uint32_t timeout_ms) { server.drain(timeout_ms); },
                          [&] { server.stop(); }});
  }

 private:
  Status check_addresses() const {
    const auto check_one = [](std::string_view option, const std::string& text) -> Status {
      const auto parsed = router::parse_address(text);
      if (parsed) return {};
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("option {}: {}", option, parsed.error().what));
    };
    for (const std::string& text : options_.prefill) {
      if (const Status status = check_one("--prefill", text); !status) return status;
    }
    for (const std::string& text : options_.decode) {
      if (const Status status = check_one("--decode", text); !status) return status;
    }
    return check_one("--bootstrap", options_.bootstrap);
  }

  router::RouterOptions options_;
  ServerProcessOptions process_;
};

}  // namespace

const Command& router_command() {
  static const Command command{
      "router", "One address for clients: pairs prefill and decode servers per request.",
      "Sends each request to a prefill and a decode server whose pair is ready and passes "
      "decode's\n"
      "answer back. GET /v1/kvferry/pairs shows each pair with its state and reason.",
      [] { return std::unique_ptr<Invocation>(std::make_unique<RouterInvocation>()); }};
  return command;
}

}  // namespace kvferry::cli
