// F3, of two writers one of which is slow to say that it is quiet: pages wait for the fence alone,
// and each rank of decode acts once on each writer's word, however late it comes and however often
// it is said.
#include <fmt/format.h>

#include <algorithm>

#include "lab/drills/reuse.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;

constexpr std::size_t kRepetitions = 4;

class LateDrained {
 public:
  explicit LateDrained(DrillScene& scene) : scene_(scene), rig_(scene) {}

  Status run() {
    if (Status started = rig_.start({{"p", {}}}, Role::kDecode); !started) return started;
    const Status played =
        repeat(rig_, kRepetitions,
               [this](const ReuseMoment& moment, std::size_t /*number*/) { return play(moment); });
    if (!played) return played;
    const auto verdict = rig_.conclude();
    if (!verdict) return tl::unexpected(verdict.error());
    return *verdict ? judge(**verdict) : Status{};
  }

 private:
  LabRank& late() { return *rig_.victim().engine.ranks.back(); }

  // p0 is soon quiet, since its wires become fast; p1's word waits in its link until B has ended.
  Status play(const ReuseMoment& moment) {
    Reuse reuse(rig_, rig_.victim(), moment);
    const auto held = held_words();
    if (!held) return tl::unexpected(held.error());
    if (Status told = hold_message(late(), "drained", "out"); !told) return told;
    if (Status written = reuse.write_until_moment(); !written) return written;
    reuse.abort_at_decode();
    ReuseRig::speed_up(rig_.victim(), &reuse.writer(0));
    if (Status opened = reuse.open_b(); !opened) return opened;
    if (Status ended = reuse.await_a(); !ended) return ended;
    if (Status ended = reuse.await_b(); !ended) return ended;
    ReuseRig::speed_up(rig_.victim());
    for (LabRank* writer : rig_.victim().engine.ranks) {
      if (Status over = rig_.await_no_writes(*writer); !over) return over;
    }
    if (!scene_.long_form()) {
      // To each of d0 and d1, and each once more.
      if (Status said = await_held_words(*held + 4); !said) return said;
      scene_.say(
          "room {}: p0 and p1 have said that they are quiet, p1 again and again, and nobody has "
          "heard it of p1; room {} has had its pages and has succeeded",
          reuse.a().number, reuse.b().number);
    }
    if (Status released = release_messages(late()); !released) return released;
    late_.emplace_back(reuse.a().number, reuse.b().number);
    return reuse.look_back();
  }

  Result<std::int64_t> held_words() {
    const auto status = late().status();
    if (!status) return tl::unexpected(status.error());
    return (*status)->root()["struck"].integer().value_or(0);
  }

  Status await_held_words(std::int64_t count) {
    const auto held = scene_.await_status(
        late(), [&](JsonView status) { return status["struck"].integer().value_or(0) >= count; },
        "word of its quiet, said again", kReusePatience);
    return held ? Status{} : tl::unexpected(held.error());
  }

  // B had its pages before p1's word, and p0's came before that, too.
  Status judge(const JournalVerdict& verdict) {
    std::size_t late_words = 0;
    std::int64_t copies = 0;
    for (const auto& [a, b] : late_) {
      const auto writers = verdict.writers.find({static_cast<std::int64_t>(a), 1});
      const auto granted = verdict.granted.find({static_cast<std::int64_t>(b), 1});
      if (writers == verdict.writers.end() || granted == verdict.granted.end()) continue;
      for (const WriterRecord& record : writers->second) {
        if (record.writer != late().child().name() || record.drained == 0) continue;
        ++late_words;
        copies += record.drained_copies;
        const auto at = granted->second.find(record.life);
        if (at == granted->second.end() || at->second > record.drained_ns) {
          scene_.find("I3", fmt::format("room {} got its pages at {} only when p1 had said that it "
                                        "is quiet",
                                        b, record.life));
        }
        const bool first = std::ranges::any_of(writers->second, [&](const WriterRecord& other) {
          return other.life == record.life && other.writer != record.writer && other.drained > 0 &&
                 other.drained_ns < record.drained_ns;
        });
        if (!first) return vacuous("p1's word was not the later one");
      }
    }
    if (late_words == 0) return vacuous("no word of p1 came late");
    scene_.say(
        "{} times p1's word came after the next room had got the pages, in {} copies, of which "
        "decode acted on {}",
        late_words, copies, late_words);
    scene_.figures()
        .integer("late_words", static_cast<std::int64_t>(late_words))
        .integer("copies", copies);
    return {};
  }

  DrillScene& scene_;
  ReuseRig rig_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> late_;  // rooms A and B
};

}  // namespace

Status run_late_drained(DrillScene& scene) { return LateDrained(scene).run(); }

}  // namespace kvferry::lab
