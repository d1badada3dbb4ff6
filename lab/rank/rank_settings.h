// The command line of `kvferry-lab rank`.
#pragma once

#include <cstdint>
#include <string>

#include "cli/settings.h"
#include "kvferry/kv_args.h"
#include "kvferry/options.h"
#include "lab/rank/rank_pages.h"

namespace kvferry::lab {

struct RankSettings {
  std::string role = "decode";
  std::string instance = "d0";
  std::uint64_t engine_epoch = 0;
  std::uint32_t tp_rank = 0;
  std::uint32_t tp_size = 1;
  std::uint32_t pp_rank = 0;
  std::uint32_t pp_size = 1;
  std::uint32_t layers = 1;
  std::uint32_t heads = 1;
  std::uint32_t pages = 64;
  std::uint32_t page_bytes = 64U << 10;
  std::uint32_t aux_slots = 4'096;
  std::string journal;
  bool messages = false;
  std::string missing;
  Options options;

  void declare(cli::Settings& settings);
  Role role_of() const { return role == "prefill" ? Role::kPrefill : Role::kDecode; }
  PagePart part() const {
    return {layers, heads, {tp_rank, tp_size, pp_rank, pp_size, 0, 1}, role_of()};
  }
};

}  // namespace kvferry::lab
