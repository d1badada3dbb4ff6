#include "serve/llama_blob.h"

#include <fmt/format.h>

#include <cstring>
#include <string>

namespace kvferry::serve {
namespace {

constexpr std::uint32_t kMagic = 0xAF143CD8;
constexpr std::size_t kHeadBytes = 16;
constexpr std::size_t kCellBytes = 12;
constexpr std::size_t kLayerHeadBytes = 12;

template <typename T>
T load(std::span<const std::byte> blob, std::size_t offset) {
  T value{};
  std::memcpy(&value, blob.data() + offset, sizeof(T));
  return value;
}

class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <typename T>
  void put(T value) {
    std::memcpy(at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  void bytes(const std::byte* from, std::size_t count) {
    std::memcpy(at_, from, count);
    at_ += count;
  }

 private:
  std::byte* at_;
};

tl::unexpected<Failure> bad(std::string what) {
  return fail(FailureCode::kMalformed, "the engine's sequence state is not as expected: " + what);
}

// Checks what stands before the layers and returns the number of cells.
Result<std::uint32_t> check_head(std::span<const std::byte> blob) {
  if (blob.size() < kHeadBytes) {
    return bad(fmt::format("{} bytes are too few", blob.size()));
  }
  if (load<std::uint32_t>(blob, 0) != kMagic) {
    return bad("wrong magic number, so another release of llama.cpp wrote it");
  }
  if (const auto streams = load<std::uint32_t>(blob, 8); streams != 1) {
    return bad(fmt::format("{} streams, a unified cache has 1", streams));
  }
  const auto cells = load<std::uint32_t>(blob, 12);
  if (cells == 0 || (blob.size() - kHeadBytes) / kCellBytes < cells ||
      blob.size() < kHeadBytes + kCellBytes * cells + 8) {
    return bad(fmt::format("{} cells in {} bytes", cells, blob.size()));
  }
  return cells;
}

Status check_layer_head(std::span<const std::byte> blob, std::size_t offset, const BlobShape& shape,
                        std::uint32_t layer, const char* which) {
  const auto type = load<std::int32_t>(blob, offset);
  const auto row = load<std::uint64_t>(blob, offset + 4);
  if (type != shape.type || row != shape.row_bytes) {
    return bad(fmt::format("{} rows of layer {} have type {} and {} bytes instead of {} and {}",
                           which, layer, type, row, shape.type, shape.row_bytes));
  }
  return {};
}

}  // namespace

std::size_t blob_bytes(const BlobShape& shape, std::uint32_t cells) {
  return kHeadBytes + kCellBytes * cells + 8 +
         2ULL * shape.layers * (kLayerHeadBytes + std::size_t{cells} * shape.row_bytes);
}

Result<BlobShape> probe_blob(std::span<const std::byte> blob) {
  auto cells = check_head(blob);
  if (!cells) {
    return tl::unexpected(cells.error());
  }
  if (*cells != 1) {
    return bad(fmt::format("{} cells where one was asked for", *cells));
  }
  std::size_t offset = kHeadBytes + kCellBytes;
  if (load<std::uint32_t>(blob, offset) != 0) {
    return bad("V is transposed, which means that flash attention is off");
  }
  const auto layers = load<std::uint32_t>(blob, offset + 4);
  offset += 8;
  if (layers == 0 || (blob.size() - offset) / kLayerHeadBytes < layers) {
    return bad(fmt::format("{} layers in {} bytes", layers, blob.size()));
  }
  const auto row = load<std::uint64_t>(blob, offset + 4);
  if (row == 0 || row > blob.size()) {
    return bad(fmt::format("rows of {} bytes in a blob of {}", row, blob.size()));
  }
  const BlobShape shape{layers, static_cast<std::uint32_t>(row), load<std::int32_t>(blob, offset)};
  const std::size_t step = kLayerHeadBytes + shape.row_bytes;
  for (std::uint32_t index = 0; index < 2 * layers; ++index, offset += step) {
    if (blob.size() - offset < step) {
      return bad(fmt::format("it ends within layer {}", index % layers));
    }
    const char* which = index < layers ? "K" : "V";
    if (auto status = check_layer_head(blob, offset, shape, index % layers, which); !status) {
      return tl::unexpected(status.error());
    }
  }
  if (offset != blob.size()) {
    return bad(fmt::format("{} bytes after its last layer", blob.size() - offset));
  }
  return shape;
}

Status scatter_blob(std::span<const std::byte> blob, const BlobShape& shape, std::uint32_t first,
                    std::uint32_t count, std::span<std::byte* const> regions) {
  auto cells = check_head(blob);
  if (!cells) {
    return tl::unexpected(cells.error());
  }
  if (*cells != count) {
    return bad(fmt::format("{} tokens instead of {} from position {}", *cells, count, first));
  }
  if (blob.size() != blob_bytes(shape, count) || regions.size() != 2ULL * shape.layers) {
    return bad(fmt::format("{} bytes instead of {} for {} tokens", blob.size(),
                           blob_bytes(shape, count), count));
  }
  // A cell's row goes where its position says; each position once.
  std::vector<std::uint32_t> row_of(count);
  std::vector<bool> seen(count);
  bool in_order = true;
  for (std::uint32_t cell = 0; cell < count; ++cell) {
    const auto position = load<std::int32_t>(blob, kHeadBytes + kCellBytes * cell);
    const auto row = static_cast<std::int64_t>(position) - first;
    if (row < 0 || row >= count || seen[static_cast<std::size_t>(row)] ||
        load<std::uint32_t>(blob, kHeadBytes + kCellBytes * cell + 4) != 1) {
      return bad(fmt::format("cell {} has position {}, outside [{}, {}) or twice there", cell,
                             position, first, first + count));
    }
    seen[static_cast<std::size_t>(row)] = true;
    row_of[cell] = static_cast<std::uint32_t>(row);
    in_order = in_order && row == cell;
  }
  std::size_t offset = kHeadBytes + kCellBytes * count;
  if (load<std::uint32_t>(blob, offset) != 0 ||
      load<std::uint32_t>(blob, offset + 4) != shape.layers) {
    return bad("V transposed or another number of layers");
  }
  offset += 8;
  const std::size_t rows_bytes = std::size_t{count} * shape.row_bytes;
  for (std::uint32_t index = 0; index < 2 * shape.layers; ++index) {
    const char* which = index < shape.layers ? "K" : "V";
    if (auto status = check_layer_head(blob, offset, shape, index % shape.layers, which); !status) {
      return status;
    }
    const std::byte* rows = blob.data() + offset + kLayerHeadBytes;
    if (in_order) {
      std::memcpy(regions[index], rows, rows_bytes);
    } else {
      for (std::uint32_t cell = 0; cell < count; ++cell) {
        std::memcpy(regions[index] + std::size_t{row_of[cell]} * shape.row_bytes,
                    rows + std::size_t{cell} * shape.row_bytes, shape.row_bytes);
      }
    }
    offset += kLayerHeadBytes + rows_bytes;
  }
  return {};
}

void gather_blob(const BlobShape& shape, std::int32_t sequence, std::uint32_t first,
                 std::uint32_t count, std::span<std::byte* const> regions,
                 std::vector<std::byte>& blob) {
  blob.resize(blob_bytes(shape, count));
  Writer out(blob.data());
  out.put(kMagic);
  out.put(sequence);
  out.put(std::uint32_t{1});
  out.put(count);
  for (std::uint32_t cell = 0; cell < count; ++cell) {
    out.put(static_cast<std::int32_t>(first + cell));
    out.put(std::uint32_t{1});
    out.put(sequence);
  }
  out.put(std::uint32_t{0});
  out.put(shape.layers);
  for (std::uint32_t index = 0; index < 2 * shape.layers; ++index) {
    out.put(shape.type);
    out.put(std::uint64_t{shape.row_bytes});
    out.bytes(regions[index], std::size_t{count} * shape.row_bytes);
  }
}

}  // namespace kvferry::serve
