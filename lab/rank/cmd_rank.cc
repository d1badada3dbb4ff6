#include "lab/rank/cmd_rank.h"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "kvferry/bootstrap_server.h"
#include "lab/rank/output.h"
#include "lab/rank/rank.h"

namespace kvferry::lab {
namespace {

class RankInvocation final : public cli::Invocation {
 public:
  void declare(cli::Settings& settings) override { settings_.declare(settings); }

  int run() override {
    auto rank = Rank::make(settings_);
    if (!rank) {
      fmt::print(stderr, "kvferry-lab rank: {}\n", to_string(rank.error()));
      return cli::kExitFalse;
    }
    return (*rank)->run();
  }

 private:
  RankSettings settings_;
};

class RegistryInvocation final : public cli::Invocation {
 public:
  void declare(cli::Settings& settings) override {
    settings.number<std::uint16_t>("port", "", options_.port, 0, 65'535,
                                   "port of 127.0.0.1; 0: any free one");
  }

  // Until the end of stdin.
  int run() override {
    auto server = BootstrapServer::start(options_);
    if (!server) {
      fmt::print(stderr, "kvferry-lab registry: {}\n", to_string(server.error()));
      return cli::kExitFalse;
    }
    Output().write(
        router::JsonObject().text("event", "ready").text("control", (*server)->address()));
    for (std::string line; std::getline(std::cin, line) && line != "quit";) continue;
    (*server)->stop();
    return cli::kExitTrue;
  }

 private:
  BootstrapServerOptions options_;
};

}  // namespace

const cli::Command& rank_command() {
  static const cli::Command command{
      "rank", "A prefill or decode rank of a drill, led over stdin.",
      "Commands come as JSON lines on stdin, answers and events go as JSON lines to stdout; the "
      "commands\nstand in lab/rank/rank_commands.cc. It ends with \"quit\" or with its stdin.",
      [] { return std::unique_ptr<cli::Invocation>(std::make_unique<RankInvocation>()); }};
  return command;
}

const cli::Command& registry_command() {
  static const cli::Command command{
      "registry", "The registry of a drill.", "It ends with its stdin.",
      [] { return std::unique_ptr<cli::Invocation>(std::make_unique<RegistryInvocation>()); }};
  return command;
}

}  // namespace kvferry::lab
