// Frame -> bytes, and how many bytes that will be at most.
#include <algorithm>
#include <type_traits>

#include "wire/codec.h"
#include "wire/kvferry_generated.h"

namespace kvferry::wire {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;
template <typename T>
using Offset = flatbuffers::Offset<T>;
using TextOffset = Offset<flatbuffers::String>;

constexpr std::size_t kMaxTextBytes = CodecLimits{}.max_text_bytes;

// Cut between two UTF-8 characters, so that a reader never sees half of one.
std::string_view cut(std::string_view text) {
  if (text.size() <= kMaxTextBytes) {
    return text;
  }
  std::size_t end = kMaxTextBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end;
  }
  // Text that is not UTF-8 may have no boundary at all.
  return text.substr(0, end == 0 ? kMaxTextBytes : end);
}

// Missing strings and lists read as empty ones, which saves their bytes. (The library's functions
// that take a whole std::vector keep a writable global each, so that an empty one has an address.)
TextOffset put_text(Builder& builder, std::string_view text) {
  const std::string_view part = cut(text);
  return part.empty() ? TextOffset() : builder.CreateString(part.data(), part.size());
}

template <typename T>
Offset<flatbuffers::Vector<T>> put_list(Builder& builder, const std::vector<T>& list) {
  return list.empty() ? Offset<flatbuffers::Vector<T>>()
                      : builder.CreateVector(list.data(), list.size());
}

template <typename Tag>
fb::Id128 to_wire(const Id128<Tag>& id) {
  return fb::Id128(id.high, id.low);
}
fb::Bytes16 to_wire(const Nonce& bytes) {
  return fb::Bytes16(flatbuffers::span<const std::uint8_t, 16>(bytes.data(), bytes.size()));
}
// Proofs and secrets.
fb::Bytes32 to_wire(const Proof& bytes) {
  return fb::Bytes32(flatbuffers::span<const std::uint8_t, 32>(bytes.data(), bytes.size()));
}

Offset<fb::Failure> put(Builder& builder, const Failure& failure) {
  const auto what = put_text(builder, failure.what);
  const auto peer = put_text(builder, failure.peer);
  return fb::CreateFailure(builder, static_cast<std::uint16_t>(failure.code),
                           static_cast<std::uint8_t>(failure.where), failure.rank, what, peer);
}

Offset<fb::LayoutShape> put(Builder& builder, const LayoutShape& shape) {
  std::vector<Offset<fb::RegionShape>> regions;
  regions.reserve(shape.regions.size());
  for (const RegionShape& region : shape.regions) {
    regions.push_back(fb::CreateRegionShape(builder, static_cast<std::uint8_t>(region.kind),
                                            static_cast<std::uint8_t>(region.memory), region.layer,
                                            region.item_bytes, region.item_count));
  }
  const auto region_list = put_list(builder, regions);
  const auto fingerprint = put_text(builder, shape.model_fingerprint);
  const RankCoordinates& rank = shape.rank;
  const auto coordinates = fb::CreateRankCoordinates(
      builder, rank.tp_rank, rank.tp_size, rank.pp_rank, rank.pp_size, rank.dp_rank, rank.dp_size);
  return fb::CreateLayoutShape(
      builder, fingerprint, shape.page_size_tokens, shape.total_layers, shape.total_kv_heads,
      shape.head_dim, static_cast<std::uint8_t>(shape.dtype), coordinates, shape.layers.begin,
      shape.layers.end, shape.heads.begin, shape.heads.end, region_list);
}

Offset<fb::Introduction> put(Builder& builder, const Introduction& self) {
  std::vector<Offset<fb::TransportOffer>> offers;
  offers.reserve(self.transports.size());
  for (const TransportOffer& offer : self.transports) {
    const auto name = put_text(builder, offer.name);
    const auto blob = put_list(builder, offer.blob);
    offers.push_back(fb::CreateTransportOffer(builder, name, blob));
  }
  const auto transports = put_list(builder, offers);
  const auto limits =
      fb::CreatePeerLimits(builder, self.limits.max_grant_slots, self.limits.max_message_bytes,
                           self.limits.window_messages);
  const auto kernel_library = put_text(builder, self.numerics.kernel_library);
  const auto flags = put_text(builder, self.numerics.flags);
  const auto numerics = fb::CreateNumerics(builder, kernel_library, self.numerics.threads,
                                           self.numerics.prefill_chunk_tokens, flags);
  const auto layout = put(builder, self.layout);
  const auto instance = put_text(builder, self.instance);
  const auto endpoint = put_text(builder, self.control_endpoint);
  const fb::Id128 incarnation = to_wire(self.incarnation);
  return fb::CreateIntroduction(builder, self.major, self.minor,
                                static_cast<std::uint8_t>(self.role), self.require_identical,
                                instance, endpoint, &incarnation, self.engine_epoch.value(), layout,
                                numerics, limits, transports);
}

