// Decode's side of a request: open, name the prefill, give pages; after a Success use what arrived.
#include <fmt/format.h>

#include <utility>

#include "sim/draw.h"
#include "sim/workload_impl.h"
#include "sim/world.h"

namespace kvferry::sim {
namespace {

constexpr std::byte kAppended{0x5E};

}  // namespace

void Workload::Impl::decode_opened(PartState& state, Node& node) {
  if (state.duplicate) {
    return;
  }
  const std::uint64_t owner = state.part->owner;
  if (percent(state.timing, 80)) {
    node.name_prefill(owner, world.place(state.job->prefill.front().part->place).instance);
  } else {
    call(state, exponential(state.timing, world.profile.link_latency), [this, &state](Node& in) {
      in.name_prefill(state.part->owner,
                      world.place(state.job->prefill.front().part->place).instance);
    });
  }
  call(state, exponential(state.timing, world.profile.link_latency), [this, &state](Node&) {
    if (is_open(state)) {
      provide(state);
    }
  });
}

void Workload::Impl::give(PartState& state, Node& node) {
  if (!is_open(state)) {
    bring_all(state);  // The room ended first; the pages were never handed over.
    return;
  }
  const Part& part = *state.part;
  core::MetadataGiven metadata;
  metadata.pages = part.pages;
  metadata.aux_slot = part.aux_slot;
  metadata.state_slots = part.state_slots;
  metadata.decode_prefix_pages = prefix_to_name(state);
  metadata.expected_grants = state.expected_grants;
  const Habits& habits = state.job->habits;
  if (habits.same_page_twice && habits.decode_rank == state.rank && !part.pages.empty() &&
      !well_behaved) {
    list_wrongly(state, metadata.pages);
  }
  state.given = true;
  node.give(part.owner, std::move(metadata));
}

// A page that is in somebody else's grant, and one of its own twice: whatever becomes of the other
// room, this one must be refused.
void Workload::Impl::list_wrongly(PartState& state, std::vector<PageIndex>& pages) {
  const PagePool& pool = pools_of(state.part->place).pages;
  const std::uint64_t from = state.timing.below(pool.size());
  for (std::uint64_t i = 0; i < pool.size(); ++i) {
    const auto page = static_cast<std::uint32_t>((from + i) % pool.size());
    const auto found = by_holder.find(pool.holder(page));
    if (found == by_holder.end() || found->second == &state) {
      continue;
    }
    const PartState& other = *found->second;
    const Cell* cell = cell_of(other);
    if (other.given && cell != nullptr && cell->status == KvPoll::kTransferring) {
      pages.emplace_back(page);
      break;
    }
  }
  pages.push_back(pages.front());
  note(Fault::kSamePageTwice);
}

// Another one than its siblings name: of as many pages each would then be another one.
std::uint32_t Workload::Impl::prefix_to_name(PartState& state) {
  const std::uint32_t prefix = state.job->request->prefix_pages;
  const Habits& habits = state.job->habits;
  if (!habits.unlike_grants || habits.decode_rank != state.rank || well_behaved) {
    return prefix;
  }
  note(Fault::kUnlikeGrants);
  return prefix > 0 && percent(state.timing, 50) ? prefix - 1 : prefix + 1;
}

ContentKey Workload::Impl::content_of(const PartState& state) const {
  return {state.job->request->key.binding, state.a_writer->epoch};
}

bool Workload::Impl::holds_content(PartState& state, Node& node, bool last_page_too) {
  const ContentKey key = content_of(state);
  const Part& part = *state.part;
  const std::size_t pages = part.pages.size() - (last_page_too || part.pages.empty() ? 0 : 1);
  bool holds = true;
  for (std::uint32_t i = 0; i < pages; ++i) {
    holds =
        holds && node.memory().holds_page(part.pages[i], state.job->request->prefix_pages + i, key);
  }
  for (std::uint32_t i = 0; i < part.state_slots.size(); ++i) {
    holds = holds && node.memory().holds_state(part.state_slots[i], i, key);
  }
  if (part.aux_slot >= 0) {
    holds = holds && node.memory()
                         .inspect_aux(static_cast<std::uint32_t>(part.aux_slot),
                                      state.job->request->key.room, key.binding)
                         .has_value();
  }
  return holds;
}

// The engine appends to the last page; whatever writes there now corrupts the answer.
void Workload::Impl::start_reading(PartState& state, Node& node) {
  if (!holds_content(state, node, true)) {
    world.oracle.violate("S1", fmt::format("{}: room {} changed after its Success", node.name(),
                                           state.job->request->key.room.value()));
  }
  if (!state.part->pages.empty()) {
    node.memory().paint_page(state.part->pages.back(), kAppended);
  }
  state.reading = true;
  const bool clear_first = percent(state.timing, 50);
  const Duration hold = exponential(state.timing, 4 * world.profile.link_latency + milliseconds(1));
  if (clear_first) {
    node.clear(state.part->owner);
  }
  stop_reading_later(state, hold);
}

// Not call(): the handle may be gone while the engine reads.
void Workload::Impl::stop_reading_later(PartState& state, Duration delay) {
  world.agenda.after(delay, [this, &state] {
    Node* in = world.node_at(state.part->place);
    if (in == nullptr || in->life() != state.part->life || !state.reading || is_stuck(*in)) {
      return;
    }
    if (in->is_running()) {
      stop_reading(state, *in);
    } else {
      stop_reading_later(state, milliseconds(100));
    }
  });
}

void Workload::Impl::stop_reading(PartState& state, Node& node) {
  state.reading = false;
  const bool appended =
      state.part->pages.empty() || node.memory().is_painted(state.part->pages.back(), kAppended);
  if (!appended || !holds_content(state, node, false)) {
    world.oracle.violate("S1", fmt::format("{}: a page of room {} that decode owns was written "
                                           "after Success",
                                           node.name(), state.job->request->key.room.value()));
  }
  bring_all(state);
  if (!node.cell(state.part->owner).cleared) {
    node.clear(state.part->owner);
  }
}

}  // namespace kvferry::sim
