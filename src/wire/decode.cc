// Bytes -> Frame. Nothing in here trusts a number of the buffer before it was compared with a
// limit.
#include <algorithm>
#include <limits>
#include <optional>

#include "base/failure_codes.h"
#include "wire/codec.h"
#include "wire/kvferry_generated.h"

namespace kvferry::wire {
namespace {

constexpr std::size_t kPrefixBytes = sizeof(flatbuffers::uoffset_t);
constexpr std::size_t kAlignment = alignof(std::uint64_t);
constexpr flatbuffers::uoffset_t kMaxDepth = 16;

template <typename T>
using List = flatbuffers::Vector<T>;

// Translates one verified frame. The first thing that is wrong is kept; from then on lists are read
// as empty, so that callers need no checks of their own between fields. Counts are budgets of the
// whole frame, because many tables of a buffer may point to one and the same list.
class Reader {
 public:
  explicit Reader(const CodecLimits& limits)
      : limits_(limits),
        pages_left_(limits.max_pages),
        regions_left_(limits.max_regions),
        transports_left_(limits.max_transports),
        bytes_left_(limits.max_frame_bytes) {}

  std::optional<Malformed> take_error() { return std::move(error_); }
  bool failed() const { return error_.has_value(); }

  Message read(fb::Message tag, const void* body);

 private:
  void reject(MalformedReason reason, std::string_view field) {
    if (!error_) {
      error_ = Malformed{reason, std::string(field)};
    }
  }
  // Whether count more of something fit; takes them when they do.
  template <typename Budget>
  bool take(Budget& left, std::size_t count, std::string_view field) {
    if (error_ || count > left) {
      reject(MalformedReason::kLimit, field);
      return false;
    }
    left -= static_cast<Budget>(count);
    return true;
  }
  template <typename T>
  bool present(const T* field, std::string_view name) {
    if (field == nullptr) {
      reject(MalformedReason::kMissingField, name);
    }
    return field != nullptr;
  }

  std::string text(const flatbuffers::String* field, std::string_view name);
  template <typename Enum>
  Enum closed(std::uint8_t number, Enum last, std::string_view name);
  template <typename Id>
  Id id128(const fb::Id128* field, std::string_view name);
  template <typename Array, typename Struct>
  Array bytes(const Struct* field, std::string_view name);

  Failure failure(const fb::Failure* field, std::string_view name);
  LayoutShape layout(const fb::LayoutShape* field);
  Introduction introduction(const fb::Introduction* field);
  std::vector<TransportOffer> offers(const List<flatbuffers::Offset<fb::TransportOffer>>* field);
  std::vector<PageIndex> pages(const fb::Grant& grant);

  Hello message(const fb::Hello& m);
  HelloReply message(const fb::HelloReply& m);
  HelloRefused message(const fb::HelloRefused& m);
  Resume message(const fb::Resume& m);
  Resumed message(const fb::Resumed& m);
  Grant message(const fb::Grant& m);
  Done message(const fb::Done& m);
  Consumed message(const fb::Consumed& m);
  Abort message(const fb::Abort& m);
  Failed message(const fb::Failed& m);

