// Measures what a mixture of experts takes beside an MLP: a layer of each in
// memory, with random weights, over rows. The MLP is as wide as the experts
// that a row takes together. Prints JSON: for each number of rows the products
// of both in 10^9 operations a second, and the bytes of experts that are read,
// in GB/s; median and spread of rounds in which both take turns.
//
//   mixture_bench CONFIG.json [dtype] [threads] [rows...]
//
// Weights come from memory: copies of the MLP take turns.
// The router's products are not counted as such, its time is.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/model/checkpoint/dummy_source.h"

namespace sluice {
namespace {

constexpr int kRounds = 5;
// Bytes of weights that exceed all caches.
constexpr size_t kBeyondCache = size_t{1} << 30;

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

DecoderSpec ReadSpec(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return Must(ParseDecoderSpec(text.str()));
}

// The same model with an MLP in each layer.
DecoderSpec Dense(DecoderSpec spec) {
  spec.intermediate_size =
      spec.mixture.experts_per_token * spec.mixture.expert_size;
  for (LayerSpec& layer : spec.layers) {
    layer.mixture = false;
    layer.codes.gate = layer.codes.expert_gate;
    layer.codes.up = layer.codes.expert_up;
    layer.codes.down = layer.codes.expert_down;
  }
  spec.mixture = {};
  return spec;
}

// A model's first layer, and rows for it.
class Layer {
 public:
  Layer(const DecoderSpec& spec, DType dtype, int threads, int32_t max_rows)
      : spec_(spec), budget_(Tier::kHost, uint64_t{20} << 30) {
    BackendOptions options;
    options.layers = {0, 1};
    options.dtype = dtype;
    options.max_rows = options.max_model_len = max_rows;
    options.mixture_rows = max_rows;
    options.threads = threads;
    options.budget = &budget_;
    parts_ = Must(CreateBackend(BackendKind::kCpu, spec, options));
    const size_t bytes = parts_.weights->LayerBytes(0);
    packed_.push_back(Must(HostBuffer::Create("layer", bytes, &budget_)));
    Must(parts_.weights->PackLayer(
        0, DummySource(), [](uint64_t) { return absl::OkStatus(); },
        PackedWindow::Whole(packed_[0].as<std::byte>(), bytes)));
    while (packed_.size() * bytes < kBeyondCache) {
      packed_.push_back(Must(HostBuffer::Create("layer", bytes, &budget_)));
      std::memcpy(packed_.back().data(), packed_[0].data(), bytes);
    }
    x_.resize(int64_t{max_rows} * spec.hidden_size);
    for (size_t i = 0; i < x_.size(); ++i) {
      x_[i] = std::sin(static_cast<float>(i * i % 9973));
    }
  }

  // Returns the seconds of the layer's MLP or mixture.
  double Run(int32_t rows) {
    std::vector<float> x(x_.begin(),
                         x_.begin() + int64_t{rows} * spec_.hidden_size);
    turn_ = (turn_ + 1) % packed_.size();
    const Backend::PackedLayer layer = {
        PackedView::Whole(packed_[turn_].data()), false};
    const BatchView batch = {.rows = rows};
    const auto begin = Clock::now();
    if (spec_.has_mixtures()) {
      Mixture(layer, batch, x.data());
    } else {
      Must(parts_.backend->Mlp(0, layer, batch, x.data()));
    }
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  int32_t experts_used() const { return experts_used_; }
  size_t expert_bytes() const { return parts_.weights->layer(0).expert.bytes; }

 private:
  using Clock = std::chrono::steady_clock;

  void Mixture(const Backend::PackedLayer& layer, const BatchView& batch,
               float* x) {
    Backend& backend = *parts_.backend;
    Must(backend.Route(0, layer, batch, x, 0));
    const std::span<const int32_t> rows = Must(backend.RowsOfExperts());
    const LayerLayout& layout = parts_.weights->layer(0);
    experts_used_ = 0;
    for (int expert = 0; expert < layout.experts; ++expert) {
      if (rows[expert] == 0) continue;
      ++experts_used_;
      Must(backend.RunExpert(0, expert,
                             PackedView::Whole(packed_[turn_].as<std::byte>() +
                                               layout.expert_begin(expert))));
    }
    Must(backend.AddExperts(0, batch, 0, x));
  }

  const DecoderSpec spec_;
  MemoryBudget budget_;
  BackendParts parts_;
  std::vector<HostBuffer> packed_;  // copies
  size_t turn_ = 0;
  std::vector<float> x_;
  int32_t experts_used_ = 0;
};

struct Spread {
  double median, least, most;
};

Spread Of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: mixture_bench CONFIG.json [dtype] [threads] "
                 "[rows...]\n");
    return 2;
  }
  const DType dtype = argc > 2 && absl::string_view(argv[2]) == "float32"
                          ? DType::kFloat32
                          : DType::kBFloat16;
  const int threads = argc > 3 ? std::atoi(argv[3]) : 2;
  std::vector<int32_t> numbers = {1, 4, 16, 64, 256, 1024, 4096};
  if (argc > 4) numbers.clear();
  for (int i = 4; i < argc; ++i) numbers.push_back(std::atoi(argv[i]));
  const int32_t max_rows = *std::max_element(numbers.begin(), numbers.end());
  const DecoderSpec spec = ReadSpec(argv[1]);
  if (!spec.layer(0).mixture) {
    std::fprintf(stderr, "the first layer of %s is no mixture\n", argv[1]);
    return 2;
  }
  Layer dense(Dense(spec), dtype, threads, max_rows);
  Layer mixture(spec, dtype, threads, max_rows);
  const double flops_of_row =
      2.0 * (spec.gated_mlp ? 3 : 2) * spec.hidden_size *
      spec.mixture.experts_per_token * spec.mixture.expert_size;
  std::printf("[");
  const char* comma = "";
  for (const int32_t rows : numbers) {
    std::vector<double> of_dense, of_mixture, share;
    for (int round = -1; round < kRounds; ++round) {
      const double mlp = dense.Run(rows), experts = mixture.Run(rows);
      if (round < 0) continue;
      of_dense.push_back(1e-9 * rows * flops_of_row / mlp);
      of_mixture.push_back(1e-9 * rows * flops_of_row / experts);
      share.push_back(mlp / experts);
    }
    const Spread d = Of(of_dense), m = Of(of_mixture), s = Of(share);
    const double flops = 1e9 * m.median;
    const double bytes =
        static_cast<double>(mixture.expert_bytes()) * mixture.experts_used();
    std::printf(
        "%s\n {\"rows\": %d, \"experts\": %d, \"mlp\": [%.1f, %.1f, %.1f], "
        "\"mixture\": [%.1f, %.1f, %.1f], \"share\": [%.2f, %.2f, %.2f], "
        "\"expert GB/s\": %.1f}",
        comma, rows, mixture.experts_used(), d.median, d.least, d.most,
        m.median, m.least, m.most, s.median, s.least, s.most,
        1e-9 * bytes * flops / (rows * flops_of_row));
    std::fflush(stdout);
    comma = ",";
  }
  std::printf("\n]\n");
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
