#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

// Values of a template as it runs: the part of Python's data model that Jinja
// templates can reach. Strings, sequences and mappings are immutable, as in
// Hugging Face's ImmutableSandboxedEnvironment, and shared; so no value can
// contain itself. Mutable objects (namespaces, loops, macros) are owned by the
// interpreter and only pointed to.

namespace sluice::jinja {

// An integer wide enough for all of 64 bits, signed or not.
__extension__ typedef __int128 Int;

class Value;
struct Namespace;
struct Loop;

struct None {};

// An undefined value. Prints as nothing, is false and iterates over nothing;
// any other use is an error with this message.
struct Undefined {
  std::string message;
};

struct Str {
  std::string text;
  bool markup = false;  // marked safe: not escaped again
};

// The depth and size of a value when written out. Values share parts, so that
// the size can be exponential in their memory; the interpreter refuses values
// beyond its limits, and recursion over values relies on that.
struct Extent {
  int depth = 0;
  uint64_t size = 1;  // bytes of strings + number of values; saturates
  void Add(const Extent& part) {
    depth = depth > part.depth ? depth : part.depth + 1;
    size = size + part.size < size ? UINT64_MAX : size + part.size;
  }
};

enum class SeqKind { kList, kTuple, kGroup, kRange, kKeys, kValues, kItems };

struct Seq {
  SeqKind kind = SeqKind::kList;
  std::vector<Value> items;
  Extent extent;
};

// A dict, ordered by insertion, with unique keys.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  absl::flat_hash_map<std::string, size_t> index;  // by HashKey
  Extent extent;
};

// A generator: items taken from it are gone.
struct Iterator {
  std::vector<Value> items;
  size_t next = 0;
  Extent extent;
};

struct Callable;

class Value {
 public:
  Value() : data_(None()) {}
  Value(None none) : data_(none) {}  // NOLINT
  // Takes only a bool: pointers must not convert to one.
  template <std::same_as<bool> Bool>
  Value(Bool b) : data_(b) {}                                        // NOLINT
  Value(Int i) : data_(i) {}                                         // NOLINT
  Value(int i) : data_(static_cast<Int>(i)) {}                       // NOLINT
  Value(size_t i) : data_(static_cast<Int>(i)) {}                    // NOLINT
  Value(double d) : data_(d) {}                                      // NOLINT
  Value(std::shared_ptr<const Str> s) : data_(std::move(s)) {}       // NOLINT
  Value(std::shared_ptr<const Seq> s) : data_(std::move(s)) {}       // NOLINT
  Value(std::shared_ptr<const Dict> d) : data_(std::move(d)) {}      // NOLINT
  Value(std::shared_ptr<Iterator> i) : data_(std::move(i)) {}        // NOLINT
  Value(std::shared_ptr<const Callable> c) : data_(std::move(c)) {}  // NOLINT
  Value(Namespace* n) : data_(n) {}                                  // NOLINT
  Value(Loop* l) : data_(l) {}                                       // NOLINT
  explicit Value(std::string text)
      : data_(std::make_shared<const Str>(Str{std::move(text)})) {}
  static Value MakeUndefined(std::string message) {
    Value value;
    value.data_ =
        std::make_shared<const Undefined>(Undefined{std::move(message)});
    return value;
  }

  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }
  bool IsNone() const { return Is<None>(); }
  bool IsUndefined() const { return Is<std::shared_ptr<const Undefined>>(); }
  bool IsBool() const { return Is<bool>(); }
  bool IsInt() const { return Is<Int>(); }  // a bool is not
  bool IsFloat() const { return Is<double>(); }
  bool IsNumber() const { return IsInt() || IsFloat() || IsBool(); }

  // These return null if the value has another type.
  const Undefined* AsUndefined() const { return Shared<const Undefined>(); }
  const Str* AsStr() const { return Shared<const Str>(); }
  const Seq* AsSeq() const { return Shared<const Seq>(); }
  const Dict* AsDict() const { return Shared<const Dict>(); }
  Iterator* AsIterator() const { return Shared<Iterator>(); }
  const Callable* AsCallable() const { return Shared<const Callable>(); }
  Namespace* AsNamespace() const { return Raw<Namespace>(); }
  Loop* AsLoop() const { return Raw<Loop>(); }
  bool IsKind(SeqKind kind) const {
    const Seq* seq = AsSeq();
    return seq != nullptr && seq->kind == kind;
  }
  // Whether it is a tuple (also one from groupby), or a view of a dict.
  bool IsTuple() const {
    return IsKind(SeqKind::kTuple) || IsKind(SeqKind::kGroup);
  }
  bool IsView() const {
    return IsKind(SeqKind::kKeys) || IsKind(SeqKind::kValues) ||
           IsKind(SeqKind::kItems);
  }

  bool bool_value() const { return std::get<bool>(data_); }
  // The number of an int or a bool.
  Int int_value() const {
    return IsBool() ? static_cast<Int>(bool_value()) : std::get<Int>(data_);
  }
  // The number of any numeric type.
  double float_value() const {
    return IsFloat() ? std::get<double>(data_)
                     : static_cast<double>(int_value());
  }
  // The identity of the shared object, for "sameas".
  const void* address() const;

 private:
  template <typename T>
  T* Shared() const {
    const auto* p = std::get_if<std::shared_ptr<T>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  template <typename T>
  T* Raw() const {
    const auto* p = std::get_if<T*>(&data_);
    return p == nullptr ? nullptr : *p;
  }

  std::variant<None, std::shared_ptr<const Undefined>, bool, Int, double,
               std::shared_ptr<const Str>, std::shared_ptr<const Seq>,
               std::shared_ptr<const Dict>, std::shared_ptr<Iterator>,
               std::shared_ptr<const Callable>, Namespace*, Loop*>
      data_;
};

