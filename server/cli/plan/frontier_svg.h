#pragma once

#include <string>
#include <vector>

namespace sluice {

// One plan: the latency of its slowest block, and its throughput.
struct FrontierPoint {
  double latency_seconds = 0;
  double tokens_per_second = 0;
  std::string label;  // for a tooltip
};

// A picture of throughput over latency, latency on a logarithmic axis: a
// self-contained SVG document. `points` by rising latency, all values above 0.
std::string FrontierSvg(const std::string& title,
                        const std::vector<FrontierPoint>& points);

}  // namespace sluice
