// `kvferry drill NAME --against sglang`: the same story with the unmodified SGLang 0.5.23 classes
// in kvferry's place, so that nobody has to believe that only our own sabotaged code fails. The
// processes are Python (bench/peers/sglang_drills), led by its main.py; here its lines become those
// of a scene.
//
// A story that could not be told, or whose fault did not strike, is a failure (exit code 3).
// Findings are what SGLang did. None of its processes outlives the call.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

#include "kvferry/status.h"
#include "lab/drills/drill.h"

namespace kvferry::lab {

struct SglangStory {
  std::string_view drill;  // the drill's name, which is also that of the story
  std::string_view story;  // one sentence
};

std::span<const SglangStory> sglang_stories();
// Null when this drill has none.
const SglangStory* find_sglang_story(std::string_view drill);

// SGLang's environment and our programs for it are here; else the failure says how to get them.
// Paths are those of the repository's root, where the command must run.
Status find_sglang();

// log: where what SGLang itself writes goes.
Status run_sglang_story(DrillScene& scene, std::string_view drill, const std::filesystem::path& log,
                        const std::function<bool()>& interrupted);

}  // namespace kvferry::lab
