// The allocators: who gets pages when, what a free page must hold, and how pages come home.
#include <fmt/format.h>

#include <algorithm>

#include "sim/draw.h"
#include "sim/workload_impl.h"
#include "sim/world.h"

namespace kvferry::sim {
namespace {

std::uint32_t items_of(const EngineMemory& memory, RegionKind kind) {
  for (const RegionShape& region : memory.shape().regions) {
    if (region.kind == kind) {
      return region.item_count;
    }
  }
  return 0;
}

bool has_canary(EngineMemory& memory, RegionKind kind, std::uint32_t slot) {
  const auto& regions = memory.shape().regions;
  for (std::uint32_t id = 0; id < regions.size(); ++id) {
    if (regions[id].kind == kind &&
        !std::ranges::all_of(memory.item(RegionId(id), slot),
                             [](std::byte value) { return value == kCanary; })) {
      return false;
    }
  }
  return true;
}

}  // namespace

Pools& Workload::Impl::pools_of(std::uint32_t place) {
  if (pools.size() <= place) {
    pools.resize(place + 1);
  }
  return pools[place];
}

// A new process finds all of its memory free, and nobody else writes there.
void Workload::Impl::reset_place(Node& node) {
  EngineMemory& memory = node.memory();
  Pools& own = pools_of(node.place().index);
  own = Pools{};
  own.pages = PagePool(items_of(memory, RegionKind::kKey));
  own.aux = PagePool(items_of(memory, RegionKind::kAux));
  own.state = PagePool(items_of(memory, RegionKind::kState));
  for (std::uint32_t page = 0; page < own.pages.size(); ++page) {
    memory.paint_page(PageIndex(page), kCanary);
  }
  for (std::uint32_t slot = 0; slot < own.aux.size(); ++slot) {
    memory.paint_aux(slot, kCanary);
  }
  for (std::uint32_t slot = 0; slot < own.state.size(); ++slot) {
    memory.paint_state(slot, kCanary);
  }
}

void Workload::Impl::provide(PartState& state) {
  const std::uint32_t place = state.part->place;
  Pools& own = pools_of(place);
  if (own.waiting.empty() && try_provide(state)) {
    provided(state);
    return;
  }
  const std::uint32_t wanted = state.job->request->pages - state.job->request->prefix_pages;
  if (own.pages.free() < wanted) {
    note(Fault::kPagesExhausted);
  } else if (state.job->wants_aux && own.aux.free() == 0) {
    note(Fault::kAuxExhausted);
  }
  state.waiting = true;
  own.waiting.push_back(&state);
  if (world.faults.may(Fault::kAbort) && !well_behaved) {
    const Duration limit = milliseconds(world.profile.options.input_timeout_ms);
    call(state, uniform(state.timing, limit / 4, limit * 2), [this, &state](Node& node) {
      if (state.waiting && !well_behaved) {
        state.job->request->caller_errs = true;
        abort(state, node);
      }
    });
  }
}

bool Workload::Impl::try_provide(PartState& state) {
  Pools& own = pools_of(state.part->place);
  const Job& job = *state.job;
  const std::uint32_t pages = job.request->pages - job.request->prefix_pages;
  const std::uint32_t aux = job.wants_aux ? 1 : 0;
  const std::uint32_t slots = job.wants_state && own.state.size() > 0 ? 1 : 0;
  if (own.pages.free() < pages || own.aux.free() < aux || own.state.free() < slots) {
    return false;
  }
  Part& part = *state.part;
  const auto numbers = own.pages.take(pages, state.holder);
  for (const std::uint32_t page : *numbers) {
    part.pages.emplace_back(page);
  }
  if (const auto slot = own.aux.take(aux, state.holder); aux > 0) {
    part.aux_slot = slot->front();
  }
  part.state_slots = own.state.take(slots, state.holder).value();
  state.provided = true;
  check_untouched(state);
  return true;
}

// What was free is as it was left: nobody writes to pages that are in no grant.
void Workload::Impl::check_untouched(PartState& state) {
  EngineMemory& memory = *world.place(state.part->place).memory;
  const auto touched = [&](std::string_view what, std::uint64_t number) {
    world.oracle.violate("S1", fmt::format("{}: {} {} was written while it was free",
                                           world.place(state.part->place).name, what, number));
  };
  for (const PageIndex page : state.part->pages) {
    if (!memory.is_painted(page, kCanary)) {
      touched("page", page.value());
    }
  }
  if (state.part->aux_slot >= 0 &&
      !has_canary(memory, RegionKind::kAux, static_cast<std::uint32_t>(state.part->aux_slot))) {
    touched("aux slot", static_cast<std::uint64_t>(state.part->aux_slot));
  }
  for (const std::uint32_t slot : state.part->state_slots) {
    if (!has_canary(memory, RegionKind::kState, slot)) {
      touched("state slot", slot);
    }
  }
}

void Workload::Impl::provided(PartState& state) {
  const Duration delay = exponential(state.timing, world.profile.link_latency / 2);
  call(state, delay, [this, &state](Node& node) {
    if (state.decode) {
      give(state, node);
    } else {
      initialize(state, node);
    }
  });
}

void Workload::Impl::leave_queue(PartState& state) {
  if (!state.waiting) {
    return;
  }
  state.waiting = false;
  std::erase(pools_of(state.part->place).waiting, &state);
  serve_later(state.part->place);
}

void Workload::Impl::serve_later(std::uint32_t place) {
  Pools& own = pools_of(place);
  if (own.waiting.empty() || own.serving) {
    return;
  }
  own.serving = true;
  world.agenda.after(Duration{}, [this, place] {
    pools_of(place).serving = false;
    serve_waiting(place);
  });
}

void Workload::Impl::serve_waiting(std::uint32_t place) {
  Pools& own = pools_of(place);
  while (!own.waiting.empty()) {
    PartState& state = *own.waiting.front();
    if (is_open(state) && !try_provide(state)) {
      return;
    }
    own.waiting.pop_front();
    state.waiting = false;
    if (state.provided) {
      provided(state);
    }
  }
}

// A page comes back that its part does not have: only a caller that erred itself may see that.
void Workload::Impl::bring_page(PartState& state, PageIndex page, bool from_core) {
  if (pools_of(state.part->place).pages.give_back(page.value(), state.holder)) {
    world.place(state.part->place).memory->paint_page(page, kCanary);
  } else if (from_core && !state.job->habits.same_page_twice) {
    world.oracle.violate("R1", fmt::format("{}: page {} comes back, and room {} does not have it",
                                           world.place(state.part->place).name, page.value(),
                                           state.job->request->key.room.value()));
  }
}

void Workload::Impl::bring_aux(PartState& state, std::int64_t slot, bool from_core) {
  if (slot < 0) {
    return;
  }
  const auto index = static_cast<std::uint32_t>(slot);
  if (pools_of(state.part->place).aux.give_back(index, state.holder)) {
    world.place(state.part->place).memory->paint_aux(index, kCanary);
  } else if (from_core) {
    world.oracle.violate("R1",
                         fmt::format("{}: aux slot {} comes back, and room {} does not have it",
                                     world.place(state.part->place).name, slot,
                                     state.job->request->key.room.value()));
  }
}

void Workload::Impl::bring_state(PartState& state, std::uint32_t slot, bool from_core) {
  if (pools_of(state.part->place).state.give_back(slot, state.holder)) {
    world.place(state.part->place).memory->paint_state(slot, kCanary);
  } else if (from_core) {
    world.oracle.violate("R1",
                         fmt::format("{}: state slot {} comes back, and room {} does not have it",
                                     world.place(state.part->place).name, slot,
                                     state.job->request->key.room.value()));
  }
}

void Workload::Impl::bring_all(PartState& state) {
  for (const PageIndex page : state.part->pages) {
    bring_page(state, page, false);
  }
  bring_aux(state, state.part->aux_slot, false);
  for (const std::uint32_t slot : state.part->state_slots) {
    bring_state(state, slot, false);
  }
  serve_later(state.part->place);
}

void Workload::pages_released(Node& node, const core::ReleasePages& released) {
  PartState* state = impl_->find(node, released.owner);
  if (state == nullptr && impl_->other_callers) {
    impl_->other_callers(node, released);
    return;
  }
  if (state == nullptr) {
    impl_->world.oracle.violate(
        "R1", fmt::format("{}: pages come back for a room that nobody opened", node.name()));
    return;
  }
  for (const PageIndex page : released.pages) {
    impl_->bring_page(*state, page, true);
  }
  impl_->bring_aux(*state, released.aux_slot, true);
  for (const std::uint32_t slot : released.state_slots) {
    impl_->bring_state(*state, slot, true);
  }
  impl_->serve_later(node.place().index);
}

std::vector<std::string> Workload::missing_pages() const {
  std::vector<std::string> missing;
  for (std::uint32_t place = 0; place < impl_->pools.size(); ++place) {
    const Node* node = impl_->world.node_at(place);
    if (node == nullptr || !node->is_running()) {
      continue;
    }
    const Pools& own = impl_->pools[place];
    const auto list = [&](const PagePool& pool, std::string_view what) {
      for (const std::uint32_t index : pool.taken()) {
        const auto found = impl_->by_holder.find(pool.holder(index));
        missing.push_back(fmt::format("{}: {} {} of request {}", node->name(), what, index,
                                      found->second->job->request->number));
      }
    };
    list(own.pages, "page");
    list(own.aux, "aux slot");
    list(own.state, "state slot");
  }
  return missing;
}

}  // namespace kvferry::sim
