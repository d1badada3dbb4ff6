#include "serve/llama_engine.h"

#include <fmt/format.h>
#include <llama.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "serve/llama_blob.h"
#include "serve/llama_model.h"

namespace kvferry::serve {
namespace {

// Rows of K that the attention kernel handles together for batches of at least as many tokens.
constexpr std::uint32_t kTileTokens = 64;
// llama.cpp's own limit, less the scratch and the spent sequence.
constexpr std::uint32_t kMaxSequences = 254;

struct BatchDeleter {
  void operator()(llama_batch* batch) const {
    llama_batch_free(*batch);
    delete batch;
  }
};
using BatchPtr = std::unique_ptr<llama_batch, BatchDeleter>;

Status check_options(const LlamaOptions& options) {
  auto refuse = [](std::string what) {
    return fail(FailureCode::kInvalidArgument, std::move(what));
  };
  if (options.page_size_tokens == 0 || options.prefill_chunk_tokens == 0 ||
      options.prefill_chunk_tokens % options.page_size_tokens != 0) {
    return refuse(fmt::format("prefill chunk of {} tokens is not a multiple of the page size of {}",
                              options.prefill_chunk_tokens, options.page_size_tokens));
  }
  if (options.threads == 0 || options.threads > 512) {
    return refuse(fmt::format("{} engine threads; 1 to 512 are possible", options.threads));
  }
  if (options.max_sequences == 0 || options.max_sequences > kMaxSequences) {
    return refuse(
        fmt::format("{} sequences; 1 to {} are possible", options.max_sequences, kMaxSequences));
  }
  if (options.context_tokens < 2 || options.context_tokens > (1U << 20)) {
    return refuse(fmt::format("context of {} tokens; 2 to {} are possible", options.context_tokens,
                              1U << 20));
  }
  return {};
}

class LlamaEngine final : public Engine {
 public:
  LlamaEngine(LlamaOptions options, ModelPtr model, ContextPtr context, EngineInfo info)
      : options_(std::move(options)),
        model_(std::move(model)),
        context_(std::move(context)),
        vocab_(*llama_model_get_vocab(model_.get())),
        memory_(llama_get_memory(context_.get())),
        info_(std::move(info)),
        scratch_(static_cast<llama_seq_id>(options_.max_sequences)),
        spent_(scratch_ + 1),
        capacity_(llama_n_ctx(context_.get())),
        batch_(new llama_batch(
            llama_batch_init(static_cast<std::int32_t>(
                                 std::max(options_.prefill_chunk_tokens, options_.max_sequences)),
                             0, 1))),
        sequences_(options_.max_sequences) {}

  // Learns the shape of the KV rows from a state of one token, the only place where llama.cpp shows
  // whether they are equal in all layers.
  Status probe();

  const EngineInfo& info() const override { return info_; }
  Result<std::vector<Token>> tokenize(std::string_view text, bool add_special,
                                      bool parse_special) const override {
    return tokenize_text(vocab_, text, add_special, parse_special);
  }
  std::string piece(Token token) const override { return token_piece(vocab_, token); }
  bool ends_answer(Token token) const override { return llama_vocab_is_eog(&vocab_, token); }
  Result<std::string> chat_prompt(std::span<const ChatMessage> messages) const override {
    return apply_chat_template(*model_, messages);
  }

  Result<SequenceId> open_sequence() override;
  void close_sequence(SequenceId sequence) override;
  Status prefill(SequenceId sequence, std::span<const Token> chunk, std::uint32_t position,
                 bool want_logits) override;
  Status export_page(SequenceId sequence, std::uint32_t first_token, std::uint32_t token_count,
                     PagePointers page) override;
  Status import_page(SequenceId sequence, std::uint32_t first_token, std::uint32_t token_count,
                     PagePointers page) override;
  Status step(std::span<const StepItem> items) override;
  std::span<const float> logits(std::size_t index) const override;

 private:
  struct Sequence {
    bool open = false;
    std::uint32_t tokens = 0;
  };

