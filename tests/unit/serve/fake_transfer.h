// A transfer layer within one process: what a prefill side sends is copied at once into the granted
// pages of the decode side. Statuses, ownership and releases follow KvSender and KvReceiver.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>

#include "serve/page_pool.h"
#include "serve/transfer.h"
#include "serve/wake_fd.h"

namespace kvferry::serve {

class FakeTransfer;

struct FakeWire {
  struct Side {
    bool open = false;
    std::uint64_t id = 0;
    KvPoll status = KvPoll::kBootstrapping;
    std::optional<Failure> failure;
    std::vector<PageIndex> pages;  // decode: granted; prefill: sent
    std::int64_t aux_slot = -1;
  };
  struct Room {
    Side prefill;
    Side decode;
    std::uint32_t page_count = 0;
    std::uint64_t landed = 0;
    AuxRecord aux;
  };
  using Key = std::pair<RoomId, Binding>;

  std::mutex mutex;
  std::map<Key, Room> rooms;
  std::uint64_t next_id = 1;
  FakeTransfer* prefill = nullptr;
  FakeTransfer* decode = nullptr;
};

class FakeTransfer final : public Transfer {
 public:
  FakeTransfer(FakeWire& wire, Role role, PagePool& pool) : wire_(wire), role_(role), pool_(pool) {
    (role == Role::kPrefill ? wire.prefill : wire.decode) = this;
  }

  std::unique_ptr<PrefillRoom> open_prefill(RoomId room, Binding binding) override;
  std::unique_ptr<DecodeRoom> open_decode(RoomId room, Binding binding) override;

  void poll_many(std::span<const std::uint64_t> ids, std::span<KvPoll> statuses) const override {
    std::lock_guard lock(wire_.mutex);
    for (std::size_t index = 0; index < ids.size(); ++index) {
      statuses[index] = KvPoll::kFailed;
      for (auto& [key, room] : wire_.rooms) {
        const auto& side = role_ == Role::kPrefill ? room.prefill : room.decode;
        if (side.open && side.id == ids[index]) {
          statuses[index] = side.status;
        }
      }
    }
  }
  std::vector<ReleasedPages> take_released() override {
    std::lock_guard lock(wire_.mutex);
    return std::exchange(released_, {});
  }
  int event_fd() const override { return event_.fd(); }
  void drain_event_fd() override { event_.lower(); }
  Status write_aux(std::uint32_t, RoomId room, Binding binding, const AuxRecord& record) override {
    std::lock_guard lock(wire_.mutex);
    wire_.rooms[{room, binding}].aux = record;
    return {};
  }
  Result<AuxRecord> read_aux(std::uint32_t, RoomId room, Binding binding) const override {
    std::lock_guard lock(wire_.mutex);
    return wire_.rooms[{room, binding}].aux;
  }
  void refuse(const RoomFields& fields, std::string_view reason) override {
    std::lock_guard lock(wire_.mutex);
    fail_room(wire_, {fields.room, fields.binding},
              {FailureCode::kAborted, FailureWhere::kPeer, std::string(reason), {}, -1});
  }
  std::vector<PairState> pairs() const override { return {{"127.0.0.1:1", "p0", true, "", 5}}; }
  std::vector<MetricSample> metrics() const override {
    return {{"quarantined_pages", "", 0, false}, {"rooms_total", "outcome=\"success\"", 3, true}};
  }
  std::string dump_status() const override { return R"({"rooms":[]})"; }
  std::vector<ReadinessCheck> readiness() const override { return checks; }

  std::vector<ReadinessCheck> checks;

 private:
  friend class FakePrefillRoom;
  friend class FakeDecodeRoom;

  // Under the wire's mutex.
  void release(const FakeWire::Key& key, FakeWire::Side& side) {
    if (!side.pages.empty() || side.aux_slot >= 0) {
      released_.push_back(
          {side.id, key.first, key.second, std::move(side.pages), side.aux_slot, {}});
      side.pages.clear();
      side.aux_slot = -1;
    }
    event_.raise();
  }
  static void fail_room(FakeWire& wire, const FakeWire::Key& key, const Failure& cause) {
    auto& room = wire.rooms[key];
    for (auto* side : {&room.prefill, &room.decode}) {
      if (!is_terminal(side->status)) {
        side->status = KvPoll::kFailed;
        side->failure = cause;
        auto* transfer = side == &room.prefill ? wire.prefill : wire.decode;
        if (transfer != nullptr) {
          transfer->release(key, *side);
        }
      }
    }
  }

