#include "golden.h"

#include <charconv>
#include <fstream>
#include <sstream>

namespace kvferry::sglang {
namespace {

Frame from_hex(const std::string& line) {
  Frame frame;
  for (std::size_t i = 0; i + 1 < line.size(); i += 2) {
    std::uint8_t byte = 0;
    std::from_chars(line.data() + i, line.data() + i + 2, byte, 16);
    frame.push_back(byte);
  }
  return frame;
}

Flavour to_flavour(const std::string& name) {
  for (const Flavour flavour : {Flavour::kMooncake, Flavour::kNixl, Flavour::kMori}) {
    if (to_string(flavour) == name) {
      return flavour;
    }
  }
  return Flavour::kMooncake;
}

}  // namespace

std::vector<GoldenMessage> read_golden(const std::filesystem::path& folder) {
  std::vector<GoldenMessage> messages;
  std::ifstream manifest(folder / "manifest.tsv");
  std::string line;
  std::getline(manifest, line);  // the columns' names
  while (std::getline(manifest, line)) {
    std::istringstream row(line);
    GoldenMessage message;
    std::string flavour;
    std::string listener;
    row >> message.name >> flavour >> listener >> message.kind >> message.origin;
    message.listener = {to_flavour(flavour),
                        listener == "prefill" ? Role::kPrefill : Role::kDecode};
    std::ifstream frames(folder / (message.name + ".frames"));
    while (std::getline(frames, line)) {
      message.frames.push_back(from_hex(line));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace kvferry::sglang
