#include "bench/handoff/handoff_worker.h"

#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "bench/handoff/handoff_engine.h"
#include "bench/transfer/channel.h"
#include "bench/transfer/worker.h"

namespace kvferry::bench {
namespace {

constexpr std::chrono::seconds kControllerPatience{60};

class HandoffWorker {
 public:
  HandoffWorker(Role role, Channel control, Channel peer)
      : role_(role), control_(std::move(control)), peer_(std::move(peer)) {}

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
        (void)peer_.send(answer);  // the other side may wait for a word of this one
      }
      if (!control_.send(answer)) return 0;
    }
  }

 private:
  Status handle(const Message& message, Message& answer) {
    switch (message.kind) {
      case Kind::kSetup:
        return set_up(message);
      case Kind::kRun:
        return run(HandoffOrder::from(message.numbers), answer);
      case Kind::kPrepare:
        return measure_polls(static_cast<std::uint32_t>(message.numbers[0]), answer);
      default:
        return fail(FailureCode::kWrongState, "the controller sent what a worker can't do");
    }
  }

  Status set_up(const Message& message) {
    HandoffSetup setup;
    if (message.text.size() != sizeof setup) return fail(FailureCode::kMalformed, "set-up");
    std::memcpy(&setup, message.text.data(), sizeof setup);
    const bool shares = std::string_view(setup.transport.data()) == kNullName;
    data_plane::Fd others;
    if (shares && role_ == Role::kDecode) {
      auto pool = peer_.expect(Kind::kPool, kControllerPatience);
      if (!pool) return tl::unexpected(pool.error());
      others = std::move(pool->fd);
    }
    auto engine = HandoffEngine::start(role_, setup, std::move(others));
    if (!engine) return tl::unexpected(engine.error());
    engine_ = std::move(*engine);
    if (!shares || role_ == Role::kDecode) return {};
    return peer_.send({Kind::kPool, {}, {}, data_plane::Fd(::dup(engine_->memory_fd()))});
  }

  Status run(const HandoffOrder& order, Message& answer) {
    if (role_ == Role::kDecode) {
      if (auto open = peer_.expect(Kind::kOpen, kControllerPatience); !open) {
        return tl::unexpected(open.error());
      }
    }
    auto result = engine_->run(order, [&] {
      if (role_ == Role::kPrefill) (void)peer_.send({Kind::kOpen, {}, {}, {}});
    });
    if (!result) return tl::unexpected(result.error());
    answer = {
        Kind::kResult, {}, std::string(reinterpret_cast<char*>(&*result), sizeof *result), {}};
    return {};
  }

  Status measure_polls(std::uint32_t rooms, Message& answer) {
    auto times = engine_->measure_polls(rooms);
    if (!times) return tl::unexpected(times.error());
    const auto number = [](Duration time) { return static_cast<std::uint64_t>(time.count()); };
    answer = {Kind::kResult, {number(times->p50), number(times->p99), number(times->max)}, {}, {}};
    return {};
  }

  const Role role_;
  Channel control_;
  Channel peer_;
  std::unique_ptr<HandoffEngine> engine_;
};

}  // namespace

int run_handoff_worker(std::string_view side) {
  Channel control{data_plane::Fd(kControlFd)};
  Channel peer{data_plane::Fd(kPeerFd)};
  const Role role = side == kPrefillSideName ? Role::kPrefill : Role::kDecode;
  return HandoffWorker(role, std::move(control), std::move(peer)).serve();
}

}  // namespace kvferry::bench
