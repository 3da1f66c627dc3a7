#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/temp_dir.h"

// Writes small checkpoints for tests.

namespace sluice {

inline void WriteFile(const std::filesystem::path& path,
                      const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Returns eight bytes of length, `header` and `data`.
inline std::string SafetensorsBytes(const std::string& header,
                                    const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) +
         header + data;
}

struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string data;
};

inline std::string SafetensorsOf(const std::vector<RawTensor>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::string data;
  for (const RawTensor& tensor : tensors) {
    absl::StrAppend(&header, ",\"", tensor.name, "\":{\"dtype\":\"",
                    tensor.dtype, "\",\"shape\":[",
                    absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[",
                    data.size(), ",", data.size() + tensor.data.size(), "]}");
    data += tensor.data;
  }
  return SafetensorsBytes(header + "}", data);
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(T));
}

}  // namespace sluice
