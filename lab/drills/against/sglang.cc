#include "lab/drills/against/sglang.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include "bench/transfer/child.h"

namespace kvferry::lab {
namespace {

using router::JsonView;

constexpr std::array kStories = {
    SglangStory{"interleave", "Twelve threads of decode abort 1,200 rooms with one peer at once."},
    SglangStory{"restart",
                "An address refuses one connection and takes all later ones; a prefill process is "
                "killed and starts again at its address."},
    SglangStory{"silent-peer",
                "Four prefill processes are stopped; decode gives up requests to them."},
    SglangStory{"lost-abort", "A connection takes an abort, loses it and breaks."},
    SglangStory{"malformed", "A control port gets one message that its rank can't read."},
};

constexpr std::string_view kProgram = "bench/peers/sglang_drills/main.py";
// Between two lines: processes start, peers are filled, rooms are waited for.
constexpr std::chrono::milliseconds kLinePatience{100'000};

std::filesystem::path python() {
  const char* shared = std::getenv("KVFERRY_CACHE");
  const bool is_set = shared != nullptr && *shared != '\0';
  return std::filesystem::path(is_set ? shared : ".cache") / "venv-peer-sglang" / "bin" / "python";
}

// As one word of a shell's command line.
std::string shell_word(std::string_view text) {
  std::string word = "'";
  for (const char letter : text) {
    if (letter == '\'') {
      word += R"('\'')";
    } else {
      word += letter;
    }
  }
  return word + "'";
}

enum class Line { kTaken, kTold, kUnknown };

Line take(DrillScene& scene, JsonView line) {
  if (const auto text = line["say"].text()) {
    scene.say("{}", *text);
    return Line::kTaken;
  }
  if (const auto invariant = line["find"].text()) {
    scene.find(*invariant, line["what"].text().value_or("no words"));
    return Line::kTaken;
  }
  if (const auto name = line["figure"].text()) {
    scene.figures().number(*name, line["value"].number().value_or(0));
    return Line::kTaken;
  }
  return line["end"].text() ? Line::kTold : Line::kUnknown;
}

}  // namespace

std::span<const SglangStory> sglang_stories() { return kStories; }

const SglangStory* find_sglang_story(std::string_view drill) {
  const auto found = std::ranges::find(kStories, drill, &SglangStory::drill);
  return found == kStories.end() ? nullptr : &*found;
}

Status find_sglang() {
  std::error_code error;
  for (const std::filesystem::path& needed : {python(), std::filesystem::path(kProgram)}) {
    if (std::filesystem::exists(needed, error)) continue;
    return fail(FailureCode::kInvalidArgument,
                fmt::format("--against sglang: {} is missing; fix: run from the repository's root, "
                            "once `tools/setup/venv.py --no-deps peer-sglang` has installed SGLang "
                            "there",
                            needed.string()));
  }
  return {};
}

Status run_sglang_story(DrillScene& scene, std::string_view drill, const std::filesystem::path& log,
                        const std::function<bool()>& interrupted) {
  const std::string command =
      fmt::format("exec {} -B {} --asked {} 2>>{}", shell_word(python().string()),
                  shell_word(kProgram), shell_word(drill), shell_word(log.string()));
  auto peer = bench::PeerProcess::start("sglang", command, interrupted);
  if (!peer) return tl::unexpected(peer.error());
  scene.say("{}, {}", (*peer)->version(), (*peer)->settings());
  for (;;) {
    auto line = (*peer)->ask("next", kLinePatience, interrupted);
    if (!line) return tl::unexpected(line.error());
    switch (take(scene, line->root())) {
      case Line::kTaken:
        continue;
      case Line::kUnknown:
        return fail(FailureCode::kMalformed, "a line of the story that nobody knows");
      case Line::kTold:
        break;
    }
    if (const auto why = line->root()["why"].text()) return vacuous(*why);
    return {};
  }
}

}  // namespace kvferry::lab
