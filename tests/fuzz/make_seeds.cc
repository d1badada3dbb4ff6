// Writes first inputs for every target, made by the tree's own encoders:
//
//   kvferry_fuzz_seeds FOLDER      writes FOLDER/<target>/seed-...
//
// The stored corpora were grown from these by the fuzzers and minimised (fuzz.py merge).
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "../unit/dialect/golden.h"
#include "../unit/wire/samples.h"
#include "room_scenes.h"
#include "wire/aux_record.h"
#include "wire/codec.h"

namespace kvferry::fuzz {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kMostBytes = 4'096;
// A byte that Input::near() reads as "the right value".
constexpr std::uint8_t kRight = 15;

class Writer {
 public:
  Writer(std::filesystem::path folder, std::string target) : folder_(std::move(folder) / target) {
    std::filesystem::create_directories(folder_);
  }
  void write(const std::string& name, const Bytes& bytes) {
    std::ofstream file(folder_ / ("seed-" + name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(std::min(bytes.size(), kMostBytes)));
  }

 private:
  std::filesystem::path folder_;
};

void write_frames(Writer writer) {
  for (const auto& [name, frame] : wire::golden_frames()) {
    if (const Bytes bytes = wire::encode(frame); bytes.size() <= kMostBytes) {
      writer.write(name, bytes);
    }
  }
  // One of every kind, with all fields drawn.
  Prng prng(1);
  for (std::size_t kind = 0; kind < std::variant_size_v<wire::Message>; ++kind) {
    wire::Frame frame;
    frame.session = SessionEpoch(3);
    frame.sequence = 1;
    frame.messages.push_back(wire::random_message(kind, prng));
    writer.write("kind-" + std::string(wire::kind_name(frame.messages[0])), wire::encode(frame));
  }
}

void write_aux(Writer writer) {
  std::vector<std::byte> slot(kAuxRecordBytes);
  wire::encode_aux(slot, RoomId(1), {2, 3}, AuxRecord{7, -0.5F, 12, 4});
  Bytes raw{0};  // run_raw(), then room and binding
  for (const std::uint8_t number : {1, 2, 3}) {
    raw.push_back(number);
    raw.resize(raw.size() + 7);
  }
  for (const std::byte byte : slot) {
    raw.push_back(static_cast<std::uint8_t>(byte));
  }
  writer.write("raw", raw);
  writer.write("whole", Bytes(60, 1));
  Bytes flipped(60, 1);
  flipped[42] = 5;
  writer.write("flipped", flipped);
}

void write_layouts(Writer writer) {
  // The sizes, two engines, then what damages them: see fuzz_layout.cc.
  for (std::uint8_t flags = 0; flags < 16; ++flags) {
    for (const std::uint8_t ranks : {0, 1, 3}) {
      Bytes bytes{2, 3, 1, 2, 2, 1, flags, ranks, 1, 3, 0};
      bytes.resize(bytes.size() + 40, 0);
      writer.write(std::to_string(flags) + "-" + std::to_string(ranks), bytes);
    }
  }
}

void write_rooms(Writer writer) {
  // A sender that waits with its pages, and a foreign grant that fits: the way to its first write.
  for (std::uint8_t scene = 0; scene < scenes().size(); ++scene) {
    if (scenes()[scene].name == "prefill-sent-before-grant") {
      writer.write("grant-accepted",
                   {scene,  8,      1,      kRight, 0,      3,      1,      kRight, kRight, kRight,
                    kRight, kRight, kRight, kRight, 0,      kRight, kRight, 0,      kRight, kRight,
                    kRight, kRight, 1,      1,      kRight, 3,      kRight, kRight});
    }
  }
  // Every scene, then one happening of each sort with right names all through.
  for (std::uint8_t scene = 0; scene < scenes().size(); ++scene) {
    const std::string name(scenes()[scene].name);
    writer.write(name, {scene});
    for (std::uint8_t kind = 0; kind < 12; ++kind) {
      Bytes bytes{scene, 8, 1, 0, kind, 1, static_cast<std::uint8_t>(kind / 3)};
      bytes.resize(bytes.size() + 40, kRight);
      writer.write(name + "-frame-" + std::to_string(kind), bytes);
      Bytes other{scene, kind};
      other.resize(other.size() + 12, kRight);
      writer.write(name + "-other-" + std::to_string(kind), other);
    }
  }
}

// What real SGLang sent, in the form that fuzz_sglang.cc reads.
void write_sglang(Writer writer) {
  for (const sglang::GoldenMessage& message : sglang::read_golden(KVFERRY_SGLANG_GOLDEN_DIR)) {
    const unsigned role = message.listener.role == Role::kPrefill ? 0 : 3;
    Bytes bytes{static_cast<std::uint8_t>(static_cast<unsigned>(message.listener.flavour) + role)};
    for (const sglang::Frame& frame : message.frames) {
      bytes.push_back(static_cast<std::uint8_t>(frame.size()));
      bytes.push_back(static_cast<std::uint8_t>(frame.size() >> 8));
      bytes.insert(bytes.end(), frame.begin(), frame.end());
    }
    writer.write(message.name, bytes);
  }
}

}  // namespace
}  // namespace kvferry::fuzz

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: kvferry_fuzz_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  kvferry::fuzz::write_frames({folder, "frame"});
  kvferry::fuzz::write_aux({folder, "aux"});
  kvferry::fuzz::write_layouts({folder, "layout"});
  kvferry::fuzz::write_rooms({folder, "room"});
  kvferry::fuzz::write_sglang({folder, "sglang"});
  return 0;
}
