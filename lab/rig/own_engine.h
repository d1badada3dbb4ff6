// A decode engine in the drill's own process, beside those that are processes of their own: here
// stop() and the destructor can be timed, and threads and descriptors counted, where the calls are
// made. Its scheduler polls room by room as well as all together, opens rooms to silent and
// healthy peers alike and gives them up; another thread asks for the status dump all the while.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvferry/kv_manager.h"
#include "kvferry/kv_receiver.h"
#include "lab/rank/call_times.h"
#include "lab/rank/rank_pages.h"

namespace kvferry::lab {

struct OwnEnginePlan {
  std::string instance;               // in the registry
  std::string registry;               // its address
  std::vector<std::string> prefills;  // instances to which it opens rooms in turn
};

// Threads: those of an engine are its own; the methods are for one.
class OwnEngine {
 public:
  static Result<std::unique_ptr<OwnEngine>> start(OwnEnginePlan plan);
  // Ends its threads, then its rooms and its manager, if end() has not.
  ~OwnEngine();
  OwnEngine(const OwnEngine&) = delete;
  OwnEngine& operator=(const OwnEngine&) = delete;

  // How many of its pairs are ready.
  std::size_t ready_pairs() const;
  // Of each pair whether it is ready, or why not.
  std::string pairs_text() const;
  std::uint64_t rooms_opened() const { return opened_.load(std::memory_order_relaxed); }
  CallFigures calls() const { return calls_.figures(); }
  CallFigures dumps() const { return dumps_.figures(); }

  enum class Way : std::uint8_t { kStopThenDestroy, kDestroy };
  struct EndTimes {
    std::size_t open_rooms = 0;  // that its scheduler had when it ended
    double stop_ms = 0;          // 0 with kDestroy
    double destroy_ms = 0;       // of its rooms' handles and the manager
  };
  // Its scheduler ends with rooms open, then the manager as it was asked for. Once.
  EndTimes end(Way way);

 private:
  struct Room {
    std::unique_ptr<KvReceiver> receiver;
    std::uint64_t due = 0;  // the tick in which it is given up
  };

  OwnEngine(OwnEnginePlan plan, RankPages pages, Journal journal);
  void schedule();
  void open_room();
  void poll_rooms();
  void give_up_rooms();
  void take_back();
  void ask_for_dumps();
  void join();

  const OwnEnginePlan plan_;
  RankPages pages_;
  Journal journal_;
  CallTimes calls_;
  CallTimes dumps_;
  std::unique_ptr<KvManager> manager_;
  std::vector<Room> rooms_;
  std::uint64_t ticks_ = 0;
  std::atomic<std::uint64_t> opened_{0};
  std::atomic<bool> stopping_{false};
  std::thread scheduler_;
  std::thread dumper_;
};

}  // namespace kvferry::lab
