#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/jinja/value.h"

// A parsed template. Shapes follow jinja2.nodes.

namespace sluice::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Block = std::vector<std::unique_ptr<Stmt>>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star;       // *args
  ExprPtr star_star;  // **kwargs
};

enum class CompareOp { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };
enum class BinaryOp { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };

struct Expr {
  enum class Kind {
    kConst,    // value
    kName,     // name
    kTuple,    // children
    kList,     // children
    kDict,     // children: key, value, key, value, ...
    kCond,     // children: test, then, else (may be null)
    kAnd,      // children: left, right
    kOr,       // children: left, right
    kNot,      // children: operand
    kCompare,  // children: first, then one per op
    kBinary,   // binary_op; children: left, right
    kConcat,   // children
    kNeg,      // children: operand
    kPos,      // children: operand
    kGetattr,  // children: object; name
    kGetitem,  // children: object, key
    kSlice,    // children: start, stop, step (each may be null)
    kCall,     // children: callee; arguments
    kFilter,   // children: operand (null in a filter block); name; arguments
    kTest,     // children: operand; name; arguments
    kNsRef,    // name: the namespace, attribute; only as a target of set
  };
  Kind kind;
  int line = 0;
  int height = 1;  // levels of the tree from this node down
  std::string name;
  std::string attribute;
  Value value;
  BinaryOp binary_op = BinaryOp::kAdd;
  std::vector<CompareOp> compare_ops;
  std::vector<ExprPtr> children;
  Arguments arguments;
};

// Calls `fn` with each existing child expression of `expr`.
template <typename Fn>
void ForEachChild(const Expr& expr, const Fn& fn) {
  const auto call = [&](const ExprPtr& child) {
    if (child != nullptr) fn(*child);
  };
  for (const ExprPtr& child : expr.children) call(child);
  for (const ExprPtr& child : expr.arguments.positional) call(child);
  for (const auto& [name, child] : expr.arguments.keywords) call(child);
  call(expr.arguments.star);
  call(expr.arguments.star_star);
}

struct MacroDef {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Block body;
  // Whether the body reads these names: they are then defined, and extra
  // arguments accepted.
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
  std::vector<std::string> unset_names;  // see Stmt
};

struct Stmt {
  enum class Kind {
    kText,        // text
    kPrint,       // expr
    kFor,         // target, expr, test, body, else_body, recursive
    kIf,          // branches (test, body), else_body
    kSet,         // target, expr
    kSetBlock,    // target, expr (filters or null), body
    kMacro,       // macro
    kCall,        // expr (a call), macro (the caller)
    kFilter,      // expr (filters), body
    kWith,        // assignments, body
    kGeneration,  // body
    kBreak,
    kContinue,
  };
  Kind kind;
  int line = 0;
  std::string text;
  ExprPtr target;
  ExprPtr expr;
  ExprPtr test;
  bool recursive = false;
  Block body;
  Block else_body;
  std::vector<std::pair<ExprPtr, Block>> branches;
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;
  std::unique_ptr<MacroDef> macro;
  // Names that are undefined when `body` (or `else_body`) is entered, whatever
  // is outside. Jinja decides at compile time which scope a name belongs to: a
  // name that a scope first mentions by setting it is the scope's own.
  std::vector<std::string> unset_names;
  std::vector<std::string> else_unset_names;
};

struct Template {
  Block body;
  std::vector<std::string> unset_names;
};

}  // namespace sluice::jinja
