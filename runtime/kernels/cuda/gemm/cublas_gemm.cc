#include "runtime/kernels/cuda/gemm/cublas_gemm.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/kernels/cuda/device/cuda_status.h"
#include "runtime/kernels/cuda/gemm/cublas_library.h"
#include "runtime/placement/matrix_layout.h"

namespace sluice {
namespace {

// Alignment beyond this makes no algorithm better.
constexpr int kMaxAlignment = 64;
// Shapes that are kept ready; after so many different row counts, those of now
// are made again.
constexpr size_t kMaxProblems = 4096;
constexpr int kTimedRuns = 3;

absl::Status CublasStatus(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  absl::StatusCode code = absl::StatusCode::kInternal;
  if (status == CUBLAS_STATUS_ALLOC_FAILED) {
    code = absl::StatusCode::kResourceExhausted;
  } else if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
             status == CUBLAS_STATUS_ARCH_MISMATCH) {
    code = absl::StatusCode::kUnimplemented;
  }
  return absl::Status(
      code,
      absl::StrCat(what, ": cuBLASLt: ", cublasLtGetStatusString(status)));
}

cudaDataType CudaType(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
    case DType::kFloat32:
      break;
  }
  return CUDA_R_32F;
}

int AlignmentOf(const void* data) {
  const auto at = reinterpret_cast<uintptr_t>(data);
  int alignment = kMaxAlignment;
  while (at % alignment != 0) alignment /= 2;
  return alignment;
}

// Returns the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: algorithms that are
// best for so many rows are good for a few less.
int32_t RoundRows(int32_t rows) {
  int32_t power = 1;
  while (power < rows && power < (1 << 30)) power *= 2;
  const int32_t between = power / 4 * 3;
  return between >= rows ? between : power;
}