Offset<void> put(Builder& builder, const Hello& hello) {
  const auto self = put(builder, hello.self);
  const fb::Bytes16 nonce = to_wire(hello.nonce);
  const fb::Bytes32 half = to_wire(hello.secret_half);
  return fb::CreateHello(builder, self, &nonce, &half).Union();
}

Offset<void> put(Builder& builder, const HelloReply& reply) {
  const auto self = put(builder, reply.self);
  const auto transport = put_text(builder, reply.transport);
  const fb::Bytes16 echoed = to_wire(reply.echoed_nonce);
  const fb::Bytes16 nonce = to_wire(reply.nonce);
  const fb::Bytes32 half = to_wire(reply.secret_half);
  return fb::CreateHelloReply(builder, self, &echoed, &nonce, &half, reply.epoch.value(), transport)
      .Union();
}

Offset<void> put(Builder& builder, const HelloConfirm& confirm) {
  const fb::Bytes16 echoed = to_wire(confirm.echoed_nonce);
  return fb::CreateHelloConfirm(builder, confirm.epoch.value(), &echoed).Union();
}

Offset<void> put(Builder& builder, const HelloConfirmed& confirmed) {
  return fb::CreateHelloConfirmed(builder, confirmed.epoch.value()).Union();
}

Offset<void> put(Builder& builder, const HelloRefused& refused) {
  const auto reason = put(builder, refused.reason);
  const fb::Bytes16 echoed = to_wire(refused.echoed_nonce);
  return fb::CreateHelloRefused(builder, &echoed, reason).Union();
}

Offset<void> put(Builder& builder, const Resume& resume) {
  const fb::Bytes16 nonce = to_wire(resume.nonce);
  const fb::Bytes32 proof = to_wire(resume.proof);
  return fb::CreateResume(builder, resume.epoch.value(), &nonce, &proof).Union();
}

Offset<void> put(Builder& builder, const Resumed& resumed) {
  const fb::Bytes16 echoed = to_wire(resumed.echoed_nonce);
  const fb::Bytes32 proof = to_wire(resumed.proof);
  return fb::CreateResumed(builder, resumed.epoch.value(), &echoed, &proof).Union();
}

Offset<void> put(Builder& builder, const SessionEnded& ended) {
  const auto reason = put(builder, ended.reason);
  return fb::CreateSessionEnded(builder, ended.epoch.value(), reason).Union();
}

// The runs of the list, or none when the plain list is not longer.
std::vector<fb::PageRun> shorter_as_runs(const std::vector<PageIndex>& pages) {
  std::vector<fb::PageRun> runs;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  for (const PageIndex page : pages) {
    // In 64 bits, so that no run goes on from the highest page number to zero.
    if (count > 0 && page.value() == std::uint64_t{first} + count) {
      ++count;
      continue;
    }
    if (count > 0) {
      runs.emplace_back(first, count);
    }
    first = page.value();
    count = 1;
    if ((runs.size() + 1) * sizeof(fb::PageRun) >= pages.size() * sizeof(std::uint32_t)) {
      return {};
    }
  }
  if (count > 0) {
    runs.emplace_back(first, count);
  }
  return runs;
}

