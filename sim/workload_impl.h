// The callers' own records: what each request is about to do, what each of its parts has done, and
// the allocators of each place. Private to workload*.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "sim/fault.h"
#include "sim/memory.h"
#include "sim/page_pool.h"
#include "sim/workload.h"

namespace kvferry::sim {

// What a request's callers will do beyond what they should; drawn before it starts.
struct Habits {
  bool abort = false;
  bool abort_decode = false;  // that side aborts, else the other
  bool one_rank_fails = false;
  bool abort_twice = false;
  bool abort_after_end = false;
  bool clear_unread = false;
  bool clear_live = false;  // and before its end
  bool send_after_abort = false;
  bool duplicate = false;
  bool duplicate_decode = false;
  bool too_many_pages = false;
  bool wrong_count = false;
  bool broken_aux = false;
  bool same_page_twice = false;
  bool late_sender = false;
  bool unlike_grants = false;
  bool late_receiver = false;
  bool ends_unmet = false;         // of late_receiver: prefill ends it before decode comes
  std::uint32_t decode_rank = 0;   // the one that errs, where only one does
  std::uint32_t prefill_rank = 0;  // of those that write
  Duration when{};                 // of the abort or the early clear, after the start
};

struct Job;

struct PartState {
  Job* job = nullptr;
  Part* part = nullptr;
  std::uint64_t holder = 0;  // its name in the pools
  bool decode = false;
  std::uint32_t rank = 0;               // among the request's parts of its side
  std::uint32_t expected_grants = 0;    // decode
  const PartState* a_writer = nullptr;  // decode: one of the prefill parts that write to it
  bool duplicate = false;
  Prng timing{0};
  EngineEpoch epoch;      // of the process that has it
  bool pending = true;    // not opened and not skipped yet
  bool waiting = false;   // for pages
  bool provided = false;  // has its pages
  bool given = false;     // decode: told the core; prefill: initialized
  bool end_planned = false;
  bool reading = false;     // decode: uses what arrived
  End end = End::kUnknown;  // once its process is dead
  // prefill
  std::uint32_t sent = 0;    // pages
  std::uint32_t chunks = 1;  // still to come
  bool sent_last = false;
};

struct Job {
  Request* request = nullptr;  // owned by the workload's list
  Habits habits;
  bool wants_aux = true;
  bool wants_state = false;
  bool knows_prefix = true;  // prefill initializes without waiting for the grants
  std::vector<PartState> decode;
  std::vector<PartState> prefill;
  // The second open of a duplicate room.
  Part twin_part;
  PartState twin;
};

struct Pools {
  PagePool pages;
  PagePool aux;
  PagePool state;
  std::deque<PartState*> waiting;
  bool serving = false;  // a look at the waiting ones is planned
};

struct Workload::Impl {
  Impl(World& in, Prng prng);

  // --- workload.cc: requests ---
  void plan_requests();
  Job& draw_job(std::uint32_t instance, Prng prng);
  void draw_habits(Job& job, Prng& prng);
  void make_parts(Job& job, Prng& prng);
  void start_job(Job& job);
  RoomId draw_number(Prng& prng, std::uint32_t request);
  bool is_live(const Request& request) const;
  void note(Fault fault);

  // --- workload.cc: calls in a process ---
  // what runs in the process that has the part, later when it is paused, never when it is dead.
  using Call = std::function<void(Node&)>;
  void call(PartState& state, Duration delay, Call what);
  void retry_call(PartState& state, Duration wait, Call what);
  void open_later(PartState& state, Duration delay, Duration step);
  void open(PartState& state, Node& node);
  const Cell* cell_of(const PartState& state) const;
  bool is_open(const PartState& state) const;  // has a handle and no end
  bool is_stuck(const Node& node) const;       // paused, and for good
  PartState* find(const Node& node, std::uint64_t owner) const;

  // --- workload_pages.cc ---
  Pools& pools_of(std::uint32_t place);
  void reset_place(Node& node);
  // Takes pages, aux and state for the part, at once or when they are there.
  void provide(PartState& state);
  bool try_provide(PartState& state);
  void provided(PartState& state);
  void leave_queue(PartState& state);
  void serve_later(std::uint32_t place);
  void serve_waiting(std::uint32_t place);
  void check_untouched(PartState& state);
  void bring_page(PartState& state, PageIndex page, bool from_core);
  void bring_aux(PartState& state, std::int64_t slot, bool from_core);
  void bring_state(PartState& state, std::uint32_t slot, bool from_core);
  void bring_all(PartState& state);  // whatever the part still holds

  // --- workload_decode.cc ---
  void decode_opened(PartState& state, Node& node);
  void give(PartState& state, Node& node);
  void start_reading(PartState& state, Node& node);
  void stop_reading_later(PartState& state, Duration delay);
  void stop_reading(PartState& state, Node& node);
  void list_wrongly(PartState& state, std::vector<PageIndex>& pages);
  std::uint32_t prefix_to_name(PartState& state);
  bool holds_content(PartState& state, Node& node, bool last_page_too);
  ContentKey content_of(const PartState& state) const;

  // --- workload_prefill.cc ---
  void prefill_opened(PartState& state, Node& node);
  void initialize(PartState& state, Node& node);
  void send_chunk(PartState& state, Node& node);
  void fill_side_data(PartState& state, Node& node);
  void give_unsent_back(PartState& state);

  // --- workload_ends.cc: aborts, clears, ends ---
  void plan_misbehaviour(Job& job);
  void plan_unmet_end(Job& job, Duration before);
  void abort_as_planned(Job& job);
  void abort(PartState& state, Node& node);
  void clear(PartState& state, Node& node);
  void open_twin(Job& job);
  void check_twin(PartState& state, const Cell& cell);
  void ended(PartState& state, Node& node);
  void note_refusal(const Failure& failure);
  void plan_end(PartState& state);
  void read_end(PartState& state, Node& node);

  template <typename Visit>
  void for_each_part(Job& job, Visit visit) {
    for (PartState& state : job.decode) {
      visit(state);
    }
    for (PartState& state : job.prefill) {
      visit(state);
    }
    if (job.twin.part != nullptr) {
      visit(job.twin);
    }
  }

  struct Name {
    std::uint32_t place = 0;
    std::uint32_t life = 0;
    std::uint64_t owner = 0;
    friend auto operator<=>(const Name&, const Name&) = default;
  };
  // Which prefill ranks write to which decode ranks; the same for every instance and process life.
  struct Routes {
    std::vector<std::uint32_t> writers;          // prefill ranks that write at all
    std::vector<std::uint32_t> expected_grants;  // by decode rank
    std::vector<std::size_t> a_writer;           // by decode rank, position in writers
  };
  const Routes& routes();

  World& world;
  Prng arrivals;
  Prng moods;
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::unique_ptr<Request>> requests;
  Homecoming other_callers;
  std::map<Name, PartState*> by_name;
  std::map<std::uint64_t, PartState*> by_holder;
  std::map<RoomId, const Job*> by_number;  // the newest request of each number
  std::vector<Pools> pools;                // by place
  std::optional<Routes> known_routes;
  std::uint64_t next_holder = 1;
  std::uint32_t unopened = 0;  // parts
  bool well_behaved = false;
  bool closed = false;  // clear_all() was called
};

}  // namespace kvferry::sim