  Status check_append(SequenceId sequence, std::uint32_t position, std::size_t count) const;
  Status evaluate(std::uint32_t count);
  // Makes sure that the next count cells follow all that are in use. A closed sequence leaves its
  // cells in place under the spent sequence: were they freed at once, llama.cpp would put the next
  // token of another sequence into the hole, out of order.
  Status make_room(std::uint32_t count);
  // Drops spent cells and lays the open sequences out anew.
  Status compact();
  // Fills cells until the next one's number equals position modulo the tile.
  Status align(std::uint32_t position);
  Status restore(llama_seq_id sequence, std::span<const std::byte> blob);

  const LlamaOptions options_;
  const ModelPtr model_;
  const ContextPtr context_;
  const llama_vocab& vocab_;
  const llama_memory_t memory_;
  EngineInfo info_;
  BlobShape shape_;
  const llama_seq_id scratch_;
  const llama_seq_id spent_;
  const std::uint32_t capacity_;
  const BatchPtr batch_;
  std::vector<Sequence> sequences_;
  std::uint32_t used_cells_ = 0;  // all cells below this one hold something, none above does
  std::vector<std::int32_t> logit_rows_;
  std::vector<std::byte> blob_;
};

Status LlamaEngine::probe() {
  batch_->n_tokens = 1;
  const Token bos = llama_vocab_bos(&vocab_);
  batch_->token[0] = bos == LLAMA_TOKEN_NULL ? 0 : bos;
  batch_->pos[0] = 0;
  batch_->n_seq_id[0] = 1;
  batch_->seq_id[0][0] = scratch_;
  batch_->logits[0] = 1;
  if (const std::int32_t outcome = llama_decode(context_.get(), *batch_); outcome != 0) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("model {} can't evaluate one token (llama_decode gives {}){}",
                            options_.model_path, outcome, take_llama_error()));
  }
  blob_.resize(llama_state_seq_get_size(context_.get(), scratch_));
  const std::size_t bytes = llama_state_seq_get_data(
      context_.get(), reinterpret_cast<std::uint8_t*>(blob_.data()), blob_.size(), scratch_);
  auto shape = probe_blob(std::span(blob_).first(bytes));
  if (!shape) {
    Failure failure = shape.error();
    failure.what = fmt::format(
        "model {} can't be served in pages: {}; use a model whose K and V rows "
        "are alike in all layers",
        options_.model_path, failure.what);
    return tl::unexpected(std::move(failure));
  }
  shape_ = *shape;
  const auto heads = static_cast<std::uint32_t>(llama_model_n_head_kv(model_.get()));
  if (shape_.type != GGML_TYPE_F16 || heads == 0 || shape_.row_bytes % (2 * heads) != 0) {
    return fail(
        FailureCode::kInvalidArgument,
        fmt::format("model {} can't be served in pages: KV rows of type {} and {} bytes are not "
                    "{} heads of f16",
                    options_.model_path, shape_.type, shape_.row_bytes, heads));
  }
  info_.layers = shape_.layers;
  info_.kv_heads = heads;
  info_.head_dim = shape_.row_bytes / 2 / heads;
  llama_memory_clear(memory_, true);
  return {};
}

Result<SequenceId> LlamaEngine::open_sequence() {
  for (std::uint32_t index = 0; index < sequences_.size(); ++index) {
    if (!sequences_[index].open) {
      sequences_[index] = {true, 0};
      return SequenceId(index);
    }
  }
  return fail(FailureCode::kTableFull,
              fmt::format("all {} sequences of the engine are in use", sequences_.size()));
}

void LlamaEngine::close_sequence(SequenceId sequence) {
  if (sequence.value() >= sequences_.size() || !sequences_[sequence.value()].open) {
    return;
  }
  sequences_[sequence.value()].open = false;
  const auto is_open = [](const Sequence& each) { return each.open && each.tokens > 0; };
  if (std::none_of(sequences_.begin(), sequences_.end(), is_open)) {
    llama_memory_clear(memory_, false);
    used_cells_ = 0;
    return;
  }
  const auto id = static_cast<llama_seq_id>(sequence.value());
  llama_memory_seq_cp(memory_, id, spent_, -1, -1);
  llama_memory_seq_rm(memory_, id, -1, -1);
}

