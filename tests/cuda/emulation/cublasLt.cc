#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/kernels/cuda/gemm/cublas_library.h"
#include "tests/cuda/emulation/streams.h"

// Checks first what the documentation of cublasLtMatmul asks for; then computes
// in plain loops.

namespace {

constexpr uint64_t kMagic = 0x736c756963656c74;
constexpr size_t kWorkspaceAlignment = 256;
constexpr int kAlgorithms = 3;
enum Algorithm { kAligned, kSplit, kAny };

std::atomic<int> live_objects{0};
std::atomic<int> products{0}, heuristics{0};
std::atomic<int> by_algorithm[kAlgorithms];
std::atomic<int> fast_algorithm{-1};
std::atomic<unsigned> offered{7};
std::atomic<cublasStatus_t> failure{CUBLAS_STATUS_SUCCESS};

size_t ElementBytes(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

}  // namespace

struct cublasLtContext {
  uint64_t magic = kMagic;
};
struct cublasLtMatmulDescEmulated {
  int32_t transpose_a = CUBLAS_OP_N;
  int32_t transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct cublasLtMatrixLayoutEmulated {
  cudaDataType type = CUDA_R_32F;
  uint64_t rows = 0, cols = 0;
  int64_t ld = 0;

  size_t bytes() const { return ((cols - 1) * ld + rows) * ElementBytes(type); }
  bool operator==(const cublasLtMatrixLayoutEmulated&) const = default;
};
struct cublasLtMatmulPreferenceEmulated {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

namespace {

bool Has(uint32_t epilogue, cublasLtEpilogue_t what) {
  return (epilogue & what) != 0;
}

bool Known(cudaDataType type) {
  return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

// D = op(A) op(B), of a supported kind.
cublasStatus_t CheckProblem(cublasLtHandle_t handle,
                            const cublasLtMatmulDescEmulated* desc,
                            const cublasLtMatrixLayoutEmulated* a,
                            const cublasLtMatrixLayoutEmulated* b,
                            const cublasLtMatrixLayoutEmulated* c,
                            const cublasLtMatrixLayoutEmulated* d) {
  if (handle == nullptr || handle->magic != kMagic) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  if (desc == nullptr || a == nullptr || b == nullptr || c == nullptr ||
      d == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const uint64_t m = desc->transpose_a == CUBLAS_OP_N ? a->rows : a->cols;
  const uint64_t k = desc->transpose_a == CUBLAS_OP_N ? a->cols : a->rows;
  const uint64_t b_k = desc->transpose_b == CUBLAS_OP_N ? b->rows : b->cols;
  const uint64_t n = desc->transpose_b == CUBLAS_OP_N ? b->cols : b->rows;
  if (m != d->rows || n != d->cols || k != b_k || c->rows != m ||
      c->cols != n) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // The table of types for CUBLAS_COMPUTE_32F with scales in CUDA_R_32F.
  if (a->type != b->type || c->type != d->type) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (d->type != CUDA_R_32F && d->type != a->type) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  switch (desc->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
      break;
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  // Heuristics look at the pointer's alignment.
  if (Has(desc->epilogue, CUBLASLT_EPILOGUE_BIAS) && desc->bias == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

bool ColumnsAligned(const cublasLtMatrixLayoutEmulated& m) {
  return m.ld * ElementBytes(m.type) % 16 == 0;
}

size_t WorkspaceOf(int algorithm, const cublasLtMatrixLayoutEmulated& d) {
  // A split sum has two parts, each with a result of its own in float32.
  return algorithm == kSplit ? 2 * sizeof(float) * d.rows * d.cols : 0;
}

bool Supports(int algorithm, const cublasLtMatrixLayoutEmulated& a,
              const cublasLtMatrixLayoutEmulated& b,
              const cublasLtMatrixLayoutEmulated& d) {
  return algorithm != kAligned ||
         (ColumnsAligned(a) && ColumnsAligned(b) && ColumnsAligned(d));
}

// -1: not one of ours.
int AlgorithmOf(const cublasLtMatmulAlgo_t& algo) {
  if (algo.data[0] != kMagic || algo.data[1] >= kAlgorithms) return -1;
  return static_cast<int>(algo.data[1]);
}

void Describe(int algorithm, const cublasLtMatrixLayoutEmulated& d,
              cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  result->algo.data[0] = kMagic;
  result->algo.data[1] = algorithm;
  result->workspaceSize = WorkspaceOf(algorithm, d);
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
}

float Load(cudaDataType type, const void* data, size_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  if (type == CUDA_R_16F) {
    return __half2float(static_cast<const __half*>(data)[i]);
  }
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
}

void Store(cudaDataType type, float x, void* data, size_t i) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = x;
  } else if (type == CUDA_R_16F) {
    static_cast<__half*>(data)[i] = __float2half_rn(x);
  } else {
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(x);
  }
}

struct Product {
  cublasLtMatmulDescEmulated desc;
  cublasLtMatrixLayoutEmulated a_layout, b_layout, d_layout;
  float alpha, beta;
  const void* a;
  const void* b;
  const void* c;
  void* d;
  int algorithm;
};

// op(M), [outer, k], as floats.
std::vector<float> Plain(const cublasLtMatrixLayoutEmulated& layout,
                         const void* data, bool k_first) {
  const size_t outer = k_first ? layout.cols : layout.rows;
  const size_t k = k_first ? layout.rows : layout.cols;
  std::vector<float> plain(outer * k);
  for (size_t col = 0; col < layout.cols; ++col) {
    for (size_t row = 0; row < layout.rows; ++row) {
      const float x = Load(layout.type, data, col * layout.ld + row);
      plain[k_first ? col * k + row : row * k + col] = x;
    }
  }
  return plain;
}

// Adds up in an order of the algorithm's own, roughly as tensor cores may.
float Dot(const float* x, const float* y, size_t k, int algorithm) {
  if (algorithm == kAligned) {
    double sum = 0;
    for (size_t i = 0; i < k; ++i) sum += static_cast<double>(x[i]) * y[i];
    return static_cast<float>(sum);
  }
  const size_t half = algorithm == kSplit ? k / 2 : k;
  float first = 0, second = 0;
  for (size_t i = 0; i < half; ++i) first += x[i] * y[i];
  for (size_t i = half; i < k; ++i) second += x[i] * y[i];
  return first + second;
}

void Run(const Product& p) {
  const bool a_first = p.desc.transpose_a == CUBLAS_OP_T;
  const bool b_first = p.desc.transpose_b == CUBLAS_OP_N;
  const std::vector<float> a = Plain(p.a_layout, p.a, a_first);
  const std::vector<float> b = Plain(p.b_layout, p.b, b_first);
  const size_t m = p.d_layout.rows;
  const size_t k = a.size() / m;
  for (size_t col = 0; col < p.d_layout.cols; ++col) {
    for (size_t row = 0; row < m; ++row) {
      const size_t at = col * p.d_layout.ld + row;
      float x =
          p.alpha * Dot(a.data() + row * k, b.data() + col * k, k, p.algorithm);
      if (p.beta != 0) x += p.beta * Load(p.d_layout.type, p.c, at);
      if (Has(p.desc.epilogue, CUBLASLT_EPILOGUE_BIAS)) {
        x += Load(p.d_layout.type, p.desc.bias, row);
      }
      if (Has(p.desc.epilogue, CUBLASLT_EPILOGUE_RELU)) x = std::max(x, 0.0f);
      if (Has(p.desc.epilogue, CUBLASLT_EPILOGUE_GELU)) {
        x = 0.5f * x *
            (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
      }
      Store(p.d_layout.type, x, p.d, at);
    }
  }
  const int fast = fast_algorithm;
  if (fast >= 0 && fast != p.algorithm) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

bool OnDevice(const void* data, size_t bytes) {
  return sluice::emulation::IsDeviceMemory(data, bytes);
}

bool AlignedTo(const void* data, size_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

template <typename T>
cublasStatus_t Take(const void* value, size_t bytes, T* to) {
  if (value == nullptr || bytes != sizeof(T)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(to, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t Delete(T* object) {
  if (object != nullptr) --live_objects;
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "the operation completed successfully";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an invalid value was passed as an argument";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "an absent device architectural feature is required";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the requested functionality is not supported";
  }
  return "unknown status";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  ++live_objects;
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (handle == nullptr || handle->magic != kMagic) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  handle->magic = 0;
  return Delete(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc,
                                        cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  ++live_objects;
  *desc = new cublasLtMatmulDescEmulated;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return Delete(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
    const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Take(value, bytes, &desc->transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Take(value, bytes, &desc->transpose_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Take(value, bytes, &desc->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Take(value, bytes, &desc->bias);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout,
                                          cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  if (!Known(type) || rows == 0 || cols == 0 ||
      ld < static_cast<int64_t>(rows)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  ++live_objects;
  *layout = new cublasLtMatrixLayoutEmulated{type, rows, cols, ld};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return Delete(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(
    cublasLtMatmulPreference_t* preference) {
  ++live_objects;
  *preference = new cublasLtMatmulPreferenceEmulated;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(
    cublasLtMatmulPreference_t preference) {
  return Delete(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference,
    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
    size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Take(value, bytes, &preference->workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Take(value, bytes, &preference->reductions);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Take(
          value, bytes,
          &preference->alignment[attribute -
                                 CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES]);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int requested,
    cublasLtMatmulHeuristicResult_t results[], int* returned) {
  ++heuristics;
  const cublasStatus_t status = CheckProblem(handle, desc, a, b, c, d);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (requested <= 0 || preference == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *returned = 0;
  const bool aligned = std::all_of(std::begin(preference->alignment),
                                   std::end(preference->alignment),
                                   [](uint32_t bytes) { return bytes >= 16; });
  for (int i = 0; i < kAlgorithms && *returned < requested; ++i) {
    if ((offered >> i & 1) == 0 || !Supports(i, *a, *b, *d) ||
        (i == kAligned && !aligned) ||
        WorkspaceOf(i, *d) > preference->workspace) {
      continue;
    }
    if (i == kSplit && (preference->reductions &
                        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) == 0) {
      continue;
    }
    Describe(i, *d, &results[(*returned)++]);
  }
  return *returned > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  const cublasStatus_t status = CheckProblem(handle, desc, a, b, c, d);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const int algorithm = AlgorithmOf(*algo);
  if (algorithm < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (!Supports(algorithm, *a, *b, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  Describe(algorithm, *d, result);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle,
                              cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (failure != CUBLAS_STATUS_SUCCESS) return failure;
  if (!sluice::emulation::IsStreamHere(stream)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const cublasStatus_t status =
      CheckProblem(handle, desc, a_layout, b_layout, c_layout, d_layout);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  // Without one, cuBLASLt asks its heuristics each time: that is refused here.
  if (algo == nullptr || alpha == nullptr || beta == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const int algorithm = AlgorithmOf(*algo);
  if (algorithm < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (!Supports(algorithm, *a_layout, *b_layout, *d_layout)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (OnDevice(alpha, 4) || OnDevice(beta, 4) ||
      !OnDevice(a, a_layout->bytes()) || !OnDevice(b, b_layout->bytes()) ||
      !OnDevice(c, c_layout->bytes()) || !OnDevice(d, d_layout->bytes())) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // A product in place must have the same layout for C and D.
  if (c == d && !(*c_layout == *d_layout)) return CUBLAS_STATUS_INVALID_VALUE;
  const size_t alignment = algorithm == kAligned ? 16 : 0;
  const auto aligned = [&](const void* data, cudaDataType type) {
    return AlignedTo(data, std::max(alignment, ElementBytes(type)));
  };
  if (!aligned(a, a_layout->type) || !aligned(b, b_layout->type) ||
      !aligned(c, c_layout->type) || !aligned(d, d_layout->type)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (Has(desc->epilogue, CUBLASLT_EPILOGUE_BIAS) &&
      (!OnDevice(desc->bias, d_layout->rows * ElementBytes(d_layout->type)) ||
       !aligned(desc->bias, d_layout->type))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const size_t needed = WorkspaceOf(algorithm, *d_layout);
  if (needed > workspace_bytes ||
      (workspace_bytes > 0 && (!OnDevice(workspace, workspace_bytes) ||
                               !AlignedTo(workspace, kWorkspaceAlignment)))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  Product product{*desc,
                  *a_layout,
                  *b_layout,
                  *d_layout,
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta),
                  a,
                  b,
                  c,
                  d,
                  algorithm};
  ++products;
  ++by_algorithm[algorithm];
  // The contents of the work space are undefined afterwards.
  const auto run = [product, workspace, needed] {
    if (needed > 0) std::memset(workspace, 0xff, needed);
    Run(product);
  };
  const cudaError_t error = sluice::emulation::Enqueue(
      stream, sluice::emulation::WorkKind::kKernel, [run] {
        run();
        return cudaSuccess;
      });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                              : CUBLAS_STATUS_EXECUTION_FAILED;
}

namespace sluice::emulation {

CublasCounts TakeCublasCounts() {
  CublasCounts counts;
  counts.products = products.exchange(0);
  counts.heuristics = heuristics.exchange(0);
  for (int i = 0; i < kAlgorithms; ++i) {
    counts.by_algorithm[i] = by_algorithm[i].exchange(0);
  }
  return counts;
}

void SetFastAlgorithm(int algorithm) { fast_algorithm = algorithm; }
void OfferAlgorithms(unsigned mask) { offered = mask; }
void SetCublasFailure(cublasStatus_t status) { failure = status; }
int LiveCublasObjects() { return live_objects; }

}  // namespace sluice::emulation

namespace sluice {

absl::Status LoadCublas() { return absl::OkStatus(); }

}  // namespace sluice
