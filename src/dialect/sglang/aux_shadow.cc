#include "dialect/sglang/aux_shadow.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "wire/aux_record.h"

namespace kvferry::sglang {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);
// Far above what SGLang has: a hidden state of the largest model.
constexpr std::uint32_t kMaxItemBytes = 1U << 20;

}  // namespace

Result<std::unique_ptr<AuxShadow>> AuxShadow::make(const Region& aux, AuxBuffers buffers) {
  const auto refuse = [](std::string what) {
    return fail(FailureCode::kInvalidArgument, std::move(what));
  };
  if (aux.kind != RegionKind::kAux || aux.base == nullptr || aux.item_count == 0 ||
      aux.item_bytes < kAuxRecordBytes || aux.memory != MemoryKind::kHost) {
    return refuse("SGLang's dialect needs an aux region in host memory");
  }
  if (Status sound = check(buffers); !sound) {
    return tl::unexpected(sound.error());
  }
  for (const std::uint32_t bytes : buffers.item_bytes) {
    if (bytes > kMaxItemBytes) {
      return refuse(fmt::format("an aux buffer has {} bytes for a slot, at most {} are served",
                                bytes, kMaxItemBytes));
    }
  }
  // Read whole, while another process may be writing it.
  if (const std::uint32_t bytes = buffers.item_bytes[room_buffer(buffers)]; bytes % kWord != 0) {
    return refuse(fmt::format("the room's aux buffer has {} bytes for a slot, no multiple of {}",
                              bytes, kWord));
  }
  return std::unique_ptr<AuxShadow>(new AuxShadow(aux, std::move(buffers)));
}

AuxShadow::AuxShadow(const Region& aux, AuxBuffers buffers)
    : aux_(aux), buffers_(std::move(buffers)) {
  for (const std::uint32_t bytes : buffers_.item_bytes) {
    memory_.emplace_back((std::size_t{bytes} * aux_.item_count + kWord - 1) / kWord);
  }
}

std::vector<std::uint64_t> AuxShadow::pointers() const {
  std::vector<std::uint64_t> out;
  for (const auto& buffer : memory_) {
    out.push_back(reinterpret_cast<std::uint64_t>(buffer.data()));
  }
  return out;
}

std::vector<std::span<std::byte>> AuxShadow::memory() {
  std::vector<std::span<std::byte>> out;
  for (auto& buffer : memory_) {
    out.push_back(std::as_writable_bytes(std::span(buffer)));
  }
  return out;
}

std::span<std::byte> AuxShadow::item(std::size_t buffer, std::uint32_t slot) {
  const std::size_t bytes = buffers_.item_bytes[buffer];
  return std::as_writable_bytes(std::span(memory_[buffer])).subspan(slot * bytes, bytes);
}

std::span<const std::byte> AuxShadow::item(std::size_t buffer, std::uint32_t slot) const {
  const std::size_t bytes = buffers_.item_bytes[buffer];
  return std::as_bytes(std::span(memory_[buffer])).subspan(slot * bytes, bytes);
}

void AuxShadow::clear(std::uint32_t slot) {
  for (std::size_t buffer = 0; buffer < memory_.size(); ++buffer) {
    std::ranges::fill(item(buffer, slot), std::byte{0});
  }
  // Before the grant leaves, whoever it lets write.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

std::uint64_t AuxShadow::room_number(std::uint32_t slot) const {
  const std::size_t buffer = room_buffer(buffers_);
  const std::size_t words = buffers_.item_bytes[buffer] / kWord;
  // The acquire keeps the reads of the other buffers behind it.
  auto& word = const_cast<std::uint64_t&>(memory_[buffer][slot * words]);
  return std::atomic_ref<std::uint64_t>(word).load(std::memory_order_acquire);
}

bool AuxShadow::store(std::uint32_t buffer, std::uint32_t slot,
                      std::span<const std::uint8_t> bytes) {
  if (buffer >= memory_.size() || slot >= aux_.item_count ||
      bytes.size() != buffers_.item_bytes[buffer]) {
    return false;
  }
  std::ranges::copy(std::as_bytes(bytes), item(buffer, slot).begin());
  return true;
}

void AuxShadow::deliver(std::uint32_t slot, RoomId room, Binding binding) {
  std::vector<std::span<const std::byte>> items;
  for (std::size_t buffer = 0; buffer < memory_.size(); ++buffer) {
    items.push_back(std::as_const(*this).item(buffer, slot));
  }
  wire::encode_aux(
      {aux_.base + std::size_t{slot} * aux_.item_bytes, static_cast<std::size_t>(aux_.item_bytes)},
      room, binding, join_aux(items));
}

}  // namespace kvferry::sglang
