// What real SGLang 0.5.23 sent, read and written again byte for byte.
#include "golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace kvferry::sglang {
namespace {

class Golden : public ::testing::Test {
 protected:
  const std::vector<GoldenMessage> all_ = read_golden(KVFERRY_SGLANG_GOLDEN_DIR);
};

TEST_F(Golden, EveryKindOfEveryFlavourIsThere) {
  std::set<std::string> kinds;
  for (const GoldenMessage& message : all_) {
    kinds.insert(std::string(to_string(message.listener.flavour)) + " " + message.kind);
  }
  for (const std::string flavour : {"mooncake ", "nixl "}) {
    for (std::size_t kind = 0; kind < std::variant_size_v<Message>; ++kind) {
      const std::string name(kind_name(kind));
      const bool of_other = (name.starts_with("nixl-") && flavour == "mooncake ") ||
                            (name.starts_with("mooncake-") && flavour == "nixl ");
      // NIXL's transfers carry aux themselves, and prefill_complete is Mooncake's alone.
      const bool mooncake_only = name == "aux-data" || name == "bootstrap";
      if (!of_other && !(mooncake_only && flavour == "nixl ")) {
        EXPECT_THAT(kinds, ::testing::Contains(flavour + name));
      }
    }
  }
  for (const std::string name : {"mori status", "mori abort", "mori abort-ack", "mori aux-data"}) {
    EXPECT_THAT(kinds, ::testing::Contains(name));
  }
}

TEST_F(Golden, EachIsReadAndWrittenAgainByteForByte) {
  ASSERT_FALSE(all_.empty());
  for (const GoldenMessage& message : all_) {
    const auto decoded = decode(message.listener, message.frames);
    ASSERT_TRUE(decoded) << message.name << ": " << decoded.error().what;
    EXPECT_EQ(kind_name(*decoded), message.kind) << message.name;
    EXPECT_EQ(encode(message.listener.flavour, *decoded), message.frames) << message.name;
  }
}

// So a prefill rank needs no word of which flavour its decode ranks speak.
TEST_F(Golden, WhatPrefillHearsSaysItsOwnFlavour) {
  std::size_t heard = 0;
  for (const GoldenMessage& message : all_) {
    if (message.listener.role != Role::kPrefill) {
      continue;
    }
    const auto told = decode({flavour_at_prefill(message.frames), Role::kPrefill}, message.frames);
    ASSERT_TRUE(told) << message.name << ": " << told.error().what;
    EXPECT_EQ(*told, *decode(message.listener, message.frames)) << message.name;
    ++heard;
  }
  EXPECT_GT(heard, 20U);
  EXPECT_EQ(flavour_at_prefill({}), Flavour::kMooncake);
}

// The control of the test above: whichever byte is another one, the message is refused, or it says
// something else and is written as that. Bytes that mean nothing to a reader are counted.
TEST_F(Golden, AChangedByteIsNoticed) {
  std::size_t changes = 0;
  std::size_t unnoticed = 0;
  for (const GoldenMessage& message : all_) {
    const auto original = decode(message.listener, message.frames);
    ASSERT_TRUE(original) << message.name;
    for (std::size_t frame = 0; frame < message.frames.size(); ++frame) {
      for (std::size_t at = 0; at < message.frames[frame].size(); ++at) {
        Frames changed = message.frames;
        changed[frame][at] ^= 1U;
        const auto decoded = decode(message.listener, changed);
        ++changes;
        if (decoded && *decoded == *original) {
          ++unnoticed;
          ADD_FAILURE() << message.name << ", frame " << frame << ", byte " << at;
        }
        if (decoded) {
          EXPECT_NE(encode(message.listener.flavour, *decoded), message.frames) << message.name;
        }
      }
    }
  }
  EXPECT_GT(changes, 1'000U);
  EXPECT_EQ(unnoticed, 0U);
}

TEST_F(Golden, WhatTheCaptureKnewIsWhatIsRead) {
  const auto find = [&](const std::string& name) {
    for (const GoldenMessage& message : all_) {
      if (message.name == name) {
        return *decode(message.listener, message.frames);
      }
    }
    ADD_FAILURE() << name << " is missing";
    return Message{};
  };
  const auto metadata = std::get<MooncakeMetadata>(find("mooncake-metadata"));
  EXPECT_EQ(metadata.target.room, RoomId(42));
  EXPECT_THAT(metadata.target.pages,
              ::testing::ElementsAre(PageIndex(5), PageIndex(6), PageIndex(7)));
  EXPECT_EQ(metadata.aux_index, 3U);
  EXPECT_FALSE(metadata.is_dummy());

  const auto dummy = std::get<MooncakeMetadata>(find("mooncake-metadata-dummy"));
  EXPECT_TRUE(dummy.is_dummy());
  EXPECT_EQ(dummy.target.room, RoomId(kMaxRoom));

  const auto hit = std::get<MooncakeMetadata>(find("mooncake-metadata-prefix-hit"));
  EXPECT_FALSE(hit.is_dummy());
  EXPECT_EQ(hit.target.prefix_tokens, 128U);

  const auto state = std::get<MooncakeMetadata>(find("mooncake-metadata-state"));
  EXPECT_EQ(state.target.state_indices, (PerComponent<std::uint32_t>{{2}, {8, 9, 10}}));

  const auto registration = std::get<MooncakeRegistration>(find("mooncake-registration"));
  EXPECT_EQ(registration.memory.kv_pointers.size(), 4U);
  EXPECT_EQ(registration.memory.aux_pointers.size(), 7U);
  EXPECT_EQ(registration.memory.kv_item_bytes, 256U);
  EXPECT_EQ(registration.memory.kv_item_bytes_of, std::vector<std::uint64_t>(4, 256));

  const auto with_ring = std::get<MooncakeRegistration>(find("mooncake-registration-staging"));
  EXPECT_EQ(with_ring.memory.staging, (StagingRing{0x7F00'0000'1000, 1ULL << 32, {0, 1}}));

  const auto nixl = std::get<NixlRegistration>(find("nixl-registration"));
  EXPECT_EQ(nixl.agent.size(), 36U);
  EXPECT_EQ(nixl.kv_memory_kinds, std::vector<NixlMemory>(4, NixlMemory::kDram));
  EXPECT_EQ(nixl.kv_slots, 32U);

  EXPECT_EQ(std::get<RoomStatus>(find("nixl-failed")),
            (RoomStatus{RoomId(43), KvPoll::kFailed, 0, "made up"}));
  EXPECT_TRUE(std::get<AbortRoom>(find("abort-armed")).generation.has_value());
  EXPECT_FALSE(std::get<AbortRoom>(find("abort-unarmed")).generation.has_value());
  EXPECT_EQ(std::get<AuxData>(find("aux-data")).bytes, Frame(64, 1));
  EXPECT_EQ(std::get<StagingResponse>(find("mooncake-staging-rsp-oversized")).offset,
            StagingResponse::kOversized);
}

}  // namespace
}  // namespace kvferry::sglang
