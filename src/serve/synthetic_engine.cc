#include "serve/synthetic_engine.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "base/prng.h"

namespace kvferry::serve {
namespace {

constexpr std::uint32_t kVocabulary = 257;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return Prng(a ^ (b * 0x9E3779B97F4A7C15ULL)).next();
}

std::uint64_t digest_bytes(std::uint64_t digest, const std::byte* bytes, std::size_t count) {
  for (std::size_t at = 0; at < count; at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min(sizeof word, count - at));
    digest = mix(digest, word);
  }
  return digest;
}

class SyntheticEngine final : public Engine {
 public:
  explicit SyntheticEngine(SyntheticOptions options)
      : options_(options),
        row_bytes_(options.kv_heads * options.head_dim * 2),
        sequences_(options.max_sequences) {
    info_.model_name = "synthetic";
    info_.model_fingerprint =
        fmt::format("synthetic-{}-{}-{}", options.layers, options.kv_heads, options.head_dim);
    info_.layers = options.layers;
    info_.kv_heads = options.kv_heads;
    info_.head_dim = options.head_dim;
    info_.page_size_tokens = options.page_size_tokens;
    info_.vocab_size = kVocabulary;
    info_.max_sequence_tokens = options.context_tokens;
    info_.max_sequences = options.max_sequences;
    info_.cache_tokens = options.context_tokens * options.max_sequences;
    info_.numerics = {"synthetic", 1, options.prefill_chunk_tokens, "exact"};
  }

  const EngineInfo& info() const override { return info_; }

  Result<std::vector<Token>> tokenize(std::string_view text, bool, bool) const override {
    std::vector<Token> tokens;
    tokens.reserve(text.size());
    for (const char byte : text) {
      tokens.push_back(static_cast<unsigned char>(byte));
    }
    return tokens;
  }
  std::string piece(Token token) const override {
    return token >= 0 && token < kSyntheticEnd ? std::string(1, static_cast<char>(token)) : "";
  }
  bool ends_answer(Token token) const override { return token == kSyntheticEnd; }
  Result<std::string> chat_prompt(std::span<const ChatMessage> messages) const override {
    std::string prompt;
    for (const auto& message : messages) {
      prompt += message.role + ": " + message.content + "\n";
    }
    return prompt + "assistant: ";
  }

  Result<SequenceId> open_sequence() override {
    for (std::uint32_t index = 0; index < sequences_.size(); ++index) {
      if (!sequences_[index].open) {
        sequences_[index] = Sequence{true, 0, 1, {}};
        return SequenceId(index);
      }
    }
    return fail(FailureCode::kTableFull,
                fmt::format("all {} sequences of the engine are in use", sequences_.size()));
  }
  void close_sequence(SequenceId sequence) override {
    if (sequence.value() < sequences_.size()) {
      sequences_[sequence.value()] = {};
    }
  }

  Status prefill(SequenceId id, std::span<const Token> chunk, std::uint32_t position,
                 bool want_logits) override {
    if (auto status = check_append(id, position, chunk.size()); !status) {
      return status;
    }
    rest(options_.prefill_delay_ms);
    for (const Token token : chunk) {
      append(sequences_[id.value()], token);
    }
    logits_.clear();
    if (want_logits) {
      add_logits(sequences_[id.value()]);
    }
    return {};
  }

  Status export_page(SequenceId id, std::uint32_t first_token, std::uint32_t token_count,
                     PagePointers page) override {
    if (id.value() >= sequences_.size() || token_count == 0 ||
        token_count > options_.page_size_tokens || page.size() != regions() ||
        first_token + token_count > sequences_[id.value()].tokens) {
      return fail(FailureCode::kInvalidArgument, "these tokens are not in the sequence");
    }
    const Sequence& sequence = sequences_[id.value()];
    for (std::uint32_t region = 0; region < regions(); ++region) {
      std::memset(page[region], 0, std::size_t{options_.page_size_tokens} * row_bytes_);
      for (std::uint32_t row = 0; row < token_count; ++row) {
        std::memcpy(page[region] + std::size_t{row} * row_bytes_,
                    row_at(sequence, first_token + row, region), row_bytes_);
      }
    }
    return {};
  }

  Status import_page(SequenceId id, std::uint32_t first_token, std::uint32_t token_count,
                     PagePointers page) override {
    if (auto status = check_append(id, first_token, token_count); !status) {
      return status;
    }
    if (token_count > options_.page_size_tokens || page.size() != regions()) {
      return fail(FailureCode::kInvalidArgument, "the page has another shape");
    }
    Sequence& sequence = sequences_[id.value()];
    for (std::uint32_t row = 0; row < token_count; ++row) {
      const std::size_t at = sequence.rows.size();
      sequence.rows.resize(at + std::size_t{regions()} * row_bytes_);
      for (std::uint32_t region = 0; region < regions(); ++region) {
        std::memcpy(sequence.rows.data() + at + std::size_t{region} * row_bytes_,
                    page[region] + std::size_t{row} * row_bytes_, row_bytes_);
      }
      close_row(sequence, at);
    }
    return {};
  }

