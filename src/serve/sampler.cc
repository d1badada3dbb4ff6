#include "serve/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/prng.h"

namespace kvferry::serve {
namespace {

float log_probability(std::span<const float> logits, Token token, float highest) {
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - highest);
  }
  return static_cast<float>(logits[static_cast<std::size_t>(token)] - highest - std::log(sum));
}

}  // namespace

Sampled sample(std::span<const float> logits, const SamplerOptions& options, std::uint32_t index) {
  if (logits.empty()) {
    return {};
  }
  const auto best =
      static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const float highest = logits[static_cast<std::size_t>(best)];
  if (options.temperature <= 0.0) {
    return {best, log_probability(logits, best, highest)};
  }
  std::vector<double> weights(logits.size());
  for (std::size_t at = 0; at < logits.size(); ++at) {
    weights[at] = std::exp((static_cast<double>(logits[at]) - highest) / options.temperature);
  }
  std::vector<Token> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = total;
  if (options.top_p < 1.0) {
    // Equal weights keep the order of their tokens, so that the choice is the same everywhere.
    std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) {
      return weights[static_cast<std::size_t>(a)] > weights[static_cast<std::size_t>(b)];
    });
    kept = 0;
    std::size_t count = 0;
    while (count < order.size() && (count == 0 || kept < options.top_p * total)) {
      kept += weights[static_cast<std::size_t>(order[count++])];
    }
    order.resize(count);
  }
  Prng generator(options.seed ^ (0xD1B54A32D192ED03ULL * (index + 1ULL)));
  generator.next();
  double draw = static_cast<double>(generator.next() >> 11) * 0x1.0p-53 * kept;
  Token chosen = order.back();
  for (const Token token : order) {
    draw -= weights[static_cast<std::size_t>(token)];
    if (draw < 0) {
      chosen = token;
      break;
    }
  }
  return {chosen, log_probability(logits, chosen, highest)};
}

}  // namespace kvferry::serve
