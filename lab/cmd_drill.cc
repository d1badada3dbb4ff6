#include "lab/cmd_drill.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/cli_parse.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "lab/drills/against/sglang.h"
#include "lab/drills/drill.h"

namespace kvferry::lab {
namespace {

constexpr int kExitNotRun = 3;
constexpr std::string_view kAll = "all";
constexpr std::string_view kNobody = "none";
constexpr std::string_view kSglang = "sglang";

// A folder of the drill's own, gone with it unless it is to be kept.
class DrillFolder {
 public:
  static Result<DrillFolder> make(const std::string& keep, std::string_view drill) {
    std::error_code error;
    if (!keep.empty()) {
      DrillFolder kept(std::filesystem::path(keep) / drill, true);
      std::filesystem::remove_all(kept.path_, error);
      if (std::filesystem::create_directories(kept.path_, error)) return kept;
      return fail(FailureCode::kOperatingSystem,
                  fmt::format("{}: {}", kept.path_.string(), error.message()));
    }
    std::string name = (std::filesystem::temp_directory_path(error) / "kvferry-drill-XXXXXX");
    if (::mkdtemp(name.data()) == nullptr) {
      return fail(FailureCode::kOperatingSystem, "no folder can be made: " + name);
    }
    return DrillFolder(name, false);
  }
  DrillFolder(DrillFolder&& other) noexcept
      : path_(std::exchange(other.path_, {})), is_kept_(other.is_kept_) {}
  DrillFolder& operator=(DrillFolder&&) = delete;
  ~DrillFolder() {
    std::error_code ignored;
    if (!path_.empty() && !is_kept_) std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  void keep() { is_kept_ = true; }

 private:
  DrillFolder(std::filesystem::path path, bool is_kept)
      : path_(std::move(path)), is_kept_(is_kept) {}
  std::filesystem::path path_;
  bool is_kept_;
};

struct DrillRun {
  const Drill* drill = nullptr;
  int code = kExitNotRun;
  double seconds = 0;
  std::string verdict;
  std::string figures;
  std::vector<Finding> findings;
};

std::string_view word_of(int code) {
  return code == cli::kExitTrue ? "did not show" : code == cli::kExitFalse ? "showed" : "not run";
}

class DrillInvocation final : public cli::Invocation {
 public:
  void declare(cli::Settings& settings) override {
    settings.text("name", "", name_, "the drill, or all; may stand by itself");
    settings.choice("guard", guard_, {"on", "off"},
                    "off: the processes run without what makes the failure impossible");
    settings.choice("against", against_, {std::string(kNobody), std::string(kSglang)},
                    "sglang: the same story with SGLang's own classes in kvferry's place, from the "
                    "environment that `tools/setup/venv.py --no-deps peer-sglang` makes");
    settings.choice("bounds", bounds_, {"tight", "wide"},
                    "wide: time bounds are ten times longer, for a busy machine");
    settings.flag("long", long_,
                  "the long form, a minute and more, of the drills that have one (--list)");
    settings.flag("list", list_, "says which drills there are");
    settings.text("keep", "folder", keep_, "logs and journals of the processes stay there");
    settings.text("json", "file", json_, "one object for machines; - is stdout");
  }

  Status check() override {
    if (list_) return {};
    if (name_.empty()) return fail(FailureCode::kInvalidArgument, "which drill? " + known());
    if (name_ != kAll && find_drill(name_) == nullptr) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("'{}' is no drill; {}", name_, known()));
    }
    if (Status against = is_against() ? check_against() : Status{}; !against) return against;
    return long_ ? check_long() : Status{};
  }

  int run() override {
    text_ = json_ == "-" ? stderr : stdout;
    if (list_) {
      for (const Drill& drill : all_drills()) {
        fmt::print(text_, "{:<12}  {}  --guard off: {}\n", drill.name, drill.story, drill.missing);
        if (!drill.long_story.empty()) {
          fmt::print(text_, "{:<12}  --long: {}\n", "", drill.long_story);
        }
        if (const SglangStory* story = find_sglang_story(drill.name)) {
          fmt::print(text_, "{:<12}  --against sglang: {}\n", "", story->story);
        }
      }
      return cli::kExitTrue;
    }
    const cli::Interrupt interrupt;
    std::vector<DrillRun> runs;
    for (const Drill& drill : all_drills()) {
      if (is_asked_for(drill) && !interrupt.requested()) {
        runs.push_back(run_one(drill, interrupt));
      }
    }
    if (name_ == kAll) show_table(runs);
    return conclude(runs);
  }

