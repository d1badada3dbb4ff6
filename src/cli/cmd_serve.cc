#include "cli/command.h"
#include "cli/server_main.h"
#include "serve/server.h"

namespace kvferry::cli {
namespace {

class ServeInvocation final : public Invocation {
 public:
  void declare(Settings& settings) override {
    settings.choice(
        "role", role_, {"prefill", "decode", "both"},
        "reads prompts, writes answers, or does both in one process without a transfer");
    settings.choice("engine", engine_, {"llama", "synthetic"},
                    "a model through llama.cpp, or a stand-in without a model for tests");
    settings.text("host", "", options_.http_host, "address of the HTTP API");
    settings.number<std::uint16_t>("port", "", options_.http_port, 0, 65'535,
                                   "port of the HTTP API; 0 takes any free one");
    settings.text(
        "instance", "", options_.instance,
        "name in the registry, unique among the prefill servers of a fleet; empty: role and "
        "process id");
    declare_engine(settings);
    declare_limits(settings);
    process_.declare(settings);
    settings.library(options_.library);
  }

  Status check() override {
    const auto refuse = [](std::string what) {
      return fail(FailureCode::kInvalidArgument, std::move(what));
    };
    if (engine_ == "llama" && options_.llama.model_path.empty()) {
      return refuse("option --model is needed with --engine llama: path of a GGUF file");
    }
    if (prefill_chunk_tokens_ % page_size_tokens_ != 0) {
      return refuse(fmt::format(
          "option --prefill-chunk-tokens: {} is not a multiple of --page-size-tokens {}",
          prefill_chunk_tokens_, page_size_tokens_));
    }
    if (role_ != "both" && options_.library.bootstrap_addresses.empty()) {
      return refuse(
          fmt::format("option --bootstrap-addresses is needed with --role {}: host:port of the "
                      "bootstrap server",
                      role_));
    }
    return validate(options_.library);
  }

  int run() override {
    ServerProcess process(process_);
    auto started = serve::start_server(complete_options());
    if (!started) {
      fmt::print(stderr, "kvferry serve: {}\n", started.error().what);
      return kExitFalse;
    }
    serve::Server& server = **started;
    return process.serve({role_, server.address(),
                          [&](std::uint32_t) {
                            server.request_drain();
                            server.wait();
                          },
                          [&] { server.stop(); }});
  }

 private:
  void declare_engine(Settings& settings) {
    settings.text("model", "path", options_.llama.model_path, "GGUF file of the llama engine");
    settings.text("llama_library_dir", "path", options_.llama.library_dir,
                  "folder of the llama engine's kernel libraries; empty: beside libllama");
    settings.number<std::uint32_t>("context_tokens", "tokens", context_tokens_, 64, 1U << 20,
                                   "longest prompt plus answer of one request");
    settings.number<std::uint32_t>("max_sequences", "sequences", max_sequences_, 1, 4'096,
                                   "requests that the engine holds at once");
    settings.number<std::uint32_t>(
        "engine_threads", "threads", options_.llama.threads, 1, 1'024,
        "threads of the llama engine; both sides of a pair need the same "
        "number for identical answers");
    settings.number<std::uint32_t>("prefill_chunk_tokens", "tokens", prefill_chunk_tokens_, 1,
                                   1U << 16,
                                   "prompt tokens that are computed at once, a multiple of "
                                   "the page size");
    settings.number<std::uint32_t>("page_size_tokens", "tokens", page_size_tokens_, 1, 1U << 12,
                                   "tokens of one KV page; both sides of a pair need the same");
    settings.number<std::uint32_t>("pool_pages", "pages", options_.pool_pages, 1, 1U << 24,
                                   "KV pages of a prefill or decode server");
    settings.flag("keep_paired", options_.keep_paired,
                  "decode opens sessions to all prefill servers ahead of any request");
    settings.number<std::uint32_t>("synthetic_prefill_delay_ms", "ms",
                                   options_.synthetic.prefill_delay_ms, 0, 60'000,
                                   "time that the synthetic engine takes for a prompt chunk");
    settings.number<std::uint32_t>("synthetic_step_delay_ms", "ms",
                                   options_.synthetic.step_delay_ms, 0, 60'000,
                                   "time that the synthetic engine takes for a token");
  }

  void declare_limits(Settings& settings) {
    settings.number<std::uint32_t>("max_requests", "requests", options_.limits.max_requests, 1,
                                   65'536, "requests accepted and not yet answered; beyond: 503");
    settings.number<std::uint32_t>("queue_timeout_ms", "ms", options_.limits.queue_timeout_ms, 1,
                                   3'600'000, "time that a request waits for pages; then 503");
    settings.number<std::uint32_t>(
        "import_pages_per_turn", "pages", options_.limits.import_pages_per_turn, 1, 65'536,
        "pages that decode imports between two steps of the running answers");
    settings.number<std::uint32_t>("default_chat_tokens", "tokens", options_.default_chat_tokens, 1,
                                   1U << 20, "answer of a chat that names no limit");
    settings.number<std::uint32_t>("max_body_bytes", "bytes", options_.max_body_bytes, 1'024,
                                   1U << 30, "size of a request body; beyond: 413");
    settings.number<std::uint32_t>("http_threads", "threads", options_.http_threads, 1, 64,
                                   "threads of the HTTP API");
  }

  serve::ServeOptions complete_options() const {
    serve::ServeOptions options = options_;
    if (role_ == "prefill") options.role = serve::ServeRole::kPrefill;
    if (role_ == "decode") options.role = serve::ServeRole::kDecode;
    if (role_ == "both") options.role = serve::ServeRole::kBoth;
    options.engine = engine_ == "llama" ? serve::EngineKind::kLlama : serve::EngineKind::kSynthetic;
    const auto shape = [&](auto& engine) {
      engine.context_tokens = context_tokens_;
      engine.max_sequences = max_sequences_;
      engine.prefill_chunk_tokens = prefill_chunk_tokens_;
      engine.page_size_tokens = page_size_tokens_;
    };
    shape(options.llama);
    shape(options.synthetic);
    options.drain_timeout_ms = process_.drain_timeout_ms;
    return options;
  }

  std::string role_ = "both";
  std::string engine_ = "llama";
  std::uint32_t context_tokens_ = 2'048;
  std::uint32_t max_sequences_ = 8;
  std::uint32_t prefill_chunk_tokens_ = 128;
  std::uint32_t page_size_tokens_ = 64;
  serve::ServeOptions options_;
  ServerProcessOptions process_;
};

}  // namespace

const Command& serve_command() {
  static const Command command{
      "serve", "A model server: prefill, decode, or both in one process.",
      "Serves OpenAI's completions and chat completions and SGLang's /generate. As prefill or "
      "decode\n"
      "it takes requests from kvferry's or SGLang's router and moves the KV cache through kvferry.",
      [] { return std::unique_ptr<Invocation>(std::make_unique<ServeInvocation>()); }};
  return command;
}

}  // namespace kvferry::cli
