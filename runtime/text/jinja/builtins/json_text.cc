#include <algorithm>
#include <cmath>

#include "common/text/text.h"
#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/services.h"

// The tojson filter: Python's json.dumps as transformers calls it.

namespace sluice::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Services& in, const std::string* indent, bool ensure_ascii,
             bool sort_keys, std::string item_separator,
             std::string key_separator)
      : in_(in),
        indent_(indent),
        ensure_ascii_(ensure_ascii),
        sort_keys_(sort_keys),
        item_separator_(std::move(item_separator)),
        key_separator_(std::move(key_separator)) {}

  void Write(const Value& value) {
    if (!in_.Charge(1) || !in_.ChargeString(out_.size() - charged_)) return;
    charged_ = out_.size();
    if (value.IsNone()) {
      out_ += "null";
    } else if (value.IsBool()) {
      out_ += value.bool_value() ? "true" : "false";
    } else if (value.IsInt()) {
      out_ += IntToString(value.int_value());
    } else if (value.IsFloat()) {
      WriteFloat(value.float_value());
    } else if (const auto* str = value.AsStr()) {
      out_ += QuoteJson(str->text, ensure_ascii_);
    } else if (const Dict* dict = value.AsDict()) {
      WriteDict(*dict);
    } else if (value.IsKind(SeqKind::kList) || value.IsTuple()) {
      WriteSeq(*value.AsSeq());
    } else {
      in_.Fail("object of type ", TypeName(value), " is not JSON serializable");
    }
  }

  std::string Take() { return std::move(out_); }

 private:
  void WriteFloat(double number) {
    if (std::isfinite(number)) {
      out_ += FloatRepr(number);
    } else {
      out_ += std::isnan(number) ? "NaN"
              : number < 0       ? "-Infinity"
                                 : "Infinity";
    }
  }

  void Newline() {
    if (indent_ == nullptr) return;
    const uint64_t bytes = static_cast<uint64_t>(level_) * indent_->size();
    if (!in_.ChargeString(out_.size() + bytes)) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *indent_;
  }

  void WriteSeq(const Seq& seq) {
    if (seq.items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    ++level_;
    for (size_t i = 0; i < seq.items.size() && !in_.failed(); ++i) {
      if (i > 0) out_ += item_separator_;
      Newline();
      Write(seq.items[i]);
    }
    --level_;
    Newline();
    out_ += ']';
  }

  void WriteDict(const Dict& dict) {
    if (dict.items.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (sort_keys_) {
      in_.Charge(items.size() * 8);
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) {
                         return Compare(in_, a->first, b->first) == -1;
                       });
    }
    out_ += '{';
    ++level_;
    for (size_t i = 0; i < items.size() && !in_.failed(); ++i) {
      if (i > 0) out_ += item_separator_;
      Newline();
      WriteKey(items[i]->first);
      out_ += key_separator_;
      Write(items[i]->second);
    }
    --level_;
    Newline();
    out_ += '}';
  }

  void WriteKey(const Value& key) {
    if (const auto* str = key.AsStr()) {
      out_ += QuoteJson(str->text, ensure_ascii_);
    } else if (key.IsNumber() || key.IsNone()) {
      out_ += '"';
      Write(key);
      out_ += '"';
    } else {
      in_.Fail("keys must be str, int, float, bool or None, not ",
               TypeName(key));
    }
  }

  Services& in_;
  const std::string* indent_;  // null: output on one line
  const bool ensure_ascii_;
  const bool sort_keys_;
  const std::string item_separator_;
  const std::string key_separator_;
  int level_ = 0;
  size_t charged_ = 0;
  std::string out_;
};

}  // namespace

Value ToJson(Services& in, const Value& value, const CallArgs& args) {
  Bound bound(in, "tojson", args,
              {"ensure_ascii", "indent", "separators", "sort_keys"});
  if (!bound.ok()) return {};
  std::string indent;
  bool has_indent = false;
  if (const Value* given = bound.Given(1)) {
    has_indent = true;
    if (const auto* text = given->AsStr()) {
      indent = text->text;
    } else {
      const Int spaces = bound.IntOr(1, 0);
      if (spaces > 1000) return in.Fail("tojson: indent is too large");
      if (spaces > 0) indent.assign(static_cast<size_t>(spaces), ' ');
    }
  }
  std::string item_separator = has_indent ? "," : ", ";
  std::string key_separator = ": ";
  if (const Value* given = bound.Given(2)) {
    const std::vector<Value> items = in.Items(*given);
    if (items.size() != 2 || items[0].AsStr() == nullptr ||
        items[1].AsStr() == nullptr) {
      return in.Fail("tojson: separators must be two strings");
    }
    item_separator = items[0].AsStr()->text;
    key_separator = items[1].AsStr()->text;
  }
  if (in.failed()) return {};
  JsonWriter writer(in, has_indent ? &indent : nullptr, bound.TruthOr(0, false),
                    bound.TruthOr(3, false), std::move(item_separator),
                    std::move(key_separator));
  writer.Write(value);
  return MakeStr(writer.Take());
}

}  // namespace sluice::jinja
