// Posted writes that are not settled: from post until landed, refused or quiet (rule 2). Tickets
// are numbered per session and never reused.
#pragma once

#include <cstdint>
#include <vector>

#include "core/number_map.h"
#include "kvferry/ids.h"
#include "layout/write.h"

namespace kvferry::core {

struct TrackedWrite {
  SenderId sender;
  layout::Write write;
  bool unknown = false;    // its outcome was not known in time; only quiet can follow
  std::uint8_t posts = 1;  // this ticket's place among those posted for the same range
};

class WriteTracker {
 public:
  TicketId next_ticket() {
    last_ = last_.next();
    return last_;
  }
  void add(const TrackedWrite& tracked) {
    risen_ = risen_ && tracked.write.ticket > newest_;
    newest_ = tracked.write.ticket;
    writes_.emplace(tracked.write.ticket, tracked);
  }
  // Whether each ticket was above all before it (S12).
  bool has_risen() const { return risen_; }
  // nullptr: settled already, or never posted here.
  TrackedWrite* find(TicketId ticket) { return writes_.find(ticket); }
  // Tickets under a grant that are unknown and not yet quiet.
  std::vector<TicketId> unknown_under(GrantSlot slot, Generation generation) const {
    std::vector<TicketId> tickets;
    writes_.for_each([&](TicketId ticket, const TrackedWrite& tracked) {
      if (tracked.unknown && tracked.write.slot == slot && tracked.write.generation == generation) {
        tickets.push_back(ticket);
      }
    });
    return tickets;
  }
  void settle(TicketId ticket) { writes_.erase(ticket); }
  std::size_t size() const { return writes_.size(); }

 private:
  NumberMap<TicketId, TrackedWrite> writes_;
  TicketId last_;
  TicketId newest_;
  bool risen_ = true;
};

}  // namespace kvferry::core
