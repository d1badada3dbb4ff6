#include "lab/rank/twins.h"

#include <array>
#include <barrier>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "kvferry/kv_receiver.h"
#include "kvferry/kv_sender.h"

namespace kvferry::lab {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(2);
constexpr Binding kBinding{9, 9};

// One of the two, whichever role its manager has.
struct Twin {
  std::unique_ptr<KvSender> sender;
  std::unique_ptr<KvReceiver> receiver;
  Clock::time_point opened;

  void open(KvManager& manager, RoomId room) {
    opened = Clock::now();
    if (manager.args().role == Role::kPrefill) {
      sender = std::make_unique<KvSender>(manager, room, kBinding);
    } else {
      receiver = std::make_unique<KvReceiver>(manager, room, kBinding);
    }
  }
  bool has_failed() const {
    return (sender ? sender->poll() : receiver->poll()) == KvPoll::kFailed;
  }
  bool is_refused_as_duplicate() const {
    const auto failure = sender ? sender->failure() : receiver->failure();
    return failure && failure->code == FailureCode::kDuplicateRoom;
  }
  // Aborts it, if it still lives.
  void drop() {
    sender.reset();
    receiver.reset();
  }
};

void judge(std::array<Twin, 2>& twins, TwinFigures& figures) {
  const auto deadline = Clock::now() + kPatience;
  while (!twins[0].has_failed() && !twins[1].has_failed() && Clock::now() < deadline) {
    std::this_thread::yield();
  }
  // Of the other one the answer is as old by now, or it never comes.
  const bool failed[] = {twins[0].has_failed(), twins[1].has_failed()};
  if (failed[0] && failed[1]) {
    ++figures.both_refused;
  } else if (!failed[0] && !failed[1]) {
    ++figures.both_open;
  } else if (twins[failed[0] ? 0 : 1].is_refused_as_duplicate()) {
    ++figures.one_refused;
  } else {
    ++figures.other_causes;
  }
  const std::chrono::duration<double, std::milli> gap = twins[0].opened - twins[1].opened;
  figures.widest_gap_ms = std::max(figures.widest_gap_ms, std::abs(gap.count()));
  ++figures.pairs;
}

}  // namespace

TwinFigures open_twins(KvManager& manager, std::uint64_t first, std::uint64_t count) {
  TwinFigures figures;
  std::array<Twin, 2> twins;
  std::barrier together(2);
  const auto open_all = [&](std::size_t which) {
    for (std::uint64_t i = 0; i < count; ++i) {
      together.arrive_and_wait();
      twins[which].open(manager, RoomId(first + i));
      together.arrive_and_wait();
      if (which == 0) {
        judge(twins, figures);
        for (Twin& twin : twins) twin.drop();
      }
    }
  };
  std::thread second([&] { open_all(1); });
  open_all(0);
  second.join();
  return figures;
}

}  // namespace kvferry::lab
