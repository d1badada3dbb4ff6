// Seeded storms: rooms under loss, duplication, reorder, cuts, restarts, aborts and bad writes;
// then the world is healed and everything must have come to an end. A failure names its seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <set>

#include "scenario.h"

namespace kvferry::core::fake {
namespace {

constexpr std::uint64_t kSeeds = 300;
constexpr std::uint32_t kRoomsPerSeed = 20;
constexpr std::uint32_t kPages = 24;

struct StormRoom {
  RoomName name;
  std::vector<std::uint64_t> receivers;  // by decode rank
  std::vector<std::uint64_t> senders;    // by prefill rank
  std::vector<std::uint32_t> decode_lives;
  std::vector<std::uint32_t> prefill_lives;
};

// Lowest free page first, so that pages are used again at once.
class Pool {
 public:
  Pool() {
    for (std::uint32_t page = 0; page < kPages; ++page) {
      free_.insert(page);
    }
  }
  std::optional<std::vector<std::uint32_t>> take(std::size_t count) {
    if (free_.size() < count) {
      return std::nullopt;
    }
    std::vector<std::uint32_t> pages;
    for (std::size_t i = 0; i < count; ++i) {
      pages.push_back(*free_.begin());
      free_.erase(free_.begin());
    }
    return pages;
  }
  void give_back(std::uint32_t page) {
    EXPECT_TRUE(free_.insert(page).second) << "page " << page << " comes back twice";
  }
  std::size_t free() const { return free_.size(); }

 private:
  std::set<std::uint32_t> free_;
};

class Storm {
 public:
  explicit Storm(std::uint64_t seed) : prng_(seed), faults_(prng_.fork()), writes_(prng_.fork()) {
    prefill_ = 1 + static_cast<std::uint32_t>(prng_.below(2));
    decode_ = 1 + static_cast<std::uint32_t>(prng_.below(2));
    options_ = quick_options();
    options_.session_grace_ms = 300;
    options_.heartbeat_timeout_ms = 600;
    options_.max_tombstones = 64;
    world_.add_engines(prefill_, decode_, options_);
    world_.release_hook = [this](Process& process, const std::vector<std::uint32_t>& pages) {
      for (const std::uint32_t page : pages) {
        take_back(process, page);
      }
    };
    loss_ = faults_.below(3) == 0 ? 0 : faults_.below(200);
    duplication_ = faults_.below(200);
    bad_writes_ = faults_.below(3) == 0 ? 0 : faults_.below(60);
    slow_ = 1 + faults_.below(20);
  }

  void run() {
    set_faults();
    for (std::uint32_t i = 0; i < kRoomsPerSeed; ++i) {
      open_room(i);
      world_.run_for(static_cast<std::int64_t>(prng_.below(40)));
      disturb();
      consume();
    }
    heal();
    for (int i = 0; i < 100; ++i) {
      world_.run_for(100);
      consume();
    }
  }

