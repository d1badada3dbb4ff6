#include "data_plane/process_vm/process_blob.h"

#include <concepts>

#include "kvferry/kv_args.h"

namespace kvferry::data_plane {
namespace {

constexpr std::uint32_t kMagic = 0x314D'5650;  // "PVM1" in memory order

class Writer {
 public:
  template <std::unsigned_integral T>
  void put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::uint8_t>(std::uint64_t{value} >> (8 * i)));
    }
  }
  std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  template <std::unsigned_integral T>
  T take() {
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      bytes_ = {};
      return 0;
    }
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= std::uint64_t{bytes_[i]} << (8 * i);
    bytes_ = bytes_.subspan(sizeof(T));
    return static_cast<T>(value);
  }
  // A number of things, none above most.
  std::uint32_t count(std::size_t most) {
    const auto value = take<std::uint32_t>();
    ok_ = ok_ && value <= most;
    return ok_ ? value : 0;
  }
  bool ok() const { return ok_; }
  bool is_at_end() const { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::uint8_t> bytes_;
  bool ok_ = true;
};

}  // namespace

std::vector<std::uint8_t> encode(const ProcessBlob& blob) {
  Writer out;
  out.put(kMagic);
  out.put(static_cast<std::uint32_t>(blob.process.pid));
  out.put(blob.process.start_ticks);
  out.put(static_cast<std::uint32_t>(blob.regions.size()));
  for (const ProcessRegion& region : blob.regions) {
    out.put(static_cast<std::uint32_t>(region.pointers.size()));
    for (const std::uint64_t pointer : region.pointers) out.put(pointer);
    out.put(static_cast<std::uint32_t>(region.part_bytes.size()));
    for (const std::uint32_t bytes : region.part_bytes) out.put(bytes);
  }
  return out.take();
}

Result<ProcessBlob> decode_process_blob(std::span<const std::uint8_t> bytes) {
  Reader in(bytes);
  const bool is_ours = in.take<std::uint32_t>() == kMagic;
  ProcessBlob blob;
  blob.process.pid = static_cast<pid_t>(in.take<std::uint32_t>());
  blob.process.start_ticks = in.take<std::uint64_t>();
  const std::uint32_t regions = in.count(kMaxRegions);
  bool fits = is_ours;
  for (std::uint32_t i = 0; i < regions && in.ok(); ++i) {
    ProcessRegion region;
    for (std::uint32_t left = in.count(kMaxRegionBuffers); left > 0 && in.ok(); --left) {
      region.pointers.push_back(in.take<std::uint64_t>());
    }
    for (std::uint32_t left = in.count(kMaxRegionBuffers); left > 0 && in.ok(); --left) {
      region.part_bytes.push_back(in.take<std::uint32_t>());
    }
    fits = fits && (region.part_bytes.empty() ? region.pointers.size() == 1
                                              : region.part_bytes.size() == region.pointers.size());
    blob.regions.push_back(std::move(region));
  }
  if (!fits || !in.is_at_end()) {
    return fail(FailureCode::kMalformed, "the peer's process-vm blob can't be used",
                FailureWhere::kPeer);
  }
  return blob;
}

}  // namespace kvferry::data_plane
