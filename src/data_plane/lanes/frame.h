// Bytes of a lane: handshake messages and frames, little-endian. Pure; every length that a peer
// sends is checked here or by the caller before anything is sized by it.
//
// Source to target:  header, descriptors, payloads, trailer        (data; with digests each
//                                                                   descriptor ends with one)
//                    header, entries                               (resolve)
//                    header                                        (heartbeat)
// Target to source:  header, one result byte per write             (ack, resolved)
//                    header                                        (heartbeat)
//
// In a tcp stream each part that a source sends is filled up with zeros to a multiple of
// kStreamAlignment, so that payloads stand at multiples of it wherever the kernel keeps them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/crypto.h"
#include "data_plane/claim_table.h"
#include "kvferry/ids.h"
#include "layout/write.h"

namespace kvferry::data_plane {

inline constexpr std::uint16_t kLaneVersion = 1;

enum class FrameType : std::uint8_t {
  kData = 1,
  kAck = 2,
  kHeartbeat = 3,
  kResolve = 4,  // how did these tickets of a lost lane end?
  kResolved = 5,
};

struct FrameHeader {
  FrameType type = FrameType::kHeartbeat;
  std::uint16_t count = 0;          // descriptors, entries or result bytes
  std::uint32_t slot = 0;           // data: grant slot; resolve: serial of the lost lane
  std::uint64_t payload_bytes = 0;  // data only
  std::uint64_t generation = 0;     // data only
  std::uint64_t sequence = 0;       // of the data frame, or the name of the resolve request
  bool has_digests = false;         // data only
};

struct ResolveEntry {
  TicketId ticket;
  GrantSlot slot;
  Generation generation;
};

// Pages are aligned, and the kernel copies to and from the stream's buffers with "rep movsb". On
// current x86 that is a quarter slower for a source that is no multiple of 32, and four times for a
// target that is a few bytes past its source (modulo 4096).
inline constexpr std::size_t kStreamAlignment = 64;
constexpr std::size_t stream_padding(std::uint64_t bytes) {
  return (kStreamAlignment - bytes % kStreamAlignment) % kStreamAlignment;
}

inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::size_t kDescriptorBytes = 32;
inline constexpr std::size_t kDigestBytes = 8;
inline constexpr std::size_t kResolveEntryBytes = 24;
inline constexpr std::size_t kTrailerBytes = 64;
inline constexpr std::uint32_t kMaxFrameWrites = 1'024;
inline constexpr std::uint32_t kMaxResolveEntries = 1'024;

void append_header(std::vector<std::uint8_t>& out, const FrameHeader& header);
// Nothing when the magic, the type, the flags or a reserved field is wrong: the lane has lost its
// framing.
std::optional<FrameHeader> parse_header(std::span<const std::uint8_t, kHeaderBytes> bytes);

void append_descriptor(std::vector<std::uint8_t>& out, const layout::Write& write);
IncomingWrite parse_descriptor(std::span<const std::uint8_t, kDescriptorBytes> bytes);

void append_digest(std::vector<std::uint8_t>& out, std::uint64_t digest);
std::uint64_t parse_digest(std::span<const std::uint8_t, kDigestBytes> bytes);

void append_resolve_entry(std::vector<std::uint8_t>& out, const ResolveEntry& entry);
ResolveEntry parse_resolve_entry(std::span<const std::uint8_t, kResolveEntryBytes> bytes);

// void: the writer gave the frame up while it was being sent.
enum class Trailer : std::uint8_t { kValid, kVoid };
void append_trailer(std::vector<std::uint8_t>& out, Trailer trailer);
// What follows on so many bytes of descriptors, entries or payload.
void append_stream_padding(std::vector<std::uint8_t>& out, std::uint64_t bytes);
std::optional<Trailer> parse_trailer(std::span<const std::uint8_t, kTrailerBytes> bytes);

// Handshake: the target sends a challenge, the source answers with its proof, the target welcomes
// it with its own. A stranger thus learns a random number and nothing else.
using Nonce = std::array<std::uint8_t, 32>;

struct LaneResponse {
  SessionEpoch epoch;
  std::uint32_t serial = 0;  // of the lane; a session never uses one twice
  Nonce nonce{};
  Digest proof{};
};

inline constexpr std::size_t kChallengeBytes = 40;
inline constexpr std::size_t kResponseBytes = 128;
inline constexpr std::size_t kWelcomeBytes = 40;

std::vector<std::uint8_t> encode_challenge(const Nonce& nonce);
std::vector<std::uint8_t> encode_response(const LaneResponse& response);
std::vector<std::uint8_t> encode_welcome(const Digest& proof);
// Each of these is nothing for wrong magic or another version.
std::optional<Nonce> parse_challenge(std::span<const std::uint8_t, kChallengeBytes> bytes);
std::optional<LaneResponse> parse_response(std::span<const std::uint8_t, kResponseBytes> bytes);
std::optional<Digest> parse_welcome(std::span<const std::uint8_t, kWelcomeBytes> bytes);

enum class Prover : std::uint8_t { kSource, kTarget };
Digest lane_proof(std::span<const std::uint8_t, 32> secret, Prover prover,
                  const Nonce& target_nonce, const Nonce& source_nonce, SessionEpoch epoch,
                  std::uint32_t serial);

// What the target puts into the hello; limits are those of the frames that it accepts. A side that
// is not connected to has no address at all.
struct TargetBlob {
  std::string host;  // numeric IPv4 or IPv6; empty without tcp
  std::uint16_t port = 0;
  std::uint32_t frame_bytes = 0;
  std::uint32_t frame_writes = 0;
  std::string unix_path{};              // socket of the shm lanes; empty without shm
  std::array<std::uint8_t, 16> boot{};  // of the host's kernel: equal means one host
};
std::vector<std::uint8_t> encode_blob(const TargetBlob& blob);
std::optional<TargetBlob> parse_blob(std::span<const std::uint8_t> bytes);

}  // namespace kvferry::data_plane
