#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

namespace kvferry::log {
namespace {

// Before configure() a program that only embeds the library sees its warnings and nothing else.
struct Settings {
  std::atomic<Level> level{Level::kWarning};
  std::atomic<Format> format{Format::kText};
  std::shared_ptr<spdlog::logger> logger;
};

// A percent sign in a name would be read as a placeholder of the pattern.
std::string escape_pattern(std::string_view name) {
  std::string escaped;
  for (const char c : name) {
    escaped.push_back(c);
    if (c == '%') {
      escaped.push_back('%');
    }
  }
  return escaped;
}

// Length of the well-formed UTF-8 sequence that starts at text[at], 0 when there is none there.
// Overlong forms and surrogates pass: they harm no reader of a log.
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const std::size_t length = lead < 0x80                   ? 1
                             : lead >= 0xC2 && lead < 0xE0 ? 2
                             : lead >= 0xE0 && lead < 0xF0 ? 3
                             : lead >= 0xF0 && lead < 0xF5 ? 4
                                                           : 0;
  if (at + length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) {
      return 0;
    }
  }
  return length;
}

// Peers' words end up in log lines, so that whatever could start a new line, end a JSON string or
// steer a terminal is escaped in both formats.
std::string escape(std::string_view text, Format format) {
  std::string escaped;
  escaped.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    const std::size_t length = utf8_length(text, i);
    if (length == 0) {
      escaped += "\xEF\xBF\xBD";
      ++i;
      continue;
    }
    if (c == '\n') {
      escaped += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      escaped += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else if (format == Format::kJson && (c == '"' || c == '\\')) {
      escaped.push_back('\\');
      escaped.push_back(c);
    } else {
      escaped += text.substr(i, length);
    }
    i += length;
  }
  return escaped;
}

std::string pattern_of(std::string_view name, Format format) {
  if (format == Format::kText) {
    return fmt::format("%Y-%m-%d %H:%M:%S.%e %^%-7l%$ {} %v", escape_pattern(escape(name, format)));
  }
  return fmt::format(R"({{"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","name":"{}",%v}})",
                     escape_pattern(escape(name, format)));
}

std::shared_ptr<spdlog::logger> make_logger(std::string_view name, Format format) {
  auto logger = std::make_shared<spdlog::logger>(
      std::string(name), std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog::level::trace);
  logger->set_pattern(pattern_of(name, format));
  logger->flush_on(spdlog::level::trace);
  return logger;
}

Settings& settings() {
  static Settings settings{Level::kWarning, Format::kText, make_logger("kvferry", Format::kText)};
  return settings;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      break;
  }
  return spdlog::level::off;
}

}  // namespace

void configure(std::string_view name, Level level, Format format) {
  Settings& current = settings();
  current.logger = make_logger(name, format);
  current.format = format;
  current.level = level;
}

bool enabled(Level level) {
  return level != Level::kOff && level >= settings().level.load(std::memory_order_relaxed);
}

void write(Level level, std::string_view text, std::string_view request) {
  if (!enabled(level)) {
    return;
  }
  Settings& current = settings();
  const Format format = current.format.load(std::memory_order_relaxed);
  std::string line;
  if (format == Format::kJson) {
    line = fmt::format(R"("text":"{}")", escape(text, format));
    if (!request.empty()) {
      line += fmt::format(R"(,"request":"{}")", escape(request, format));
    }
  } else {
    line = request.empty() ? escape(text, format)
                           : fmt::format("[{}] {}", escape(request, format), escape(text, format));
  }
  current.logger->log(to_spdlog(level), spdlog::string_view_t(line));
}

bool RateLimit::allow(Instant now) {
  if (now < next_) {
    ++pending_;
    return false;
  }
  suppressed_ = pending_;
  pending_ = 0;
  next_ = now + interval_;
  return true;
}

}  // namespace kvferry::log