  Status step(std::span<const StepItem> items) override {
    for (const auto& item : items) {
      if (auto status = check_append(item.sequence, item.position, 1); !status) {
        return status;
      }
    }
    rest(options_.step_delay_ms);
    logits_.clear();
    for (const auto& item : items) {
      append(sequences_[item.sequence.value()], item.token);
      add_logits(sequences_[item.sequence.value()]);
    }
    return {};
  }

  std::span<const float> logits(std::size_t index) const override {
    if ((index + 1) * kVocabulary > logits_.size()) {
      return {};
    }
    return std::span(logits_).subspan(index * kVocabulary, kVocabulary);
  }

 private:
  struct Sequence {
    bool open = false;
    std::uint32_t tokens = 0;
    std::uint64_t digest = 1;     // over the bytes of all rows so far
    std::vector<std::byte> rows;  // [token][region][row]
  };

  std::uint32_t regions() const { return 2 * options_.layers; }
  const std::byte* row_at(const Sequence& sequence, std::uint32_t token,
                          std::uint32_t region) const {
    return sequence.rows.data() + (std::size_t{token} * regions() + region) * row_bytes_;
  }

  Status check_append(SequenceId id, std::uint32_t position, std::size_t count) const {
    if (id.value() >= sequences_.size() || !sequences_[id.value()].open ||
        sequences_[id.value()].tokens != position) {
      return fail(FailureCode::kWrongState,
                  fmt::format("position {} does not follow in sequence {}", position, id.value()));
    }
    if (count == 0 || count > options_.context_tokens - position) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("{} tokens after {} in a context of {}", count, position,
                              options_.context_tokens));
    }
    return {};
  }

  void append(Sequence& sequence, Token token) {
    Prng bytes(mix(mix(sequence.digest, static_cast<std::uint64_t>(token)), sequence.tokens));
    const std::size_t at = sequence.rows.size();
    sequence.rows.resize(at + std::size_t{regions()} * row_bytes_);
    for (std::size_t offset = at; offset < sequence.rows.size(); offset += 8) {
      const std::uint64_t word = bytes.next();
      std::memcpy(sequence.rows.data() + offset, &word,
                  std::min<std::size_t>(8, sequence.rows.size() - offset));
    }
    close_row(sequence, at);
  }

  void close_row(Sequence& sequence, std::size_t at) {
    sequence.digest =
        digest_bytes(sequence.digest, sequence.rows.data() + at, sequence.rows.size() - at);
    ++sequence.tokens;
  }

  // Favours small letters and spaces, so that answers can be printed.
  void add_logits(const Sequence& sequence) {
    Prng draw(sequence.digest);
    const bool ends = options_.end_odds != 0 && draw.below(options_.end_odds) == 0;
    const std::size_t at = logits_.size();
    for (std::uint32_t token = 0; token < kVocabulary; ++token) {
      const bool readable = (token >= 'a' && token <= 'z') || token == ' ';
      const auto noise = static_cast<float>(draw.below(1U << 20)) / static_cast<float>(1U << 18);
      logits_.push_back(noise + (readable ? 10.0F : 0.0F));
    }
    logits_[at + kSyntheticEnd] = ends ? 30.0F : -30.0F;
  }

  static void rest(std::uint32_t milliseconds) {
    if (milliseconds > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    }
  }

  const SyntheticOptions options_;
  const std::uint32_t row_bytes_;
  EngineInfo info_;
  std::vector<Sequence> sequences_;
  std::vector<float> logits_;
};

}  // namespace

Result<std::unique_ptr<Engine>> make_synthetic_engine(SyntheticOptions options) {
  if (options.layers == 0 || options.kv_heads == 0 || options.head_dim == 0 ||
      options.max_sequences == 0 || options.context_tokens < 2) {
    return fail(FailureCode::kInvalidArgument,
                "the synthetic engine needs layers, heads, a head size, sequences and a context");
  }
  if (options.page_size_tokens == 0 || options.prefill_chunk_tokens == 0 ||
      options.prefill_chunk_tokens % options.page_size_tokens != 0) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("prefill chunk of {} tokens is not a multiple of the page size of {}",
                            options.prefill_chunk_tokens, options.page_size_tokens));
  }
  return std::make_unique<SyntheticEngine>(options);
}

}  // namespace kvferry::serve
