#include "rig.h"

#include <algorithm>
#include <cstdlib>

#include "base/crypto.h"
#include "data_plane/factory.h"
#include "data_plane/memory/memory_transport.h"

namespace kvferry::data_plane {
namespace {

std::unique_ptr<Transport> make(Kind kind, const TransportConfig& config, CompletionSink& sink,
                                const std::shared_ptr<MemoryFabric>& fabric) {
  if (kind == Kind::kMemory) return std::make_unique<MemoryTransport>(config, sink, fabric);
  auto transport = make_transport(kind == Kind::kTcp ? "tcp" : "shm", config, sink);
  if (!transport) std::abort();
  return std::move(*transport);
}

}  // namespace

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Kind kind : {Kind::kTcp, Kind::kShm, Kind::kShmRemote, Kind::kMemory}) {
    for (const Shape& shape : {kSimple, kSixtyRegions}) cases.push_back({kind, shape});
  }
  return cases;
}

std::vector<Case> blockable_cases() {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases,
                [](const Case& c) { return c.kind == Kind::kShm || c.kind == Kind::kShmRemote; });
  return cases;
}

std::string case_name(const Case& c) {
  static constexpr const char* kNames[] = {"Tcp", "Shm", "ShmRemote", "Memory"};
  return std::string(kNames[static_cast<std::size_t>(c.kind)]) +
         (c.shape.regions == 1 ? "Simple" : "SixtyRegions");
}

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << case_name(c); }

Pool::Pool(const Shape& shape, Backing backing) : shape_(shape) {
  const std::uint64_t region_bytes = shape.item_bytes * shape.items;
  if (backing == Backing::kShared) {
    auto shared = SharedPool::create(region_bytes * shape.regions);
    if (!shared) std::abort();
    shared_ = std::move(*shared);
    base_ = shared_->base();
  } else {
    private_.resize(region_bytes * shape.regions);
    base_ = private_.data();
  }
  for (std::uint32_t i = 0; i < shape.regions; ++i) {
    Region region;
    region.kind = i % 2 == 0 ? RegionKind::kKey : RegionKind::kValue;
    region.layer = i / 2;
    region.base = base_ + i * region_bytes;
    region.item_bytes = shape.item_bytes;
    region.item_count = shape.items;
    if (shared_) {
      region.memory_fd = shared_->fd();
      region.memory_fd_offset = i * region_bytes;
    }
    regions_.push_back(region);
  }
}

std::span<std::byte> Pool::item(std::uint32_t region, std::uint32_t item) {
  return {regions_[region].base + item * shape_.item_bytes, shape_.item_bytes};
}

void Pool::fill(std::byte value) {
  std::fill_n(base_, shape_.item_bytes * shape_.items * shape_.regions, value);
}

void Pool::fill_pattern(std::uint64_t seed) {
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    std::uint64_t state = seed * 1'000 + i;
    for (std::byte& byte : std::span(regions_[i].base, shape_.item_bytes * shape_.items)) {
      state = state * 6'364'136'223'846'793'005ULL + 1'442'695'040'888'963'407ULL;
      byte = static_cast<std::byte>(state >> 56);
    }
  }
}

Rig::Rig(const Case& c, const Tuning& tuning)
    : case_(c),
      source_pool_(c.shape,
                   c.kind == Kind::kShm ? Pool::Backing::kShared : Pool::Backing::kPrivate),
      target_pool_(c.shape) {
  source_pool_.fill_pattern(1);
  target_pool_.fill(kCanary);
  TransportConfig config;
  config.lanes_per_peer = tuning.lanes;
  config.shm_lanes = tuning.lanes;
  config.write_timeout_ms = tuning.write_timeout_ms;
  config.lane_timeout_ms = tuning.lane_timeout_ms;
  config.lane_heartbeat_ms = tuning.lane_heartbeat_ms;
  config.frame_bytes = tuning.frame_bytes;
  config.max_inflight_bytes = tuning.max_inflight_bytes;
  config.max_lane_strangers = tuning.max_lane_strangers;
  config.page_digests = tuning.page_digests;
  config.max_grant_slots = 64;
  config.role = Role::kDecode;
  target_ = make(c.kind, config, target_sink_, fabric_);
  config.role = Role::kPrefill;
  source_ = make(c.kind, config, source_sink_, fabric_);
  if (!source_->register_regions(source_pool_.regions())) std::abort();
  if (!target_->register_regions(target_pool_.regions())) std::abort();
  if (c.kind == Kind::kTcp && tuning.with_relay) {
    relay_ = std::make_unique<support::Relay>(target_address().host, target_address().port);
  }
}

