// A small deterministic world around the protocols: a virtual clock, control links, a data plane
// and processes that can die, restart and sleep. After every step each protocol's own invariants
// are checked; what callers rely on is checked where it happens (process.h).
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "fabric.h"
#include "links.h"
#include "process.h"

namespace kvferry::core::fake {

class World {
 public:
  World() : links_(*this), fabric_(*this) {}

  Process& add(const std::string& name, ProcessSetup setup);
  // prefill "p0", "p1", ... and decode "d0", "d1", ..., each rank of an engine of that size.
  void add_engines(std::uint32_t prefill_tp, std::uint32_t decode_tp, const Options& options = {},
                   TransportClass transport_class = {});
  void kill(const std::string& name);         // its endpoint refuses from now on
  Process& restart(const std::string& name);  // a new life at the same endpoint, with a new key
  Process& operator[](const std::string& name) { return *processes_.at(name); }
  Process* process_at(const std::string& endpoint);
  std::vector<PeerRow> prefill_rows(const std::string& instance) const;
  std::vector<Process*> living();

  Links& links() { return links_; }
  Fabric& fabric() { return fabric_; }

  Instant now() const { return now_; }
  void after(Duration delay, std::function<void()> happening);
  void run_for(std::int64_t ms);
  // False when the condition has not come true by then.
  bool run_until(const std::function<bool()>& condition, std::int64_t limit_ms);
  void sleep(Process& process, std::int64_t ms);  // the process is paused, the world goes on

  // One line of the trace.
  template <typename... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) {
    trace_ += fmt::format(text, std::forward<Args>(args)...) + "\n";
  }
  // What happened since the last call, with a newline in front so that it compares with a raw
  // string.
  std::string take_trace() { return "\n" + std::exchange(trace_, {}); }

  std::function<void(Process&, const std::vector<std::uint32_t>&)> release_hook;
  void on_release(Process& process, const std::vector<std::uint32_t>& pages) {
    if (release_hook) {
      release_hook(process, pages);
    }
  }

 private:
  void advance(Instant until, const std::function<bool()>& condition);

  Instant now_{std::chrono::seconds(1)};
  std::uint64_t next_happening_ = 1;
  std::map<std::pair<Instant, std::uint64_t>, std::function<void()>> happenings_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
  std::map<std::string, std::uint32_t> lives_;
  std::vector<std::unique_ptr<Process>> dead_;  // kept, since frames and writes still name them
  Links links_;
  Fabric fabric_;
  std::string trace_;
};

}  // namespace kvferry::core::fake
