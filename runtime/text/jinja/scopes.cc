#include "runtime/text/jinja/scopes.h"

#include <map>
#include <set>

namespace sluice::jinja {
namespace {

enum class Load { kParameter, kResolve, kAlias, kUndefined };

// The equivalent of jinja2.idtracking.Symbols.
struct Symbols {
  const Symbols* parent = nullptr;  // the scope around this one
  // The same scope before an if statement, for one of its branches; this object
  // then has only what the branch adds.
  const Symbols* base = nullptr;
  std::map<std::string, Load> refs;
  std::set<std::string> stores;

  bool Refers(const std::string& name) const {
    return refs.count(name) != 0 || (base != nullptr && base->Refers(name));
  }
  bool Stores(const std::string& name) const {
    return stores.count(name) != 0 || (base != nullptr && base->Stores(name));
  }
  bool Knows(const std::string& name) const {
    return Refers(name) || OuterKnows(name);
  }
  bool OuterKnows(const std::string& name) const {
    return parent != nullptr && parent->Knows(name);
  }
  void Parameter(const std::string& name) {
    stores.insert(name);
    refs[name] = Load::kParameter;
  }
  void Read(const std::string& name) {
    if (!Knows(name)) refs[name] = Load::kResolve;
  }
  void Set(const std::string& name) {
    stores.insert(name);
    if (Refers(name)) return;
    refs[name] = OuterKnows(name) ? Load::kAlias : Load::kUndefined;
  }
  // Merges an if statement's three branches: body, elif, else.
  void Merge(const std::vector<Symbols>& branches) {
    std::map<std::string, size_t> set_in;
    for (const Symbols& branch : branches) {
      for (const std::string& name : branch.stores) {
        if (!Stores(name)) ++set_in[name];
      }
    }
    for (const Symbols& branch : branches) {
      for (const auto& [name, load] : branch.refs) refs[name] = load;
      stores.insert(branch.stores.begin(), branch.stores.end());
    }
    for (const auto& [name, count] : set_in) {
      if (count == branches.size()) continue;
      refs[name] = OuterKnows(name) ? Load::kAlias : Load::kResolve;
    }
  }
  std::vector<Symbols> Branches() const {
    return std::vector<Symbols>(3, Symbols{parent, this, {}, {}});
  }
  std::vector<std::string> Unset() const {
    std::vector<std::string> names;
    for (const auto& [name, load] : refs) {
      if (load == Load::kUndefined) names.push_back(name);
    }
    return names;
  }
};

void ReadExpr(const Expr* expr, Symbols& symbols) {
  if (expr == nullptr) return;
  if (expr->kind == Expr::Kind::kName) symbols.Read(expr->name);
  ForEachChild(*expr, [&](const Expr& child) { ReadExpr(&child, symbols); });
}

void SetTarget(const Expr& target, Symbols& symbols, bool parameter) {
  if (target.kind == Expr::Kind::kNsRef) {
    symbols.Read(target.name);
  } else if (target.kind == Expr::Kind::kName) {
    if (parameter) {
      symbols.Parameter(target.name);
    } else {
      symbols.Set(target.name);
    }
  }
  for (const ExprPtr& child : target.children) {
    SetTarget(*child, symbols, parameter);
  }
}

void ReadBlock(const Block& block, Symbols& symbols);

// Adds a statement's effects on its scope; Descend handles scopes within it.
void ReadStmt(const Stmt& stmt, Symbols& symbols) {
  switch (stmt.kind) {
    case Stmt::Kind::kPrint:
    case Stmt::Kind::kFor:
    case Stmt::Kind::kCall:
    case Stmt::Kind::kFilter:
      ReadExpr(stmt.expr.get(), symbols);
      break;
    case Stmt::Kind::kSet:
      ReadExpr(stmt.expr.get(), symbols);
      SetTarget(*stmt.target, symbols, false);
      break;
    case Stmt::Kind::kSetBlock:
      SetTarget(*stmt.target, symbols, false);
      break;
    case Stmt::Kind::kMacro:
      symbols.Set(stmt.macro->name);
      break;
    case Stmt::Kind::kWith:
      for (const auto& [target, value] : stmt.assignments) {
        ReadExpr(value.get(), symbols);
      }
      break;
    case Stmt::Kind::kIf: {
      ReadExpr(stmt.branches[0].first.get(), symbols);
      std::vector<Symbols> branches = symbols.Branches();
      ReadBlock(stmt.branches[0].second, branches[0]);
      for (size_t i = 1; i < stmt.branches.size(); ++i) {
        // Each elif is an if statement of its own, without elif and else.
        ReadExpr(stmt.branches[i].first.get(), branches[1]);
        std::vector<Symbols> inner = branches[1].Branches();
        ReadBlock(stmt.branches[i].second, inner[0]);
        branches[1].Merge(inner);
      }
      ReadBlock(stmt.else_body, branches[2]);
      symbols.Merge(branches);
      break;
    }
    case Stmt::Kind::kText:
    case Stmt::Kind::kGeneration:
    case Stmt::Kind::kBreak:
    case Stmt::Kind::kContinue:
      break;
  }
}

void ReadBlock(const Block& block, Symbols& symbols) {
  for (const auto& stmt : block) ReadStmt(*stmt, symbols);
}

void Descend(Block& block, const Symbols& symbols);

// Finds the special names that a macro's body reads, at any depth, before it
// sets them.
class SpecialNames {
 public:
  explicit SpecialNames(MacroDef& macro) {
    pending_ = {{"caller", &macro.uses_caller},
                {"varargs", &macro.uses_varargs},
                {"kwargs", &macro.uses_kwargs}};
    for (const std::string& name : macro.parameters) pending_.erase(name);
    Walk(macro.body);
  }

