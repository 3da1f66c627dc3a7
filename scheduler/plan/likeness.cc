#include "scheduler/plan/likeness.h"

#include <algorithm>

namespace sluice {

std::vector<double> FiguresOf(const MachineProfile& m) {
  std::vector<double> figures = {static_cast<double>(m.device_memory_bytes),
                                 static_cast<double>(m.host_memory_bytes),
                                 static_cast<double>(m.disk_bytes),
                                 m.host_to_device_bytes_per_second,
                                 m.disk.read_bytes_per_second,
                                 static_cast<double>(m.ranks),
                                 m.exchange.bytes_per_second};
  for (const RankChoice& choice : m.rank_choices) {
    figures.push_back(choice.ranks);
    figures.push_back(choice.memory_share);
    figures.push_back(choice.product_share);
    figures.push_back(choice.exchange.bytes_per_second);
  }
  for (const ComputeProfile* compute : {&m.host, &m.device_compute}) {
    figures.push_back(compute->memory_bytes_per_second);
    for (const ProductRate& product : compute->products) {
      figures.push_back(product.flops_by_rows.Best());
    }
    for (const AttentionRate& attention : compute->attention) {
      figures.push_back(attention.decode_bytes_by_context.Best());
    }
  }
  return figures;
}

bool AreSimilar(const std::vector<double>& a, const std::vector<double>& b,
                double factor) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](double x, double y) {
                      return std::max(x, y) <= factor * std::min(x, y);
                    });
}

}  // namespace sluice
