// Prefill's side of a request: open, compute, send chunk by chunk.
#include <algorithm>
#include <utility>

#include "sim/draw.h"
#include "sim/workload_impl.h"
#include "sim/world.h"

namespace kvferry::sim {

void Workload::Impl::prefill_opened(PartState& state, Node&) {
  if (state.duplicate) {
    return;
  }
  call(state, exponential(state.timing, world.profile.link_latency), [this, &state](Node&) {
    if (is_open(state)) {
      provide(state);
    }
  });
}

// How many pages will come: past decode's prefix, which the grants tell. A caller whose router
// knows the prefix need not wait for them.
void Workload::Impl::initialize(PartState& state, Node& node) {
  if (!is_open(state)) {
    give_unsent_back(state);
    return;
  }
  const Job& job = *state.job;
  const bool knows = job.request->prefix_pages == 0 || job.knows_prefix ||
                     node.cell(state.part->owner).prefix.has_value();
  if (!knows || state.given) {
    return;  // prefix_known() comes back to it.
  }
  state.given = true;
  auto count = static_cast<std::uint32_t>(state.part->pages.size());
  const Habits& habits = job.habits;
  if (habits.wrong_count && habits.prefill_rank == state.rank && !well_behaved) {
    note(Fault::kWrongCount);
    count += count == 0 || percent(state.timing, 50) ? 1 : -1;
  }
  node.init_sender(state.part->owner, count, state.part->aux_slot);
  call(state, exponential(state.timing, world.profile.link_latency),
       [this, &state](Node& in) { send_chunk(state, in); });
}

void Workload::prefix_known(Node& prefill, std::uint64_t sender) {
  PartState* state = impl_->find(prefill, sender);
  if (state == nullptr || state->duplicate || !state->provided || state->given) {
    return;
  }
  impl_->call(*state, exponential(state->timing, impl_->world.profile.link_latency / 2),
              [impl = impl_.get(), state](Node& node) {
                if (!state->given) {
                  impl->initialize(*state, node);
                }
              });
}

void Workload::Impl::send_chunk(PartState& state, Node& node) {
  if (!is_open(state)) {
    give_unsent_back(state);
    return;
  }
  const Request& request = *state.job->request;
  const Part& part = *state.part;
  const auto left = static_cast<std::uint32_t>(part.pages.size()) - state.sent;
  const bool last = state.chunks <= 1 || left <= 1;
  // At least one page for each chunk that is still to come.
  const std::uint32_t spare = left - std::min(left, state.chunks - 1);
  const std::uint32_t count =
      last ? left : static_cast<std::uint32_t>(uniform(state.timing, 1, std::max(spare, 1U)));
  std::vector<PageIndex> pages;
  for (std::uint32_t i = 0; i < count; ++i) {
    const PageIndex page = part.pages[state.sent + i];
    node.memory().fill_page(page, request.prefix_pages + state.sent + i,
                            {request.key.binding, state.epoch});
    pages.push_back(page);
  }
  state.sent += count;
  --state.chunks;
  if (!last) {
    node.send(part.owner, std::move(pages), {});
    call(state, exponential(state.timing, world.profile.link_latency + milliseconds(1)),
         [this, &state](Node& in) { send_chunk(state, in); });
    return;
  }
  fill_side_data(state, node);
  state.sent_last = true;
  const Habits& habits = state.job->habits;
  const auto extra = habits.too_many_pages && habits.prefill_rank == state.rank && !well_behaved
                         ? pools_of(part.place).pages.take(1, state.holder)
                         : std::nullopt;
  if (extra) {
    note(Fault::kTooManyPages);
    state.part->pages.emplace_back(extra->front());
    pages.emplace_back(extra->front());
    ++state.sent;
  }
  node.send(part.owner, std::move(pages), part.state_slots);
}

void Workload::Impl::fill_side_data(PartState& state, Node& node) {
  const Request& request = *state.job->request;
  const Part& part = *state.part;
  for (std::uint32_t i = 0; i < part.state_slots.size(); ++i) {
    node.memory().fill_state(part.state_slots[i], i, {request.key.binding, state.epoch});
  }
  if (part.aux_slot < 0) {
    return;
  }
  const auto slot = static_cast<std::uint32_t>(part.aux_slot);
  if (!state.job->habits.broken_aux || well_behaved) {
    node.memory().fill_aux(slot, request.key.room, request.key.binding);
    return;
  }
  // Another request's record, or none at all.
  note(Fault::kBrokenAux);
  if (percent(state.timing, 50)) {
    Binding other = request.key.binding;
    other.high ^= 1;
    node.memory().fill_aux(slot, request.key.room, other);
  } else {
    node.memory().paint_aux(slot, std::byte{0x11});
  }
}

// What was not handed over is still the caller's.
void Workload::Impl::give_unsent_back(PartState& state) {
  Part& part = *state.part;
  if (!state.provided) {
    return;
  }
  for (std::size_t i = state.sent; i < part.pages.size(); ++i) {
    bring_page(state, part.pages[i], false);
  }
  if (!state.given) {
    bring_aux(state, part.aux_slot, false);
  }
  if (!state.sent_last) {
    for (const std::uint32_t slot : part.state_slots) {
      bring_state(state, slot, false);
    }
  }
  serve_later(part.place);
}

}  // namespace kvferry::sim
