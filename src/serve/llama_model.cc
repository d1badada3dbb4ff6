#include "serve/llama_model.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <mutex>

#include "base/crypto.h"
#include "base/log.h"

namespace kvferry::serve {
namespace {

// llama.cpp reports why a call failed only through its log, so the last error line is kept for the
// failure's text. Its log callback is one per process, hence this object is too.
struct LlamaLog {
  std::mutex mutex;
  std::string last_error;
};

LlamaLog& llama_log() {
  static LlamaLog log;
  return log;
}

void on_llama_log(ggml_log_level level, const char* text, void*) {
  if (level != GGML_LOG_LEVEL_ERROR || text == nullptr) {
    return;
  }
  std::string line(text);
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) {
    line.pop_back();
  }
  if (line.empty()) {
    return;
  }
  log::debug("llama.cpp: {}", line);
  std::lock_guard lock(llama_log().mutex);
  llama_log().last_error = std::move(line);
}

int find_kernel_library(dl_phdr_info* object, std::size_t, void* found) {
  const std::string name = std::filesystem::path(object->dlpi_name).filename().string();
  if (name.starts_with("libggml-cpu") && name.ends_with(".so")) {
    *static_cast<std::string*>(found) = name.substr(3, name.size() - 6);
  }
  return 0;
}

std::string folder_of_libllama() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&llama_backend_init), &info) == 0) {
    return ".";
  }
  return std::filesystem::path(info.dli_fname).parent_path().string();
}

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FilePtr = std::unique_ptr<std::FILE, FileCloser>;

// Opens the file when it is a GGUF file; else says what it is instead.
Result<FilePtr> open_gguf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return fail(
        FailureCode::kInvalidArgument,
        fmt::format("model file {}: {}; give the path of a GGUF file", path, std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return fail(
        FailureCode::kInvalidArgument,
        fmt::format("model file {} is not a regular file; give the path of a GGUF file", path));
  }
  FilePtr file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    return fail(
        FailureCode::kInvalidArgument,
        fmt::format("model file {}: {}; check its permissions", path, std::strerror(errno)));
  }
  char magic[4] = {};
  if (std::fread(magic, 1, sizeof magic, file.get()) != sizeof magic ||
      std::memcmp(magic, "GGUF", sizeof magic) != 0) {
    return fail(
        FailureCode::kInvalidArgument,
        fmt::format("model file {} is not a GGUF file (its first four bytes are not \"GGUF\"); "
                    "fetch or convert the model anew",
                    path));
  }
  return file;
}

// The head of the file, with its metadata, and blocks spread over the tensors.
Status append_sample(std::FILE* file, std::uint64_t file_bytes, std::vector<std::uint8_t>& sample) {
  constexpr std::uint64_t kFirstBytes = 1U << 20;
  constexpr std::uint64_t kBlockBytes = 4096;
  constexpr std::uint64_t kBlocks = 256;
  auto append = [&](std::uint64_t offset, std::uint64_t bytes) {
    const std::size_t at = sample.size();
    sample.resize(at + bytes);
    return std::fseek(file, static_cast<long>(offset), SEEK_SET) == 0 &&
           std::fread(sample.data() + at, 1, bytes, file) == bytes;
  };
  bool read = append(0, std::min(kFirstBytes, file_bytes));
  for (std::uint64_t block = 0; read && file_bytes > kBlockBytes && block < kBlocks; ++block) {
    read = append((file_bytes - kBlockBytes) / kBlocks * block, kBlockBytes);
  }
  if (!read) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("reading the model file failed: {}", std::strerror(errno)));
  }
  return {};
}

Status check_supported(const llama_model& model, const std::string& path) {
  const char* reason = nullptr;
  if (llama_model_is_recurrent(&model) || llama_model_is_hybrid(&model)) {
    reason = "it keeps recurrent state";
  } else if (llama_model_has_encoder(&model) || !llama_model_has_decoder(&model)) {
    reason = "it is not a decoder-only model";
  } else if (llama_model_is_diffusion(&model)) {
    reason = "it is a diffusion model";
  } else if (llama_model_n_swa(&model) > 0) {
    reason = "it uses sliding-window attention";
  }
  if (reason != nullptr) {
    return fail(
        FailureCode::kInvalidArgument,
        fmt::format("model {} can't be served in pages: {}; use a decoder-only model with full "
                    "attention",
                    path, reason));
  }
  return {};
}

}  // namespace

Result<std::string> load_kernel_library(const std::string& library_dir) {
  static std::mutex once;
  std::lock_guard lock(once);
  llama_log_set(on_llama_log, nullptr);
  const std::string dir = library_dir.empty() ? folder_of_libllama() : library_dir;
  if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) {
    ggml_backend_load_all_from_path(dir.c_str());
    llama_backend_init();
  }
  if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) {
    return fail(
        FailureCode::kInvalidArgument,
        fmt::format("no kernel library (libggml-cpu-*.so) for this processor in {}{}; set the "
                    "engine's library folder to one that has it",
                    dir, take_llama_error()));
  }
  std::string name;
  dl_iterate_phdr(find_kernel_library, &name);
  return name.empty() ? "built-in" : name;
}

std::string take_llama_error() {
  std::lock_guard lock(llama_log().mutex);
  std::string line = std::exchange(llama_log().last_error, {});
  return line.empty() ? line : " (llama.cpp: " + line + ")";
}

