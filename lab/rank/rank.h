// One prefill or decode rank as a process of its own, led by the rig: commands as JSON lines on
// stdin, answers and events as JSON lines on stdout, a scheduler that turns every millisecond. What
// each command takes and gives stands in rank_commands.cc beside it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvferry/kv_manager.h"
#include "lab/rank/call_times.h"
#include "lab/rank/faulty_link.h"
#include "lab/rank/journal.h"
#include "lab/rank/output.h"
#include "lab/rank/rank_pages.h"
#include "lab/rank/rank_rooms.h"
#include "lab/rank/rank_settings.h"
#include "lab/rank/routes.h"
#include "lab/rank/write_watch.h"

namespace kvferry::lab {

class Rank {
 public:
  static Result<std::unique_ptr<Rank>> make(const RankSettings& settings);
  ~Rank();

  // Until "quit" or the end of stdin; the exit code.
  int run();

 private:
  using Command = std::shared_ptr<router::JsonDocument>;
  // A load of rooms that are opened and aborted, tick by tick.
  struct Churn {
    std::vector<std::string> prefills;
    std::string registry;
    std::uint32_t pages = 1;
    std::uint32_t every_ticks = 1;
    std::uint32_t life_ticks = 1;
    std::uint64_t next = 0;
    std::vector<std::pair<std::uint64_t, RoomName>> aborts;  // by the tick in which they are due
  };

  Rank(const RankSettings& settings, Journal journal, RankPages pages);
  Status start();
  void tell_ready();

  // The reader's thread.
  void read_commands();
  bool answer_at_once(router::JsonView command);
  void answer(router::JsonView command, const Status& status, router::JsonObject more = {});
  void report(router::JsonView command);
  void twins(router::JsonView command);

  // The engine's thread.
  void carry_out(router::JsonView command);
  void open_rooms(router::JsonView command);
  void storm(router::JsonView command);
  void turn_churn();

  const RankSettings settings_;
  Journal journal_;
  RankPages pages_;
  Routes routes_;
  MessageFaults faults_;
  WriteWatch writes_;
  Output output_;
  CallTimes calls_;
  std::string data_endpoint_;
  std::unique_ptr<KvManager> manager_;
  std::unique_ptr<RankRooms> rooms_;

  std::mutex mutex_;
  std::vector<Command> commands_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::size_t> live_rooms_{0};
  std::uint64_t ticks_ = 0;
  std::unique_ptr<Churn> churn_;
};

}  // namespace kvferry::lab
