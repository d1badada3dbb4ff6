// The core of a decode rank with the translator as its link: no sockets, virtual time. What
// SGLang's side hears is kept as text; what it says is given to arrive().
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dialect/sglang/decode_translator.h"
#include "translator_rig.h"
#include "wire/aux_record.h"

namespace kvferry::sglang {

inline constexpr std::uint32_t kRigPages = 32;
inline constexpr std::uint32_t kRigAuxSlots = 8;
inline constexpr std::uint16_t kRigFirstPort = 7'000;

// Sizes of the two engines; 4 KV heads, one layer.
struct RigShape {
  std::uint32_t prefill_tp = 1;
  std::uint32_t decode_tp = 1;
  bool latents = false;
  bool nixl = false;
};

class DecodeRig final : public TranslatorRig {
 public:
  explicit DecodeRig(RigShape shape = {})
      : TranslatorRig(translator_),
        shape_(shape),
        aux_memory_(std::size_t{kRigAuxSlots} * kAuxRecordBytes),
        shadow_(*AuxShadow::make({RegionKind::kAux, 0, aux_memory_.data(), kAuxRecordBytes,
                                  kRigAuxSlots, MemoryKind::kHost},
                                 {{64, 64, 64, 64, 64}, false})),
        translator_({self(shape), registration(shape.nixl),
                     [this](const PrefillRank& rank) { return reach(rank); }},
                    *shadow_) {
    protocol_ = core::make_decode_protocol(
        {options(), self(shape), core::TransportClass{false, false, false}}, *this);
    for (std::uint32_t rank = 0; rank < shape.prefill_tp; ++rank) {
      PrefillRank prefill;
      prefill.endpoint = endpoint(rank);
      prefill.registry = "10.0.0.9:8998";
      prefill.shape.tp_size = shape.prefill_tp;
      prefill.place.tp_rank = rank;
      prefill.page_tokens = 16;
      prefills.push_back(prefill);
    }
  }

