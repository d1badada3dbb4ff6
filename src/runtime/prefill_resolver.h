// Finds the prefill ranks of rooms for the driver: the registries of kvferry (bootstrap_client.h),
// or whoever speaks another protocol and is put around them from above the runtime.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_roster.h"
#include "core/action.h"
#include "kvferry/options.h"
#include "kvferry/status.h"
#include "runtime/registry_worker.h"

namespace kvferry::runtime {

class PrefillResolver {
 public:
  virtual ~PrefillResolver() = default;  // as stop()

  // Once, before any other.
  virtual Status start() = 0;

  // --- any thread; none waits ---
  // Answered by one PrefillResolved, in time or as a failure. An address that is neither configured
  // nor allowed is refused with kUnauthorized and never contacted.
  virtual void resolve(const core::ResolvePrefill& query) = 0;
  // PairsWanted comes each time the prefill ranks of all such addresses changed.
  virtual Status keep_paired(const std::string& address) = 0;
  // A key was refused that the registries may know by now.
  virtual void refresh_keys() = 0;
  // A peer was lost: what was said before is not good enough for the next room. endpoint: the
  // peer's, empty when it is not known.
  virtual void invalidate(const std::string& endpoint) = 0;
  // Reasons why this rank can't be found (rule 18).
  virtual std::vector<std::string> readiness_problems() const = 0;
  virtual const RegistryCounters& counters() const = 0;

  virtual void begin_stop() = 0;
  virtual void stop() = 0;  // idempotent; joins
};

// Puts a resolver of the caller's own around the manager's. answer: where PrefillResolved goes,
// from any thread; threads: where the resolver's own are listed. Both live as long as the manager.
using ResolverWrapper = std::function<std::unique_ptr<PrefillResolver>(
    std::unique_ptr<PrefillResolver> inner, std::function<void(core::PrefillResolved)> answer,
    ThreadRoster& threads)>;

// Whether a registry may be asked: it is one of bootstrap_addresses or in bootstrap_allow, where
// "*:port" allows every host at that port. Fails with kUnauthorized.
Status check_registry_allowed(const Options& options, const std::string& address);

}  // namespace kvferry::runtime