Status LlamaEngine::check_append(SequenceId sequence, std::uint32_t position,
                                 std::size_t count) const {
  if (sequence.value() >= sequences_.size() || !sequences_[sequence.value()].open) {
    return fail(FailureCode::kWrongState,
                fmt::format("sequence {} of the engine is not open", sequence.value()));
  }
  const std::uint32_t tokens = sequences_[sequence.value()].tokens;
  if (position != tokens) {
    return fail(FailureCode::kWrongState,
                fmt::format("sequence {} of the engine has {} tokens, position {} does not follow",
                            sequence.value(), tokens, position));
  }
  if (count == 0 || count > info_.max_sequence_tokens - tokens) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("{} tokens after {} in a context of {}", count, tokens,
                            info_.max_sequence_tokens));
  }
  return {};
}

Status LlamaEngine::evaluate(std::uint32_t count) {
  batch_->n_tokens = static_cast<std::int32_t>(count);
  const std::int32_t outcome = llama_decode(context_.get(), *batch_);
  if (outcome != 0) {
    // What was evaluated before the error may be in the cache; the next call lays it out anew.
    used_cells_ = capacity_;
    return fail(FailureCode::kUnspecified,
                fmt::format("the engine failed: llama_decode gives {} for {} tokens{}", outcome,
                            count, take_llama_error()));
  }
  used_cells_ += count;
  return {};
}

Status LlamaEngine::prefill(SequenceId sequence, std::span<const Token> chunk,
                            std::uint32_t position, bool want_logits) {
  if (auto status = check_append(sequence, position, chunk.size()); !status) {
    return status;
  }
  if (chunk.size() > options_.prefill_chunk_tokens) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("chunk of {} tokens, the engine takes {}", chunk.size(),
                            options_.prefill_chunk_tokens));
  }
  const auto count = static_cast<std::uint32_t>(chunk.size());
  if (auto status = make_room(count + kTileTokens); !status) {
    return status;
  }
  if (auto status = align(position); !status) {
    return status;
  }
  for (std::uint32_t index = 0; index < count; ++index) {
    batch_->token[index] = chunk[index];
    batch_->pos[index] = static_cast<llama_pos>(position + index);
    batch_->n_seq_id[index] = 1;
    batch_->seq_id[index][0] = static_cast<llama_seq_id>(sequence.value());
    batch_->logits[index] = want_logits && index + 1 == count;
  }
  logit_rows_.clear();
  if (want_logits) {
    logit_rows_.push_back(static_cast<std::int32_t>(count) - 1);
  }
  if (auto status = evaluate(count); !status) {
    return status;
  }
  sequences_[sequence.value()].tokens += count;
  return {};
}

Status LlamaEngine::step(std::span<const StepItem> items) {
  if (items.size() > sequences_.size()) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("{} sequences in one step, the engine has {}", items.size(),
                            sequences_.size()));
  }
  for (const auto& item : items) {
    if (auto status = check_append(item.sequence, item.position, 1); !status) {
      return status;
    }
  }
  const auto count = static_cast<std::uint32_t>(items.size());
  if (auto status = make_room(count); !status) {
    return status;
  }
  logit_rows_.clear();
  for (std::uint32_t index = 0; index < count; ++index) {
    batch_->token[index] = items[index].token;
    batch_->pos[index] = static_cast<llama_pos>(items[index].position);
    batch_->n_seq_id[index] = 1;
    batch_->seq_id[index][0] = static_cast<llama_seq_id>(items[index].sequence.value());
    batch_->logits[index] = 1;
    logit_rows_.push_back(static_cast<std::int32_t>(index));
  }
  if (auto status = evaluate(count); !status) {
    return status;
  }
  for (const auto& item : items) {
    ++sequences_[item.sequence.value()].tokens;
  }
  return {};
}

std::span<const float> LlamaEngine::logits(std::size_t index) const {
  if (index >= logit_rows_.size()) {
    return {};
  }
  const float* row = llama_get_logits_ith(context_.get(), logit_rows_[index]);
  return row == nullptr ? std::span<const float>() : std::span(row, info_.vocab_size);
}

