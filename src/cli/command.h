// What a subcommand is: a row of the table in main.cc and a class that declares its settings and
// runs.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cli/settings.h"

namespace kvferry::cli {

// Exit codes of the whole command (design section 10).
inline constexpr int kExitTrue = 0;   // what it claims was checked and true
inline constexpr int kExitFalse = 1;  // it was not
inline constexpr int kExitUsage = 2;

class Invocation {
 public:
  virtual ~Invocation() = default;
  // Members are the targets; they live as long as the invocation.
  virtual void declare(Settings& settings) = 0;
  // What depends on more than one setting; a failure is wrong usage.
  virtual Status check() { return {}; }
  virtual int run() = 0;
};

struct Command {
  std::string_view name;
  std::string_view summary;  // one line
  std::string_view details;  // paragraphs of --help
  std::unique_ptr<Invocation> (*make)();
  // Set for a command that another program carries out: takes the words behind the command's name
  // as they are, --help too, and returns the exit code. make is not called then.
  int (*hand_over)(std::span<const std::string> words) = nullptr;
};

const Command& serve_command();
const Command& router_command();
const Command& bootstrap_command();
const Command& demo_command();
const Command& quantize_command();
const Command& sim_command();
const Command& bench_command();
const Command& drill_command();

// Version of the project, as in CMakeLists.txt.
std::string_view version();

}  // namespace kvferry::cli
