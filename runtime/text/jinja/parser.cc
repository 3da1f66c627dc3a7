// This file is long because the grammar is one set of recursive functions.

#include "runtime/text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/lexer.h"
#include "runtime/text/jinja/scopes.h"

namespace sluice::jinja {
namespace {

// The limit for expressions and statements, on which tree walks rely.
constexpr int kMaxNesting = 150;
constexpr int kMaxHeight = 200;
constexpr size_t kMaxSourceBytes = size_t{4} << 20;

using Kind = Expr::Kind;

// A recursive-descent parser, one method per rule of jinja2.parser. The first
// error sticks: from then on the current token is the end of the template, so
// that every loop and rule ends.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<std::unique_ptr<const Template>> Run() {
    auto result = std::make_unique<Template>();
    result->body = ParseBlock({});
    if (!status_.ok()) return status_;
    return result;
  }

 private:
  class Nesting {
   public:
    explicit Nesting(Parser* parser) : parser_(parser) {
      if (++parser_->nesting_ > kMaxNesting) {
        parser_->Fail("the template is nested too deeply");
      }
    }
    ~Nesting() { --parser_->nesting_; }

   private:
    Parser* parser_;
  };

  // --- Tokens.

  const Token& Current() const {
    return status_.ok() ? tokens_[pos_] : tokens_.back();
  }
  const Token& Look() const {
    return tokens_[std::min(pos_ + 1, tokens_.size() - 1)];
  }
  void Next() {
    if (pos_ + 1 < tokens_.size()) ++pos_;
  }
  bool IsOp(absl::string_view op) const {
    return Current().kind == TokenKind::kOperator && Current().text == op;
  }
  bool IsName(absl::string_view name) const {
    return Current().kind == TokenKind::kName && Current().text == name;
  }
  bool SkipOp(absl::string_view op) {
    if (!IsOp(op)) return false;
    Next();
    return true;
  }
  bool SkipName(absl::string_view name) {
    if (!IsName(name)) return false;
    Next();
    return true;
  }
  static std::string Describe(const Token& token) {
    static constexpr std::pair<TokenKind, const char*> kNames[] = {
        {TokenKind::kData, "template text"},
        {TokenKind::kVariableBegin, "begin of print statement"},
        {TokenKind::kVariableEnd, "end of print statement"},
        {TokenKind::kBlockBegin, "begin of statement block"},
        {TokenKind::kBlockEnd, "end of statement block"},
        {TokenKind::kString, "a string"},
        {TokenKind::kEof, "end of template"}};
    for (const auto& [kind, name] : kNames) {
      if (token.kind == kind) return name;
    }
    return absl::StrCat("'", token.text, "'");
  }
  void Fail(const auto&... message) {
    if (!status_.ok()) return;
    status_ = InvalidArgument("line ", tokens_[pos_].line, ": ", message...);
  }
  void Unsupported(const auto&... what) {
    if (!status_.ok()) return;
    status_ = Unimplemented("line ", tokens_[pos_].line, ": ", what...,
                            " is not supported");
  }
  void ExpectOp(absl::string_view op) {
    if (SkipOp(op)) return;
    Fail("expected '", op, "', got ", Describe(Current()));
  }
  void ExpectName(absl::string_view name) {
    if (SkipName(name)) return;
    Fail("expected '", name, "', got ", Describe(Current()));
  }
  void Expect(TokenKind kind, absl::string_view what) {
    if (Current().kind == kind && status_.ok()) {
      Next();
      return;
    }
    Fail("expected ", what, ", got ", Describe(Current()));
  }
  std::string TakeName() {
    std::string name = Current().text;
    Expect(TokenKind::kName, "a name");
    return name;
  }