Offset<void> put(Builder& builder, const Grant& grant) {
  Offset<flatbuffers::Vector<std::uint32_t>> pages;
  Offset<flatbuffers::Vector<const fb::PageRun*>> runs;
  if (const auto list = shorter_as_runs(grant.pages); !list.empty()) {
    runs = builder.CreateVectorOfStructs(list.data(), list.size());
  } else if (!grant.pages.empty()) {
    std::uint32_t* numbers = nullptr;
    pages = builder.CreateUninitializedVector(grant.pages.size(), &numbers);
    for (std::size_t i = 0; i < grant.pages.size(); ++i) {
      numbers[i] = flatbuffers::EndianScalar(grant.pages[i].value());
    }
  }
  const auto states = put_list(builder, grant.state_slots);
  const fb::Id128 binding = to_wire(grant.binding);
  return fb::CreateGrant(builder, grant.room.value(), &binding, grant.attempt.value(),
                         grant.low_water_mark.value(), grant.decode_engine_epoch.value(),
                         grant.slot.value(), grant.generation.value(), grant.expected_grants,
                         grant.decode_prefix_pages, pages, runs, grant.aux_slot, states)
      .Union();
}

Offset<void> put(Builder& builder, const Progress& progress) {
  return fb::CreateProgress(builder, progress.attempt.value(), progress.slot.value(),
                            progress.generation.value(), progress.first_page, progress.page_count)
      .Union();
}

Offset<void> put(Builder& builder, const Done& done) {
  const fb::Id128 binding = to_wire(done.binding);
  return fb::CreateDone(builder, done.room.value(), &binding, done.attempt.value(),
                        done.prefill_engine_epoch.value(), done.slot.value(),
                        done.generation.value(), done.writes, done.bytes, done.pages)
      .Union();
}

Offset<void> put(Builder& builder, const Consumed& consumed) {
  const fb::Id128 binding = to_wire(consumed.binding);
  return fb::CreateConsumed(builder, consumed.room.value(), &binding, consumed.attempt.value(),
                            consumed.low_water_mark.value())
      .Union();
}

Offset<void> put(Builder& builder, const Abort& abort) {
  const auto cause = put(builder, abort.cause);
  const fb::Id128 binding = to_wire(abort.binding);
  return fb::CreateAbort(builder, abort.room.value(), &binding, abort.attempt.value(),
                         abort.low_water_mark.value(), abort.slot.value(), abort.generation.value(),
                         cause)
      .Union();
}

Offset<void> put(Builder& builder, const Drained& drained) {
  return fb::CreateDrained(builder, drained.attempt.value(), drained.slot.value(),
                           drained.generation.value(), drained.clean)
      .Union();
}

Offset<void> put(Builder& builder, const Failed& failed) {
  const auto cause = put(builder, failed.cause);
  const fb::Id128 binding = to_wire(failed.binding);
  return fb::CreateFailed(builder, failed.room.value(), &binding, failed.attempt.value(), cause)
      .Union();
}

Offset<void> put(Builder& builder, const Fenced& fenced) {
  return fb::CreateFenced(builder, fenced.attempt.value(), fenced.slot.value(),
                          fenced.generation.value())
      .Union();
}

Offset<void> put(Builder& builder, const Stale& stale) {
  return fb::CreateStale(builder, stale.attempt.value(), stale.kind).Union();
}
Offset<void> put(Builder& builder, const Heartbeat&) {
  return fb::CreateHeartbeat(builder).Union();
}
Offset<void> put(Builder& builder, const Ack&) { return fb::CreateAck(builder).Union(); }
Offset<void> put(Builder& builder, const Unsupported& unsupported) {
  return fb::CreateUnsupported(builder, unsupported.kind).Union();
}

// Upper bounds. A table costs its header, its vtable and its place in a list (with padding), and
// each 8 bytes of inline fields cost themselves and one vtable entry.
constexpr std::size_t table_bound(std::size_t words) { return 28 + 10 * words; }
constexpr std::size_t kVectorBound = 16;
std::size_t text_bound(std::string_view text) { return 9 + std::min(text.size(), kMaxTextBytes); }

std::size_t bound(const Failure& failure) {
  return table_bound(5) + text_bound(failure.what) + text_bound(failure.peer);
}

std::size_t bound(const Introduction& self) {
  std::size_t bytes = table_bound(14) + text_bound(self.instance) +
                      text_bound(self.control_endpoint) + table_bound(3) + table_bound(4) +
                      text_bound(self.numerics.kernel_library) + text_bound(self.numerics.flags) +
                      table_bound(12) + text_bound(self.layout.model_fingerprint) + table_bound(6) +
                      2 * kVectorBound + self.layout.regions.size() * table_bound(6);
  for (const TransportOffer& offer : self.transports) {
    bytes += table_bound(3) + text_bound(offer.name) + kVectorBound + offer.blob.size();
  }
  return bytes;
}

