#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

// How fast a model generates for a job of such requests, all prompts of so many
// tokens.
struct ModelSpeed {
  double tokens_per_second = 0;  // generated
  int32_t prompt = 0, generated = 0;
  int64_t requests = 0;
};

// A model on this machine, and whether it runs.
struct LocalModel {
  std::string name;                    // "org/name", or the directory's
  std::string commit;                  // of a snapshot in the cache, else ""
  std::vector<std::string> revisions;  // that are this commit
  std::string dir;                     // or the GGUF file
  std::string model_type;              // of config.json; "" if it does not say
  std::string dtype;                   // the next ones are of models that run
  std::string quantization;  // of the weights: QuantizationConfig's Description
  int32_t layers = 0;
  int32_t positions = 0;  // of prompt and answer
  int32_t vocabulary = 0;
  std::optional<int64_t> parameters;  // nothing: not known
  uint64_t bytes = 0;                 // of its files on disk
  // The bytes of its tensors by their type ("BF16", "Q4_K").
  std::map<std::string, uint64_t> weight_bytes;
  std::string why_not;               // "": it runs
  std::vector<std::string> remarks;  // what to know though it runs
  // What is predicted of it here; or why nothing is; or neither.
  std::optional<ModelSpeed> speed;
  std::string no_speed;

  bool runs() const { return why_not.empty(); }
};

// Looks at the model that a user named (FindModel), of which all may be wrong
// but its place: reads its descriptions, its tokenizer and the headers of its
// weights, but no weights. The errors of FindModel.
absl::StatusOr<LocalModel> ExamineModel(const std::string& name);

struct LocalModels {
  std::vector<std::string> model_types;  // that run
  std::string cache;                     // the Hugging Face cache; "": nowhere
  std::vector<LocalModel> models;        // in it, in order of name and commit
};

// Looks at all models of the Hugging Face cache.
LocalModels ExamineCache();

}  // namespace sluice
