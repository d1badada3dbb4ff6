// What a stock SGLang decode rank says, in either flavour, and the real core of a prefill rank with
// the translator as its link.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dialect/sglang/prefill_translator.h"
#include "translator_rig.h"

namespace kvferry::sglang {

inline constexpr std::uint64_t kItemBytes = 64;
inline constexpr std::uint32_t kPages = 32;
inline constexpr std::uint32_t kPrefillRank = 5;
inline constexpr std::uint16_t kFirstPort = 41'235;
inline constexpr RegionId kAuxRegion{2};

// In a storm each decode rank has four rooms of two pages, which no other has.
inline constexpr std::uint32_t kStormRanks = 4;
inline constexpr std::uint32_t kStormRooms = 4;
inline std::vector<std::uint32_t> storm_pages(std::uint32_t rank, std::uint32_t room) {
  const std::uint32_t first = 2 * (rank * kStormRooms + room % kStormRooms);
  return {first, first + 1};
}

inline wire::Introduction prefill_self() {
  wire::Introduction self = rig_introduction(Role::kPrefill);
  LayoutShape& layout = self.layout;
  layout.total_kv_heads = 1;
  layout.heads = {0, 1};
  layout.regions = {{RegionKind::kKey, 0, kItemBytes, kPages, MemoryKind::kHost},
                    {RegionKind::kValue, 0, kItemBytes, kPages, MemoryKind::kHost},
                    {RegionKind::kAux, 0, kAuxRecordBytes, 8, MemoryKind::kHost}};
  self.transports = {{"raw", {}}};
  return self;
}

// Both in the form that the flavours have in common; the rig says them in its own.
inline DecodeRank registration(std::string session = "10.0.0.2:15003",
                               std::uint16_t port = kFirstPort) {
  DecodeRank out;
  out.name.second = std::move(session);
  out.endpoint = {"10.0.0.2", port};
  out.memory.kv_pointers = {0x1000, 0x2000};
  out.memory.aux_pointers = {0x3000};
  out.memory.kv_item_bytes = kItemBytes;
  return out;
}

inline RoomRequest metadata(std::uint64_t room, std::vector<std::uint32_t> pages = {5, 6}) {
  RoomRequest out;
  out.name.second = "10.0.0.2:15003";
  out.target.room = RoomId(room);
  out.target.endpoint = {"10.0.0.2", kFirstPort};
  for (const std::uint32_t page : pages) {
    out.target.pages.emplace_back(page);
  }
  out.aux_index = 3;
  return out;
}

inline Message to_message(Flavour flavour, const DecodeRank& rank) {
  if (flavour == Flavour::kMooncake) {
    return MooncakeRegistration{
        rank.endpoint, rank.name.second, rank.memory, rank.tp_rank, rank.tp_size, rank.dcp_size, 0};
  }
  NixlRegistration out;
  out.endpoint = rank.endpoint;
  out.agent = rank.name.second;
  out.memory = rank.memory;
  out.tp_rank = rank.tp_rank;
  out.tp_size = rank.tp_size;
  out.dcp_size = rank.dcp_size;
  out.kv_slots = rank.kv_pages;
  out.kv_memory_kinds.assign(rank.memory.kv_pointers.size(), NixlMemory::kDram);
  std::fill_n(out.kv_memory_kinds.begin(), rank.vram_buffers, NixlMemory::kVram);
  return out;
}

inline Message to_message(Flavour flavour, const RoomRequest& request) {
  if (flavour == Flavour::kMooncake) {
    MooncakeMetadata out{request.target, request.name.second, request.aux_index, {}};
    if (request.is_dummy) {
      out.target.pages.clear();
      out.aux_index.reset();
    }
    return out;
  }
  return NixlMetadata{request.target, request.name.second, request.aux_index.value_or(0),
                      request.is_dummy};
}

inline AbortRoom abort_of(std::uint64_t room, std::optional<std::uint64_t> generation = 9) {
  return {RoomId(room), RankEndpoint{"10.0.0.2", kFirstPort}, generation};
}

// The core, its caller and its transport, with the translator as its link.
class Rig final : public TranslatorRig {
 public:
  explicit Rig(Flavour spoken, const PrefillTranslatorConfig& configured = config())
      : TranslatorRig(translator_), flavour(spoken), translator_(configured) {
    protocol_ = core::make_prefill_protocol(
        {Options{}, configured.self, core::TransportClass{false, false, false}}, *this);
  }

  // --- SGLang's side ---
  static PrefillTranslatorConfig config() {
    PrefillTranslatorConfig out;
    out.self = prefill_self();
    out.prefill_rank = kPrefillRank;
    out.reach = [](const DecodeRank& rank) -> Result<wire::TransportOffer> {
      if (rank.memory.aux_pointers.empty()) {
        return fail(FailureCode::kInvalidArgument, "no aux buffer");
      }
      return wire::TransportOffer{"raw", process};
    };
    return out;
  }
  // The process that the decode rank is, as far as the transport can tell.
  static inline std::vector<std::uint8_t> process{1};

