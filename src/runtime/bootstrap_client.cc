#include "runtime/bootstrap_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/allowed_registries.h"

namespace kvferry::runtime {
namespace {

bool contains(const std::vector<std::string>& list, const std::string& address) {
  return std::find(list.begin(), list.end(), address) != list.end();
}

bool same_peer(const core::PeerRow& a, const core::PeerRow& b) { return a.address == b.address; }

bool same_rows(const std::vector<core::PeerRow>& a, const std::vector<core::PeerRow>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const core::PeerRow& x, const core::PeerRow& y) {
                      return same_peer(x, y) && x.instance == y.instance && x.rank == y.rank &&
                             x.engine_epoch == y.engine_epoch;
                    });
}

}  // namespace

BootstrapClient::BootstrapClient(const Options& options, core::RegistryRow self,
                                 ClusterTokens& tokens, KeyDirectory& keys, Mailbox& mailbox,
                                 ThreadRoster* threads)
    : options_(options),
      self_(std::move(self)),
      threads_(threads),
      tokens_(tokens),
      keys_(keys),
      mailbox_(mailbox),
      client_(net::HttpClient::start()) {}

BootstrapClient::~BootstrapClient() { stop(); }

Status BootstrapClient::start() {
  for (const std::string& address : options_.bootstrap_addresses) {
    if (Result<RegistryWorker*> worker = worker_for(address); !worker) {
      return tl::unexpected(worker.error());
    }
  }
  return {};
}

Status check_registry_allowed(const Options& options, const std::string& address) {
  if (allows_registry(options, address)) {
    return {};
  }
  return fail(FailureCode::kUnauthorized,
              fmt::format("registry '{}' is neither in bootstrap_addresses nor in bootstrap_allow",
                          address));
}

Result<RegistryWorker*> BootstrapClient::worker_for(const std::string& address) {
  if (Status allowed = check_registry_allowed(options_, address); !allowed) {
    return tl::unexpected(allowed.error());
  }
  std::lock_guard lock(mutex_);
  if (stopping_) {
    return fail(FailureCode::kShuttingDown, "the manager was stopped");
  }
  // One thread each, and with "*:port" a request names them.
  if (!workers_.contains(address) && workers_.size() >= options_.max_peers) {
    return fail(FailureCode::kTableFull,
                fmt::format("registry '{}' would be one more than max_peers = {}", address,
                            options_.max_peers));
  }
  std::unique_ptr<RegistryWorker>& worker = workers_[address];
  if (worker == nullptr) {
    RegistryWorkerConfig config;
    config.address = address;
    config.self = self_;
    config.lease_ms = options_.lease_ms;
    config.try_timeout_ms = options_.http_try_timeout_ms;
    config.total_timeout_ms = options_.http_total_timeout_ms;
    config.leave_timeout_ms = std::max(options_.stop_timeout_ms / 4, 1U);
    config.max_queries = options_.max_rooms;
    config.threads = threads_;
    // A rank registers wherever it asks, since the ranks that it finds there look up its key there.
    auto made = std::make_unique<RegistryWorker>(
        std::move(config), *client_, tokens_, keys_, counters_,
        [this](const std::string& registry, std::vector<core::PeerRow> rows) {
          pairs_changed(registry, std::move(rows));
        });
    if (Status started = made->start(); !started) {
      workers_.erase(address);
      return tl::unexpected(started.error());
    }
    worker = std::move(made);
  }
  return worker.get();
}

// Registries of one fleet stand in for each other: the first that knows the ranks answers.
class BootstrapClient::Question {
 public:
  Question(Mailbox& mailbox, core::ReceiverId receiver, std::size_t asked)
      : mailbox_(mailbox), receiver_(receiver), open_(asked) {}

  // is_named: by the registry that the room named; if all fail, that one's reason is told.
  void answer(bool is_named, Result<std::vector<core::PeerRow>> rows) {
    std::lock_guard lock(mutex_);
    --open_;
    if (answered_) {
      return;
    }
    if (!rows && (is_named || !failure_)) {
      failure_ = rows.error();
    }
    if (!rows && open_ > 0) {
      return;
    }
    answered_ = true;
    if (!rows) {
      rows = tl::unexpected(*failure_);
    }
    mailbox_.push_reserved(core::PrefillResolved{receiver_, std::move(rows)});
  }

