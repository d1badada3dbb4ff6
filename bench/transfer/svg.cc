#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "bench/transfer/results.h"

namespace kvferry::bench {
namespace {

constexpr double kLeft = 56;
constexpr double kTop = 48;
constexpr double kPlotHeight = 260;
constexpr double kBarWidth = 18;
constexpr double kGroupGap = 28;
constexpr std::array<std::string_view, 8> kColours = {"#4e79a7", "#f28e2b", "#59a14f", "#e15759",
                                                      "#76b7b2", "#edc948", "#b07aa1", "#9c755f"};

std::vector<std::string> distinct(const std::vector<Row>& rows, std::string Row::*member) {
  std::vector<std::string> out;
  for (const Row& row : rows) {
    if (std::find(out.begin(), out.end(), row.*member) == out.end()) out.push_back(row.*member);
  }
  return out;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string to_svg(const std::vector<Row>& rows, std::string_view title) {
  const auto engines = distinct(rows, &Row::engine);
  const auto blocks = distinct(rows, &Row::block);
  double most = 1;
  for (const Row& row : rows) most = std::max(most, std::ceil(row.max_gbps));
  const double group = static_cast<double>(engines.size()) * kBarWidth + kGroupGap;
  const double width = kLeft + group * static_cast<double>(blocks.size()) + 20;
  const double bottom = kTop + kPlotHeight;
  const double height = bottom + 40 + 18 * static_cast<double>(engines.size());
  const auto y_of = [&](double gbps) { return bottom - kPlotHeight * gbps / most; };
  const auto index_of = [](const std::vector<std::string>& names, const std::string& name) {
    return static_cast<double>(std::find(names.begin(), names.end(), name) - names.begin());
  };

  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"20\" font-size=\"14\">{3}</text>\n"
      "<text x=\"{2}\" y=\"38\">GB/s (1e9 bytes): median, line from least to most</text>\n",
      std::max(width, 480.0), height, kLeft, escaped(title));
  for (double tick = 0; tick <= most; tick += std::max(1.0, std::floor(most / 6))) {
    out += fmt::format(
        "<line x1=\"{0}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.0f}</text>\n",
        kLeft, width, y_of(tick), kLeft - 6, y_of(tick) + 4, tick);
  }
  for (const Row& row : rows) {
    const double engine = index_of(engines, row.engine);
    const double x =
        kLeft + kGroupGap / 2 + group * index_of(blocks, row.block) + engine * kBarWidth;
    const double middle = x + kBarWidth / 2 - 1;
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\" fill=\"{}\">"
        "<title>{} {}: {:.2f} GB/s</title></rect>",
        x, y_of(row.gbps), kBarWidth - 2, bottom - y_of(row.gbps),
        kColours[static_cast<std::size_t>(engine) % kColours.size()], escaped(row.engine),
        escaped(row.block), row.gbps);
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#333\"/>\n",
        middle, y_of(row.min_gbps), y_of(row.max_gbps));
  }
  for (const std::string& block : blocks) {
    const double x = kLeft + group * (index_of(blocks, block) + 0.5);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x,
                       bottom + 18, escaped(block));
  }
  for (const std::string& engine : engines) {
    const double i = index_of(engines, engine);
    const double y = bottom + 40 + 18 * i;
    out += fmt::format(
        "<rect x=\"{}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>"
        "<text x=\"{}\" y=\"{:.1f}\">{}</text>\n",
        kLeft, y - 10, kColours[static_cast<std::size_t>(i) % kColours.size()], kLeft + 18, y,
        escaped(engine));
  }
  return out + "</svg>\n";
}

}  // namespace kvferry::bench
