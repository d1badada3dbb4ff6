// The control link of a rank of a drill: the product's, with its dials led through the rig's
// relays, a journal of the messages, and faults that know messages. CURVE makes a relay blind; here
// frames are still, or again, in the clear. A frame of which one message is lost goes on in two, so
// that the numbers of the others stay theirs.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/rank/journal.h"
#include "lab/rank/routes.h"
#include "net/control_link.h"

namespace kvferry::lab {

// Names of all messages, from the wire's own table.
std::vector<std::string> message_kinds();

struct MessageFault {
  enum class What : std::uint8_t { kDrop, kDuplicate, kHold };
  std::string kind;       // one of message_kinds()
  bool incoming = false;  // of those that come, or of those that go
  What what = What::kDrop;
  std::uint64_t first = 1;  // the k-th from now on, counted from 1
  std::uint64_t count = 1;  // and those after it; repetitions count as messages of their own
};

// What a rank's faulty link is told, and what it has done. Threads: any.
class MessageFaults {
 public:
  // A kind that is none is refused with those there are.
  Status add(MessageFault fault);
  // What was told to add() holds no more; what is held stays so.
  void mend();
  // What is held goes on, in order or, with a seed, in an order that the seed gives.
  void release(std::optional<std::uint64_t> seed = std::nullopt);
  std::uint64_t struck() const;
  // The link's next wait throws on the thread that waits.
  void end_thread() { thread_ends_.store(true, std::memory_order_release); }

 private:
  friend class FaultyLink;
  struct Rule {
    MessageFault fault;
    std::uint64_t seen = 0;
  };
  std::optional<MessageFault::What> judge(std::string_view kind, bool incoming);
  struct Release {
    std::uint64_t number = 0;
    std::optional<std::uint64_t> seed;
  };
  Release released() const;

  mutable std::mutex mutex_;
  std::vector<Rule> rules_;
  Release release_;
  std::uint64_t struck_ = 0;
  std::atomic<bool> thread_ends_{false};
};

// journal: null when messages are not to be kept. All outlive the link.
std::unique_ptr<net::ControlLink> make_faulty_link(std::unique_ptr<net::ControlLink> inner,
                                                   MessageFaults& faults, const Routes& routes,
                                                   Journal* journal);

}  // namespace kvferry::lab
