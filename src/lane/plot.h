// Plots as SVG text, for Figure of document.h: their colours and fonts are classes of the page's style, so they follow
// its light or dark theme. Every plot has a title for those who cannot see it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lane/stats.h"

namespace onelane {

inline constexpr size_t kPlotSeries = 8;  // colours of the page; further series take the last one

struct Bar {
  std::string label;
  double value = 0;
  size_t series = 0;
};
// Horizontal bars from zero, in the order given; values below zero are shown as zero.
std::string bar_plot(const std::string& title, const std::string& unit, const std::vector<Bar>& bars);

struct PlotSeries {
  std::string name;
  std::vector<double> values;
};
// The share of values at or below x, one stair per series with its median marked. Empty series are left out.
std::string distribution_plot(const std::string& title, const std::string& unit, const std::vector<PlotSeries>& series);

struct ForestRow {
  std::string label;
  Estimate estimate;
};
// Intervals on one axis with a line at zero and, where given, dashed ones at `marks`.
std::string forest_plot(const std::string& title, const std::string& unit, const std::vector<ForestRow>& rows,
                        const std::vector<double>& marks = {});

struct Point {
  double x = 0, y = 0;
  size_t series = 0;
};
// Points in time, coloured by series; `names` label the colours.
std::string point_plot(const std::string& title, const std::string& x_label, const std::string& unit,
                       const std::vector<Point>& points, const std::vector<std::string>& names);

}  // namespace onelane
