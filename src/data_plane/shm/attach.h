// What a source and a target of one host tell each other once their connection has proved itself:
// the source hands over its ring, bells and pools and says where its regions lie; the target tries
// them and either attaches or says why it can't, so that the pair can fall back to tcp with that
// reason. Bytes only, little-endian; what they name is checked by whoever maps and reads it.
//
//   source to target  Attach    with descriptors: the submissions' memory, the target's bell, the
//                               source's bell, then the pools in their order
//   target to source  Attached  with one descriptor: the answers' memory
//                     Refused
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::data_plane::shm {

inline constexpr std::uint16_t kAttachVersion = 1;
inline constexpr std::size_t kMaxAttachRegions = kMaxRegions;
inline constexpr std::size_t kMaxAttachPools = 64;
inline constexpr std::size_t kMaxRefusalBytes = 512;

// Descriptors before the pools.
inline constexpr std::size_t kAttachFixedFds = 3;

struct AttachRegion {
  static constexpr std::uint32_t kRemote = 0xFFFF'FFFF;
  std::uint32_t pool = kRemote;  // position among the pools; kRemote: read by process_vm_readv
  std::uint64_t place = 0;       // bytes from the pool's start; kRemote: address in the source
  std::uint64_t bytes = 0;
  friend bool operator==(const AttachRegion&, const AttachRegion&) = default;
};

// Eight bytes of the source's memory and what they hold. Only a process_vm_readv that reaches the
// very process that sent this finds them, whatever its process number means to the reader.
struct AttachProbe {
  std::uint64_t address = 0;
  std::uint64_t value = 0;
  friend bool operator==(const AttachProbe&, const AttachProbe&) = default;
};

struct Attach {
  std::uint32_t ring_entries = 0;
  std::uint32_t pool_count = 0;  // pools that come along as descriptors
  bool has_digests = false;      // each ring entry carries one of its write's bytes
  std::vector<AttachRegion> regions;
  AttachProbe probe;
  friend bool operator==(const Attach&, const Attach&) = default;
};

struct Attached {
  friend bool operator==(const Attached&, const Attached&) = default;
};

struct Refused {
  std::string reason;
  friend bool operator==(const Refused&, const Refused&) = default;
};

using AttachReply = std::variant<Attached, Refused>;

// Bytes of the longest message of each direction: buffers of this size never truncate one.
inline constexpr std::size_t kMaxAttachBytes = 36 + 24 * kMaxAttachRegions;
inline constexpr std::size_t kMaxAttachReplyBytes = 8 + kMaxRefusalBytes;

// The caller stays within the limits; a longer reason is cut.
std::vector<std::uint8_t> encode_attach(const Attach& attach);
std::vector<std::uint8_t> encode_attach_reply(const AttachReply& reply);

// A failure (kMalformed, or kSessionRefused for another version) says what is wrong. What parsed
// has a ring size that is allowed, counts within the limits, and regions that name a pool that
// comes along and whose end does not overflow. A reason has no control characters.
Result<Attach> parse_attach(std::span<const std::uint8_t> bytes);
Result<AttachReply> parse_attach_reply(std::span<const std::uint8_t> bytes);

}  // namespace kvferry::data_plane::shm
