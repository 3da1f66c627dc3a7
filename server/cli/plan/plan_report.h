#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sluice {

struct Alternative;
struct Layout;
struct Plan;
struct PlanRequest;

// A table of a plan for people: a row for each stage, the prediction, a bar for
// each resource of each stage with the binding one named, the contents of each
// tier, and the rejected plans. Lines end in '\n'.
std::string PlanTable(const Plan& plan,
                      const std::vector<Alternative>& rejected);

// The same for several pipelines: a line for each layout and pipeline, and each
// pipeline's table below.
std::string LayoutTable(const PlanRequest& request, const Layout& layout);

// The rejected ones of a kind, below its `title`; "" if there are none.
std::string AlternativesTable(const std::string& title,
                              const std::vector<Alternative>& rejected);

// A plan as the store keeps it, in a line: "2 stages, 1 block of 64 x 2;
// expected 48.1 tokens/s, bound by disk read of a". "" if it is no plan.
std::string PlanLine(const std::string& json);

// A table with a row for each plan: "latency of a block, tokens/s, policy".
std::string FrontierTable(const std::vector<Plan>& plans);
nlohmann::ordered_json FrontierJson(const std::vector<Plan>& plans);

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
