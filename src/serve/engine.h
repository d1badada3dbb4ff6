// What runs the model. One engine per process, driven by one scheduler thread; the methods marked
// "any thread" are pure look-ups. Pages are exported and imported in page_size_tokens units so that
// the transfer layer never learns what a model is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::serve {

using Token = std::int32_t;
using SequenceId = StrongId<struct SequenceTag, std::uint32_t>;

struct EngineInfo {
  std::string model_name;         // what /v1/models lists
  std::string model_fingerprint;  // equal only for equal weights and tokenizer
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  DType dtype = DType::kF16;
  std::uint32_t page_size_tokens = 64;
  std::uint32_t vocab_size = 0;
  std::uint32_t max_sequence_tokens = 0;  // prompt plus answer of one request
  std::uint32_t max_sequences = 0;        // open at once
  std::uint32_t cache_tokens = 0;         // over all sequences
  Numerics numerics;
};

struct ChatMessage {
  std::string role;
  std::string content;
};

// One pointer per K region, then one per V region: where the page's rows are read or written. Rows
// past token_count are zeroed on export and ignored on import.
using PagePointers = std::span<std::byte* const>;

struct StepItem {
  SequenceId sequence;
  Token token = 0;
  std::uint32_t position = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Any thread.
  virtual const EngineInfo& info() const = 0;
  virtual Result<std::vector<Token>> tokenize(std::string_view text, bool add_special,
                                              bool parse_special) const = 0;
  virtual std::string piece(Token token) const = 0;  // bytes; may be part of a UTF-8 character
  virtual bool ends_answer(Token token) const = 0;
  virtual Result<std::string> chat_prompt(std::span<const ChatMessage> messages) const = 0;

  // The scheduler's thread.
  virtual Result<SequenceId> open_sequence() = 0;
  virtual void close_sequence(SequenceId sequence) = 0;
  // Evaluates prompt tokens at [position, position + chunk.size()). With want_logits the last
  // token's logits are kept for logits(0).
  virtual Status prefill(SequenceId sequence, std::span<const Token> chunk, std::uint32_t position,
                         bool want_logits) = 0;
  virtual Status export_page(SequenceId sequence, std::uint32_t first_token,
                             std::uint32_t token_count, PagePointers page) = 0;
  // In position order, from 0.
  virtual Status import_page(SequenceId sequence, std::uint32_t first_token,
                             std::uint32_t token_count, PagePointers page) = 0;
  // One token of each sequence in one batch; logits(i) then belongs to items[i].
  virtual Status step(std::span<const StepItem> items) = 0;
  virtual std::span<const float> logits(std::size_t index) const = 0;
};

}  // namespace kvferry::serve
