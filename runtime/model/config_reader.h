#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Typed access to the keys of a JSON object. The first error sticks: from then
// on every getter returns its fallback, so that a caller reads all values and
// checks status() once. Messages name the key. Confined to a thread; the object
// must outlive it.
class ConfigReader {
 public:
  // `prefix` goes before each key in messages ("rope_parameters.").
  explicit ConfigReader(const nlohmann::json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // A family's own name for a key: where the object has it, it is read, and
  // named in messages, instead of the key.
  struct Alias {
    const char* key;
    const char* own;
  };
  ConfigReader(const nlohmann::json& object, std::vector<Alias> aliases)
      : object_(object), aliases_(std::move(aliases)) {}

  const absl::Status& status() const { return status_; }
  bool Present(const char* key) const { return Find(key) != nullptr; }
  bool Has(const char* key) const;  // present and not null
  void Fail(const char* key, const std::string& problem);
  void Unsupported(const char* key, const std::string& what);

  // Getters give `fallback` for an absent key, an error for another type.
  int32_t Int(const char* key, int32_t fallback, int32_t min, int32_t max);
  double Number(const char* key, double fallback, double min, double max);
  bool Bool(const char* key, bool fallback);
  std::string String(const char* key, const std::string& fallback);

  // Optional getters give nullopt for an absent key or null.
  std::optional<int32_t> OptionalInt(const char* key, int32_t min, int32_t max);
  std::optional<double> OptionalNumber(const char* key, double min, double max);
  // The value is an integer or a list of integers, like eos_token_id.
  std::optional<std::vector<int32_t>> OptionalInts(const char* key, int32_t min,
                                                   int32_t max);
  // Returns nullptr for an absent key or null.
  const nlohmann::json* OptionalObject(const char* key);
  const nlohmann::json* OptionalArray(const char* key);

 private:
  const char* NameOf(const char* key) const;
  const nlohmann::json* Find(const char* key) const;
  // Null if absent or, which is an error, of another type.
  const nlohmann::json* OfType(const char* key,
                               bool (nlohmann::json::*is_type)() const,
                               absl::string_view must_be);
  std::optional<int32_t> ToInt(const char* key, const nlohmann::json& value,
                               int32_t min, int32_t max);
  std::optional<double> ToNumber(const char* key, const nlohmann::json& value,
                                 double min, double max);

  const nlohmann::json& object_;
  const std::string prefix_;
  const std::vector<Alias> aliases_;
  absl::Status status_;
};

}  // namespace sluice
