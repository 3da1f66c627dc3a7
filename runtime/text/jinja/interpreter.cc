// Long because evaluation is one set of mutually recursive functions over the
// kinds of expressions and statements.

#include "runtime/text/jinja/interpreter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/text/utf8.h"

namespace sluice::jinja {

using Kind = Expr::Kind;

// Counts how deep evaluation is, which bounds the stack.
class Interpreter::Depth {
 public:
  explicit Depth(Interpreter* in) : in_(in) {
    if (++in_->depth_ > in_->limits_.call_depth && !in_->failed()) {
      in_->status_ = absl::ResourceExhaustedError(absl::StrCat(
          "line ", in_->line_, ": the template recurses too deeply"));
    }
  }
  ~Depth() { --in_->depth_; }

 private:
  Interpreter* in_;
};

absl::StatusOr<std::string> Interpreter::Run() {
  std::string out;
  out_ = &out;
  scope_ = PushScope(nullptr, template_.unset_names);
  Exec(template_.body);
  if (!status_.ok()) return status_;
  return out;
}

// --- Errors and limits.

Value Interpreter::Fail(absl::string_view message) {
  if (status_.ok()) {
    status_ =
        absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", message));
  }
  return Value::MakeUndefined("");
}

Value Interpreter::Unsupported(absl::string_view what) {
  if (status_.ok()) {
    status_ = absl::UnimplementedError(
        absl::StrCat("line ", line_, ": ", what, " is not supported"));
  }
  return Value::MakeUndefined("");
}

Value Interpreter::Raise(const std::string& message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(message);
  return Value::MakeUndefined("");
}

bool Interpreter::Charge(uint64_t units) {
  if (!status_.ok()) return false;
  work_ += units;
  if (work_ <= limits_.work && units <= limits_.work) return true;
  status_ = absl::ResourceExhaustedError(
      absl::StrCat("line ", line_, ": the template does too much work"));
  return false;
}

bool Interpreter::ChargeString(uint64_t bytes) {
  if (status_.ok() && bytes > limits_.bytes) {
    status_ = absl::ResourceExhaustedError(
        absl::StrCat("line ", line_, ": the template makes a string of ", bytes,
                     " bytes; at most ", limits_.bytes, " are allowed"));
  }
  return ChargeBytes(bytes);
}

bool Interpreter::CheckExtent(const Value& value) {
  if (!status_.ok()) return false;
  const Extent extent = ExtentOf(value);
  if (extent.size <= limits_.bytes + 1 && extent.depth <= limits_.value_depth) {
    return true;
  }
  status_ = absl::ResourceExhaustedError(
      absl::StrCat("line ", line_,
                   ": the template makes a value that is too large or "
                   "nested too deeply"));
  return false;
}

// --- Services.

std::string Interpreter::Str(const Value& value) {
  std::string text;
  if (!ChargeBytes(ExtentOf(value).size)) return text;
  AppendStr(value, text);
  return text;
}

std::vector<Value> Interpreter::Items(const Value& iterable) {
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
    Fail(absl::StrCat("'", TypeName(iterable), "' object is not iterable"));
  }
  return items;
}

Namespace* Interpreter::NewNamespace() {
  Charge(16);
  return &namespaces_.emplace_back();
}

Value Interpreter::GetAttr(const Value& object, const std::string& name) {
  if (failed()) return {};
  if (const Undefined* undefined = object.AsUndefined()) {
    return Fail(undefined->message);
  }
  Value value;
  if (GetMethod(object, name, value)) return value;
  if (const Dict* dict = object.AsDict()) {
    if (const Value* found = DictGet(*dict, name)) return *found;
  }
  return Value::MakeUndefined(absl::StrCat(
      "'", TypeName(object), " object' has no attribute '", name, "'"));
}

