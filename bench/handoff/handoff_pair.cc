#include "bench/handoff/handoff_pair.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/clock.h"
#include "bench/handoff/handoff_worker.h"

namespace kvferry::bench {
namespace {

// Beyond the rooms' own patience: pools are filled, leftovers settle.
constexpr std::chrono::milliseconds kAnswerGrace{60'000};

Result<SideResult> side_of(const Message& message) {
  SideResult side;
  if (message.text.size() != sizeof side) return fail(FailureCode::kMalformed, "a side's result");
  std::memcpy(&side, message.text.data(), sizeof side);
  return side;
}

}  // namespace

HandoffPair::~HandoffPair() {
  for (auto* end : {&decode_, &prefill_}) {
    if (*end == nullptr) continue;
    if ((*end)->control.send({Kind::kQuit, {}, {}, {}})) {
      (*end)->child->wait_exit(std::chrono::seconds(3));
    }
    end->reset();
  }
}

Status HandoffPair::start(HandoffSetup setup) {
  auto registry = BootstrapServer::start({});
  if (!registry) return tl::unexpected(registry.error());
  registry_ = std::move(*registry);
  const std::string address = registry_->address();
  if (address.size() >= setup.registry.size()) {
    return fail(FailureCode::kInvalidArgument, "the registry's address is too long");
  }
  address.copy(setup.registry.data(), address.size());
  auto between = Channel::make_pair();
  if (!between) return tl::unexpected(between.error());
  for (auto* end : {&prefill_, &decode_}) {
    const bool is_prefill = end == &prefill_;
    auto started = start_worker(std::string(is_prefill ? kPrefillSideName : kDecodeSideName),
                                is_prefill ? between->first : between->second);
    if (!started) return tl::unexpected(started.error());
    *end = std::make_unique<WorkerProcess>(std::move(*started));
    const std::string text(reinterpret_cast<const char*>(&setup), sizeof setup);
    if (auto sent = (*end)->control.send({Kind::kSetup, {}, text, {}}); !sent) return sent;
  }
  for (auto* end : {&prefill_, &decode_}) {
    if (auto ready = answer(**end, kAnswerGrace); !ready) return tl::unexpected(ready.error());
  }
  return {};
}

Result<PairTurn> HandoffPair::run(HandoffOrder order) {
  order.first_room = next_room_;
  next_room_ += order.rooms;
  for (auto* end : {&prefill_, &decode_}) {
    if (auto sent = (*end)->control.send({Kind::kRun, order.numbers(), {}, {}}); !sent) {
      return tl::unexpected(sent.error());
    }
  }
  const std::chrono::milliseconds patience =
      std::chrono::milliseconds(order.patience_ms) + kAnswerGrace;
  PairTurn turn;
  for (auto* end : {&decode_, &prefill_}) {
    auto result = answer(**end, patience);
    if (!result) return tl::unexpected(result.error());
    auto side = side_of(*result);
    if (!side) return tl::unexpected(side.error());
    (end == &decode_ ? turn.decode : turn.prefill) = *side;
  }
  return turn;
}

Result<PollTimes> HandoffPair::poll(std::uint32_t rooms) {
  if (auto sent = decode_->control.send({Kind::kPrepare, {rooms}, {}, {}}); !sent) {
    return tl::unexpected(sent.error());
  }
  auto result = answer(*decode_, kAnswerGrace);
  if (!result) return tl::unexpected(result.error());
  const auto time = [&](std::size_t i) {
    return Duration(static_cast<std::int64_t>(result->numbers[i]));
  };
  return PollTimes{time(0), time(1), time(2)};
}

Result<Message> HandoffPair::answer(WorkerProcess& worker, std::chrono::milliseconds patience) {
  const Instant end = monotonic_now() + patience;
  while (monotonic_now() < end) {
    if (hooks_.interrupted()) return fail(FailureCode::kAborted, "interrupted");
    auto received = worker.control.receive(std::chrono::milliseconds(50));
    if (!received) return tl::unexpected(received.error());
    if (!*received) continue;
    if ((*received)->kind == Kind::kFailed) {
      return fail(FailureCode::kUnspecified, (*received)->text);
    }
    return std::move(**received);
  }
  return fail(FailureCode::kOperatingSystem,
              fmt::format("a side does not answer within {} ms", patience.count()));
}

}  // namespace kvferry::bench
