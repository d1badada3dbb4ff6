// Short ways to run an engine in tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "serve/engine.h"
#include "serve/page_pool.h"
#include "serve/sampler.h"

namespace kvferry::serve {

template <typename T>
T must(Result<T> result) {
  if (!result) {
    throw std::runtime_error(to_string(result.error()));
  }
  return std::move(*result);
}
inline void must(Status status) {
  if (!status) {
    throw std::runtime_error(to_string(status.error()));
  }
}

inline Sampled greedy(const Engine& engine, std::size_t index = 0) {
  return sample(engine.logits(index), {0.0, 1.0, 0}, 0);
}

inline void prefill_range(Engine& engine, SequenceId sequence, std::span<const Token> prompt,
                          std::uint32_t& position) {
  const std::uint32_t chunk = engine.info().numerics.prefill_chunk_tokens;
  const auto size = static_cast<std::uint32_t>(prompt.size());
  const std::uint32_t count = std::min(chunk, size - position);
  must(engine.prefill(sequence, prompt.subspan(position, count), position,
                      position + count == size));
  position += count;
}

// Prefills the whole prompt and returns the first token.
inline Token prefill_all(Engine& engine, SequenceId sequence, std::span<const Token> prompt) {
  std::uint32_t position = 0;
  while (position < prompt.size()) {
    prefill_range(engine, sequence, prompt, position);
  }
  return greedy(engine).token;
}

// Tokens of a greedy answer, with the likelihood of each: equal doubles mean equal logits in
// practice.
struct Reply {
  std::vector<Token> tokens;
  std::vector<float> logprobs;
  friend bool operator==(const Reply&, const Reply&) = default;
};

// Continues several sequences in one batch.
struct Continuation {
  SequenceId sequence;
  Token next = 0;
  std::uint32_t position = 0;
  Reply answer;
};

inline void step_all(Engine& engine, std::span<Continuation* const> group) {
  std::vector<StepItem> items;
  for (Continuation* each : group) {
    each->answer.tokens.push_back(each->next);
    items.push_back({each->sequence, each->next, each->position++});
  }
  must(engine.step(items));
  for (std::size_t index = 0; index < group.size(); ++index) {
    const Sampled sampled = greedy(engine, index);
    group[index]->next = sampled.token;
    group[index]->answer.logprobs.push_back(sampled.logprob);
  }
}

// What one idle process answers.
inline Reply answer_alone(Engine& engine, std::span<const Token> prompt, int tokens) {
  const SequenceId sequence = must(engine.open_sequence());
  Continuation one{sequence,
                   prefill_all(engine, sequence, prompt),
                   static_cast<std::uint32_t>(prompt.size()),
                   {}};
  Continuation* group[] = {&one};
  for (int count = 0; count < tokens; ++count) {
    step_all(engine, group);
  }
  engine.close_sequence(sequence);
  return one.answer;
}

// Moves a sequence through a pool's pages from one engine (or sequence) to another.
inline std::vector<PageIndex> export_all(Engine& engine, SequenceId sequence, std::uint32_t tokens,
                                         PagePool& pool) {
  const std::uint32_t size = engine.info().page_size_tokens;
  auto pages = pool.take_pages(pool.pages_for(tokens)).value();
  for (std::uint32_t index = 0; index < pages.size(); ++index) {
    const std::uint32_t first = index * size;
    must(engine.export_page(sequence, first, std::min(size, tokens - first),
                            pool.page(pages[index])));
  }
  return pages;
}
inline void import_all(Engine& engine, SequenceId sequence, std::uint32_t tokens,
                       std::span<const PageIndex> pages, PagePool& pool) {
  const std::uint32_t size = engine.info().page_size_tokens;
  for (std::uint32_t index = 0; index < pages.size(); ++index) {
    const std::uint32_t first = index * size;
    must(engine.import_page(sequence, first, std::min(size, tokens - first),
                            pool.page(pages[index])));
  }
}

}  // namespace kvferry::serve
