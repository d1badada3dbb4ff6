// Chooses the next token. The draw for token i of an answer depends on the seed and on i alone, so
// the first token, which prefill chooses, and the later ones, which decode chooses, are those that
// one process would have chosen.
#pragma once

#include <cstdint>
#include <span>

#include "serve/engine.h"

namespace kvferry::serve {

struct SamplerOptions {
  double temperature = 1.0;  // 0: the likeliest token, the first of equals
  double top_p = 1.0;
  std::uint64_t seed = 0;
};

struct Sampled {
  Token token = -1;      // -1: no logits
  float logprob = 0.0F;  // natural logarithm, before temperature and top-p
};

// index: number of the token within the answer, from 0.
Sampled sample(std::span<const float> logits, const SamplerOptions& options, std::uint32_t index);

}  // namespace kvferry::serve
