#include "cli/settings.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace kvferry::cli {
namespace {

std::string join(const std::vector<std::string>& entries) {
  std::string out;
  for (const std::string& entry : entries) out += (out.empty() ? "" : ",") + entry;
  return out;
}

std::vector<std::string> split(std::string_view value) {
  std::vector<std::string> out;
  while (!value.empty()) {
    const std::size_t comma = std::min(value.find(','), value.size());
    if (comma > 0) out.emplace_back(value.substr(0, comma));
    value.remove_prefix(std::min(comma + 1, value.size()));
  }
  return out;
}

}  // namespace

std::string_view to_string(Source source) {
  switch (source) {
    case Source::kDefault:
      return "default";
    case Source::kFile:
      return "file";
    case Source::kEnvironment:
      return "environment";
    case Source::kOption:
      return "option";
  }
  return "default";
}

std::string option_name(std::string_view name) {
  std::string out = "--" + std::string(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::string environment_name(std::string_view name) {
  std::string out = "KVFERRY_";
  for (const char c : name) {
    out += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

void Settings::add(Setting setting) {
  setting.default_text = setting.get();
  rows_.push_back(std::move(setting));
}

void Settings::text(std::string name, std::string unit, std::string& target, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.unit = std::move(unit);
  setting.help = std::move(help);
  setting.set = [&target](std::string_view value) -> Status {
    target = std::string(value);
    return {};
  };
  setting.get = [&target] { return target; };
  add(std::move(setting));
}

void Settings::optional_text(std::string name, std::string unit, std::string implied,
                             std::string& target, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.unit = std::move(unit);
  setting.help = std::move(help);
  setting.is_value_optional = true;
  setting.set = [&target, implied = std::move(implied)](std::string_view value) -> Status {
    target = value == "true" ? implied : std::string(value);
    return {};
  };
  setting.get = [&target] { return target; };
  add(std::move(setting));
}

void Settings::flag(std::string name, bool& target, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.help = std::move(help);
  setting.is_flag = true;
  setting.set = [&target](std::string_view value) -> Status {
    if (value == "true" || value == "1" || value == "on" || value == "yes") {
      target = true;
    } else if (value == "false" || value == "0" || value == "off" || value == "no") {
      target = false;
    } else {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("'{}' is neither true nor false", value));
    }
    return {};
  };
  setting.get = [&target] { return std::string(target ? "true" : "false"); };
  add(std::move(setting));
}

void Settings::list(std::string name, std::string unit, std::vector<std::string>& target,
                    std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.unit = std::move(unit);
  setting.help = std::move(help);
  setting.is_list = true;
  setting.set = [&target](std::string_view value) -> Status {
    target = split(value);
    return {};
  };
  setting.get = [&target] { return join(target); };
  add(std::move(setting));
}

void Settings::choice(std::string name, std::string& target, std::vector<std::string> allowed,
                      std::string help) {
  std::string words;
  for (const std::string& word : allowed) words += (words.empty() ? "" : "|") + word;
  Setting setting;
  setting.name = std::move(name);
  setting.unit = words;
  setting.help = std::move(help);
  setting.set = [&target, words, allowed = std::move(allowed)](std::string_view value) -> Status {
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("'{}' is not one of {}", value, words));
    }
    target = std::string(value);
    return {};
  };
  setting.get = [&target] { return target; };
  add(std::move(setting));
}

void Settings::library(Options& target) {
  for (const OptionRow& row : option_rows()) {
    Setting setting;
    setting.name = std::string(row.name);
    setting.unit = std::string(row.unit);
    setting.help = std::string(row.help);
    setting.is_list = row.unit.ends_with(",...");
    setting.get = [&row, &target] { return row.get(target); };
    const std::string shown = setting.get();
    setting.is_flag = row.unit.empty() && (shown == "true" || shown == "false");
    setting.set = [&row, &target](std::string_view value) -> Status {
      Status status = row.set(target, value);
      if (!status) {
        // The table names the option itself; apply() does so in the words of the value's source.
        const std::string prefix = fmt::format("option {}: ", row.name);
        std::string& what = status.error().what;
        if (what.starts_with(prefix)) what.erase(0, prefix.size());
      }
      return status;
    };
    add(std::move(setting));
  }
}

Setting* Settings::find(std::string_view name) {
  const auto found = std::find_if(rows_.begin(), rows_.end(),
                                  [&](const Setting& row) { return row.name == name; });
  return found == rows_.end() ? nullptr : &*found;
}

Status Settings::apply(std::string_view name, std::string_view value, Source source,
                       std::string_view where) {
  std::string shown = option_name(name);
  if (source == Source::kFile) shown = fmt::format("{} in {}", name, where);
  if (source == Source::kEnvironment) shown = environment_name(name) + " in the environment";
  Setting* setting = find(name);
  if (setting == nullptr) {
    return fail(FailureCode::kInvalidArgument, fmt::format("unknown option {}", shown));
  }
  if (source < setting->source) return {};
  Status status = setting->set(value);
  if (!status) {
    status.error().what = fmt::format("option {}: {}", shown, status.error().what);
    return status;
  }
  setting->source = source;
  return {};
}

}  // namespace kvferry::cli
