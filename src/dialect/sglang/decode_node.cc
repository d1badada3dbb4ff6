#include "dialect/sglang/decode_node.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "data_plane/process_vm/port_owner.h"
#include "data_plane/process_vm/process_blob.h"
#include "data_plane/process_vm/process_vm_target.h"
#include "data_plane/process_vm/process_vm_transport.h"
#include "dialect/sglang/decode_translator.h"
#include "dialect/sglang/nixl_target.h"
#include "dialect/sglang/topology_client.h"

namespace kvferry::sglang {
namespace {

DecodeMemory memory_of(const KvArgs& args, const AuxShadow& shadow) {
  DecodeMemory out;
  for (const Region& region : args.regions) {
    if (holds_pages(region.kind)) {
      out.kv_pointers.push_back(reinterpret_cast<std::uint64_t>(region.base));
      out.kv_item_bytes_of.push_back(region.item_bytes);
    }
  }
  if (!out.kv_item_bytes_of.empty()) {
    out.kv_item_bytes = out.kv_item_bytes_of.front();
  }
  out.aux_pointers = shadow.pointers();
  return out;
}

MooncakeRegistration mooncake_registration(const KvArgs& args, const DialectOptions& dialect,
                                           const RankEndpoint& endpoint, const AuxShadow& shadow) {
  MooncakeRegistration out;
  out.endpoint = endpoint;
  // As the stand-ins of Mooncake's engine that copy by process number name a process.
  out.session =
      dialect.session.empty() ? fmt::format("{}:{}", endpoint.ip, ::getpid()) : dialect.session;
  out.memory = memory_of(args, shadow);
  out.tp_rank = args.rank.tp_rank;
  out.tp_size = args.rank.tp_size;
  return out;
}

Result<NixlRegistration> nixl_registration(const KvArgs& args, const DialectOptions& dialect,
                                           const RankEndpoint& endpoint, AuxShadow& shadow) {
  if (!dialect.nixl_agent) {
    return fail(FailureCode::kInvalidArgument,
                "NIXL's flavour needs an agent of the host program (DialectOptions::nixl_agent)");
  }
  std::vector<std::span<std::byte>> memory;
  std::optional<std::uint32_t> pages;
  for (const Region& region : args.regions) {
    if (holds_pages(region.kind)) {
      memory.emplace_back(static_cast<std::byte*>(region.base),
                          region.item_bytes * region.item_count);
      pages = region.item_count;
    }
  }
  for (const std::span<std::byte> buffer : shadow.memory()) {
    memory.push_back(buffer);
  }
  Result<NixlAgent> agent = dialect.nixl_agent(memory);
  if (!agent) {
    return tl::unexpected(agent.error());
  }
  if (agent->name.empty() || agent->metadata.empty()) {
    return fail(FailureCode::kInvalidArgument, "a NIXL agent without a name or without metadata");
  }
  NixlRegistration out;
  out.endpoint = endpoint;
  out.agent = std::move(agent->name);
  out.agent_metadata = std::move(agent->metadata);
  out.memory = memory_of(args, shadow);
  out.tp_rank = args.rank.tp_rank;
  out.tp_size = args.rank.tp_size;
  out.kv_slots = pages;
  out.kv_memory_kinds.assign(out.memory.kv_pointers.size(), NixlMemory::kDram);
  return out;
}

// What differs between the flavours: who writes, and what proves that it writes no more.
struct FlavourParts {
  Registration registration;
  ReachPrefill reach;
  data_plane::TransportMaker make_transport;
};

// Whoever listens where the registry says that the rank does is the process that writes; its end is
// the proof that it writes no more.
ReachPrefill reach_by_process() {
  return [owners = std::make_shared<data_plane::PortOwners>()](
             const PrefillRank& rank) -> Result<wire::TransportOffer> {
    const auto process = owners->find(rank.endpoint.ip, rank.endpoint.port);
    if (!process) {
      return tl::unexpected(process.error());
    }
    return wire::TransportOffer{std::string(data_plane::ProcessVmTransport::kName),
                                data_plane::encode(data_plane::ProcessBlob{*process, {}})};
  };
}

// Anybody, on any host: NIXL carries the bytes, and its agents know each other by themselves.
ReachPrefill reach_by_nixl() {
  return [](const PrefillRank&) -> Result<wire::TransportOffer> {
    return wire::TransportOffer{std::string(NixlTarget::kName), {}};
  };
}

Result<FlavourParts> parts_of_flavour(const KvArgs& args, const DialectOptions& dialect,
                                      const RankEndpoint& endpoint, AuxShadow& shadow) {
  if (dialect.flavour == Flavour::kMooncake) {
    return FlavourParts{
        mooncake_registration(args, dialect, endpoint, shadow), reach_by_process(),
        [](const data_plane::TransportConfig& transport,
           data_plane::CompletionSink& sink) -> Result<std::unique_ptr<data_plane::Transport>> {
          return std::make_unique<data_plane::ProcessVmTarget>(transport, sink);
        }};
  }
  Result<NixlRegistration> registration = nixl_registration(args, dialect, endpoint, shadow);
  if (!registration) {
    return tl::unexpected(registration.error());
  }
  return FlavourParts{
      std::move(*registration), reach_by_nixl(),
      [](const data_plane::TransportConfig&,
         data_plane::CompletionSink& sink) -> Result<std::unique_ptr<data_plane::Transport>> {
        return std::make_unique<NixlTarget>(sink);
      }};
}

}  // namespace

Result<DecodeParts> make_decode_parts(const KvArgs& args, const Options& options,
                                      const DialectOptions& dialect, const LayoutShape& layout,
                                      const RankEndpoint& endpoint) {
  const auto aux = std::ranges::find(args.regions, RegionKind::kAux, &Region::kind);
  auto shadow = AuxShadow::make(aux == args.regions.end() ? Region{} : *aux, dialect.aux);
  if (!shadow) {
    return tl::unexpected(shadow.error());
  }
  DecodeParts parts;
  parts.shadow = std::move(*shadow);
  Result<FlavourParts> of_flavour = parts_of_flavour(args, dialect, endpoint, *parts.shadow);
  if (!of_flavour) {
    return tl::unexpected(of_flavour.error());
  }

  DecodeTranslatorConfig config;
  config.self.role = args.role;
  config.self.layout = layout;
  config.self.numerics = args.numerics;
  config.self.limits = {options.max_grant_slots, options.control_message_max_bytes,
                        options.send_window_messages};
  config.registration = std::move(of_flavour->registration);
  config.reach = std::move(of_flavour->reach);
  config.repeat_min = milliseconds(options.retransmit_min_ms);
  config.repeat_max = milliseconds(options.retransmit_max_ms);
  config.max_rooms = options.max_rooms;
  parts.translator = std::make_unique<DecodeTranslator>(std::move(config), *parts.shadow);

  parts.make_transport = std::move(of_flavour->make_transport);

  TopologyClientConfig topology{options, layout, dialect.kv_cache_dtype};
  for (const std::string& registry : dialect.registries) {
    topology.options.bootstrap_allow.push_back(registry);
  }
  parts.wrap_resolver =
      [topology = std::move(topology)](
          std::unique_ptr<runtime::PrefillResolver> inner, TopologyClient::Answer answer,
          ThreadRoster& threads) mutable -> std::unique_ptr<runtime::PrefillResolver> {
    topology.threads = &threads;
    return std::make_unique<TopologyClient>(topology, std::move(inner), std::move(answer));
  };
  return parts;
}

}  // namespace kvferry::sglang