 private:
  bool is_against() const { return against_ == kSglang; }

  Status check_against() const {
    if (guard_ != "on") {
      return fail(FailureCode::kInvalidArgument,
                  "option --guard: SGLang has none of kvferry's guards; give --guard off or "
                  "--against sglang");
    }
    if (name_ == kAll || find_sglang_story(name_) != nullptr) return {};
    std::string names;
    for (const SglangStory& story : sglang_stories()) names += fmt::format("{}, ", story.drill);
    return fail(FailureCode::kInvalidArgument,
                fmt::format("option --against: '{}' has no story with SGLang; there are {}and {}",
                            name_, names, kAll));
  }

  Status check_long() const {
    if (is_against()) {
      return fail(FailureCode::kInvalidArgument,
                  "option --long: the stories with SGLang have no long form; give --long or "
                  "--against sglang");
    }
    if (name_ == kAll || !find_drill(name_)->long_story.empty()) return {};
    std::string names;
    for (const Drill& drill : all_drills()) {
      if (!drill.long_story.empty()) names += fmt::format("{}, ", drill.name);
    }
    return fail(FailureCode::kInvalidArgument,
                fmt::format("option --long: '{}' has no long form; there are {}and {}", name_,
                            names, kAll));
  }

  // Of all drills those that have a story with SGLang, where that is asked for.
  bool is_asked_for(const Drill& drill) const {
    if (name_ != kAll) return name_ == drill.name;
    return !is_against() || find_sglang_story(drill.name) != nullptr;
  }

  static std::string known() {
    std::string names;
    for (const Drill& drill : all_drills()) names += fmt::format("{}, ", drill.name);
    return fmt::format("there are {}and {}", names, kAll);
  }

  DrillRun run_one(const Drill& drill, const cli::Interrupt& interrupt) {
    DrillRun run;
    run.drill = &drill;
    const bool guard_on = guard_ == "on";
    introduce(drill);
    if (const Status found = is_against() ? find_sglang() : Status{}; !found) {
      run.verdict = found.error().what;
      fmt::print(text_, "{}: NOT RUN: {}\n", drill.name, run.verdict);
      return run;
    }
    auto folder = DrillFolder::make(keep_, drill.name);
    if (!folder) {
      run.verdict = folder.error().what;
      fmt::print(text_, "{}: NOT RUN: {}\n", drill.name, run.verdict);
      return run;
    }
    DrillScene scene(folder->path(), guard_on ? "" : std::string(drill.missing), interrupt,
                     [this](const std::string& line) {
                       fmt::print(text_, "{}\n", line);
                       std::fflush(text_);
                     });
    if (bounds_ == "wide") scene.widen_bounds();
    if (long_) scene.lengthen();
    const Status status = is_against()
                              ? run_sglang_story(scene, drill.name, folder->path() / "sglang.log",
                                                 [&interrupt] { return interrupt.requested(); })
                              : drill.run(scene);
    run.seconds = scene.seconds();
    run.findings = scene.findings();
    run.figures = scene.figures().str();
    // What has shown has shown, even if the story could not be told to its end.
    if (!run.findings.empty()) {
      run.code = cli::kExitFalse;
      run.verdict = to_string(run.findings.front());
    } else if (!status) {
      run.verdict = to_string(status.error());
    } else {
      run.code = cli::kExitTrue;
      run.verdict = "the failure did not show";
    }
    if (run.code == kExitNotRun) {
      folder->keep();
      run.verdict += fmt::format("; logs and journals are in {}", folder->path().string());
    }
    fmt::print(text_, "{}: {} ({:.1f} s): {}\n\n", drill.name,
               run.code == kExitNotRun       ? "NOT RUN"
               : run.code == cli::kExitFalse ? "THE FAILURE SHOWED"
                                             : "PASS",
               run.seconds, run.verdict);
    return run;
  }

  void introduce(const Drill& drill) {
    const SglangStory* story = is_against() ? find_sglang_story(drill.name) : nullptr;
    fmt::print(text_, "{}: {}\n", drill.name, story != nullptr ? story->story : drill.story);
    fmt::print(text_, "{}\n",
               story != nullptr ? "SGLang's own classes, none of kvferry's."
               : guard_ == "on" ? "All guards are in place."
                                : fmt::format("Without the guard: {}.", drill.missing));
  }

