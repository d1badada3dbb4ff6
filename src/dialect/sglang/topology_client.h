// Finds the prefill ranks of rooms at SGLang's bootstrap routes (sglang_routes.h, or SGLang's own
// server): the sizes of the prefill server, then the address of each rank that this decode rank
// asks (stock_prefill.h). Every rank is one row, dummies too, in the order of its numbers; the
// address of a row is virtual, for the decode translator to own.
//
// A server that is not there yet, not complete, or has not heard of a room is asked again until
// http_total_timeout_ms is over. What it has said holds until a peer of it is lost. Of several
// replicas (dp_size) a room has the one that it named, if that is not 0; else the one that follows
// from its number, where the server says that they do; else the one that the server names for it.
//
// One thread for each registry that is asked; the methods may be called from any and never wait,
// but for stop(), which waits for a request under way (http_try_timeout_ms).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/layout_shape.h"
#include "base/thread_roster.h"
#include "kvferry/options.h"
#include "net/http_client.h"
#include "runtime/prefill_resolver.h"

namespace kvferry::sglang {

struct TopologyClientConfig {
  Options options;     // whom it may ask, limits and timeouts
  LayoutShape layout;  // of this decode rank
  // As SGLang's decode compares it; none: not compared.
  std::optional<std::string> kv_cache_dtype;
  ThreadRoster* threads = nullptr;  // where its threads are listed; outlives it
};

class TopologyClient final : public runtime::PrefillResolver {
 public:
  using Answer = std::function<void(core::PrefillResolved)>;
  // inner: for what concerns kvferry's own registries, if this rank registers at any.
  TopologyClient(TopologyClientConfig config, std::unique_ptr<runtime::PrefillResolver> inner,
                 Answer answer);
  ~TopologyClient() override;
  TopologyClient(const TopologyClient&) = delete;
  TopologyClient& operator=(const TopologyClient&) = delete;

  Status start() override { return inner_->start(); }
  void resolve(const core::ResolvePrefill& query) override;
  // Refused: SGLang's registries list no servers, so that a pair is made with its first room.
  Status keep_paired(const std::string& address) override;
  void refresh_keys() override { inner_->refresh_keys(); }
  void invalidate(const std::string& endpoint) override;
  std::vector<std::string> readiness_problems() const override {
    return inner_->readiness_problems();
  }
  const runtime::RegistryCounters& counters() const override { return inner_->counters(); }
  void begin_stop() override;
  void stop() override;

 private:
  class Registry;
  Result<Registry*> registry_for(const std::string& address);

  const TopologyClientConfig config_;
  const std::unique_ptr<runtime::PrefillResolver> inner_;
  const Answer answer_;
  const std::unique_ptr<net::HttpClient> client_;
  std::mutex mutex_;
  bool stopping_ = false;
  std::map<std::string, std::unique_ptr<Registry>> registries_;
};

}  // namespace kvferry::sglang
