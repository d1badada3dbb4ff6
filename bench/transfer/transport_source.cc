#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bench/transfer/neighbour.h"
#include "bench/transfer/null_sink.h"
#include "bench/transfer/transport_engine.h"
#include "data_plane/factory.h"

namespace kvferry::bench {
namespace {

using data_plane::Transport;
using layout::WriteOutcome;

// Counts for the measured session, and apart from it for the one to a neighbour.
class SourceSink final : public NullSink {
 public:
  explicit SourceSink(SessionEpoch measured) : measured_(measured) {}

  void writes_completed(std::span<const layout::WriteCompletion> completions) noexcept override {
    std::lock_guard lock(mutex_);
    for (const layout::WriteCompletion& completion : completions) {
      PostResult& counts = completion.session == measured_ ? counts_ : beside_;
      ++(completion.outcome == WriteOutcome::kLanded    ? counts.landed
         : completion.outcome == WriteOutcome::kRefused ? counts.refused
                                                        : counts.unknown);
    }
    if (completed(counts_) >= awaited_ || completed(beside_) >= awaited_beside_) {
      changed_.notify_all();
    }
  }
  void session_unreachable(SessionEpoch session, Failure cause) noexcept override {
    if (session != measured_) return;
    std::lock_guard lock(mutex_);
    failure_ = to_string(cause);
    changed_.notify_all();
  }

  void lane_failed(SessionEpoch session, Failure) noexcept override {
    if (session != measured_) return;
    std::lock_guard lock(mutex_);
    is_lane_lost_ = true;
    changed_.notify_all();
  }

  // Waits until a lane is lost (true) or all of the writes have their outcome.
  bool wait_lane_lost(std::uint64_t posted) {
    std::unique_lock lock(mutex_);
    awaited_ = posted;
    changed_.wait_for(lock, kPatience,
                      [&] { return is_lane_lost_ || completed(counts_) >= posted; });
    return is_lane_lost_;
  }
  // All outcomes since the session began, when there are that many.
  Result<PostResult> wait_outcomes(std::uint64_t posted) {
    std::unique_lock lock(mutex_);
    awaited_ = posted;
    changed_.wait_for(lock, kPatience,
                      [&] { return completed(counts_) >= posted || !failure_.empty(); });
    awaited_ = ~std::uint64_t{0};
    if (!failure_.empty()) return fail(FailureCode::kPeerUnreachable, failure_);
    return all_of(counts_, posted);
  }
  // Those of the writes to a neighbour, and forgets them.
  Result<PostResult> take_outcomes_beside(std::uint64_t posted) {
    std::unique_lock lock(mutex_);
    awaited_beside_ = posted;
    changed_.wait_for(lock, kPatience, [&] { return completed(beside_) >= posted; });
    awaited_beside_ = ~std::uint64_t{0};
    return all_of(std::exchange(beside_, {}), posted);
  }

 private:
  static std::uint64_t completed(const PostResult& counts) {
    return counts.landed + counts.refused + counts.unknown;
  }
  static Result<PostResult> all_of(const PostResult& counts, std::uint64_t posted) {
    if (completed(counts) == posted) return counts;
    return fail(
        FailureCode::kWriteUnknown,
        fmt::format("{} writes were posted and {} have an outcome", posted, completed(counts)));
  }

  const SessionEpoch measured_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t awaited_ = ~std::uint64_t{0};
  std::uint64_t awaited_beside_ = ~std::uint64_t{0};
  PostResult counts_;
  PostResult beside_;
  bool is_lane_lost_ = false;
  std::string failure_;
};

class TransportSource final : public SourceEngine {
 public:
  TransportSource(std::string_view name, const WorkerSetup& setup, const Pool& pool)
      : name_(name), setup_(setup), pool_(pool) {}

