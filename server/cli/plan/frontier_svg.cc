#include "server/cli/plan/frontier_svg.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace sluice {
namespace {

constexpr double kWidth = 720, kHeight = 440;
constexpr double kLeft = 80, kRight = 24, kTop = 48, kBottom = 56;

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// The smallest of 1, 2, 5 times a power of ten that is at least `value`.
double RoundUp(double value) {
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= value * (1 - 1e-9)) return step * power;
  }
  return 10 * power;
}

}  // namespace

std::string FrontierSvg(const std::string& title,
                        const std::vector<FrontierPoint>& points) {
  double min = 1, max = 10, top = 1;
  if (!points.empty()) {
    min = max = points[0].latency_seconds;
    top = 0;
    for (const FrontierPoint& point : points) {
      min = std::min(min, point.latency_seconds);
      max = std::max(max, point.latency_seconds);
      top = std::max(top, point.tokens_per_second);
    }
    top = RoundUp(top);
  }
  const double low = std::floor(std::log10(min) + 1e-9);
  const double high = std::max(low + 1, std::ceil(std::log10(max) - 1e-9));
  const auto x = [&](double latency) {
    return kLeft + (std::log10(latency) - low) / (high - low) *
                       (kWidth - kLeft - kRight);
  };
  const auto y = [&](double rate) {
    return kHeight - kBottom - rate / top * (kHeight - kTop - kBottom);
  };

  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" "
      "width=\"%g\" height=\"%g\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"%g\" y=\"24\" font-size=\"16\">%s</text>\n",
      kWidth, kHeight, kWidth, kHeight, kLeft, Escape(title));
  for (int i = 0; i <= 5; ++i) {
    const double rate = top * i / 5;
    absl::StrAppendFormat(
        &svg,
        "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" "
        "stroke=\"#ddd\"/>\n"
        "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n",
        kLeft, kWidth - kRight, y(rate), y(rate), kLeft - 8, y(rate) + 4, rate);
  }
  for (double power = low; power <= high; ++power) {
    const double latency = std::pow(10, power);
    absl::StrAppendFormat(
        &svg,
        "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" y2=\"%g\" "
        "stroke=\"#ddd\"/>\n"
        "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%g</text>\n",
        x(latency), x(latency), kTop, kHeight - kBottom, x(latency),
        kHeight - kBottom + 20, latency);
  }
  absl::StrAppendFormat(
      &svg,
      "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">latency of a block, "
      "seconds</text>\n"
      "<text transform=\"translate(20 %g) rotate(-90)\" "
      "text-anchor=\"middle\">generated tokens per second</text>\n",
      (kLeft + kWidth - kRight) / 2, kHeight - 12,
      (kTop + kHeight - kBottom) / 2);
  std::string line;
  for (const FrontierPoint& point : points) {
    absl::StrAppendFormat(&line, "%.1f,%.1f ", x(point.latency_seconds),
                          y(point.tokens_per_second));
  }
  absl::StrAppend(&svg, "<polyline fill=\"none\" stroke=\"#1f6feb\" ",
                  "stroke-width=\"2\" points=\"", line, "\"/>\n");
  for (const FrontierPoint& point : points) {
    absl::StrAppendFormat(
        &svg,
        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#1f6feb\">"
        "<title>%s: %.4g s, %.4g tokens/s</title></circle>\n",
        x(point.latency_seconds), y(point.tokens_per_second),
        Escape(point.label), point.latency_seconds, point.tokens_per_second);
  }
  return svg + "</svg>\n";
}

}  // namespace sluice
