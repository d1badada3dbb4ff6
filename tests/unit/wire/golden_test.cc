// Wire compatibility: frames as earlier builds wrote them, one hex file each in
// golden/<major.minor>/. A file is never changed once its version is released; a new version gets a
// folder of its own, written by KVFERRY_WRITE_GOLDEN=1 kvferry_wire_test --gtest_filter='Golden.*'
// (which overwrites nothing).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "samples.h"
#include "wire/codec.h"

namespace kvferry::wire {
namespace {

std::filesystem::path golden_file(const std::string& name) {
  return std::filesystem::path(KVFERRY_GOLDEN_DIR) /
         fmt::format("{}.{}", kProtocolMajor, kProtocolMinor) / (name + ".hex");
}

void write_hex(const std::filesystem::path& path, const std::vector<std::uint8_t>& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    file << fmt::format("{:02x}", bytes[i]) << (i % 32 == 31 || i + 1 == bytes.size() ? "\n" : " ");
  }
}

std::vector<std::uint8_t> read_hex(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::uint8_t> bytes;
  for (std::string word; file >> word;) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoul(word, nullptr, 16)));
  }
  return bytes;
}

TEST(Golden, StoredFramesDecodeToTheSameValues) {
  for (const auto& [name, frame] : golden_frames()) {
    const auto path = golden_file(name);
    if (std::getenv("KVFERRY_WRITE_GOLDEN") != nullptr && !std::filesystem::exists(path)) {
      write_hex(path, encode(frame));
    }
    const auto bytes = read_hex(path);
    ASSERT_FALSE(bytes.empty()) << path;
    const auto decoded = decode(bytes);
    ASSERT_TRUE(decoded) << name << ": " << decoded.error().what;
    EXPECT_EQ(*decoded, frame) << name;
  }
}

// Bytes may change only with a reason (a newer FlatBuffers); then peers of the old build must still
// read them, which the stored values above do not prove.
TEST(Golden, EncoderStillWritesTheStoredBytes) {
  for (const auto& [name, frame] : golden_frames()) {
    EXPECT_EQ(encode(frame), read_hex(golden_file(name))) << name;
  }
}

TEST(Golden, FramesHoldEveryKind) {
  std::vector<bool> seen(std::variant_size_v<Message>);
  for (const auto& [name, frame] : golden_frames()) {
    for (const Message& message : frame.messages) {
      seen[message.index()] = true;
    }
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), false), 0);
}

}  // namespace
}  // namespace kvferry::wire
