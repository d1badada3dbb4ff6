// Runs one fuzz target over the stored inputs, without libFuzzer and with any compiler:
//
//   kvferry_replay_<target> FOLDER_OR_FILE...
//
// The last line says how many inputs ran; a finding ends the process before it. An input's name is
// printed before it runs only with KVFERRY_REPLAY_VERBOSE set.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "target.h"

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> inputs_of(int count, char** arguments) {
  std::vector<fs::path> inputs;
  for (int i = 1; i < count; ++i) {
    if (!fs::is_directory(arguments[i])) {
      inputs.emplace_back(arguments[i]);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(arguments[i])) {
      inputs.push_back(entry.path());
    }
  }
  std::sort(inputs.begin(), inputs.end());
  return inputs;
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<fs::path> inputs = inputs_of(count, arguments);
  const bool verbose = std::getenv("KVFERRY_REPLAY_VERBOSE") != nullptr;
  for (const fs::path& path : inputs) {
    if (verbose) {
      std::fprintf(stderr, "%s\n", path.c_str());
    }
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "%s can't be read\n", path.c_str());
      return 2;
    }
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%zu inputs replayed\n", inputs.size());
  // A folder that was moved must not look like a success.
  return inputs.empty() ? 1 : 0;
}
