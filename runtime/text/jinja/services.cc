#include "runtime/text/jinja/services.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"

namespace sluice::jinja {

absl::Status Services::Exhausted(absl::string_view what) const {
  return ResourceExhausted("line ", line_, ": the template ", what);
}

Value Services::Raise(const std::string& message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(message);
  return Value::MakeUndefined("");
}

bool Services::FailIfUndefined(const Value& value) {
  if (value.IsUndefined()) Fail(value.AsUndefined()->message);
  return value.IsUndefined();
}

Value Services::FailUnhashable(const Value& key) {
  return Fail("unhashable type: '", TypeName(key), "'");
}

bool Services::TooMuchWork() {
  status_ = Exhausted("does too much work");
  return false;
}

bool Services::ChargeString(uint64_t bytes) {
  if (status_.ok() && bytes > limits_.bytes) {
    status_ =
        Exhausted(absl::StrCat("makes a string of ", bytes, " bytes; at most ",
                               limits_.bytes, " are allowed"));
  }
  return ChargeBytes(bytes);
}

bool Services::CheckExtent(const Value& value) {
  if (!status_.ok()) return false;
  const Extent extent = ExtentOf(value);
  if (extent.size <= limits_.bytes + 1 && extent.depth <= limits_.value_depth) {
    return true;
  }
  status_ = Exhausted("makes a value that is too large or nested too deeply");
  return false;
}

std::string Services::Str(const Value& value) {
  std::string text;
  if (!ChargeBytes(ExtentOf(value).size)) return text;
  AppendStr(value, text);
  return text;
}

std::vector<Value> Services::Items(const Value& iterable) {
  if (failed()) return {};
  if (!Charge(1)) return {};
  if (const Seq* seq = iterable.AsSeq()) {
    if (!Charge(4 * seq->items.size())) return {};
    return seq->items;
  }
  if (Iterator* iterator = iterable.AsIterator()) {
    if (!Charge(4 * iterator->items.size())) return {};
    std::vector<Value> rest(iterator->items.begin() + iterator->next,
                            iterator->items.end());
    iterator->next = iterator->items.size();
    return rest;
  }
  std::vector<Value> items;
  if (const auto* str = iterable.AsStr()) {
    if (!Charge(16 * str->text.size())) return {};
    for (size_t pos = 0; pos < str->text.size();) {
      const size_t start = pos;
      DecodeUtf8(str->text, &pos);
      items.push_back(MakeStr(str->text.substr(start, pos - start)));
    }
    return items;
  }
  if (const Dict* dict = iterable.AsDict()) {
    if (!Charge(4 * dict->items.size())) return {};
    for (const auto& [key, value] : dict->items) items.push_back(key);
    return items;
  }
  if (!iterable.IsUndefined()) {
    Fail("'", TypeName(iterable), "' object is not iterable");
  }
  return items;
}

Namespace* Services::NewNamespace() {
  Charge(16);
  return &namespaces_.emplace_back();
}

}  // namespace sluice::jinja
