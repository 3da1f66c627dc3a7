#include "runtime/text/jinja/interpreter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/text/utf8.h"

namespace sluice::jinja {

using Kind = Expr::Kind;

// Counts the depth of evaluation, which bounds the stack.
class Interpreter::Depth {
 public:
  explicit Depth(Interpreter* in) : in_(in) {
    if (++in_->depth_ > in_->limits_.call_depth && !in_->failed()) {
      in_->status_ = in_->Exhausted("recurses too deeply");
    }
  }
  ~Depth() { --in_->depth_; }

 private:
  Interpreter* in_;
};

// Enters a scope, and frees it on leaving, unless a macro may have seen it.
class Interpreter::Inner {
 public:
  Inner(Interpreter* in, Scope* parent, const std::vector<std::string>& unset)
      : in_(in),
        outer_(in->scope_),
        mark_(in->scopes_.size()),
        macros_(in->macros_made_) {
    in->scope_ = in->PushScope(parent, unset);
  }
  ~Inner() {
    in_->scope_ = outer_;
    if (macros_ == in_->macros_made_) in_->PopScope(mark_);
  }

 private:
  Interpreter* in_;
  Scope* outer_;
  size_t mark_;
  size_t macros_;
};

absl::StatusOr<std::string> Interpreter::Run() {
  std::string out;
  out_ = &out;
  scope_ = PushScope(nullptr, template_.unset_names);
  Exec(template_.body);
  if (!status_.ok()) return status_;
  return out;
}

// --- Scopes.

Scope* Interpreter::PushScope(Scope* parent,
                              const std::vector<std::string>& unset) {
  Charge(8 + unset.size());
  Scope& scope = scopes_.emplace_back();
  scope.parent = parent;
  for (const std::string& name : unset) {
    scope.variables[name] =
        Value::MakeUndefined(absl::StrCat("'", name, "' is undefined"));
  }
  return &scope;
}

void Interpreter::PopScope(size_t mark) {
  while (scopes_.size() > mark) scopes_.pop_back();
}

Value Interpreter::DefineMacro(const MacroDef& macro) {
  ++macros_made_;
  auto callable = std::make_shared<Callable>();
  callable->kind = Callable::Kind::kMacro;
  callable->name = macro.name;
  callable->macro = &macro;
  callable->scope = scope_;
  return Value(std::shared_ptr<const Callable>(std::move(callable)));
}

void Interpreter::Assign(const Expr& target, const Value& value) {
  if (failed()) return;
  if (target.kind == Kind::kName) {
    scope_->variables[target.name] = value;
    return;
  }
  if (target.kind == Kind::kTuple) {
    const std::vector<Value> items = Items(value);
    if (failed()) return;
    if (items.size() != target.children.size()) {
      Fail("cannot unpack ", items.size(), " values into ",
           target.children.size());
      return;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      Assign(*target.children[i], items[i]);
    }
    return;
  }
  // The target is a namespace's attribute.
  Namespace* ns = EvalName(target).AsNamespace();
  if (ns == nullptr) {
    Fail("cannot assign attribute on non-namespace object");
  } else if (target.attribute.front() == '_') {
    Fail("cannot store underscore-prefixed attribute '", target.attribute,
         "' on a namespace");
  } else {
    ns->Set(target.attribute, value);
  }
}

// --- Statements.

void Interpreter::Output(absl::string_view text) {
  if (!ChargeString(out_->size() + text.size() > limits_.bytes
                        ? out_->size() + text.size()
                        : text.size())) {
    return;
  }
  out_->append(text.data(), text.size());
}

Interpreter::Flow Interpreter::Exec(const Block& block) {
  for (const auto& stmt : block) {
    const Flow flow = ExecStmt(*stmt);
    if (failed() || flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::ExecStmt(const Stmt& stmt) {
  const Depth depth(this);
  line_ = stmt.line;
  if (!Charge(1)) return Flow::kNormal;
  switch (stmt.kind) {
    case Stmt::Kind::kText:
      Output(stmt.text);
      break;
    case Stmt::Kind::kPrint: {
      const Value value = Eval(*stmt.expr);
      if (failed()) break;
      if (const auto* str = value.AsStr()) {
        Output(str->text);
      } else {
        Output(Str(value));
      }
      break;
    }
    case Stmt::Kind::kFor: {
      std::vector<Value> items = Items(Eval(*stmt.expr));
      return ExecFor(stmt, scope_, std::move(items), 1);
    }
    case Stmt::Kind::kIf:
      for (const auto& [test, body] : stmt.branches) {
        const bool holds = Truth(Eval(*test));
        if (failed()) return Flow::kNormal;
        if (holds) return Exec(body);
      }
      return Exec(stmt.else_body);
    case Stmt::Kind::kSet:
      Assign(*stmt.target, Eval(*stmt.expr));
      break;
    case Stmt::Kind::kSetBlock: {
      Value value = Capture(stmt.body, stmt.unset_names);
      if (stmt.expr != nullptr) value = ApplyFilters(*stmt.expr, value);
      Assign(*stmt.target, value);
      break;
    }
    case Stmt::Kind::kMacro: {
      // The macro is made first, as that may grow the map.
      Value macro = DefineMacro(*stmt.macro);
      scope_->variables[stmt.macro->name] = std::move(macro);
      break;
    }
    case Stmt::Kind::kCall: {
      const Value callee = Eval(*stmt.expr->children[0]);
      CallArgs args = EvalArguments(stmt.expr->arguments);
      args.keywords.emplace_back("caller", DefineMacro(*stmt.macro));
      Output(Str(Call(callee, std::move(args))));
      break;
    }
    case Stmt::Kind::kFilter:
      Output(
          Str(ApplyFilters(*stmt.expr, Capture(stmt.body, stmt.unset_names))));
      break;
    case Stmt::Kind::kWith: {
      std::vector<Value> values;
      for (const auto& [target, value] : stmt.assignments) {
        values.push_back(Eval(*value));
      }
      const Inner inner(this, scope_, stmt.unset_names);
      for (size_t i = 0; i < values.size(); ++i) {
        Assign(*stmt.assignments[i].first, values[i]);
      }
      return Exec(stmt.body);
    }
    case Stmt::Kind::kGeneration:
      Output(Str(Capture(stmt.body, stmt.unset_names)));
      break;
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

std::vector<Value> Interpreter::FilterItems(const Stmt& stmt,
                                            std::vector<Value> items) {
  if (stmt.test == nullptr) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    const Inner inner(this, scope_, {});
    Assign(*stmt.target, item);
    const bool keep = Truth(Eval(*stmt.test));
    if (failed()) break;
    if (keep) kept.push_back(std::move(item));
  }
  return kept;
}

Interpreter::Flow Interpreter::ExecFor(const Stmt& stmt, Scope* scope,
                                       std::vector<Value> items, int depth) {
  Scope* const outer = scope_;
  scope_ = scope;
  items = FilterItems(stmt, std::move(items));
  Charge(16);
  Loop& loop = loops_.emplace_back();
  loop.items = std::move(items);
  loop.depth = depth;
  loop.scope = scope;
  if (stmt.recursive) {
    loop.recursive = &stmt;
    ++macros_made_;  // a recursive loop keeps a pointer to its scope, too
  }

  // As in Jinja, the else branch runs if no iteration came to its end.
  bool finished_one = false;
  for (; loop.index < loop.items.size() && !failed(); ++loop.index) {
    const Inner inner(this, scope, stmt.unset_names);
    Assign(*stmt.target, loop.items[loop.index]);
    scope_->variables["loop"] = Value(&loop);
    const Flow flow = Exec(stmt.body);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) finished_one = true;
  }
  Flow flow = Flow::kNormal;
  if (!finished_one && !stmt.else_body.empty() && !failed()) {
    const Inner inner(this, scope, stmt.else_unset_names);
    flow = Exec(stmt.else_body);
  }
  scope_ = outer;
  return flow;
}

Value Interpreter::Captured(const std::function<void()>& run) {
  std::string text;
  std::string* const outer_out = std::exchange(out_, &text);
  run();
  out_ = outer_out;
  return MakeStr(std::move(text));
}

Value Interpreter::Capture(const Block& body,
                           const std::vector<std::string>& unset) {
  return Captured([&] {
    const Inner inner(this, scope_, unset);
    Exec(body);
  });
}

// --- Expressions.

Value Interpreter::Eval(const Expr& expr) {
  const Depth depth(this);
  line_ = expr.line;
  if (!Charge(1)) return Value::MakeUndefined("");
  Value value = EvalKind(expr);
  line_ = expr.line;
  if (!CheckExtent(value)) return Value::MakeUndefined("");
  return value;
}

Value Interpreter::EvalKind(const Expr& expr) {
  switch (expr.kind) {
    case Kind::kConst:
      return expr.value;
    case Kind::kName:
    case Kind::kNsRef:
      return EvalName(expr);
    case Kind::kTuple:
      return MakeTuple(EvalAll(expr.children));
    case Kind::kList:
      return MakeList(EvalAll(expr.children));
    case Kind::kDict:
      return EvalDict(expr);
    case Kind::kCond:
      return EvalCond(expr);
    case Kind::kAnd:
    case Kind::kOr: {
      Value left = Eval(*expr.children[0]);
      const bool enough = Truth(left) == (expr.kind == Kind::kOr);
      return enough || failed() ? left : Eval(*expr.children[1]);
    }
    case Kind::kNot:
      return !Truth(Eval(*expr.children[0]));
    case Kind::kCompare:
      return EvalCompare(expr);
    case Kind::kBinary:
      return EvalBinary(expr);
    case Kind::kConcat:
      return EvalConcat(expr);
    case Kind::kNeg:
    case Kind::kPos:
      return EvalSign(expr);
    case Kind::kGetattr:
      return GetAttr(*this, Eval(*expr.children[0]), expr.name);
    case Kind::kGetitem: {
      const Value object = Eval(*expr.children[0]);
      const Expr& key = *expr.children[1];
      if (key.kind == Kind::kSlice) return EvalSlice(object, key);
      return GetItem(*this, object, Eval(key));
    }
    case Kind::kSlice:
      return Fail("a slice is only allowed as a subscript");
    case Kind::kCall: {
      const Value callee = Eval(*expr.children[0]);
      CallArgs args = EvalArguments(expr.arguments);
      line_ = expr.line;
      return Call(callee, std::move(args));
    }
    case Kind::kFilter: {
      if (expr.children[0] == nullptr) return EvalFilter(expr, nullptr);
      const Value operand = Eval(*expr.children[0]);
      return EvalFilter(expr, &operand);
    }
    case Kind::kTest:
      return EvalTest(expr);
  }
  return {};
}

std::vector<Value> Interpreter::EvalAll(const std::vector<ExprPtr>& exprs) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) values.push_back(Eval(*expr));
  return values;
}

Value Interpreter::EvalDict(const Expr& expr) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    const Value key = Eval(*expr.children[i]);
    Value value = Eval(*expr.children[i + 1]);
    if (!ChargeBytes(ExtentOf(key).size)) return {};
    if (!DictSet(*dict, key, std::move(value))) return FailUnhashable(key);
  }
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

Value Interpreter::EvalCond(const Expr& expr) {
  if (Truth(Eval(*expr.children[0]))) return Eval(*expr.children[1]);
  if (!failed() && expr.children[2] != nullptr) return Eval(*expr.children[2]);
  return Value::MakeUndefined(
      "the inline if-expression evaluated to false and no else section was "
      "defined.");
}

Value Interpreter::EvalConcat(const Expr& expr) {
  std::string text;
  for (const ExprPtr& child : expr.children) {
    const std::string part = Str(Eval(*child));
    if (!ChargeString(text.size() + part.size())) return {};
    text += part;
  }
  return MakeStr(std::move(text));
}

Value Interpreter::EvalSign(const Expr& expr) {
  const Value value = Eval(*expr.children[0]);
  if (failed() || FailIfUndefined(value)) return {};
  const bool negate = expr.kind == Kind::kNeg;
  if (!value.IsNumber()) {
    return Fail("bad operand type for unary ", negate ? "-" : "+", ": '",
                TypeName(value), "'");
  }
  if (value.IsFloat()) {
    return negate ? -value.float_value() : value.float_value();
  }
  return Multiply(*this, value, Value(negate ? -1 : 1));
}

Value Interpreter::EvalTest(const Expr& expr) {
  const Value operand = Eval(*expr.children[0]);
  const CallArgs args = EvalArguments(expr.arguments);
  line_ = expr.line;
  if (failed() || !ChargeBytes(ExtentOf(operand).size)) return {};
  return CallTest(*this, expr.name, operand, args);
}

Value Interpreter::EvalName(const Expr& expr) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    const auto it = scope->variables.find(expr.name);
    if (it != scope->variables.end()) return it->second;
  }
  if (const Value* value = DictGet(context_, expr.name)) return *value;
  if (IsGlobal(expr.name)) {
    auto callable = std::make_shared<Callable>();
    callable->name = expr.name;
    return Value(std::shared_ptr<const Callable>(std::move(callable)));
  }
  return Value::MakeUndefined(absl::StrCat("'", expr.name, "' is undefined"));
}

