// kvferry's side of the interop tests that needs no room:
//
//   kvferry_sglang_tool serve    SGLang's bootstrap routes on a free port of 127.0.0.1; prints
//                                "listening HOST:PORT", ends with its input
//   kvferry_sglang_tool ranks    a line "PREFILL_TP PREFILL_CP PREFILL_PP LAYER_SPLIT SHARDING
//                                DECODE_TP DECODE_PP ENGINE_RANK PP_RANK KV ALL_CP" (KV: heads,
//                                latents or hybrid) -> a line of JSON with the mapping
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

#include "base/clock.h"
#include "dialect/sglang/rank_mapping.h"
#include "dialect/sglang/sglang_routes.h"
#include "net/http_server.h"

namespace kvferry::sglang {
namespace {

int serve() {
  SglangRoutes routes;
  auto server = net::HttpServer::start(
      {}, [&](const net::HttpRequest& request, const std::shared_ptr<net::Responder>& responder) {
        responder->respond(routes.answer(request, monotonic_now())
                               .value_or(net::text_response(404, "404: Not Found")));
      });
  if (!server) {
    fmt::print(stderr, "{}\n", to_string(server.error()));
    return 1;
  }
  fmt::print("listening {}\n", (*server)->address());
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
  }
  (*server)->stop();
  return 0;
}

KvKind to_kind(const std::string& name) {
  return name == "latents"  ? KvKind::kLatents
         : name == "hybrid" ? KvKind::kHybridLatents
                            : KvKind::kHeads;
}

std::string answer(std::istringstream line) {
  PrefillShape prefill;
  DecodeShape decode;
  std::string kind;
  line >> prefill.tp_size >> prefill.cp_size >> prefill.pp_size >> prefill.dsa_cache_layer_split >>
      prefill.kv_cache_sharding >> decode.tp_size >> decode.pp_size >> decode.engine_rank >>
      decode.pp_rank >> kind >> decode.pull_from_all_cp_ranks;
  if (!line) {
    return R"({"error": "not eleven fields"})";
  }
  decode.kv = to_kind(kind);
  const auto mapping = map_ranks(prefill, decode);
  if (!mapping) {
    return R"({"error": "refused"})";
  }
  return fmt::format(
      R"({{"target_tp_rank": {}, "target_tp_ranks": {}, "target_cp_ranks": {}, )"
      R"("target_pp_ranks": {}, "required_dst_info_num": {}, "required_prefill_response_num": {}}})",
      mapping->real_tp_rank ? fmt::format("{}", *mapping->real_tp_rank) : "null", mapping->tp_ranks,
      mapping->cp_ranks, mapping->pp_ranks, mapping->decode_ranks, mapping->prefill_successes);
}

int ranks() {
  for (std::string line; std::getline(std::cin, line);) {
    fmt::print("{}\n", answer(std::istringstream(line)));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace kvferry::sglang

int main(int count, char** arguments) {
  const std::string verb = count == 2 ? arguments[1] : "";
  if (verb == "serve") {
    return kvferry::sglang::serve();
  }
  if (verb == "ranks") {
    return kvferry::sglang::ranks();
  }
  fmt::print(stderr, "usage: kvferry_sglang_tool serve|ranks\n");
  return 2;
}
