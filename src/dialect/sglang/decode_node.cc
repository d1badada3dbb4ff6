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
#include "dialect/sglang/topology_client.h"

namespace kvferry::sglang {
namespace {

MooncakeRegistration registration_of(const KvArgs& args, const DialectOptions& dialect,
                                     const RankEndpoint& endpoint, const AuxShadow& shadow) {
  MooncakeRegistration out;
  out.endpoint = endpoint;
  // As the stand-ins of Mooncake's engine that copy by process number name a process.
  out.session =
      dialect.session.empty() ? fmt::format("{}:{}", endpoint.ip, ::getpid()) : dialect.session;
  for (const Region& region : args.regions) {
    if (holds_pages(region.kind)) {
      out.memory.kv_pointers.push_back(reinterpret_cast<std::uint64_t>(region.base));
      out.memory.kv_item_bytes_of.push_back(region.item_bytes);
    }
  }
  if (!out.memory.kv_item_bytes_of.empty()) {
    out.memory.kv_item_bytes = out.memory.kv_item_bytes_of.front();
  }
  out.memory.aux_pointers = shadow.pointers();
  out.tp_rank = args.rank.tp_rank;
  out.tp_size = args.rank.tp_size;
  return out;
}

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

  DecodeTranslatorConfig config;
  config.self.role = args.role;
  config.self.layout = layout;
  config.self.numerics = args.numerics;
  config.self.limits = {options.max_grant_slots, options.control_message_max_bytes,
                        options.send_window_messages};
  config.registration = registration_of(args, dialect, endpoint, *parts.shadow);
  config.reach = reach_by_process();
  config.repeat_min = milliseconds(options.retransmit_min_ms);
  config.repeat_max = milliseconds(options.retransmit_max_ms);
  config.max_rooms = options.max_rooms;
  parts.translator = std::make_unique<DecodeTranslator>(std::move(config), *parts.shadow);

  parts.make_transport =
      [](const data_plane::TransportConfig& transport,
         data_plane::CompletionSink& sink) -> Result<std::unique_ptr<data_plane::Transport>> {
    return std::make_unique<data_plane::ProcessVmTarget>(transport, sink);
  };

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
