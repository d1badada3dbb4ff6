#include "fabric.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "process.h"
#include "world.h"

namespace kvferry::core::fake {

std::size_t Fabric::held() const {
  return static_cast<std::size_t>(std::ranges::count_if(writes_, [](const auto& posted) {
    return posted->fate == WriteFate::kHold && !posted->executed;
  }));
}

void Fabric::release_held() { end_held(WriteFate::kLand); }

void Fabric::lose_held() { end_held(WriteFate::kLose); }

void Fabric::end_held(WriteFate fate) {
  for (const auto& posted : writes_) {
    if (posted->fate == WriteFate::kHold && !posted->executed) {
      posted->fate = fate;
      schedule(*posted);
    }
  }
}

void Fabric::say_quiet() {
  for (const auto& posted : writes_) {
    if (posted->told_unknown && posted->executed && !posted->settled) {
      posted->settled = true;
      posted->source->receive(WritesQuiet{posted->session, {posted->write.ticket}});
    }
  }
}

void Fabric::release_fences() {
  for (const auto& [target, grant] : std::exchange(held_fences_, {})) {
    end_fence(*target, grant);
  }
}

void Fabric::prove_teardown(Process& target) {
  for (auto& [epoch, ends] : sessions_) {
    if (ends.decode == &target && ends.decode_closed && !ends.torn_down) {
      ends.torn_down = true;
      target.receive(SessionTornDown{epoch});
    }
  }
}

bool Fabric::is_open(const Process& target, PageIndex page) const {
  const auto found = targets_.find(const_cast<Process*>(&target));
  return found != targets_.end() && found->second.open_pages.contains(page);
}

void Fabric::open_session(Process& process, const OpenDataSession& open) {
  Ends& ends = sessions_[open.epoch];
  (open.local_role == Role::kPrefill ? ends.prefill : ends.decode) = &process;
}

// The contract of close_session: what was posted becomes unknown, and quiet once no byte can leave
// any more, which is when the fabric has executed it.
void Fabric::close_session(Process& process, SessionEpoch epoch) {
  Ends& ends = sessions_[epoch];
  ends.decode_closed = ends.decode_closed || ends.decode == &process;
  for (const auto& posted : writes_) {
    if (posted->source != &process || posted->session != epoch || posted->settled) {
      continue;
    }
    if (!posted->told_unknown) {
      posted->told_unknown = true;
      process.receive(
          WritesCompleted{{{epoch, posted->write.ticket, layout::WriteOutcome::kUnknown}}});
    }
    if (posted->executed) {
      posted->settled = true;
      process.receive(WritesQuiet{epoch, {posted->write.ticket}});
    }
  }
}

void Fabric::open_grant(Process& target, OpenGrant open) {
  Target& at = targets_[&target];
  for (GrantedSlot& slot : open.slots) {
    for (const PageIndex page : slot.extent.pages()) {
      at.open_pages.insert(page);
    }
    const SlotKey key{slot.session, slot.slot};
    // Without a fence the target never hears that a grant has ended.
    EXPECT_TRUE(!at.slots.contains(key) || !target.setup().transport_class.local_fence)
        << "S1: a slot is given while its grant is not fenced";
    at.slots[key] = OpenSlot{slot.generation, open.grant, std::move(slot.extent)};
  }
}

// Until its end a fence lets copies through that are under way: the weakest fence that conforms.
void Fabric::fence(Process& target, GrantId grant) {
  ++fences_ordered_;
  if (hold_fences) {
    held_fences_.emplace_back(&target, grant);
    return;
  }
  world_.after(Duration{0}, [this, &target, grant] { end_fence(target, grant); });
}

void Fabric::end_fence(Process& target, GrantId grant) {
  Target& at = targets_[&target];
  std::erase_if(at.slots, [&](const auto& entry) {
    if (entry.second.grant != grant) {
      return false;
    }
    for (const PageIndex page : entry.second.extent.pages()) {
      at.open_pages.erase(at.open_pages.find(page));
    }
    return true;
  });
  target.receive(FenceCompleted{grant});
}

void Fabric::post(Process& source, const PostWrites& post) {
  world_.note("{} posts {} writes", source.name(), post.writes.size());
  for (const layout::Write& write : post.writes) {
    writes_.push_back(std::make_unique<PostedWrite>(PostedWrite{&source, post.session, write}));
    PostedWrite& posted = *writes_.back();
    posted.fate = on_write ? on_write(posted) : WriteFate::kLand;
    if (posted.fate != WriteFate::kHold) {
      schedule(posted);
    }
  }
}

void Fabric::give_up(Process& source, const GiveUpWrites& order) {
  for (const auto& posted : writes_) {
    const bool queued = !posted->executed && posted->fate != WriteFate::kHold;
    if (posted->source == &source && queued && posted->session == order.session &&
        posted->write.slot == order.slot && posted->write.generation == order.generation) {
      posted->executed = true;
      tell(*posted, layout::WriteOutcome::kRefused);
    }
  }
}

void Fabric::schedule(PostedWrite& posted) {
  world_.after(write_latency ? write_latency() : milliseconds(1),
               [this, &posted] { execute(posted); });
}

void Fabric::execute(PostedWrite& posted) {
  if (posted.executed) {
    return;
  }
  posted.executed = true;
  const std::uint64_t length = posted.write.length;
  switch (posted.fate) {
    case WriteFate::kHold:
    case WriteFate::kLand:
    case WriteFate::kCompleteTwice: {
      const bool landed = copy(posted, length);
      tell(posted, landed ? layout::WriteOutcome::kLanded : layout::WriteOutcome::kRefused);
      if (posted.fate == WriteFate::kCompleteTwice) {
        posted.source->receive(WritesCompleted{
            {{posted.session, posted.write.ticket, layout::WriteOutcome::kLanded}}});
      }
      return;
    }
    case WriteFate::kRefuse:
      tell(posted, layout::WriteOutcome::kRefused);
      return;
    case WriteFate::kLandUnknown:
      copy(posted, length);
      tell(posted, layout::WriteOutcome::kUnknown);
      return;
    case WriteFate::kLose:
      tell(posted, layout::WriteOutcome::kUnknown);
      return;
    case WriteFate::kTear:
      if (!copy(posted, length / 2)) {
        tell(posted, layout::WriteOutcome::kRefused);
        return;
      }
      tell(posted, layout::WriteOutcome::kUnknown, true);
      world_.after(milliseconds(1), [this] { say_quiet(); });
      return;
  }
}

// The receiver's side: generation first, then the bytes, then the word of it. False: refused
// untouched.
bool Fabric::copy(PostedWrite& posted, std::uint64_t length) {
  const layout::Write& write = posted.write;
  const Ends& ends = sessions_[posted.session];
  Process* decode = ends.decode;
  if (decode == nullptr || !decode->is_alive() || ends.torn_down) {
    return false;
  }
  const auto& slots = targets_[decode].slots;
  const auto slot = slots.find({posted.session, write.slot});
  if (slot == slots.end() || slot->second.generation != write.generation) {
    ++refused_by_generation_;
    return false;
  }
  if (!slot->second.extent.contains(write.target_region, write.target_item, write.offset_in_item,
                                    write.length)) {
    ADD_FAILURE() << "S8: a write outside its writer's slice of the grant";
    return false;
  }
  const auto from = posted.source->memory().bytes(write.source_region, write.source_offset, length);
  const auto to = decode->memory().item(write.target_region, write.target_item);
  std::ranges::copy(from, to.begin() + static_cast<std::ptrdiff_t>(write.offset_in_item));
  const layout::Landing landing{posted.session,       write.slot,          write.generation,
                                write.ticket,         write.target_region, write.target_item,
                                write.offset_in_item, write.length};
  if (length == write.length) {
    decode->receive(WritesLanded{{landing}});
  } else {
    decode->receive(WriteTorn{landing});
  }
  return true;
}

void Fabric::tell(PostedWrite& posted, layout::WriteOutcome outcome, bool torn) {
  if (posted.told_unknown) {
    posted.settled = true;
    posted.source->receive(WritesQuiet{posted.session, {posted.write.ticket}});
    return;
  }
  posted.told_unknown = outcome == layout::WriteOutcome::kUnknown;
  posted.settled = !posted.told_unknown;
  posted.source->receive(WritesCompleted{{{posted.session, posted.write.ticket, outcome, torn}}});
}

}  // namespace kvferry::core::fake
