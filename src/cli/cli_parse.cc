#include "cli/cli_parse.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>

#include "base/log.h"
#include "cli/help.h"

namespace kvferry::cli {
namespace {

// CLI11 turns argv and the file into text; sources, ranges and their refusals are Settings' work,
// since CLI11 does not remember where a value came from.
struct Arguments {
  std::map<std::string, std::string> values;  // by setting name
  std::string config;
  bool print_config = false;
  bool help = false;
};

int refuse(std::string_view command, std::string_view what) {
  fmt::print(stderr, "kvferry{}{}: {}\n", command.empty() ? "" : " ", command, what);
  fmt::print(stderr, "See kvferry{}{} --help\n", command.empty() ? "" : " ", command);
  return kExitUsage;
}

// The known option that shares the longest start with an unknown one, for a misspelt or cut name.
std::string suggestion(const Settings& settings, std::string_view unknown) {
  std::string best;
  std::size_t best_length = std::string_view("--abc").size();
  for (const Setting& row : settings.rows()) {
    const std::string known = option_name(row.name);
    const auto [end, ignored] =
        std::mismatch(known.begin(), known.end(), unknown.begin(), unknown.end());
    const auto length = static_cast<std::size_t>(end - known.begin());
    if (length > best_length) {
      best_length = length;
      best = known;
    }
  }
  return best.empty() ? "" : fmt::format(" (did you mean {}?)", best);
}

void declare(CLI::App& app, const Settings& settings, Arguments& arguments,
             std::map<std::string, CLI::Option*>& options) {
  app.set_help_flag();
  app.allow_extras();
  app.add_flag("--help,-h", arguments.help);
  app.add_flag("--print-config", arguments.print_config);
  app.add_option("--config", arguments.config)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (const Setting& row : settings.rows()) {
    std::string& target = arguments.values[row.name];
    CLI::Option* option = row.is_flag ? app.add_flag(option_name(row.name), target)
                                      : app.add_option(option_name(row.name), target);
    if (row.is_value_optional) option->expected(0, 1);
    if (row.is_list) {
      option->join(',');
    } else {
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
    options[row.name] = option;
  }
}

Status apply_item(Settings& settings, const CLI::ConfigItem& item, std::string_view file) {
  Setting* setting = settings.find(item.name);
  const bool is_list = setting != nullptr && setting->is_list;
  return settings.apply(item.name, CLI::detail::join(item.inputs, is_list ? "," : " "),
                        Source::kFile, file);
}

// Lines of the top hold for every command, lines below [COMMAND] for that one only.
Status apply_file(Settings& settings, const std::string& file, std::string_view command,
                  std::span<const Command* const> commands) {
  const auto refused = [&](std::string_view why) {
    return fail(FailureCode::kInvalidArgument, fmt::format("option --config: {}: {}", file, why));
  };
  std::ifstream input(file);
  if (!input) return refused("the file can't be read");
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigINI().from_config(input);
  } catch (const CLI::Error& error) {
    return refused(error.what());
  }
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks of section ends
    const std::string section = item.parents.empty() ? "" : item.parents.front();
    const bool known = std::any_of(commands.begin(), commands.end(),
                                   [&](const Command* row) { return row->name == section; });
    if (!section.empty() && !known) {
      return refused(fmt::format("section [{}] is not a command", section));
    }
    if (!section.empty() && section != command) continue;
    if (const Status status = apply_item(settings, item, file); !status) return status;
  }
  return {};
}

Status apply_environment(Settings& settings) {
  std::vector<std::string> names;
  for (const Setting& row : settings.rows()) names.push_back(row.name);
  for (const std::string& name : names) {
    const char* value = std::getenv(environment_name(name).c_str());
    if (value == nullptr) continue;
    if (const Status status = settings.apply(name, value, Source::kEnvironment); !status) {
      return status;
    }
  }
  return {};
}

struct LogOptions {
  std::string level = "info";
  std::string format = "text";

