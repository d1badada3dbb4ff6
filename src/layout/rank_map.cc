#include "layout/rank_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace kvferry::layout {
namespace {

// The target's layers x heads, cut at every border of a source's part, so that each cell is held
// whole or not at all by each source. Few cells: ranks are cut at few places.
class Grid {
 public:
  Grid(const LayoutShape& target, const std::vector<SharedPart>& parts)
      : layer_cuts_{target.layers.begin, target.layers.end},
        head_cuts_{target.heads.begin, target.heads.end} {
    for (const SharedPart& part : parts) {
      if (!part.is_empty()) {
        layer_cuts_.insert(layer_cuts_.end(), {part.layers.begin, part.layers.end});
        head_cuts_.insert(head_cuts_.end(), {part.heads.begin, part.heads.end});
      }
    }
    sort_unique(layer_cuts_);
    sort_unique(head_cuts_);
    taken_.assign(rows() * columns(), false);
  }

  // Takes what of part is still free. The free rest must be one rectangle, since a writer has one
  // part.
  Result<SharedPart> take_rest(const SharedPart& part) {
    SharedPart rest{{part.layers.end, part.layers.begin}, {part.heads.end, part.heads.begin}};
    std::size_t free_cells = 0;
    for_each_cell(part, [&](std::size_t row, std::size_t column) {
      if (!taken_[row * columns() + column]) {
        ++free_cells;
        rest.layers.begin = std::min(rest.layers.begin, layer_cuts_[row]);
        rest.layers.end = std::max(rest.layers.end, layer_cuts_[row + 1]);
        rest.heads.begin = std::min(rest.heads.begin, head_cuts_[column]);
        rest.heads.end = std::max(rest.heads.end, head_cuts_[column + 1]);
      }
    });
    if (free_cells == 0) {
      return SharedPart{};
    }
    std::size_t cells = 0;
    for_each_cell(rest, [&](std::size_t row, std::size_t column) {
      ++cells;
      taken_[row * columns() + column] = true;
    });
    if (cells != free_cells) {
      return fail(
          FailureCode::kLayoutMismatch,
          fmt::format("what is left for a rank of layers [{}, {}) and heads [{}, {}) is not "
                      "one range of each: the ranks overlap irregularly",
                      part.layers.begin, part.layers.end, part.heads.begin, part.heads.end));
    }
    return rest;
  }

  struct Place {
    std::uint32_t layer;
    std::uint32_t head;
  };
  std::optional<Place> first_free() const {
    for (std::size_t row = 0; row < rows(); ++row) {
      for (std::size_t column = 0; column < columns(); ++column) {
        if (!taken_[row * columns() + column]) {
          return Place{layer_cuts_[row], head_cuts_[column]};
        }
      }
    }
    return std::nullopt;
  }

 private:
  static void sort_unique(std::vector<std::uint32_t>& cuts) {
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  }
  std::size_t rows() const { return layer_cuts_.size() - 1; }
  std::size_t columns() const { return head_cuts_.size() - 1; }

  template <typename Visit>
  void for_each_cell(const SharedPart& part, Visit visit) const {
    for (std::size_t row = 0; row < rows(); ++row) {
      if (layer_cuts_[row] < part.layers.begin || layer_cuts_[row] >= part.layers.end) {
        continue;
      }
      for (std::size_t column = 0; column < columns(); ++column) {
        if (head_cuts_[column] >= part.heads.begin && head_cuts_[column] < part.heads.end) {
          visit(row, column);
        }
      }
    }
  }

  std::vector<std::uint32_t> layer_cuts_;  // ascending; cell i spans cut i to cut i + 1
  std::vector<std::uint32_t> head_cuts_;
  std::vector<bool> taken_;
};

bool holds(const SharedPart& part, std::uint32_t layer, std::uint32_t head) {
  return part.layers.begin <= layer && layer < part.layers.end && part.heads.begin <= head &&
         head < part.heads.end;
}

// Aux and state are not split by head: they come from who holds the target's lowest head.
void assign_side_data(const LayoutShape& target, std::vector<Writer>& writers) {
  for (Writer& writer : writers) {
    writer.sends_aux = holds(writer.part, target.layers.end - 1, target.heads.begin);
    writer.sends_state =
        std::any_of(target.regions.begin(), target.regions.end(), [&](const RegionShape& region) {
          return region.kind == RegionKind::kState &&
                 holds(writer.part, region.layer, target.heads.begin);
        });
  }
}

}  // namespace

SharedPart shared_part(const LayoutShape& source, const LayoutShape& target) {
  return {{std::max(source.layers.begin, target.layers.begin),
           std::min(source.layers.end, target.layers.end)},
          {std::max(source.heads.begin, target.heads.begin),
           std::min(source.heads.end, target.heads.end)}};
}

Result<std::vector<Writer>> writers_for(const LayoutShape& target,
                                        const std::vector<LayoutShape>& sources) {
  std::vector<Writer> writers;
  if (target.layers.begin >= target.layers.end || target.heads.begin >= target.heads.end) {
    return writers;  // a dummy rank
  }
  std::vector<SharedPart> parts;
  parts.reserve(sources.size());
  for (const LayoutShape& source : sources) {
    parts.push_back(shared_part(source, target));
  }
  Grid grid(target, parts);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].is_empty()) {
      continue;
    }
    const auto rest = grid.take_rest(parts[i]);
    if (!rest) {
      return tl::unexpected<Failure>(rest.error());
    }
    if (!rest->is_empty()) {
      writers.push_back({static_cast<std::uint32_t>(i), *rest, false, false});
    }
  }
  if (const auto missing = grid.first_free()) {
    return fail(FailureCode::kLayoutMismatch,
                fmt::format("no prefill rank has layer {}, head {}", missing->layer, missing->head),
                FailureWhere::kPeer);
  }
  assign_side_data(target, writers);
  return writers;
}

}  // namespace kvferry::layout
