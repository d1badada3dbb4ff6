// The append-only record of one process of a drill: a JSON object a line, each with the monotonic
// clock that all processes of a host share ("ns") and what happened ("at"). A line is one write(2),
// so that what a process did before it was killed is there. lab/rig/checker.h reads it; the kinds:
//
//   start     role, instance, components, source_hold_ms, messages   a process life begins;
//                                       components: its first so many regions have an item for each
//                                       page; source_hold_ms: after which a failed room's source
//                                       pages are given up; messages: whether they are kept
//   granted   room, binding, pages      pages left the pool for a room
//   returned  room, binding, pages, foreign   and came back; foreign, of a room of decode that
//                                       failed: bytes that are neither as they were granted nor
//                                       its sender's
//   spoiled   page, bytes               a page that lay in the pool was written to
//   slot      session, slot, generation, page, grant   the transport opened a slot; page: its first
//   fence, fenced   grant
//   landed    session, slot, generation, region, page, offset, bytes
//   posted    session, slot, generation, writes, pages   the transport was given writes under a
//                                       peer's grant, which read these pages
//   written   session, slot, generation, settled, unknown, quiet   so many of them landed or were
//                                       refused; are unknown; are so no more, and over
//   status    room, binding, status
//   end       room, binding, status and on failure code, where, what, peer, rank, state, after_ms;
//             on decode's success wrong_bytes
//   call      name, us                  an engine-side call that took longer than 5 ms
//   message   way, kind, session, number, slot, generation, opens, fate  of the control link, where
//                                       --messages is set; number: in its session, the same when it
//                                       is said again; slot and generation: of the grant that it
//                                       names; opens: the session that a hello's reply names; fate:
//                                       dropped, duplicated, held or, later, released by a fault
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
