#include "samples.h"

#include <numeric>

namespace kvferry::wire {
namespace {

// Mostly small numbers, sometimes the borders of the type.
template <typename T>
T number(Prng& prng) {
  switch (prng.below(6)) {
    case 0:
      return T{0};
    case 1:
      return static_cast<T>(~T{0});
    case 2:
      return static_cast<T>(prng.next());
    default:
      return static_cast<T>(prng.below(200));
  }
}

template <typename Id>
Id id(Prng& prng) {
  return Id(number<typename Id::rep>(prng));
}

template <typename Tag>
Id128<Tag> id128(Prng& prng) {
  return {number<std::uint64_t>(prng), prng.next()};
}

std::string text(Prng& prng) {
  std::string text(prng.below(30), '\0');
  for (char& c : text) {
    c = static_cast<char>(prng.below(256));
  }
  return text;
}

template <std::size_t size>
std::array<std::uint8_t, size> bytes(Prng& prng) {
  std::array<std::uint8_t, size> array{};
  prng.fill(array);
  return array;
}

bool coin(Prng& prng) { return prng.below(2) == 1; }

Failure failure(Prng& prng) {
  constexpr FailureCode codes[] = {FailureCode::kUnspecified, FailureCode::kAborted,
                                   FailureCode::kPeerLost, FailureCode::kConflict};
  return {codes[prng.below(4)], static_cast<FailureWhere>(prng.below(3)), text(prng), text(prng),
          static_cast<std::int32_t>(number<std::uint32_t>(prng))};
}

LayoutShape layout(Prng& prng) {
  LayoutShape shape;
  shape.model_fingerprint = text(prng);
  shape.page_size_tokens = number<std::uint32_t>(prng);
  shape.total_layers = number<std::uint32_t>(prng);
  shape.total_kv_heads = number<std::uint32_t>(prng);
  shape.head_dim = number<std::uint32_t>(prng);
  shape.dtype = static_cast<DType>(prng.below(6));
  shape.rank = {number<std::uint32_t>(prng), number<std::uint32_t>(prng),
                number<std::uint32_t>(prng), number<std::uint32_t>(prng),
                number<std::uint32_t>(prng), number<std::uint32_t>(prng)};
  shape.layers = {number<std::uint32_t>(prng), number<std::uint32_t>(prng)};
  shape.heads = {number<std::uint32_t>(prng), number<std::uint32_t>(prng)};
  for (std::uint64_t count = prng.below(70); count > 0; --count) {
    shape.regions.push_back({static_cast<RegionKind>(prng.below(5)), number<std::uint32_t>(prng),
                             number<std::uint64_t>(prng), number<std::uint32_t>(prng),
                             static_cast<MemoryKind>(prng.below(2))});
  }
  return shape;
}

Introduction introduction(Prng& prng) {
  Introduction self;
  self.major = number<std::uint16_t>(prng);
  self.minor = number<std::uint16_t>(prng);
  self.role = static_cast<Role>(prng.below(2));
  self.instance = text(prng);
  self.control_endpoint = text(prng);
  self.incarnation = id128<IncarnationTag>(prng);
  self.engine_epoch = id<EngineEpoch>(prng);
  self.layout = layout(prng);
  self.numerics = {text(prng), number<std::uint32_t>(prng), number<std::uint32_t>(prng),
                   text(prng)};
  self.require_identical = coin(prng);
  self.limits = {number<std::uint32_t>(prng), number<std::uint32_t>(prng),
                 number<std::uint32_t>(prng)};
  for (std::uint64_t count = prng.below(4); count > 0; --count) {
    const std::string blob = text(prng);
    self.transports.push_back({text(prng), {blob.begin(), blob.end()}});
  }
  return self;
}

// Runs, single pages and the end of the number range.
std::vector<PageIndex> pages(Prng& prng) {
  std::vector<PageIndex> pages;
  const bool scattered = coin(prng);
  for (std::uint64_t runs = prng.below(20); runs > 0; --runs) {
    auto page = number<std::uint32_t>(prng);
    for (std::uint64_t length = scattered ? 1 : prng.below(50); length > 0; --length) {
      pages.emplace_back(page++);
    }
  }
  return pages;
}

Grant grant(Prng& prng) {
  Grant grant;
  grant.room = id<RoomId>(prng);
  grant.binding = id128<BindingTag>(prng);
  grant.attempt = id<AttemptId>(prng);
  grant.low_water_mark = id<AttemptId>(prng);
  grant.decode_engine_epoch = id<EngineEpoch>(prng);
  grant.slot = id<GrantSlot>(prng);
  grant.generation = id<Generation>(prng);
  grant.expected_grants = number<std::uint32_t>(prng);
  grant.decode_prefix_pages = number<std::uint32_t>(prng);
  grant.pages = pages(prng);
  grant.aux_slot = coin(prng) ? -1 : static_cast<std::int64_t>(number<std::uint32_t>(prng));
  for (std::uint64_t count = prng.below(5); count > 0; --count) {
    grant.state_slots.push_back(number<std::uint32_t>(prng));
  }
  return grant;
}

Message random_hello(std::size_t kind, Prng& prng) {
  switch (kind) {
    case 0:
      return Hello{introduction(prng), bytes<16>(prng), bytes<32>(prng)};
    case 1:
      return HelloReply{introduction(prng), bytes<16>(prng),        bytes<16>(prng),
                        bytes<32>(prng),    id<SessionEpoch>(prng), text(prng)};
    case 2:
      return HelloConfirm{id<SessionEpoch>(prng), bytes<16>(prng)};
    case 3:
      return HelloConfirmed{id<SessionEpoch>(prng)};
    case 4:
      return HelloRefused{bytes<16>(prng), failure(prng)};
    case 5:
      return Resume{id<SessionEpoch>(prng), bytes<16>(prng), bytes<32>(prng)};
    case 6:
      return Resumed{id<SessionEpoch>(prng), bytes<16>(prng), bytes<32>(prng)};
    default:
      return SessionEnded{id<SessionEpoch>(prng), failure(prng)};
  }
}

Message random_room_message(std::size_t kind, Prng& prng) {
  switch (kind) {
    case 8:
      return grant(prng);
    case 9:
      return Progress{id<AttemptId>(prng), id<GrantSlot>(prng), id<Generation>(prng),
                      number<std::uint32_t>(prng), number<std::uint32_t>(prng)};
    case 10:
      return Done{id<RoomId>(prng),
                  id128<BindingTag>(prng),
                  id<AttemptId>(prng),
                  id<EngineEpoch>(prng),
                  id<GrantSlot>(prng),
                  id<Generation>(prng),
                  number<std::uint64_t>(prng),
                  number<std::uint64_t>(prng),
                  number<std::uint32_t>(prng)};
    case 11:
      return Consumed{id<RoomId>(prng), id128<BindingTag>(prng), id<AttemptId>(prng),
                      id<AttemptId>(prng)};
    case 12:
      return Abort{id<RoomId>(prng),    id128<BindingTag>(prng), id<AttemptId>(prng),
                   id<AttemptId>(prng), id<GrantSlot>(prng),     id<Generation>(prng),
                   failure(prng)};
    case 13:
      return Drained{id<AttemptId>(prng), id<GrantSlot>(prng), id<Generation>(prng), coin(prng)};
    case 14:
      return Failed{id<RoomId>(prng), id128<BindingTag>(prng), id<AttemptId>(prng), failure(prng)};
    case 15:
      return Fenced{id<AttemptId>(prng), id<GrantSlot>(prng), id<Generation>(prng)};
    case 16:
      return Stale{id<AttemptId>(prng), number<std::uint8_t>(prng)};
    case 17:
      return Heartbeat{};
    case 18:
      return Ack{};
    default:
      return Unsupported{number<std::uint8_t>(prng), true};
  }
}

template <std::size_t size>
std::array<std::uint8_t, size> counting(std::uint8_t first) {
  std::array<std::uint8_t, size> array{};
  std::iota(array.begin(), array.end(), first);
  return array;
}

Introduction fixed_introduction(Role role) {
  Introduction self;
  self.role = role;
  self.instance = "instance-a";
  self.control_endpoint = "10.0.0.1:5000";
  self.incarnation = {0x0102030405060708, 0x090A0B0C0D0E0F10};
  self.engine_epoch = EngineEpoch(77);
  self.layout = {"model", 16, 2, 4, 64, DType::kBF16, {1, 2, 0, 1, 0, 1}, {0, 2}, {2, 4}, {}};
  self.layout.regions = {{RegionKind::kKey, 0, 4'096, 100, MemoryKind::kHost},
                         {RegionKind::kValue, 1, 4'096, 100, MemoryKind::kDevice},
                         {RegionKind::kAux, 0, 64, 8, MemoryKind::kHost}};
  self.numerics = {"kernels", 8, 512, "flag=1"};
  self.require_identical = true;
  self.limits = {8'192, 4U << 20, 1'024};
  self.transports = {{"tcp", {1, 2, 3}}, {"shm", {}}};
  return self;
}

Frame session_frame(std::vector<Message> messages) {
  return {SessionEpoch(0x1122334455667788), 41, 40, std::move(messages)};
}

}  // namespace

Message random_message(std::size_t kind, Prng& prng) {
  return kind < 8 ? random_hello(kind, prng) : random_room_message(kind, prng);
}

Frame random_frame(Prng& prng, std::size_t max_messages) {
  Frame frame{SessionEpoch(prng.next()), prng.next() >> 1, prng.next(), {}};
  for (std::uint64_t count = 1 + prng.below(max_messages); count > 0; --count) {
    frame.messages.push_back(random_message(prng.below(std::variant_size_v<Message>), prng));
  }
  return frame;
}

std::vector<std::pair<std::string, Frame>> golden_frames() {
  const RoomId room(1'234);
  const Binding binding{5, 6};
  const AttemptId attempt(9);
  const AttemptId mark(3);
  const SessionEpoch epoch(0x1122334455667788);
  const GrantSlot slot(2);
  const Generation generation(11);
  const Failure cause{FailureCode::kPeerLost, FailureWhere::kPeer, "gone", "10.0.0.2:1", 1};
  const auto nonce = counting<16>(1);
  const auto half = counting<32>(100);
  const Grant scattered{room, binding,    attempt, mark, EngineEpoch(8),
                        slot, generation, 2,       1,    {PageIndex(9), PageIndex(4), PageIndex(7)},
                        5,    {1, 2}};
  Grant consecutive = scattered;
  consecutive.pages.clear();
  for (std::uint32_t page = 100; page < 150; ++page) {
    consecutive.pages.emplace_back(page);
  }
  return {
      {"hello", session_frame({Hello{fixed_introduction(Role::kDecode), nonce, half}})},
      {"hello_reply", session_frame({HelloReply{fixed_introduction(Role::kPrefill), nonce,
                                                counting<16>(50), half, epoch, "tcp"}})},
      {"session", session_frame({HelloConfirm{epoch, nonce}, HelloConfirmed{epoch},
                                 HelloRefused{nonce, cause}, Resume{epoch, nonce, half},
                                 Resumed{epoch, nonce, half}, SessionEnded{epoch, cause}})},
      {"grants", session_frame({scattered, consecutive})},
      {"room_from_prefill",
       session_frame({Progress{attempt, slot, generation, 1, 2},
                      Done{room, binding, attempt, EngineEpoch(7), slot, generation, 10, 40'960, 3},
                      Drained{attempt, slot, generation, true},
                      Drained{attempt, slot, generation, false},
                      Failed{room, binding, attempt, cause}})},
      {"room_from_decode",
       session_frame({Consumed{room, binding, attempt, mark},
                      Abort{room, binding, attempt, mark, slot, generation, cause},
                      Fenced{attempt, slot, generation}})},
      {"answers", session_frame({Stale{attempt, 9}, Heartbeat{}, Ack{}, Unsupported{200, true}})},
  };
}

}  // namespace kvferry::wire
