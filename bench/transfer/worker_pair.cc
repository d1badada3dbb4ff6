#include "bench/transfer/worker_pair.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"

namespace kvferry::bench {
namespace {

// The workers fill their pools, or every engine gets ready, or a warm-up reads a whole pool.
constexpr std::chrono::milliseconds kAnswerPatience{120'000};

}  // namespace

WorkerPair::~WorkerPair() {
  for (auto* end : {&source_, &target_}) {
    if (*end == nullptr) continue;
    if ((*end)->control.send({Kind::kQuit, {}, {}, {}})) {
      (*end)->child->wait_exit(std::chrono::seconds(2));
    }
  }
}

Status WorkerPair::start(const std::vector<std::string>& engines, WorkerSetup setup,
                         std::int32_t source_core, std::int32_t target_core) {
  auto between = Channel::make_pair();
  if (!between) return tl::unexpected(between.error());
  const std::string names = fmt::format("{}", fmt::join(engines, ","));
  if (names.size() >= setup.engines.size()) {
    return fail(FailureCode::kInvalidArgument, "too many engines");
  }
  names.copy(setup.engines.data(), names.size());
  for (auto* end : {&source_, &target_}) {
    const bool is_source = end == &source_;
    auto started =
        start_worker(is_source ? "source" : "target", is_source ? between->first : between->second);
    if (!started) return tl::unexpected(started.error());
    *end = std::make_unique<WorkerProcess>(std::move(*started));
    setup.core = is_source ? source_core : target_core;
    const std::string text(reinterpret_cast<const char*>(&setup), sizeof setup);
    if (auto sent = (*end)->control.send({Kind::kSetup, {}, text, {}}); !sent) return sent;
  }
  return both_ready();
}

Status WorkerPair::prepare(const std::string& block, std::uint32_t pages_per_grant) {
  if (auto asked = ask_both({Kind::kPrepare, {pages_per_grant}, block, {}}); !asked) return asked;
  return both_ready();
}

Result<PairResult> WorkerPair::run(const std::string& engine, const RunOrder& order) {
  if (auto begun = begin(engine, order); !begun) return tl::unexpected(begun.error());
  const auto named = [&](Failure failure) {
    failure.what = engine + ": " + failure.what;
    return tl::unexpected(std::move(failure));
  };
  auto landed = target_result();
  if (!landed) return named(landed.error());
  auto posted = source_result();
  if (!posted) return named(posted.error());
  return PairResult{*landed, *posted};
}

Status WorkerPair::begin(const std::string& engine, const RunOrder& order) {
  return ask_both({Kind::kRun, order.numbers(), engine, {}});
}

Result<RunResult> WorkerPair::target_result() {
  auto result = answer(*target_, Kind::kResult);
  if (!result) return tl::unexpected(result.error());
  return RunResult::from(result->numbers);
}

Result<PostResult> WorkerPair::source_result() {
  auto result = answer(*source_, Kind::kResult);
  if (!result) return tl::unexpected(result.error());
  return PostResult::from(result->numbers);
}

Status WorkerPair::ask_both(const Message& message) {
  for (auto* end : {&source_, &target_}) {
    if (auto sent = (*end)->control.send({message.kind, message.numbers, message.text, {}});
        !sent) {
      return sent;
    }
  }
  return {};
}

Status WorkerPair::both_ready() {
  for (auto* end : {&source_, &target_}) {
    auto ready = answer(**end, Kind::kReady);
    if (!ready) return tl::unexpected(ready.error());
    blob_ = ready->text;  // the target's, which is asked last
  }
  return {};
}

Result<Message> WorkerPair::answer(WorkerProcess& worker, Kind kind) {
  const Instant end = monotonic_now() + kAnswerPatience;
  while (monotonic_now() < end) {
    if (hooks_.interrupted()) return fail(FailureCode::kAborted, "interrupted");
    auto received = worker.control.receive(std::chrono::milliseconds(50));
    if (!received) return tl::unexpected(received.error());
    if (!*received) continue;
    if ((*received)->kind == Kind::kFailed) {
      return fail(FailureCode::kUnspecified, (*received)->text);
    }
    if ((*received)->kind != kind) return fail(FailureCode::kWrongState, "an answer out of turn");
    return std::move(**received);
  }
  return fail(FailureCode::kOperatingSystem, "a worker does not answer");
}

}  // namespace kvferry::bench