  void check() {
    for (const StormRoom& room : rooms_) {
      check_room(room);
    }
    for (Process* process : world_.living()) {
      for (const auto& [owner, cell] : process->cells()) {
        process->clear(owner);
      }
    }
    world_.run_for(2'000);
    for (Process* process : world_.living()) {
      SCOPED_TRACE(process->name());
      const Snapshot view = process->snapshot();
      EXPECT_EQ(view.room_count, 0U);
      EXPECT_TRUE(view.rooms.empty());
      EXPECT_EQ(view.grants, 0U);
      EXPECT_EQ(view.quarantined_pages, 0U);
      EXPECT_EQ(view.tickets, 0U);
      EXPECT_LE(view.tombstones, 64U * decode_);
      EXPECT_TRUE(process->pages_out().empty());
      EXPECT_EQ(pools_[process->name()].free(), kPages);
      for (std::uint32_t page = 0; page < kPages && process->setup().role == Role::kDecode;
           ++page) {
        EXPECT_TRUE(process->memory().is_canary(page)) << "a free page " << page << " was written";
      }
    }
    EXPECT_LE(world_.links().history().size(), 200'000U) << "a storm of messages (L5)";
  }

  std::uint32_t succeeded = 0;
  std::uint32_t failed = 0;

 private:
  std::uint32_t life(const std::string& name) { return lives_[name]; }

  void open_room(std::uint32_t index) {
    // A tiny set of numbers, so that they collide; the bindings never do.
    StormRoom room;
    room.name = RoomName{RoomId(1 + prng_.below(3)), Binding{7, 1'000 + index}};
    const auto count = static_cast<std::size_t>(prng_.below(5));
    for (std::uint32_t rank = 0; rank < decode_; ++rank) {
      const std::string name = "d" + std::to_string(rank);
      Process& decode = world_[name];
      const std::uint64_t receiver = decode.open(room.name);
      decode.init_receiver(receiver);
      if (auto pages = pools_[name].take(count)) {
        decode.give(receiver, *pages, -1, ranks_that_grant());
      }
      room.receivers.push_back(receiver);
      room.decode_lives.push_back(life(name));
    }
    for (std::uint32_t rank = 0; rank < prefill_; ++rank) {
      const std::string name = "p" + std::to_string(rank);
      Process& prefill = world_[name];
      const std::uint64_t sender = prefill.open(room.name);
      prefill.init_sender(sender, static_cast<std::uint32_t>(count));
      if (auto pages = pools_[name].take(count)) {
        const std::size_t cut = prng_.below(count + 1);
        prefill.send(sender, {pages->begin(), pages->begin() + static_cast<std::ptrdiff_t>(cut)});
        if (cut < count) {
          prefill.send(sender, {pages->begin() + static_cast<std::ptrdiff_t>(cut), pages->end()});
        }
      }
      room.senders.push_back(sender);
      room.prefill_lives.push_back(life(name));
    }
    rooms_.push_back(std::move(room));
  }

  // With as many ranks on both sides each serves its opposite only.
  std::uint32_t ranks_that_grant() const { return prefill_ == decode_ ? 1 : decode_; }

  void set_faults() {
    world_.links().latency = [this] { return milliseconds(1 + faults_.below(slow_)); };
    world_.links().on_frame = [this](const FrameOnLink&) {
      const std::uint64_t draw = faults_.below(1'000);
      return draw < loss_                       ? FrameFate::kDrop
             : draw < loss_ + duplication_      ? FrameFate::kDuplicate
             : draw < loss_ + duplication_ + 10 ? FrameFate::kHold
                                                : FrameFate::kDeliver;
    };
    world_.fabric().write_latency = [this] { return milliseconds(1 + writes_.below(slow_)); };
    world_.fabric().on_write = [this](const PostedWrite&) {
      if (writes_.below(1'000) >= bad_writes_) {
        return WriteFate::kLand;
      }
      constexpr WriteFate kBad[] = {WriteFate::kHold, WriteFate::kRefuse,
                                    WriteFate::kLose, WriteFate::kLandUnknown,
                                    WriteFate::kTear, WriteFate::kCompleteTwice};
      return kBad[writes_.below(std::size(kBad))];
    };
  }

  Process& any(char side, std::uint32_t count) {
    return world_[side + std::to_string(faults_.below(count))];
  }

  void disturb() {
    switch (faults_.below(16)) {
      case 0:
        world_.links().cut(any('p', prefill_), any('d', decode_));
        break;
      case 1:
        world_.links().release_held_backwards();
        break;
      case 2:
        world_.fabric().release_held();
        break;
      case 3:
        world_.fabric().hold_fences = !world_.fabric().hold_fences;
        world_.fabric().release_fences();
        break;
      case 4:
        world_.fabric().say_quiet();
        break;
      case 5: {
        const auto& history = world_.links().history();
        if (!history.empty()) {
          world_.links().deliver_again(history[faults_.below(history.size())]);
        }
        break;
      }
      case 6:
        world_.sleep(faults_.below(2) == 0 ? any('p', prefill_) : any('d', decode_),
                     static_cast<std::int64_t>(faults_.below(900)));
        break;
      case 7:
        if (faults_.below(4) == 0) {
          const std::string name =
              (faults_.below(2) == 0 ? any('p', prefill_) : any('d', decode_)).name();
          ++lives_[name];
          pools_[name] = Pool();
          world_.restart(name);
        }
        break;
      case 8:
      case 9:
      case 10:
        abort_some();
        break;
      default:
        break;
    }
  }

  void abort_some() {
    const StormRoom& room = rooms_[faults_.below(rooms_.size())];
    const bool decode = faults_.below(2) == 0;
    const std::size_t rank = faults_.below(decode ? decode_ : prefill_);
    const std::string name = (decode ? "d" : "p") + std::to_string(rank);
    if ((decode ? room.decode_lives : room.prefill_lives)[rank] != life(name)) {
      return;
    }
    const std::uint64_t owner = (decode ? room.receivers : room.senders)[rank];
    if (faults_.below(4) == 0 && decode) {
      world_[name].clear(owner);
    } else {
      world_[name].abort(owner);
    }
  }

  // The callers: whoever reads a Success uses the pages, and frees them.
  void consume() {
    for (const StormRoom& room : rooms_) {
      for (std::size_t rank = 0; rank < room.receivers.size(); ++rank) {
        const std::string name = "d" + std::to_string(rank);
        if (room.decode_lives[rank] != life(name)) {
          continue;
        }
        Process& decode = world_[name];
        const Cell& cell = decode.cell(room.receivers[rank]);
        if (cell.status == KvPoll::kSuccess && !cell.read_success && !cell.cleared) {
          for (std::uint32_t i = 0; i < cell.pages.size(); ++i) {
            EXPECT_TRUE(decode.memory().holds_page(cell.pages[i], i, cell.name.binding));
          }
          decode.poll(room.receivers[rank]);
          for (const std::uint32_t page : cell.pages) {
            take_back(decode, page);
          }
        }
      }
    }
  }

  void take_back(Process& process, std::uint32_t page) {
    process.memory().paint_canary(page);
    pools_[process.name()].give_back(page);
  }

  void heal() {
    world_.links().on_frame = nullptr;
    world_.links().latency = nullptr;
    world_.links().release_held();
    world_.fabric().on_write = nullptr;
    world_.fabric().write_latency = nullptr;
    world_.fabric().hold_fences = false;
    world_.fabric().release_held();
    world_.fabric().release_fences();
    for (int i = 0; i < 10; ++i) {
      world_.run_for(10);
      world_.fabric().say_quiet();
    }
  }

  // S7: a success of a sender is a success of every decode rank that it served.
  void check_room(const StormRoom& room) {
    bool all_decode = true;
    for (std::size_t rank = 0; rank < room.receivers.size(); ++rank) {
      const std::string name = "d" + std::to_string(rank);
      if (room.decode_lives[rank] != life(name)) {
        return;
      }
      const Cell& cell = world_[name].cell(room.receivers[rank]);
      EXPECT_TRUE(is_terminal(cell.status)) << "L1: " << name << " room " << cell.name.binding.low;
      all_decode = all_decode && cell.status == KvPoll::kSuccess;
      (cell.status == KvPoll::kSuccess ? succeeded : failed) += 1;
    }
    for (std::size_t rank = 0; rank < room.senders.size(); ++rank) {
      const std::string name = "p" + std::to_string(rank);
      if (room.prefill_lives[rank] != life(name)) {
        continue;
      }
      const Cell& cell = world_[name].cell(room.senders[rank]);
      EXPECT_TRUE(is_terminal(cell.status)) << "L1: " << name << " room " << cell.name.binding.low;
      if (cell.status == KvPoll::kSuccess) {
        const bool served =
            prefill_ != decode_
                ? all_decode
                : world_["d" + std::to_string(rank)].cell(room.receivers[rank]).status ==
                      KvPoll::kSuccess;
        EXPECT_TRUE(served) << "S7: " << name << " room " << cell.name.binding.low;
      }
    }
  }

  World world_;
  Prng prng_;
  Prng faults_;
  Prng writes_;
  Options options_;
  std::uint32_t prefill_ = 1;
  std::uint32_t decode_ = 1;
  std::uint64_t loss_ = 0;
  std::uint64_t duplication_ = 0;
  std::uint64_t bad_writes_ = 0;
  std::uint64_t slow_ = 1;
  std::map<std::string, Pool> pools_;
  std::map<std::string, std::uint32_t> lives_;
  std::vector<StormRoom> rooms_;
};

TEST(Storm, EveryRoomEndsAndNothingIsLeft) {
  // KVFERRY_STORM_SEED runs one seed alone, KVFERRY_STORM_SEEDS another number of them.
  const char* one = std::getenv("KVFERRY_STORM_SEED");
  const char* many = std::getenv("KVFERRY_STORM_SEEDS");
  const std::uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  const std::uint64_t count = one != nullptr    ? 1
                              : many != nullptr ? std::strtoull(many, nullptr, 10)
                                                : kSeeds;
  std::uint64_t succeeded = 0;
  std::uint64_t failed = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("KVFERRY_STORM_SEED=" + std::to_string(seed));
    Storm storm(seed);
    storm.run();
    storm.check();
    succeeded += storm.succeeded;
    failed += storm.failed;
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  if (one == nullptr) {
    // Not vacuous: both ends are common.
    EXPECT_GT(succeeded * 10, (succeeded + failed) * 3);
    EXPECT_GT(failed * 10, (succeeded + failed) * 2);
  }
  RecordProperty("rooms_succeeded", std::to_string(succeeded));
  RecordProperty("rooms_failed", std::to_string(failed));
  std::printf("%llu rooms succeeded, %llu failed\n", static_cast<unsigned long long>(succeeded),
              static_cast<unsigned long long>(failed));
}

}  // namespace
}  // namespace kvferry::core::fake