Result<ModelPtr> load_model(const std::string& path) {
  if (auto file = open_gguf(path); !file) {
    return tl::unexpected(file.error());
  }
  auto parameters = llama_model_default_params();
  parameters.n_gpu_layers = 0;
  take_llama_error();
  ModelPtr model(llama_model_load_from_file(path.c_str(), parameters));
  if (!model) {
    return fail(
        FailureCode::kInvalidArgument,
        fmt::format("llama.cpp can't load model {}{}; the file may be cut short or of a newer "
                    "format, fetch it anew",
                    path, take_llama_error()));
  }
  if (auto status = check_supported(*model, path); !status) {
    return tl::unexpected(status.error());
  }
  return model;
}

Result<std::string> model_fingerprint(const llama_model& model, const std::string& path) {
  auto file = open_gguf(path);
  if (!file) {
    return tl::unexpected(file.error());
  }
  char description[256] = {};
  llama_model_desc(&model, description, sizeof description);
  const auto file_bytes = static_cast<std::uint64_t>(std::filesystem::file_size(path));
  const std::string head = fmt::format(
      "{}|{}|{}|{}|{}|", description, llama_model_size(&model), llama_model_n_params(&model),
      llama_vocab_n_tokens(llama_model_get_vocab(&model)), file_bytes);
  std::vector<std::uint8_t> sample(head.begin(), head.end());
  if (auto status = append_sample(file->get(), file_bytes, sample); !status) {
    return tl::unexpected(status.error());
  }
  constexpr std::string_view kKey = "kvferry model fingerprint";
  const Digest digest =
      hmac_sha256({reinterpret_cast<const std::uint8_t*>(kKey.data()), kKey.size()}, sample);
  return "gguf-" + to_hex(std::span(digest).first(16));
}

std::string model_name(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

Result<std::vector<Token>> tokenize_text(const llama_vocab& vocab, std::string_view text,
                                         bool add_special, bool parse_special) {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()) / 2) {
    return fail(FailureCode::kInvalidArgument, "the prompt is too long to be split into tokens");
  }
  std::vector<Token> tokens(text.size() + 2);
  const std::int32_t count =
      llama_tokenize(&vocab, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                     static_cast<std::int32_t>(tokens.size()), add_special, parse_special);
  if (count < 0) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("the prompt can't be split into tokens{}", take_llama_error()));
  }
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

std::string token_piece(const llama_vocab& vocab, Token token) {
  if (token < 0 || token >= llama_vocab_n_tokens(&vocab)) {
    return {};
  }
  std::string piece(32, '\0');
  std::int32_t count = llama_token_to_piece(&vocab, token, piece.data(),
                                            static_cast<std::int32_t>(piece.size()), 0, false);
  if (count < 0) {
    piece.resize(static_cast<std::size_t>(-count));
    count = llama_token_to_piece(&vocab, token, piece.data(),
                                 static_cast<std::int32_t>(piece.size()), 0, false);
  }
  piece.resize(static_cast<std::size_t>(std::max(count, 0)));
  return piece;
}

Result<std::string> apply_chat_template(const llama_model& model,
                                        std::span<const ChatMessage> messages) {
  const char* chat_template = llama_model_chat_template(&model, nullptr);
  if (chat_template == nullptr) {
    return fail(FailureCode::kInvalidArgument,
                "the model has no chat template; use /v1/completions");
  }
  std::vector<llama_chat_message> chat;
  std::size_t bytes = 1024;
  for (const auto& message : messages) {
    chat.push_back({message.role.c_str(), message.content.c_str()});
    bytes += 2 * (message.role.size() + message.content.size()) + 64;
  }
  std::string prompt(bytes, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::int32_t count =
        llama_chat_apply_template(chat_template, chat.data(), chat.size(), true, prompt.data(),
                                  static_cast<std::int32_t>(prompt.size()));
    if (count < 0) {
      break;
    }
    const bool fits = static_cast<std::size_t>(count) <= prompt.size();
    prompt.resize(static_cast<std::size_t>(count));
    if (fits) {
      return prompt;
    }
  }
  return fail(FailureCode::kInvalidArgument,
              "the model's chat template is not one that llama.cpp knows; use /v1/completions");
}

Status quantize_model(const std::string& input_path, const std::string& output_path) {
  if (auto file = open_gguf(input_path); !file) {
    return tl::unexpected(file.error());
  }
  if (auto kernels = load_kernel_library({}); !kernels) {
    return tl::unexpected(kernels.error());
  }
  auto parameters = llama_model_quantize_default_params();
  parameters.ftype = LLAMA_FTYPE_MOSTLY_Q4_0;
  parameters.allow_requantize = true;
  const std::string partial = fmt::format("{}.partial-{}", output_path, getpid());
  take_llama_error();
  const std::uint32_t outcome =
      llama_model_quantize(input_path.c_str(), partial.c_str(), &parameters);
  if (outcome != 0 || std::rename(partial.c_str(), output_path.c_str()) != 0) {
    const std::string reason = outcome != 0 ? take_llama_error() : std::strerror(errno);
    std::remove(partial.c_str());
    return fail(FailureCode::kOperatingSystem,
                fmt::format("quantizing {} into {} failed: {}; check space and permissions",
                            input_path, output_path, reason));
  }
  return {};
}

}  // namespace kvferry::serve
