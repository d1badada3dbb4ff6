#include "serve/llama_blob.h"

#include <gtest/gtest.h>

#include <cstring>

namespace kvferry::serve {
namespace {

constexpr BlobShape kShape{3, 8, 1};

struct Rows {
  explicit Rows(std::uint32_t tokens, int seed = 0) {
    for (std::uint32_t region = 0; region < 2 * kShape.layers; ++region) {
      auto& rows = data.emplace_back(std::size_t{tokens} * kShape.row_bytes);
      for (std::size_t at = 0; at < rows.size(); ++at) {
        rows[at] = static_cast<std::byte>(seed == 0 ? 0 : (region * 31 + at * 7 + seed) & 0xFF);
      }
      pointers.push_back(rows.data());
    }
  }
  std::vector<std::vector<std::byte>> data;
  std::vector<std::byte*> pointers;
};

std::vector<std::byte> blob_of(Rows& rows, std::uint32_t first, std::uint32_t count) {
  std::vector<std::byte> blob;
  gather_blob(kShape, 7, first, count, rows.pointers, blob);
  return blob;
}

template <typename T>
void poke(std::vector<std::byte>& blob, std::size_t offset, T value) {
  std::memcpy(blob.data() + offset, &value, sizeof value);
}

TEST(LlamaBlob, RoundTripKeepsRows) {
  Rows in(5, 1);
  Rows out(5);
  const auto blob = blob_of(in, 64, 5);
  EXPECT_EQ(blob.size(), blob_bytes(kShape, 5));
  ASSERT_TRUE(scatter_blob(blob, kShape, 64, 5, out.pointers));
  EXPECT_EQ(in.data, out.data);
}

TEST(LlamaBlob, HasTheSizeThatTheReleaseWrites) {
  // 30 layers of 3 x 64 f16: measured with the real library.
  EXPECT_EQ(blob_bytes({30, 384, 1}, 64), 1'476'072U);
}

TEST(LlamaBlob, RowsGoWhereTheirPositionsSay) {
  Rows in(2, 1);
  auto blob = blob_of(in, 10, 2);
  poke<std::int32_t>(blob, 16, 11);
  poke<std::int32_t>(blob, 16 + 12, 10);
  Rows out(2);
  ASSERT_TRUE(scatter_blob(blob, kShape, 10, 2, out.pointers));
  for (std::uint32_t region = 0; region < 2 * kShape.layers; ++region) {
    EXPECT_EQ(std::memcmp(out.pointers[region], in.pointers[region] + 8, 8), 0);
    EXPECT_EQ(std::memcmp(out.pointers[region] + 8, in.pointers[region], 8), 0);
  }
}

TEST(LlamaBlob, RefusesWhatItDoesNotExpect) {
  Rows in(2, 1);
  Rows out(2);
  const auto good = blob_of(in, 0, 2);
  auto refuses = [&](auto change) {
    auto blob = good;
    change(blob);
    return !scatter_blob(blob, kShape, 0, 2, out.pointers).has_value();
  };
  EXPECT_FALSE(refuses([](auto&) {}));
  EXPECT_TRUE(refuses([](auto& b) { b.resize(3); }));
  EXPECT_TRUE(refuses([](auto& b) { poke<std::uint32_t>(b, 0, 1); }));            // magic
  EXPECT_TRUE(refuses([](auto& b) { poke<std::uint32_t>(b, 8, 2); }));            // streams
  EXPECT_TRUE(refuses([](auto& b) { poke<std::uint32_t>(b, 12, 3); }));           // cells
  EXPECT_TRUE(refuses([](auto& b) { poke<std::uint32_t>(b, 12, 0xFFFFFFFF); }));  // cells
  EXPECT_TRUE(refuses([](auto& b) { poke<std::int32_t>(b, 16, 1); }));            // position twice
  EXPECT_TRUE(refuses([](auto& b) { poke<std::int32_t>(b, 16, -1); }));
  EXPECT_TRUE(refuses([](auto& b) { poke<std::uint32_t>(b, 20, 2); }));   // sequences
  EXPECT_TRUE(refuses([](auto& b) { poke<std::uint32_t>(b, 40, 1); }));   // transposed
  EXPECT_TRUE(refuses([](auto& b) { poke<std::uint32_t>(b, 44, 2); }));   // layers
  EXPECT_TRUE(refuses([](auto& b) { poke<std::int32_t>(b, 48, 2); }));    // type
  EXPECT_TRUE(refuses([](auto& b) { poke<std::uint64_t>(b, 52, 16); }));  // row bytes
  EXPECT_TRUE(refuses([](auto& b) { b.push_back({}); }));
}

TEST(LlamaBlob, ProbeLearnsTheShapeOrSaysWhyNot) {
  Rows in(1, 1);
  const auto good = blob_of(in, 0, 1);
  ASSERT_TRUE(probe_blob(good));
  EXPECT_EQ(*probe_blob(good), kShape);
  auto varying = good;
  // The second layer's K rows claim another size.
  poke<std::uint64_t>(varying, 16 + 12 + 8 + 20 + 4, 4);
  ASSERT_FALSE(probe_blob(varying));
  EXPECT_NE(probe_blob(varying).error().what.find("K rows of layer 1"), std::string::npos);
  auto transposed = good;
  poke<std::uint32_t>(transposed, 28, 1);
  EXPECT_NE(probe_blob(transposed).error().what.find("flash attention"), std::string::npos);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(probe_blob(std::span(good).first(size))) << size;
  }
}

}  // namespace
}  // namespace kvferry::serve
