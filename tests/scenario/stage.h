// A hand-written scene in the simulator's world: processes and links as of every seed, no fault but
// what the script does, and the script's own callers in place of the workload's. Times are virtual
// and count from start_clock(); equal scripts run alike on every machine.
//
// A scene reads as a dialogue: open rooms, let time pass, compare take_trace() with what should
// have been said. finish() clears every room and asks the oracle; it returns what is wrong, or "".
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/page_pool.h"
#include "sim/world.h"

namespace kvferry::sim::scene {

// One prefill and one decode rank, links of a millisecond, no faults, the product's deadlines.
Profile calm_profile(TransportKind transport);

// What one rank's caller holds of a room.
struct Part {
  Node* node = nullptr;  // stays valid after its process has died
  std::uint64_t owner = 0;
  std::vector<PageIndex> pages;
  std::int64_t aux_slot = -1;
  bool given = false;  // the pages are in the core's hands, or came back from there
  bool cleared = false;
  Duration given_at{};
};

// One request's transfer, from every rank of an instance to every decode rank.
struct Room {
  core::RoomKey key;
  std::uint32_t instance = 0;
  std::uint32_t page_count = 0;
  std::map<std::string, Part> parts;  // by place: "p0.0", "d1"
};

// A message that a core was given for the first time; repetitions are left out.
struct Delivery {
  Duration at{};
  std::string from;
  std::string to;
  SessionEpoch session;
  std::uint64_t sequence = 0;
  wire::Message message;
};

class Stage {
 public:
  explicit Stage(const Profile& profile, const Missing& missing = {});

  World& world() { return world_; }
  Node& operator[](const std::string& place);  // the process that lives there
  std::vector<std::string> decode_names() const { return decode_; }
  std::vector<std::string> prefill_names(std::uint32_t instance) const;

  // --- time ---
  void start_clock() { zero_ = world_.agenda.now(); }
  Duration now() const { return since_start(world_.agenda.now()); }
  Duration since_start(Instant when) const { return when - zero_; }
  void at(Duration when, std::function<void()> what);
  void run_until(Duration when);
  void run_for(Duration time) { run_until(now() + time); }
  // False when it has not come true by then.
  bool await(const std::function<bool()>& condition, Duration limit = std::chrono::seconds(5));

  // --- callers ---
  // A room that nobody has opened yet, with a binding of its own.
  Room& room(std::uint64_t number, std::uint32_t pages, std::uint32_t instance = 0);
  void open_at(Room& room, const std::string& place);  // and names the prefill
  // Takes the lowest free pages, now or when there are enough, and hands them over: send_metadata
  // on decode; init, fill and send all in one chunk on prefill.
  void give_at(Room& room, const std::string& place);
  void open_decode(Room& room);   // opens and gives on every decode rank
  void open_prefill(Room& room);  // on every prefill rank of its instance
  void abort_decode(Room& room);
  // Handles go; what a success left with its caller goes back into the pool, and still holds what
  // it should.
  void clear(Room& room, const std::string& place);
  void clear(Room& room);
  // A room from its opening to its success on every rank.
  Room& transfer(std::uint64_t number, std::uint32_t pages, std::uint32_t instance = 0);

  const Cell& cell(const Room& room, const std::string& place) const;
  bool has_ended(const Room& room) const;      // on every rank where it is open
  bool has_succeeded(const Room& room) const;  // on every rank where it is open
  std::size_t free_pages(const std::string& place) const { return pools_.at(place).pages.free(); }

  // --- messages ---
  // Asked about each message that arrives; true: its frame is lost.
  std::function<bool(const std::string& from, const std::string& to, const wire::Message&)> loses;
  const std::vector<Delivery>& deliveries() const { return deliveries_; }
  template <typename Kind>
  std::vector<Delivery> deliveries_of() const {
    std::vector<Delivery> found;
    for (const Delivery& each : deliveries_) {
      if (std::holds_alternative<Kind>(each.message)) {
        found.push_back(each);
      }
    }
    return found;
  }
  // The same message comes once more: as the frame that carried it, or (numbered false) in a frame
  // that the window of numbers lets pass, so that the room's own guards have to know it.
  void replay(const Delivery& old, bool numbered);

  // --- outcome ---
  // What was said and done since the last call, with a newline in front.
  std::string take_trace() { return "\n" + std::exchange(trace_, {}); }
  // Lets everything end and come home; "S1: ..." or "".
  std::string finish();
  std::string verdict() const;  // as it stands

 private:
  struct Waiting {
    Room* room = nullptr;
    std::string place;
  };
  struct Pools {
    PagePool pages;
    PagePool aux;
    std::deque<Waiting> waiting;
  };

  void note(const std::string& line);
  bool pass(const Place& from, const Node& to, const wire::Frame& frame);
  bool try_give(Room& room, const std::string& place);
  void give(const Room& room, Part& part);
  void serve(const std::string& place);
  void bring_home(Part& part, const std::vector<PageIndex>& pages, std::int64_t aux_slot);
  void released(Node& node, const core::ReleasePages& released);
  bool is_at_rest();
  bool step(Instant until);

  World world_;
  Instant zero_;
  std::vector<std::string> decode_;
  std::map<std::string, Pools> pools_;
  std::vector<std::unique_ptr<Room>> rooms_;
  std::map<std::pair<SessionEpoch, std::string>, std::vector<bool>> seen_;  // by session and target
  std::vector<Delivery> deliveries_;
  std::string trace_;
};

}  // namespace kvferry::sim::scene