struct SizeBound {
  std::size_t operator()(const Hello& m) const { return table_bound(8) + bound(m.self); }
  std::size_t operator()(const HelloReply& m) const {
    return table_bound(12) + bound(m.self) + text_bound(m.transport);
  }
  std::size_t operator()(const HelloRefused& m) const { return table_bound(4) + bound(m.reason); }
  std::size_t operator()(const SessionEnded& m) const { return table_bound(3) + bound(m.reason); }
  std::size_t operator()(const Grant& m) const {
    return table_bound(14) + 2 * kVectorBound +
           sizeof(std::uint32_t) * (m.pages.size() + m.state_slots.size());
  }
  std::size_t operator()(const Abort& m) const { return table_bound(8) + bound(m.cause); }
  std::size_t operator()(const Failed& m) const { return table_bound(5) + bound(m.cause); }
  std::size_t operator()(const Heartbeat&) const { return table_bound(0); }
  std::size_t operator()(const Ack&) const { return table_bound(0); }
  // Everything else has inline fields only, Done (10 words) the most of them.
  template <typename T>
  std::size_t operator()(const T&) const {
    return table_bound(10);
  }
};

// kind_tag() counts the variant's alternatives, so their order must be the union's.
template <fb::Message tag, typename T>
constexpr bool kTagIs =
    std::is_same_v<std::variant_alternative_t<static_cast<std::size_t>(tag) - 1, Message>, T>;
static_assert(kTagIs<fb::Message::Hello, Hello> && kTagIs<fb::Message::HelloReply, HelloReply> &&
              kTagIs<fb::Message::HelloConfirm, HelloConfirm> &&
              kTagIs<fb::Message::HelloConfirmed, HelloConfirmed> &&
              kTagIs<fb::Message::HelloRefused, HelloRefused> &&
              kTagIs<fb::Message::Resume, Resume> && kTagIs<fb::Message::Resumed, Resumed> &&
              kTagIs<fb::Message::SessionEnded, SessionEnded> &&
              kTagIs<fb::Message::Grant, Grant> && kTagIs<fb::Message::Progress, Progress> &&
              kTagIs<fb::Message::Done, Done> && kTagIs<fb::Message::Consumed, Consumed> &&
              kTagIs<fb::Message::Abort, Abort> && kTagIs<fb::Message::Drained, Drained> &&
              kTagIs<fb::Message::Failed, Failed> && kTagIs<fb::Message::Fenced, Fenced> &&
              kTagIs<fb::Message::Stale, Stale> && kTagIs<fb::Message::Heartbeat, Heartbeat> &&
              kTagIs<fb::Message::Ack, Ack> && kTagIs<fb::Message::Unsupported, Unsupported>);
static_assert(std::variant_size_v<Message> == static_cast<std::size_t>(fb::Message::MAX));

}  // namespace

std::size_t encoded_size_bound(const Message& message) { return std::visit(SizeBound{}, message); }

std::vector<std::uint8_t> encode(const Frame& frame) {
  std::size_t bytes = kFrameOverheadBytes;
  for (const Message& message : frame.messages) {
    bytes += encoded_size_bound(message);
  }
  Builder builder(bytes);
  std::vector<fb::Message> tags;
  std::vector<Offset<void>> bodies;
  tags.reserve(frame.messages.size());
  bodies.reserve(frame.messages.size());
  for (const Message& message : frame.messages) {
    tags.push_back(static_cast<fb::Message>(kind_tag(message)));
    bodies.push_back(std::visit([&](const auto& m) { return put(builder, m); }, message));
  }
  const auto tag_list = put_list(builder, tags);
  const auto body_list = put_list(builder, bodies);
  builder.FinishSizePrefixed(fb::CreateFrame(builder, frame.session.value(), frame.sequence,
                                             frame.acknowledge, tag_list, body_list),
                             fb::FrameIdentifier());
  return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}

}  // namespace kvferry::wire