  FakeWire& wire_;
  const Role role_;
  PagePool& pool_;
  WakeFd event_;
  std::vector<ReleasedPages> released_;
};

class FakePrefillRoom final : public PrefillRoom {
 public:
  FakePrefillRoom(FakeTransfer& transfer, FakeWire::Key key) : transfer_(transfer), key_(key) {
    std::lock_guard lock(wire().mutex);
    room().prefill.open = true;
    room().prefill.id = wire().next_id++;
  }
  ~FakePrefillRoom() override {
    std::lock_guard lock(wire().mutex);
    FakeTransfer::fail_room(wire(), key_,
                            {FailureCode::kAborted, FailureWhere::kPeer, "dropped", {}, -1});
    room().prefill.open = false;
  }
  Status init(std::uint32_t page_count, std::uint32_t aux_slot) override {
    std::lock_guard lock(wire().mutex);
    room().prefill.aux_slot = aux_slot;
    room().page_count = page_count;
    join();
    return {};
  }
  Status send(std::span<const PageIndex> pages) override {
    std::lock_guard lock(wire().mutex);
    auto& at = room();
    if (at.prefill.status != KvPoll::kWaitingForInput &&
        at.prefill.status != KvPoll::kTransferring) {
      return fail(FailureCode::kWrongState, "not granted");
    }
    at.prefill.status = at.decode.status = KvPoll::kTransferring;
    for (const PageIndex page : pages) {
      const auto from = transfer_.pool_.page(page);
      const auto to = wire().decode->pool_.page(at.decode.pages.at(at.prefill.pages.size()));
      const std::size_t bytes = transfer_.pool_.regions()[0].item_bytes;
      for (std::size_t region = 0; region < from.size(); ++region) {
        std::copy_n(from[region], bytes, to[region]);
      }
      at.landed += bytes * from.size();
      at.prefill.pages.push_back(page);
    }
    if (at.prefill.pages.size() == at.page_count) {
      at.prefill.status = at.decode.status = KvPoll::kSuccess;
      transfer_.release(key_, at.prefill);
    }
    wire().decode->event_.raise();
    return {};
  }
  KvPoll poll() const override {
    std::lock_guard lock(wire().mutex);
    return room().prefill.status;
  }
  std::uint64_t landed_bytes() const override {
    std::lock_guard lock(wire().mutex);
    return room().landed;
  }
  std::uint32_t decode_prefix_pages() const override { return 0; }
  void abort(std::string_view reason) override {
    std::lock_guard lock(wire().mutex);
    FakeTransfer::fail_room(
        wire(), key_, {FailureCode::kAborted, FailureWhere::kLocal, std::string(reason), {}, -1});
  }
  std::optional<Failure> failure() const override {
    std::lock_guard lock(wire().mutex);
    return room().prefill.failure;
  }
  std::uint64_t id() const override {
    std::lock_guard lock(wire().mutex);
    return room().prefill.id;
  }

 private:
  FakeWire& wire() const { return transfer_.wire_; }
  FakeWire::Room& room() const { return wire().rooms[key_]; }
  void join() {
    if (room().decode.open && !room().decode.pages.empty() &&
        room().prefill.status == KvPoll::kBootstrapping) {
      room().prefill.status = KvPoll::kWaitingForInput;
    }
  }

  FakeTransfer& transfer_;
  const FakeWire::Key key_;
};

class FakeDecodeRoom final : public DecodeRoom {
 public:
  FakeDecodeRoom(FakeTransfer& transfer, FakeWire::Key key) : transfer_(transfer), key_(key) {
    std::lock_guard lock(wire().mutex);
    room().decode.open = true;
    room().decode.id = wire().next_id++;
  }
  ~FakeDecodeRoom() override {
    std::lock_guard lock(wire().mutex);
    FakeTransfer::fail_room(wire(), key_,
                            {FailureCode::kAborted, FailureWhere::kPeer, "dropped", {}, -1});
    if (!read_success_) {
      transfer_.release(key_, room().decode);
    }
    room().decode.open = false;
  }
  Status init(std::string, std::string) override { return {}; }
  Status send_metadata(std::span<const PageIndex> pages, std::uint32_t aux_slot) override {
    std::lock_guard lock(wire().mutex);
    auto& at = room();
    at.decode.pages.assign(pages.begin(), pages.end());
    at.decode.aux_slot = aux_slot;
    at.decode.status = KvPoll::kWaitingForInput;
    if (at.prefill.open && at.prefill.status == KvPoll::kBootstrapping) {
      at.prefill.status = KvPoll::kWaitingForInput;
      wire().prefill->event_.raise();
    }
    return {};
  }
  KvPoll poll() override {
    std::lock_guard lock(wire().mutex);
    read_success_ = read_success_ || room().decode.status == KvPoll::kSuccess;
    return room().decode.status;
  }
  void abort(std::string_view reason) override {
    std::lock_guard lock(wire().mutex);
    FakeTransfer::fail_room(
        wire(), key_, {FailureCode::kAborted, FailureWhere::kLocal, std::string(reason), {}, -1});
  }
  std::optional<Failure> failure() const override {
    std::lock_guard lock(wire().mutex);
    return room().decode.failure;
  }
  std::uint64_t id() const override {
    std::lock_guard lock(wire().mutex);
    return room().decode.id;
  }

 private:
  FakeWire& wire() const { return transfer_.wire_; }
  FakeWire::Room& room() const { return wire().rooms[key_]; }

  FakeTransfer& transfer_;
  const FakeWire::Key key_;
  bool read_success_ = false;
};

inline std::unique_ptr<PrefillRoom> FakeTransfer::open_prefill(RoomId room, Binding binding) {
  return std::make_unique<FakePrefillRoom>(*this, FakeWire::Key{room, binding});
}
inline std::unique_ptr<DecodeRoom> FakeTransfer::open_decode(RoomId room, Binding binding) {
  return std::make_unique<FakeDecodeRoom>(*this, FakeWire::Key{room, binding});
}

}  // namespace kvferry::serve
