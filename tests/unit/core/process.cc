#include "process.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "wire/aux_record.h"
#include "world.h"

namespace kvferry::core::fake {
namespace {

std::vector<PageIndex> to_pages(const std::vector<std::uint32_t>& numbers) {
  std::vector<PageIndex> pages;
  for (const std::uint32_t number : numbers) {
    pages.emplace_back(number);
  }
  return pages;
}

wire::Introduction introduce(const ProcessSetup& setup, const std::string& name,
                             std::uint32_t life) {
  wire::Introduction self;
  self.role = setup.role;
  self.instance = setup.role == Role::kPrefill ? "prefill" : "decode";
  self.control_endpoint = name + ":1";
  self.incarnation = Incarnation{std::hash<std::string>{}(name), life};
  self.engine_epoch = EngineEpoch(100 * (1 + static_cast<std::uint64_t>(setup.role)) + life);
  self.layout = make_shape(setup.tp_rank, setup.tp_size, setup.pages);
  self.limits = {setup.options.max_grant_slots, setup.options.control_message_max_bytes,
                 setup.options.send_window_messages};
  self.transports = {{"fake", {}}};
  if (setup.adjust) {
    setup.adjust(self);
  }
  return self;
}

}  // namespace

Process::Process(World& world, std::string name, std::uint32_t life, ProcessSetup setup)
    : world_(world),
      name_(std::move(name)),
      key_(fmt::format("key of {} life {}", name_, life)),
      setup_(std::move(setup)),
      prng_(std::hash<std::string>{}(key_)),
      self_(introduce(setup_, name_, life)),
      memory_(self_.layout) {
  ProtocolConfig config{setup_.options, self_, setup_.transport_class};
  protocol_ = setup_.role == Role::kPrefill ? make_prefill_protocol(std::move(config), *this)
                                            : make_decode_protocol(std::move(config), *this);
}

// --- the caller's side ---

std::uint64_t Process::open(RoomName room) {
  const std::uint64_t owner = next_owner_++;
  cells_[owner].name = room;
  if (setup_.role == Role::kPrefill) {
    receive(SenderOpened{SenderId(owner), room.room, room.binding});
  } else {
    receive(ReceiverOpened{ReceiverId(owner), room.room, room.binding});
  }
  return owner;
}

void Process::init_receiver(std::uint64_t owner, std::string instance) {
  receive(PrefillNamed{ReceiverId(owner), "registry:1", std::move(instance), 0});
}

void Process::give(std::uint64_t owner, std::vector<std::uint32_t> pages, std::int64_t aux_slot,
                   std::uint32_t expected_grants, std::uint32_t prefix_pages,
                   std::vector<std::uint32_t> state_slots) {
  pages_out_.insert(pages.begin(), pages.end());
  cells_.at(owner).pages = pages;
  receive(MetadataGiven{ReceiverId(owner), to_pages(pages), aux_slot, std::move(state_slots),
                        prefix_pages, expected_grants});
}

void Process::init_sender(std::uint64_t owner, std::uint32_t page_count, std::int64_t aux_slot) {
  if (aux_slot >= 0) {
    const RoomName& room = cells_.at(owner).name;
    memory_.fill_aux(static_cast<std::uint32_t>(aux_slot), room.room, room.binding);
  }
  receive(SenderInitialized{SenderId(owner), page_count, aux_slot});
}

void Process::send(std::uint64_t owner, std::vector<std::uint32_t> pages,
                   std::vector<std::uint32_t> state_slots) {
  Cell& cell = cells_.at(owner);
  for (const std::uint32_t page : pages) {
    memory_.fill_page(page, static_cast<std::uint32_t>(cell.pages.size()), cell.name.binding);
    cell.pages.push_back(page);
  }
  pages_out_.insert(pages.begin(), pages.end());
  receive(ChunkGiven{SenderId(owner), to_pages(pages), std::move(state_slots)});
}

void Process::win_cell(std::uint64_t owner) {
  Cell& cell = cells_.at(owner);
  cell.status = KvPoll::kFailed;
  cell.failure =
      Failure{FailureCode::kAborted, FailureWhere::kLocal, "the client went away", {}, 0};
}

void Process::abort(std::uint64_t owner, std::string_view what) {
  Cell& cell = cells_.at(owner);
  if (is_terminal(cell.status)) {
    return;
  }
  win_cell(owner);
  cell.failure->what = what;
  if (setup_.role == Role::kPrefill) {
    receive(SenderAborted{SenderId(owner), *cell.failure});
  } else {
    receive(ReceiverAborted{ReceiverId(owner), *cell.failure});
  }
}

KvPoll Process::poll(std::uint64_t owner) {
  Cell& cell = cells_.at(owner);
  if (cell.status == KvPoll::kSuccess && !cell.read_success) {
    cell.read_success = true;
    // The caller owns the granted pages from here on.
    for (const std::uint32_t page :
         setup_.role == Role::kDecode ? cell.pages : std::vector<std::uint32_t>{}) {
      pages_out_.erase(pages_out_.find(page));
    }
  }
  return cell.status;
}

void Process::clear(std::uint64_t owner) {
  Cell& cell = cells_.at(owner);
  if (std::exchange(cell.cleared, true)) {
    return;  // A handle goes once.
  }
  const bool unread = cell.status == KvPoll::kSuccess && !cell.read_success;
  if (!is_terminal(cell.status)) {
    win_cell(owner);
  }
  if (setup_.role == Role::kPrefill) {
    receive(SenderCleared{SenderId(owner)});
  } else {
    receive(ReceiverCleared{ReceiverId(owner), unread});
  }
}

FailureCode Process::code(std::uint64_t owner) const {
  const Cell& held = cell(owner);
  return held.failure ? held.failure->code : FailureCode::kUnspecified;
}

std::string Process::cause(std::uint64_t owner) const {
  const Cell& held = cell(owner);
  return held.failure ? to_string(*held.failure) : std::string();
}

// --- the world's side ---

bool Process::has_work(Instant now) const {
  return is_running() && (!inbox_.empty() || protocol_->next_deadline() <= now);
}

void Process::step(Instant now) {
  std::vector<Event> events = std::exchange(inbox_, {});
  protocol_->step(now, events, *this);
  for (const std::string& broken : protocol_->check_invariants()) {
    ADD_FAILURE() << name_ << ": " << broken;
  }
}

PeerRow Process::row() const {
  return PeerRow{address(), self_.instance, self_.layout.rank, self_.engine_epoch};
}

Snapshot Process::snapshot(std::size_t max_rooms_shown) const {
  return protocol_->snapshot(world_.now(), max_rooms_shown);
}

std::uint64_t Process::counter(const std::string& name) const {
  const auto found = counters_.find(name);
  return found == counters_.end() ? 0 : found->second;
}

// --- ActionSink ---

void Process::publish_status(std::uint64_t owner, KvPoll status) {
  Cell& cell = cells_.at(owner);
  if (is_terminal(cell.status)) {
    return;  // The caller aborted, and its event is on the way.
  }
  EXPECT_GT(status, cell.status) << "S5: a status goes back";
  cell.status = status;
  world_.note("{} room {} {}", name_, cell.name.room.value(), to_string(status));
}

bool Process::publish_terminal(std::uint64_t owner, KvPoll status,
                               const std::optional<Failure>& failure) {
  Cell& cell = cells_.at(owner);
  EXPECT_TRUE(is_terminal(status));
  EXPECT_EQ(failure.has_value(), status == KvPoll::kFailed);
  if (is_terminal(cell.status)) {
    return false;
  }
  cell.status = status;
  cell.failure = failure;
  world_.note("{} room {} {}{}", name_, cell.name.room.value(), to_string(status),
              failure ? " " + std::string(to_string(failure->code)) : std::string());
  if (status == KvPoll::kSuccess && setup_.role == Role::kDecode) {
    expect_closed(cell, "Success");
    for (std::uint32_t i = 0; i < cell.pages.size(); ++i) {
      EXPECT_TRUE(memory_.holds_page(cell.pages[i], i, cell.name.binding))
          << "S4: " << name_ << " page " << cell.pages[i] << " differs from its source";
    }
  }
  return true;
}

void Process::expect_closed(const Cell& cell, const char* when) const {
  if (!setup_.transport_class.local_fence) {
    return;
  }
  for (const std::uint32_t page : cell.pages) {
    EXPECT_FALSE(world_.fabric().is_open(*this, PageIndex(page)))
        << "S1: page " << page << " leaves its open grant at " << when;
  }
}

void Process::publish_attempt(ReceiverId receiver, AttemptId attempt) {
  cells_.at(receiver.value()).attempt = attempt;
}

void Process::publish_prefix(SenderId sender, std::uint32_t decode_prefix_pages) {
  cells_.at(sender.value()).prefix = decode_prefix_pages;
}

void Process::publish_landed_bytes(SenderId sender, std::uint64_t bytes) {
  EXPECT_GE(bytes, cells_.at(sender.value()).landed_bytes);
  cells_.at(sender.value()).landed_bytes = bytes;
}

void Process::release_pages(ReleasePages released) {
  Cell& cell = cells_.at(released.owner);
  std::vector<std::uint32_t> pages;
  for (const PageIndex page : released.pages) {
    const auto out = pages_out_.find(page.value());
    EXPECT_NE(out, pages_out_.end()) << name_ << " returns page " << page.value() << " twice";
    if (out != pages_out_.end()) {
      pages_out_.erase(out);
    }
    pages.push_back(page.value());
  }
  if (setup_.role == Role::kDecode) {
    expect_closed(cell, "its release");
  }
  world_.note("{} room {} releases {} pages", name_, cell.name.room.value(), pages.size());
  world_.on_release(*this, pages);
  cell.released.push_back(std::move(pages));
}

void Process::resolve_prefill(ResolvePrefill query) {
  if (!registry_answers) {
    unanswered_.push_back(std::move(query));
    return;
  }
  world_.after(milliseconds(1), [this, receiver = query.receiver, instance = query.instance] {
    if (registry_failure) {
      receive(PrefillResolved{receiver, tl::unexpected(*registry_failure)});
    } else {
      receive(PrefillResolved{receiver, world_.prefill_rows(instance)});
    }
  });
}

void Process::let_registry_answer() {
  registry_answers = true;
  for (ResolvePrefill& query : std::exchange(unanswered_, {})) {
    resolve_prefill(std::move(query));
  }
}

void Process::dial_peer(DialPeer dial) { world_.links().dial(*this, dial); }
void Process::hang_up(PeerId peer) { world_.links().hang_up(*this, peer); }
void Process::send_frame(SendFrame send) { world_.links().send(*this, std::move(send)); }

Status Process::open_data_session(OpenDataSession open) {
  if (data_session_refusal) {
    return tl::unexpected(*data_session_refusal);
  }
  world_.fabric().open_session(*this, open);
  return {};
}

void Process::close_data_session(SessionEpoch epoch) {
  world_.fabric().close_session(*this, epoch);
}
void Process::open_grant(OpenGrant open) { world_.fabric().open_grant(*this, std::move(open)); }
void Process::fence_grant(GrantId grant) {
  world_.note("{} fences", name_);
  world_.fabric().fence(*this, grant);
}
void Process::post_writes(PostWrites post) { world_.fabric().post(*this, post); }
void Process::give_up_writes(GiveUpWrites order) { world_.fabric().give_up(*this, order); }

Status Process::inspect_aux(std::uint32_t aux_slot, RoomId room, Binding binding) {
  if (aux_verdict) {
    return tl::unexpected(*aux_verdict);
  }
  const auto record = wire::decode_aux(memory_.item(RegionId(2), aux_slot), room, binding, 100);
  return record ? Status{} : Status(tl::unexpected(record.error()));
}

void Process::count(std::string_view counter, std::uint64_t by) {
  counters_[std::string(counter)] += by;
}

void Process::note(std::string_view text) { world_.note("{} notes: {}", name_, text); }

}  // namespace kvferry::core::fake
