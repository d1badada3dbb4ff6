// The questions of the demo: short original texts, each followed by a question about it, joined so
// that prompts of very different lengths come up. With the demo's model they have 100 to 900
// tokens.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kvferry::cli {

inline constexpr std::size_t kDemoPrompts = 24;

// In the order in which they are sent; count is at most kDemoPrompts.
std::vector<std::string> demo_prompts(std::size_t count = kDemoPrompts);

// Long ones, so that there is time to cancel them while they are computed. Different from each
// other in their first words.
std::vector<std::string> demo_prompts_to_cancel(std::size_t count);

}  // namespace kvferry::cli
