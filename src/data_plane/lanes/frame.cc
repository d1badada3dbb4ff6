#include "data_plane/lanes/frame.h"

#include <algorithm>

#include "data_plane/lanes/fields.h"

namespace kvferry::data_plane {
namespace {

constexpr std::uint32_t kFrameMagic = 0x3146'564B;      // "KVF1"
constexpr std::uint32_t kTrailerMagic = 0x4546'564B;    // "KVFE"
constexpr std::uint32_t kChallengeMagic = 0x4346'564B;  // "KVFC"
constexpr std::uint32_t kResponseMagic = 0x5246'564B;   // "KVFR"
constexpr std::uint32_t kWelcomeMagic = 0x5746'564B;    // "KVFW"
constexpr std::uint8_t kDigestsFlag = 1;
constexpr std::uint8_t kBlobVersion = 1;
constexpr std::size_t kMaxHostBytes = 64;
constexpr std::size_t kMaxPathBytes = 107;  // of a Unix socket
// Zeros, that a later version may use.
constexpr std::size_t kHeaderReserve = kHeaderBytes - 40;
constexpr std::size_t kTrailerReserve = kTrailerBytes - 8;
constexpr std::size_t kResponseReserve = kResponseBytes - 88;

void put_zeros(std::vector<std::uint8_t>& out, std::size_t bytes) {
  out.resize(out.size() + bytes);
}

bool all_zero(std::span<const std::uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte == 0; });
}

}  // namespace

void append_header(std::vector<std::uint8_t>& out, const FrameHeader& header) {
  put(out, kFrameMagic);
  put(out, static_cast<std::uint8_t>(header.type));
  put(out, header.has_digests ? kDigestsFlag : std::uint8_t{0});
  put(out, header.count);
  put(out, header.slot);
  put(out, std::uint32_t{0});
  put(out, header.payload_bytes);
  put(out, header.generation);
  put(out, header.sequence);
  put_zeros(out, kHeaderReserve);
}

std::optional<FrameHeader> parse_header(std::span<const std::uint8_t, kHeaderBytes> bytes) {
  Fields fields(bytes);
  FrameHeader header;
  if (fields.take<std::uint32_t>() != kFrameMagic) return std::nullopt;
  const auto type = fields.take<std::uint8_t>();
  if (type < static_cast<std::uint8_t>(FrameType::kData) ||
      type > static_cast<std::uint8_t>(FrameType::kResolved)) {
    return std::nullopt;
  }
  header.type = static_cast<FrameType>(type);
  const auto flags = fields.take<std::uint8_t>();
  header.has_digests = header.type == FrameType::kData && flags == kDigestsFlag;
  if (flags != 0 && !header.has_digests) return std::nullopt;
  header.count = fields.take<std::uint16_t>();
  header.slot = fields.take<std::uint32_t>();
  if (fields.take<std::uint32_t>() != 0) return std::nullopt;
  header.payload_bytes = fields.take<std::uint64_t>();
  header.generation = fields.take<std::uint64_t>();
  header.sequence = fields.take<std::uint64_t>();
  if (!all_zero(fields.rest())) return std::nullopt;
  return header;
}

void append_descriptor(std::vector<std::uint8_t>& out, const layout::Write& write) {
  put(out, write.ticket.value());
  put(out, write.target_region.value());
  put(out, write.target_item);
  put(out, write.offset_in_item);
  put(out, write.length);
}

IncomingWrite parse_descriptor(std::span<const std::uint8_t, kDescriptorBytes> bytes) {
  Fields fields(bytes);
  IncomingWrite write;
  write.ticket = TicketId(fields.take<std::uint64_t>());
  write.region = RegionId(fields.take<std::uint32_t>());
  write.item = fields.take<std::uint32_t>();
  write.offset_in_item = fields.take<std::uint64_t>();
  write.length = fields.take<std::uint64_t>();
  return write;
}

void append_digest(std::vector<std::uint8_t>& out, std::uint64_t digest) { put(out, digest); }

std::uint64_t parse_digest(std::span<const std::uint8_t, kDigestBytes> bytes) {
  return Fields(bytes).take<std::uint64_t>();
}

void append_resolve_entry(std::vector<std::uint8_t>& out, const ResolveEntry& entry) {
  put(out, entry.ticket.value());
  put(out, entry.slot.value());
  put(out, std::uint32_t{0});
  put(out, entry.generation.value());
}

ResolveEntry parse_resolve_entry(std::span<const std::uint8_t, kResolveEntryBytes> bytes) {
  Fields fields(bytes);
  ResolveEntry entry;
  entry.ticket = TicketId(fields.take<std::uint64_t>());
  entry.slot = GrantSlot(fields.take<std::uint32_t>());
  fields.take<std::uint32_t>();
  entry.generation = Generation(fields.take<std::uint64_t>());
  return entry;
}

void append_trailer(std::vector<std::uint8_t>& out, Trailer trailer) {
  put(out, kTrailerMagic);
  put(out, std::uint32_t{trailer == Trailer::kVoid ? 1U : 0U});
  put_zeros(out, kTrailerReserve);
}

void append_stream_padding(std::vector<std::uint8_t>& out, std::uint64_t bytes) {
  put_zeros(out, stream_padding(bytes));
}

