#include "lane/plot.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "lane/document.h"

namespace onelane {
namespace {

constexpr double kWidth = 800, kRight = 24, kTop = 34, kRow = 22;
constexpr size_t kMostSteps = 400;  // of one stair: more cannot be seen

char colour(size_t series) { return static_cast<char>('a' + std::min(series, kPlotSeries - 1)); }

std::string text_at(double x, double y, const std::string& text, const char* anchor = "start", const char* css = "") {
  return format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>", x, y, anchor, css,
                html_text(text));
}

std::string line_at(double x1, double y1, double x2, double y2, const std::string& css, const char* more = "") {
  return format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\" {}/>", x1, y1, x2, y2, css,
                more);
}

// Labels longer than their column are cut; the table below has them whole.
std::string fitted(const std::string& label, size_t most) {
  if (label.size() <= most) return label;
  size_t cut = most - 1;
  while (cut > 0 && (static_cast<unsigned char>(label[cut]) & 0xC0) == 0x80) --cut;  // not inside a character
  return label.substr(0, cut) + "…";
}

// A linear axis with round ticks that covers [low, high].
struct Axis {
  double low, high, from, to;  // values and where they lie
  double step;

  // Any finite values: a receipt may say whatever it likes of itself.
  Axis(double least, double most, double from_, double to_) : from(from_), to(to_) {
    constexpr double kMost = 1e300, kLeastSpan = 1e-9;  // of the values' size: below it ticks would fall together
    least = std::clamp(least, -kMost, kMost);
    most = std::clamp(most, -kMost, kMost);
    const double size = std::max(std::abs(least), std::abs(most));
    if (!(most - least > size * kLeastSpan) || size < 1 / kMost) most = least + (size < 1 / kMost ? 1 : size * 0.1);
    const double raw = (most - least) / 5, decade = std::pow(10, std::floor(std::log10(raw)));
    step = decade * (raw / decade < 1.5 ? 1 : raw / decade < 3.5 ? 2 : raw / decade < 7.5 ? 5 : 10);
    low = std::floor(least / step) * step;
    high = std::ceil(most / step) * step;
  }
  double at(double value) const { return from + (value - low) / (high - low) * (to - from); }
  int ticks() const { return static_cast<int>(std::lround((high - low) / step)); }
  double tick(int i) const { return low + i * step; }
  std::string label(int i) const {
    const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9)));
    const double value = tick(i);
    if (std::abs(value) >= 1e6) return three_digits(value);
    return format("{:.{}f}", std::abs(value) < step / 1e6 ? 0.0 : value, std::min(decimals, 9));
  }
};

std::string open(const std::string& title, double height) {
  return format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\"><title>{}</title>{}", kWidth, height, html_text(title),
                text_at(12, 20, title));
}

std::string x_axis(const Axis& axis, double top, double bottom, const std::string& unit) {
  std::string out;
  for (int i = 0; i <= axis.ticks(); ++i) {
    const double x = axis.at(axis.tick(i));
    out += line_at(x, top, x, bottom, "rule") + text_at(x, bottom + 15, axis.label(i), "middle", "soft");
  }
  return out + text_at(kWidth - kRight, bottom + 31, unit, "end", "soft");
}

std::string legend(const std::vector<std::string>& names, double y) {
  std::string out;
  double x = 12;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = fitted(names[i], 34);
    const double width = 26 + 7.0 * static_cast<double>(name.size());
    if (x + width > kWidth) x = 12, y += 18;
    out +=
        format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" class=\"fill-{}\"/>", x, y - 9, colour(i));
    out += text_at(x + 15, y, name);
    x += width;
  }
  return out;
}

double legend_height(const std::vector<std::string>& names) {
  double x = 12, height = 22;
  for (const std::string& name : names) {
    const double width = 26 + 7.0 * static_cast<double>(fitted(name, 34).size());
    if (x + width > kWidth) x = 12, height += 18;
    x += width;
  }
  return height;
}

}  // namespace

std::string bar_plot(const std::string& title, const std::string& unit, const std::vector<Bar>& bars) {
  constexpr double kLeft = 230;
  double most = 0;
  for (const Bar& bar : bars) most = std::max(most, bar.value);
  const double bottom = kTop + kRow * static_cast<double>(bars.size());
  const Axis axis(0, most, kLeft, kWidth - 70);
  std::string out = open(title, bottom + 40) + x_axis(axis, kTop, bottom, unit);
  for (size_t i = 0; i < bars.size(); ++i) {
    const double y = kTop + kRow * static_cast<double>(i), x = axis.at(std::max(0.0, bars[i].value));
    out += text_at(kLeft - 8, y + 15, fitted(bars[i].label, 32), "end");
    out += format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"fill-{}\"/>", kLeft,
                  y + 4, x - kLeft, kRow - 8, colour(bars[i].series));
    out += text_at(x + 6, y + 15, three_digits(bars[i].value));
  }
  return out + line_at(kLeft, kTop, kLeft, bottom, "axis") + "</svg>";
}

