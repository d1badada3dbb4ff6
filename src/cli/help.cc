#include "cli/help.h"

#include <algorithm>

namespace kvferry::cli {
namespace {

constexpr std::size_t kWidth = 100;

// Words of text from column indent on, the first line starting there already.
std::string wrap(std::string_view text, std::size_t indent) {
  std::string out;
  std::size_t column = indent;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    if (column > indent && column + word.size() + 1 > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

void add_row(std::string& out, std::string_view left, std::string_view help) {
  constexpr std::size_t kColumn = 38;
  std::string start = "  " + std::string(left);
  if (start.size() + 2 > kColumn) {
    out += start + "\n" + std::string(kColumn, ' ');
  } else {
    out += start + std::string(kColumn - start.size(), ' ');
  }
  out += wrap(help, kColumn) + "\n";
}

}  // namespace

std::string overview(std::span<const Command* const> commands) {
  std::string out =
      "kvferry moves the KV cache of large language models from prefill to decode servers.\n\n"
      "Usage: kvferry COMMAND [options]\n\nCommands:\n";
  for (const Command* command : commands) {
    out += fmt::format("  {:<12}{}\n", command->name, command->summary);
  }
  out +=
      "\nOptions:\n  --help      this text; after a command: its options with units and defaults\n"
      "  --version   the version\n";
  return out;
}

std::string command_help(const Command& command, const Settings& settings) {
  std::string out = fmt::format("Usage: kvferry {} [options]\n\n{}\n\n{}\n\nOptions:\n",
                                command.name, command.summary, command.details);
  for (const Setting& row : settings.rows()) {
    std::string left = option_name(row.name);
    if (!row.is_flag) left += " " + (row.unit.empty() ? std::string("TEXT") : row.unit);
    const std::string shown = row.default_text.empty() ? "none" : row.default_text;
    const std::string unit = row.unit.find_first_of("|:,") == std::string::npos && !row.unit.empty()
                                 ? " " + row.unit
                                 : "";
    const bool has_default = !row.default_text.empty() && !row.is_flag;
    add_row(out, left, fmt::format("{} [default: {}{}]", row.help, shown, has_default ? unit : ""));
  }
  add_row(out, "--config FILE",
          "settings as lines 'name = value', with underscores in the names; lines below [COMMAND] "
          "hold for that command only");
  add_row(out, "--print-config", "print each value with its unit and where it came from, and exit");
  add_row(out, "--help", "this text");
  out +=
      "\nA setting comes from its option, else from the environment (KVFERRY_ and its name in\n"
      "capitals), else from the file of --config, else it has its default.\n"
      "Exit codes: 0 done and true, 1 failed or not true, 2 wrong usage.\n";
  return out;
}

std::string print_config(const Settings& settings) {
  std::size_t name_width = 4;
  std::size_t value_width = 5;
  std::size_t unit_width = 4;
  for (const Setting& row : settings.rows()) {
    name_width = std::max(name_width, row.name.size());
    value_width = std::max(value_width, std::max<std::size_t>(row.get().size(), 2));
    unit_width = std::max(unit_width, row.unit.size());
  }
  std::string out = fmt::format("{:<{}}  {:<{}}  {:<{}}  {}\n", "name", name_width, "value",
                                value_width, "unit", unit_width, "source");
  for (const Setting& row : settings.rows()) {
    const std::string value = row.get();
    out += fmt::format("{:<{}}  {:<{}}  {:<{}}  {}\n", row.name, name_width,
                       value.empty() ? "\"\"" : value, value_width, row.unit, unit_width,
                       to_string(row.source));
  }
  return out;
}

}  // namespace kvferry::cli