  Status prepare(const Block& block, Channel& target) override {
    transport_.reset();
    block_ = block;
    order_ = scattered_order(block.page_count);
    posted_ = 0;
    before_ = {};
    const auto regions = regions_of(block, pool_.base, pool_.bytes, pool_.memory_fd);

    auto address = target.expect(Kind::kAddress, kPatience);
    if (!address) return tl::unexpected(address.error());
    epoch_ = SessionEpoch(address->numbers[0]);
    sink_ = std::make_unique<SourceSink>(epoch_);
    auto made = data_plane::make_transport(name_, transport_config(Role::kPrefill, setup_), *sink_);
    if (!made) return tl::unexpected(made.error());
    transport_ = std::move(*made);
    if (auto registered = transport_->register_regions(regions); !registered) return registered;
    const auto blob = transport_->local_blob();
    auto sent = target.send({Kind::kAddress, {}, std::string(blob.begin(), blob.end()), {}});
    if (!sent) return sent;
    if (auto open = target.expect(Kind::kOpen, kPatience); !open) {
      return tl::unexpected(open.error());
    }
    std::array<std::uint8_t, 32> secret{};
    std::copy_n(address->text.begin(), secret.size(), secret.begin());
    return transport_->open_session(make_link(Role::kPrefill, epoch_, secret,
                                              std::string_view(address->text).substr(secret.size()),
                                              regions_of(block, nullptr, pool_.bytes, -1)));
  }

  Result<PostResult> run(const RunOrder& order, Channel& target) override {
    if (order.mode == RunMode::kBesideStopped) {
      auto neighbour = Neighbour::start(name_, setup_, pool_, *transport_);
      if (!neighbour) return tl::unexpected(neighbour.error());
      return run_beside(**neighbour, order, target);
    }
    return serve(order, target, nullptr);
  }

 private:
  // A target that asks for nothing for so long is gone, in a run that waits for that.
  static constexpr milliseconds kSilence{200};
  static constexpr std::uint32_t kLatePosts = 4'096;
  static constexpr std::uint32_t kPostsBeside = 4'096;  // before the run; fill every window

  // Posts to the neighbour, if there is one, as often as the target asks.
  Result<PostResult> serve(const RunOrder& order, Channel& target, Neighbour* neighbour) {
    const bool may_be_lost = order.mode == RunMode::kTargetLost;
    while (true) {
      auto received = target.receive(may_be_lost ? kSilence : kPatience);
      if (may_be_lost && (!received || !*received)) return lose_target(order);
      if (!received) return tl::unexpected(received.error());
      if (!*received) return fail(FailureCode::kPeerLost, "the target asks for nothing");
      const Message& message = **received;
      if (message.kind == Kind::kFailed) return fail(FailureCode::kPeerLost, message.text);
      if (message.kind == Kind::kEnd) return end(order, target);
      post_grant(message, order.batch);
      if (neighbour != nullptr) neighbour->post();
    }
  }

  Result<PostResult> run_beside(Neighbour& neighbour, const RunOrder& order, Channel& target) {
    neighbour.post(kPostsBeside);
    auto measured = serve(order, target, &neighbour);
    neighbour.end();
    auto beside = sink_->take_outcomes_beside(neighbour.posted());
    if (!measured) return measured;
    if (!beside) return beside;
    measured->refused = beside->refused;
    measured->unknown = beside->unknown;
    measured->post_max = neighbour.post_max();
    if (beside->landed == 0) return measured;
    return fail(FailureCode::kWrongState,
                fmt::format("{} writes landed at a target that is stopped", beside->landed));
  }

  Result<PostResult> end(const RunOrder& order, Channel& target) {
    auto counts = outcomes(order);
    if (!counts || order.mode == RunMode::kPlain || order.mode == RunMode::kBesideStopped) {
      return counts;
    }
    // Tells the target that nothing of this run is on its way any more.
    if (auto sent = target.send({Kind::kEnd, {}, {}, {}}); !sent) {
      return tl::unexpected(sent.error());
    }
    return counts;
  }

