// A prefill and a decode process in one, over loopback with CURVE and tcp, with a registry of their
// own. Memory is real bytes, so that a test compares what arrived with what was sent.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kvferry/bootstrap_server.h"
#include "kvferry/kv_manager.h"
#include "kvferry/kv_receiver.h"
#include "kvferry/kv_sender.h"
#include "support/await.h"
#include "temp_file.h"

namespace kvferry::test {

inline constexpr std::uint32_t kLayers = 2;
inline constexpr std::uint32_t kAuxSlots = 256;
inline constexpr std::uint32_t kPages = 1'024;

// Pools of one rank: K and V per layer, and aux.
class Pools {
 public:
  explicit Pools(std::uint32_t page_size_tokens) : item_bytes_(page_size_tokens * 2 * 8 * 2) {
    for (std::uint32_t i = 0; i < kLayers * 2; ++i) {
      memory_.emplace_back(std::size_t{item_bytes_} * kPages);
    }
    memory_.emplace_back(std::size_t{kAuxRecordBytes} * kAuxSlots);
  }

  std::vector<Region> regions() {
    std::vector<Region> regions;
    for (std::uint32_t i = 0; i < kLayers * 2; ++i) {
      regions.push_back({i < kLayers ? RegionKind::kKey : RegionKind::kValue, i % kLayers,
                         memory_[i].data(), item_bytes_, kPages, MemoryKind::kHost});
    }
    regions.push_back({RegionKind::kAux, 0, memory_.back().data(), kAuxRecordBytes, kAuxSlots,
                       MemoryKind::kHost});
    return regions;
  }
  std::span<std::byte> page(std::uint32_t region, PageIndex page) {
    return std::span(memory_[region]).subspan(std::size_t{page.value()} * item_bytes_, item_bytes_);
  }
  // Bytes that only this page of this room has.
  void fill(PageIndex index, std::uint64_t tag) {
    for (std::uint32_t region = 0; region < kLayers * 2; ++region) {
      std::span<std::byte> bytes = page(region, index);
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>((tag * 131 + region * 17 + i * 7 + (tag >> 8)) & 0xFF);
      }
    }
  }

 private:
  std::uint32_t item_bytes_;
  std::vector<std::vector<std::byte>> memory_;
};

inline bool same_page(Pools& a, PageIndex page_a, Pools& b, PageIndex page_b) {
  for (std::uint32_t region = 0; region < kLayers * 2; ++region) {
    const auto bytes_a = a.page(region, page_a);
    const auto bytes_b = b.page(region, page_b);
    if (!std::equal(bytes_a.begin(), bytes_a.end(), bytes_b.begin(), bytes_b.end())) {
      return false;
    }
  }
  return true;
}

inline KvArgs engine_args(Role role, Pools& pools, std::uint32_t page_size_tokens = 4) {
  KvArgs args;
  args.role = role;
  args.instance = role == Role::kPrefill ? "p" : "d";
  args.model_fingerprint = "model";
  args.page_size_tokens = page_size_tokens;
  args.total_layers = kLayers;
  args.total_kv_heads = 2;
  args.head_dim = 8;
  args.dtype = DType::kF16;
  args.layers = {0, kLayers};
  args.heads = {0, 2};
  args.vocab_size = 1'000;
  args.regions = pools.regions();
  return args;
}

inline std::vector<PageIndex> page_run(std::uint32_t first, std::uint32_t count) {
  std::vector<PageIndex> pages;
  for (std::uint32_t i = 0; i < count; ++i) {
    pages.emplace_back(first + i);
  }
  return pages;
}

inline double metric(const KvManager& manager, std::string_view name,
                     std::string_view labels = {}) {
  double sum = 0;
  for (const MetricSample& sample : manager.metrics()) {
    if (sample.name == name && (labels.empty() || sample.labels == labels)) {
      sum += sample.value;
    }
  }
  return sum;
}

inline std::string text_of(const std::optional<Failure>& failure) {
  return failure ? to_string(*failure) : "no failure";
}

class PairTest : public testing::Test {
 protected:
  PairTest() {
    BootstrapServerOptions server_options;
    server_options.cluster_token_file = token_.path();
    registry_ = std::move(*BootstrapServer::start(server_options));
    options_.bootstrap_addresses = {registry_->address()};
    options_.cluster_token_file = token_.path();
  }

  std::unique_ptr<KvManager> make(KvArgs args, Options options) {
    auto manager = KvManager::create(std::move(args), std::move(options));
    EXPECT_TRUE(manager) << (manager ? "" : manager.error().what);
    return manager ? std::move(*manager) : nullptr;
  }
  void start_prefill() { prefill_ = make(engine_args(Role::kPrefill, prefill_pools_), options_); }
  void start_decode() { decode_ = make(engine_args(Role::kDecode, decode_pools_), options_); }
  void start_pair() {
    start_prefill();
    start_decode();
  }

