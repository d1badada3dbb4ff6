// The append-only record of one process of a drill: a JSON object a line, each with the monotonic
// clock that all processes of a host share ("ns") and what happened ("at"). A line is one write(2),
// so that what a process did before it was killed is there. lab/rig/checker.h reads it; the kinds:
//
//   start     role, instance, components   a process life begins; components: its first so many
//                                       regions have an item for each page
//   granted   room, binding, pages      pages left the pool for a room
//   returned  room, binding, pages      and came back
//   spoiled   page, bytes               a page that lay in the pool was written to
//   slot      session, slot, generation, page   the transport opened a slot; page: its first
//   fence, fenced   grant
//   landed    session, slot, generation, region, page, offset, bytes
//   status    room, binding, status
//   end       room, binding, status and on failure code, where, what, peer, rank, state, after_ms;
//             on decode's success wrong_bytes
//   call      name, us                  an engine-side call that took longer than 5 ms
//   message   way, kind, session, opens  of the control link, where --messages is set; opens: the
//                                       session that a hello's reply names
#pragma once

#include <string>
#include <string_view>

#include "kvferry/status.h"
#include "router/json.h"

namespace kvferry::lab {

// Threads: any.
class Journal {
 public:
  // An empty path: nothing is kept.
  static Result<Journal> open(const std::string& path);
  Journal(Journal&& other) noexcept;
  Journal& operator=(Journal&&) = delete;
  ~Journal();

  static router::JsonObject line(std::string_view at);
  void append(const router::JsonObject& line) noexcept;

 private:
  explicit Journal(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace kvferry::lab
