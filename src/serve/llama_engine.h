// Engine over libllama. Everything that changes bits is pinned: flash attention on, one unified KV
// cache in f16, fixed chunks, fixed threads; Numerics names them, so that a pair can compare.
//
// Each sequence's cells keep the order of its positions, and prompt chunks keep their place
// relative to the attention kernel's tiles, whatever else is in the cache. Without that, an answer
// would differ in its last bits from the same answer of an idle process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kvferry/status.h"
#include "serve/engine.h"

namespace kvferry::serve {

struct LlamaOptions {
  std::string model_path;               // a GGUF file
  std::string library_dir;              // kernel libraries; empty: beside libllama itself
  std::uint32_t context_tokens = 2048;  // of one sequence, prompt plus answer
  std::uint32_t max_sequences = 8;
  std::uint32_t threads = 1;
  std::uint32_t prefill_chunk_tokens = 128;  // a multiple of the page size
  std::uint32_t page_size_tokens = 64;
};

// Takes seconds. A failure says what is wrong with which file and how to mend it.
Result<std::unique_ptr<Engine>> load_llama_engine(LlamaOptions options);

// Writes a Q4_0 copy of a model, which prefills 2.5 times faster than Q4_1. The result appears
// under its name only when it is complete.
Status quantize_model(const std::string& input_path, const std::string& output_path);

}  // namespace kvferry::serve
