#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/value.h"

namespace sluice::jinja {

struct Scope {
  Scope* parent = nullptr;
  absl::flat_hash_map<absl::string_view, Value> variables;
};

// Bounds of one rendering. A template can neither run for long nor take much
// memory, whatever it says.
struct Limits {
  uint64_t work = 20'000'000;           // steps, and bytes and items handled
  uint64_t bytes = uint64_t{64} << 20;  // of the output, of any one value
  int value_depth = 100;
  int call_depth = 600;  // of statements and expressions being evaluated
};

// Runs one template once. The first error sticks: from then on evaluation
// gives undefined values and runs out, so that callers may look at failed()
// when it suits them. Confined to a thread.
class Interpreter {
 public:
  // `context` holds the template's variables. Both must outlive it.
  Interpreter(const Template& parsed, const Dict& context,
              absl::CivilSecond now, const Limits& limits)
      : template_(parsed), context_(context), now_(now), limits_(limits) {}

  absl::StatusOr<std::string> Run();

  // --- For the built-in functions.

  bool failed() const { return !status_.ok(); }
  // kInvalidArgument with the line; gives an undefined value.
  Value Fail(absl::string_view message);
  Value Unsupported(absl::string_view what);
  // The template's own error: its message alone.
  Value Raise(const std::string& message);
  // Accounts for work; false, and failed, when there was too much.
  bool Charge(uint64_t units);
  bool ChargeBytes(uint64_t bytes) { return Charge(1 + bytes / 8); }
  // Before making a string of that size: also fails if it is too large.
  bool ChargeString(uint64_t bytes);
  absl::CivilSecond now() const { return now_; }

  // Call-backs.
  Value Call(const Value& callee, CallArgs args);
  Value GetAttr(const Value& object, const std::string& name);
  Value GetItem(const Value& object, const Value& key);
  // str(value), charged.
  std::string Str(const Value& value);
  // All items of an iterable; takes them out of a generator. Fails if it is
  // none.
  std::vector<Value> Items(const Value& iterable);
  Namespace* NewNamespace();
  // False, and failed, if `value` is too large or nested too deeply.
  bool CheckExtent(const Value& value);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class Depth;

  Value Eval(const Expr& expr);
  Value EvalKind(const Expr& expr);
  Value EvalName(const Expr& expr);
  Value EvalCompare(const Expr& expr);
  Value EvalBinary(const Expr& expr);
  Value EvalSlice(const Value& object, const Expr& slice);
  Value EvalFilter(const Expr& expr, const Value* operand);
  CallArgs EvalArguments(const Arguments& arguments);
  Value CallMacro(const Callable& callable, CallArgs args);
  Value CallLoop(Loop& loop, const CallArgs& args);

  Flow Exec(const Block& block);
  Flow ExecStmt(const Stmt& stmt);
  Flow ExecFor(const Stmt& stmt, Scope* scope, std::vector<Value> items,
               int depth);
  std::vector<Value> FilterItems(const Stmt& stmt, std::vector<Value> items);
  // Runs a body in a scope of its own and gives its output as a string.
  Value Capture(const Block& body, const std::vector<std::string>& unset);
  void Assign(const Expr& target, const Value& value);
  void Output(absl::string_view text);
  Value DefineMacro(const MacroDef& macro);
  Value ApplyFilters(const Expr& filters, Value value);

  // Scopes live in an arena, because macros keep pointers to theirs. Those
  // that no macro saw are given back when they end.
  Scope* PushScope(Scope* parent, const std::vector<std::string>& unset);
  void PopScope(size_t mark);

  const Template& template_;
  const Dict& context_;
  const absl::CivilSecond now_;
  const Limits limits_;

  absl::Status status_;
  uint64_t work_ = 0;
  int depth_ = 0;
  int line_ = 1;
  std::string* out_ = nullptr;
  Scope* scope_ = nullptr;
  std::deque<Scope> scopes_;
  size_t macros_made_ = 0;
  std::deque<Namespace> namespaces_;
  std::deque<Loop> loops_;
};

}  // namespace sluice::jinja
