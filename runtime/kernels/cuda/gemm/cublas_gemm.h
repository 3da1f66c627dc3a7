#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"

namespace sluice {

// The last step of a GEMM, before it rounds and writes its sums. The formulas
// are cuBLASLt's: its GELU is the one with tanh.
enum class Epilogue { kNone, kRelu, kGeluTanh };

// GEMMs with full weight matrices on a device, by cuBLASLt: y = x w^T, in
// float32, bfloat16 or float16, summed in float32.
//
// Which of cuBLASLt's algorithms is best is found out by timing some that its
// heuristics name, the first time that a shape comes up, and remembered; row
// counts that are near each other share that. So a shape's first GEMM waits
// for the device. Results of a row depend on the algorithm, in their last bits,
// and so on how many rows are computed with it.
//
// It is confined to one thread.
class CublasGemm {
 public:
  struct Options {
    cudaStream_t stream = nullptr;
    // Device memory at a multiple of 256 bytes that nothing else on the stream
    // needs across a GEMM. Algorithms that want more are not considered.
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    // Algorithms that are timed for a shape; 1: the first that heuristics name.
    int candidates = 6;
  };
  // Fails with kFailedPrecondition if there is no cuBLASLt (see LoadCublas).
  static absl::StatusOr<std::unique_ptr<CublasGemm>> Create(
      const Options& options);
  ~CublasGemm();
  CublasGemm(const CublasGemm&) = delete;
  CublasGemm& operator=(const CublasGemm&) = delete;

  // Pointers are to device memory, to be left alone until the stream has
  // passed.
  struct Call {
    int32_t rows = 0;
    int32_t n = 0;
    int32_t k = 0;
    DType in = DType::kFloat32;   // of x and w
    DType out = DType::kFloat32;  // of y and bias: float32, or as `in`
    const void* x = nullptr;      // [rows, k]
    const void* w = nullptr;      // [n, k]
    const void* bias = nullptr;   // [n], or null
    Epilogue epilogue = Epilogue::kNone;
    bool accumulate = false;  // y += ..., before the epilogue
    void* y = nullptr;        // [rows, n]
    int64_t y_stride = 0;     // elements from row to row
    // Memory that may be overwritten. To accumulate more than once, as timing
    // does, takes another place for the result: rows * n elements, or fewer
    // rows are timed.
    void* spare = nullptr;
    size_t spare_bytes = 0;
  };
  // Fails with kUnimplemented if cuBLASLt has no such GEMM for this device.
  absl::Status Multiply(const Call& call);

  // Sets whether algorithms may be timed, which waits for the stream. If not, a
  // new shape gets the first that heuristics name, and is not remembered.
  void AllowTiming(bool allow) { timing_ = allow; }

 private:
  // A shape of GEMMs that an algorithm is chosen for; `rows` is as it is, or
  // one number for all that share a choice.
  struct Shape {
    int32_t rows, n, k;
    DType in, out;
    Epilogue epilogue;
    bool bias, accumulate;
    int64_t y_stride;
    int alignment[4];  // of w, x, y and bias, as far as it matters
    template <typename H>
    friend H AbslHashValue(H h, const Shape& s) {
      return H::combine(std::move(h), s.rows, s.n, s.k, s.in, s.out, s.epilogue,
                        s.bias, s.accumulate, s.y_stride, s.alignment[0],
                        s.alignment[1], s.alignment[2], s.alignment[3]);
    }
    friend bool operator==(const Shape&, const Shape&) = default;
  };
  // A shape as cuBLASLt wants to be told of it.
  class Problem;

  explicit CublasGemm(const Options& options);
  static Shape ShapeOf(const Call& call);
  absl::StatusOr<Problem*> ProblemFor(const Call& call);
  absl::StatusOr<cublasLtMatmulAlgo_t> Choose(const Call& call,
                                              const Shape& shape,
                                              Problem& problem);
  // Returns the seconds that the GEMM takes with this algorithm. Overwrites y,
  // to which it adds several times if call.accumulate is set.
  absl::StatusOr<double> Time(const Call& call, Problem& problem,
                              const cublasLtMatmulAlgo_t& algo);
  absl::Status Run(const Call& call, Problem& problem,
                   const cublasLtMatmulAlgo_t& algo);

  const Options options_;
  cublasLtHandle_t handle_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  bool timing_ = true;
  // Algorithms by shapes with rounded rows, problems by those with their own.
  absl::flat_hash_map<Shape, cublasLtMatmulAlgo_t> chosen_;
  absl::flat_hash_map<Shape, std::unique_ptr<Problem>> problems_;
};

}  // namespace sluice
