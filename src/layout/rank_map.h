// Who sends what to whom: the prefill ranks that hold a part of what a decode rank holds, and the
// other way round. Pure; from coordinates and slices only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/layout_shape.h"
#include "kvferry/status.h"

namespace kvferry::layout {

// What is common to a source and a target rank.
struct SharedPart {
  LayerRange layers;  // intersection
  HeadSlice heads;    // intersection
  bool is_empty() const { return layers.begin >= layers.end || heads.begin >= heads.end; }
};
SharedPart shared_part(const LayoutShape& source, const LayoutShape& target);

// Indices into sources of the ranks that must write to target, in ascending order, each with a part
// that no other of them has (replicated heads are taken from the lowest rank). Fails when the union
// does not cover the target, naming the first layer and head that nobody has.
struct Writer {
  std::uint32_t source_index = 0;
  SharedPart part;
  bool sends_aux = false;    // exactly one writer: the last layer's, lowest head
  bool sends_state = false;  // holders of the state's layers
};
Result<std::vector<Writer>> writers_for(const LayoutShape& target,
                                        const std::vector<LayoutShape>& sources);

}  // namespace kvferry::layout
