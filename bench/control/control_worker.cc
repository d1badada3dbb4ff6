#include "bench/control/control_worker.h"

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "bench/control/control_end.h"
#include "bench/handoff/latencies.h"
#include "bench/handoff/usage.h"
#include "bench/transfer/channel.h"
#include "bench/transfer/worker.h"

namespace kvferry::bench {
namespace {

constexpr std::chrono::seconds kPatience{30};
constexpr std::chrono::milliseconds kPoll{50};

class ControlWorker {
 public:
  ControlWorker(bool is_echo, Channel control, Channel peer)
      : is_echo_(is_echo), control_(std::move(control)), peer_(std::move(peer)) {}

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
        (void)peer_.send(answer);  // the other end may wait for a word of this one
      }
      if (!control_.send(answer)) return 0;
    }
  }

 private:
  Status handle(const Message& message, Message& answer) {
    if (message.kind == Kind::kPrepare) return connect(message.text);
    const auto end = ends_.find(message.text);
    if (message.kind != Kind::kRun || end == ends_.end()) {
      return fail(FailureCode::kWrongState, "the controller sent what a worker can't do");
    }
    const PingOrder order = PingOrder::from(message.numbers);
    const Duration before = cpu_used();
    auto result = is_echo_ ? echo(*end->second) : ping(*end->second, order);
    if (!result) return tl::unexpected(result.error());
    result->cpu = cpu_used() - before;
    answer = {Kind::kResult, result->numbers(), {}, {}};
    return {};
  }

  // Both ends of one engine, which each other's address connects.
  Status connect(const std::string& name) {
    auto end = make_control_end(name, is_echo_);
    if (!end) return tl::unexpected(end.error());
    if (Status told = peer_.send({Kind::kAddress, {}, (*end)->address(), {}}); !told) return told;
    auto other = peer_.expect(Kind::kAddress, kPatience);
    if (!other) return tl::unexpected(other.error());
    if (Status connected = (*end)->connect(other->text); !connected) return connected;
    if (Status told = peer_.send({Kind::kOpen, {}, {}, {}}); !told) return told;
    // A link answers the other end's handshake only while somebody waits on it.
    std::vector<ControlFrame> none;
    const Instant until = monotonic_now() + kPatience;
    while (monotonic_now() < until) {
      auto open = peer_.receive(std::chrono::milliseconds(0));
      if (!open) return tl::unexpected(open.error());
      if (*open && (*open)->kind == Kind::kOpen) {
        ends_[name] = std::move(*end);
        return {};
      }
      if (*open) return fail(FailureCode::kWrongState, (*open)->text);
      if (Status turned = (*end)->receive(kPoll, peer_.fd(), none); !turned) return turned;
    }
    return fail(FailureCode::kPeerUnreachable, "the other end does not connect");
  }

  // Until the other end says that it was the last one.
  Result<PingResult> echo(ControlEnd& end) {
    std::vector<ControlFrame> frames;
    while (true) {
      frames.clear();
      if (Status received = end.receive(kPoll, peer_.fd(), frames); !received) {
        return tl::unexpected(received.error());
      }
      for (ControlFrame& frame : frames) {
        if (Status sent = end.send(std::move(frame)); !sent) return tl::unexpected(sent.error());
      }
      if (!frames.empty()) continue;
      auto word = peer_.receive(std::chrono::milliseconds(0));
      if (!word) return tl::unexpected(word.error());
      if (!*word) continue;
      if ((*word)->kind == Kind::kEnd) return PingResult{};
      return fail(FailureCode::kWrongState, (*word)->text);
    }
  }

  Result<PingResult> ping(ControlEnd& end, const PingOrder& order) {
    PingResult result;
    Latencies latencies;
    std::deque<Instant> sent_at;  // frames come back in order
    const auto send_one = [&]() -> Status {
      sent_at.push_back(monotonic_now());
      return end.send(ControlFrame(order.bytes, std::uint8_t{0x5A}));
    };
    const Instant begin = monotonic_now();
    const Instant over = begin + order.duration;
    for (std::uint32_t i = 0; i < order.window; ++i) {
      if (Status sent = send_one(); !sent) return tl::unexpected(sent.error());
    }
    std::vector<ControlFrame> frames;
    while (!sent_at.empty()) {
      frames.clear();
      if (Status received = end.receive(kPoll, -1, frames); !received) {
        return tl::unexpected(received.error());
      }
      const Instant now = monotonic_now();
      if (frames.empty() && now > over + kPatience) {
        return fail(FailureCode::kPeerUnreachable, "frames do not come back");
      }
      for (const ControlFrame& frame : frames) {
        if (frame.size() != order.bytes || sent_at.empty()) {
          return fail(FailureCode::kMalformed, "a frame came back that was not sent");
        }
        latencies.add(now - sent_at.front());
        sent_at.pop_front();
        ++result.round_trips;
        if (now >= over) continue;
        if (Status sent = send_one(); !sent) return tl::unexpected(sent.error());
      }
    }
    result.duration = monotonic_now() - begin;
    result.p50 = latencies.quantile(0.5);
    result.p99 = latencies.quantile(0.99);
    if (Status told = peer_.send({Kind::kEnd, {}, {}, {}}); !told) {
      return tl::unexpected(told.error());
    }
    return result;
  }

  const bool is_echo_;
  Channel control_;
  Channel peer_;
  std::map<std::string, std::unique_ptr<ControlEnd>> ends_;
};

}  // namespace

int run_control_worker(std::string_view side) {
  Channel control{data_plane::Fd(kControlFd)};
  Channel peer{data_plane::Fd(kPeerFd)};
  return ControlWorker(side == kEchoSideName, std::move(control), std::move(peer)).serve();
}

}  // namespace kvferry::bench