  // Goes on posting to a target that does not answer. A broken lane ends the session here, as the
  // core does when it knows that the peer's process is dead.
  Result<PostResult> lose_target(const RunOrder& order) {
    if (writes_.empty()) return fail(FailureCode::kWrongState, "the target was lost too early");
    layout::Write write = writes_.front();
    Duration post_max{};
    Instant before = monotonic_now();
    for (std::uint32_t i = 0; i < kLatePosts; ++i) {
      write.ticket = TicketId(++posted_);
      transport_->post(epoch_, std::span(&write, 1));
      const Instant now = monotonic_now();
      post_max = std::max(post_max, now - before);
      before = now;
    }
    if (sink_->wait_lane_lost(posted_)) transport_->close_session(epoch_);
    auto counts = outcomes(order);
    if (!counts) return counts;
    counts->posted_at = before.since_start();
    counts->known_at = monotonic_now().since_start();
    counts->post_max = post_max;
    return counts;
  }

  Result<PostResult> outcomes(const RunOrder& order) {
    auto counts = sink_->wait_outcomes(posted_);
    if (!counts) return counts;
    const PostResult of_run{counts->landed - before_.landed,
                            counts->refused - before_.refused,
                            counts->unknown - before_.unknown,
                            {},
                            0,
                            {},
                            {},
                            {}};
    before_ = *counts;
    const bool must_land = order.mode == RunMode::kPlain || order.mode == RunMode::kBesideStopped;
    if (must_land && of_run.refused + of_run.unknown != 0) {
      return fail(FailureCode::kWriteUnknown,
                  fmt::format("{} writes landed, {} were refused and {} are unknown", of_run.landed,
                              of_run.refused, of_run.unknown));
    }
    return of_run;
  }

  void post_grant(const Message& grant, std::uint32_t batch) {
    writes_.clear();
    layout::Write write;
    write.slot = GrantSlot(static_cast<std::uint32_t>(grant.numbers[1]));
    write.generation = Generation(grant.numbers[2]);
    const auto salt = static_cast<std::uint32_t>(grant.numbers[3]);
    const std::uint64_t first = grant.numbers[0] * block_.pages_per_grant;
    write.length = block_.page_bytes;
    for (std::uint64_t i = first; i < first + block_.pages_per_grant; ++i) {
      write.target_item = order_[i];
      write.source_offset = source_page(order_[i], salt, block_.page_count) * block_.page_bytes;
      for (std::uint32_t region = 0; region < block_.region_count; ++region) {
        write.source_region = write.target_region = RegionId(region);
        write.ticket = TicketId(++posted_);
        writes_.push_back(write);
      }
    }
    if (block_.has_aux) {
      write.source_region = write.target_region = RegionId(block_.region_count);
      write.target_item = write.slot.value();
      write.source_offset = std::uint64_t{write.target_item} * kAuxRecordBytes;
      write.length = kAuxRecordBytes;
      write.ticket = TicketId(++posted_);
      writes_.push_back(write);
    }
    const std::span<const layout::Write> all = writes_;
    const std::size_t step = batch == 0 ? all.size() : batch;
    for (std::size_t at = 0; at < all.size(); at += step) {
      transport_->post(epoch_, all.subspan(at, std::min(step, all.size() - at)));
    }
  }

  const std::string name_;
  const WorkerSetup setup_;
  const Pool pool_;
  Block block_;
  std::vector<std::uint32_t> order_;
  std::vector<layout::Write> writes_;
  std::uint64_t posted_ = 0;  // in this session
  PostResult before_;         // outcomes of its former runs
  SessionEpoch epoch_;
  std::unique_ptr<SourceSink> sink_;  // outlives the transport
  std::unique_ptr<Transport> transport_;
};

}  // namespace

std::unique_ptr<SourceEngine> make_transport_source(std::string_view name, const WorkerSetup& setup,
                                                    const Pool& pool) {
  return std::make_unique<TransportSource>(name, setup, pool);
}

}  // namespace kvferry::bench