Value Interpreter::GetItem(const Value& object, const Value& key) {
  if (failed()) return {};
  if (const Undefined* undefined = object.AsUndefined()) {
    return Fail(undefined->message);
  }
  if (const Dict* dict = object.AsDict()) {
    if (const Value* found = DictGetValue(*dict, key)) return *found;
  } else if (key.IsInt() || key.IsBool()) {
    Int index = key.int_value();
    if (const Seq* seq = object.AsSeq();
        seq != nullptr && seq->kind != SeqKind::kKeys &&
        seq->kind != SeqKind::kValues && seq->kind != SeqKind::kItems) {
      const Int size = static_cast<Int>(seq->items.size());
      if (index < 0) index += size;
      if (index >= 0 && index < size) {
        return seq->items[static_cast<size_t>(index)];
      }
    } else if (const auto* str = object.AsStr()) {
      if (!ChargeBytes(str->text.size())) return {};
      const Int size = static_cast<Int>(CountCharacters(str->text));
      if (index < 0) index += size;
      if (index >= 0 && index < size) {
        size_t pos = 0;
        for (Int i = 0; i < index; ++i) DecodeUtf8(str->text, &pos);
        const size_t start = pos;
        DecodeUtf8(str->text, &pos);
        return MakeStr(str->text.substr(start, pos - start));
      }
    }
  }
  if (const auto* name = key.AsStr()) {
    Value value;
    if (GetMethod(object, name->text, value)) return value;
  }
  if (!ChargeBytes(ExtentOf(key).size)) return {};
  std::string text;
  AppendRepr(key, text);
  return Value::MakeUndefined(
      absl::StrCat("'", TypeName(object), " object' has no element ", text));
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
      Fail(absl::StrCat("cannot unpack ", items.size(), " values into ",
                        target.children.size()));
      return;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      Assign(*target.children[i], items[i]);
    }
    return;
  }
  // A namespace's attribute.
  Namespace* ns = EvalName(target).AsNamespace();
  if (ns == nullptr) {
    Fail("cannot assign attribute on non-namespace object");
  } else if (target.attribute.front() == '_') {
    Fail(absl::StrCat("cannot store underscore-prefixed attribute '",
                      target.attribute, "' on a namespace"));
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
      // First the call: it may make the map grow.
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
      Scope* const outer = scope_;
      const size_t mark = scopes_.size();
      const size_t macros = macros_made_;
      scope_ = PushScope(outer, stmt.unset_names);
      for (size_t i = 0; i < values.size(); ++i) {
        Assign(*stmt.assignments[i].first, values[i]);
      }
      const Flow flow = Exec(stmt.body);
      scope_ = outer;
      if (macros == macros_made_) PopScope(mark);
      return flow;
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
  Scope* const outer = scope_;
  for (Value& item : items) {
    const size_t mark = scopes_.size();
    const size_t macros = macros_made_;
    scope_ = PushScope(outer, {});
    Assign(*stmt.target, item);
    const bool keep = Truth(Eval(*stmt.test));
    scope_ = outer;
    if (macros == macros_made_) PopScope(mark);
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
    ++macros_made_;  // it too keeps a pointer to its scope
  }

  // As in Jinja, the else branch runs if no iteration came to its end.
  bool finished_one = false;
  for (; loop.index < loop.items.size() && !failed(); ++loop.index) {
    const size_t mark = scopes_.size();
    const size_t macros = macros_made_;
    scope_ = PushScope(scope, stmt.unset_names);
    Assign(*stmt.target, loop.items[loop.index]);
    scope_->variables["loop"] = Value(&loop);
    const Flow flow = Exec(stmt.body);
    if (macros == macros_made_) PopScope(mark);
    scope_ = scope;
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) finished_one = true;
  }
  Flow flow = Flow::kNormal;
  if (!finished_one && !stmt.else_body.empty() && !failed()) {
    const size_t mark = scopes_.size();
    const size_t macros = macros_made_;
    scope_ = PushScope(scope, stmt.else_unset_names);
    flow = Exec(stmt.else_body);
    if (macros == macros_made_) PopScope(mark);
  }
  scope_ = outer;
  return flow;
}

