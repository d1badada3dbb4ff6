// The callers: a router's requests, the engines' schedulers on both sides, their page pools.
// Requests come at drawn times; each opens a receiver on every decode rank and a sender on every
// prefill rank that writes, gives pages, sends chunks, polls, uses what arrived, and misbehaves as
// the profile asks.
//
// Nothing here calls a protocol: calls leave events in mailboxes (node.h), at drawn times.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/prng.h"
#include "core/action.h"
#include "sim/node.h"

namespace kvferry::sim {

// One rank's part in a request. Names a process life: when that is over, the part's end is unknown.
struct Part {
  std::uint32_t place = 0;
  std::uint32_t life = 0;
  std::uint64_t owner = 0;  // ReceiverId or SenderId in that life; 0: not opened yet
  std::vector<PageIndex> pages;
  std::int64_t aux_slot = -1;
  std::vector<std::uint32_t> state_slots;
};

struct Request {
  std::uint32_t number = 0;
  core::RoomKey key;
  std::uint32_t instance = 0;
  std::uint32_t pages = 0;         // of the whole prompt
  std::uint32_t prefix_pages = 0;  // that decode has already
  std::vector<Part> decode;        // by rank
  std::vector<Part> prefill;       // the ranks that write, see expected_grants
  bool is_probe = false;           // must succeed
  bool caller_errs = false;        // a mistake of its caller was drawn: it need not succeed
};

// How a part of a request ended, as its caller can know (three-valued).
enum class End : std::uint8_t { kLive, kSucceeded, kFailed, kUnknown };

class Workload {
 public:
  Workload(World& world, Prng prng);
  ~Workload();

  // Plans every request of the profile on the agenda.
  void start();
  bool all_opened() const;  // every planned request has been opened
  // The parts that live although their process does: what L1 forbids at the end.
  std::vector<std::string> unfinished() const;
  bool all_ended() const;

  // A script that plays further callers is told of what comes home for their rooms.
  using Homecoming = std::function<void(Node& node, const core::ReleasePages& released)>;
  void set_other_callers(Homecoming homecoming);

  // --- told by nodes; only plans ---
  void status_changed(Node& node, std::uint64_t owner);
  void prefix_known(Node& prefill, std::uint64_t sender);
  void pages_released(Node& node, const core::ReleasePages& released);
  void process_started(Node& node);
  void process_died(Node& node);

  // --- the nemesis and the end ---
  void abort_some(Prng& prng);
  void stop_misbehaving();  // from here on callers are well-behaved
  // Opens one well-behaved request per given instance that must succeed.
  void start_probe(std::uint32_t instance);
  // Clears every handle; afterwards every page must come home (R1).
  void clear_all();
  std::vector<std::string> missing_pages() const;  // not free in a living place's pool

  const Request* find(const Node& node, std::uint64_t owner) const;
  End end_of(const Part& part) const;
  const std::vector<std::unique_ptr<Request>>& requests() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvferry::sim
