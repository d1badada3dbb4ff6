// The model file of a llama engine: loading, naming, and the calls that need no context. Internal
// to the llama engine's units.
#pragma once

#include <llama.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/status.h"
#include "serve/engine.h"
#include "serve/llama_engine.h"

namespace kvferry::serve {

struct ModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct ContextDeleter {
  void operator()(llama_context* context) const { llama_free(context); }
};
using ModelPtr = std::unique_ptr<llama_model, ModelDeleter>;
using ContextPtr = std::unique_ptr<llama_context, ContextDeleter>;

// Loads the kernel libraries once per process and returns the name of the one that was chosen for
// this machine, for example "ggml-cpu-zen4".
Result<std::string> load_kernel_library(const std::string& library_dir);

// The last error that llama.cpp logged since the last call, as " (llama.cpp: ...)", or nothing.
std::string take_llama_error();

Result<ModelPtr> load_model(const std::string& path);
// Equal only for equal weights and tokenizer, as far as metadata and a sample of the file tell.
Result<std::string> model_fingerprint(const llama_model& model, const std::string& path);
std::string model_name(const std::string& path);

Result<std::vector<Token>> tokenize_text(const llama_vocab& vocab, std::string_view text,
                                         bool add_special, bool parse_special);
std::string token_piece(const llama_vocab& vocab, Token token);
Result<std::string> apply_chat_template(const llama_model& model,
                                        std::span<const ChatMessage> messages);

}  // namespace kvferry::serve
