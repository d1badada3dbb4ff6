#include "hostile_message.h"

#include <algorithm>
#include <array>
#include <utility>

namespace kvferry::fuzz {
namespace {

constexpr std::size_t kMostPages = 24;

template <typename Id>
Id near_id(Input& input, Id right) {
  return Id(input.near(right.value()));
}

Binding near_binding(Input& input) { return {input.near(kBinding.high), input.near(kBinding.low)}; }

Failure near_failure(Input& input) {
  return {static_cast<FailureCode>(input.below(40)), static_cast<FailureWhere>(input.below(3)),
          "a peer's cause", "peer:1", static_cast<std::int32_t>(input.byte())};
}

std::vector<PageIndex> near_pages(Input& input, const std::vector<PageIndex>& right) {
  std::vector<PageIndex> pages = right;
  for (PageIndex& page : pages) {
    page = near_id(input, page);
  }
  pages.resize(
      std::min<std::size_t>(input.near(static_cast<std::uint8_t>(right.size())), kMostPages));
  return pages;
}

template <std::size_t size>
std::array<std::uint8_t, size> near_bytes(Input& input, std::array<std::uint8_t, size> right) {
  right[0] = input.near(right[0]);
  return right;
}

// The last message of this kind that the subject heard, or a default one.
template <typename T>
T last_heard(const RoomWorld& world) {
  T found{};
  for (const core::FrameArrived& arrived : world.heard()) {
    for (const wire::Message& message : arrived.frame.messages) {
      if (const auto* one = std::get_if<T>(&message)) {
        found = *one;
      }
    }
  }
  return found;
}

void damage(Input& input, wire::Introduction& self) {
  switch (input.below(8)) {
    case 0:
      self.major = input.near(self.major);
      return;
    case 1:
      self.role = static_cast<Role>(input.below(2));
      return;
    case 2:
      self.layout.page_size_tokens = input.near(self.layout.page_size_tokens);
      return;
    case 3:
      if (!self.layout.regions.empty()) {
        RegionShape& region = self.layout.regions[input.byte() % self.layout.regions.size()];
        region.item_count = input.near(region.item_count);
      }
      return;
    case 4:
      self.limits.max_grant_slots = input.near(self.limits.max_grant_slots);
      self.limits.max_message_bytes = input.near(self.limits.max_message_bytes);
      return;
    case 5:
      self.control_endpoint = input.coin() ? "prefill1:1" : "stranger:1";
      return;
    case 6:
      self.engine_epoch = near_id(input, self.engine_epoch);
      return;
    default:
      self.layout.layers.end = input.near(self.layout.layers.end);
  }
}

// Kinds that open, resume or end a session.
wire::Message session_message(Input& input, const RoomWorld& world, const Names& names) {
  switch (input.below(8)) {
    case 0: {
      auto hello = last_heard<wire::Hello>(world);
      hello.nonce = near_bytes(input, hello.nonce);
      damage(input, hello.self);
      return hello;
    }
    case 1: {
      auto reply = last_heard<wire::HelloReply>(world);
      reply.echoed_nonce = near_bytes(input, reply.echoed_nonce);
      reply.epoch = near_id(input, reply.epoch);
      damage(input, reply.self);
      return reply;
    }
    case 2: {
      auto confirm = last_heard<wire::HelloConfirm>(world);
      confirm.epoch = near_id(input, confirm.epoch);
      confirm.echoed_nonce = near_bytes(input, confirm.echoed_nonce);
      return confirm;
    }
    case 3:
      return wire::HelloConfirmed{near_id(input, names.session)};
    case 4:
      return wire::HelloRefused{last_heard<wire::HelloReply>(world).echoed_nonce,
                                near_failure(input)};
    case 5: {
      auto resume = last_heard<wire::Resume>(world);
      resume.epoch = near_id(input, names.session);
      return resume;
    }
    case 6: {
      auto resumed = last_heard<wire::Resumed>(world);
      resumed.epoch = near_id(input, names.session);
      return resumed;
    }
    default:
      return wire::SessionEnded{near_id(input, names.session), near_failure(input)};
  }
}

wire::Message decode_says(Input& input, const Names& names) {
  const RoomId room = near_id(input, kRoom);
  const Binding binding = near_binding(input);
  const AttemptId attempt = near_id(input, names.attempt);
  const AttemptId mark = near_id(input, names.attempt);
  const GrantSlot slot = near_id(input, names.slot);
  const Generation generation = near_id(input, names.generation);
  switch (input.below(4)) {
    case 0: {
      wire::Grant grant;
      grant.room = room;
      grant.binding = binding;
      grant.attempt = attempt;
      grant.low_water_mark = mark;
      grant.decode_engine_epoch = near_id(input, names.peer_engine_epoch);
      grant.slot = slot;
      grant.generation = generation;
      grant.expected_grants = input.near(std::uint32_t{1});
      grant.decode_prefix_pages = input.below(3);
      grant.pages = near_pages(input, names.pages);
      grant.aux_slot = static_cast<std::int64_t>(input.below(6)) - 1;
      for (std::uint32_t count = input.below(3); count > 0; --count) {
        grant.state_slots.push_back(input.near(std::uint32_t{1}));
      }
      return grant;
    }
    case 1:
      return wire::Consumed{room, binding, attempt, mark};
    case 2:
      return wire::Abort{room, binding, attempt, mark, slot, generation, near_failure(input)};
    default:
      return wire::Fenced{attempt, slot, generation};
  }
}

wire::Message prefill_says(Input& input, const RoomWorld& world, const Names& names) {
  const AttemptId attempt = near_id(input, names.attempt);
  const GrantSlot slot = near_id(input, names.slot);
  const Generation generation = near_id(input, names.generation);
  switch (input.below(5)) {
    case 0: {
      // Counts are right when the honest Done has come, else the input's.
      auto done = last_heard<wire::Done>(world);
      done.room = near_id(input, kRoom);
      done.binding = near_binding(input);
      done.attempt = attempt;
      done.prefill_engine_epoch = near_id(input, names.peer_engine_epoch);
      done.slot = slot;
      done.generation = generation;
      done.writes = input.near(done.writes);
      done.bytes = input.near(done.bytes);
      done.pages = input.near(kPagesOfRoom);
      return done;
    }
    case 1:
      return wire::Progress{attempt, slot, generation, input.near(std::uint32_t{0}),
                            input.near(kPagesOfRoom)};
    case 2:
      return wire::Drained{attempt, slot, generation, input.coin()};
    case 3:
      return wire::Failed{near_id(input, kRoom), near_binding(input), attempt, near_failure(input)};
    default:
      return wire::Stale{attempt, input.byte()};
  }
}

}  // namespace

Names names_for(RoomWorld& world) {
  RoomNode& subject = world.subject();
  Names names;
  names.attempt = AttemptId(1);
  names.peer_engine_epoch = subject.role() == Role::kDecode ? world.prefill(0).self().engine_epoch
                                                            : world.decode().self().engine_epoch;
  if (!subject.sessions.empty()) {
    names.session = subject.sessions.back();
  }
  const auto& slots = world.decode().slots;
  for (const core::GrantedSlot& granted : slots) {
    // Of the slots, the one in a session of the subject's.
    if (std::ranges::find(subject.sessions, granted.session) != subject.sessions.end()) {
      names.session = granted.session;
      names.slot = granted.slot;
      names.generation = granted.generation;
      names.pages.assign(granted.extent.pages().begin(), granted.extent.pages().end());
    }
  }
  if (names.pages.empty()) {
    for (std::uint32_t page = 0; page < kPagesOfRoom; ++page) {
      names.pages.emplace_back(page);
    }
  }
  return names;
}

wire::Message hostile_message(Input& input, RoomWorld& world) {
  const Names names = names_for(world);
  switch (input.below(8)) {
    case 0:
      return session_message(input, world, names);
    case 1:
      return wire::Unsupported{input.byte(), input.coin()};
    case 2:
      return input.coin() ? wire::Message(wire::Heartbeat{}) : wire::Message(wire::Ack{});
    default: {
      // Mostly of the kinds that the subject expects.
      const bool from_decode = (world.subject().role() == Role::kPrefill) == (input.below(8) != 0);
      return from_decode ? decode_says(input, names) : prefill_says(input, world, names);
    }
  }
}

}  // namespace kvferry::fuzz
