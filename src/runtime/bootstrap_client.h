// This process's side of the registries: registers it, resolves rooms, keeps keys and pairs
// current. One thread per registry that is in use; nothing here waits on the caller's thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/action.h"
#include "core/bootstrap_registry.h"
#include "kvferry/options.h"
#include "kvferry/status.h"
#include "net/http_client.h"
#include "runtime/cluster_tokens.h"
#include "runtime/key_directory.h"
#include "runtime/mailbox.h"
#include "runtime/prefill_resolver.h"
#include "runtime/registry_worker.h"

namespace kvferry::runtime {

class BootstrapClient final : public PrefillResolver {
 public:
  // keys, mailbox and threads, where its threads are listed, outlive the client.
  BootstrapClient(const Options& options, core::RegistryRow self, ClusterTokens& tokens,
                  KeyDirectory& keys, Mailbox& mailbox, ThreadRoster* threads = nullptr);
  ~BootstrapClient() override;
  BootstrapClient(const BootstrapClient&) = delete;
  BootstrapClient& operator=(const BootstrapClient&) = delete;

  // Starts registering at the configured registries.
  Status start() override;

  // --- any thread; none waits ---
  // If the registry is one of the configured ones, all of these are asked, and the first that knows
  // the ranks answers.
  void resolve(const core::ResolvePrefill& query) override;
  Status keep_paired(const std::string& address) override;
  void refresh_keys() override;
  // Rooms of other peers may still go by what was said while their registry does not answer.
  void invalidate(const std::string& endpoint) override;

  std::vector<std::string> readiness_problems() const override;  // empty without registries
  const RegistryCounters& counters() const override { return counters_; }

  void begin_stop() override;
  void stop() override;

 private:
  class Question;

  std::vector<std::string> registries_for(const std::string& named) const;
  Result<RegistryWorker*> worker_for(const std::string& address);
  void pairs_changed(const std::string& registry, std::vector<core::PeerRow> rows);

  const Options options_;
  const core::RegistryRow self_;
  ThreadRoster* const threads_;
  ClusterTokens& tokens_;
  KeyDirectory& keys_;
  Mailbox& mailbox_;
  RegistryCounters counters_;
  std::unique_ptr<net::HttpClient> client_;

  mutable std::mutex mutex_;
  bool stopping_ = false;
  std::map<std::string, std::unique_ptr<RegistryWorker>> workers_;

  std::mutex pairs_mutex_;
  std::map<std::string, std::vector<core::PeerRow>> pairs_;  // by registry
};

}  // namespace kvferry::runtime
