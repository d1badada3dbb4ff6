// The rooms of a rank of a drill, as an engine's scheduler has them: opens handles, takes pages,
// polls all rooms together, checks what a success left, and gives pages back.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvferry/kv_manager.h"
#include "kvferry/kv_receiver.h"
#include "kvferry/kv_sender.h"
#include "lab/rank/call_times.h"
#include "lab/rank/journal.h"
#include "lab/rank/output.h"
#include "lab/rank/rank_pages.h"

namespace kvferry::lab {

// Room number and the low half of its binding.
using RoomName = std::pair<std::uint64_t, std::uint64_t>;

struct RoomOrder {
  RoomName name;
  std::uint32_t pages = 1;
  std::uint32_t stride = 1;  // between the pages: with 2 no two are neighbours
  std::uint32_t chunks = 1;  // prefill: calls of send, one in each step
  std::uint32_t grants = 1;  // decode: how many of its engine's ranks grant to the same senders
  std::string registry;      // decode
  std::string prefill;       // decode: the instance
  bool hold = false;         // prefill: nothing is sent before send()
  bool keep = false;         // decode: a success keeps its pages until drop()
  bool quiet = false;        // neither told nor kept in the journal, and nobody writes to it
};

// Threads: one, the engine's; but see free_pages().
class RankRooms {
 public:
  RankRooms(KvManager& manager, RankPages& pages, CallTimes& calls, Journal& journal,
            Output& output);

  // Takes pages now or, in order, when there are enough.
  void open(RoomOrder order);
  // False: no such room lives, or it is over.
  bool send(const RoomName& name);
  bool abort(const RoomName& name);
  bool clear(const RoomName& name);
  // Gives the pages of a kept success back.
  bool drop(const RoomName& name);
  // Each of the rooms is aborted, by so many threads at once; returns how many there were. The
  // threads' calls are not among the engine's call times.
  std::size_t abort_all(const std::vector<RoomName>& names, std::size_t threads);
  // What a scheduler does in each of its steps.
  void tick();

  // {"wrong": [{room, bytes}], "spoiled": [{page, bytes}]}: kept rooms that are not as they were
  // sent, and free pages that somebody wrote to.
  router::JsonObject inspect();
  std::size_t live() const { return live_.size(); }
  std::size_t free_pages() const { return free_pages_.load(std::memory_order_relaxed); }
  std::size_t ended(KvPoll status) const {
    return (status == KvPoll::kSuccess ? succeeded_ : failed_).load(std::memory_order_relaxed);
  }

 private:
  struct Room {
    RoomOrder order;
    Instant opened;
    KvPoll status = KvPoll::kBootstrapping;
    std::unique_ptr<KvSender> sender;
    std::unique_ptr<KvReceiver> receiver;
    std::vector<PageIndex> pages;
    std::int64_t aux = -1;
    bool has_pages = false;
    bool is_sending = false;  // prefill: more chunks are due
    std::size_t sent = 0;     // prefill: pages; the others are the caller's

    std::uint64_t id() const { return sender ? sender->id() : receiver->id(); }
    RoomId room() const { return RoomId(order.name.first); }
    Binding binding() const { return {kBindingHigh, order.name.second}; }
  };
  static constexpr std::uint64_t kBindingHigh = 7;

  bool try_give(Room& room);
  Status give(Room& room);
  Status send_chunk(Room& room);
  void abort_handle(Room& room);
  void advance(Room& room, KvPoll status);
  void end(Room& room);
  void take_back(const RoomName& name, const std::vector<PageIndex>& pages, std::int64_t aux,
                 bool quiet, std::uint64_t foreign = 0);
  // foreign: see Journal.
  void note_pages(std::string_view at, const RoomName& name, const std::vector<PageIndex>& pages,
                  std::uint64_t foreign = 0);

  KvManager& manager_;
  RankPages& pages_;
  CallTimes& calls_;
  Journal& journal_;
  Output& output_;
  std::map<RoomName, std::unique_ptr<Room>> live_;
  std::map<RoomName, std::unique_ptr<Room>> kept_;
  std::map<RoomName, bool> quiet_;  // ended rooms whose pages are still to come
  std::deque<RoomName> waiting_;    // for pages
  std::vector<std::uint64_t> ids_;
  std::vector<KvPoll> statuses_;
  std::atomic<std::size_t> free_pages_;
  std::atomic<std::size_t> succeeded_{0};
  std::atomic<std::size_t> failed_{0};
};

}  // namespace kvferry::lab
