#include "serve/synthetic_engine.h"

#include "engine_tools.h"

namespace kvferry::serve {
namespace {

SyntheticOptions options() {
  SyntheticOptions options;
  options.page_size_tokens = 8;
  options.prefill_chunk_tokens = 16;
  options.end_odds = 0;
  return options;
}

std::vector<Token> prompt() {
  std::vector<Token> tokens;
  for (Token token = 0; token < 53; ++token) {
    tokens.push_back('a' + token % 26);
  }
  return tokens;
}

struct Transfer {
  std::unique_ptr<Engine> prefill = must(make_synthetic_engine(options()));
  std::unique_ptr<Engine> decode = must(make_synthetic_engine(options()));
  std::unique_ptr<PagePool> pool = must(PagePool::create(prefill->info(), 16, 1));
  std::vector<PageIndex> pages;
  Token first = 0;

  Transfer() {
    const SequenceId source = must(prefill->open_sequence());
    first = prefill_all(*prefill, source, prompt());
    pages = export_all(*prefill, source, 53, *pool);
    prefill->close_sequence(source);
  }
  Reply answer() {
    const SequenceId target = must(decode->open_sequence());
    import_all(*decode, target, 53, pages, *pool);
    Continuation one{target, first, 53, {}};
    Continuation* group[] = {&one};
    for (int count = 0; count < 24; ++count) {
      step_all(*decode, group);
    }
    decode->close_sequence(target);
    return one.answer;
  }
};

TEST(SyntheticEngine, AnswersThroughPagesAsAlone) {
  Transfer transfer;
  EXPECT_EQ(transfer.answer(), answer_alone(*transfer.prefill, prompt(), 24));
}

TEST(SyntheticEngine, AnyWrongByteChangesTheAnswer) {
  Transfer transfer;
  const Reply right = transfer.answer();
  for (std::size_t page = 0; page < transfer.pages.size(); ++page) {
    std::byte& byte = transfer.pool->page(transfer.pages[page])[page % 8][5];
    byte ^= std::byte{1};
    EXPECT_NE(transfer.answer().tokens, right.tokens) << "page " << page;
    byte ^= std::byte{1};
  }
  std::swap(transfer.pages[1], transfer.pages[2]);
  EXPECT_NE(transfer.answer().tokens, right.tokens);
}

TEST(SyntheticEngine, RowsPastTheEndAreZeroAndIgnored) {
  Transfer transfer;
  const Reply right = transfer.answer();
  std::byte* region = transfer.pool->page(transfer.pages.back())[3];
  const std::size_t row_bytes = 2 * 16 * 2;
  for (std::size_t at = 5 * row_bytes; at < 8 * row_bytes; ++at) {
    EXPECT_EQ(region[at], std::byte{0});
    region[at] = std::byte{0xFF};
  }
  EXPECT_EQ(transfer.answer(), right);
}

TEST(SyntheticEngine, RefusesGaps) {
  auto engine = must(make_synthetic_engine(options()));
  const SequenceId sequence = must(engine->open_sequence());
  const std::vector<Token> chunk(4, 'x');
  EXPECT_EQ(engine->prefill(sequence, chunk, 1, false).error().code, FailureCode::kWrongState);
  EXPECT_TRUE(engine->prefill(sequence, chunk, 0, false));
  EXPECT_FALSE(engine->step(std::vector<StepItem>{{sequence, 'x', 5}}));
}

}  // namespace
}  // namespace kvferry::serve