Rig::~Rig() {
  source_->stop();
  target_->stop();
}

TargetBlob Rig::target_address() const {
  return parse_blob(target_->local_blob()).value_or(TargetBlob());
}

SessionLink Rig::link(std::uint64_t session, Role role) const {
  SessionLink link;
  link.epoch = SessionEpoch(session);
  link.local_role = role;
  const auto known = secret(session);
  std::copy(known.begin(), known.end(), link.secret.begin());
  link.peer_blob = role == Role::kPrefill ? target_->local_blob() : source_->local_blob();
  if (role == Role::kPrefill && relay_) {
    TargetBlob blob = target_address();
    blob.host = "127.0.0.1";
    blob.port = relay_->port();
    link.peer_blob = encode_blob(blob);
  }
  // The source is told of more and larger regions than there are, so that it is the target that has
  // to refuse what lies outside.
  link.peer_item_bytes.assign(case_.shape.regions + 4, case_.shape.item_bytes * 2);
  link.peer_item_counts.assign(case_.shape.regions + 4, case_.shape.items * 2);
  return link;
}

std::span<const std::uint8_t, 32> Rig::secret(std::uint64_t session) const {
  static thread_local std::array<std::uint8_t, 32> secret;
  secret.fill(static_cast<std::uint8_t>(session * 7 + 1));
  return secret;
}

void Rig::open(std::uint64_t session) {
  if (!target_->open_session(link(session, Role::kDecode))) std::abort();
  if (!source_->open_session(link(session, Role::kPrefill))) std::abort();
}

void Rig::close(std::uint64_t session) {
  source_->close_session(SessionEpoch(session));
  target_->close_session(SessionEpoch(session));
}

void Rig::grant(std::uint64_t grant, std::uint64_t session, std::uint32_t slot,
                std::uint64_t generation, const std::vector<std::uint32_t>& pages,
                std::uint64_t slice_bytes) {
  std::vector<layout::ItemSlice> slices;
  for (std::uint32_t region = 0; region < case_.shape.regions; ++region) {
    const std::uint64_t bytes = slice_bytes == 0 ? case_.shape.item_bytes : slice_bytes;
    slices.push_back(layout::ItemSlice{RegionId(region), 0, bytes, 1, 0});
  }
  std::vector<PageIndex> indices;
  for (const std::uint32_t page : pages) indices.push_back(PageIndex(page));
  std::vector<SlotGrant> slots;
  slots.push_back(SlotGrant{SessionEpoch(session), GrantSlot(slot), Generation(generation),
                            layout::GrantExtent(slices, indices, {}, -1, {}, {})});
  target_->open_grant(GrantId(grant), std::move(slots));
}

bool Rig::fence(std::uint64_t grant) {
  target_->fence(GrantId(grant));
  return target_sink_.wait_fence(grant);
}

layout::Write Rig::write(std::uint32_t slot, std::uint64_t generation, std::uint32_t region,
                         std::uint32_t page) {
  layout::Write write;
  write.ticket = TicketId(next_ticket_++);
  write.slot = GrantSlot(slot);
  write.generation = Generation(generation);
  write.source_region = RegionId(region);
  write.source_offset = page * case_.shape.item_bytes;
  write.target_region = RegionId(region);
  write.target_item = page;
  write.length = case_.shape.item_bytes;
  return write;
}

void Rig::post(std::uint64_t session, const std::vector<layout::Write>& writes) {
  source_->post(SessionEpoch(session), writes);
}

layout::WriteOutcome Rig::send(std::uint64_t session, const layout::Write& write) {
  post(session, {write});
  source_sink_.wait_outcome(write.ticket.value());
  return source_sink_.outcome(write.ticket.value());
}

bool Rig::item_equals_source(std::uint32_t region, std::uint32_t page) {
  const auto from = source_pool_.item(region, page);
  return std::equal(from.begin(), from.end(), target_pool_.item(region, page).begin());
}

bool Rig::item_is(std::uint32_t region, std::uint32_t page, std::byte value) {
  const auto bytes = target_pool_.item(region, page);
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == value; });
}

void Rig::block(bool blocked) {
  if (case_.kind == Kind::kTcp) {
    relay_->freeze(blocked);
  } else if (case_.kind != Kind::kMemory) {
    std::abort();
  } else {
    fabric_->stall_copies(blocked);
  }
}

}  // namespace kvferry::data_plane