Value Interpreter::Capture(const Block& body,
                           const std::vector<std::string>& unset) {
  std::string text;
  std::string* const outer_out = std::exchange(out_, &text);
  Scope* const outer = scope_;
  const size_t mark = scopes_.size();
  const size_t macros = macros_made_;
  scope_ = PushScope(outer, unset);
  Exec(body);
  scope_ = outer;
  if (macros == macros_made_) PopScope(mark);
  out_ = outer_out;
  return MakeStr(std::move(text));
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
    case Kind::kList: {
      std::vector<Value> items;
      items.reserve(expr.children.size());
      for (const ExprPtr& child : expr.children) items.push_back(Eval(*child));
      return MakeSeq(
          expr.kind == Kind::kTuple ? SeqKind::kTuple : SeqKind::kList,
          std::move(items));
    }
    case Kind::kDict: {
      auto dict = std::make_shared<Dict>();
      for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
        const Value key = Eval(*expr.children[i]);
        Value value = Eval(*expr.children[i + 1]);
        if (!ChargeBytes(ExtentOf(key).size)) return {};
        if (!DictSet(*dict, key, std::move(value))) {
          return Fail(absl::StrCat("unhashable type: '", TypeName(key), "'"));
        }
      }
      return Value(std::shared_ptr<const Dict>(std::move(dict)));
    }
    case Kind::kCond:
      if (Truth(Eval(*expr.children[0]))) return Eval(*expr.children[1]);
      if (failed() || expr.children[2] == nullptr) {
        return Value::MakeUndefined(
            "the inline if-expression evaluated to false and no else section "
            "was defined.");
      }
      return Eval(*expr.children[2]);
    case Kind::kAnd: {
      Value left = Eval(*expr.children[0]);
      return Truth(left) ? Eval(*expr.children[1]) : left;
    }
    case Kind::kOr: {
      Value left = Eval(*expr.children[0]);
      return Truth(left) || failed() ? left : Eval(*expr.children[1]);
    }
    case Kind::kNot:
      return !Truth(Eval(*expr.children[0]));
    case Kind::kCompare:
      return EvalCompare(expr);
    case Kind::kBinary:
      return EvalBinary(expr);
    case Kind::kConcat: {
      std::string text;
      for (const ExprPtr& child : expr.children) {
        const std::string part = Str(Eval(*child));
        if (!ChargeString(text.size() + part.size())) return {};
        text += part;
      }
      return MakeStr(std::move(text));
    }
    case Kind::kNeg:
    case Kind::kPos: {
      const Value value = Eval(*expr.children[0]);
      if (failed()) return {};
      if (const Undefined* undefined = value.AsUndefined()) {
        return Fail(undefined->message);
      }
      if (!value.IsNumber()) {
        return Fail(absl::StrCat("bad operand type for unary ",
                                 expr.kind == Kind::kNeg ? "-" : "+", ": '",
                                 TypeName(value), "'"));
      }
      const bool negate = expr.kind == Kind::kNeg;
      if (value.IsFloat()) {
        return negate ? -value.float_value() : value.float_value();
      }
      return Multiply(*this, value, Value(negate ? -1 : 1));
    }
    case Kind::kGetattr:
      return GetAttr(Eval(*expr.children[0]), expr.name);
    case Kind::kGetitem: {
      const Value object = Eval(*expr.children[0]);
      const Expr& key = *expr.children[1];
      if (key.kind == Kind::kSlice) return EvalSlice(object, key);
      return GetItem(object, Eval(key));
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
    case Kind::kTest: {
      const Value operand = Eval(*expr.children[0]);
      const CallArgs args = EvalArguments(expr.arguments);
      line_ = expr.line;
      if (failed() || !ChargeBytes(ExtentOf(operand).size)) return {};
      return CallTest(*this, expr.name, operand, args);
    }
  }
  return {};
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
    bool holds = false;
    switch (expr.compare_ops[i]) {
      case CompareOp::kEq:
        holds = Equal(left, right);
        break;
      case CompareOp::kNe:
        holds = !Equal(left, right);
        break;
      case CompareOp::kLt:
        holds = Compare(*this, left, right) == -1;
        break;
      case CompareOp::kLe: {
        const int order = Compare(*this, left, right);
        holds = order == -1 || order == 0;
        break;
      }
      case CompareOp::kGt:
        holds = Compare(*this, left, right) == 1;
        break;
      case CompareOp::kGe: {
        const int order = Compare(*this, left, right);
        holds = order == 1 || order == 0;
        break;
      }
      case CompareOp::kIn:
        holds = Contains(*this, right, left);
        break;
      case CompareOp::kNotIn:
        holds = !Contains(*this, right, left);
        break;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::EvalSlice(const Value& object, const Expr& slice) {
  // Python's slice.indices.
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
  const bool is_view = seq != nullptr && (seq->kind == SeqKind::kKeys ||
                                          seq->kind == SeqKind::kValues ||
                                          seq->kind == SeqKind::kItems);
  if ((str == nullptr && seq == nullptr) || is_view) {
    return Fail(
        object.IsUndefined()
            ? object.AsUndefined()->message
            : absl::StrCat("'", TypeName(object), "' object cannot be sliced"));
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
  // A step that leaps over everything must not overflow.
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
  for (const ExprPtr& e : arguments.positional) {
    args.positional.push_back(Eval(*e));
  }
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

// A chain of filters whose innermost operand is left out.
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
  if (failed()) return {};
  if (const Undefined* undefined = callee.AsUndefined()) {
    return Fail(undefined->message);
  }
  if (Loop* loop = callee.AsLoop()) return CallLoop(*loop, args);
  const Callable* callable = callee.AsCallable();
  if (callable == nullptr) {
    return Fail(
        absl::StrCat("'", TypeName(callee), "' object is not callable"));
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

  Scope* const outer = scope_;
  const size_t mark = scopes_.size();
  const size_t macros = macros_made_;
  Scope* const scope = PushScope(callable.scope, macro.unset_names);
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
    return Fail(absl::StrCat("macro '", macro.name,
                             "' takes no keyword argument '",
                             args.keywords[0].first, "'"));
  }
  if (macro.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = num_parameters; i < args.positional.size(); ++i) {
      rest.push_back(args.positional[i]);
    }
    scope->variables["varargs"] = MakeTuple(std::move(rest));
  } else if (args.positional.size() > num_parameters) {
    return Fail(absl::StrCat("macro '", macro.name, "' takes not more than ",
                             num_parameters, " argument(s)"));
  }

  scope_ = scope;
  const size_t first_default = num_parameters - macro.defaults.size();
  for (const size_t i : missing) {
    if (i < first_default) continue;
    Value value = Eval(*macro.defaults[i - first_default]);
    scope->variables[macro.parameters[i]] = std::move(value);
  }
  std::string text;
  std::string* const outer_out = std::exchange(out_, &text);
  Exec(macro.body);
  out_ = outer_out;
  scope_ = outer;
  if (macros == macros_made_) PopScope(mark);
  return MakeStr(std::move(text));
}

Value Interpreter::CallLoop(Loop& loop, const CallArgs& args) {
  if (loop.recursive == nullptr) {
    return Fail(
        "the loop must have the 'recursive' marker to be called recursively");
  }
  if (args.positional.size() != 1 || !args.keywords.empty()) {
    return Fail("loop() takes one argument");
  }
  std::string text;
  std::string* const outer_out = std::exchange(out_, &text);
  ExecFor(*loop.recursive, loop.scope, Items(args.positional[0]),
          loop.depth + 1);
  out_ = outer_out;
  return MakeStr(std::move(text));
}

}  // namespace sluice::jinja
