#include "coordinator/jobs/requests/json_line.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/text/text.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

using json = nlohmann::ordered_json;

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxValues = 1 << 20;
// The names of an object with more members are hashed, as the object is a list
// with linear search.
constexpr size_t kFewNames = 16;

// Builds the value while it is read.
class Builder : public nlohmann::json_sax<json> {
 public:
  json& root() { return root_; }
  const std::string& error() const { return error_; }
  size_t error_byte() const { return error_byte_; }  // 0: the whole line

  bool null() override { return Add(json()); }
  bool boolean(bool v) override { return Add(json(v)); }
  bool number_integer(number_integer_t v) override { return Add(json(v)); }
  bool number_unsigned(number_unsigned_t v) override { return Add(json(v)); }
  bool number_float(number_float_t v, const string_t&) override {
    return Add(json(v));
  }
  bool string(string_t& v) override { return Add(json(std::move(v))); }
  bool binary(binary_t&) override { return false; }  // not in JSON text
  bool start_object(size_t) override { return Open(json::object()); }
  bool start_array(size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    auto& object = open_.back().value->get_ref<json::object_t&>();
    if (!IsNew(name, object, &open_.back().names)) {
      return Fail(absl::StrCat("the name ", QuoteForMessage(name),
                               " is twice in one object"));
    }
    if (object.size() == object.capacity()) Grow(&object);
    slot_ = &object.emplace_back(name, nullptr).second;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: why;
    // last read: '...'": only the reason is kept. The text read last may be as
    // long as the line.
    absl::string_view why = error.what();
    const size_t reason = why.find(": ");
    if (reason != absl::string_view::npos) why.remove_prefix(reason + 2);
    if (absl::string_view(error.what()).find("out_of_range") !=
        absl::string_view::npos) {
      why = "a number is out of range";
    }
    const size_t read = why.find("; last read: ");
    error_ = std::string(why.substr(0, std::min<size_t>(read, 160)));
    error_byte_ = position;
    return false;
  }

 private:
  struct Container {
    json* value;
    absl::flat_hash_set<std::string> names;  // only if there are many
  };

  static bool IsNew(const std::string& name, const json::object_t& object,
                    absl::flat_hash_set<std::string>* names) {
    if (object.size() < kFewNames) return object.find(name) == object.end();
    if (names->empty()) {
      for (const auto& [known, value] : object) names->insert(known);
    }
    return names->insert(name).second;
  }

  // Makes room for more names. The list, whose names can't be moved, would by
  // itself copy the values deeply.
  static void Grow(json::object_t* object) {
    json::object_t larger;
    larger.reserve(std::max<size_t>(1, 2 * object->size()));
    for (auto& [name, value] : *object) {
      larger.emplace_back(name, std::move(value));
    }
    object->swap(larger);
  }

  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  json* Place(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json* const container = open_.back().value;
    if (container->is_array()) {
      container->push_back(std::move(value));
      return &container->back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  bool Count() {
    if (++values_ <= kMaxValues) return true;
    return Fail(absl::StrCat("more than ", kMaxValues, " values in one line"));
  }

  bool Add(json value) {
    if (!Count()) return false;
    Place(std::move(value));
    return true;
  }

  bool Open(json value) {
    if (!Count()) return false;
    if (open_.size() == kMaxDepth) {
      return Fail(absl::StrCat("more than ", kMaxDepth, " levels deep"));
    }
    open_.push_back({Place(std::move(value)), {}});
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  json root_;
  // The containers being read. Only the innermost one grows, so none moves.
  std::vector<Container> open_;
  json* slot_ = nullptr;  // receives the value of the last name
  size_t values_ = 0;
  std::string error_;
  size_t error_byte_ = 0;
};

}  // namespace

std::variant<json, LineError> ParseJsonLine(absl::string_view line) {
  if (const auto invalid = FindInvalidUtf8(line)) {
    return LineError{"invalid_utf8",
                     absl::StrCat("not valid UTF-8 at byte ", *invalid + 1,
                                  "; save the file as UTF-8"),
                     ""};
  }
  // The library would take a NUL for the end of the input.
  const size_t nul = line.find('\0');
  if (nul != absl::string_view::npos) {
    return LineError{
        "invalid_json",
        absl::StrCat("not valid JSON: a NUL byte at byte ", nul + 1), ""};
  }
  Builder builder;
  if (json::sax_parse(line.begin(), line.end(), &builder)) {
    return std::move(builder.root());
  }
  return LineError{
      "invalid_json",
      absl::StrCat("not valid JSON",
                   builder.error_byte() > 0
                       ? absl::StrCat(" at byte ", builder.error_byte())
                       : "",
                   ": ", builder.error()),
      ""};
}

std::string DescribeJson(const json& value) {
  if (value.is_string()) {
    return QuoteForMessage(value.get_ref<const std::string&>());
  }
  if (value.is_object()) return "an object";
  if (value.is_array()) return value.empty() ? "an empty list" : "a list";
  return value.dump();
}

}  // namespace sluice