  void declare(Settings& settings) {
    settings.choice("log_level", level, {"debug", "info", "warning", "error", "off"},
                    "least severe line of the log that is written to stderr");
    settings.choice("log_format", format, {"text", "json"}, "for people or for machines");
  }
  void configure(std::string_view name) const {
    log::Level chosen = log::Level::kInfo;
    if (level == "debug") chosen = log::Level::kDebug;
    if (level == "warning") chosen = log::Level::kWarning;
    if (level == "error") chosen = log::Level::kError;
    if (level == "off") chosen = log::Level::kOff;
    log::configure(name, chosen, format == "json" ? log::Format::kJson : log::Format::kText);
  }
};

// 0 to go on, else an exit code plus one, so that "exit with 0" can be told apart.
int parse_arguments(const Command& command, Settings& settings, std::vector<std::string> words,
                    Arguments& arguments, std::span<const Command* const> commands) {
  CLI::App app;
  std::map<std::string, CLI::Option*> options;
  declare(app, settings, arguments, options);
  const auto usage = [&](std::string_view what) { return 1 + refuse(command.name, what); };
  try {
    std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
    app.parse(words);
  } catch (const CLI::Error& error) {
    return usage(error.what());
  }
  if (arguments.help) {
    fmt::print("{}", command_help(command, settings));
    return 1 + kExitTrue;
  }
  if (const auto extra = app.remaining(); !extra.empty()) {
    const std::string name = extra.front().substr(0, extra.front().find('='));
    if (name.starts_with('-')) {
      return usage(fmt::format("unknown option {}{}", name, suggestion(settings, name)));
    }
    return usage(fmt::format("unexpected argument '{}'", name));
  }
  if (arguments.config.empty()) {
    const char* file = std::getenv("KVFERRY_CONFIG");
    if (file != nullptr) arguments.config = file;
  }
  if (!arguments.config.empty()) {
    const Status status = apply_file(settings, arguments.config, command.name, commands);
    if (!status) return usage(status.error().what);
  }
  if (const Status status = apply_environment(settings); !status) {
    return usage(status.error().what);
  }
  for (const auto& [name, option] : options) {
    if (option->count() == 0) continue;
    std::string value = arguments.values[name];
    if (value.empty() && settings.find(name)->is_value_optional) value = "true";
    const Status status = settings.apply(name, value, Source::kOption);
    if (!status) return usage(status.error().what);
  }
  return 0;
}

int run_command(const Command& command, std::vector<std::string> words,
                std::span<const Command* const> commands) {
  const std::unique_ptr<Invocation> invocation = command.make();
  Settings settings;
  LogOptions log_options;
  invocation->declare(settings);
  log_options.declare(settings);

  Arguments arguments;
  const int parsed = parse_arguments(command, settings, std::move(words), arguments, commands);
  if (parsed != 0) return parsed - 1;
  if (arguments.print_config) {
    fmt::print("{}", print_config(settings));
    return kExitTrue;
  }
  if (const Status status = invocation->check(); !status) {
    return refuse(command.name, status.error().what);
  }
  log_options.configure(fmt::format("kvferry {}", command.name));
  return invocation->run();
}

}  // namespace

int run_command_line(int argc, const char* const* argv, std::span<const Command* const> commands) {
  if (argc < 2) {
    fmt::print(stderr, "{}", overview(commands));
    return kExitUsage;
  }
  const std::string name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    fmt::print("{}", overview(commands));
    return kExitTrue;
  }
  if (name == "--version") {
    fmt::print("kvferry {}\n", version());
    return kExitTrue;
  }
  for (const Command* command : commands) {
    if (command->name == name) {
      std::vector<std::string> words(argv + 2, argv + argc);
      return command->hand_over != nullptr ? command->hand_over(words)
                                           : run_command(*command, std::move(words), commands);
    }
  }
  return refuse("", name.starts_with('-') ? fmt::format("unknown option {}", name)
                                          : fmt::format("unknown command '{}'", name));
}

}  // namespace kvferry::cli