std::string distribution_plot(const std::string& title, const std::string& unit,
                              const std::vector<PlotSeries>& series) {
  constexpr double kLeft = 52, kHeight = 220;
  std::vector<PlotSeries> shown;
  std::vector<std::string> names;
  for (const PlotSeries& one : series) {
    if (one.values.empty()) continue;
    shown.push_back(one);
    std::sort(shown.back().values.begin(), shown.back().values.end());
    names.push_back(one.name);
  }
  if (shown.empty()) return "";
  double least = shown[0].values.front(), most = shown[0].values.back();
  for (const PlotSeries& one : shown) {
    least = std::min(least, one.values.front());
    most = std::max(most, one.values.back());
  }
  const double bottom = kTop + kHeight;
  const Axis x(least, most, kLeft, kWidth - kRight), y(0, 1, bottom, kTop);
  std::string out = open(title, bottom + 40 + legend_height(names)) + x_axis(x, kTop, bottom, unit);
  for (const double share : {0.0, 0.5, 0.95, 1.0}) {
    out += line_at(kLeft, y.at(share), kWidth - kRight, y.at(share), "rule");
    out += text_at(kLeft - 6, y.at(share) + (share == 0.95 ? 12 : 4), format("{:.0f} %", share * 100), "end", "soft");
  }
  for (size_t s = 0; s < shown.size(); ++s) {
    const std::vector<double>& values = shown[s].values;
    const size_t steps = std::min(values.size(), kMostSteps);
    std::string path = format("M{:.1f},{:.1f}", x.at(values.front()), y.at(0));
    for (size_t i = 1; i <= steps; ++i) {
      const size_t rank = i * values.size() / steps;  // how many values are at or below the step
      path += format("H{:.1f}V{:.1f}", x.at(values[rank - 1]),
                     y.at(static_cast<double>(rank) / static_cast<double>(values.size())));
    }
    out += format("<path d=\"{}\" class=\"line-{}\" stroke-width=\"1.8\"/>", path, colour(s));
    out += format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" class=\"fill-{}\"/>", x.at(percentile(values, 0.5)),
                  y.at(0.5), colour(s));
  }
  return out + legend(names, bottom + 52) + "</svg>";
}

std::string forest_plot(const std::string& title, const std::string& unit, const std::vector<ForestRow>& rows,
                        const std::vector<double>& marks) {
  constexpr double kLeft = 230;
  double least = 0, most = 0;
  for (const ForestRow& row : rows) {
    least = std::min(least, row.estimate.low);
    most = std::max(most, row.estimate.high);
  }
  for (const double mark : marks) least = std::min(least, mark), most = std::max(most, mark);
  const double bottom = kTop + kRow * static_cast<double>(rows.size());
  const Axis axis(least, most, kLeft, kWidth - kRight - 60);
  std::string out = open(title, bottom + 40) + x_axis(axis, kTop, bottom, unit);
  out += line_at(axis.at(0), kTop, axis.at(0), bottom, "axis");
  for (const double mark : marks) {
    out += line_at(axis.at(mark), kTop, axis.at(mark), bottom, "axis", "stroke-dasharray=\"4 4\"");
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const double y = kTop + kRow * (static_cast<double>(i) + 0.5);
    const Estimate& e = rows[i].estimate;
    out += text_at(kLeft - 8, y + 4, fitted(rows[i].label, 32), "end");
    out += line_at(axis.at(e.low), y, axis.at(e.high), y, "line-a", "stroke-width=\"2\"");
    out += format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" class=\"fill-a\"/>", axis.at(e.point), y);
  }
  return out + "</svg>";
}

std::string point_plot(const std::string& title, const std::string& x_label, const std::string& unit,
                       const std::vector<Point>& points, const std::vector<std::string>& names) {
  constexpr double kLeft = 66, kHeight = 200;
  if (points.empty()) return "";
  const auto [x0, x1] = std::minmax_element(points.begin(), points.end(), [](auto& a, auto& b) { return a.x < b.x; });
  const auto [y0, y1] = std::minmax_element(points.begin(), points.end(), [](auto& a, auto& b) { return a.y < b.y; });
  const double bottom = kTop + kHeight;
  const Axis x(x0->x, x1->x, kLeft + 8, kWidth - kRight - 8), y(y0->y, y1->y, bottom, kTop);
  std::string out = open(title + ", " + unit, bottom + 40 + legend_height(names)) + x_axis(x, kTop, bottom, x_label);
  for (int i = 0; i <= y.ticks(); ++i) {
    out += line_at(kLeft, y.at(y.tick(i)), kWidth - kRight, y.at(y.tick(i)), "rule");
    out += text_at(kLeft - 6, y.at(y.tick(i)) + 4, y.label(i), "end", "soft");
  }
  for (const Point& point : points) {
    out += format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" class=\"fill-{}\"/>", x.at(point.x), y.at(point.y),
                  colour(point.series));
  }
  return out + legend(names, bottom + 52) + "</svg>";
}

}  // namespace onelane
