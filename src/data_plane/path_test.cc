#include "data_plane/path_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/prng.h"
#include "data_plane/lanes/fields.h"
#include "kvferry/shared_pool.h"

namespace kvferry::data_plane {
namespace {

constexpr std::uint64_t kItemBytes = 4'096;  // what one test writes
// More than sessions that are tested at a time; two that share an item may spoil each other's test.
constexpr std::uint32_t kItems = 1'024;
constexpr TicketId kTicket{std::uint64_t{1} << 63};
constexpr Generation kGeneration{1};
constexpr std::uint64_t kGrantMark = std::uint64_t{1} << 63;

constexpr std::uint8_t kBlobVersion = 1;
constexpr std::size_t kPrefixBytes = 1 + sizeof(std::uint32_t);

// What goes before the inner transport's blob: the slot of the tests at this side.
std::vector<std::uint8_t> with_prefix(GrantSlot slot, std::span<const std::uint8_t> inner) {
  std::vector<std::uint8_t> blob;
  blob.reserve(kPrefixBytes + inner.size());
  put(blob, kBlobVersion);
  put(blob, slot.value());
  put_bytes(blob, inner);
  return blob;
}

struct PeerBlob {
  GrantSlot slot;
  std::vector<std::uint8_t> inner;
};

std::optional<PeerBlob> parse(std::span<const std::uint8_t> blob) {
  if (blob.size() < kPrefixBytes) return std::nullopt;
  Fields fields(blob);
  if (fields.take<std::uint8_t>() != kBlobVersion) return std::nullopt;
  PeerBlob peer;
  peer.slot = GrantSlot(fields.take<std::uint32_t>());
  peer.inner.assign(fields.rest().begin(), fields.rest().end());
  return peer;
}

std::uint32_t target_item(SessionEpoch epoch) {
  return static_cast<std::uint32_t>(epoch.value() % kItems);
}

// Both sides draw the same bytes from the session's epoch.
void fill(SessionEpoch epoch, std::byte* item) {
  Prng prng(epoch.value());
  for (std::uint64_t at = 0; at < kItemBytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = prng.next();
    std::memcpy(item + at, &word, sizeof word);
  }
}

// Where the first wrong byte is; nothing when all are right.
std::optional<std::uint64_t> first_difference(SessionEpoch epoch, const std::byte* item) {
  std::vector<std::byte> expected(kItemBytes);
  fill(epoch, expected.data());
  const auto [wrong, end] = std::mismatch(expected.begin(), expected.end(), item);
  if (wrong == expected.end()) return std::nullopt;
  return static_cast<std::uint64_t>(wrong - expected.begin());
}

// The scratch region of one process. In a shared pool where the host allows one, so that shm reads
// it in the same way as the engine's.
class Scratch {
 public:
  Scratch() {
    if (auto pool = SharedPool::create(kItemBytes * kItems)) {
      pool_.emplace(std::move(*pool));
    } else {
      memory_.resize(kItemBytes * kItems);
    }
  }
  std::byte* item(std::uint32_t number) {
    return (pool_ ? pool_->base() : memory_.data()) + number * kItemBytes;
  }
  Region region() {
    Region region;
    region.base = item(0);
    region.item_bytes = kItemBytes;
    region.item_count = kItems;
    region.memory_fd = pool_ ? pool_->fd() : -1;
    return region;
  }

 private:
  std::optional<SharedPool> pool_;
  std::vector<std::byte> memory_;
};

// Between the inner transport and the sink: takes out what belongs to a test.
class PathTest final : public Transport, private CompletionSink {
 public:
  PathTest(const TransportConfig& config, CompletionSink& sink)
      : role_(config.role), slot_(config.max_grant_slots), sink_(sink) {}
  ~PathTest() override { stop(); }
  PathTest(const PathTest&) = delete;
  PathTest& operator=(const PathTest&) = delete;

  Status make_inner(const TransportMaker& make, TransportConfig config) {
    // A source posts into its peers' slots, whose number is theirs to say.
    config.max_grant_slots = config.role == Role::kPrefill
                                 ? std::numeric_limits<std::uint32_t>::max()
                                 : config.max_grant_slots + 1;
    auto made = make(config, *this);
    if (!made) return tl::unexpected(made.error());
    inner_ = std::move(*made);
    return {};
  }

  TransportProperties properties() const override { return inner_->properties(); }
  std::vector<std::string_view> offers() const override { return inner_->offers(); }
  std::vector<PathReport> paths() const override { return inner_->paths(); }
  std::vector<TransportCounter> counters() const override { return inner_->counters(); }
  std::vector<std::uint8_t> local_blob() const override {
    return with_prefix(slot_, inner_->local_blob());
  }