  void show_table(const std::vector<DrillRun>& runs) {
    fmt::print(text_, "{:<18}{:<14}{:>9}  {}\n", "drill", "the failure", "seconds", "verdict");
    for (const DrillRun& run : runs) {
      fmt::print(text_, "{:<18}{:<14}{:>9.1f}  {}\n", run.drill->name, word_of(run.code),
                 run.seconds, run.verdict);
    }
  }

  // Of many drills: 3 when one could not be run; else 1 when one showed with its guard, or with the
  // guards off when all did.
  int conclude(const std::vector<DrillRun>& runs) {
    std::size_t showed = 0;
    std::size_t not_run = runs.empty() ? 1 : 0;
    cli::Report report;
    report.command = "drill";
    for (const DrillRun& run : runs) {
      showed += run.code == cli::kExitFalse ? 1 : 0;
      not_run += run.code == kExitNotRun ? 1 : 0;
      report.rows.push_back(router::JsonObject()
                                .text("drill", run.drill->name)
                                .text("failure", word_of(run.code))
                                .number("seconds", run.seconds)
                                .text("verdict", run.verdict)
                                .integer("findings", static_cast<std::int64_t>(run.findings.size()))
                                .raw("figures", run.figures.empty() ? "{}" : run.figures)
                                .str());
    }
    const bool shows = guard_ == "on" ? showed > 0 : showed == runs.size();
    const int code = not_run > 0 ? kExitNotRun : shows ? cli::kExitFalse : cli::kExitTrue;
    report.ok = code == cli::kExitTrue;
    report.summary.text("guard", guard_)
        .text("against", against_)
        .boolean("long", long_)
        .integer("drills", static_cast<std::int64_t>(runs.size()))
        .integer("showed", static_cast<std::int64_t>(showed))
        .integer("not_run", static_cast<std::int64_t>(not_run));
    if (!json_.empty()) {
      if (const Status written = report.write(json_); !written) {
        fmt::print(stderr, "kvferry drill: {}\n", written.error().what);
        return kExitNotRun;
      }
    }
    std::fflush(text_);
    return code;
  }

  std::string name_;
  std::string guard_ = "on";
  std::string against_ = std::string(kNobody);
  std::string bounds_ = "tight";
  bool long_ = false;
  bool list_ = false;
  std::string keep_;
  std::string json_;
  std::FILE* text_ = stdout;
};

constexpr std::string_view kSummary = "A fault of the field on real processes, told line by line.";

const cli::Command& parsed_command() {
  static const cli::Command command{
      "drill", kSummary,
      "Each drill starts a registry and ranks as processes of their own, makes one thing go wrong, "
      "and\nsays what is seen. It ends with 0 when the failure did not show, with 1 when it "
      "showed, with 3\nwhen the drill could not be run. With --guard off the processes run without "
      "what makes the\nfailure impossible, and it must show. With --against sglang SGLang's own "
      "classes are in kvferry's\nplace, for some of the drills.\n\n"
      "  kvferry drill --list\n"
      "  kvferry drill page-reuse\n"
      "  kvferry drill page-reuse --guard off\n"
      "  kvferry drill restart --long\n"
      "  kvferry drill restart --against sglang\n"
      "  kvferry drill all --json -",
      [] { return std::unique_ptr<cli::Invocation>(std::make_unique<DrillInvocation>()); }};
  return command;
}

// The drill's name may stand by itself in front of the options.
int parse_words(std::span<const std::string> words) {
  std::vector<std::string> arguments = {"kvferry", "drill"};
  const bool named = !words.empty() && !words.front().starts_with('-');
  if (named) arguments.push_back("--name=" + words.front());
  arguments.insert(arguments.end(), words.begin() + (named ? 1 : 0), words.end());
  std::vector<const char*> pointers;
  for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
  const std::array<const cli::Command*, 1> commands = {&parsed_command()};
  return cli::run_command_line(static_cast<int>(pointers.size()), pointers.data(), commands);
}

}  // namespace

const cli::Command& drill_command() {
  static const cli::Command command{"drill", kSummary, "", nullptr, &parse_words};
  return command;
}

}  // namespace kvferry::lab