 private:
  Mailbox& mailbox_;
  const core::ReceiverId receiver_;
  std::mutex mutex_;
  std::size_t open_;
  bool answered_ = false;
  std::optional<Failure> failure_;
};

std::vector<std::string> BootstrapClient::registries_for(const std::string& named) const {
  if (!contains(options_.bootstrap_addresses, named)) {
    return {named};
  }
  return options_.bootstrap_addresses;
}

void BootstrapClient::resolve(const core::ResolvePrefill& query) {
  const std::vector<std::string> registries = registries_for(query.bootstrap_address);
  const auto question = std::make_shared<Question>(mailbox_, query.receiver, registries.size());
  for (const std::string& address : registries) {
    const bool is_named = address == query.bootstrap_address;
    const Result<RegistryWorker*> worker = worker_for(address);
    if (!worker) {
      question->answer(is_named, tl::unexpected(worker.error()));
      continue;
    }
    core::ResolvePrefill asked = query;
    asked.bootstrap_address = address;
    const bool taken = (*worker)->add_query(
        std::move(asked), [question, is_named](Result<std::vector<core::PeerRow>> rows) {
          question->answer(is_named, std::move(rows));
        });
    if (!taken) {
      question->answer(is_named,
                       fail(FailureCode::kQueueFull,
                            fmt::format("max_rooms = {} rooms wait for an answer of their registry",
                                        options_.max_rooms)));
    }
  }
}

Status BootstrapClient::keep_paired(const std::string& address) {
  const Result<RegistryWorker*> worker = worker_for(address);
  if (!worker) {
    return tl::unexpected(worker.error());
  }
  (*worker)->want_pairs();
  return {};
}

void BootstrapClient::refresh_keys() {
  std::lock_guard lock(mutex_);
  for (const auto& [address, worker] : workers_) {
    worker->request_refresh();
  }
}

void BootstrapClient::invalidate(const std::string& endpoint) {
  std::lock_guard lock(mutex_);
  for (const auto& [address, worker] : workers_) {
    worker->invalidate(endpoint);
  }
}

void BootstrapClient::pairs_changed(const std::string& registry, std::vector<core::PeerRow> rows) {
  std::lock_guard lock(pairs_mutex_);
  const auto found = pairs_.find(registry);
  if (found != pairs_.end() && same_rows(found->second, rows)) {
    return;
  }
  pairs_[registry] = std::move(rows);
  core::PairsWanted wanted;
  for (const auto& [address, listed] : pairs_) {
    for (const core::PeerRow& row : listed) {
      if (std::none_of(wanted.rows.begin(), wanted.rows.end(),
                       [&](const core::PeerRow& known) { return same_peer(known, row); })) {
        wanted.rows.push_back(row);
      }
    }
  }
  mailbox_.push_reserved(std::move(wanted));
}

std::vector<std::string> BootstrapClient::readiness_problems() const {
  std::vector<std::string> problems;
  std::string waiting;
  bool registered = false;
  std::lock_guard lock(mutex_);
  for (const auto& [address, worker] : workers_) {
    const RegistryWorker::Registration state = worker->registration();
    registered = registered || state.ever;
    if (state.refused) {
      problems.push_back(fmt::format("refused by the registry: {}", state.cause));
    } else if (!state.ever) {
      waiting = fmt::format("registered at no registry yet: {}: {}", address, state.cause);
    }
  }
  // A registry that was reached and is away now is a peer that is away: this server itself is
  // sound.
  if (!registered && !waiting.empty()) {
    problems.push_back(std::move(waiting));
  }
  return problems;
}

void BootstrapClient::begin_stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  for (const auto& [address, worker] : workers_) {
    worker->begin_stop();
  }
}

void BootstrapClient::stop() {
  begin_stop();
  // workers_ does not change any more; joined outside the mutex, which their callers take.
  for (const auto& [address, worker] : workers_) {
    worker->join();
  }
}

}  // namespace kvferry::runtime