  ExprPtr Make(Kind kind, int line) {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    return expr;
  }
  template <typename... Children>
  ExprPtr Make(Kind kind, int line, Children... children) {
    ExprPtr expr = Make(kind, line);
    (expr->children.push_back(std::move(children)), ...);
    return Measured(std::move(expr));
  }
  // Sets the height. Left-growing chains ("a + b + c", "a.b.c", "a | b | c")
  // make tall trees without nesting the parser.
  ExprPtr Measured(ExprPtr expr) {
    ForEachChild(*expr, [&](const Expr& child) {
      expr->height = std::max(expr->height, child.height + 1);
    });
    if (expr->height > kMaxHeight) Fail("the expression is too long");
    return expr;
  }
  std::unique_ptr<Stmt> MakeStmt(Stmt::Kind kind) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = Current().line;
    return stmt;
  }

  // --- Statements.

  // Parses up to one of `ends` (which stays the current token) or, without any,
  // to the end of the template.
  Block ParseBlock(std::initializer_list<absl::string_view> ends) {
    const Nesting nesting(this);
    Block block;
    while (status_.ok()) {
      const Token& token = Current();
      switch (token.kind) {
        case TokenKind::kData: {
          auto stmt = MakeStmt(Stmt::Kind::kText);
          stmt->text = token.text;
          block.push_back(std::move(stmt));
          Next();
          break;
        }
        case TokenKind::kVariableBegin: {
          auto stmt = MakeStmt(Stmt::Kind::kPrint);
          Next();
          stmt->expr = ParseTuple({});
          Expect(TokenKind::kVariableEnd, "'}}'");
          block.push_back(std::move(stmt));
          break;
        }
        case TokenKind::kBlockBegin: {
          Next();
          for (const absl::string_view end : ends) {
            if (IsName(end)) return block;
          }
          if (auto stmt = ParseStatement()) block.push_back(std::move(stmt));
          Expect(TokenKind::kBlockEnd, "'%}'");
          break;
        }
        default:
          if (ends.size() != 0) {
            std::string wanted;
            for (const absl::string_view end : ends) {
              absl::StrAppend(&wanted, wanted.empty() ? "'" : " or '", end,
                              "'");
            }
            Fail("unexpected end of template, looking for ", wanted);
          }
          return block;
      }
    }
    return block;
  }

  // Parses the body of a statement: maybe a colon, the tag's end, statements.
  Block ParseBody(std::initializer_list<absl::string_view> ends) {
    SkipOp(":");
    Expect(TokenKind::kBlockEnd, "'%}'");
    return ParseBlock(ends);
  }
  Block ParseBodyTo(absl::string_view end) {
    Block block = ParseBody({end});
    ExpectName(end);
    return block;
  }

  std::unique_ptr<Stmt> ParseStatement() {
    if (Current().kind != TokenKind::kName) {
      Fail("tag name expected");
      return nullptr;
    }
    const std::string tag = Current().text;
    if (tag == "for") return ParseFor();
    if (tag == "if") return ParseIf();
    if (tag == "set") return ParseSet();
    if (tag == "macro") return ParseMacro();
    if (tag == "call") return ParseCallBlock();
    if (tag == "filter") return ParseFilterBlock();
    if (tag == "with") return ParseWith();
    if (tag == "print") return ParsePrint();
    if (tag == "generation") {
      auto stmt = MakeStmt(Stmt::Kind::kGeneration);
      Next();
      stmt->body = ParseInner("endgeneration");
      return stmt;
    }
    if (tag == "break" || tag == "continue") {
      auto stmt =
          MakeStmt(tag == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue);
      if (loops_ == 0) Fail("'", tag, "' outside of a loop");
      Next();
      return stmt;
    }
    for (const absl::string_view known :
         {"block", "extends", "include", "import", "from", "autoescape"}) {
      if (tag == known) {
        Unsupported("the tag '", tag, "'");
        return nullptr;
      }
    }
    Fail("encountered unknown tag '", tag, "'");
    return nullptr;
  }

  std::unique_ptr<Stmt> ParseFor() {
    auto stmt = MakeStmt(Stmt::Kind::kFor);
    Next();
    stmt->target = ParseAssignTarget("in", /*with_namespace=*/false);
    ExpectName("in");
    stmt->expr = ParseTuple({.conditional = false, .end_name = "recursive"});
    if (SkipName("if")) stmt->test = ParseExpression();
    stmt->recursive = SkipName("recursive");
    ++loops_;
    stmt->body = ParseBody({"endfor", "else"});
    --loops_;
    if (SkipName("else")) {
      stmt->else_body = ParseBodyTo("endfor");
    } else {
      ExpectName("endfor");
    }
    return stmt;
  }

  std::unique_ptr<Stmt> ParseIf() {
    auto stmt = MakeStmt(Stmt::Kind::kIf);
    Next();
    while (status_.ok()) {
      ExprPtr test = ParseTuple({.conditional = false});
      ++conditional_;
      stmt->branches.emplace_back(std::move(test),
                                  ParseBody({"elif", "else", "endif"}));
      --conditional_;
      if (SkipName("elif")) continue;
      if (SkipName("else")) {
        ++conditional_;
        stmt->else_body = ParseBodyTo("endif");
        --conditional_;
      } else {
        ExpectName("endif");
      }
      break;
    }
    return stmt;
  }

  std::unique_ptr<Stmt> ParseSet() {
    auto stmt = MakeStmt(Stmt::Kind::kSet);
    Next();
    stmt->target = ParseAssignTarget("", /*with_namespace=*/true);
    if (SkipOp("=")) {
      stmt->expr = ParseTuple({});
      return stmt;
    }
    stmt->kind = Stmt::Kind::kSetBlock;
    stmt->expr = ParseFilters(nullptr);
    stmt->body = ParseInner("endset");
    return stmt;
  }

  // Parses a body that Jinja compiles to a function of its own: loops outside
  // of it cannot be left from within.
  Block ParseInner(absl::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Block block = ParseBodyTo(end);
    loops_ = loops;
    return block;
  }

  void ParseSignature(MacroDef& macro) {
    ExpectOp("(");
    while (status_.ok() && !IsOp(")")) {
      if (!macro.parameters.empty()) ExpectOp(",");
      macro.parameters.push_back(TakeName());
      if (SkipOp("=")) {
        macro.defaults.push_back(ParseExpression());
      } else if (!macro.defaults.empty()) {
        Fail("non-default argument follows default argument");
      }
    }
    ExpectOp(")");
  }

  std::unique_ptr<Stmt> ParseMacro() {
    auto stmt = MakeStmt(Stmt::Kind::kMacro);
    Next();
    stmt->macro = std::make_unique<MacroDef>();
    stmt->macro->name = TakeName();
    ParseSignature(*stmt->macro);
    stmt->macro->body = ParseInner("endmacro");
    return stmt;
  }

  std::unique_ptr<Stmt> ParseCallBlock() {
    auto stmt = MakeStmt(Stmt::Kind::kCall);
    Next();
    stmt->macro = std::make_unique<MacroDef>();
    stmt->macro->name = "caller";
    if (IsOp("(")) ParseSignature(*stmt->macro);
    stmt->expr = ParseExpression();
    if (status_.ok() && stmt->expr->kind != Kind::kCall) Fail("expected call");
    stmt->macro->body = ParseInner("endcall");
    return stmt;
  }

  std::unique_ptr<Stmt> ParseFilterBlock() {
    auto stmt = MakeStmt(Stmt::Kind::kFilter);
    Next();
    stmt->expr = ParseFilters(ParseOneFilter(nullptr));
    stmt->body = ParseInner("endfilter");
    return stmt;
  }

  std::unique_ptr<Stmt> ParseWith() {
    auto stmt = MakeStmt(Stmt::Kind::kWith);
    Next();
    while (status_.ok() && Current().kind != TokenKind::kBlockEnd) {
      if (!stmt->assignments.empty()) ExpectOp(",");
      ExprPtr target = ParseAssignTarget("", /*with_namespace=*/false);
      ExpectOp("=");
      stmt->assignments.emplace_back(std::move(target), ParseExpression());
    }
    stmt->body = ParseBodyTo("endwith");
    return stmt;
  }

  std::unique_ptr<Stmt> ParsePrint() {
    auto stmt = MakeStmt(Stmt::Kind::kPrint);
    Next();
    ExprPtr all = Make(Kind::kConcat, Current().line);
    while (status_.ok() && Current().kind != TokenKind::kBlockEnd) {
      if (!all->children.empty()) ExpectOp(",");
      all->children.push_back(ParseExpression());
    }
    stmt->expr = Measured(std::move(all));
    return stmt;
  }

  ExprPtr ParseAssignTarget(absl::string_view end_name, bool with_namespace) {
    ExprPtr target = ParseTuple({.simplified = true,
                                 .with_namespace = with_namespace,
                                 .end_name = end_name});
    CheckAssignable(*target);
    return target;
  }
  void CheckAssignable(const Expr& target) {
    if (target.kind == Kind::kTuple) {
      for (const ExprPtr& child : target.children) CheckAssignable(*child);
    } else if (target.kind != Kind::kName && target.kind != Kind::kNsRef) {
      Fail("can't assign to this expression");
    }
  }

  // --- Expressions.

  struct TupleOptions {
    bool simplified = false;  // names and literals only
    bool conditional = true;  // "a if b" allowed
    bool parentheses = false;
    bool with_namespace = false;
    absl::string_view end_name = "";  // a name that ends the tuple
  };

  // Expressions separated by commas make a tuple, a single one stays as it is.
  ExprPtr ParseTuple(const TupleOptions& options) {
    const Nesting nesting(this);
    const int line = Current().line;
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    while (status_.ok()) {
      if (!items.empty()) ExpectOp(",");
      if (Current().kind == TokenKind::kVariableEnd ||
          Current().kind == TokenKind::kBlockEnd || IsOp(")") ||
          (!options.end_name.empty() && IsName(options.end_name))) {
        break;
      }
      items.push_back(options.simplified ? ParsePrimary(options.with_namespace)
                      : options.conditional ? ParseExpression()
                                            : ParseOr());
      if (!IsOp(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return std::move(items[0]);
    if (!is_tuple && !options.parentheses) {
      Fail("expected an expression, got ", Describe(Current()));
    }
    ExprPtr tuple = Make(Kind::kTuple, line);
    tuple->children = std::move(items);
    return Measured(std::move(tuple));
  }

  ExprPtr ParseExpression() {
    const Nesting nesting(this);
    int line = Current().line;
    ExprPtr expr = ParseOr();
    while (SkipName("if")) {
      ++conditional_;
      ExprPtr test = ParseOr();
      ExprPtr otherwise;
      if (SkipName("else")) otherwise = ParseExpression();
      --conditional_;
      expr = Make(Kind::kCond, line, std::move(test), std::move(expr),
                  std::move(otherwise));
      line = Current().line;
    }
    return expr;
  }

  // A level of left-associative operators or, if it makes no kBinary, of words.
  struct Infix {
    absl::string_view text;
    Kind kind;
    BinaryOp op = {};
  };
  ExprPtr ParseChain(std::initializer_list<Infix> infixes,
                     ExprPtr (Parser::*operand)()) {
    ExprPtr left = (this->*operand)();
    while (true) {
      const auto* infix =
          std::find_if(infixes.begin(), infixes.end(), [&](const Infix& known) {
            return known.kind == Kind::kBinary ? IsOp(known.text)
                                               : IsName(known.text);
          });
      if (infix == infixes.end()) return left;
      const int line = Current().line;
      Next();
      left = Make(infix->kind, line, std::move(left), (this->*operand)());
      left->binary_op = infix->op;
    }
  }

  ExprPtr ParseOr() {
    return ParseChain({{"or", Kind::kOr}}, &Parser::ParseAnd);
  }
  ExprPtr ParseAnd() {
    return ParseChain({{"and", Kind::kAnd}}, &Parser::ParseNot);
  }

  ExprPtr ParseNot() {
    const Nesting nesting(this);
    if (!IsName("not")) return ParseCompare();
    const int line = Current().line;
    Next();
    return Make(Kind::kNot, line, ParseNot());
  }

  ExprPtr ParseCompare() {
    static constexpr std::pair<absl::string_view, CompareOp> kOps[] = {
        {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
        {"<=", CompareOp::kLe}, {">", CompareOp::kGt},  {">=", CompareOp::kGe},
    };
    const int line = Current().line;
    ExprPtr first = ParseSum();
    ExprPtr compare;
    while (status_.ok()) {
      const auto* op =
          std::find_if(std::begin(kOps), std::end(kOps),
                       [&](const auto& known) { return IsOp(known.first); });
      CompareOp which;
      if (op != std::end(kOps)) {
        which = op->second;
        Next();
      } else if (SkipName("in")) {
        which = CompareOp::kIn;
      } else if (IsName("not") && Look().kind == TokenKind::kName &&
                 Look().text == "in") {
        Next();
        Next();
        which = CompareOp::kNotIn;
      } else {
        break;
      }
      if (compare == nullptr) {
        compare = Make(Kind::kCompare, line, std::move(first));
      }
      compare->compare_ops.push_back(which);
      compare->children.push_back(ParseSum());
    }
    return compare != nullptr ? Measured(std::move(compare)) : std::move(first);
  }

  ExprPtr ParseSum() {
    return ParseChain({{"+", Kind::kBinary, BinaryOp::kAdd},
                       {"-", Kind::kBinary, BinaryOp::kSub}},
                      &Parser::ParseConcat);
  }

  ExprPtr ParseConcat() {
    const int line = Current().line;
    ExprPtr first = ParseProduct();
    if (!IsOp("~")) return first;
    ExprPtr concat = Make(Kind::kConcat, line, std::move(first));
    while (SkipOp("~")) concat->children.push_back(ParseProduct());
    return Measured(std::move(concat));
  }

  ExprPtr ParseProduct() {
    return ParseChain({{"*", Kind::kBinary, BinaryOp::kMul},
                       {"/", Kind::kBinary, BinaryOp::kDiv},
                       {"//", Kind::kBinary, BinaryOp::kFloorDiv},
                       {"%", Kind::kBinary, BinaryOp::kMod}},
                      &Parser::ParsePower);
  }

  ExprPtr ParsePower() {
    return ParseChain({{"**", Kind::kBinary, BinaryOp::kPow}},
                      &Parser::ParseOperand);
  }

  ExprPtr ParseOperand() { return ParseUnary(/*with_filter=*/true); }

  ExprPtr ParseUnary(bool with_filter) {
    const Nesting nesting(this);
    const int line = Current().line;
    ExprPtr expr;
    if (SkipOp("-")) {
      expr = Make(Kind::kNeg, line, ParseUnary(false));
    } else if (SkipOp("+")) {
      expr = Make(Kind::kPos, line, ParseUnary(false));
    } else {
      expr = ParsePrimary(false);
    }
    expr = ParsePostfix(std::move(expr));
    if (with_filter) expr = ParseFilterExpr(std::move(expr));
    return expr;
  }

  ExprPtr ParsePrimary(bool with_namespace) {
    const Nesting nesting(this);
    const Token token = Current();
    const auto constant = [&](Value value) {
      ExprPtr expr = Make(Kind::kConst, token.line);
      expr->value = std::move(value);
      return expr;
    };
    if (token.kind == TokenKind::kName) {
      Next();
      if (token.text == "true" || token.text == "True") return constant(true);
      if (token.text == "false" || token.text == "False") {
        return constant(false);
      }
      if (token.text == "none" || token.text == "None") return constant(None());
      ExprPtr expr = Make(Kind::kName, token.line);
      expr->name = token.text;
      if (with_namespace && SkipOp(".")) {
        expr->kind = Kind::kNsRef;
        expr->attribute = TakeName();
      }
      return expr;
    }
    if (token.kind == TokenKind::kString) {
      std::string text;
      while (Current().kind == TokenKind::kString) {
        text += Current().text;
        Next();
      }
      return constant(MakeStr(std::move(text)));
    }
    if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) {
      Next();
      return constant(token.number);
    }
    if (SkipOp("(")) {
      ExprPtr expr = ParseTuple({.parentheses = true});
      ExpectOp(")");
      return expr;
    }
    if (SkipOp("[")) {
      ExprPtr list = Make(Kind::kList, token.line);
      while (status_.ok() && !IsOp("]")) {
        if (!list->children.empty()) ExpectOp(",");
        if (IsOp("]")) break;
        list->children.push_back(ParseExpression());
      }
      ExpectOp("]");
      return Measured(std::move(list));
    }
    if (SkipOp("{")) {
      ExprPtr dict = Make(Kind::kDict, token.line);
      while (status_.ok() && !IsOp("}")) {
        if (!dict->children.empty()) ExpectOp(",");
        if (IsOp("}")) break;
        dict->children.push_back(ParseExpression());
        ExpectOp(":");
        dict->children.push_back(ParseExpression());
      }
      ExpectOp("}");
      return Measured(std::move(dict));
    }
    Fail("unexpected ", Describe(token));
    return Make(Kind::kConst, token.line);
  }

  ExprPtr ParsePostfix(ExprPtr expr) {
    while (status_.ok()) {
      if (IsOp(".") || IsOp("[")) {
        expr = ParseSubscript(std::move(expr));
      } else if (IsOp("(")) {
        expr = ParseCall(std::move(expr));
      } else {
        break;
      }
    }
    return expr;
  }

  ExprPtr ParseFilterExpr(ExprPtr expr) {
    while (status_.ok()) {
      if (IsOp("|")) {
        Next();
        expr = ParseOneFilter(std::move(expr));
      } else if (IsName("is")) {
        expr = ParseTest(std::move(expr));
      } else if (IsOp("(")) {
        expr = ParseCall(std::move(expr));
      } else {
        break;
      }
    }
    return expr;
  }

  ExprPtr ParseSubscript(ExprPtr object) {
    const int line = Current().line;
    if (SkipOp(".")) {
      const Token token = Current();
      Next();
      if (token.kind == TokenKind::kName) {
        ExprPtr expr = Make(Kind::kGetattr, line, std::move(object));
        expr->name = token.text;
        return expr;
      }
      if (token.kind != TokenKind::kInteger) Fail("expected name or number");
      ExprPtr key = Make(Kind::kConst, token.line);
      key->value = token.number;
      return Make(Kind::kGetitem, line, std::move(object), std::move(key));
    }
    ExpectOp("[");
    std::vector<ExprPtr> keys;
    while (status_.ok() && !IsOp("]")) {
      if (!keys.empty()) ExpectOp(",");
      keys.push_back(ParseSubscribed());
    }
    ExpectOp("]");
    if (keys.size() == 1) {
      return Make(Kind::kGetitem, line, std::move(object), std::move(keys[0]));
    }
    ExprPtr tuple = Make(Kind::kTuple, line);
    for (const ExprPtr& key : keys) {
      if (key->kind == Kind::kSlice) Unsupported("a slice among several keys");
    }
    tuple->children = std::move(keys);
    tuple = Measured(std::move(tuple));
    return Make(Kind::kGetitem, line, std::move(object), std::move(tuple));
  }

  ExprPtr ParseSubscribed() {
    const int line = Current().line;
    ExprPtr start;
    if (!IsOp(":")) {
      start = ParseExpression();
      if (!IsOp(":")) return start;
    }
    ExpectOp(":");
    ExprPtr stop, step;
    const auto at_end = [&] { return IsOp("]") || IsOp(","); };
    if (!IsOp(":") && !at_end()) stop = ParseExpression();
    if (SkipOp(":") && !at_end()) step = ParseExpression();
    return Make(Kind::kSlice, line, std::move(start), std::move(stop),
                std::move(step));
  }

  Arguments ParseArguments() {
    Arguments arguments;
    ExpectOp("(");
    bool first = true;
    const auto ensure = [&](bool ok) {
      if (!ok) Fail("invalid syntax for function call expression");
    };
    while (status_.ok() && !IsOp(")")) {
      if (!std::exchange(first, false)) {
        ExpectOp(",");
        if (IsOp(")")) break;
      }
      if (SkipOp("*")) {
        ensure(!arguments.star && !arguments.star_star);
        arguments.star = ParseExpression();
      } else if (SkipOp("**")) {
        ensure(!arguments.star_star);
        arguments.star_star = ParseExpression();
      } else if (Current().kind == TokenKind::kName &&
                 Look().kind == TokenKind::kOperator && Look().text == "=") {
        ensure(!arguments.star_star);
        std::string name = TakeName();
        ExpectOp("=");
        arguments.keywords.emplace_back(std::move(name), ParseExpression());
      } else {
        ensure(!arguments.star && !arguments.star_star &&
               arguments.keywords.empty());
        arguments.positional.push_back(ParseExpression());
      }
    }
    ExpectOp(")");
    return arguments;
  }

  ExprPtr ParseCall(ExprPtr callee) {
    ExprPtr call = Make(Kind::kCall, Current().line, std::move(callee));
    call->arguments = ParseArguments();
    return Measured(std::move(call));
  }

  std::string TakeDottedName() {
    std::string name = TakeName();
    while (SkipOp(".")) absl::StrAppend(&name, ".", TakeName());
    return name;
  }

  // Parses a filter after the "|".
  ExprPtr ParseOneFilter(ExprPtr operand) {
    ExprPtr filter = Make(Kind::kFilter, Current().line, std::move(operand));
    filter->name = TakeDottedName();
    if (IsUnsupportedFilter(filter->name)) {
      Unsupported("the filter '", filter->name, "'");
    } else if (!IsFilter(filter->name) && conditional_ == 0) {
      // Within a condition it is an error only if the filter is reached.
      Fail("no filter named '", filter->name, "'");
    }
    if (IsOp("(")) filter->arguments = ParseArguments();
    return Measured(std::move(filter));
  }

  // Parses any number of "|filter"; null if there is none and no operand.
  ExprPtr ParseFilters(ExprPtr operand) {
    while (SkipOp("|")) {
      operand = ParseOneFilter(std::move(operand));
    }
    return operand;
  }

  ExprPtr ParseTest(ExprPtr operand) {
    const int line = Current().line;
    Next();  // is
    const bool negated = SkipName("not");
    ExprPtr test = Make(Kind::kTest, line, std::move(operand));
    test->name = TakeDottedName();
    if (!IsTest(test->name) && conditional_ == 0) {
      Fail("no test named '", test->name, "'");
    }
    const TokenKind kind = Current().kind;
    if (IsOp("(")) {
      test->arguments = ParseArguments();
    } else if ((kind == TokenKind::kName || kind == TokenKind::kString ||
                kind == TokenKind::kInteger || kind == TokenKind::kFloat ||
                IsOp("[") || IsOp("{")) &&
               !IsName("else") && !IsName("or") && !IsName("and")) {
      if (IsName("is")) Fail("you cannot chain multiple tests with is");
      test->arguments.positional.push_back(ParsePostfix(ParsePrimary(false)));
    }
    test = Measured(std::move(test));
    if (!negated) return test;
    return Make(Kind::kNot, line, std::move(test));
  }

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  absl::Status status_;
  int nesting_ = 0;
  int conditional_ = 0;  // depth of if statements and expressions
  int loops_ = 0;        // depth of loops that break can leave
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Template>> ParseTemplate(
    absl::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return InvalidArgument("the template has ", source.size(),
                           " bytes; at most ", kMaxSourceBytes,
                           " are accepted");
  }
  SLUICE_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<const Template> parsed,
                          Parser(std::move(tokens)).Run());
  ResolveScopes(const_cast<Template&>(*parsed));
  return parsed;
}

}  // namespace sluice::jinja