  const CodecLimits& limits_;
  std::uint32_t pages_left_;
  std::uint32_t regions_left_;
  std::uint32_t transports_left_;
  std::size_t bytes_left_;
  std::optional<Malformed> error_;
};

std::string Reader::text(const flatbuffers::String* field, std::string_view name) {
  if (field == nullptr) {
    return {};
  }
  if (field->size() > limits_.max_text_bytes || !take(bytes_left_, field->size(), name)) {
    reject(MalformedReason::kLimit, name);
    return {};
  }
  return field->str();
}

template <typename Enum>
Enum Reader::closed(std::uint8_t number, Enum last, std::string_view name) {
  if (number > static_cast<std::uint8_t>(last)) {
    reject(MalformedReason::kBadEnum, name);
    return last;
  }
  return static_cast<Enum>(number);
}

template <typename Id>
Id Reader::id128(const fb::Id128* field, std::string_view name) {
  return present(field, name) ? Id{field->high(), field->low()} : Id{};
}

template <typename Array, typename Struct>
Array Reader::bytes(const Struct* field, std::string_view name) {
  Array array{};
  if (present(field, name)) {
    std::copy_n(field->bytes()->data(), array.size(), array.begin());
  }
  return array;
}

Failure Reader::failure(const fb::Failure* field, std::string_view name) {
  if (!present(field, name)) {
    return {};
  }
  Failure failure;
  // A code of a newer peer is a failure all the same.
  failure.code = failure_code_row(static_cast<FailureCode>(field->code())).code;
  failure.where = closed(field->where(), FailureWhere::kPeer, "failure.where");
  failure.what = text(field->what(), "failure.what");
  failure.peer = text(field->peer(), "failure.peer");
  failure.rank = field->rank();
  return failure;
}

LayoutShape Reader::layout(const fb::LayoutShape* field) {
  if (!present(field, "introduction.layout") || !present(field->rank(), "layout.rank")) {
    return {};
  }
  LayoutShape shape;
  shape.model_fingerprint = text(field->model_fingerprint(), "layout.model_fingerprint");
  shape.page_size_tokens = field->page_size_tokens();
  shape.total_layers = field->total_layers();
  shape.total_kv_heads = field->total_kv_heads();
  shape.head_dim = field->head_dim();
  shape.dtype = closed(field->dtype(), DType::kF8E5M2, "layout.dtype");
  const fb::RankCoordinates& rank = *field->rank();
  shape.rank = {rank.tp_rank(), rank.tp_size(), rank.pp_rank(),
                rank.pp_size(), rank.dp_rank(), rank.dp_size()};
  shape.layers = {field->layers_begin(), field->layers_end()};
  shape.heads = {field->heads_begin(), field->heads_end()};
  const auto* regions = field->regions();
  if (regions == nullptr || !take(regions_left_, regions->size(), "layout.regions")) {
    return shape;
  }
  shape.regions.reserve(regions->size());
  for (const fb::RegionShape* region : *regions) {
    shape.regions.push_back({closed(region->kind(), RegionKind::kState, "region.kind"),
                             region->layer(), region->item_bytes(), region->item_count(),
                             closed(region->memory(), MemoryKind::kDevice, "region.memory")});
  }
  return shape;
}

std::vector<TransportOffer> Reader::offers(
    const List<flatbuffers::Offset<fb::TransportOffer>>* field) {
  std::vector<TransportOffer> offers;
  if (field == nullptr || !take(transports_left_, field->size(), "introduction.transports")) {
    return offers;
  }
  offers.reserve(field->size());
  for (const fb::TransportOffer* offer : *field) {
    TransportOffer& added = offers.emplace_back();
    added.name = text(offer->name(), "transport.name");
    const auto* blob = offer->blob();
    if (blob == nullptr) {
      continue;
    }
    if (blob->size() > limits_.max_blob_bytes) {
      reject(MalformedReason::kLimit, "transport.blob");
    } else if (take(bytes_left_, blob->size(), "transport.blob")) {
      added.blob.assign(blob->begin(), blob->end());
    }
  }
  return offers;
}

Introduction Reader::introduction(const fb::Introduction* field) {
  if (!present(field, "introduction") || !present(field->numerics(), "introduction.numerics") ||
      !present(field->limits(), "introduction.limits")) {
    return {};
  }
  Introduction self;
  self.major = field->major();
  self.minor = field->minor();
  self.role = closed(field->role(), Role::kDecode, "introduction.role");
  self.instance = text(field->instance(), "introduction.instance");
  self.control_endpoint = text(field->control_endpoint(), "introduction.control_endpoint");
  self.incarnation = id128<Incarnation>(field->incarnation(), "introduction.incarnation");
  self.engine_epoch = EngineEpoch(field->engine_epoch());
  self.layout = layout(field->layout());
  const fb::Numerics& numerics = *field->numerics();
  self.numerics.kernel_library = text(numerics.kernel_library(), "numerics.kernel_library");
  self.numerics.threads = numerics.threads();
  self.numerics.prefill_chunk_tokens = numerics.prefill_chunk_tokens();
  self.numerics.flags = text(numerics.flags(), "numerics.flags");
  self.require_identical = field->require_identical();
  self.limits = {field->limits()->max_grant_slots(), field->limits()->max_message_bytes(),
                 field->limits()->window_messages()};
  self.transports = offers(field->transports());
  return self;
}

Hello Reader::message(const fb::Hello& m) {
  return {introduction(m.introduction()), bytes<Nonce>(m.nonce(), "hello.nonce"),
          bytes<Secret>(m.secret_half(), "hello.secret_half")};
}

HelloReply Reader::message(const fb::HelloReply& m) {
  return {introduction(m.introduction()),
          bytes<Nonce>(m.echoed_nonce(), "hello_reply.echoed_nonce"),
          bytes<Nonce>(m.nonce(), "hello_reply.nonce"),
          bytes<Secret>(m.secret_half(), "hello_reply.secret_half"),
          SessionEpoch(m.epoch()),
          text(m.transport(), "hello_reply.transport")};
}

HelloRefused Reader::message(const fb::HelloRefused& m) {
  return {bytes<Nonce>(m.echoed_nonce(), "hello_refused.echoed_nonce"),
          failure(m.reason(), "hello_refused.reason")};
}

Resume Reader::message(const fb::Resume& m) {
  return {SessionEpoch(m.epoch()), bytes<Nonce>(m.nonce(), "resume.nonce"),
          bytes<Proof>(m.proof(), "resume.proof")};
}

Resumed Reader::message(const fb::Resumed& m) {
  return {SessionEpoch(m.epoch()), bytes<Nonce>(m.echoed_nonce(), "resumed.echoed_nonce"),
          bytes<Proof>(m.proof(), "resumed.proof")};
}

std::vector<PageIndex> Reader::pages(const fb::Grant& grant) {
  std::vector<PageIndex> pages;
  if (grant.pages() != nullptr && grant.runs() != nullptr) {
    reject(MalformedReason::kBadLength, "grant has both pages and runs");
  } else if (grant.pages() != nullptr) {
    if (take(pages_left_, grant.pages()->size(), "grant.pages")) {
      pages.reserve(grant.pages()->size());
      for (const std::uint32_t page : *grant.pages()) {
        pages.emplace_back(page);
      }
    }
  } else if (grant.runs() != nullptr) {
    std::uint64_t total = 0;
    for (const fb::PageRun* run : *grant.runs()) {
      if (run->count() == 0 || std::uint64_t{run->first()} + run->count() > 1ULL << 32) {
        reject(MalformedReason::kBadLength, "grant.runs");
        return pages;
      }
      // At most 2^32 times the entries of a list that fits a frame: no overflow.
      total += run->count();
    }
    if (take(pages_left_, total, "grant.runs")) {
      pages.reserve(total);
      for (const fb::PageRun* run : *grant.runs()) {
        for (std::uint32_t i = 0; i < run->count(); ++i) {
          pages.emplace_back(run->first() + i);
        }
      }
    }
  }
  return pages;
}

Grant Reader::message(const fb::Grant& m) {
  Grant grant;
  grant.room = RoomId(m.room());
  grant.binding = id128<Binding>(m.binding(), "grant.binding");
  grant.attempt = AttemptId(m.attempt());
  grant.low_water_mark = AttemptId(m.low_water_mark());
  grant.decode_engine_epoch = EngineEpoch(m.decode_engine_epoch());
  grant.slot = GrantSlot(m.slot());
  grant.generation = Generation(m.generation());
  grant.expected_grants = m.expected_grants();
  grant.decode_prefix_pages = m.decode_prefix_pages();
  grant.pages = pages(m);
  grant.aux_slot = m.aux_slot();
  // Slots are 32-bit item numbers; -1 stands for none.
  if (grant.aux_slot < -1 || grant.aux_slot >= std::int64_t{1} << 32) {
    reject(MalformedReason::kBadLength, "grant.aux_slot");
  }
  if (const auto* slots = m.state_slots();
      slots != nullptr && take(pages_left_, slots->size(), "grant.state_slots")) {
    grant.state_slots.assign(slots->begin(), slots->end());
  }
  return grant;
}

Done Reader::message(const fb::Done& m) {
  return {RoomId(m.room()),
          id128<Binding>(m.binding(), "done.binding"),
          AttemptId(m.attempt()),
          EngineEpoch(m.prefill_engine_epoch()),
          GrantSlot(m.slot()),
          Generation(m.generation()),
          m.writes(),
          m.bytes(),
          m.pages()};
}

Consumed Reader::message(const fb::Consumed& m) {
  return {RoomId(m.room()), id128<Binding>(m.binding(), "consumed.binding"), AttemptId(m.attempt()),
          AttemptId(m.low_water_mark())};
}

Abort Reader::message(const fb::Abort& m) {
  return {RoomId(m.room()),
          id128<Binding>(m.binding(), "abort.binding"),
          AttemptId(m.attempt()),
          AttemptId(m.low_water_mark()),
          GrantSlot(m.slot()),
          Generation(m.generation()),
          failure(m.cause(), "abort.cause")};
}

Failed Reader::message(const fb::Failed& m) {
  return {RoomId(m.room()), id128<Binding>(m.binding(), "failed.binding"), AttemptId(m.attempt()),
          failure(m.cause(), "failed.cause")};
}

// The verifier has checked that body is a table of the kind that tag names.
template <typename T>
const T& as(const void* body) {
  return *static_cast<const T*>(body);
}

Message Reader::read(fb::Message tag, const void* body) {
  switch (tag) {
    case fb::Message::NONE:
      reject(MalformedReason::kNoneTag, "frame.messages");
      return Ack{};
    case fb::Message::Hello:
      return message(as<fb::Hello>(body));
    case fb::Message::HelloReply:
      return message(as<fb::HelloReply>(body));
    case fb::Message::HelloConfirm: {
      const auto& m = as<fb::HelloConfirm>(body);
      return HelloConfirm{SessionEpoch(m.epoch()),
                          bytes<Nonce>(m.echoed_nonce(), "hello_confirm.echoed_nonce")};
    }
    case fb::Message::HelloConfirmed:
      return HelloConfirmed{SessionEpoch(as<fb::HelloConfirmed>(body).epoch())};
    case fb::Message::HelloRefused:
      return message(as<fb::HelloRefused>(body));
    case fb::Message::Resume:
      return message(as<fb::Resume>(body));
    case fb::Message::Resumed:
      return message(as<fb::Resumed>(body));
    case fb::Message::SessionEnded: {
      const auto& m = as<fb::SessionEnded>(body);
      return SessionEnded{SessionEpoch(m.epoch()), failure(m.reason(), "session_ended.reason")};
    }
    case fb::Message::Grant:
      return message(as<fb::Grant>(body));
    case fb::Message::Progress: {
      const auto& m = as<fb::Progress>(body);
      return Progress{AttemptId(m.attempt()), GrantSlot(m.slot()), Generation(m.generation()),
                      m.first_page(), m.page_count()};
    }
    case fb::Message::Done:
      return message(as<fb::Done>(body));
    case fb::Message::Consumed:
      return message(as<fb::Consumed>(body));
    case fb::Message::Abort:
      return message(as<fb::Abort>(body));
    case fb::Message::Drained: {
      const auto& m = as<fb::Drained>(body);
      return Drained{AttemptId(m.attempt()), GrantSlot(m.slot()), Generation(m.generation()),
                     m.clean()};
    }
    case fb::Message::Failed:
      return message(as<fb::Failed>(body));
    case fb::Message::Fenced: {
      const auto& m = as<fb::Fenced>(body);
      return Fenced{AttemptId(m.attempt()), GrantSlot(m.slot()), Generation(m.generation())};
    }
    case fb::Message::Stale: {
      const auto& m = as<fb::Stale>(body);
      return Stale{AttemptId(m.attempt()), m.kind()};
    }
    case fb::Message::Heartbeat:
      return Heartbeat{};
    case fb::Message::Ack:
      return Ack{};
    case fb::Message::Unsupported:
      return Unsupported{as<fb::Unsupported>(body).kind(), true};
  }
  // A kind of a newer peer: its body was not verified and is not looked at.
  return Unsupported{static_cast<std::uint8_t>(tag), false};
}

tl::unexpected<Malformed> malformed(MalformedReason reason, std::string what) {
  return tl::unexpected<Malformed>(Malformed{reason, std::move(what)});
}

// The size prefix is what shows trailing bytes: the verifier alone accepts them.
std::optional<Malformed> check_envelope(std::span<const std::uint8_t> bytes,
                                        const CodecLimits& limits) {
  if (bytes.empty()) {
    return Malformed{MalformedReason::kEmpty, "no bytes"};
  }
  if (bytes.size() > limits.max_frame_bytes) {
    return Malformed{MalformedReason::kTooLarge, std::to_string(bytes.size()) + " bytes, limit " +
                                                     std::to_string(limits.max_frame_bytes)};
  }
  if (bytes.size() < kPrefixBytes) {
    return Malformed{MalformedReason::kBadLength, "shorter than its size prefix"};
  }
  const std::size_t announced =
      kPrefixBytes + flatbuffers::ReadScalar<flatbuffers::uoffset_t>(bytes.data());
  if (announced == bytes.size()) {
    return std::nullopt;
  }
  return Malformed{
      announced < bytes.size() ? MalformedReason::kTrailingBytes : MalformedReason::kBadLength,
      std::to_string(bytes.size()) + " bytes, announced " + std::to_string(announced)};
}

bool verify(std::span<const std::uint8_t> bytes, const CodecLimits& limits) {
  // A hello, the kind with the most tables, has seven besides its regions and transports.
  constexpr std::uint64_t kTablesPerMessage = 8;
  const std::uint64_t tables =
      16 + kTablesPerMessage * limits.max_messages + limits.max_regions + limits.max_transports;
  flatbuffers::Verifier::Options options;
  options.max_depth = kMaxDepth;
  options.max_tables = static_cast<flatbuffers::uoffset_t>(
      std::min<std::uint64_t>(tables, std::numeric_limits<flatbuffers::uoffset_t>::max()));
  flatbuffers::Verifier verifier(bytes.data(), bytes.size(), options);
  return fb::VerifySizePrefixedFrameBuffer(verifier);
}

tl::expected<Frame, Malformed> decode_aligned(std::span<const std::uint8_t> bytes,
                                              const CodecLimits& limits) {
  if (!verify(bytes, limits)) {
    return malformed(MalformedReason::kVerifier, "not a frame of this schema");
  }
  const fb::Frame& source = *fb::GetSizePrefixedFrame(bytes.data());
  const auto* tags = source.messages_type();
  const auto* bodies = source.messages();
  if (tags == nullptr || bodies == nullptr || tags->size() == 0) {
    return malformed(MalformedReason::kEmpty, "no messages");
  }
  const std::uint32_t count = tags->size();
  if (count > limits.max_messages) {
    return malformed(MalformedReason::kLimit, "frame.messages");
  }
  // The last message's number must exist.
  if (source.sequence() > std::numeric_limits<std::uint64_t>::max() - count) {
    return malformed(MalformedReason::kLimit, "frame.sequence");
  }
  Frame frame;
  frame.session = SessionEpoch(source.session());
  frame.sequence = source.sequence();
  frame.acknowledge = source.acknowledge();
  frame.messages.reserve(count);
  Reader reader(limits);
  for (std::uint32_t i = 0; i < count && !reader.failed(); ++i) {
    frame.messages.push_back(reader.read(tags->GetEnum<fb::Message>(i), bodies->Get(i)));
  }
  if (auto error = reader.take_error()) {
    return tl::unexpected<Malformed>(std::move(*error));
  }
  return frame;
}

}  // namespace

std::string_view to_string(MalformedReason reason) {
  switch (reason) {
    case MalformedReason::kTooLarge:
      return "too-large";
    case MalformedReason::kVerifier:
      return "verifier";
    case MalformedReason::kTrailingBytes:
      return "trailing-bytes";
    case MalformedReason::kEmpty:
      return "empty";
    case MalformedReason::kNoneTag:
      return "none-tag";
    case MalformedReason::kMissingField:
      return "missing-field";
    case MalformedReason::kLimit:
      return "limit";
    case MalformedReason::kBadEnum:
      return "bad-enum";
    case MalformedReason::kBadLength:
      return "bad-length";
  }
  return "unknown";
}

tl::expected<Frame, Malformed> decode(std::span<const std::uint8_t> bytes,
                                      const CodecLimits& limits) {
  if (auto error = check_envelope(bytes, limits)) {
    return tl::unexpected<Malformed>(std::move(*error));
  }
  // Received bodies are often misaligned, and the verifier checks offsets from the base only.
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment == 0) {
    return decode_aligned(bytes, limits);
  }
  const std::vector<std::uint8_t> aligned(bytes.begin(), bytes.end());
  return decode_aligned(aligned, limits);
}

}  // namespace kvferry::wire
