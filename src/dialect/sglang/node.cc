#include "dialect/sglang/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "data_plane/process_vm/port_owner.h"
#include "data_plane/process_vm/process_vm_transport.h"
#include "dialect/sglang/decode_node.h"
#include "dialect/sglang/dialect_link.h"
#include "dialect/sglang/prefill_translator.h"
#include "dialect/sglang/rank_mapping.h"
#include "dialect/sglang/stock_shape.h"
#include "layout/kv_layout.h"
#include "runtime/manager_state.h"

namespace kvferry::sglang {
namespace {

tl::unexpected<Failure> unfit(std::string what) {
  return fail(FailureCode::kInvalidArgument, std::move(what));
}

// Regions and SGLang's buffers meet by position alone.
Status check_regions(const KvArgs& args) {
  std::vector<std::pair<RegionKind, std::uint32_t>> pages;
  std::size_t aux = 0;
  for (const Region& region : args.regions) {
    if (holds_pages(region.kind)) {
      pages.emplace_back(region.kind, region.layer);
    } else if (region.kind == RegionKind::kAux) {
      ++aux;
    } else {
      return unfit("SGLang's dialect serves no state regions");
    }
  }
  if (!std::ranges::is_sorted(pages)) {
    return unfit(
        "SGLang's pools are K of every layer, then V of every layer: the regions must be in this "
        "order");
  }
  if (aux != 1) {
    return unfit(fmt::format("SGLang's dialect needs one aux region, there are {}", aux));
  }
  return {};
}

std::uint32_t rank_id(const RankCoordinates& rank) {
  return prefill_rank_id(prefill_shape(rank), {rank.tp_rank, rank.pp_rank, 0});
}

RankRow row_of(const KvArgs& args, const DialectOptions& dialect, const RankEndpoint& endpoint) {
  RankRow row;
  row.tp = {args.rank.tp_size, args.rank.tp_rank};
  row.cp = {1, 0};
  row.dp = {args.rank.dp_size, args.rank.dp_rank};
  row.pp = {args.rank.pp_size, args.rank.pp_rank};
  row.system_dp = {1, 0};
  row.ip = endpoint.ip;
  row.port = endpoint.port;
  row.page_tokens = args.page_size_tokens;
  row.kv_cache_dtype = dialect.kv_cache_dtype;
  row.http_port = dialect.http_port;
  return row;
}

// The decode rank's process is the one that listens where its registration says, whatever else the
// registration names.
ReachDecode reach_by_process(const LayoutShape& layout, const AuxBuffers& aux) {
  return [layout, aux, owners = std::make_shared<data_plane::PortOwners>()](
             const DecodeRank& rank) -> Result<wire::TransportOffer> {
    const DecodeMemory& memory = rank.memory;
    if (memory.aux_pointers.size() != aux.item_bytes.size()) {
      return unfit(fmt::format("decode has {} aux buffers, prefill {}", memory.aux_pointers.size(),
                               aux.item_bytes.size()));
    }
    const auto process = owners->find(rank.endpoint.ip, rank.endpoint.port);
    if (!process) {
      return tl::unexpected(process.error());
    }
    data_plane::ProcessBlob blob{*process, {}};
    std::size_t buffer = 0;
    for (const RegionShape& region : layout.regions) {
      if (holds_pages(region.kind)) {
        blob.regions.push_back({{memory.kv_pointers[buffer++]}, {}});
      } else {
        blob.regions.push_back({memory.aux_pointers, aux.item_bytes});
      }
    }
    return wire::TransportOffer{std::string(data_plane::ProcessVmTransport::kName),
                                data_plane::encode(blob)};
  };
}

PrefillTranslatorConfig translator_config(const KvArgs& args, const Options& options,
                                          const DialectOptions& dialect,
                                          const LayoutShape& layout) {
  PrefillTranslatorConfig config;
  config.self.role = args.role;
  config.self.instance = args.instance;
  config.self.engine_epoch = args.engine_epoch;
  config.self.layout = layout;
  config.self.numerics = args.numerics;
  config.self.limits = {options.max_grant_slots, options.control_message_max_bytes,
                        options.send_window_messages};
  config.prefill_rank = rank_id(args.rank);
  config.reach = reach_by_process(layout, dialect.aux);
  config.decode_pages = dialect.decode_pages;
  config.decode_aux_slots = dialect.decode_aux_slots;
  config.max_sessions = options.max_peers;
  config.max_rooms = options.max_rooms;
  config.greeting_timeout = milliseconds(options.hello_timeout_ms);
  return config;
}

data_plane::TransportMaker writing_transport(const AuxBuffers& aux) {
  return [aux](const data_plane::TransportConfig& config,
               data_plane::CompletionSink& sink) -> Result<std::unique_ptr<data_plane::Transport>> {
    return std::make_unique<data_plane::ProcessVmTransport>(
        config, sink, [aux](std::span<const std::byte> slot) { return split_aux(aux, slot); });
  };
}

std::unique_ptr<zmq::context_t> make_context(const PushEndpointsConfig& endpoints) {
  auto context = std::make_unique<zmq::context_t>(1);
  // A socket and two ends of its monitor for each endpoint, and as much for those that libzmq has
  // not closed yet.
  const std::uint64_t sockets = 6ULL * endpoints.max_endpoints + 64;
  context->set(zmq::ctxopt::max_sockets,
               static_cast<int>(std::min<std::uint64_t>(sockets, 65'535)));
  context->set(zmq::ctxopt::blocky, 0);
  return context;
}

Result<DialectLink::Parts> open_sockets(const Options& options, const DialectOptions& dialect) {
  DialectLink::Parts parts;
  parts.context = make_context(dialect.endpoints);
  PullListenerConfig listening;
  listening.host = dialect.host;
  listening.port = dialect.port;
  listening.limits = dialect.limits;
  listening.handshake_timeout = milliseconds(options.handshake_timeout_ms);
  auto listener = PullListener::bind(*parts.context, listening);
  if (!listener) {
    return tl::unexpected(listener.error());
  }
  parts.listener = std::move(*listener);
  auto endpoints = PushEndpoints::make(*parts.context, dialect.endpoints);
  if (!endpoints) {
    return tl::unexpected(endpoints.error());
  }
  parts.endpoints = std::move(*endpoints);
  return parts;
}

// A page list is passed on as one message, which has a limit of its own.
CodecLimits limits_within(CodecLimits limits, const Options& options) {
  constexpr std::size_t kBytesOfAPage = 8;
  constexpr std::size_t kBytesBeside = 4'096;
  const std::size_t most =
      (options.control_message_max_bytes -
       std::min<std::size_t>(kBytesBeside, options.control_message_max_bytes)) /
      kBytesOfAPage;
  limits.max_pages = std::min(limits.max_pages, most);
  return limits;
}

}  // namespace

DialectNode::~DialectNode() = default;

Result<std::unique_ptr<DialectNode>> DialectNode::create(KvArgs args, Options options,
                                                         const DialectOptions& dialect) {
  if (args.role == Role::kDecode && dialect.flavour == Flavour::kMori) {
    return unfit("a decode rank is served in Mooncake's flavour and in NIXL's, not in Mori's");
  }
  for (const Status& checked : {check_regions(args), check(dialect.aux)}) {
    if (!checked) {
      return tl::unexpected(checked.error());
    }
  }
  const Result<LayoutShape> layout = layout::make_shape(args);
  if (!layout) {
    return tl::unexpected(layout.error());
  }
  Result<DialectLink::Parts> parts = open_sockets(options, dialect);
  if (!parts) {
    return tl::unexpected(parts.error());
  }
  std::unique_ptr<DialectNode> node(new DialectNode());
  node->endpoint_ = {parts->listener->host(), parts->listener->port()};
  runtime::ResolverWrapper wrap_resolver;
  data_plane::TransportMaker make_transport;
  if (args.role == Role::kDecode) {
    Result<DecodeParts> decode =
        make_decode_parts(args, options, dialect, *layout, node->endpoint_);
    if (!decode) {
      return tl::unexpected(decode.error());
    }
    node->shadow_ = std::move(decode->shadow);
    parts->translator = std::move(decode->translator);
    make_transport = std::move(decode->make_transport);
    wrap_resolver = std::move(decode->wrap_resolver);
  } else {
    parts->translator =
        std::make_unique<PrefillTranslator>(translator_config(args, options, dialect, *layout));
    make_transport = writing_transport(dialect.aux);
  }
  auto link = DialectLink::make(std::move(*parts), {dialect.flavour, args.role},
                                limits_within(dialect.limits, options));
  if (!link) {
    return tl::unexpected(link.error());
  }
  auto manager = runtime::ManagerState::create_manager(
      args, std::move(options), std::move(make_transport),
      [&link](std::unique_ptr<net::ControlLink> inner) -> std::unique_ptr<net::ControlLink> {
        (*link)->wrap(std::move(inner));
        return std::move(*link);
      },
      wrap_resolver);
  if (!manager) {
    return tl::unexpected(manager.error());
  }
  node->manager_ = std::move(*manager);
  for (const std::string& registry :
       args.role == Role::kPrefill ? dialect.registries : std::vector<std::string>{}) {
    RouteRegistrationConfig config;
    config.registry = registry;
    config.row = row_of(args, dialect, node->endpoint_);
    node->registrations_.push_back(std::make_unique<RouteRegistration>(std::move(config)));
  }
  return node;
}

bool DialectNode::is_registered() const {
  return std::ranges::all_of(registrations_,
                             [](const auto& each) { return each->is_registered(); });
}

bool DialectNode::wait_registered(Duration timeout) {
  const Instant end = monotonic_now() + timeout;
  return std::ranges::all_of(registrations_, [&](const auto& each) {
    return each->wait_registered(std::max(end - monotonic_now(), Duration::zero()));
  });
}

}  // namespace kvferry::sglang
