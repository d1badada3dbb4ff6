#include "lab/rank/rank_settings.h"

namespace kvferry::lab {

void RankSettings::declare(cli::Settings& settings) {
  settings.choice("role", role, {"prefill", "decode"}, "side of the transfers");
  settings.text("instance", "", instance, "name in the registry");
  settings.number<std::uint64_t>("engine_epoch", "", engine_epoch, 0, ~std::uint64_t{0},
                                 "the same at all ranks of an engine; 0: one is drawn");
  settings.number<std::uint32_t>("tp_rank", "", tp_rank, 0, 63,
                                 "place among those that share heads");
  settings.number<std::uint32_t>("tp_size", "ranks", tp_size, 1, 64, "that share the heads");
  settings.number<std::uint32_t>("pp_rank", "", pp_rank, 0, 63,
                                 "place among those that share layers");
  settings.number<std::uint32_t>("pp_size", "ranks", pp_size, 1, 64, "that share the layers");
  settings.number<std::uint32_t>("layers", "layers", layers, 1, 64, "of the model");
  settings.number<std::uint32_t>("heads", "heads", heads, 1, 64, "of the model");
  settings.number<std::uint32_t>("pages", "pages", pages, 1, 1U << 20, "size of the pool");
  settings.number<std::uint32_t>("page_bytes", "bytes", page_bytes, 256, 16U << 20,
                                 "of a page, keys and values of all layers and heads together; a "
                                 "multiple of 256 times both");
  settings.number<std::uint32_t>("aux_slots", "slots", aux_slots, 1, 1U << 20, "rooms at once");
  settings.text("journal", "path", journal, "file that is appended to; without it nothing is kept");
  settings.flag("messages", messages, "the journal has each message of the control link");
  settings.text("missing", "", missing, "guard that this process runs without, by its mutant");
  settings.library(options);
}

}  // namespace kvferry::lab
