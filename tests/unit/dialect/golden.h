// The stored messages of real SGLang (tests/interop/capture.py writes them), for the tests and for
// the fuzzer's seeds.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dialect/sglang/codec.h"

namespace kvferry::sglang {

struct GoldenMessage {
  std::string name;
  Listener listener;
  std::string kind;    // kind_name() of what it decodes to
  std::string origin;  // "exchange", "call" or "by-hand": see the script
  Frames frames;
};

// In the order of manifest.tsv. Empty when the folder has none.
std::vector<GoldenMessage> read_golden(const std::filesystem::path& folder);

}  // namespace kvferry::sglang
