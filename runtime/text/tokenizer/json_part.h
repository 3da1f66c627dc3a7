#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// A JSON value and where it stands ("tokenizer.json: model.merges[3]"), for
// reading files that may hold anything: all errors are kInvalidArgument and
// say where. Borrows the value.
class JsonPart {
 public:
  // The whole of `file`.
  JsonPart(const nlohmann::json* value, std::string file)
      : JsonPart(value, std::move(file), true) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }

  // Of an object. Get: missing or null is an error; Find: it is nullopt.
  absl::StatusOr<JsonPart> Get(absl::string_view key) const;
  absl::StatusOr<std::optional<JsonPart>> Find(absl::string_view key) const;
  // A string, or the elements of an array, that an object must have.
  absl::StatusOr<std::string> GetString(absl::string_view key) const;
  absl::StatusOr<std::vector<JsonPart>> GetList(absl::string_view key) const;
  // Of an array; `index` must be below size().
  JsonPart At(size_t index) const;
  absl::StatusOr<std::vector<JsonPart>> Elements() const;

  absl::StatusOr<std::string> String() const;
  // A string of exactly one character.
  absl::StatusOr<char32_t> Char() const;
  absl::StatusOr<bool> Bool() const;
  absl::StatusOr<int64_t> Int(int64_t low, int64_t high) const;
  absl::Status ExpectArray() const;
  absl::Status ExpectObject() const;

  // Members of an object; the default stands for missing and null.
  absl::StatusOr<std::string> StringOr(absl::string_view key,
                                       absl::string_view otherwise) const;
  absl::StatusOr<bool> BoolOr(absl::string_view key, bool otherwise) const;

  absl::Status Invalid(absl::string_view what) const;
  absl::Status Unimplemented(absl::string_view what) const;

 private:
  JsonPart(const nlohmann::json* value, std::string where, bool root)
      : value_(value), where_(std::move(where)), root_(root) {}

  const nlohmann::json* value_;
  std::string where_;
  bool root_;
};

// ReadSmallFile's errors, and kInvalidArgument (with the byte) for what is no
// JSON.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::filesystem::path& path,
                                            size_t max_bytes);

}  // namespace sluice
