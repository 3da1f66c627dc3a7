#include <algorithm>
#include <random>
#include <utility>

#include "common/status_macros.h"
#include "runtime/kernels/cuda/sampling.h"
#include "tests/bench/cuda/device_rates.h"

namespace sluice::bench {
namespace {

struct Kind {
  const char* name;
  SampleRequest request;
};

absl::StatusOr<nlohmann::json> Sample(const Bench& bench, const Kind& kind,
                                      const Buffer& logits, int rows,
                                      int vocab) {
  std::vector<RowSample> samples;
  std::mt19937 random(3);
  for (int row = 0; row < rows; ++row) {
    samples.push_back({kind.request, row});
    samples.back().request.uniform = random() * 0x1p-32;
  }
  SLUICE_ASSIGN_OR_RETURN(const Buffer requests, Buffer::Of(samples));
  SLUICE_ASSIGN_OR_RETURN(const Buffer out,
                          Buffer::Zeros(samples.size() * sizeof(TokenSample)));
  SLUICE_ASSIGN_OR_RETURN(
      const Spread seconds, bench.Time([&](cudaStream_t stream) {
        return SampleTokens(logits.as<float>(), vocab, requests.as<RowSample>(),
                            rows, out.as<TokenSample>(), stream);
      }));
  nlohmann::json row = {{"what", kind.name}, {"rows", rows}, {"vocab", vocab}};
  // All logits are counted once.
  AddRate(seconds, sizeof(float) * double{1} * rows * vocab, "GB/s", &row);
  if (bench.memory_gb_s > 0) {
    row["share_of_spec"] = row["gb_s"].get<double>() / bench.memory_gb_s;
  }
  return row;
}

}  // namespace

absl::StatusOr<nlohmann::json> SamplingRates(const Bench& bench) {
  nlohmann::json rows = nlohmann::json::array();
  // Llama 3's, and as many rows as go through the head at a time.
  const int vocab = bench.tiny ? 1003 : 128256;
  std::vector<int> counts = {1, 16, 128};
  if (bench.tiny) counts = {2};
  std::vector<Kind> kinds(5);
  kinds[0].name = "greedy";
  kinds[1].name = "greedy and its log-probability";
  kinds[1].request.logprob = 1;
  kinds[2].name = "temperature 1";
  kinds[2].request.temperature = 1;
  kinds[3] = kinds[2];
  kinds[3].name = "temperature 1, top-p 0.9";
  kinds[3].request.top_p = 0.9f;
  kinds[4] = kinds[3];
  kinds[4].name = "temperature 1, top-k 50, top-p 0.9";
  kinds[4].request.top_k = 50;
  // The values are spread as a model's logits are.
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> values(size_t{1} * counts.back() * vocab);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  SLUICE_ASSIGN_OR_RETURN(const Buffer logits, Buffer::Of(values));
  for (const int count : counts) {
    for (const Kind& kind : kinds) {
      SLUICE_ASSIGN_OR_RETURN(rows.emplace_back(),
                              Sample(bench, kind, logits, count, vocab));
    }
  }
  return rows;
}

}  // namespace sluice::bench