struct MacroDef;  // ast.h
struct Scope;     // interpreter.h
struct Stmt;      // ast.h

// A callable: a global function, a method bound to a value, or a macro.
struct Callable {
  enum class Kind { kGlobal, kMethod, kMacro };
  Kind kind = Kind::kGlobal;
  std::string name;
  Value self;
  const MacroDef* macro = nullptr;
  Scope* scope = nullptr;  // where the macro was defined
};

struct Namespace {
  absl::flat_hash_map<std::string, Value> attributes;
  void Set(const std::string& name, Value value) {
    attributes[name] = std::move(value);
  }
};

// A running loop, as the template sees it in "loop".
struct Loop {
  std::vector<Value> items;
  size_t index = 0;
  int depth = 1;
  Value last_changed;
  bool ever_changed = false;
  const Stmt* recursive = nullptr;  // set if the loop may call itself
  Scope* scope = nullptr;           // the scope that the loop is in
};

Extent ExtentOf(const Value& value);

Value MakeStr(std::string text);
Value MakeSeq(SeqKind kind, std::vector<Value> items);
inline Value MakeList(std::vector<Value> items) {
  return MakeSeq(SeqKind::kList, std::move(items));
}
inline Value MakeTuple(std::vector<Value> items) {
  return MakeSeq(SeqKind::kTuple, std::move(items));
}
Value MakeIterator(std::vector<Value> items);

// Returns a dict's key for a value: equal for equal hashable values, empty if
// the value is not hashable.
std::string HashKey(const Value& key);
// Sets a key's value, replacing an earlier one. Returns false if `key` is not
// hashable.
bool DictSet(Dict& dict, const Value& key, Value value);
const Value* DictGet(const Dict& dict, absl::string_view key);
const Value* DictGetValue(const Dict& dict, const Value& key);

bool Truth(const Value& value);
bool Equal(const Value& a, const Value& b);
// Returns Python's name of the type, for messages.
std::string TypeName(const Value& value);

std::string IntToString(Int value);
std::string FloatRepr(double value);
// Append str() and repr(). Time and size are bounded by the value's extent.
void AppendStr(const Value& value, std::string& out);
void AppendRepr(const Value& value, std::string& out);

}  // namespace sluice::jinja