std::optional<Trailer> parse_trailer(std::span<const std::uint8_t, kTrailerBytes> bytes) {
  Fields fields(bytes);
  if (fields.take<std::uint32_t>() != kTrailerMagic) return std::nullopt;
  const auto verdict = fields.take<std::uint32_t>();
  if (verdict > 1 || !all_zero(fields.rest())) return std::nullopt;
  return verdict == 1 ? Trailer::kVoid : Trailer::kValid;
}

std::vector<std::uint8_t> encode_challenge(const Nonce& nonce) {
  std::vector<std::uint8_t> out;
  put(out, kChallengeMagic);
  put(out, kLaneVersion);
  put(out, std::uint16_t{0});
  put_bytes(out, nonce);
  return out;
}

std::optional<Nonce> parse_challenge(std::span<const std::uint8_t, kChallengeBytes> bytes) {
  Fields fields(bytes);
  if (fields.take<std::uint32_t>() != kChallengeMagic) return std::nullopt;
  if (fields.take<std::uint16_t>() != kLaneVersion) return std::nullopt;
  fields.take<std::uint16_t>();
  return fields.take_array<32>();
}

std::vector<std::uint8_t> encode_response(const LaneResponse& response) {
  std::vector<std::uint8_t> out;
  put(out, kResponseMagic);
  put(out, kLaneVersion);
  put(out, std::uint16_t{0});
  put(out, response.epoch.value());
  put(out, response.serial);
  put(out, std::uint32_t{0});
  put_bytes(out, response.nonce);
  put_bytes(out, response.proof);
  put_zeros(out, kResponseReserve);
  return out;
}

std::optional<LaneResponse> parse_response(std::span<const std::uint8_t, kResponseBytes> bytes) {
  Fields fields(bytes);
  if (fields.take<std::uint32_t>() != kResponseMagic) return std::nullopt;
  if (fields.take<std::uint16_t>() != kLaneVersion) return std::nullopt;
  fields.take<std::uint16_t>();
  LaneResponse response;
  response.epoch = SessionEpoch(fields.take<std::uint64_t>());
  response.serial = fields.take<std::uint32_t>();
  fields.take<std::uint32_t>();
  response.nonce = fields.take_array<32>();
  response.proof = fields.take_array<32>();
  if (!all_zero(fields.rest())) return std::nullopt;
  return response;
}

std::vector<std::uint8_t> encode_welcome(const Digest& proof) {
  std::vector<std::uint8_t> out;
  put(out, kWelcomeMagic);
  put(out, kLaneVersion);
  put(out, std::uint16_t{0});
  put_bytes(out, proof);
  return out;
}

std::optional<Digest> parse_welcome(std::span<const std::uint8_t, kWelcomeBytes> bytes) {
  Fields fields(bytes);
  if (fields.take<std::uint32_t>() != kWelcomeMagic) return std::nullopt;
  if (fields.take<std::uint16_t>() != kLaneVersion) return std::nullopt;
  fields.take<std::uint16_t>();
  return fields.take_array<32>();
}

Digest lane_proof(std::span<const std::uint8_t, 32> secret, Prover prover,
                  const Nonce& target_nonce, const Nonce& source_nonce, SessionEpoch epoch,
                  std::uint32_t serial) {
  // The label keeps a proof of one side from being played back as the other's.
  const std::string_view label =
      prover == Prover::kSource ? "kvferry lane source 1" : "kvferry lane target 1";
  std::vector<std::uint8_t> text(label.begin(), label.end());
  put_bytes(text, target_nonce);
  put_bytes(text, source_nonce);
  put(text, epoch.value());
  put(text, serial);
  return hmac_sha256(secret, text);
}

std::vector<std::uint8_t> encode_blob(const TargetBlob& blob) {
  std::vector<std::uint8_t> out;
  put(out, kBlobVersion);
  put(out, static_cast<std::uint8_t>(blob.host.size()));
  put(out, static_cast<std::uint8_t>(blob.unix_path.size()));
  put(out, blob.port);
  put(out, blob.frame_bytes);
  put(out, blob.frame_writes);
  put_bytes(out, blob.boot);
  out.insert(out.end(), blob.host.begin(), blob.host.end());
  out.insert(out.end(), blob.unix_path.begin(), blob.unix_path.end());
  return out;
}

std::optional<TargetBlob> parse_blob(std::span<const std::uint8_t> bytes) {
  Fields fields(bytes);
  if (fields.left() < 29) return std::nullopt;
  if (fields.take<std::uint8_t>() != kBlobVersion) return std::nullopt;
  const std::size_t host_bytes = fields.take<std::uint8_t>();
  const std::size_t path_bytes = fields.take<std::uint8_t>();
  TargetBlob blob;
  blob.port = fields.take<std::uint16_t>();
  blob.frame_bytes = fields.take<std::uint32_t>();
  blob.frame_writes = fields.take<std::uint32_t>();
  blob.boot = fields.take_array<16>();
  if (host_bytes > kMaxHostBytes || path_bytes > kMaxPathBytes ||
      fields.left() != host_bytes + path_bytes) {
    return std::nullopt;
  }
  const auto text = fields.rest();
  blob.host.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(host_bytes));
  blob.unix_path.assign(text.begin() + static_cast<std::ptrdiff_t>(host_bytes), text.end());
  return blob;
}

}  // namespace kvferry::data_plane
