#include "cli/command.h"
#include "cli/server_main.h"
#include "kvferry/bootstrap_server.h"

namespace kvferry::cli {
namespace {

class BootstrapInvocation final : public Invocation {
 public:
  void declare(Settings& settings) override {
    settings.text("host", "", options_.host, "address to listen on");
    settings.number<std::uint16_t>("port", "", options_.port, 0, 65'535,
                                   "port to listen on; 0 takes any free one");
    settings.text(
        "cluster_token_file", "path", options_.cluster_token_file,
        "file whose first line is the token that ranks prove with each request; a second "
        "line holds a second valid one while tokens are changed; without it on loopback only");
    settings.number<std::uint32_t>("max_rows", "ranks", options_.max_rows, 1, 1'000'000,
                                   "ranks registered at once");
    settings.number<std::uint32_t>("max_body_bytes", "bytes", options_.max_body_bytes, 1'024,
                                   16U << 20, "size of one registration; beyond: 413");
    settings.number<std::uint32_t>("max_superseded", "ranks", options_.max_superseded, 1, 1'000'000,
                                   "replaced process lives that are remembered and refused");
    process_.declare(settings);
  }

  int run() override {
    ServerProcess process(process_);
    auto started = BootstrapServer::start(options_);
    if (!started) {
      fmt::print(stderr, "kvferry bootstrap: {}\n", started.error().what);
      return kExitFalse;
    }
    BootstrapServer& server = **started;
    // Registrations are short requests, so there is nothing to wait for.
    return process.serve(
        {"bootstrap", server.address(), [](std::uint32_t) {}, [&] { server.stop(); }});
  }

 private:
  BootstrapServerOptions options_;
  ServerProcessOptions process_;
};

}  // namespace

const Command& bootstrap_command() {
  static const Command command{
      "bootstrap", "The registry in which ranks register and decode finds the prefill ranks.",
      "Ranks register their addresses and public keys here under a lease. It never sees KV data.",
      [] { return std::unique_ptr<Invocation>(std::make_unique<BootstrapInvocation>()); }};
  return command;
}

}  // namespace kvferry::cli
