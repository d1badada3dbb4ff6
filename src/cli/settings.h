// The settings of one subcommand: each has a name, a unit, a default, and a source that says where
// its value came from. Values arrive as text from the file, the environment or the command line and
// are checked where they are set, so every refusal names the setting, the value and the range.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/options.h"
#include "kvferry/status.h"

namespace kvferry::cli {

enum class Source { kDefault, kFile, kEnvironment, kOption };  // later ones win
std::string_view to_string(Source source);

struct Setting {
  std::string name;  // with underscores; option --with-dashes, environment KVFERRY_UPPER
  std::string unit;  // "ms", "bytes", "host:port" ...; empty for none
  std::string help;
  bool is_flag = false;
  bool is_list = false;            // may be given several times; the values are joined by commas
  bool is_value_optional = false;  // without one the option says "true", as a flag does
  // The failure's text is about the value alone: "'3s' is not a whole number from 1 to 60 ms".
  std::function<Status(std::string_view value)> set;
  std::function<std::string()> get;
  Source source = Source::kDefault;
  std::string default_text;  // filled by add()
};

std::string option_name(std::string_view name);       // --with-dashes
std::string environment_name(std::string_view name);  // KVFERRY_UPPER

class Settings {
 public:
  void add(Setting setting);

  template <typename T>
  void number(std::string name, std::string unit, T& target, T min, T max, std::string help);
  void text(std::string name, std::string unit, std::string& target, std::string help);
  // An option that may stand alone and then means implied; empty when it is not given.
  void optional_text(std::string name, std::string unit, std::string implied, std::string& target,
                     std::string help);
  void flag(std::string name, bool& target, std::string help);
  // Comma-separated.
  void list(std::string name, std::string unit, std::vector<std::string>& target, std::string help);
  void choice(std::string name, std::string& target, std::vector<std::string> allowed,
              std::string help);
  // Every row of the library's table.
  void library(Options& target);

  // A source below the setting's present one changes nothing. where names the file, if any.
  Status apply(std::string_view name, std::string_view value, Source source,
               std::string_view where = {});
  Setting* find(std::string_view name);
  const std::vector<Setting>& rows() const { return rows_; }

 private:
  std::vector<Setting> rows_;
};

template <typename T>
void Settings::number(std::string name, std::string unit, T& target, T min, T max,
                      std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.help = fmt::format("{} ({} to {})", help, min, max);
  setting.set = [&target, unit, min, max](std::string_view value) -> Status {
    T parsed{};
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, parsed);
    if (error != std::errc{} || stop != end || parsed < min || parsed > max) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("'{}' is not a whole number from {} to {}{}{}", value, min, max,
                              unit.empty() ? "" : " ", unit));
    }
    target = parsed;
    return {};
  };
  setting.get = [&target] { return fmt::format("{}", target); };
  setting.unit = std::move(unit);
  add(std::move(setting));
}

}  // namespace kvferry::cli
