#include "serve/llama_engine.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "engine_tools.h"

namespace kvferry::serve {
namespace {

LlamaOptions options() {
  LlamaOptions options;
  options.model_path = KVFERRY_MODEL_FILE;
  options.context_tokens = 512;
  options.max_sequences = 4;
  return options;
}

std::vector<Token> prompt_of(const Engine& engine, const std::string& subject, std::size_t tokens) {
  std::string text;
  std::vector<Token> prompt;
  while (prompt.size() < tokens) {
    text += "A ferry carries " + subject + " over the river, again and again, day " +
            std::to_string(text.size()) + ". ";
    const std::vector<ChatMessage> chat{{"user", text + "What does it carry?"}};
    prompt = must(engine.tokenize(must(engine.chat_prompt(chat)), true, true));
  }
  return prompt;
}

TEST(LlamaEngine, DescribesItself) {
  auto engine = must(load_llama_engine(options()));
  const EngineInfo& info = engine->info();
  EXPECT_EQ(info.model_name, "SmolLM2-135M-Instruct.Q4_1");
  EXPECT_EQ(info.layers, 30U);
  EXPECT_EQ(info.kv_heads, 3U);
  EXPECT_EQ(info.head_dim, 64U);
  EXPECT_EQ(info.vocab_size, 49152U);
  EXPECT_EQ(info.max_sequence_tokens, 512U);
  EXPECT_TRUE(info.model_fingerprint.starts_with("gguf-")) << info.model_fingerprint;
  EXPECT_TRUE(info.numerics.kernel_library.starts_with("ggml-cpu-"))
      << info.numerics.kernel_library;
  EXPECT_EQ(must(engine->tokenize("Hello world", true, true)).size(), 2U);
  EXPECT_EQ(engine->piece(must(engine->tokenize("Hello", true, true)).at(0)), "Hello");
}

TEST(LlamaEngine, TwoProcessesThroughPagesAnswerAsOne) {
  auto prefill = must(load_llama_engine(options()));
  auto decode = must(load_llama_engine(options()));
  auto pool = must(PagePool::create(prefill->info(), 16, 1));
  const auto prompt = prompt_of(*prefill, "apples", 200);
  const Reply alone = answer_alone(*prefill, prompt, 24);

  const auto tokens = static_cast<std::uint32_t>(prompt.size());
  const SequenceId source = must(prefill->open_sequence());
  const Token first = prefill_all(*prefill, source, prompt);
  const auto pages = export_all(*prefill, source, tokens, *pool);
  prefill->close_sequence(source);

  const SequenceId target = must(decode->open_sequence());
  import_all(*decode, target, tokens, pages, *pool);
  Continuation one{target, first, tokens, {}};
  Continuation* group[] = {&one};
  for (int count = 0; count < 24; ++count) {
    step_all(*decode, group);
  }
  EXPECT_EQ(one.answer, alone);
  std::string text;
  for (const Token token : alone.tokens) {
    text += decode->piece(token);
  }
  EXPECT_NE(text.find("appl"), std::string::npos) << text;
}

// Sequences that come, go, and interleave must not change each other's bits; the small cache makes
// the engine lay it out anew several times.
TEST(LlamaEngine, CrowdedCacheAnswersAsAnIdleOne) {
  LlamaOptions small = options();
  small.context_tokens = 320;
  small.max_sequences = 3;
  auto engine = must(load_llama_engine(small));
  auto source = must(load_llama_engine(small));
  auto pool = must(PagePool::create(engine->info(), 64, 1));
  const std::vector<std::string> subjects{"apples", "goats", "letters", "stones", "songs", "bread"};
  std::vector<std::vector<Token>> prompts;
  std::vector<Reply> alone;
  for (std::size_t index = 0; index < subjects.size(); ++index) {
    prompts.push_back(prompt_of(*engine, subjects[index], 90 + 37 * (index % 4)));
    alone.push_back(answer_alone(*source, prompts.back(), 12));
  }
  // One sequence is prefilled here chunk by chunk while others are imported, stepped and closed.
  std::vector<Continuation> running;
  std::size_t next = 0;
  std::vector<Reply> answers(subjects.size());
  std::vector<std::size_t> names;
  while (next < subjects.size() || !running.empty()) {
    if (next < subjects.size() && running.size() < 3) {
      const auto& prompt = prompts[next];
      const auto tokens = static_cast<std::uint32_t>(prompt.size());
      const SequenceId sequence = must(engine->open_sequence());
      Token first = 0;
      if (next % 2 == 0) {
        first = prefill_all(*engine, sequence, prompt);
      } else {
        const SequenceId remote = must(source->open_sequence());
        first = prefill_all(*source, remote, prompt);
        const auto pages = export_all(*source, remote, tokens, *pool);
        source->close_sequence(remote);
        import_all(*engine, sequence, tokens, pages, *pool);
        pool->give_back(pages);
      }
      running.push_back({sequence, first, tokens, {}});
      names.push_back(next++);
    }
    std::vector<Continuation*> group;
    for (auto& each : running) {
      group.push_back(&each);
    }
    step_all(*engine, group);
    step_all(*engine, group);
    for (std::size_t index = 0; index < running.size();) {
      if (running[index].answer.tokens.size() >= 12) {
        answers[names[index]] = running[index].answer;
        engine->close_sequence(running[index].sequence);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
        names.erase(names.begin() + static_cast<std::ptrdiff_t>(index));
      } else {
        ++index;
      }
    }
  }
  for (std::size_t index = 0; index < subjects.size(); ++index) {
    EXPECT_EQ(answers[index], alone[index]) << subjects[index];
  }
}

// Two prompts whose chunks alternate, as prefill does when it serves both.
TEST(LlamaEngine, AlternatingPrefillsAnswerAsAlone) {
  auto engine = must(load_llama_engine(options()));
  const auto one = prompt_of(*engine, "clocks", 420);
  const auto two = prompt_of(*engine, "lamps", 170);
  const Reply alone_one = answer_alone(*engine, one, 4);
  const Reply alone_two = answer_alone(*engine, two, 4);
  const SequenceId a = must(engine->open_sequence());
  const SequenceId b = must(engine->open_sequence());
  std::uint32_t at_one = 0;
  std::uint32_t at_two = 0;
  Token first_two = 0;
  prefill_range(*engine, a, one, at_one);
  while (at_two < two.size()) {
    prefill_range(*engine, b, two, at_two);
    first_two = greedy(*engine).token;
    prefill_range(*engine, a, one, at_one);
  }
  while (at_one < one.size()) {
    prefill_range(*engine, a, one, at_one);
  }
  Continuation first{a, greedy(*engine).token, static_cast<std::uint32_t>(one.size()), {}};
  Continuation second{b, first_two, static_cast<std::uint32_t>(two.size()), {}};
  Continuation* group[] = {&first, &second};
  for (int count = 0; count < 4; ++count) {
    step_all(*engine, group);
  }
  EXPECT_EQ(first.answer, alone_one);
  EXPECT_EQ(second.answer, alone_two);
}

TEST(LlamaEngine, RefusesWhatDoesNotFollow) {
  auto engine = must(load_llama_engine(options()));
  const std::vector<Token> chunk(8, 100);
  EXPECT_EQ(engine->prefill(SequenceId(0), chunk, 0, false).error().code, FailureCode::kWrongState);
  const SequenceId sequence = must(engine->open_sequence());
  EXPECT_EQ(engine->prefill(sequence, chunk, 3, false).error().code, FailureCode::kWrongState);
  const std::vector<Token> long_chunk(129, 100);
  EXPECT_EQ(engine->prefill(sequence, long_chunk, 0, false).error().code,
            FailureCode::kInvalidArgument);
}

TEST(LlamaEngine, SaysWhatIsWrongWithAFile) {
  LlamaOptions missing = options();
  missing.model_path = "/nonexistent/model.gguf";
  auto absent = load_llama_engine(missing);
  ASSERT_FALSE(absent);
  EXPECT_NE(absent.error().what.find("/nonexistent/model.gguf: No such file"), std::string::npos)
      << absent.error().what;

  const auto folder = std::filesystem::temp_directory_path() / "kvferry-llama-test";
  std::filesystem::create_directories(folder);
  missing.model_path = (folder / "text.gguf").string();
  std::ofstream(missing.model_path) << "not a model";
  auto text = load_llama_engine(missing);
  ASSERT_FALSE(text);
  EXPECT_NE(text.error().what.find("not a GGUF file"), std::string::npos) << text.error().what;

  std::filesystem::remove(missing.model_path);
  std::filesystem::copy_file(KVFERRY_MODEL_FILE, missing.model_path);
  std::filesystem::resize_file(missing.model_path, 4'000'000);
  auto cut = load_llama_engine(missing);
  ASSERT_FALSE(cut);
  EXPECT_NE(cut.error().what.find("cut short"), std::string::npos) << cut.error().what;
  std::filesystem::remove_all(folder);
}

TEST(LlamaEngine, QuantizesUnderItsFinalNameOnly) {
  const auto folder = std::filesystem::temp_directory_path() / "kvferry-quantize-test";
  std::filesystem::create_directories(folder);
  const std::string output = (folder / "model.Q4_0.gguf").string();
  must(quantize_model(KVFERRY_MODEL_FILE, output));
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++files;
  }
  EXPECT_EQ(files, 1U);
  LlamaOptions quantized = options();
  quantized.model_path = output;
  auto engine = must(load_llama_engine(quantized));
  auto original = must(load_llama_engine(options()));
  EXPECT_NE(engine->info().model_fingerprint, original->info().model_fingerprint);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvferry::serve
