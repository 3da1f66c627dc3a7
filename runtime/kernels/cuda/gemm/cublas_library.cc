#include "runtime/kernels/cuda/gemm/cublas_library.h"

#include <cublasLt.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/host/shared_library.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr char kVariable[] = "SLUICE_CUBLASLT_LIBRARY";

// The functions that cublas_gemm.cc calls, of the library that was loaded.
#define SLUICE_CUBLAS_FUNCTIONS(DO)        \
  DO(cublasLtCreate)                       \
  DO(cublasLtDestroy)                      \
  DO(cublasLtGetStatusString)              \
  DO(cublasLtGetVersion)                   \
  DO(cublasLtMatmul)                       \
  DO(cublasLtMatmulAlgoCheck)              \
  DO(cublasLtMatmulAlgoGetHeuristic)       \
  DO(cublasLtMatmulDescCreate)             \
  DO(cublasLtMatmulDescDestroy)            \
  DO(cublasLtMatmulDescSetAttribute)       \
  DO(cublasLtMatmulPreferenceCreate)       \
  DO(cublasLtMatmulPreferenceDestroy)      \
  DO(cublasLtMatmulPreferenceSetAttribute) \
  DO(cublasLtMatrixLayoutCreate)           \
  DO(cublasLtMatrixLayoutDestroy)

struct Functions {
#define SLUICE_MEMBER(name) decltype(&::name) name = nullptr;
  SLUICE_CUBLAS_FUNCTIONS(SLUICE_MEMBER)
#undef SLUICE_MEMBER
};

struct Library {
  absl::Status status;
  Functions functions;
};

std::vector<std::string> Places() {
  if (const char* file = std::getenv(kVariable);
      file != nullptr && *file != '\0') {
    return {file};
  }
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  std::vector<std::string> places = {name};
  std::vector<std::string> toolkits;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* home = std::getenv(variable);
    if (home != nullptr && *home != '\0') toolkits.push_back(home);
  }
  toolkits.push_back("/usr/local/cuda");
  for (const std::string& toolkit : toolkits) {
    for (const char* folder : {"/lib64/", "/lib/"}) {
      places.push_back(absl::StrCat(toolkit, folder, name));
    }
  }
  return places;
}

absl::Status Take(SharedLibrary& library, const std::string& path,
                  Functions* functions) {
#define SLUICE_TAKE(name) library.Take(#name, &functions->name);
  SLUICE_CUBLAS_FUNCTIONS(SLUICE_TAKE)
#undef SLUICE_TAKE
  if (!library.missing().empty()) {
    *functions = {};
    return FailedPrecondition(path, " has no ", library.missing(),
                              ": it is no cuBLASLt, or too old a one");
  }
  const size_t version = functions->cublasLtGetVersion();
  if (version / 10000 != CUBLAS_VER_MAJOR) {
    *functions = {};
    return FailedPrecondition(path, " is cuBLASLt ", version / 10000, ".",
                              version / 100 % 100, "; this build needs a ",
                              CUBLAS_VER_MAJOR);
  }
  return absl::OkStatus();
}

Library Load() {
  Library library;
  std::vector<std::string> errors;
  for (const std::string& place : Places()) {
    SharedLibrary shared(place);
    if (shared.loaded()) {
      library.status = Take(shared, place, &library.functions);
      return library;
    }
    errors.push_back(shared.error());
  }
  library.status = FailedPrecondition(
      "a GPU's matrix products need cuBLASLt ", CUBLAS_VER_MAJOR,
      " of the CUDA Toolkit, which can't be loaded: name its file in ",
      kVariable, ", or its folder in LD_LIBRARY_PATH (",
      absl::StrJoin(errors, "; ",
                    [](std::string* out, const auto& error) {
                      absl::StrAppend(out, error);
                    }),
      ")");
  return library;
}

// Returns the process's only library: a copy would take half a gigabyte more.
const Library& TheLibrary() {
  static const Library& library = *new Library(Load());
  return library;
}

}  // namespace

absl::Status LoadCublas() { return TheLibrary().status; }

}  // namespace sluice

// These functions have cuBLASLt's own names, for whoever includes cublasLt.h.

#define SLUICE_HAND_ON(name, parameters, arguments)             \
  cublasStatus_t name parameters {                              \
    const auto function = sluice::TheLibrary().functions.name;  \
    return function != nullptr ? function arguments             \
                               : CUBLAS_STATUS_NOT_INITIALIZED; \
  }

extern "C" {

const char* cublasLtGetStatusString(cublasStatus_t status) {
  const auto function = sluice::TheLibrary().functions.cublasLtGetStatusString;
  return function != nullptr ? function(status) : "cuBLASLt is not loaded";
}

SLUICE_HAND_ON(cublasLtCreate, (cublasLtHandle_t * handle), (handle))
SLUICE_HAND_ON(cublasLtDestroy, (cublasLtHandle_t handle), (handle))
SLUICE_HAND_ON(cublasLtMatmul,
               (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                const void* alpha, const void* a, cublasLtMatrixLayout_t a_desc,
                const void* b, cublasLtMatrixLayout_t b_desc, const void* beta,
                const void* c, cublasLtMatrixLayout_t c_desc, void* d,
                cublasLtMatrixLayout_t d_desc, const cublasLtMatmulAlgo_t* algo,
                void* workspace, size_t workspace_bytes, cudaStream_t stream),
               (handle, desc, alpha, a, a_desc, b, b_desc, beta, c, c_desc, d,
                d_desc, algo, workspace, workspace_bytes, stream))
SLUICE_HAND_ON(cublasLtMatmulAlgoCheck,
               (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                const cublasLtMatmulAlgo_t* algo,
                cublasLtMatmulHeuristicResult_t* result),
               (handle, desc, a, b, c, d, algo, result))
SLUICE_HAND_ON(cublasLtMatmulAlgoGetHeuristic,
               (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                cublasLtMatmulPreference_t preference, int wanted,
                cublasLtMatmulHeuristicResult_t* results, int* found),
               (handle, desc, a, b, c, d, preference, wanted, results, found))
SLUICE_HAND_ON(cublasLtMatmulDescCreate,
               (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute,
                cudaDataType_t scale),
               (desc, compute, scale))
SLUICE_HAND_ON(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), (desc))
SLUICE_HAND_ON(cublasLtMatmulDescSetAttribute,
               (cublasLtMatmulDesc_t desc,
                cublasLtMatmulDescAttributes_t attribute, const void* value,
                size_t bytes),
               (desc, attribute, value, bytes))
SLUICE_HAND_ON(cublasLtMatmulPreferenceCreate,
               (cublasLtMatmulPreference_t * preference), (preference))
SLUICE_HAND_ON(cublasLtMatmulPreferenceDestroy,
               (cublasLtMatmulPreference_t preference), (preference))
SLUICE_HAND_ON(cublasLtMatmulPreferenceSetAttribute,
               (cublasLtMatmulPreference_t preference,
                cublasLtMatmulPreferenceAttributes_t attribute,
                const void* value, size_t bytes),
               (preference, attribute, value, bytes))
SLUICE_HAND_ON(cublasLtMatrixLayoutCreate,
               (cublasLtMatrixLayout_t * layout, cudaDataType type,
                uint64_t rows, uint64_t columns, int64_t stride),
               (layout, type, rows, columns, stride))
SLUICE_HAND_ON(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout),
               (layout))

}  // extern "C"
