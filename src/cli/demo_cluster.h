// The processes of the demo and the private folder with their token and logs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/child_process.h"
#include "cli/interrupt.h"
#include "kvferry/status.h"
#include "net/http_client.h"

namespace kvferry::cli {

// Pinned on all servers, so that the number of chunks of a prompt is known.
inline constexpr std::int64_t kDemoChunkTokens = 128;

struct DemoOptions {
  std::string engine = "llama";
  std::string model;  // empty: beside the tree that this executable was built in
  std::string transport = "auto";
  std::uint32_t prompts = 24;
  std::uint32_t max_tokens = 32;
  std::uint32_t cancelled = 6;  // further requests, cancelled in mid-transfer
  std::string json;
  bool keep = false;
};

class DemoCluster {
 public:
  DemoCluster(const DemoOptions& options, const Interrupt& interrupt);
  ~DemoCluster();  // ends all processes and removes the folder
  DemoCluster(const DemoCluster&) = delete;
  DemoCluster& operator=(const DemoCluster&) = delete;

  // One process that does both roles; gives its address.
  Result<std::string> start_reference();
  void end_reference();
  // Bootstrap, prefill, decode and router, each ready to accept.
  Status start_fleet();
  // Until the router has a ready pair; the failure has its reasons.
  Status wait_paired(net::HttpClient& client);

  const std::string& prefill() const { return prefill_; }
  const std::string& decode() const { return decode_; }
  const std::string& router() const { return router_; }
  // The name of the first process that has ended though it should run; empty when all do.
  std::string ended_process();
  std::string log_tails() const;

 private:
  Status make_folder();
  Result<ChildProcess*> start(const std::string& name, std::vector<std::string> arguments);
  Result<std::string> start_and_wait(const std::string& name, std::vector<std::string> arguments);
  std::vector<std::string> serve_arguments(const std::string& role) const;

  const DemoOptions& options_;
  const Interrupt& interrupt_;
  std::string folder_;
  std::string token_file_;
  std::vector<std::unique_ptr<ChildProcess>> children_;
  std::string bootstrap_;
  std::string prefill_;
  std::string decode_;
  std::string router_;
};

}  // namespace kvferry::cli
