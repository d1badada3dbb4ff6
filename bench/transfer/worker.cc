#include "bench/transfer/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/runtime_guards.h"
#include "bench/transfer/engine.h"
#include "bench/transfer/idle_engine.h"
#include "bench/transfer/memcpy_engine.h"
#include "bench/transfer/pattern.h"
#include "bench/transfer/results.h"
#include "bench/transfer/stream_engine.h"
#include "bench/transfer/transport_engine.h"
#include "kvferry/shared_pool.h"

namespace kvferry::bench {
namespace {

auto os_failure(const char* call) {
  return fail(FailureCode::kOperatingSystem, data_plane::errno_text(call));
}

Status pin_to(std::int32_t core) {
  if (core < 0) return {};
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(core), &cores);
  if (::sched_setaffinity(0, sizeof cores, &cores) == 0) return {};
  return fail(
      FailureCode::kOperatingSystem,
      fmt::format("core {} can't be used: {}", core, data_plane::errno_text("sched_setaffinity")));
}

// Threads that are started later live there, too.
Status enter_network(std::string_view name) {
  if (name.empty()) return {};
  const std::string path = fmt::format("/run/netns/{}", name);
  const data_plane::Fd space(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (space.is_open() && ::setns(space.get(), CLONE_NEWNET) == 0) return {};
  return fail(FailureCode::kOperatingSystem,
              fmt::format("network namespace {} can't be entered: {} (it takes root, and `ip netns "
                          "add {}` before)",
                          path, data_plane::errno_text(space.is_open() ? "setns" : "open"), name));
}

Status miss_guard(std::uint32_t guard) {
#ifdef KVFERRY_LAB
  missing_runtime_guard = static_cast<RuntimeGuard>(guard);
#else
  if (guard != 0) return fail(FailureCode::kWrongState, "this program can't miss a guard");
#endif
  return {};
}

std::vector<std::string> split(std::string_view names) {
  std::vector<std::string> out;
  while (!names.empty()) {
    const std::size_t comma = std::min(names.find(','), names.size());
    out.emplace_back(names.substr(0, comma));
    names.remove_prefix(std::min(comma + 1, names.size()));
  }
  return out;
}

// One end: what differs between the two workers.
template <typename Engine>
class Worker {
 public:
  Worker(Channel control, Channel peer) : control_(std::move(control)), peer_(std::move(peer)) {}

  int serve() {
    while (true) {
      auto received = control_.receive(std::chrono::hours(1));
      if (!received) return 0;  // the controller is gone
      if (!*received) continue;
      const Message& message = **received;
      if (message.kind == Kind::kQuit) return 0;
      Message answer{Kind::kReady, {}, {}, {}};
      if (Status done = handle(message, answer); !done) {
        answer = {Kind::kFailed, {}, done.error().what, {}};
        // The other end waits for words of this one.
        if (!peer_.send(answer)) return 1;
      }
      if (!control_.send(answer)) return 0;
    }
  }

 private:
  Status handle(const Message& message, Message& answer) {
    switch (message.kind) {
      case Kind::kSetup:
        return set_up(message);
      case Kind::kPrepare:
        return prepare(message, answer);
      case Kind::kRun: {
        const auto engine = engines_.find(message.text);
        if (engine == engines_.end()) return fail(FailureCode::kWrongState, "no such engine");
        answer.kind = Kind::kResult;
        return run(*engine->second, RunOrder::from(message.numbers), answer);
      }
      default:
        return fail(FailureCode::kWrongState, "the controller sent what a worker can't do");
    }
  }

  Status set_up(const Message& message) {
    if (message.text.size() != sizeof setup_) return fail(FailureCode::kMalformed, "set-up");
    std::memcpy(&setup_, message.text.data(), sizeof setup_);
    if (auto missed = miss_guard(setup_.missing_guard); !missed) return missed;
    if (auto pinned = pin_to(setup_.core); !pinned) return pinned;
    if (auto entered = enter_network(network()); !entered) return entered;
    if (auto made = make_pool(); !made) return made;
    for (const std::string& name : split(setup_.engines.data())) {
      names_.push_back(name);
      engines_.emplace(name, make(name));
    }
    return {};
  }

  // The engines in one order on both sides, since their ends talk over one channel.
  Status prepare(const Message& message, Message& answer) {
    auto block =
        make_block(message.text, setup_.pool_bytes, static_cast<std::uint32_t>(message.numbers[0]));
    if (!block) return tl::unexpected(block.error());
    for (const std::string& engine : names_) {
      if (auto ready = engines_[engine]->prepare(*block, peer_); !ready) {
        ready.error().what = engine + ": " + ready.error().what;
        return ready;
      }
      answer.text = blob_of(*engines_[engine]);
    }
    return {};
  }

  static std::string blob_of(const Engine& engine);
  std::string_view network() const;  // the namespace to enter
  Status make_pool();
  std::unique_ptr<Engine> make(const std::string& name);
  Status run(Engine& engine, const RunOrder& order, Message& answer);

  Channel control_;
  Channel peer_;
  WorkerSetup setup_;
  std::optional<SharedPool> shared_;  // source
  Pool pool_;
  std::vector<std::string> names_;
  std::map<std::string, std::unique_ptr<Engine>> engines_;
};

template <>
std::string Worker<SourceEngine>::blob_of(const SourceEngine&) {
  return {};
}
template <>
std::string Worker<TargetEngine>::blob_of(const TargetEngine& engine) {
  return engine.blob();
}

template <>
std::string_view Worker<SourceEngine>::network() const {
  return setup_.source_namespace.data();
}
template <>
std::string_view Worker<TargetEngine>::network() const {
  return setup_.target_namespace.data();
}

template <>
Status Worker<SourceEngine>::make_pool() {
  const auto pages = setup_.huge == static_cast<std::uint32_t>(HugePages::kReserved)
                         ? SharedPool::Pages::kHuge
                         : SharedPool::Pages::kNormal;
  auto shared = SharedPool::create(setup_.pool_bytes + kAuxAreaBytes, pages);
  if (!shared) return tl::unexpected(shared.error());
  shared_.emplace(std::move(*shared));
  pool_ = {shared_->base(), setup_.pool_bytes, shared_->fd(), nullptr};
  fill_pattern({pool_.base, setup_.pool_bytes + kAuxAreaBytes}, 0);
  return peer_.send({Kind::kPool, {}, {}, data_plane::Fd(::dup(shared_->fd()))});
}

template <>
Status Worker<TargetEngine>::make_pool() {
  const std::uint64_t bytes = setup_.pool_bytes + kAuxAreaBytes;
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return os_failure("mmap");
  if (setup_.huge != static_cast<std::uint32_t>(HugePages::kNone) &&
      ::madvise(base, bytes, MADV_HUGEPAGE) != 0) {
    return os_failure("madvise(MADV_HUGEPAGE)");
  }
  std::memset(base, 0xEE, bytes);
  auto shared = peer_.expect(Kind::kPool, kPatience);
  if (!shared) return tl::unexpected(shared.error());
  const void* source =
      ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, shared->fd.get(), 0);
  if (source == MAP_FAILED) return os_failure("mmap of the source's pool");
  pool_ = {static_cast<std::byte*>(base), setup_.pool_bytes, -1,
           static_cast<const std::byte*>(source)};
  return {};
}

template <>
std::unique_ptr<SourceEngine> Worker<SourceEngine>::make(const std::string& name) {
  if (name.ends_with(kDigestsSuffix)) {
    WorkerSetup setup = setup_;
    setup.page_digests = 1;
    return make_transport_source(reference_of(name), setup, pool_);
  }
  if (name == kMemcpyName) return make_memcpy_source();
  if (name == kStreamName) return make_stream_source(setup_, pool_);
  if (name.starts_with(kIdlePrefix)) return make_idle_source(name, setup_, pool_);
  return make_transport_source(name, setup_, pool_);
}

template <>
std::unique_ptr<TargetEngine> Worker<TargetEngine>::make(const std::string& name) {
  // A target compares whatever digest comes.
  if (name.ends_with(kDigestsSuffix)) {
    return make_transport_target(reference_of(name), setup_, pool_);
  }
  if (name == kMemcpyName) return make_memcpy_target(pool_);
  if (name == kStreamName) return make_stream_target(setup_, pool_);
  if (name.starts_with(kIdlePrefix)) return make_idle_target(name, setup_, pool_);
  return make_transport_target(name, setup_, pool_);
}

template <>
Status Worker<SourceEngine>::run(SourceEngine& engine, const RunOrder& order, Message& answer) {
  auto result = engine.run(order, peer_);
  if (!result) return tl::unexpected(result.error());
  answer.numbers = result->numbers();
  return {};
}

template <>
Status Worker<TargetEngine>::run(TargetEngine& engine, const RunOrder& order, Message& answer) {
  auto result = engine.run(order, peer_);
  if (!result) return tl::unexpected(result.error());
  answer.numbers = result->numbers();
  return {};
}

}  // namespace

int run_worker(std::string_view side) {
  Channel control{data_plane::Fd(kControlFd)};
  Channel peer{data_plane::Fd(kPeerFd)};
  if (side == "source") return Worker<SourceEngine>(std::move(control), std::move(peer)).serve();
  if (side == "target") return Worker<TargetEngine>(std::move(control), std::move(peer)).serve();
  fmt::print(stderr, "kvferry bench: a worker is started by the bench itself\n");
  return 2;
}

}  // namespace kvferry::bench