  Status register_regions(std::span<const Region> regions) override {
    scratch_id_.reset();
    std::vector<Region> all(regions.begin(), regions.end());
    if (regions.size() < kMaxRegions) {
      all.push_back(scratch_.region());
    }
    if (auto registered = inner_->register_regions(all); !registered) return registered;
    if (regions.size() < kMaxRegions) {
      scratch_id_ = RegionId(static_cast<std::uint32_t>(regions.size()));
    }
    return {};
  }
  Status unregister_regions(Unregister how) override {
    fence_finished(true);
    return inner_->unregister_regions(how);
  }

  Status open_session(const SessionLink& link) override;
  void close_session(SessionEpoch session) override;
  void open_grant(GrantId grant, std::vector<SlotGrant> slots) override {
    fence_finished(false);
    inner_->open_grant(grant, std::move(slots));
  }
  void fence(GrantId grant) override {
    fence_finished(false);
    inner_->fence(grant);
  }
  void post(SessionEpoch session, std::span<const layout::Write> writes) override {
    inner_->post(session, writes);
  }
  void give_up(SessionEpoch session, GrantSlot slot, Generation generation) override {
    inner_->give_up(session, slot, generation);
  }
  void stop() override {
    if (inner_) inner_->stop();
  }

 private:
  struct Test {
    GrantId grant;  // target
    bool finished = false;
  };

  void start_at_source(SessionEpoch epoch, GrantSlot slot, RegionId target_region);
  void start_at_target(SessionEpoch epoch);
  void fence_finished(bool all);

  void writes_completed(std::span<const WriteCompletion> completions) noexcept override;
  void writes_quiet(SessionEpoch session, std::span<const TicketId> tickets) noexcept override;
  void writes_landed(std::span<const Landing> landings) noexcept override;
  void write_torn(const Landing& landing, std::string_view how) noexcept override;
  void fence_done(GrantId grant) noexcept override;
  void lane_failed(SessionEpoch session, Failure cause) noexcept override {
    sink_.lane_failed(session, std::move(cause));
  }
  void session_unreachable(SessionEpoch session, Failure cause) noexcept override {
    sink_.session_unreachable(session, std::move(cause));
  }
  void session_torn_down(SessionEpoch session) noexcept override {
    sink_.session_torn_down(session);
  }
  void regions_released() noexcept override { sink_.regions_released(); }

  const Role role_;
  const GrantSlot slot_;  // of the tests at this side
  CompletionSink& sink_;
  Scratch scratch_;
  // Tests of which something may still come; while there are none, batches pass unlooked at.
  std::atomic<std::uint32_t> under_way_{0};
  // The driver's.
  std::optional<RegionId> scratch_id_;
  std::uint32_t next_item_ = 0;  // source
  std::uint64_t next_grant_ = kGrantMark;
  // Target: open grants of tests. The driver changes which there are, receiving threads finish.
  std::mutex mutex_;
  std::unordered_map<SessionEpoch, Test> tests_;
  std::atomic<bool> some_finished_{false};
  // Last: its threads call this object until it is gone.
  std::unique_ptr<Transport> inner_;
};

Status PathTest::open_session(const SessionLink& link) {
  fence_finished(false);
  auto peer = parse(link.peer_blob);
  if (!peer) {
    return fail(FailureCode::kMalformed, "the peer's address blob can't be used",
                FailureWhere::kPeer);
  }
  SessionLink inner = link;
  inner.peer_blob = std::move(peer->inner);
  const RegionId peer_scratch(static_cast<std::uint32_t>(link.peer_item_bytes.size()));
  const bool tested = scratch_id_.has_value() && link.peer_item_bytes.size() < kMaxRegions;
  if (tested) {
    inner.peer_item_bytes.push_back(kItemBytes);
    inner.peer_item_counts.push_back(kItems);
  }
  if (auto opened = inner_->open_session(inner); !opened) return opened;
  if (!tested) {
    sink_.path_tested(link.epoch, {});
  } else if (role_ == Role::kPrefill) {
    start_at_source(link.epoch, peer->slot, peer_scratch);
  } else {
    start_at_target(link.epoch);
  }
  return {};
}

void PathTest::start_at_source(SessionEpoch epoch, GrantSlot slot, RegionId target_region) {
  const std::uint32_t item = next_item_++ % kItems;
  fill(epoch, scratch_.item(item));
  layout::Write write;
  write.ticket = kTicket;
  write.slot = slot;
  write.generation = kGeneration;
  write.source_region = *scratch_id_;
  write.source_offset = item * kItemBytes;
  write.target_region = target_region;
  write.target_item = target_item(epoch);
  write.length = kItemBytes;
  under_way_.fetch_add(1, std::memory_order_relaxed);
  inner_->post(epoch, std::span(&write, 1));
}

void PathTest::start_at_target(SessionEpoch epoch) {
  const GrantId grant(next_grant_++);
  {
    std::lock_guard lock(mutex_);
    tests_.insert_or_assign(epoch, Test{grant, false});
  }
  under_way_.fetch_add(1, std::memory_order_relaxed);
  const layout::ItemSlice whole{*scratch_id_, 0, kItemBytes, 1, 0};
  inner_->open_grant(grant,
                     {SlotGrant{epoch, slot_, kGeneration,
                                layout::GrantExtent({}, {}, {whole}, target_item(epoch), {}, {})}});
}

// Fences are the driver's to order, so those of tests that are over wait for its next call.
void PathTest::fence_finished(bool all) {
  if (!all && !some_finished_.exchange(false, std::memory_order_acquire)) return;
  std::vector<GrantId> over;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(tests_, [&](const auto& entry) {
      if (!all && !entry.second.finished) return false;
      over.push_back(entry.second.grant);
      return true;
    });
  }
  for (const GrantId grant : over) inner_->fence(grant);
}

void PathTest::close_session(SessionEpoch session) {
  std::optional<GrantId> open;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = tests_.find(session); found != tests_.end()) {
      open = found->second.grant;
      tests_.erase(found);
    }
  }
  if (open) inner_->fence(*open);
  inner_->close_session(session);
  fence_finished(false);
}

