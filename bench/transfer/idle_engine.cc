#include "bench/transfer/idle_engine.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "base/crypto.h"
#include "bench/transfer/null_sink.h"
#include "bench/transfer/transport_engine.h"
#include "data_plane/factory.h"

namespace kvferry::bench {
namespace {

using data_plane::Transport;

// Counts what landed, at either end.
class CountingSink final : public NullSink {
 public:
  void writes_completed(std::span<const layout::WriteCompletion> completions) noexcept override {
    for (const layout::WriteCompletion& completion : completions) {
      if (completion.outcome == layout::WriteOutcome::kLanded) add(1);
    }
  }
  void writes_landed(std::span<const layout::Landing> landings) noexcept override {
    add(static_cast<std::uint32_t>(landings.size()));
  }
  Status wait(std::uint32_t count) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kPatience, [&] { return count_ >= count; })) return {};
    return fail(FailureCode::kPeerUnreachable,
                fmt::format("{} of {} sessions are up", count_, count));
  }

 private:
  void add(std::uint32_t count) {
    std::lock_guard lock(mutex_);
    count_ += count;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t count_ = 0;
};

Duration cpu_used() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return Duration(std::chrono::seconds(time.tv_sec)) + std::chrono::microseconds(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

// This process's share of the memory that it maps: what is shared counts once in all.
std::uint64_t memory_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    std::uint64_t kibibytes = 0;
    if (word == "Pss:" && file >> kibibytes) return kibibytes << 10;
  }
  return 0;
}

// What both ends do alike.
class IdleEnd {
 protected:
  IdleEnd(std::string_view name, const WorkerSetup& setup, const Pool& pool)
      : name_(name.substr(kIdlePrefix.size())), setup_(setup), pool_(pool) {}

  Status open(Role role, const Block& block) {
    transport_.reset();
    sink_ = std::make_unique<CountingSink>();
    regions_ = regions_of(block, pool_.base, pool_.bytes, pool_.memory_fd);
    auto made = data_plane::make_transport(name_, transport_config(role, setup_), *sink_);
    if (!made) return tl::unexpected(made.error());
    transport_ = std::move(*made);
    auto registered = transport_->register_regions(regions_);
    memory_before_ = memory_bytes();
    return registered;
  }
  std::string address_blob() const {
    const auto bytes = transport_->local_blob();
    return {bytes.begin(), bytes.end()};
  }
  std::uint64_t session_bytes() const {
    const std::uint64_t now = memory_bytes();
    return now > memory_before_ ? now - memory_before_ : 0;
  }
  // Sleeps, and says what the process used meanwhile.
  static Duration rest(Duration duration) {
    const Duration before = cpu_used();
    std::this_thread::sleep_for(duration);
    return cpu_used() - before;
  }

  const std::string name_;
  const WorkerSetup setup_;
  const Pool pool_;
  std::vector<Region> regions_;
  std::uint64_t memory_before_ = 0;
  std::unique_ptr<CountingSink> sink_;  // outlives the transport
  std::unique_ptr<Transport> transport_;
};

class IdleSource final : public SourceEngine, private IdleEnd {
 public:
  IdleSource(std::string_view name, const WorkerSetup& setup, const Pool& pool)
      : IdleEnd(name, setup, pool) {}

  Status prepare(const Block& block, Channel& target) override {
    if (auto opened = open(Role::kPrefill, block); !opened) return opened;
    for (std::uint32_t i = 0; i < kIdleSessions; ++i) {
      auto address = target.expect(Kind::kAddress, kPatience);
      if (!address) return tl::unexpected(address.error());
      std::array<std::uint8_t, 32> secret{};
      std::copy_n(address->text.begin(), secret.size(), secret.begin());
      const SessionEpoch epoch(address->numbers[0]);
      auto opened = transport_->open_session(
          make_link(Role::kPrefill, epoch, secret,
                    std::string_view(address->text).substr(secret.size()), regions_));
      if (!opened) return opened;
      layout::Write write;
      write.ticket = TicketId(1);
      write.generation = Generation(1);
      write.target_item = i;
      write.length = block.page_bytes;
      transport_->post(epoch, std::span(&write, 1));
    }
    return sink_->wait(kIdleSessions);
  }

  Result<PostResult> run(const RunOrder& order, Channel&) override {
    PostResult result;
    result.session_bytes = session_bytes();
    result.cpu = rest(order.duration);
    return result;
  }
};

class IdleTarget final : public TargetEngine, private IdleEnd {
 public:
  IdleTarget(std::string_view name, const WorkerSetup& setup, const Pool& pool)
      : IdleEnd(name, setup, pool) {}

  Status prepare(const Block& block, Channel& source) override {
    if (auto opened = open(Role::kDecode, block); !opened) return opened;
    // A source needs nothing at its own address.
    const std::string source_blob = address_blob();
    for (std::uint32_t i = 0; i < kIdleSessions; ++i) {
      const SessionEpoch epoch(i + 1);
      std::array<std::uint8_t, 32> secret{};
      fill_random(secret);
      auto opened =
          transport_->open_session(make_link(Role::kDecode, epoch, secret, source_blob, regions_));
      if (!opened) return opened;
      std::vector<data_plane::SlotGrant> slots;
      slots.push_back({epoch, GrantSlot(0), Generation(1),
                       layout::GrantExtent({{RegionId(0), 0, block.page_bytes, 1, 0}},
                                           {PageIndex(i)}, {}, -1, {}, {})});
      transport_->open_grant(GrantId(i + 1), std::move(slots));
      Message address{
          Kind::kAddress, {epoch.value()}, std::string(secret.begin(), secret.end()), {}};
      address.text += address_blob();
      if (auto sent = source.send(address); !sent) return sent;
    }
    return sink_->wait(kIdleSessions);
  }

  Result<RunResult> run(const RunOrder& order, Channel&) override {
    RunResult result;
    result.session_bytes = session_bytes();
    result.cpu = rest(order.duration);
    result.duration = order.duration;
    return result;
  }
};

}  // namespace

std::unique_ptr<SourceEngine> make_idle_source(std::string_view name, const WorkerSetup& setup,
                                               const Pool& pool) {
  return std::make_unique<IdleSource>(name, setup, pool);
}
std::unique_ptr<TargetEngine> make_idle_target(std::string_view name, const WorkerSetup& setup,
                                               const Pool& pool) {
  return std::make_unique<IdleTarget>(name, setup, pool);
}

}  // namespace kvferry::bench
