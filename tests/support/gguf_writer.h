#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

// Writes small GGUF files (runtime/gguf/gguf_header.h), and wrong ones.
class GgufWriter {
 public:
  // Numbers of the format's types of values.
  static constexpr uint32_t kUint32 = 4, kFloat32 = 6, kBool = 7, kString = 8,
                            kArray = 9, kUint64 = 10;

  template <typename T>
  static std::string Raw(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }
  static std::string Text(const std::string& text) {
    return Raw<uint64_t>(text.size()) + text;
  }

  // Adds a key with a value in the file's form.
  GgufWriter& Key(const std::string& key, uint32_t type,
                  const std::string& value) {
    keys_ += Text(key) + Raw(type) + value;
    ++num_keys_;
    return *this;
  }
  GgufWriter& Int(const std::string& key, uint32_t value) {
    return Key(key, kUint32, Raw(value));
  }
  GgufWriter& Float(const std::string& key, float value) {
    return Key(key, kFloat32, Raw(value));
  }
  GgufWriter& Bool(const std::string& key, bool value) {
    return Key(key, kBool, Raw<uint8_t>(value ? 1 : 0));
  }
  GgufWriter& String(const std::string& key, const std::string& value) {
    return Key(key, kString, Text(value));
  }
  GgufWriter& Strings(const std::string& key,
                      const std::vector<std::string>& values) {
    std::string list = Raw(kString) + Raw<uint64_t>(values.size());
    for (const std::string& value : values) list += Text(value);
    return Key(key, kArray, list);
  }
  template <typename T>
  GgufWriter& List(const std::string& key, uint32_t type,
                   const std::vector<T>& values) {
    std::string list = Raw(type) + Raw<uint64_t>(values.size());
    for (const T value : values) list += Raw(value);
    return Key(key, kArray, list);
  }

  // Adds a tensor, whose dimensions go from the innermost out. `at` is its
  // offset, if it is not the next one.
  GgufWriter& Tensor(const std::string& name, const std::vector<uint64_t>& dims,
                     uint32_t type, const std::string& data,
                     std::optional<uint64_t> at = std::nullopt) {
    tensors_ += Text(name) + Raw<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) tensors_ += Raw(dim);
    tensors_ += Raw(type) + Raw<uint64_t>(at.value_or(data_.size()));
    ++num_tensors_;
    data_ += data;
    data_.resize((data_.size() + kAlignment - 1) / kAlignment * kAlignment);
    return *this;
  }
  GgufWriter& Floats(const std::string& name, const std::vector<uint64_t>& dims,
                     const std::vector<float>& values) {
    return Tensor(name, dims, 0,
                  {reinterpret_cast<const char*>(values.data()),
                   values.size() * sizeof(float)});
  }

  // What the header says instead of the truth.
  GgufWriter& Version(uint32_t version) {
    version_ = version;
    return *this;
  }
  GgufWriter& Counts(uint64_t tensors, uint64_t keys) {
    num_tensors_ = tensors;
    num_keys_ = keys;
    return *this;
  }

  std::string Header() const {
    return "GGUF" + Raw(version_) + Raw(num_tensors_) + Raw(num_keys_) + keys_ +
           tensors_;
  }
  std::string Bytes() const {
    std::string bytes = Header();
    bytes.resize((bytes.size() + kAlignment - 1) / kAlignment * kAlignment);
    return bytes + data_;
  }

 private:
  static constexpr size_t kAlignment = 32;
  uint32_t version_ = 3;
  uint64_t num_tensors_ = 0, num_keys_ = 0;
  std::string keys_, tensors_, data_;
};

}  // namespace sluice
