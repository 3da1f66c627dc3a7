#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/services.h"
#include "runtime/text/jinja/value.h"

namespace sluice::jinja {

struct Scope {
  Scope* parent = nullptr;
  absl::flat_hash_map<absl::string_view, Value> variables;
};

// Runs one template once.
class Interpreter : private Services {
 public:
  // `context` holds the template's variables. Both must outlive it.
  Interpreter(const Template& parsed, const Dict& context,
              absl::CivilSecond now, const Limits& limits)
      : Services(now, limits), template_(parsed), context_(context) {}

  absl::StatusOr<std::string> Run();

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class Depth;
  class Inner;

  Value Eval(const Expr& expr);
  Value EvalKind(const Expr& expr);
  std::vector<Value> EvalAll(const std::vector<ExprPtr>& exprs);
  Value EvalDict(const Expr& expr);
  Value EvalCond(const Expr& expr);
  Value EvalConcat(const Expr& expr);
  Value EvalSign(const Expr& expr);
  Value EvalTest(const Expr& expr);
  Value EvalName(const Expr& expr);
  Value EvalCompare(const Expr& expr);
  Value EvalBinary(const Expr& expr);
  Value EvalSlice(const Value& object, const Expr& slice);
  Value EvalFilter(const Expr& expr, const Value* operand);
  Value Call(const Value& callee, CallArgs args);
  CallArgs EvalArguments(const Arguments& arguments);
  Value CallMacro(const Callable& callable, CallArgs args);
  Value CallLoop(Loop& loop, const CallArgs& args);

  Flow Exec(const Block& block);
  Flow ExecStmt(const Stmt& stmt);
  Flow ExecFor(const Stmt& stmt, Scope* scope, std::vector<Value> items,
               int depth);
  std::vector<Value> FilterItems(const Stmt& stmt, std::vector<Value> items);
  // Returns the output of `run` as a string.
  Value Captured(const std::function<void()>& run);
  // Returns the output of a body in a scope of its own.
  Value Capture(const Block& body, const std::vector<std::string>& unset);
  void Assign(const Expr& target, const Value& value);
  void Output(absl::string_view text);
  Value DefineMacro(const MacroDef& macro);
  Value ApplyFilters(const Expr& filters, Value value);

  // Scopes live in an arena, because macros keep pointers to theirs. Those that
  // no macro saw are freed when they end.
  Scope* PushScope(Scope* parent, const std::vector<std::string>& unset);
  void PopScope(size_t mark);

  const Template& template_;
  const Dict& context_;
  int depth_ = 0;
  std::string* out_ = nullptr;
  Scope* scope_ = nullptr;
  std::deque<Scope> scopes_;
  size_t macros_made_ = 0;
  std::deque<Loop> loops_;
};

}  // namespace sluice::jinja
