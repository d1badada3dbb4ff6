// One registry, one thread: keeps this rank registered there, answers rooms that look for their
// prefill ranks, feeds the key directory and watches for ranks to pair with. A thread per registry,
// so that one which hangs delays nobody who asks another.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/instant.h"
#include "base/log.h"
#include "base/prng.h"
#include "base/thread_roster.h"
#include "core/action.h"
#include "core/bootstrap_registry.h"
#include "kvferry/status.h"
#include "runtime/key_directory.h"
#include "runtime/registry_channel.h"

namespace kvferry::runtime {

struct RegistryCounters {
  std::atomic<std::uint64_t> registrations{0};
  std::atomic<std::uint64_t> registration_failures{0};
  std::atomic<std::uint64_t> lookups{0};
  std::atomic<std::uint64_t> lookup_failures{0};
  std::atomic<std::uint64_t> recalled{0};  // answers out of what a silent registry had said before
  std::atomic<std::uint64_t> forged_rows{0};
  std::atomic<std::uint64_t> malformed_rows{0};
};

struct RegistryWorkerConfig {
  std::string address;
  core::RegistryRow self;  // signed anew with each registration
  std::uint32_t lease_ms = 10'000;
  std::uint32_t try_timeout_ms = 1'000;
  std::uint32_t total_timeout_ms = 5'000;
  std::uint32_t leave_timeout_ms = 250;
  std::size_t max_queries = 65'536;  // waiting for an answer
  ThreadRoster* threads = nullptr;   // where its thread is listed; outlives it
};

class RegistryWorker {
 public:
  using Answer = std::function<void(Result<std::vector<core::PeerRow>> rows)>;
  using PairsChanged = std::function<void(const std::string& registry, std::vector<core::PeerRow>)>;

  // pairs_changed: called on the worker's thread with the prefill ranks listed, each time it
  // looked.
  RegistryWorker(RegistryWorkerConfig config, net::HttpClient& client, ClusterTokens& tokens,
                 KeyDirectory& keys, RegistryCounters& counters, PairsChanged pairs_changed);
  ~RegistryWorker();
  RegistryWorker(const RegistryWorker&) = delete;
  RegistryWorker& operator=(const RegistryWorker&) = delete;

  // Fails when the system refuses a thread.
  Status start();

  // --- any thread; none waits ---
  // Answered within total_timeout_ms, and one try at most more: at once, on the caller's thread,
  // out of rows that are fresh, or with kBootstrapFailed when the worker's thread has ended by an
  // exception; else on that thread. False when max_queries wait; then it is not answered.
  bool add_query(core::ResolvePrefill query, Answer answer);
  void want_pairs();
  // Looks again, at most every 200 ms.
  void request_refresh();
  // What was seen before answers no query any more while the registry does; and while it does not,
  // none that concerns this endpoint (empty: unknown).
  void invalidate(const std::string& endpoint);
  struct Registration {
    bool ever = false;     // this registry has accepted this rank once
    bool refused = false;  // its last answer was a refusal that waiting does not cure
    std::string cause;     // of the last failure, empty after a success
  };
  Registration registration() const;
  // The thread leaves the registry and ends; join() waits for it.
  void begin_stop();
  void join();

 private:
  struct Query {
    core::ResolvePrefill question;
    Answer tell;
    Instant deadline;
    Failure last;
    bool answered = false;
  };

  void run();
  bool wait_for_work();
  Instant next_lookup(Instant now) const;
  Result<net::HttpResponse> ask(std::string method, std::string target, std::string body,
                                std::uint32_t timeout_ms);
  void register_self();
  void registration_failed(Failure cause, bool refused);
  void look_up();
  std::optional<std::vector<core::PeerRow>> find_fresh(const core::ResolvePrefill& question);
  Result<std::vector<core::PeerRow>> recall(const core::ResolvePrefill& question) const;
  void lookup_failed(const Failure& cause, bool final);
  Result<std::vector<core::RegistryRow>> fetch_rows(bool& final);
  void use_rows(std::vector<core::RegistryRow> rows, Instant now);
  void answer_queries();
  void expire_queries(Instant now);
  void answer(Query& query, Result<std::vector<core::PeerRow>> rows);
  void drop_answered();
  void thread_failed(const char* why);
  void leave();
  core::RegistryRow signed_row();
  Duration jittered(Duration duration);

  const RegistryWorkerConfig config_;
  ClusterTokens& tokens_;
  KeyDirectory& keys_;
  RegistryCounters& counters_;
  const PairsChanged pairs_changed_;
  RegistryChannel channel_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Query> incoming_;
  std::size_t waiting_ = 0;  // in queries_, as of the thread's last turn
  bool refresh_requested_ = false;
  bool invalidated_ = false;
  // While the registry does not answer: what it said last. Sessions outlive it, and a room between
  // peers that have one must not wait for it.
  std::shared_ptr<const std::vector<core::RegistryRow>> last_rows_;
  Instant fresh_until_{};          // of last_rows_: they answer without the thread
  std::set<std::string> doubted_;  // endpoints lost since then
  bool silent_ = false;            // the last look-up failed
  bool pairs_wanted_ = false;
  bool stopping_ = false;
  Registration registration_;
  std::optional<Failure> ended_;  // by an exception: the answer to whoever asks from then on

  // The thread's own.
  std::vector<Query> queries_;
  std::vector<core::RegistryRow> rows_;
  bool rows_usable_ = false;
  bool refresh_wanted_ = false;
  bool watches_pairs_ = false;
  Instant rows_at_{};
  Instant lookup_not_before_{};
  Duration lookup_pause_{};
  Instant register_at_{};
  Instant registered_at_{};
  Duration register_pause_{};
  bool registered_ = false;
  log::RateLimit warning_limit_{std::chrono::seconds(5)};
  Prng prng_;
  const ThreadPlacePtr place_;
  std::thread thread_;
};

}  // namespace kvferry::runtime
