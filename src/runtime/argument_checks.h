// What a call may name: pages, aux slots and state slots of this rank's regions. Checked on the
// caller's thread, so that a mistake is the answer of the call that made it.
#pragma once

#include <cstdint>
#include <span>

#include "kvferry/ids.h"
#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::runtime {

class ArgumentChecks {
 public:
  explicit ArgumentChecks(const KvArgs& args);

  // Each within every page region, none twice.
  Status pages(std::span<const PageIndex> pages) const;
  // -1 is none.
  Status aux_slot(std::int64_t slot) const;
  Status state_slots(std::span<const std::uint32_t> slots) const;
  // Tokens to pages; fails unless they fill whole pages (rule 4).
  Result<std::uint32_t> prefix_pages(std::uint32_t tokens) const;

 private:
  std::uint32_t page_count_ = 0;
  std::uint32_t aux_slot_count_ = 0;
  std::uint32_t state_slot_count_ = 0;
  std::uint32_t page_size_tokens_ = 0;
};

// Beyond layout::make_shape: memory that is there, an engine epoch where one can't be drawn.
Status check_args(const KvArgs& args);

}  // namespace kvferry::runtime