Value Interpreter::EvalBinary(const Expr& expr) {
  const Value left = Eval(*expr.children[0]);
  const Value right = Eval(*expr.children[1]);
  line_ = expr.line;
  if (failed()) return {};
  return Arithmetic(*this, expr.binary_op, left, right);
}

Value Interpreter::EvalCompare(const Expr& expr) {
  Value left = Eval(*expr.children[0]);
  for (size_t i = 0; i < expr.compare_ops.size(); ++i) {
    Value right = Eval(*expr.children[i + 1]);
    line_ = expr.line;
    if (failed()) return {};
    if (!ChargeBytes(std::min(ExtentOf(left).size, ExtentOf(right).size))) {
      return {};
    }
    if (!Holds(*this, expr.compare_ops[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::EvalSlice(const Value& object, const Expr& slice) {
  // These are the indices of Python's slice.indices.
  Value parts[3];
  for (int i = 0; i < 3; ++i) {
    if (slice.children[i] != nullptr) parts[i] = Eval(*slice.children[i]);
    if (failed()) return {};
    if (!parts[i].IsNone() && !parts[i].IsInt() && !parts[i].IsBool()) {
      return Fail("slice indices must be integers or None");
    }
  }
  const auto* str = object.AsStr();
  const Seq* seq = object.AsSeq();
  if (FailIfUndefined(object)) return {};
  if ((str == nullptr && seq == nullptr) || object.IsView()) {
    return Fail("'", TypeName(object), "' object cannot be sliced");
  }
  const Int step = parts[2].IsNone() ? Int{1} : parts[2].int_value();
  if (step == 0) return Fail("slice step cannot be zero");
  if (!Charge(str != nullptr ? str->text.size() : 4 * seq->items.size())) {
    return {};
  }
  std::u32string code_points;
  if (str != nullptr) code_points = ToUtf32(str->text);
  const Int size =
      static_cast<Int>(str != nullptr ? code_points.size() : seq->items.size());
  const Int lowest = step > 0 ? Int{0} : Int{-1};
  const Int highest = step > 0 ? size : size - 1;
  const auto bound = [&](const Value& part, Int fallback) {
    if (part.IsNone()) return fallback;
    Int index = part.int_value();
    if (index < 0) index += size;
    return std::clamp(index, lowest, highest);
  };
  const Int start = bound(parts[0], step > 0 ? lowest : highest);
  const Int stop = bound(parts[1], step > 0 ? highest : lowest);
  std::vector<size_t> indices;
  // A huge step must not overflow.
  const Int stride = std::clamp(step, -(size + 1), size + 1);
  for (Int i = start; stride > 0 ? i < stop : i > stop; i += stride) {
    indices.push_back(static_cast<size_t>(i));
  }
  if (str != nullptr) {
    std::string text;
    for (const size_t i : indices) AppendUtf8(code_points[i], &text);
    return MakeStr(std::move(text));
  }
  std::vector<Value> items;
  items.reserve(indices.size());
  for (const size_t i : indices) items.push_back(seq->items[i]);
  return MakeSeq(seq->kind == SeqKind::kGroup ? SeqKind::kTuple : seq->kind,
                 std::move(items));
}

CallArgs Interpreter::EvalArguments(const Arguments& arguments) {
  CallArgs args;
  args.positional = EvalAll(arguments.positional);
  for (const auto& [name, e] : arguments.keywords) {
    args.keywords.emplace_back(name, Eval(*e));
  }
  if (arguments.star != nullptr) {
    for (Value& value : Items(Eval(*arguments.star))) {
      args.positional.push_back(std::move(value));
    }
  }
  if (arguments.star_star != nullptr) {
    const Value value = Eval(*arguments.star_star);
    const Dict* dict = value.AsDict();
    if (dict == nullptr) {
      Fail("argument after ** must be a mapping");
      return args;
    }
    for (const auto& [key, item] : dict->items) {
      const auto* name = key.AsStr();
      if (name == nullptr) {
        Fail("keywords must be strings");
        return args;
      }
      args.keywords.emplace_back(name->text, item);
    }
  }
  return args;
}

Value Interpreter::EvalFilter(const Expr& expr, const Value* operand) {
  const CallArgs args = EvalArguments(expr.arguments);
  line_ = expr.line;
  if (failed() || operand == nullptr) return {};
  if (!ChargeBytes(ExtentOf(*operand).size)) return {};
  return CallFilter(*this, expr.name, *operand, args);
}

// Applies a chain of filters without an innermost operand to `value`.
Value Interpreter::ApplyFilters(const Expr& filters, Value value) {
  const Depth depth(this);
  if (failed()) return {};
  if (filters.children[0] != nullptr) {
    value = ApplyFilters(*filters.children[0], std::move(value));
  }
  value = EvalFilter(filters, &value);
  return CheckExtent(value) ? value : Value::MakeUndefined("");
}

// --- Calls.

Value Interpreter::Call(const Value& callee, CallArgs args) {
  const Depth depth(this);
  if (failed() || FailIfUndefined(callee)) return {};
  if (Loop* loop = callee.AsLoop()) return CallLoop(*loop, args);
  const Callable* callable = callee.AsCallable();
  if (callable == nullptr) {
    return Fail("'", TypeName(callee), "' object is not callable");
  }
  switch (callable->kind) {
    case Callable::Kind::kMacro:
      return CallMacro(*callable, std::move(args));
    case Callable::Kind::kMethod:
      if (!ChargeBytes(ExtentOf(callable->self).size)) return {};
      return CallMethod(*this, callable->self, callable->name, args);
    case Callable::Kind::kGlobal:
      break;
  }
  return CallGlobal(*this, callable->name, args);
}

Value Interpreter::CallMacro(const Callable& callable, CallArgs args) {
  const MacroDef& macro = *callable.macro;
  const size_t num_parameters = macro.parameters.size();
  const auto take_keyword = [&](const std::string& name, Value& out) {
    for (auto it = args.keywords.begin(); it != args.keywords.end(); ++it) {
      if (it->first != name) continue;
      out = std::move(it->second);
      args.keywords.erase(it);
      return true;
    }
    return false;
  };

  const Inner inner(this, callable.scope, macro.unset_names);
  Scope* const scope = scope_;
  std::vector<size_t> missing;
  bool explicit_caller = false;
  for (size_t i = 0; i < num_parameters; ++i) {
    const std::string& name = macro.parameters[i];
    Value value;
    if (name == "caller") explicit_caller = true;
    if (i < args.positional.size()) {
      value = args.positional[i];
    } else if (!take_keyword(name, value)) {
      value = Value::MakeUndefined(
          absl::StrCat("parameter '", name, "' was not provided"));
      missing.push_back(i);
    }
    scope->variables[name] = std::move(value);
  }
  if (macro.uses_caller && !explicit_caller) {
    Value caller;
    if (!take_keyword("caller", caller) || caller.IsNone()) {
      caller = Value::MakeUndefined("No caller defined");
    }
    scope->variables["caller"] = std::move(caller);
  }
  if (macro.uses_kwargs) {
    auto rest = std::make_shared<Dict>();
    for (auto& [name, value] : args.keywords) {
      DictSet(*rest, MakeStr(name), std::move(value));
    }
    scope->variables["kwargs"] =
        Value(std::shared_ptr<const Dict>(std::move(rest)));
  } else if (!args.keywords.empty()) {
    return Fail("macro '", macro.name, "' takes no keyword argument '",
                args.keywords[0].first, "'");
  }
  if (macro.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = num_parameters; i < args.positional.size(); ++i) {
      rest.push_back(args.positional[i]);
    }
    scope->variables["varargs"] = MakeTuple(std::move(rest));
  } else if (args.positional.size() > num_parameters) {
    return Fail("macro '", macro.name, "' takes not more than ", num_parameters,
                " argument(s)");
  }

  const size_t first_default = num_parameters - macro.defaults.size();
  for (const size_t i : missing) {
    if (i < first_default) continue;
    Value value = Eval(*macro.defaults[i - first_default]);
    scope->variables[macro.parameters[i]] = std::move(value);
  }
  return Captured([&] { Exec(macro.body); });
}

Value Interpreter::CallLoop(Loop& loop, const CallArgs& args) {
  if (loop.recursive == nullptr) {
    return Fail(
        "the loop must have the 'recursive' marker to be called recursively");
  }
  if (args.positional.size() != 1 || !args.keywords.empty()) {
    return Fail("loop() takes one argument");
  }
  return Captured([&] {
    ExecFor(*loop.recursive, loop.scope, Items(args.positional[0]),
            loop.depth + 1);
  });
}

}  // namespace sluice::jinja
