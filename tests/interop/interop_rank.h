// What the programs of a kvferry rank with SGLang's dialect share: sizes and layout, which are
// those of sglang_peer_main.py, and the talk in lines of JSON. Each line of input is a command with
// its arguments; the answer is a line of output: {"value": ...} or {"error": text}.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "kvferry/kv_args.h"
#include "kvferry/kv_manager.h"
#include "router/json.h"

namespace kvferry::sglang {

inline constexpr std::uint32_t kLayers = 2;
inline constexpr std::uint32_t kHeads = 8;  // of all ranks
inline constexpr std::uint32_t kHeadDim = 16;
inline constexpr std::uint32_t kPageTokens = 16;
inline constexpr auto kPatience = std::chrono::seconds(20);
inline const std::vector<std::uint32_t> kAuxItemBytes{64, 64, 64, 64, 512, 512, 64};

struct RankSizes {
  std::uint32_t tp_size = 1;
  std::uint32_t tp_rank = 0;
  std::uint32_t pages = 64;
  std::uint32_t aux_slots = 16;
};

struct RankMemory {
  std::uint64_t item_bytes = 0;                 // of a page
  std::vector<std::vector<std::byte>> regions;  // the last one is aux
};

// The arguments of a rank whose regions are in memory, which is made here.
inline KvArgs rank_args(Role role, const RankSizes& sizes, RankMemory& memory) {
  const std::uint32_t heads = kHeads / sizes.tp_size;
  memory.item_bytes = std::uint64_t{kPageTokens} * heads * kHeadDim;
  KvArgs args;
  args.role = role;
  args.rank.tp_size = sizes.tp_size;
  args.rank.tp_rank = sizes.tp_rank;
  args.engine_epoch = EngineEpoch(1);
  args.model_fingerprint = "interop";
  args.page_size_tokens = kPageTokens;
  args.total_layers = kLayers;
  args.total_kv_heads = kHeads;
  args.head_dim = kHeadDim;
  args.dtype = DType::kU8;
  args.layers = {0, kLayers};
  args.heads = {sizes.tp_rank * heads, (sizes.tp_rank + 1) * heads};
  for (const RegionKind kind : {RegionKind::kKey, RegionKind::kValue}) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      memory.regions.emplace_back(memory.item_bytes * sizes.pages);
      args.regions.push_back(
          {kind, layer, memory.regions.back().data(), memory.item_bytes, sizes.pages});
    }
  }
  memory.regions.emplace_back(std::size_t{kAuxRecordBytes} * sizes.aux_slots);
  args.regions.push_back(
      {RegionKind::kAux, 0, memory.regions.back().data(), kAuxRecordBytes, sizes.aux_slots});
  return args;
}

// A page of each KV buffer, as JSON.
inline std::string hex_of(const RankMemory& memory, PageIndex page) {
  std::vector<std::string> out;
  for (std::size_t region = 0; region + 1 < memory.regions.size(); ++region) {
    const auto* from = reinterpret_cast<const std::uint8_t*>(memory.regions[region].data()) +
                       page.value() * memory.item_bytes;
    out.push_back(fmt::format("\"{:02x}\"", fmt::join(from, from + memory.item_bytes, "")));
  }
  return router::json_array(out);
}

inline std::vector<PageIndex> page_list(router::JsonView list) {
  std::vector<PageIndex> out;
  for (std::size_t i = 0; i < list.size(); ++i) {
    out.emplace_back(static_cast<std::uint32_t>(list.at(i).integer().value()));
  }
  return out;
}

// Of all labels together.
inline double metric_of(const KvManager& manager, const std::string& name) {
  double sum = 0;
  for (const MetricSample& sample : manager.metrics()) {
    sum += sample.name == name ? sample.value : 0;
  }
  return sum;
}

// Says that it is ready, then answers commands until the input ends. carry_out: the value of the
// answer as JSON; throws std::runtime_error with the text of the error.
inline void serve_commands(const std::function<std::string(router::JsonView)>& carry_out) {
  fmt::print("{{\"value\": \"ready\"}}\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::string answer;
    try {
      const auto command = router::JsonDocument::parse(line);
      answer = fmt::format("{{\"value\": {}}}", carry_out(command.value().root()));
    } catch (const std::exception& wrong) {
      answer = router::JsonObject().text("error", wrong.what()).str();
    }
    fmt::print("{}\n", answer);
    std::fflush(stdout);
  }
}

}  // namespace kvferry::sglang
