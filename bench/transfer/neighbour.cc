#include "bench/transfer/neighbour.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "base/clock.h"
#include "bench/transfer/transport_engine.h"

namespace kvferry::bench {
namespace {

constexpr const char* kBlock = "64K";
constexpr std::uint64_t kPoolBytes = 64U << 20;

}  // namespace

Result<std::unique_ptr<Neighbour>> Neighbour::start(const std::string& name,
                                                    const WorkerSetup& setup, const Pool& pool,
                                                    data_plane::Transport& transport) {
  auto between = Channel::make_pair();
  if (!between) return tl::unexpected(between.error());
  auto worker = start_worker("target", between->second);
  if (!worker) return tl::unexpected(worker.error());
  std::unique_ptr<Neighbour> neighbour(new Neighbour(transport, std::move(*worker)));
  if (auto ready = neighbour->prepare(name, setup, pool, between->first); !ready) {
    ready.error().what = "the neighbour: " + ready.error().what;
    return tl::unexpected(ready.error());
  }
  return neighbour;
}

Neighbour::~Neighbour() { end(); }

void Neighbour::end() {
  // A stopped process does nothing about SIGTERM.
  ::kill(worker_.child->pid(), SIGKILL);
  if (is_open_) transport_.close_session(epoch_);
  is_open_ = false;
}

Status Neighbour::prepare(const std::string& name, WorkerSetup setup, const Pool& pool,
                          Channel& peer) {
  setup.pool_bytes = kPoolBytes;
  setup.core = -1;
  setup.engines.fill(0);
  name.copy(setup.engines.data(), setup.engines.size() - 1);
  auto block = make_block(kBlock, kPoolBytes);
  if (!block) return tl::unexpected(block.error());
  Channel& control = worker_.control;
  const std::string text(reinterpret_cast<const char*>(&setup), sizeof setup);
  if (auto sent = control.send({Kind::kSetup, {}, text, {}}); !sent) return sent;
  Message shared{Kind::kPool, {}, {}, data_plane::Fd(::dup(pool.memory_fd))};
  if (auto sent = peer.send(shared); !sent) return sent;
  if (auto done = control.expect(Kind::kReady, kPatience); !done) {
    return tl::unexpected(done.error());
  }
  if (auto sent = control.send({Kind::kPrepare, {}, kBlock, {}}); !sent) return sent;
  if (auto opened = open(*block, peer); !opened) return opened;
  if (auto done = control.expect(Kind::kReady, kPatience); !done) {
    return tl::unexpected(done.error());
  }
  const RunOrder endless{std::chrono::hours(1), 0, 0};
  if (auto sent = control.send({Kind::kRun, endless.numbers(), name, {}}); !sent) return sent;
  if (auto granted = take_grants(*block, peer); !granted) return granted;
  return stop_process();
}

Status Neighbour::open(const Block& block, Channel& peer) {
  auto address = peer.expect(Kind::kAddress, kPatience);
  if (!address) return tl::unexpected(address.error());
  const auto blob = transport_.local_blob();
  auto sent = peer.send({Kind::kAddress, {}, std::string(blob.begin(), blob.end()), {}});
  if (!sent) return sent;
  if (auto is_open = peer.expect(Kind::kOpen, kPatience); !is_open) {
    return tl::unexpected(is_open.error());
  }
  epoch_ = SessionEpoch(address->numbers[0]);
  std::array<std::uint8_t, 32> secret{};
  std::copy_n(address->text.begin(), secret.size(), secret.begin());
  auto opened = transport_.open_session(make_link(
      Role::kPrefill, epoch_, secret, std::string_view(address->text).substr(secret.size()),
      regions_of(block, nullptr, kPoolBytes, -1)));
  is_open_ = opened.has_value();
  return opened;
}

Status Neighbour::take_grants(const Block& block, Channel& peer) {
  const auto order = scattered_order(block.page_count);
  for (std::uint32_t i = 0; i < block.grants_in_flight; ++i) {
    auto grant = peer.expect(Kind::kGrant, kPatience);
    if (!grant) return tl::unexpected(grant.error());
    for (std::uint32_t page = 0; page < block.pages_per_grant; ++page) {
      layout::Write& write = writes_.emplace_back();
      write.slot = GrantSlot(static_cast<std::uint32_t>(grant->numbers[1]));
      write.generation = Generation(grant->numbers[2]);
      write.target_item = order[grant->numbers[0] * block.pages_per_grant + page];
      write.source_offset = write.target_item * block.page_bytes;
      write.length = block.page_bytes;
    }
  }
  return {};
}

Status Neighbour::stop_process() {
  const pid_t pid = worker_.child->pid();
  siginfo_t seen{};
  if (::kill(pid, SIGSTOP) == 0 &&
      ::waitid(P_PID, static_cast<id_t>(pid), &seen, WSTOPPED | WNOWAIT) == 0) {
    return {};
  }
  return fail(FailureCode::kOperatingSystem, data_plane::errno_text("waitid"));
}

void Neighbour::post(std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    layout::Write& write = writes_[posted_ % writes_.size()];
    write.ticket = TicketId(++posted_);
    const Instant before = monotonic_now();
    transport_.post(epoch_, std::span(&write, 1));
    post_max_ = std::max(post_max_, monotonic_now() - before);
  }
}

}  // namespace kvferry::bench
