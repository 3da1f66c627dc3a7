#include <cuda_bf16.h>

#include <algorithm>

#include "common/status_macros.h"
#include "runtime/kernels/cuda/gemm/cublas_gemm.h"
#include "runtime/kernels/cuda/gemm/quantized_matrix.h"
#include "tests/bench/cuda/device_rates.h"

namespace sluice::bench {
namespace {

struct Matrix {
  const char* name;
  int n, k;
};

absl::StatusOr<nlohmann::json> Quantized(const Bench& bench,
                                         const Matrix& matrix, int bits,
                                         int rows) {
  QuantizedMatrix w;
  w.n = matrix.n;
  w.k = matrix.k;
  w.bits = bits;
  w.panel_columns = PanelCodec::kMaxColumns;
  w.panel_bytes =
      (DevicePanelCodec(w.panel_columns, w.k, bits, DType::kBFloat16)
           .encoded_bytes() +
       15) /
      16 * 16;
  const size_t panels = (w.n + w.panel_columns - 1) / w.panel_columns;
  SLUICE_ASSIGN_OR_RETURN(const Buffer packed,
                          Buffer::Random(panels * w.panel_bytes));
  w.packed = PackedView::Whole(packed.data());
  nlohmann::json row = {{"matrix", matrix.name},
                        {"n", w.n},
                        {"k", w.k},
                        {"bits", bits},
                        {"rows", rows}};
  const double bytes = static_cast<double>(packed.bytes());
  if (rows == 0) {
    SLUICE_ASSIGN_OR_RETURN(const Buffer out,
                            Buffer::Zeros(size_t{2} * w.n * w.k));
    SLUICE_ASSIGN_OR_RETURN(
        const Spread seconds, bench.Time([&](cudaStream_t stream) {
          return DequantizeMatrix(w, out.as<__nv_bfloat16>(), stream);
        }));
    row["what"] = "dequantize";
    AddRate(seconds, bytes + 2.0 * w.n * w.k, "GB/s", &row);
    return row;
  }
  SLUICE_ASSIGN_OR_RETURN(const QuantizedGemmPlan plan,
                          PlanQuantizedGemm(w, rows, bench.device.processors));
  SLUICE_ASSIGN_OR_RETURN(const Buffer x,
                          Buffer::Random(size_t{2} * rows * w.k));
  SLUICE_ASSIGN_OR_RETURN(const Buffer y,
                          Buffer::Zeros(sizeof(float) * rows * w.n));
  SLUICE_ASSIGN_OR_RETURN(const Buffer workspace,
                          Buffer::Zeros(plan.workspace_bytes));
  SLUICE_ASSIGN_OR_RETURN(const Buffer counters,
                          Buffer::Zeros(sizeof(int32_t) * w.groups()));
  SLUICE_ASSIGN_OR_RETURN(
      const Spread seconds, bench.Time([&](cudaStream_t stream) {
        return QuantizedGemm(w, plan, x.as<const __nv_bfloat16>(), nullptr,
                             false, y.as<float>(), w.n, workspace.data(),
                             counters.as<int32_t>(), stream);
      }));
  row["what"] = "product";
  row["splits"] = plan.splits;
  AddRate(seconds, bytes, "GB/s", &row);
  return row;
}

// Seconds of a product by an engine that times so many algorithms first.
absl::StatusOr<Spread> Product(const Bench& bench, const Matrix& matrix,
                               int rows, int candidates, const Buffer& x,
                               const Buffer& w, const Buffer& y,
                               const Buffer& workspace) {
  CublasGemm::Options options;
  options.stream = bench.stream;
  options.workspace = workspace.data();
  options.workspace_bytes = workspace.bytes();
  if (candidates > 0) options.candidates = candidates;
  SLUICE_ASSIGN_OR_RETURN(const auto engine, CublasGemm::Create(options));
  CublasGemm::Call product;
  product.rows = rows;
  product.n = matrix.n;
  product.k = matrix.k;
  product.in = product.out = DType::kBFloat16;
  product.x = x.data();
  product.w = w.data();
  product.y = y.data();
  product.y_stride = matrix.n;
  return bench.Time([&](cudaStream_t) { return engine->Multiply(product); });
}

}  // namespace

absl::StatusOr<nlohmann::json> QuantizedRates(const Bench& bench) {
  nlohmann::json rows = nlohmann::json::array();
  std::vector<Matrix> matrices = {{"llama-3-8b gate", 14336, 4096},
                                  {"opt-30b fc2", 7168, 28672}};
  std::vector<int> counts = {0, 1, 2, 4, 8, 16};
  if (bench.tiny) {
    matrices = {{"tiny", 128, 130}};
    counts = {0, 3};
  }
  for (const Matrix& matrix : matrices) {
    for (const int bits : {4, 8}) {
      for (const int count : counts) {
        SLUICE_ASSIGN_OR_RETURN(rows.emplace_back(),
                                Quantized(bench, matrix, bits, count));
      }
    }
  }
  for (nlohmann::json& row : rows) {
    if (bench.memory_gb_s > 0) {
      row["share_of_spec"] = row["gb_s"].get<double>() / bench.memory_gb_s;
    }
  }
  return rows;
}

absl::StatusOr<nlohmann::json> ProductRates(const Bench& bench) {
  nlohmann::json rows = nlohmann::json::array();
  std::vector<Matrix> matrices = {{"llama-3-8b qkv", 6144, 4096},
                                  {"llama-3-8b gate and up", 28672, 4096},
                                  {"llama-3-8b down", 4096, 14336},
                                  {"opt-30b fc1", 28672, 7168}};
  std::vector<int> counts = {1, 16, 64, 256, 1024, 4096};
  // Its heuristics never name more algorithms than this.
  constexpr int kAll = 100;
  if (bench.tiny) {
    matrices = {{"tiny", 48, 32}};
    counts = {3};
  }
  SLUICE_ASSIGN_OR_RETURN(
      const Buffer workspace,
      Buffer::Zeros(bench.tiny ? 1 << 16 : size_t{32} << 20));
  for (const Matrix& matrix : matrices) {
    SLUICE_ASSIGN_OR_RETURN(const Buffer w,
                            Buffer::Random(size_t{2} * matrix.n * matrix.k));
    for (const int count : counts) {
      SLUICE_ASSIGN_OR_RETURN(const Buffer x,
                              Buffer::Random(size_t{2} * count * matrix.k));
      SLUICE_ASSIGN_OR_RETURN(const Buffer y,
                              Buffer::Zeros(size_t{2} * count * matrix.n));
      SLUICE_ASSIGN_OR_RETURN(
          const Spread best,
          Product(bench, matrix, count, kAll, x, w, y, workspace));
      SLUICE_ASSIGN_OR_RETURN(
          const Spread ours,
          Product(bench, matrix, count, 0, x, w, y, workspace));
      nlohmann::json row = {{"matrix", matrix.name},
                            {"n", matrix.n},
                            {"k", matrix.k},
                            {"rows", count}};
      const double flops = 2.0 * count * matrix.n * matrix.k;
      AddRate(ours, flops, "TFLOP/s", &row);
      row["best_tflop_s"] = flops / best.median * 1e-12;
      row["share_of_best"] = best.median / ours.median;
      row["weight_gb_s"] = 2.0 * matrix.n * matrix.k / ours.median * 1e-9;
      if (bench.bf16_tflop_s > 0) {
        row["share_of_peak"] =
            row["tflop_s"].get<double>() / bench.bf16_tflop_s;
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace sluice::bench
