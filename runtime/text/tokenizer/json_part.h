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
#include "common/status_macros.h"

namespace sluice {

// Parts of a tokenizer (normalizers, decoders ...) may be nested so deep.
inline constexpr int kMaxNestedParts = 32;

// A JSON value and its place ("tokenizer.json: model.merges[3]"), for reading
// untrusted files: all errors are kInvalidArgument and name the place. Borrows
// the value.
class JsonPart {
 public:
  // Takes the whole of `file`.
  JsonPart(const nlohmann::json* value, std::string file)
      : JsonPart(value, std::move(file), true) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }

  // An object's member. Get: missing or null is an error; Find: it is nullopt.
  absl::StatusOr<JsonPart> Get(absl::string_view key) const;
  absl::StatusOr<std::optional<JsonPart>> Find(absl::string_view key) const;
  // Return a string, or the elements of an array, that an object must have.
  absl::StatusOr<std::string> GetString(absl::string_view key) const;
  absl::StatusOr<std::vector<JsonPart>> GetList(absl::string_view key) const;
  // Returns an array's element; `index` must be below size().
  JsonPart At(size_t index) const;
  absl::StatusOr<std::vector<JsonPart>> Elements() const;

  absl::StatusOr<std::string> String() const;
  // Returns the character of a string of exactly one.
  absl::StatusOr<char32_t> Char() const;
  absl::StatusOr<bool> Bool() const;
  absl::StatusOr<int64_t> Int(int64_t low, int64_t high) const;
  absl::Status ExpectArray() const;
  absl::Status ExpectObject() const;

  // Return members of an object; missing and null give the default.
  absl::StatusOr<std::string> StringOr(absl::string_view key,
                                       absl::string_view otherwise) const;
  absl::StatusOr<bool> BoolOr(absl::string_view key, bool otherwise) const;

  // Errors of a message in parts as for absl::StrCat.
  absl::Status Invalid(const auto&... what) const {
    return InvalidArgument(where_, ": ", what...);
  }
  absl::Status Unimplemented(const auto&... what) const {
    return sluice::Unimplemented(where_, ": ", what...);
  }

 private:
  JsonPart(const nlohmann::json* value, std::string where, bool root)
      : value_(value), where_(std::move(where)), root_(root) {}

  const nlohmann::json* value_;
  std::string where_;
  bool root_;
};

// Reads a JSON file. ReadSmallFile's errors, and kInvalidArgument (with the
// byte) if it is no JSON.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::filesystem::path& path,
                                            size_t max_bytes);

}  // namespace sluice