 private:
  void Walk(const Expr* expr) {
    if (expr == nullptr) return;
    if (expr->kind == Expr::Kind::kName) {
      const auto it = pending_.find(expr->name);
      if (it != pending_.end()) *it->second = true;
    }
    ForEachChild(*expr, [&](const Expr& child) { Walk(&child); });
  }
  void Store(const Expr* target) {
    if (target == nullptr) return;
    if (target->kind == Expr::Kind::kName) pending_.erase(target->name);
    for (const ExprPtr& child : target->children) Store(child.get());
  }
  void Walk(const Block& block) {
    for (const auto& stmt : block) {
      Walk(stmt->expr.get());
      Walk(stmt->test.get());
      Store(stmt->target.get());
      for (const auto& [test, body] : stmt->branches) {
        Walk(test.get());
        Walk(body);
      }
      for (const auto& [target, value] : stmt->assignments) {
        Walk(value.get());
        Store(target.get());
      }
      if (stmt->macro != nullptr) {
        for (const ExprPtr& e : stmt->macro->defaults) Walk(e.get());
        Walk(stmt->macro->body);
      }
      Walk(stmt->body);
      Walk(stmt->else_body);
    }
  }

  std::map<std::string, bool*> pending_;
};

void EnterMacro(MacroDef& macro, const Symbols& outer) {
  Symbols symbols{&outer, nullptr, {}, {}};
  for (const std::string& name : macro.parameters) symbols.Parameter(name);
  for (const ExprPtr& value : macro.defaults) ReadExpr(value.get(), symbols);
  SpecialNames special(macro);
  if (macro.uses_caller) symbols.Parameter("caller");
  if (macro.uses_varargs) symbols.Parameter("varargs");
  if (macro.uses_kwargs) symbols.Parameter("kwargs");
  ReadBlock(macro.body, symbols);
  macro.unset_names = symbols.Unset();
  Descend(macro.body, symbols);
}

// Resolves a body that is a scope of its own.
std::vector<std::string> EnterBlock(Block& body, Symbols& symbols) {
  ReadBlock(body, symbols);
  Descend(body, symbols);
  return symbols.Unset();
}

// Resolves the scopes within the statements of a scope.
void Descend(Block& block, const Symbols& symbols) {
  for (const auto& stmt : block) {
    Symbols inner{&symbols, nullptr, {}, {}};
    switch (stmt->kind) {
      case Stmt::Kind::kFor: {
        SetTarget(*stmt->target, inner, true);
        inner.Parameter("loop");
        stmt->unset_names = EnterBlock(stmt->body, inner);
        Symbols otherwise{&symbols, nullptr, {}, {}};
        stmt->else_unset_names = EnterBlock(stmt->else_body, otherwise);
        break;
      }
      case Stmt::Kind::kIf:
        for (auto& [test, body] : stmt->branches) Descend(body, symbols);
        Descend(stmt->else_body, symbols);
        break;
      case Stmt::Kind::kWith:
        for (const auto& [target, value] : stmt->assignments) {
          SetTarget(*target, inner, true);
        }
        stmt->unset_names = EnterBlock(stmt->body, inner);
        break;
      case Stmt::Kind::kSetBlock:
      case Stmt::Kind::kFilter:
      case Stmt::Kind::kGeneration:
        stmt->unset_names = EnterBlock(stmt->body, inner);
        break;
      case Stmt::Kind::kMacro:
      case Stmt::Kind::kCall:
        EnterMacro(*stmt->macro, symbols);
        break;
      default:
        break;
    }
  }
}

}  // namespace

void ResolveScopes(Template& parsed) {
  Symbols root;
  parsed.unset_names = EnterBlock(parsed.body, root);
}

}  // namespace sluice::jinja
