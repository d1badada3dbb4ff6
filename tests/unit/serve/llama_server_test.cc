#include "server_fleet.h"

namespace kvferry::serve {
namespace {

// The main job with the real model: concurrent requests through two servers give, token for token,
// what one process gives.
TEST(LlamaServers, SplitServingAnswersAsOneProcess) {
  ServeOptions options;
  options.llama.model_path = KVFERRY_MODEL_FILE;
  options.llama.context_tokens = 512;
  options.llama.max_sequences = 4;
  Fleet fleet(options);
  const std::vector<std::string> subjects{"apples", "goats", "letters", "stones"};
  std::vector<std::string> bodies;
  std::vector<std::future<Fleet::Answers>> answers;
  for (std::size_t index = 0; index < subjects.size(); ++index) {
    std::string text;
    for (int day = 0; day < 12; ++day) {
      text += "On day " + std::to_string(day) + " the ferry carries " + subjects[index] + ". ";
    }
    bodies.push_back(R"("prompt":")" + text +
                     R"(It is loaded with","temperature":0,"max_tokens":)" +
                     std::to_string(6 + 6 * index) + R"(,"return_token_ids":true)");
    answers.push_back(fleet.split(bodies.back(), index));
  }
  for (std::size_t index = 0; index < subjects.size(); ++index) {
    const auto answer = answers[index].get();
    ASSERT_EQ(answer.decode.status, 200) << answer.decode.body;
    const auto stats = boost::json::parse(answer.prefill.body).at("stats");
    EXPECT_GE(stats.at("pages").to_number<int>(), 2);
    EXPECT_EQ(choice(answer.decode), choice(fleet.alone(bodies[index]))) << subjects[index];
  }
  EXPECT_TRUE(fleet.settles());
}

}  // namespace
}  // namespace kvferry::serve