  struct Room {
    RoomId room;
    Binding binding;
    std::vector<PageIndex> source;
    std::vector<PageIndex> target;
    std::uint32_t aux = 0;
    std::unique_ptr<KvSender> sender;
    std::unique_ptr<KvReceiver> receiver;
  };

  // Names of a room and its pages: none of two rooms with different numbers below 64 overlap.
  Room name_room(std::uint64_t number, std::uint32_t pages) {
    Room room;
    room.room = RoomId(number);
    room.binding = Binding{number, ++bindings_};
    room.aux = static_cast<std::uint32_t>(number % kAuxSlots);
    const auto first = static_cast<std::uint32_t>((number * 16) % kPages);
    room.source = page_run(first, pages);
    room.target = page_run(first, pages);
    std::reverse(room.target.begin(), room.target.end());
    return room;
  }
  void open_sender(Room& room) {
    room.sender = std::make_unique<KvSender>(*prefill_, room.room, room.binding);
    const Status status =
        room.sender->init(static_cast<std::uint32_t>(room.source.size()), room.aux);
    EXPECT_TRUE(status) << status.error().what;
  }
  void open_receiver(Room& room) {
    room.receiver = std::make_unique<KvReceiver>(*decode_, room.room, room.binding);
    EXPECT_TRUE(room.receiver->init(registry_->address(), "p"));
    EXPECT_TRUE(room.receiver->send_metadata(room.target, room.aux));
  }
  Room open_room(std::uint64_t number, std::uint32_t pages) {
    Room room = name_room(number, pages);
    open_sender(room);
    open_receiver(room);
    return room;
  }
  AuxRecord record_of(const Room& room) {
    return {static_cast<std::int32_t>(room.room.value() % 1'000), -0.5F, 7, 0};
  }
  // In chunks of at most three pages.
  void send_all(Room& room) {
    for (const PageIndex page : room.source) {
      prefill_pools_.fill(page, room.binding.low * 1'000 + page.value());
    }
    EXPECT_TRUE(prefill_->write_aux(room.aux, room.room, room.binding, record_of(room)));
    std::span<const PageIndex> rest = room.source;
    do {
      const std::size_t count = std::min<std::size_t>(rest.size(), 3);
      const Status status = room.sender->send(rest.first(count));
      EXPECT_TRUE(status) << status.error().what;
      rest = rest.subspan(count);
    } while (!rest.empty());
  }
  bool await_end(Room& room) {
    return await(
        [&] { return is_terminal(room.receiver->poll()) && is_terminal(room.sender->poll()); });
  }
  void expect_success(Room& room) {
    ASSERT_TRUE(await_end(room)) << prefill_->dump_status() << "\n" << decode_->dump_status();
    EXPECT_EQ(room.receiver->poll(), KvPoll::kSuccess) << text_of(room.receiver->failure());
    EXPECT_EQ(room.sender->poll(), KvPoll::kSuccess) << text_of(room.sender->failure());
    for (std::size_t i = 0; i < room.source.size(); ++i) {
      EXPECT_TRUE(same_page(prefill_pools_, room.source[i], decode_pools_, room.target[i]));
    }
    const auto record = decode_->read_aux(room.aux, room.room, room.binding);
    ASSERT_TRUE(record) << record.error().what;
    EXPECT_EQ(*record, record_of(room));
  }
  // Runs one room from end to end.
  void run_room(std::uint64_t number, std::uint32_t pages) {
    Room room = open_room(number, pages);
    send_all(room);
    expect_success(room);
  }
  // Collects what the manager hands back until this owner's pages are among it.
  bool await_released(KvManager& manager, std::uint64_t owner, ReleasedPages& found) {
    return await([&] {
      for (ReleasedPages& released : manager.take_released()) {
        if (released.owner == owner) {
          found = std::move(released);
          return true;
        }
      }
      return false;
    });
  }
  bool await_metric(const KvManager& manager, std::string_view name, double value) {
    return await([&] { return metric(manager, name) == value; });
  }

  TempFile token_{"a-token-of-this-cluster\n"};
  std::unique_ptr<BootstrapServer> registry_;
  Options options_;
  Pools prefill_pools_{4};
  Pools decode_pools_{4};
  std::unique_ptr<KvManager> prefill_;
  std::unique_ptr<KvManager> decode_;
  std::uint64_t bindings_ = 0;
};

}  // namespace kvferry::test
