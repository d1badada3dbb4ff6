// Aborts, clears, duplicates, and what callers do once a part has ended.
#include <fmt/format.h>

#include <utility>

#include "sim/draw.h"
#include "sim/workload_impl.h"
#include "sim/world.h"

namespace kvferry::sim {

void Workload::status_changed(Node& node, std::uint64_t owner) {
  PartState* state = impl_->find(node, owner);
  if (state == nullptr) {
    return;
  }
  const Cell& cell = node.cell(owner);
  if (state->duplicate) {
    impl_->check_twin(*state, cell);
  }
  if (is_terminal(cell.status)) {
    impl_->ended(*state, node);
  }
}

// The core's word; what the caller ended itself it knows already.
void Workload::Impl::ended(PartState& state, Node& node) {
  const Cell& cell = node.cell(state.part->owner);
  if (cell.failure) {
    note_refusal(*cell.failure);
  }
  const bool broken_aux = state.job->habits.broken_aux && state.part->aux_slot >= 0;
  if (state.decode && cell.status == KvPoll::kSuccess && broken_aux && !well_behaved) {
    world.oracle.violate("S4", fmt::format("{}: room {} succeeds with a broken aux record",
                                           node.name(), cell.key.room.value()));
  }
  leave_queue(state);
  plan_end(state);
}

void Workload::Impl::note_refusal(const Failure& failure) {
  const auto says = [&](std::string_view word) {
    return failure.what.find(word) != std::string::npos;
  };
  if (failure.code == FailureCode::kQuarantineFull) {
    note(Fault::kQuarantineFull);
  } else if (failure.code == FailureCode::kQueueFull) {
    note(Fault::kOutboxFull);
  } else if (failure.code == FailureCode::kTableFull && says("max_grant_slots")) {
    note(Fault::kSlotsExhausted);
  } else if (failure.code == FailureCode::kTableFull && says("max_tombstones")) {
    note(Fault::kTombstonesFull);
  }
}

void Workload::Impl::plan_end(PartState& state) {
  if (std::exchange(state.end_planned, true)) {
    return;
  }
  call(state, exponential(state.timing, world.profile.link_latency + milliseconds(1)),
       [this, &state](Node& node) { read_end(state, node); });
}

void Workload::Impl::read_end(PartState& state, Node& node) {
  const std::uint64_t owner = state.part->owner;
  const Habits& habits = state.job->habits;
  if (habits.clear_unread && !well_behaved) {
    note(Fault::kClearUnread);
    clear(state, node);
    return;
  }
  const KvPoll status = node.poll(owner);
  if (habits.abort_after_end && !well_behaved) {
    note(Fault::kAbortAfterEnd);
    node.abort(owner);
  }
  if (!state.decode) {
    give_unsent_back(state);
  } else if (status == KvPoll::kSuccess) {
    start_reading(state, node);
    return;
  } else if (state.provided && !state.given) {
    bring_all(state);
  }
  call(state, exponential(state.timing, world.profile.link_latency),
       [this, &state](Node& in) { clear(state, in); });
}

// --- the caller ends it ---

void Workload::Impl::abort(PartState& state, Node& node) {
  if (!is_open(state)) {
    return;
  }
  node.abort(state.part->owner);
  leave_queue(state);
  plan_end(state);
}

void Workload::Impl::clear(PartState& state, Node& node) {
  node.clear(state.part->owner);
  leave_queue(state);
  if (!state.decode) {
    give_unsent_back(state);
  } else if (state.provided && !state.given) {
    bring_all(state);
  }
}

void Workload::Impl::plan_misbehaviour(Job& job) {
  const Habits& habits = job.habits;
  if (habits.abort) {
    world.agenda.after(habits.when, [this, &job] { abort_as_planned(job); });
  }
  if (habits.clear_unread && habits.clear_live) {
    PartState& state =
        habits.abort_decode ? job.decode[habits.decode_rank] : job.prefill[habits.prefill_rank];
    world.agenda.after(habits.when, [this, &state] {
      call(state, Duration{}, [this, &state](Node& node) {
        if (!well_behaved && is_open(state)) {
          note(Fault::kClearUnread);
          clear(state, node);
        }
      });
    });
  }
  if (habits.duplicate) {
    world.agenda.after(habits.when, [this, &job] { open_twin(job); });
  }
}

// Senders that end while nobody on decode has come yet: what comes then must hear why.
void Workload::Impl::plan_unmet_end(Job& job, Duration before) {
  for (PartState& state : job.prefill) {
    const Duration delay = uniform(state.timing, before / 8, before);
    const bool clears = percent(state.timing, 30);
    if (!job.habits.ends_unmet) {
      continue;
    }
    call(state, delay, [this, &state, clears](Node& node) {
      if (!is_open(state) || well_behaved) {
        return;
      }
      if (clears) {
        clear(state, node);
      } else {
        abort(state, node);
      }
    });
  }
}

void Workload::Impl::abort_as_planned(Job& job) {
  const Habits& habits = job.habits;
  std::vector<PartState>& side = habits.abort_decode ? job.decode : job.prefill;
  const std::uint32_t chosen = habits.abort_decode ? habits.decode_rank : habits.prefill_rank;
  for (PartState& state : side) {
    if (habits.one_rank_fails && state.rank != chosen) {
      continue;
    }
    const Duration delay = exponential(state.timing, world.profile.link_latency / 4);
    call(state, delay, [this, &state](Node& node) {
      if (!is_open(state) || well_behaved) {
        return;
      }
      const Habits& own = state.job->habits;
      note(own.one_rank_fails ? Fault::kOneRankFails : Fault::kAbort);
      abort(state, node);
      if (own.abort_twice) {
        note(Fault::kAbortTwice);
        node.abort(state.part->owner);
      }
      const std::size_t unsent = state.part->pages.size() - state.sent;
      if (own.send_after_abort && !state.decode && state.given && unsent > 0) {
        note(Fault::kSendAfterAbort);
        const PageIndex page = state.part->pages[state.sent++];
        node.send(state.part->owner, {page}, {});
      }
    });
  }
}

// The nemesis: clients go away in numbers.
void Workload::abort_some(Prng& prng) {
  if (impl_->well_behaved || impl_->requests.empty()) {
    return;
  }
  const std::uint64_t chance = 10 + prng.below(60);
  for (const auto& job : impl_->jobs) {
    const bool decode = percent(prng, 50);
    const bool hit = prng.below(100) < chance;
    for (PartState& state : decode ? job->decode : job->prefill) {
      Node* node = impl_->world.node_at(state.part->place);
      if (hit && impl_->is_open(state) && node->is_running()) {
        impl_->note(Fault::kAbort);
        job->request->caller_errs = true;
        impl_->abort(state, *node);
      }
    }
  }
}

// --- the same room a second time ---

void Workload::Impl::open_twin(Job& job) {
  const Habits& habits = job.habits;
  const PartState& first =
      habits.duplicate_decode ? job.decode[habits.decode_rank] : job.prefill[habits.prefill_rank];
  if (well_behaved || closed || !is_open(first)) {
    return;
  }
  note(Fault::kDuplicateRoom);
  job.twin_part.place = first.part->place;
  PartState& twin = job.twin;
  twin.job = &job;
  twin.part = &job.twin_part;
  twin.holder = next_holder++;
  twin.decode = first.decode;
  twin.rank = first.rank;
  twin.duplicate = true;
  twin.timing = Prng(job.request->key.binding.high);
  by_holder[twin.holder] = &twin;
  open_later(twin, Duration{}, milliseconds(2));
}

// Rule 8: while the first lives, the second is refused as such and gets nowhere.
void Workload::Impl::check_twin(PartState& state, const Cell& cell) {
  const PartState& first =
      state.decode ? state.job->decode[state.rank] : state.job->prefill[state.rank];
  if (!is_open(first) || first.part->life != state.part->life) {
    return;
  }
  if (cell.status != KvPoll::kFailed || cell.failure->code != FailureCode::kDuplicateRoom) {
    world.oracle.violate(
        "rule 8",
        fmt::format("{}: room {} is open twice; the second is {}",
                    world.place(state.part->place).name, cell.key.room.value(),
                    cell.failure ? to_string(*cell.failure) : std::string(to_string(cell.status))));
  }
}

// --- the end ---

void Workload::clear_all() {
  impl_->closed = true;
  for (const auto& [name, state] : impl_->by_name) {
    Node* node = impl_->world.node_at(name.place);
    if (node == nullptr || node->life() != name.life || !node->is_running()) {
      continue;
    }
    if (std::exchange(state->reading, false)) {
      impl_->bring_all(*state);
    }
    if (!node->cell(name.owner).cleared) {
      impl_->clear(*state, *node);
    }
  }
}

}  // namespace kvferry::sim
