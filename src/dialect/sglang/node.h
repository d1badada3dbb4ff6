// A manager whose peers are stock SGLang ranks (docs/adr/0015, docs/sglang_dialect.md): KvManager
// with the dialect's link around its own and a transport between processes of this host (or, for a
// decode rank with NIXL, none: the host program's agent has the bytes); a prefill rank is
// registered at SGLang's bootstrap routes, a decode rank finds its rooms' prefill ranks there.
//
// What differs for the caller from a manager between kvferry processes: SGLang has no binding, so
// that rooms are opened with Binding{}; a room is 1 to 2^63 - 1; a sender's Success means that its
// writes landed and that decode was told; a receiver's, that every prefill rank said so and the aux
// was there. A receiver is given an aux slot and no state, and its pages leave quarantine only with
// the word of every writer, or (but for NIXL) with the end of the process that has not given it.
//
// Threads: as KvManager.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dialect/sglang/aux_buffers.h"
#include "dialect/sglang/aux_shadow.h"
#include "dialect/sglang/codec.h"
#include "dialect/sglang/messages.h"
#include "dialect/sglang/push_endpoints.h"
#include "dialect/sglang/route_registration.h"
#include "kvferry/kv_manager.h"

namespace kvferry::sglang {

// A NIXL agent of the host program's. Prefill's agents write to this process through it, so it must
// live, and take in what comes, as long as the node.
struct NixlAgent {
  std::string name;
  std::vector<std::uint8_t> metadata;  // as the agent gives it out once the memory is registered
};
// Makes the agent and registers the pieces of memory with it, all of them DRAM. They are what
// prefill may write to, and stay in place as long as the node: the pages of each region, then
// SGLang's metadata buffers. Called once, by create(), on its thread; a failure fails that.
using NixlAgentMaker =
    std::function<Result<NixlAgent>(std::span<const std::span<std::byte>> memory)>;

struct DialectOptions {
  // Decode: that of its prefill ranks (their --disaggregation-transfer-backend), which nothing
  // tells before they are spoken to. A prefill rank serves decode ranks of both flavours side by
  // side.
  Flavour flavour = Flavour::kMooncake;
  std::string host = "127.0.0.1";  // of the PULL socket, and what peers are told: a numeric address
  std::uint16_t port = 0;          // 0: any free port
  // Registries with SGLang's routes, host:port. A prefill rank makes itself known there; a decode
  // rank may be told to ask them, besides those of Options::bootstrap_allow.
  std::vector<std::string> registries;
  AuxBuffers aux;
  // What both sides' --kv-cache-dtype comes to; decode compares, unless it has none.
  std::optional<std::string> kv_cache_dtype = "auto";
  // Decode: the name that this process has with the transfer engine of its prefill ranks; empty:
  // host and process number, for engines that copy by process_vm_writev.
  std::string session;
  // Decode: must be there in NIXL's flavour, and is not looked at in another.
  NixlAgentMaker nixl_agent;
  std::optional<std::uint16_t> http_port;  // of the server's API, told to decode
  // Prefill: sizes of the decode ranks' pools where they are larger than this rank's, which
  // SGLang's registrations don't tell, but for the pages in NIXL's flavour; 0: as this rank's own.
  // Pages beyond are refused.
  std::uint32_t decode_pages = 0;
  std::uint32_t decode_aux_slots = 0;
  CodecLimits limits;
  PushEndpointsConfig endpoints;
};

class DialectNode {
 public:
  // args.regions: as SGLang's pools lie, K of every layer, then V of every layer (or one kOther for
  // each), and one aux region; no state. Mori's flavour is not served.
  static Result<std::unique_ptr<DialectNode>> create(KvArgs args, Options options,
                                                     const DialectOptions& dialect);
  ~DialectNode();
  DialectNode(const DialectNode&) = delete;
  DialectNode& operator=(const DialectNode&) = delete;

  KvManager& manager() { return *manager_; }
  const RankEndpoint& endpoint() const { return endpoint_; }  // of the PULL socket
  // Whether all registries know this rank; true without any.
  bool is_registered() const;
  bool wait_registered(Duration timeout);

 private:
  DialectNode() = default;

  RankEndpoint endpoint_;
  std::unique_ptr<AuxShadow> shadow_;  // decode; the manager's link refers to it
  std::unique_ptr<KvManager> manager_;
  std::vector<std::unique_ptr<RouteRegistration>> registrations_;
};

}  // namespace kvferry::sglang
