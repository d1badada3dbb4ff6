// The command line of `kvferry-lab rank`.
#pragma once

#include <cstdint>
#include <string>

#include "cli/settings.h"
#include "kvferry/kv_args.h"
#include "kvferry/options.h"

namespace kvferry::lab {

struct RankSettings {
  std::string role = "decode";
  std::string instance = "d0";
  std::uint32_t pages = 64;
  std::uint32_t page_bytes = 64U << 10;
  std::uint32_t aux_slots = 4'096;
  std::string journal;
  bool messages = false;
  std::string missing;
  Options options;

  void declare(cli::Settings& settings);
  Role role_of() const { return role == "prefill" ? Role::kPrefill : Role::kDecode; }
};

}  // namespace kvferry::lab
