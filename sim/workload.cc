// Requests from their draw to the opening of their parts, and the calls that run in processes.
#include "sim/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "layout/rank_map.h"
#include "sim/draw.h"
#include "sim/workload_impl.h"
#include "sim/world.h"

namespace kvferry::sim {
namespace {

// Room numbers that no other request has.
constexpr std::uint64_t kOwnNumbers = 1'000'000;
constexpr Duration kFirstRetry = milliseconds(2);
constexpr Duration kLongestRetry = milliseconds(200);

}  // namespace

Workload::Workload(World& world, Prng prng) : impl_(std::make_unique<Impl>(world, prng)) {}
Workload::~Workload() = default;

void Workload::start() { impl_->plan_requests(); }

void Workload::set_other_callers(Homecoming homecoming) {
  impl_->other_callers = std::move(homecoming);
}

bool Workload::all_opened() const { return impl_->unopened == 0; }

const std::vector<std::unique_ptr<Request>>& Workload::requests() const { return impl_->requests; }

const Request* Workload::find(const Node& node, std::uint64_t owner) const {
  const PartState* state = impl_->find(node, owner);
  return state == nullptr ? nullptr : state->job->request;
}

void Workload::process_started(Node& node) { impl_->reset_place(node); }

void Workload::process_died(Node& node) {
  // What its callers knew by then stays known.
  const Impl::Name first{node.place().index, node.life(), 0};
  for (auto it = impl_->by_name.lower_bound(first);
       it != impl_->by_name.end() && it->first.place == first.place && it->first.life == first.life;
       ++it) {
    const KvPoll status = node.cell(it->first.owner).status;
    it->second->end = status == KvPoll::kSuccess  ? End::kSucceeded
                      : status == KvPoll::kFailed ? End::kFailed
                                                  : End::kUnknown;
  }
  Pools& pools = impl_->pools_of(first.place);
  for (PartState* state : pools.waiting) {
    state->waiting = false;
  }
  pools.waiting.clear();
}

End Workload::end_of(const Part& part) const {
  const auto found = impl_->by_name.find({part.place, part.life, part.owner});
  if (part.owner == 0 || found == impl_->by_name.end()) {
    return End::kUnknown;
  }
  const Cell* cell = impl_->cell_of(*found->second);
  if (cell == nullptr) {
    return found->second->end;
  }
  return cell->status == KvPoll::kSuccess  ? End::kSucceeded
         : cell->status == KvPoll::kFailed ? End::kFailed
                                           : End::kLive;
}

std::vector<std::string> Workload::unfinished() const {
  std::vector<std::string> live;
  for (const auto& [name, state] : impl_->by_name) {
    const Node* node = impl_->world.node_at(name.place);
    if (impl_->is_open(*state) && node->is_running()) {
      live.push_back(fmt::format("{} room {} of request {}: {}", node->name(),
                                 state->job->request->key.room.value(), state->job->request->number,
                                 to_string(node->cell(name.owner).status)));
    }
  }
  return live;
}

bool Workload::all_ended() const { return all_opened() && unfinished().empty(); }

void Workload::stop_misbehaving() { impl_->well_behaved = true; }

// --- requests ---

Workload::Impl::Impl(World& in, Prng prng) : world(in), arrivals(prng.fork()), moods(prng.fork()) {}

void Workload::Impl::note(Fault fault) {
  if (world.faults.may(fault)) {
    world.faults.note(fault);
  }
}

const Workload::Impl::Routes& Workload::Impl::routes() {
  if (known_routes) {
    return *known_routes;
  }
  std::vector<LayoutShape> sources;
  for (const Place* place : world.prefill_places(0)) {
    sources.push_back(place->memory->shape());
  }
  std::vector<std::uint32_t> grants(sources.size(), 0);
  std::vector<std::uint32_t> first_writer;
  for (const Place* place : world.decode_places()) {
    const auto writers = layout::writers_for(place->memory->shape(), sources);
    for (const layout::Writer& writer : *writers) {
      ++grants[writer.source_index];
    }
    first_writer.push_back(writers->front().source_index);
  }
  Routes found;
  for (std::uint32_t rank = 0; rank < grants.size(); ++rank) {
    if (grants[rank] > 0) {
      found.writers.push_back(rank);
    }
  }
  for (const std::uint32_t writer : first_writer) {
    found.expected_grants.push_back(grants[writer]);
    found.a_writer.push_back(
        static_cast<std::size_t>(std::ranges::find(found.writers, writer) - found.writers.begin()));
  }
  known_routes = std::move(found);
  return *known_routes;
}

void Workload::Impl::plan_requests() {
  Duration at{};
  for (std::uint32_t i = 0; i < world.profile.rooms; ++i) {
    Prng own = arrivals.fork();
    at += exponential(own, world.profile.mean_gap);
    const auto instance = static_cast<std::uint32_t>(own.below(world.profile.prefill_instances));
    Job& job = draw_job(instance, own.fork());
    Prng mood = moods.fork();
    draw_habits(job, mood);
    unopened += static_cast<std::uint32_t>(job.decode.size() + job.prefill.size());
    world.agenda.after(at, [this, &job] { start_job(job); });
  }
}

Job& Workload::Impl::draw_job(std::uint32_t instance, Prng prng) {
  const Profile& profile = world.profile;
  requests.push_back(std::make_unique<Request>());
  jobs.push_back(std::make_unique<Job>());
  Job& job = *jobs.back();
  job.request = requests.back().get();
  Request& request = *job.request;
  request.number = static_cast<std::uint32_t>(requests.size() - 1);
  request.key = {draw_number(prng, request.number), Binding{prng.next(), request.number + 1}};
  request.instance = instance;
  request.pages = static_cast<std::uint32_t>(log_uniform(prng, 1, profile.max_pages));
  const bool cached = percent(prng, 20);
  const auto prefix = static_cast<std::uint32_t>(prng.below(request.pages + 1));
  request.prefix_pages = cached ? prefix : 0;
  job.wants_aux = percent(prng, 85);
  job.wants_state = percent(prng, 80) && profile.decode.state_slots > 0;
  job.knows_prefix = percent(prng, 50);
  make_parts(job, prng);
  return job;
}

// A small set of numbers, so that they collide; never the binding.
RoomId Workload::Impl::draw_number(Prng& prng, std::uint32_t request) {
  const std::uint64_t drawn = 1 + prng.below(world.profile.room_numbers);
  return RoomId(world.faults.may(Fault::kRoomReused) ? drawn : kOwnNumbers + request);
}

void Workload::Impl::make_parts(Job& job, Prng& prng) {
  const auto add = [&](std::vector<Part>& parts, std::vector<PartState>& states, bool decode,
                       const Place& place) {
    parts.push_back(Part{});
    parts.back().place = place.index;
    PartState state;
    state.job = &job;
    state.holder = next_holder++;
    state.decode = decode;
    state.rank = static_cast<std::uint32_t>(states.size());
    state.timing = prng.fork();
    states.push_back(state);
  };
  for (const Place* place : world.decode_places()) {
    add(job.request->decode, job.decode, true, *place);
    job.decode.back().expected_grants = routes().expected_grants[job.decode.back().rank];
  }
  const std::vector<Place*> prefill = world.prefill_places(job.request->instance);
  for (const std::uint32_t rank : routes().writers) {
    add(job.request->prefill, job.prefill, false, *prefill[rank]);
    job.prefill.back().chunks =
        static_cast<std::uint32_t>(uniform(prng, 1, world.profile.max_chunks));
  }
  for (PartState& state : job.decode) {
    state.part = &job.request->decode[state.rank];
    state.a_writer = &job.prefill[routes().a_writer[state.rank]];
    by_holder[state.holder] = &state;
  }
  for (PartState& state : job.prefill) {
    state.part = &job.request->prefill[state.rank];
    by_holder[state.holder] = &state;
  }
}

// Every draw is made whatever is enabled, so that switching a kind off changes nothing else.
void Workload::Impl::draw_habits(Job& job, Prng& prng) {
  const auto strikes = [&](Fault fault) {
    const std::uint64_t draw = prng.below(1'000);
    return draw < world.profile.rate_of(fault) && world.faults.may(fault);
  };
  Habits& habits = job.habits;
  Request& request = *job.request;
  habits.abort = strikes(Fault::kAbort);
  habits.one_rank_fails = strikes(Fault::kOneRankFails);
  habits.abort_twice = strikes(Fault::kAbortTwice);
  habits.abort_after_end = strikes(Fault::kAbortAfterEnd);
  habits.clear_unread = strikes(Fault::kClearUnread);
  habits.send_after_abort = strikes(Fault::kSendAfterAbort);
  habits.duplicate = strikes(Fault::kDuplicateRoom);
  const bool no_pages = strikes(Fault::kZeroPages);
  habits.too_many_pages = strikes(Fault::kTooManyPages);
  habits.wrong_count = strikes(Fault::kWrongCount);
  habits.broken_aux = strikes(Fault::kBrokenAux) && job.wants_aux;
  habits.same_page_twice = strikes(Fault::kSamePageTwice);
  habits.late_sender = strikes(Fault::kLateSender);
  const bool unlike = strikes(Fault::kUnlikeGrants);
  habits.late_receiver = strikes(Fault::kLateReceiver) && !habits.late_sender;
  habits.ends_unmet = percent(prng, 60) && habits.late_receiver;
  habits.abort_decode = percent(prng, 50);
  habits.duplicate_decode = percent(prng, 50);
  habits.clear_live = percent(prng, 50);
  habits.decode_rank = static_cast<std::uint32_t>(prng.below(job.decode.size()));
  habits.prefill_rank = static_cast<std::uint32_t>(prng.below(job.prefill.size()));
  // Nobody but a sender that serves several ranks can tell.
  habits.unlike_grants = unlike && job.decode[habits.decode_rank].expected_grants > 1;
  const Duration typical = 12 * world.profile.link_latency + 4 * world.profile.write_latency;
  habits.when = exponential(prng, typical + milliseconds(1));
  if (no_pages) {
    world.faults.note(Fault::kZeroPages);
    request.pages = 0;
    request.prefix_pages = 0;
  }
  habits.one_rank_fails =
      habits.one_rank_fails && (habits.abort_decode ? job.decode.size() : job.prefill.size()) > 1;
  habits.abort =
      habits.abort || habits.one_rank_fails || habits.abort_twice || habits.send_after_abort;
  request.caller_errs = habits.abort || habits.clear_unread || habits.too_many_pages ||
                        habits.wrong_count || habits.broken_aux || habits.same_page_twice ||
                        habits.late_sender || habits.unlike_grants || habits.late_receiver;
}

bool Workload::Impl::is_live(const Request& request) const {
  const auto live = [this](const Part& part) { return world.workload.end_of(part) == End::kLive; };
  return std::ranges::any_of(request.decode, live) || std::ranges::any_of(request.prefill, live);
}

void Workload::Impl::start_job(Job& job) {
  const auto former = by_number.find(job.request->key.room);
  if (former != by_number.end() && is_live(*former->second->request)) {
    note(Fault::kRoomReused);
  }
  by_number[job.request->key.room] = &job;
  const Duration spread = 2 * world.profile.link_latency;
  const auto up_to = [&](PartState& first, std::uint32_t timeout_ms) {
    const Duration limit = milliseconds(timeout_ms);
    return uniform(first.timing, limit / 8, limit * 5 / 4);
  };
  Duration prefill_waits{};
  Duration decode_waits{};
  if (job.habits.late_sender) {
    note(Fault::kLateSender);
    prefill_waits = up_to(job.prefill.front(), world.profile.options.unopened_room_timeout_ms);
  }
  if (job.habits.late_receiver) {
    note(Fault::kLateReceiver);
    decode_waits = up_to(job.decode.front(), world.profile.options.bootstrap_timeout_ms);
    plan_unmet_end(job, decode_waits);
  }
  for_each_part(job, [&](PartState& state) {
    const Duration delay = exponential(state.timing, spread);
    open_later(state, delay + (state.decode ? decode_waits : prefill_waits), kFirstRetry);
  });
  plan_misbehaviour(job);
}

// --- calls in a process ---

const Cell* Workload::Impl::cell_of(const PartState& state) const {
  const Part& part = *state.part;
  const Node* node = world.node_at(part.place);
  const bool same = part.owner != 0 && node != nullptr && node->life() == part.life;
  return same ? &node->cell(part.owner) : nullptr;
}

bool Workload::Impl::is_open(const PartState& state) const {
  const Cell* cell = cell_of(state);
  return cell != nullptr && !cell->cleared && !is_terminal(cell->status);
}

bool Workload::Impl::is_stuck(const Node& node) const {
  return !node.is_running() && well_behaved && !world.nemesis.is_healthy(node.place().index);
}

PartState* Workload::Impl::find(const Node& node, std::uint64_t owner) const {
  const auto found = by_name.find({node.place().index, node.life(), owner});
  return found == by_name.end() ? nullptr : found->second;
}

void Workload::Impl::call(PartState& state, Duration delay, Call what) {
  world.agenda.after(delay, [this, &state, held = std::move(what)]() mutable {
    retry_call(state, kFirstRetry, std::move(held));
  });
}

void Workload::Impl::retry_call(PartState& state, Duration wait, Call what) {
  const Cell* cell = cell_of(state);
  if (cell == nullptr || cell->cleared || closed) {
    return;
  }
  Node& node = *world.node_at(state.part->place);
  if (node.is_running()) {
    what(node);
    return;
  }
  if (is_stuck(node)) {
    return;
  }
  // The callers' threads stand still with their process.
  world.agenda.after(wait, [this, &state, wait, held = std::move(what)]() mutable {
    retry_call(state, std::min(2 * wait, kLongestRetry), std::move(held));
  });
}

void Workload::Impl::open_later(PartState& state, Duration delay, Duration step) {
  world.agenda.after(delay, [this, &state, step] {
    Node* node = world.node_at(state.part->place);
    const bool never = node == nullptr || closed || is_stuck(*node);
    if (!never && !node->is_running()) {
      open_later(state, step, std::min(2 * step, kLongestRetry));
      return;
    }
    if (std::exchange(state.pending, false) && !state.duplicate) {
      --unopened;
    }
    if (!never) {
      open(state, *node);
    }
  });
}

void Workload::Impl::open(PartState& state, Node& node) {
  Part& part = *state.part;
  part.life = node.life();
  part.owner = node.open(state.job->request->key);
  state.epoch = node.engine_epoch();
  by_name[{part.place, part.life, part.owner}] = &state;
  if (state.decode) {
    decode_opened(state, node);
  } else {
    prefill_opened(state, node);
  }
}

void Workload::start_probe(std::uint32_t instance) {
  Impl& impl = *impl_;
  Job& job = impl.draw_job(instance, impl.arrivals.fork());
  Request& request = *job.request;
  request.is_probe = true;
  request.key.room = RoomId(kOwnNumbers + request.number);
  // What a lost peer's quarantine still holds isn't the probe's to wait for.
  std::size_t pages = std::clamp<std::uint32_t>(request.pages, 1, 3);
  job.wants_state = false;
  impl.for_each_part(job, [&](PartState& state) {
    const Pools& pools = impl.pools_of(state.part->place);
    pages = std::min(pages, pools.pages.free());
    job.wants_aux = job.wants_aux && pools.aux.free() > 0;
  });
  request.pages = static_cast<std::uint32_t>(pages);
  request.prefix_pages = 0;
  impl.unopened += static_cast<std::uint32_t>(job.decode.size() + job.prefill.size());
  impl.start_job(job);
}

}  // namespace kvferry::sim