Status LlamaEngine::export_page(SequenceId sequence, std::uint32_t first_token,
                                std::uint32_t token_count, PagePointers page) {
  if (sequence.value() >= sequences_.size() || token_count == 0 ||
      token_count > options_.page_size_tokens ||
      first_token + token_count > sequences_[sequence.value()].tokens) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("tokens [{}, {}) of sequence {} are not there", first_token,
                            first_token + token_count, sequence.value()));
  }
  llama_memory_seq_cp(memory_, static_cast<llama_seq_id>(sequence.value()), scratch_,
                      static_cast<llama_pos>(first_token),
                      static_cast<llama_pos>(first_token + token_count));
  blob_.resize(blob_bytes(shape_, token_count));
  const std::size_t bytes = llama_state_seq_get_data(
      context_.get(), reinterpret_cast<std::uint8_t*>(blob_.data()), blob_.size(), scratch_);
  llama_memory_seq_rm(memory_, scratch_, -1, -1);
  if (bytes == 0) {
    return fail(FailureCode::kUnspecified,
                fmt::format("the engine can't export {} tokens from position {}{}", token_count,
                            first_token, take_llama_error()));
  }
  if (auto status =
          scatter_blob(std::span(blob_).first(bytes), shape_, first_token, token_count, page);
      !status) {
    return status;
  }
  const std::size_t used = std::size_t{token_count} * shape_.row_bytes;
  const std::size_t rest = std::size_t{options_.page_size_tokens} * shape_.row_bytes - used;
  for (std::byte* region : page) {
    std::memset(region + used, 0, rest);
  }
  return {};
}

Status LlamaEngine::import_page(SequenceId sequence, std::uint32_t first_token,
                                std::uint32_t token_count, PagePointers page) {
  if (auto status = check_append(sequence, first_token, token_count); !status) {
    return status;
  }
  if (page.size() != 2ULL * shape_.layers || token_count > options_.page_size_tokens) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("a page of {} regions with {} tokens; the engine has {} regions",
                            page.size(), token_count, 2 * shape_.layers));
  }
  if (auto status = make_room(token_count); !status) {
    return status;
  }
  gather_blob(shape_, scratch_, first_token, token_count, page, blob_);
  if (auto status = restore(scratch_, blob_); !status) {
    return status;
  }
  llama_memory_seq_cp(memory_, scratch_, static_cast<llama_seq_id>(sequence.value()), -1, -1);
  llama_memory_seq_rm(memory_, scratch_, -1, -1);
  used_cells_ += token_count;
  sequences_[sequence.value()].tokens += token_count;
  return {};
}

Status LlamaEngine::restore(llama_seq_id sequence, std::span<const std::byte> blob) {
  const std::size_t bytes = llama_state_seq_set_data(
      context_.get(), reinterpret_cast<const std::uint8_t*>(blob.data()), blob.size(), sequence);
  if (bytes != blob.size()) {
    used_cells_ = capacity_;
    return fail(FailureCode::kUnspecified, fmt::format("the engine took {} of {} bytes of KV{}",
                                                       bytes, blob.size(), take_llama_error()));
  }
  return {};
}

Status LlamaEngine::make_room(std::uint32_t count) {
  if (capacity_ - used_cells_ >= count) {
    return {};
  }
  if (auto status = compact(); !status) {
    return status;
  }
  if (capacity_ - used_cells_ < count) {
    return fail(FailureCode::kTableFull,
                fmt::format("the engine's cache of {} tokens has {} left, {} are needed", capacity_,
                            capacity_ - used_cells_, count));
  }
  return {};
}

Status LlamaEngine::compact() {
  std::vector<std::pair<llama_seq_id, std::vector<std::byte>>> kept;
  for (std::uint32_t index = 0; index < sequences_.size(); ++index) {
    if (!sequences_[index].open || sequences_[index].tokens == 0) {
      continue;
    }
    const auto id = static_cast<llama_seq_id>(index);
    std::vector<std::byte> blob(llama_state_seq_get_size(context_.get(), id));
    const std::size_t bytes = llama_state_seq_get_data(
        context_.get(), reinterpret_cast<std::uint8_t*>(blob.data()), blob.size(), id);
    if (bytes != blob.size()) {
      return fail(FailureCode::kUnspecified,
                  fmt::format("the engine can't save sequence {}{}", index, take_llama_error()));
    }
    kept.emplace_back(id, std::move(blob));
  }
  llama_memory_clear(memory_, false);
  used_cells_ = 0;
  for (const auto& [id, blob] : kept) {
    if (auto status = align(0); !status) {
      return status;
    }
    if (auto status = restore(id, blob); !status) {
      return status;
    }
    used_cells_ += sequences_[static_cast<std::uint32_t>(id)].tokens;
  }
  log::debug("the engine's cache was laid out anew: {} sequences, {} of {} cells", kept.size(),
             used_cells_, capacity_);
  return {};
}