  static Options options() {
    Options out;
    // Virtual peers are asked whether they live, and answer; the rig goes through hours.
    out.transfer_timeout_ms = 3'600'000;
    return out;
  }
  static RankEndpoint endpoint(std::uint32_t rank) {
    return {"10.0.0.9", static_cast<std::uint16_t>(kRigFirstPort + rank)};
  }
  Result<wire::TransportOffer> reach(const PrefillRank&) const {
    if (!is_reachable) {
      return fail(FailureCode::kPeerUnreachable, "nobody on this host listens there");
    }
    return wire::TransportOffer{"process-vm", {}};
  }
  static RankEndpoint own_endpoint() { return {"10.0.0.2", 41'235}; }
  static Registration registration(bool nixl) {
    if (nixl) {
      NixlRegistration out;
      out.endpoint = own_endpoint();
      out.agent = "agent";
      return out;
    }
    MooncakeRegistration out;
    out.endpoint = own_endpoint();
    out.session = "10.0.0.2:15003";
    return out;
  }
  static wire::Introduction self(const RigShape& shape) {
    wire::Introduction self = rig_introduction(Role::kDecode);
    LayoutShape& layout = self.layout;
    layout.total_kv_heads = 4;
    layout.rank.tp_size = shape.decode_tp;
    const std::uint32_t heads = shape.latents ? 4 : 4 / shape.decode_tp;
    layout.heads = {0, heads};
    const std::uint64_t bytes = std::uint64_t{16} * heads * 4;
    if (shape.latents) {
      layout.regions = {{RegionKind::kOther, 0, bytes, kRigPages, MemoryKind::kHost}};
    } else {
      layout.regions = {{RegionKind::kKey, 0, bytes, kRigPages, MemoryKind::kHost},
                        {RegionKind::kValue, 0, bytes, kRigPages, MemoryKind::kHost}};
    }
    layout.regions.push_back(
        {RegionKind::kAux, 0, kAuxRecordBytes, kRigAuxSlots, MemoryKind::kHost});
    self.transports = {{"process-vm", {}}};
    return self;
  }

  // --- SGLang's side ---
  void arrive(const Message& message) {
    translator_.handle(message);
    run();
  }
  void connect(std::uint32_t rank) {
    translator_.handle_endpoint_up(endpoint(rank));
    run();
  }
  void lose(std::uint32_t rank) {
    up_.erase(to_text(endpoint(rank)));
    translator_.handle_endpoint_lost(endpoint(rank));
    run();
  }
  // As prefill does before it says success.
  void write_aux(std::uint32_t slot, std::uint64_t room, std::int32_t token = 42) {
    const std::vector<std::uint64_t> buffers = shadow_->pointers();
    std::memcpy(reinterpret_cast<std::byte*>(buffers.front()) + std::size_t{slot} * 64, &token,
                sizeof(token));
    std::memcpy(reinterpret_cast<std::byte*>(buffers.back()) + std::size_t{slot} * 64, &room,
                sizeof(room));
  }
  void succeed(std::uint64_t room, std::uint32_t rank = 0) {
    arrive(RoomStatus{RoomId(room), KvPoll::kSuccess, rank, {}});
  }
  void acknowledge(std::uint64_t room, std::uint64_t generation, std::uint32_t rank = 0) {
    arrive(AbortAck{RoomId(room), rank, generation});
  }
  // --- the caller's side ---
  core::ReceiverId open(std::uint64_t room) {
    const core::ReceiverId receiver(next_receiver_++);
    give(core::ReceiverOpened{receiver, RoomId(room), Binding{}});
    give(core::PrefillNamed{receiver, "10.0.0.9:8998", "", 0});
    return receiver;
  }
  core::ReceiverId grant(std::uint64_t room, std::vector<std::uint32_t> pages = {5, 6},
                         std::int64_t aux_slot = 3, std::uint32_t prefix_pages = 0) {
    const core::ReceiverId receiver = open(room);
    give_metadata(receiver, std::move(pages), aux_slot, prefix_pages);
    return receiver;
  }
  void give_metadata(core::ReceiverId receiver, std::vector<std::uint32_t> pages = {5, 6},
                     std::int64_t aux_slot = 3, std::uint32_t prefix_pages = 0) {
    core::MetadataGiven given;
    given.receiver = receiver;
    for (const std::uint32_t page : pages) {
      given.pages.emplace_back(page);
    }
    given.aux_slot = aux_slot;
    given.decode_prefix_pages = prefix_pages;
    give(std::move(given));
  }
  void abort(core::ReceiverId receiver) {
    give(core::ReceiverAborted{
        receiver, Failure{FailureCode::kAborted, FailureWhere::kLocal, "the client left", {}, 0}});
  }
  KvPoll status(core::ReceiverId receiver) const { return status_of(receiver.value()); }
  std::string cause(core::ReceiverId receiver) const { return causes_.at(receiver.value()); }
  // Pages of failed rooms that are free again.
  std::vector<std::uint32_t> take_released() { return std::exchange(released_, {}); }
  AuxRecord record(std::uint32_t slot, std::uint64_t room) const {
    const auto read = wire::decode_aux(aux_bytes(slot), RoomId(room), Binding{}, 0);
    EXPECT_TRUE(read) << read.error().what;
    return read.value_or(AuxRecord{});
  }

  // --- time: whatever falls due on the way is done ---
  void pass(Duration duration) {
    const Instant end = now_ + duration;
    while (true) {
      const Instant due = std::min(protocol_->next_deadline(),
                                   translator_.next_deadline().value_or(Instant::max()));
      now_ = std::max(now_, std::min(due, end));
      translator_.advance(now_);
      run();
      if (now_ >= end) {
        return;
      }
    }
  }

  // As a process that is stopped: nothing happens, then all at once.
  void stand_still(Duration duration) {
    now_ = now_ + duration;
    for (int turn = 0; turn < 2; ++turn) {
      translator_.advance(now_);
      run();
    }
  }

  DecodeTranslator& translator() { return translator_; }
  // ActionSink
  bool publish_terminal(std::uint64_t owner, KvPoll status,
                        const std::optional<Failure>& failure) override {
    TranslatorRig::publish_terminal(owner, status, failure);
    if (on_terminal) {
      on_terminal(core::ReceiverId(owner), status);
    }
    return true;
  }
  void release_pages(core::ReleasePages released) override {
    for (const PageIndex page : released.pages) {
      released_.push_back(page.value());
    }
    if (on_release) {
      on_release(released);
    }
  }
  void resolve_prefill(core::ResolvePrefill query) override {
    std::vector<core::PeerRow> rows;
    for (const PrefillRank& prefill : prefills) {
      core::PeerRow row;
      row.address = to_address(prefill);
      rows.push_back(std::move(row));
    }
    happened(core::PrefillResolved{query.receiver, std::move(rows)});
  }
  Status inspect_aux(std::uint32_t slot, RoomId room, Binding binding) override {
    return wire::decode_aux(aux_bytes(slot), room, binding, 0).map([](const AuxRecord&) {});
  }

  std::vector<PrefillRank> prefills;  // what a question is answered with
  bool connects = true;               // endpoints come up at once
  bool is_reachable = true;
  std::function<void(core::ReceiverId, KvPoll)> on_terminal;
  std::function<void(const core::ReleasePages&)> on_release;
  std::function<void(std::uint32_t rank, const Message&)> on_message;

 private:
  std::span<const std::byte> aux_bytes(std::uint32_t slot) const {
    return std::span(aux_memory_).subspan(std::size_t{slot} * kAuxRecordBytes, kAuxRecordBytes);
  }
  // "7000 metadata room 1 pages [5, 6] aux 3", "7000 abort room 1 generation 1".
  void deliver(ToEndpoint& to) override {
    EXPECT_EQ(to.endpoint.ip, "10.0.0.9");
    EXPECT_TRUE(held_.contains(to_text(to.endpoint)));
    come_up(to.endpoint);
    if (on_message) {
      on_message(to.endpoint.port - kRigFirstPort, to.message);
    }
    sent(fmt::format("{} {}", to.endpoint.port, text_of(to.message)));
  }
  static std::string text_of(const Message& message) {
    if (const auto* metadata = std::get_if<MooncakeMetadata>(&message)) {
      EXPECT_EQ(metadata->session, "10.0.0.2:15003");
      return text_of(metadata->target, metadata->is_dummy(), metadata->aux_index);
    }
    if (const auto* metadata = std::get_if<NixlMetadata>(&message)) {
      EXPECT_EQ(metadata->agent, "agent");
      return text_of(metadata->target, metadata->is_dummy, metadata->aux_index);
    }
    if (const auto* abort = std::get_if<AbortRoom>(&message)) {
      EXPECT_EQ(abort->endpoint, own_endpoint());
      return fmt::format(
          "abort room {}{}", abort->room.value(),
          abort->generation ? fmt::format(" generation {}", *abort->generation) : "");
    }
    return std::string(kind_name(message));
  }
  static std::string text_of(const RoomTarget& target, bool is_dummy,
                             std::optional<std::uint32_t> aux) {
    EXPECT_EQ(target.endpoint, own_endpoint());
    std::vector<std::uint32_t> pages;
    for (const PageIndex page : target.pages) {
      pages.push_back(page.value());
    }
    std::string text = is_dummy ? fmt::format("dummy room {}", target.room.value())
                                : fmt::format("metadata room {} pages {} aux {}",
                                              target.room.value(), pages, aux.value_or(999));
    text += target.prefix_tokens > 0 ? fmt::format(" prefix {}", target.prefix_tokens) : "";
    return text + (target.decode_ranks > 1 ? fmt::format(" of {}", target.decode_ranks) : "");
  }
  void hold(const RankEndpoint& endpoint) override {
    held_.insert(to_text(endpoint));
    come_up(endpoint);
  }
  void come_up(const RankEndpoint& endpoint) {
    if (connects && up_.insert(to_text(endpoint)).second) {
      order([this, endpoint] { translator_.handle_endpoint_up(endpoint); });
    }
  }
  void leave(const RankEndpoint& endpoint) override {
    EXPECT_EQ(held_.erase(to_text(endpoint)), 1U);
    up_.erase(to_text(endpoint));
  }

  const RigShape shape_;
  std::vector<std::byte> aux_memory_;
  std::unique_ptr<AuxShadow> shadow_;
  DecodeTranslator translator_;
  std::set<std::string> up_;
  std::set<std::string> held_;
  std::vector<std::uint32_t> released_;
  std::uint64_t next_receiver_ = 1;
};

}  // namespace kvferry::sglang
