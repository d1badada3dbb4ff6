// Messages of every kind for the tests of the codec, drawn from a generator or fixed.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "wire/messages.h"

namespace kvferry::wire {

// A message of the kind that has this index in the variant, every field drawn. Unsupported is
// always an answer, the only form that is encoded.
Message random_message(std::size_t kind, Prng& prng);
// 1 to max_messages messages of random kinds.
Frame random_frame(Prng& prng, std::size_t max_messages);

// Frames with fixed contents, each with a name for its golden file.
std::vector<std::pair<std::string, Frame>> golden_frames();

}  // namespace kvferry::wire