cublasLtEpilogue_t EpilogueOf(Epilogue epilogue, bool bias) {
  switch (epilogue) {
    case Epilogue::kNone:
      return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kRelu:
      return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Epilogue::kGeluTanh:
      return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

class Preference {
 public:
  ~Preference() {
    if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
  }
  cublasStatus_t Create() {
    return cublasLtMatmulPreferenceCreate(&preference_);
  }
  template <typename T>
  cublasStatus_t Set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    return cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value,
                                                sizeof value);
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

}  // namespace

// cuBLASLt's matrices are column-major: y's columns are our rows. So y^T, [n,
// rows], is the product of w, which it sees as [k, n] and transposes, and x^T,
// [k, rows].
class CublasGemm::Problem {
 public:
  ~Problem() {
    if (desc_ != nullptr) cublasLtMatmulDescDestroy(desc_);
    for (const cublasLtMatrixLayout_t layout : {w_, x_, y_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }

  absl::Status Create(const Shape& shape) {
    const auto check = [](cublasStatus_t status) {
      return CublasStatus(status, "describing a product");
    };
    SLUICE_RETURN_IF_ERROR(check(
        cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
    const int32_t transpose = CUBLAS_OP_T;
    SLUICE_RETURN_IF_ERROR(check(cublasLtMatmulDescSetAttribute(
        desc_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose)));
    const auto epilogue =
        static_cast<uint32_t>(EpilogueOf(shape.epilogue, shape.bias));
    SLUICE_RETURN_IF_ERROR(check(cublasLtMatmulDescSetAttribute(
        desc_, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue)));
    const auto layout = [&](cublasLtMatrixLayout_t* to, DType dtype,
                            int32_t rows, int32_t cols, int64_t stride) {
      return check(
          cublasLtMatrixLayoutCreate(to, CudaType(dtype), rows, cols, stride));
    };
    SLUICE_RETURN_IF_ERROR(layout(&w_, shape.in, shape.k, shape.n, shape.k));
    SLUICE_RETURN_IF_ERROR(layout(&x_, shape.in, shape.k, shape.rows, shape.k));
    return layout(&y_, shape.out, shape.n, shape.rows, shape.y_stride);
  }

  absl::Status SetBias(const void* bias) {
    return CublasStatus(
        cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                       &bias, sizeof bias),
        "giving a product its bias");
  }

  cublasLtMatmulDesc_t desc() const { return desc_; }
  cublasLtMatrixLayout_t w() const { return w_; }
  cublasLtMatrixLayout_t x() const { return x_; }
  cublasLtMatrixLayout_t y() const { return y_; }
  // The algorithm that is chosen for the problem.
  cublasLtMatmulAlgo_t algo = {};

 private:
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, y_ = nullptr;
};

CublasGemm::CublasGemm(const Options& options) : options_(options) {}

absl::StatusOr<std::unique_ptr<CublasGemm>> CublasGemm::Create(
    const Options& options) {
  SLUICE_RETURN_IF_ERROR(LoadCublas());
  std::unique_ptr<CublasGemm> self(new CublasGemm(options));
  SLUICE_RETURN_IF_ERROR(
      CublasStatus(cublasLtCreate(&self->handle_), "starting"));
  for (cudaEvent_t* event : {&self->begin_, &self->end_}) {
    SLUICE_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(event, cudaEventDefault),
                   "making an event to time products"));
  }
  return self;
}

CublasGemm::~CublasGemm() {
  problems_.clear();
  for (const cudaEvent_t event : {begin_, end_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

CublasGemm::Shape CublasGemm::ShapeOf(const Call& p) {
  Shape shape = {p.rows,
                 p.n,
                 p.k,
                 p.in,
                 p.out,
                 p.epilogue,
                 p.bias != nullptr,
                 p.accumulate,
                 p.y_stride,
                 {AlignmentOf(p.w), AlignmentOf(p.x), AlignmentOf(p.y),
                  AlignmentOf(p.bias)}};
  return shape;
}

absl::Status CublasGemm::Multiply(const Call& call) {
  if (call.rows == 0) return absl::OkStatus();
  if (call.rows < 0 || call.n <= 0 || call.k <= 0 || call.y_stride < call.n) {
    return InvalidArgument("a product of ", call.rows, " x ", call.k, " and ",
                           call.n, " columns, ", call.y_stride, " apart");
  }
  SLUICE_ASSIGN_OR_RETURN(Problem* const problem, ProblemFor(call));
  return Run(call, *problem, problem->algo);
}

absl::StatusOr<CublasGemm::Problem*> CublasGemm::ProblemFor(const Call& call) {
  Shape shape = ShapeOf(call);
  const auto it = problems_.find(shape);
  if (it != problems_.end()) return it->second.get();
  if (problems_.size() >= kMaxProblems) problems_.clear();
  auto problem = std::make_unique<Problem>();
  SLUICE_RETURN_IF_ERROR(problem->Create(shape));
  if (call.bias != nullptr) {
    // Heuristics look at the alignment of the bias.
    SLUICE_RETURN_IF_ERROR(problem->SetBias(call.bias));
  }
  Shape rounded = shape;
  rounded.rows = RoundRows(shape.rows);
  const auto chosen = chosen_.find(rounded);
  bool fits = false;
  if (chosen != chosen_.end()) {
    cublasLtMatmulHeuristicResult_t result = {};
    fits = cublasLtMatmulAlgoCheck(handle_, problem->desc(), problem->w(),
                                   problem->x(), problem->y(), problem->y(),
                                   &chosen->second,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= options_.workspace_bytes;
    problem->algo = chosen->second;
  }
  if (!fits) {
    SLUICE_ASSIGN_OR_RETURN(problem->algo, Choose(call, shape, *problem));
    if (timing_) chosen_.emplace(rounded, problem->algo);
  }
  return (problems_[shape] = std::move(problem)).get();
}

absl::StatusOr<cublasLtMatmulAlgo_t> CublasGemm::Choose(const Call& call,
                                                        const Shape& shape,
                                                        Problem& problem) {
  const auto name = [&] {
    return absl::StrCat("choosing how to multiply ", shape.rows, " x ", shape.k,
                        " by ", shape.k, " x ", shape.n, " in ",
                        std::string(DTypeName(shape.in)));
  };
  Preference preference;
  cublasStatus_t status = preference.Create();
  const auto set = [&](auto attribute, auto value) {
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = preference.Set(attribute, value);
    }
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<uint64_t>(options_.workspace_bytes));
  // Sums that are put together in a 16-bit type would lose what float32 sums
  // are for.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
      static_cast<uint32_t>(shape.alignment[0]));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      static_cast<uint32_t>(shape.alignment[1]));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
      static_cast<uint32_t>(shape.alignment[2]));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
      static_cast<uint32_t>(shape.alignment[2]));
  std::vector<cublasLtMatmulHeuristicResult_t> results(
      std::max(1, options_.candidates));
  int count = 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulAlgoGetHeuristic(
        handle_, problem.desc(), problem.w(), problem.x(), problem.y(),
        problem.y(), preference.get(), static_cast<int>(results.size()),
        results.data(), &count);
  }
  if (status == CUBLAS_STATUS_SUCCESS && count == 0) {
    status = CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (status != CUBLAS_STATUS_SUCCESS) return CublasStatus(status, name());
  results.resize(count);
  std::erase_if(results, [&](const cublasLtMatmulHeuristicResult_t& result) {
    return result.state != CUBLAS_STATUS_SUCCESS ||
           result.workspaceSize > options_.workspace_bytes;
  });
  if (results.empty()) {
    return CublasStatus(CUBLAS_STATUS_NOT_SUPPORTED, name());
  }
  cublasLtMatmulAlgo_t best = results.front().algo;
  if (results.size() == 1 || !timing_) return best;

  // The GEMM is timed where its own result goes, or, if it accumulates,
  // elsewhere, with as many rows as there is room for.
  Call timed = call;
  std::unique_ptr<Problem> smaller;
  Problem* timed_problem = &problem;
  if (call.accumulate) {
    const size_t row_bytes = call.n * ElementBytes(call.out);
    timed.rows = static_cast<int32_t>(
        std::min<size_t>(call.rows, call.spare_bytes / row_bytes));
    if (timed.rows == 0) return best;
    timed.y = call.spare;
    timed.y_stride = call.n;
    Shape timed_shape = shape;
    timed_shape.rows = timed.rows;
    timed_shape.y_stride = timed.y_stride;
    smaller = std::make_unique<Problem>();
    SLUICE_RETURN_IF_ERROR(smaller->Create(timed_shape));
    timed_problem = smaller.get();
  }
  double min = std::numeric_limits<double>::infinity();
  for (const cublasLtMatmulHeuristicResult_t& result : results) {
    const absl::StatusOr<double> seconds =
        Time(timed, *timed_problem, result.algo);
    // An algorithm that fewer rows don't allow is not timed.
    if (absl::IsUnimplemented(seconds.status())) continue;
    SLUICE_RETURN_IF_ERROR(seconds.status());
    if (*seconds < min) {
      min = *seconds;
      best = result.algo;
    }
  }
  return best;
}

absl::StatusOr<double> CublasGemm::Time(const Call& call, Problem& problem,
                                        const cublasLtMatmulAlgo_t& algo) {
  // The first run loads the algorithm's code.
  SLUICE_RETURN_IF_ERROR(Run(call, problem, algo));
  const auto check = [](cudaError_t error) {
    return CudaStatus(error, "timing a product");
  };
  SLUICE_RETURN_IF_ERROR(check(cudaEventRecord(begin_, options_.stream)));
  for (int i = 0; i < kTimedRuns; ++i) {
    SLUICE_RETURN_IF_ERROR(Run(call, problem, algo));
  }
  SLUICE_RETURN_IF_ERROR(check(cudaEventRecord(end_, options_.stream)));
  SLUICE_RETURN_IF_ERROR(check(cudaEventSynchronize(end_)));
  float milliseconds = 0;
  SLUICE_RETURN_IF_ERROR(
      check(cudaEventElapsedTime(&milliseconds, begin_, end_)));
  return milliseconds * 1e-3 / kTimedRuns;
}

absl::Status CublasGemm::Run(const Call& call, Problem& problem,
                             const cublasLtMatmulAlgo_t& algo) {
  if (call.bias != nullptr) {
    SLUICE_RETURN_IF_ERROR(problem.SetBias(call.bias));
  }
  const float alpha = 1;
  const float beta = call.accumulate ? 1 : 0;
  return CublasStatus(
      cublasLtMatmul(handle_, problem.desc(), &alpha, call.w, problem.w(),
                     call.x, problem.x(), &beta, call.y, problem.y(), call.y,
                     problem.y(), &algo, options_.workspace,
                     options_.workspace_bytes, options_.stream),
      "multiplying");
}

}  // namespace sluice
