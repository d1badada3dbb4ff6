// A deterministic engine without a model, for tests and for trying out a deployment. Each token's
// KV rows follow from the token, its position and all tokens before it; each answer follows from
// the bytes of all KV rows of the sequence. So a page that is wrong, missing or in the wrong place
// changes the answer.
#pragma once

#include <cstdint>
#include <memory>

#include "kvferry/status.h"
#include "serve/engine.h"

namespace kvferry::serve {

struct SyntheticOptions {
  std::uint32_t layers = 4;
  std::uint32_t kv_heads = 2;
  std::uint32_t head_dim = 16;
  std::uint32_t page_size_tokens = 64;
  std::uint32_t context_tokens = 4096;
  std::uint32_t max_sequences = 64;
  std::uint32_t prefill_chunk_tokens = 128;
  std::uint32_t prefill_delay_ms = 0;  // per chunk
  std::uint32_t step_delay_ms = 0;     // per step, however many sequences take part
  std::uint32_t end_odds = 128;        // an answer ends at each token with odds 1 : n; 0: never
};

// Tokens are bytes; 256 ends an answer.
inline constexpr Token kSyntheticEnd = 256;

Result<std::unique_ptr<Engine>> make_synthetic_engine(SyntheticOptions options);

}  // namespace kvferry::serve
