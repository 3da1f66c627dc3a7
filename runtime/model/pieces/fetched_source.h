#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "runtime/model/checkpoint/model_content.h"
#include "runtime/model/checkpoint/tensor_source.h"

namespace sluice {

// The tensors of a directory that holds only some pieces of its files, all of
// which have their known content.
class FetchedSource final : public TensorSource {
 public:
  FetchedSource(std::unique_ptr<TensorSource> tensors, ModelContent content)
      : tensors_(std::move(tensors)), content_(std::move(content)) {}

  absl::Status ReadRows(const TensorRef& ref, int64_t row_begin,
                        int64_t row_end, float* out) const override {
    return tensors_->ReadRows(ref, row_begin, row_end, out);
  }
  absl::Status Check(const TensorRef& ref) const override {
    return tensors_->Check(ref);
  }
  // The id that the whole files have, without reading them.
  absl::StatusOr<std::string> ContentId(const std::string& cache_file,
                                        Progress progress) const override;

 private:
  const std::unique_ptr<TensorSource> tensors_;
  const ModelContent content_;
};

}  // namespace sluice