// --- what comes from the inner transport ---

void PathTest::writes_completed(std::span<const WriteCompletion> completions) noexcept {
  if (under_way_.load(std::memory_order_relaxed) == 0) {
    sink_.writes_completed(completions);
    return;
  }
  std::vector<WriteCompletion> others;
  for (const WriteCompletion& completion : completions) {
    if (completion.ticket != kTicket) {
      others.push_back(completion);
      continue;
    }
    switch (completion.outcome) {
      case layout::WriteOutcome::kLanded:
        under_way_.fetch_sub(1, std::memory_order_relaxed);
        sink_.path_tested(completion.session, {});
        break;
      case layout::WriteOutcome::kRefused:
        under_way_.fetch_sub(1, std::memory_order_relaxed);
        sink_.path_tested(
            completion.session,
            fail(FailureCode::kWriteRefused, "the peer refused the test page of the data path",
                 FailureWhere::kPeer));
        break;
      case layout::WriteOutcome::kUnknown:  // its quiet follows
        sink_.path_tested(
            completion.session,
            fail(FailureCode::kWriteUnknown,
                 "what became of the test page of the data path is not known by its deadline",
                 FailureWhere::kPath));
        break;
    }
  }
  if (!others.empty()) sink_.writes_completed(others);
}

void PathTest::writes_quiet(SessionEpoch session, std::span<const TicketId> tickets) noexcept {
  std::vector<TicketId> others(tickets.begin(), tickets.end());
  if (std::erase(others, kTicket) > 0) {
    under_way_.fetch_sub(1, std::memory_order_relaxed);
  }
  if (!others.empty()) sink_.writes_quiet(session, others);
}

void PathTest::writes_landed(std::span<const Landing> landings) noexcept {
  if (under_way_.load(std::memory_order_relaxed) == 0) {
    sink_.writes_landed(landings);
    return;
  }
  std::vector<Landing> others;
  for (const Landing& landing : landings) {
    if (landing.slot != slot_) {
      others.push_back(landing);
      continue;
    }
    const auto wrong = first_difference(landing.session, scratch_.item(landing.item));
    {
      std::lock_guard lock(mutex_);
      if (const auto found = tests_.find(landing.session); found != tests_.end()) {
        found->second.finished = true;
        some_finished_.store(true, std::memory_order_release);
      }
    }
    if (wrong) {
      sink_.path_tested(
          landing.session,
          fail(
              FailureCode::kWriteTorn,
              fmt::format("the test page of the data path landed altered, from byte {} on", *wrong),
              FailureWhere::kPath));
    } else {
      sink_.path_tested(landing.session, {});
    }
  }
  if (!others.empty()) sink_.writes_landed(others);
}

void PathTest::write_torn(const Landing& landing, std::string_view how) noexcept {
  if (landing.slot != slot_) {
    sink_.write_torn(landing, how);
    return;
  }
  sink_.path_tested(landing.session, fail(FailureCode::kWriteTorn,
                                          fmt::format("the test page of the data path {}", how),
                                          FailureWhere::kPath));
}

void PathTest::fence_done(GrantId grant) noexcept {
  if (grant.value() < kGrantMark) {
    sink_.fence_done(grant);
    return;
  }
  under_way_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

Result<std::unique_ptr<Transport>> make_tested_transport(const TransportMaker& make,
                                                         TransportConfig config,
                                                         CompletionSink& sink) {
  auto tested = std::make_unique<PathTest>(config, sink);
  if (auto made = tested->make_inner(make, std::move(config)); !made) {
    return tl::unexpected(made.error());
  }
  return tested;
}

}  // namespace kvferry::data_plane