  void hear(const DecodeRank& rank) {
    spoken_[to_text(rank.endpoint)] = flavour;
    translator_.handle(to_message(flavour, rank));
  }
  void hear(const RoomRequest& request) {
    spoken_.try_emplace(to_text(request.target.endpoint), flavour);
    translator_.handle(to_message(flavour, request));
  }
  void hear(const Message& message) { translator_.handle(message); }
  template <typename Said>
  void arrive(const Said& said) {
    hear(said);
    run();
  }
  void lose_endpoint(const RankEndpoint& endpoint) {
    translator_.handle_endpoint_lost(endpoint);
    run();
  }
  // --- the caller's side ---
  SenderId open(std::uint64_t room) {
    const SenderId sender(next_sender_++);
    give(core::SenderOpened{sender, RoomId(room), Binding{}});
    return sender;
  }
  SenderId send(std::uint64_t room, std::vector<std::uint32_t> pages = {1, 2}) {
    const SenderId sender = open(room);
    give(core::SenderInitialized{sender, static_cast<std::uint32_t>(pages.size()), 0});
    core::ChunkGiven chunk{sender, {}, {}};
    for (const std::uint32_t page : pages) {
      chunk.pages.emplace_back(page);
    }
    give(std::move(chunk));
    return sender;
  }
  KvPoll status(SenderId sender) const { return status_of(sender.value()); }
  std::string cause(SenderId sender) const { return causes_.at(sender.value()); }

  // --- the transport's side ---
  struct Posted {
    SessionEpoch session;
    layout::Write write;
  };
  const std::vector<Posted>& posted() const { return posted_; }
  // The first `most` of the posted writes end.
  void finish_writes(layout::WriteOutcome outcome = layout::WriteOutcome::kLanded,
                     std::size_t most = std::numeric_limits<std::size_t>::max()) {
    const auto end = posted_.begin() + static_cast<std::ptrdiff_t>(std::min(most, posted_.size()));
    const std::vector<Posted> ended(posted_.begin(), end);
    posted_.erase(posted_.begin(), end);
    core::WritesCompleted completed;
    for (const Posted& each : ended) {
      completed.completions.push_back({each.session, each.write.ticket, outcome, false});
    }
    if (outcome == layout::WriteOutcome::kUnknown) {
      unknown_.insert(unknown_.end(), ended.begin(), ended.end());
    }
    give(std::move(completed));
  }
  void become_quiet() {
    for (const Posted& each : std::exchange(unknown_, {})) {
      give(core::WritesQuiet{each.session, {each.write.ticket}});
    }
  }

  PrefillTranslator& translator() { return translator_; }
  // Nothing runs for so long; then a turn comes, as the link and the driver take it.
  void sleep(Duration time) {
    now_ = now_ + time;
    translator_.advance(now_);
    run();
  }
  const std::vector<PeerAddress>& dialled() const { return dialled_; }
  std::size_t acks() const { return acks_; }

  void publish_prefix(SenderId, std::uint32_t pages) override { prefix_pages_ = pages; }
  void dial_peer(core::DialPeer dial) override {
    dialled_.push_back(dial.address);
    TranslatorRig::dial_peer(std::move(dial));
  }
  void post_writes(core::PostWrites post) override {
    for (const layout::Write& write : post.writes) {
      posted_.push_back({post.session, write});
    }
  }

  Flavour flavour;  // in which decode ranks are heard from here on
  std::uint32_t prefix_pages_ = 0;

 private:
  // As text: "room 1 success", "ack room 1 generation 9".
  void deliver(ToEndpoint& to) override {
    EXPECT_EQ(to.endpoint.ip, "10.0.0.2");
    EXPECT_EQ(to.flavour, spoken_.at(to_text(to.endpoint)));
    if (const auto* status = std::get_if<RoomStatus>(&to.message)) {
      EXPECT_EQ(status->prefill_rank, kPrefillRank);
      sent(fmt::format("room {} {}", status->room.value(),
                       status->status == KvPoll::kSuccess
                           ? "success"
                           : fmt::format("failed: {}", status->reason)));
    } else if (const auto* ack = std::get_if<AbortAck>(&to.message)) {
      EXPECT_EQ(ack->prefill_rank, kPrefillRank);
      expect_quiet(to.endpoint, ack->room);
      ++acks_;
      sent(
          fmt::format("ack room {} generation {}", ack->room.value(), ack->generation.value_or(0)));
    } else {
      sent(std::string(kind_name(to.message)));
    }
  }
  // What an acknowledgement says: nothing writes to the room's pages any more.
  void expect_quiet(const RankEndpoint& endpoint, RoomId room) const {
    const std::vector<std::uint32_t> pages =
        storm_pages(endpoint.port - kFirstPort, static_cast<std::uint32_t>(room.value()));
    for (const auto* unfinished : {&posted_, &unknown_}) {
      for (const Posted& each : *unfinished) {
        EXPECT_TRUE(each.write.target_region == kAuxRegion ||
                    !std::ranges::count(pages, each.write.target_item))
            << "page " << each.write.target_item << " of room " << room.value();
      }
    }
  }
  void hold(const RankEndpoint& endpoint) override { EXPECT_EQ(endpoint.ip, "10.0.0.2"); }
  PrefillTranslator translator_;
  std::map<std::string, Flavour> spoken_;  // at each endpoint
  std::vector<Posted> posted_;
  std::vector<Posted> unknown_;
  std::uint64_t next_sender_ = 1;
  std::vector<PeerAddress> dialled_;
  std::size_t acks_ = 0;
};

class EitherFlavour : public ::testing::TestWithParam<Flavour> {
 protected:
  Rig rig_{GetParam()};
};

inline std::string name_of(const ::testing::TestParamInfo<Flavour>& flavour) {
  return std::string(to_string(flavour.param));
}
inline constexpr auto kServedFlavours = {Flavour::kMooncake, Flavour::kNixl};

}  // namespace kvferry::sglang
