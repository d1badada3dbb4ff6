#include "lab/rank/rank_settings.h"

namespace kvferry::lab {

void RankSettings::declare(cli::Settings& settings) {
  settings.choice("role", role, {"prefill", "decode"}, "side of the transfers");
  settings.text("instance", "", instance, "name in the registry");
  settings.number<std::uint32_t>("pages", "pages", pages, 1, 1U << 20, "size of the pool");
  settings.number<std::uint32_t>("page_bytes", "bytes", page_bytes, 256, 16U << 20,
                                 "of a page, keys and values together; a multiple of 256");
  settings.number<std::uint32_t>("aux_slots", "slots", aux_slots, 1, 1U << 20, "rooms at once");
  settings.text("journal", "path", journal, "file that is appended to; without it nothing is kept");
  settings.flag("messages", messages, "the journal has each message of the control link");
  settings.text("missing", "", missing, "guard that this process runs without, by its mutant");
  settings.library(options);
}

}  // namespace kvferry::lab
