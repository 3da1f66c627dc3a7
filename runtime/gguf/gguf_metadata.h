#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// A value of a GGUF file's metadata. Integers of all widths are int64_t; of a
// list of lists only the fact is kept.
using GgufValue = std::variant<std::monostate, int64_t, double, bool,
                               std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

// The metadata of a GGUF file, by key. Immutable once filled.
class GgufMetadata {
 public:
  // Returns whether the key is new.
  bool Add(std::string key, GgufValue value);

  bool Has(absl::string_view key) const { return Find(key) != nullptr; }
  size_t size() const { return values_.size(); }

  // Return nothing for an absent key. kInvalidArgument names a key whose value
  // is of another type. Int accepts true and false, Number integers.
  absl::StatusOr<std::optional<int64_t>> Int(absl::string_view key) const;
  absl::StatusOr<std::optional<double>> Number(absl::string_view key) const;
  absl::StatusOr<std::optional<bool>> Bool(absl::string_view key) const;
  absl::StatusOr<std::optional<std::string>> String(
      absl::string_view key) const;
  // The value is one integer or a list of them.
  absl::StatusOr<std::vector<int64_t>> Ints(absl::string_view key) const;

  // Return an empty list for an absent key; the lists live as long as this.
  absl::StatusOr<const std::vector<std::string>*> Strings(
      absl::string_view key) const;
  absl::StatusOr<const std::vector<double>*> Numbers(
      absl::string_view key) const;

 private:
  const GgufValue* Find(absl::string_view key) const;

  std::map<std::string, GgufValue, std::less<>> values_;
};

}  // namespace sluice
