// A source and a target joined by one of the transports, with memory whose every byte is known.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "data_plane/lanes/frame.h"
#include "data_plane/memory/memory_fabric.h"
#include "data_plane/transport.h"
#include "kvferry/shared_pool.h"
#include "recording_sink.h"
#include "support/relay.h"

namespace kvferry::data_plane {

// kShm copies out of a SharedPool, kShmRemote by process_vm_readv.
enum class Kind { kTcp, kShm, kShmRemote, kMemory };

struct Shape {
  std::uint32_t regions = 1;
  std::uint64_t item_bytes = 0;
  std::uint32_t items = 0;
};
inline constexpr Shape kSimple{1, 64U << 10, 64};
inline constexpr Shape kSixtyRegions{60, 2'048, 40};

struct Case {
  Kind kind = Kind::kTcp;
  Shape shape = kSimple;
};
// Every kind with both shapes.
std::vector<Case> all_cases();
// Those between whose ends bytes can be stopped.
std::vector<Case> blockable_cases();
std::ostream& operator<<(std::ostream& out, const Case& c);
std::string case_name(const Case& c);

// Registered memory of one side.
class Pool {
 public:
  enum class Backing { kPrivate, kShared };
  explicit Pool(const Shape& shape, Backing backing = Backing::kPrivate);
  std::span<const Region> regions() const { return regions_; }
  std::span<std::byte> item(std::uint32_t region, std::uint32_t item);
  void fill(std::byte value);
  // A pattern that differs from byte to byte, item to item and seed to seed.
  void fill_pattern(std::uint64_t seed);

 private:
  Shape shape_;
  std::vector<std::byte> private_;
  std::optional<SharedPool> shared_;
  std::byte* base_ = nullptr;
  std::vector<Region> regions_;
};

inline constexpr std::byte kCanary{0xEE};

class Rig {
 public:
  struct Tuning {
    bool with_relay = false;  // tcp only
    std::uint32_t write_timeout_ms = 60'000;
    std::uint32_t lane_timeout_ms = 20'000;
    std::uint32_t lane_heartbeat_ms = 20;
    std::uint32_t frame_bytes = 256U << 10;
    std::uint64_t max_inflight_bytes = 64ULL << 20;
    std::uint32_t lanes = 2;
    std::uint32_t max_lane_strangers = 256;
    bool page_digests = false;
  };

  explicit Rig(const Case& c) : Rig(c, Tuning()) {}
  Rig(const Case& c, const Tuning& tuning);
  ~Rig();

  Transport& source() { return *source_; }
  Transport& target() { return *target_; }
  RecordingSink& source_sink() { return source_sink_; }
  RecordingSink& target_sink() { return target_sink_; }
  Pool& source_pool() { return source_pool_; }
  Pool& target_pool() { return target_pool_; }
  MemoryFabric& fabric() { return *fabric_; }
  support::Relay& relay() { return *relay_; }
  const Shape& shape() const { return case_.shape; }
  TargetBlob target_address() const;

  void open(std::uint64_t session);
  void close(std::uint64_t session);
  std::span<const std::uint8_t, 32> secret(std::uint64_t session) const;

  // A grant of whole pages, or of the first slice_bytes of each item of every region.
  void grant(std::uint64_t grant, std::uint64_t session, std::uint32_t slot,
             std::uint64_t generation, const std::vector<std::uint32_t>& pages,
             std::uint64_t slice_bytes = 0);
  bool fence(std::uint64_t grant);

  // A write of a whole item from the same item of the source; tickets count up from 1.
  layout::Write write(std::uint32_t slot, std::uint64_t generation, std::uint32_t region,
                      std::uint32_t page);
  void post(std::uint64_t session, const std::vector<layout::Write>& writes);
  // Posts one write and waits for its outcome.
  layout::WriteOutcome send(std::uint64_t session, const layout::Write& write);

  bool item_equals_source(std::uint32_t region, std::uint32_t page);
  bool item_is(std::uint32_t region, std::uint32_t page, std::byte value);

  // Stops bytes between the two ends, and lets them go on; not for shm, where nothing is between
  // them. Needs with_relay for tcp.
  void block(bool blocked);

 private:
  SessionLink link(std::uint64_t session, Role role) const;

  const Case case_;
  std::atomic<std::uint64_t> clock_{0};
  RecordingSink source_sink_{clock_};
  RecordingSink target_sink_{clock_};
  Pool source_pool_;
  Pool target_pool_;
  std::shared_ptr<MemoryFabric> fabric_ = std::make_shared<MemoryFabric>();
  std::unique_ptr<Transport> source_;
  std::unique_ptr<Transport> target_;
  std::unique_ptr<support::Relay> relay_;
  std::uint64_t next_ticket_ = 1;
};

}  // namespace kvferry::data_plane
