#include "data_plane/shm/attach.h"

#include <cassert>

#include "data_plane/lanes/fields.h"
#include "data_plane/shm/ring.h"

namespace kvferry::data_plane::shm {
namespace {

constexpr std::uint32_t kAttachMagic = 0x4153'564B;  // "KVSA"
constexpr std::uint32_t kReplyMagic = 0x5253'564B;   // "KVSR"
constexpr std::uint16_t kDigestsFlag = 1;
constexpr std::size_t kAttachHeadBytes = 36;
constexpr std::size_t kRegionBytes = 24;
constexpr std::size_t kReplyHeadBytes = 8;
static_assert(kMaxAttachBytes == kAttachHeadBytes + kRegionBytes * kMaxAttachRegions);
static_assert(kMaxAttachReplyBytes == kReplyHeadBytes + kMaxRefusalBytes);

enum class ReplyKind : std::uint16_t { kAttached = 1, kRefused = 2 };

tl::unexpected<Failure> malformed(const std::string& what) {
  return fail(FailureCode::kMalformed, "shm handshake: " + what, FailureWhere::kPeer);
}

// Magic and version, which both messages begin with.
Status check_start(Fields& fields, std::uint32_t magic) {
  if (fields.take<std::uint32_t>() != magic) return malformed("not the message that was awaited");
  const auto version = fields.take<std::uint16_t>();
  if (version != kAttachVersion) {
    return fail(FailureCode::kSessionRefused,
                "shm handshake: the peer speaks version " + std::to_string(version) +
                    ", this side " + std::to_string(kAttachVersion),
                FailureWhere::kPeer);
  }
  return {};
}

Status check_region(const AttachRegion& region, std::size_t index, std::uint32_t pool_count) {
  const std::string which = "region " + std::to_string(index);
  if (region.pool != AttachRegion::kRemote && region.pool >= pool_count) {
    return malformed(which + " lies in pool " + std::to_string(region.pool) + " of " +
                     std::to_string(pool_count));
  }
  if (region.place + region.bytes < region.place) return malformed(which + " has no end");
  return {};
}

// At most limit bytes, without half a character of UTF-8 at the end.
std::string_view cut(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  return text.substr(0, limit);
}

}  // namespace

std::vector<std::uint8_t> encode_attach(const Attach& attach) {
  assert(attach.regions.size() <= kMaxAttachRegions && attach.pool_count <= kMaxAttachPools);
  std::vector<std::uint8_t> out;
  out.reserve(kAttachHeadBytes + attach.regions.size() * kRegionBytes);
  put(out, kAttachMagic);
  put(out, kAttachVersion);
  put(out, attach.has_digests ? kDigestsFlag : std::uint16_t{0});
  put(out, attach.ring_entries);
  put(out, attach.pool_count);
  put(out, static_cast<std::uint32_t>(attach.regions.size()));
  put(out, attach.probe.address);
  put(out, attach.probe.value);
  for (const AttachRegion& region : attach.regions) {
    put(out, region.pool);
    put(out, std::uint32_t{0});
    put(out, region.place);
    put(out, region.bytes);
  }
  return out;
}

Result<Attach> parse_attach(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < kAttachHeadBytes) return malformed("the message is too short");
  Fields fields(bytes);
  if (Status start = check_start(fields, kAttachMagic); !start) {
    return tl::unexpected(start.error());
  }
  const auto flags = fields.take<std::uint16_t>();
  if ((flags & ~kDigestsFlag) != 0) return malformed("flags of another version");
  Attach attach;
  attach.has_digests = flags == kDigestsFlag;
  attach.ring_entries = fields.take<std::uint32_t>();
  attach.pool_count = fields.take<std::uint32_t>();
  const std::size_t region_count = fields.take<std::uint32_t>();
  attach.probe.address = fields.take<std::uint64_t>();
  attach.probe.value = fields.take<std::uint64_t>();
  if (!is_ring_size(attach.ring_entries)) {
    return malformed("a ring of " + std::to_string(attach.ring_entries) + " entries");
  }
  if (attach.pool_count > kMaxAttachPools) {
    return malformed(std::to_string(attach.pool_count) + " pools, more than " +
                     std::to_string(kMaxAttachPools));
  }
  if (region_count > kMaxAttachRegions) {
    return malformed(std::to_string(region_count) + " regions, more than " +
                     std::to_string(kMaxAttachRegions));
  }
  if (fields.rest().size() != region_count * kRegionBytes) {
    return malformed("the message's length does not fit its number of regions");
  }
  attach.regions.reserve(region_count);
  for (std::size_t i = 0; i < region_count; ++i) {
    AttachRegion region;
    region.pool = fields.take<std::uint32_t>();
    if (fields.take<std::uint32_t>() != 0) return malformed("a reserved field is not zero");
    region.place = fields.take<std::uint64_t>();
    region.bytes = fields.take<std::uint64_t>();
    if (Status checked = check_region(region, i, attach.pool_count); !checked) {
      return tl::unexpected(checked.error());
    }
    attach.regions.push_back(region);
  }
  return attach;
}

std::vector<std::uint8_t> encode_attach_reply(const AttachReply& reply) {
  const auto* refused = std::get_if<Refused>(&reply);
  std::vector<std::uint8_t> out;
  put(out, kReplyMagic);
  put(out, kAttachVersion);
  put(out, static_cast<std::uint16_t>(refused ? ReplyKind::kRefused : ReplyKind::kAttached));
  if (refused != nullptr) {
    const std::string_view reason = cut(refused->reason, kMaxRefusalBytes);
    out.insert(out.end(), reason.begin(), reason.end());
  }
  return out;
}

Result<AttachReply> parse_attach_reply(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < kReplyHeadBytes) return malformed("the reply is too short");
  Fields fields(bytes);
  if (Status start = check_start(fields, kReplyMagic); !start) {
    return tl::unexpected(start.error());
  }
  const auto kind = static_cast<ReplyKind>(fields.take<std::uint16_t>());
  const std::span<const std::uint8_t> text = fields.rest();
  if (kind == ReplyKind::kAttached) {
    if (!text.empty()) return malformed("the reply has bytes after its end");
    return AttachReply(Attached{});
  }
  if (kind != ReplyKind::kRefused) return malformed("the reply is of an unknown kind");
  if (text.size() > kMaxRefusalBytes) return malformed("the reason is too long");
  // It ends in logs: nothing in it may move a cursor or begin a line.
  Refused refused;
  for (const std::uint8_t byte : text) {
    const bool control = byte < 0x20 || byte == 0x7F;
    refused.reason.push_back(control ? ' ' : static_cast<char>(byte));
  }
  return AttachReply(std::move(refused));
}

}  // namespace kvferry::data_plane::shm
