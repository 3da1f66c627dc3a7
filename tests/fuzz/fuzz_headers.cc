// A libFuzzer program for the headers of model files: any bytes must give a
// header whose tensors lie in the file, or an error. The first byte chooses the
// format.
//
//   cmake --build build/clang --target fuzz_headers
//   build/clang/bin/fuzz_headers -max_total_time=600 CORPUS

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "runtime/gguf/gguf_header.h"
#include "runtime/model/checkpoint/safetensors_header.h"

namespace sluice {
namespace {

void Require(bool true_of_all_files) {
  if (!true_of_all_files) std::abort();
}

void TryGguf(absl::string_view file) {
  const auto header = ReadGgufHeader(
      file.size(),
      [&](uint64_t begin, uint64_t end) -> absl::StatusOr<std::string> {
        Require(begin <= end && end <= file.size());
        return std::string(file.substr(begin, end - begin));
      });
  if (!header.ok()) return Require(!header.status().message().empty());
  Require(header->data_offset <= file.size());
  for (const GgufTensor& tensor : header->tensors) {
    Require(tensor.begin <= tensor.end &&
            tensor.end <= file.size() - header->data_offset);
  }
}

void TrySafetensors(absl::string_view text) {
  constexpr uint64_t kDataBytes = 4096;
  const auto header = ParseSafetensorsHeader(text, kDataBytes);
  if (!header.ok()) return Require(!header.status().message().empty());
  uint64_t bytes = 0;
  for (const auto& [name, entry] : *header) {
    Require(entry.begin <= entry.end && entry.end <= kDataBytes);
    bytes += entry.end - entry.begin;
  }
  Require(bytes == kDataBytes);
}

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view rest(reinterpret_cast<const char*>(data) + 1,
                               size - 1);
  if (data[0] == 0) {
    sluice::TryGguf(rest);
  } else {
    sluice::TrySafetensors(rest);
  }
  return 0;
}
