// Connections of somebody who knows nothing, half-open and garbage, beside a clean workload.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <thread>

#include "base/clock.h"
#include "base/crypto.h"
#include "bench/transfer/case_bench.h"
#include "bench/transfer/results.h"
#include "data_plane/lanes/frame.h"
#include "data_plane/shm/unix_socket.h"
#include "data_plane/tcp/socket.h"

namespace kvferry::bench {
namespace {

using data_plane::Fd;
using data_plane::TargetBlob;

constexpr std::uint32_t kConnections = 1'000;
constexpr std::size_t kGarbageBytes = 4096;

// Opens its connections evenly over the time of a turn and keeps every one until it is destroyed.
// Every second one sends garbage.
class Strangers {
 public:
  Strangers(const TargetBlob& target, Duration duration)
      : thread_([this, target, duration] { run(target, duration); }) {}
  ~Strangers() { finish(); }
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;

  // How many connections were made, when all were tried.
  std::uint32_t finish() {
    if (thread_.joinable()) thread_.join();
    return connected_;
  }

 private:
  void run(const TargetBlob& target, Duration duration) {
    std::array<std::uint8_t, kGarbageBytes> garbage{};
    fill_random(garbage);
    const Instant begin = monotonic_now();
    std::vector<Fd> connections;
    for (std::uint32_t i = 0; i < kConnections; ++i) {
      std::this_thread::sleep_for((begin + duration * i / kConnections) - monotonic_now());
      Fd fd = open(target);
      if (!fd.is_open()) continue;
      ++connected_;
      if (i % 2 == 1) ::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      connections.push_back(std::move(fd));
    }
  }

  static Fd open(const TargetBlob& target) {
    if (target.port == 0) return data_plane::shm::connect_unix(target.unix_path).value_or(Fd());
    auto fd = data_plane::tcp::start_connect(target.host, target.port);
    if (!fd) return {};
    pollfd waiting{fd->get(), POLLOUT, 0};
    if (::poll(&waiting, 1, 1'000) != 1) return {};
    return data_plane::tcp::connect_error(fd->get()).empty() ? std::move(*fd) : Fd();
  }

  std::uint32_t connected_ = 0;  // read after the thread has ended
  std::thread thread_;
};

}  // namespace

Result<std::vector<Figure>> run_strangers_case(const std::string& engine,
                                               const TransferOptions& options, const Hooks& hooks) {
  hooks.progress(fmt::format("strangers, {}: filling the pools", engine));
  WorkerPair workers(hooks);
  if (auto started =
          workers.start({engine}, options.setup, options.source_core, options.target_core);
      !started) {
    return tl::unexpected(started.error());
  }
  if (auto ready = workers.prepare(kCaseBlock); !ready) return tl::unexpected(ready.error());
  const std::string& blob = workers.blob();
  const auto target =
      data_plane::parse_blob({reinterpret_cast<const std::uint8_t*>(blob.data()), blob.size()});
  if (!target) return fail(FailureCode::kMalformed, "the target's address can't be read");
  const RunOrder warm_up{Duration(0), options.setup.pool_bytes, 0};
  if (auto warm = workers.run(engine, warm_up); !warm) return tl::unexpected(warm.error());

  const Duration duration = std::chrono::seconds(1);
  Series alone{engine, kCaseBlock, false, {}, {}};
  Series beside{engine, kCaseBlock, false, {}, {}};
  std::uint32_t least_connected = kConnections;
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    hooks.progress(fmt::format("strangers, {}: round {} of {}", engine, round + 1, options.rounds));
    auto quiet = workers.run(engine, {duration, 0, 0});
    if (!quiet) return tl::unexpected(quiet.error());
    alone.gbps.push_back(quiet->target.gbps());
    Strangers strangers(*target, duration);
    auto disturbed = workers.run(engine, {duration, 0, 0});
    if (!disturbed) return tl::unexpected(disturbed.error());
    beside.gbps.push_back(disturbed->target.gbps());
    least_connected = std::min(least_connected, strangers.finish());
  }
  const double ratio = ratio_of(beside, alone);
  return std::vector<Figure>{
      {engine, "goodput alone", median(alone.gbps), "GB/s", {}, true},
      {engine,
       fmt::format("goodput beside {} strangers", kConnections),
       median(beside.gbps),
       "GB/s",
       {},
       true},
      {engine, "their ratio by rounds", ratio, "", fmt::format("at least {:.2f}", kLeastBeside),
       ratio >= kLeastBeside},
      // One who is turned away at once has knocked too.
      {engine, "connections made in each round, least", static_cast<double>(least_connected), "",
       fmt::format("at least {}", kConnections / 2), least_connected >= kConnections / 2},
  };
}

}  // namespace kvferry::bench
