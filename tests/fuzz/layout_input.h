// Layouts made from an input: ranks of one engine that are mostly sound, with a few fields changed,
// and a second opinion on which are.
#pragma once

#include <cstdint>
#include <vector>

#include "base/layout_shape.h"
#include "input.h"

namespace kvferry::fuzz {

// Sizes common to both engines of a pair; small, so that every byte of a page can be counted.
struct ModelSizes {
  std::uint32_t layers = 1;
  std::uint32_t heads = 1;
  std::uint32_t head_dim = 1;
  std::uint32_t page_tokens = 1;
  std::uint32_t pages = 1;
  DType dtype = DType::kU8;
  bool keys_first = false;
  bool other = false;  // each layer has a kOther region in place of K and V
  bool aux = false;
  bool state = false;
};
ModelSizes read_sizes(Input& input);

// All ranks of an engine of these sizes, cut by a tensor and a pipeline split from the input.
std::vector<LayoutShape> read_ranks(Input& input, const ModelSizes& sizes);

// Changes up to three fields; near ones and wild ones.
void damage(Input& input, LayoutShape& shape);

// Whether the shape is sound by the words of layout/kv_layout.h, told without its code: field by
// field, in 128 bits.
bool is_sound(const LayoutShape& shape);

}  // namespace kvferry::fuzz
