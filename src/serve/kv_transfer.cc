#include "kvferry/kv_receiver.h"
#include "kvferry/kv_sender.h"
#include "serve/transfer.h"

namespace kvferry::serve {
namespace {

class KvPrefillRoom final : public PrefillRoom {
 public:
  KvPrefillRoom(KvManager& manager, RoomId room, Binding binding)
      : sender_(manager, room, binding) {}
  Status init(std::uint32_t page_count, std::uint32_t aux_slot) override {
    return sender_.init(page_count, aux_slot);
  }
  Status send(std::span<const PageIndex> pages) override { return sender_.send(pages); }
  KvPoll poll() const override { return sender_.poll(); }
  std::uint64_t landed_bytes() const override { return sender_.landed_bytes(); }
  std::uint32_t decode_prefix_pages() const override { return sender_.decode_prefix_pages(); }
  void abort(std::string_view reason) override { sender_.abort(reason); }
  std::optional<Failure> failure() const override { return sender_.failure(); }
  std::uint64_t id() const override { return sender_.id(); }

 private:
  KvSender sender_;
};

class KvDecodeRoom final : public DecodeRoom {
 public:
  KvDecodeRoom(KvManager& manager, RoomId room, Binding binding)
      : receiver_(manager, room, binding) {}
  Status init(std::string bootstrap_address, std::string prefill_instance) override {
    return receiver_.init(std::move(bootstrap_address), std::move(prefill_instance));
  }
  Status send_metadata(std::span<const PageIndex> pages, std::uint32_t aux_slot) override {
    return receiver_.send_metadata(pages, aux_slot);
  }
  KvPoll poll() override { return receiver_.poll(); }
  void abort(std::string_view reason) override { receiver_.abort(reason); }
  std::optional<Failure> failure() const override { return receiver_.failure(); }
  std::uint64_t id() const override { return receiver_.id(); }

 private:
  KvReceiver receiver_;
};

class KvTransfer final : public Transfer {
 public:
  explicit KvTransfer(KvManager& manager) : manager_(manager) {}
  std::unique_ptr<PrefillRoom> open_prefill(RoomId room, Binding binding) override {
    return std::make_unique<KvPrefillRoom>(manager_, room, binding);
  }
  std::unique_ptr<DecodeRoom> open_decode(RoomId room, Binding binding) override {
    return std::make_unique<KvDecodeRoom>(manager_, room, binding);
  }
  // A sender that ends before any grant is remembered by its binding, and a receiver's abort goes
  // to the senders once they are known, whether the handle is still there or not.
  void refuse(const RoomFields& room, std::string_view reason) override {
    if (manager_.args().role == Role::kPrefill) {
      open_prefill(room.room, room.binding)->abort(reason);
      return;
    }
    const auto receiver = open_decode(room.room, room.binding);
    // One that fails has failed the room, and then nobody can be told.
    (void)receiver->init(room.bootstrap_address(), room.prefill_instance);
    receiver->abort(reason);
  }
  void poll_many(std::span<const std::uint64_t> ids, std::span<KvPoll> statuses) const override {
    manager_.poll_many(ids, statuses);
  }
  std::vector<ReleasedPages> take_released() override { return manager_.take_released(); }
  int event_fd() const override { return manager_.event_fd(); }
  void drain_event_fd() override { manager_.drain_event_fd(); }
  Status write_aux(std::uint32_t aux_slot, RoomId room, Binding binding,
                   const AuxRecord& record) override {
    return manager_.write_aux(aux_slot, room, binding, record);
  }
  Result<AuxRecord> read_aux(std::uint32_t aux_slot, RoomId room, Binding binding) const override {
    return manager_.read_aux(aux_slot, room, binding);
  }
  std::vector<PairState> pairs() const override { return manager_.pairs(); }
  std::vector<MetricSample> metrics() const override { return manager_.metrics(); }
  std::string dump_status() const override { return manager_.dump_status(); }
  std::vector<ReadinessCheck> readiness() const override { return manager_.readiness(); }

 private:
  KvManager& manager_;
};

}  // namespace

std::unique_ptr<Transfer> make_kv_transfer(KvManager& manager) {
  return std::make_unique<KvTransfer>(manager);
}

}  // namespace kvferry::serve