Status LlamaEngine::align(std::uint32_t position) {
  const std::uint32_t gap =
      (position % kTileTokens + kTileTokens - used_cells_ % kTileTokens) % kTileTokens;
  if (gap == 0) {
    return {};
  }
  const std::vector<std::byte> zeros(std::size_t{gap} * shape_.row_bytes);
  const std::vector<std::byte*> rows(2ULL * shape_.layers, const_cast<std::byte*>(zeros.data()));
  std::vector<std::byte> blob;
  gather_blob(shape_, scratch_, 0, gap, rows, blob);
  if (auto status = restore(scratch_, blob); !status) {
    return status;
  }
  llama_memory_seq_cp(memory_, scratch_, spent_, -1, -1);
  llama_memory_seq_rm(memory_, scratch_, -1, -1);
  used_cells_ += gap;
  return {};
}

Result<ContextPtr> make_context(llama_model& model, const LlamaOptions& options,
                                std::uint32_t max_sequence_tokens) {
  auto parameters = llama_context_default_params();
  // Room for every sequence at its longest, each with one unfilled tile, and for one chunk.
  parameters.n_ctx = (max_sequence_tokens + kTileTokens) * options.max_sequences +
                     options.prefill_chunk_tokens + kTileTokens;
  parameters.n_batch = std::max(options.prefill_chunk_tokens, options.max_sequences);
  parameters.n_ubatch = parameters.n_batch;
  parameters.n_seq_max = options.max_sequences + 2;
  parameters.kv_unified = true;
  parameters.n_threads = static_cast<std::int32_t>(options.threads);
  parameters.n_threads_batch = static_cast<std::int32_t>(options.threads);
  parameters.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  parameters.type_k = GGML_TYPE_F16;
  parameters.type_v = GGML_TYPE_F16;
  parameters.no_perf = true;
  ContextPtr context(llama_init_from_model(&model, parameters));
  if (!context) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("llama.cpp can't make a context of {} tokens for model {}{}; lower the "
                            "context or the number of sequences",
                            parameters.n_ctx, options.model_path, take_llama_error()));
  }
  return context;
}

}  // namespace

Result<std::unique_ptr<Engine>> load_llama_engine(LlamaOptions options) {
  if (auto status = check_options(options); !status) {
    return tl::unexpected(status.error());
  }
  auto kernels = load_kernel_library(options.library_dir);
  if (!kernels) {
    return tl::unexpected(kernels.error());
  }
  auto model = load_model(options.model_path);
  if (!model) {
    return tl::unexpected(model.error());
  }
  auto fingerprint = model_fingerprint(**model, options.model_path);
  if (!fingerprint) {
    return tl::unexpected(fingerprint.error());
  }
  const auto trained = static_cast<std::uint32_t>(llama_model_n_ctx_train(model->get()));
  if (options.context_tokens > trained) {
    log::warning("the model was trained for {} tokens; the context of {} is cut to that", trained,
                 options.context_tokens);
  }
  EngineInfo info;
  info.max_sequence_tokens = std::min(options.context_tokens, trained);
  auto context = make_context(**model, options, info.max_sequence_tokens);
  if (!context) {
    return tl::unexpected(context.error());
  }
  info.model_name = model_name(options.model_path);
  info.model_fingerprint = *fingerprint;
  info.page_size_tokens = options.page_size_tokens;
  info.vocab_size =
      static_cast<std::uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model->get())));
  info.max_sequences = options.max_sequences;
  info.cache_tokens = llama_n_ctx(context->get());
  info.numerics.kernel_library = *kernels;
  info.numerics.threads = options.threads;
  info.numerics.prefill_chunk_tokens = options.prefill_chunk_tokens;
  info.numerics.flags = fmt::format("llama.cpp {} flash-attention unified f16", llama_version());
  auto engine = std::make_unique<LlamaEngine>(std::move(options), std::move(*model),
                                              std::move(*context), std::move(info));
  if (auto status = engine->probe(); !status) {
    return tl::unexpected(status.error());
  }
  return engine;
}

}  // namespace kvferry::serve
