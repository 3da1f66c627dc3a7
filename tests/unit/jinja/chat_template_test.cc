#include "runtime/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

const absl::CivilSecond kNow(2025, 3, 4, 5, 6, 7);

absl::StatusOr<std::string> Render(const std::string& source,
                                   const ordered_json& variables = {
                                       {"messages", ordered_json::array()}}) {
  auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->RenderAt(variables, kNow);
}

std::string Rendered(const std::string& source,
                     const ordered_json& variables = {
                         {"messages", ordered_json::array()}}) {
  const auto text = Render(source, variables);
  EXPECT_TRUE(text.ok()) << source << "\n" << text.status();
  return text.ok() ? *text : "";
}

absl::Status ErrorOf(const std::string& source,
                     const ordered_json& variables = {
                         {"messages", ordered_json::array()}}) {
  const auto text = Render(source, variables);
  EXPECT_FALSE(text.ok()) << source << "\n" << text->substr(0, 200);
  return text.status();
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(file.good()) << path;
  return std::move(text).str();
}

std::filesystem::path Golden() {
  return std::filesystem::path(TestsDir()) / "golden" / "chat";
}

// Expects a row of cases.json or snippets.json: the text, or an error, whose
// wording counts if the template itself raised it.
void ExpectOutcome(const ordered_json& row,
                   const absl::StatusOr<std::string>& got) {
  if (row.contains("expected")) {
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, row["expected"].get<std::string>());
    return;
  }
  ASSERT_FALSE(got.ok()) << *got;
  if (row["raised_by_template"].get<bool>()) {
    EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(got.status().message(), row["error"].get<std::string>());
  }
}

TEST(ChatTemplateGolden, ConversationsRenderAsInTransformers) {
  const ordered_json cases =
      ordered_json::parse(ReadFile(Golden() / "cases.json"));
  ASSERT_GT(cases.size(), 300u);
  for (const ordered_json& row : cases) {
    SCOPED_TRACE(row["name"].get<std::string>());
    ordered_json variables = row["context"];
    variables["messages"] = row["messages"];
    ExpectOutcome(
        row, Render(ReadFile(Golden() / "templates" /
                             absl::StrCat(row["template"].get<std::string>(),
                                          ".jinja")),
                    variables));
  }
}

TEST(ChatTemplateGolden, SnippetsRenderAsInTransformers) {
  const ordered_json rows =
      ordered_json::parse(ReadFile(Golden() / "snippets.json"));
  ordered_json variables =
      ordered_json::parse(ReadFile(Golden() / "snippets_context.json"));
  variables["messages"] = ordered_json::array();
  ASSERT_GT(rows.size(), 100u);
  for (const ordered_json& row : rows) {
    const std::string source = row["template"].get<std::string>();
    SCOPED_TRACE(source);
    ExpectOutcome(row, Render(source, variables));
  }
}

// The expected texts are Python's.
TEST(ChatTemplate, SplitsAtWhiteSpaceFromEitherEnd) {
  const ordered_json s = {{"messages", ordered_json::array()},
                          {"s", "  a b\u00a0\t c  "}};
  EXPECT_EQ(Rendered("{{ s.split() }}{{ s.rsplit() }}", s),
            "['a', 'b', 'c']['a', 'b', 'c']");
  EXPECT_EQ(Rendered("{{ s.split(none, 1)|tojson }}", s),
            "[\"a\", \"b\u00a0\\t c  \"]");
  EXPECT_EQ(Rendered("{{ s.rsplit(none, 1)|tojson }}", s),
            "[\"  a b\", \"c\"]");
  EXPECT_EQ(Rendered("{{ s.rsplit(none, 2) }}{{ ' a '.rsplit(none, 1) }}", s),
            "['  a', 'b', 'c']['a']");
  EXPECT_EQ(Rendered("{{ ' a '.split(none, 0) }}{{ ' a '.rsplit(none, 0) }}"
                     "{{ ' '.split(none, 0) }}",
                     s),
            "['a '][' a'][]");
}

TEST(ChatTemplate, UndefinedKeysAreTheSame) {
  EXPECT_EQ(Rendered("{{ ['x', 'y', 'z']|unique(attribute='none')|list }}",
                     {{"messages", ordered_json::array()}}),
            "['x']");
}

// jinja2 decides at compile time: a scope's own names hide outer ones from its
// start on. The expected texts are transformers'.
TEST(ChatTemplate, ScopesAreDecidedAtCompileTime) {
  const ordered_json n = {{"messages", ordered_json::array()}, {"n", 7}};
  EXPECT_EQ(Rendered("{{ n }}{% set n = 1 %}{{ n }}", n), "71");
  EXPECT_EQ(Rendered("{% macro m() %}{{ n }}{% endmacro %}{{ m() }}"
                     "{% set n = 1 %}{{ m() }}",
                     n),
            "1");
  EXPECT_EQ(Rendered("{% for i in [1] %}{{ n }}{% endfor %}{% set n = 1 %}", n),
            "");
  EXPECT_EQ(Rendered("{% if false %}{% set n = 1 %}{% endif %}{{ n }}", n),
            "7");
  EXPECT_EQ(Rendered("{% for i in [1, 2] %}{% set n = n + i %}{{ n }} "
                     "{% endfor %}{{ n }}",
                     n),
            "8 9 7");
}

TEST(ChatTemplate, ForElseRunsWhenNoIterationEnds) {
  EXPECT_EQ(Rendered("{% for i in [1] %}{% break %}{% else %}e{% endfor %}"),
            "e");
  EXPECT_EQ(Rendered("{% for i in [1, 2] %}{% if i == 1 %}{% continue %}"
                     "{% endif %}x{% else %}e{% endfor %}"),
            "x");
}

TEST(ChatTemplate, RecursiveLoops) {
  const ordered_json variables = ordered_json::parse(
      R"({"t": [{"n": "a", "c": [{"n": "b", "c": [{"n": "d", "c": []}]},
                                 {"n": "c", "c": []}]}]})");
  EXPECT_EQ(Rendered("{% for x in t recursive %}{{ x.n }}{{ loop.depth }}"
                     "({{ loop(x.c) }}){% endfor %}",
                     variables),
            "a1(b2(d3())c2())");
  // The loop is called after its outer scope has ended.
  EXPECT_EQ(Rendered("{% set ns = namespace() %}{% for i in [1] %}"
                     "{% for x in [7] recursive %}{% set ns.l = loop %}{{ x }}"
                     "{{ i }},{% endfor %}{% endfor %}{{ ns.l([8]) }}"),
            "71,81,");
}

TEST(ChatTemplate, MacrosOutliveTheScopeTheyWereMadeIn) {
  EXPECT_EQ(Rendered("{% set ns = namespace() %}{% for i in [1, 2] %}"
                     "{% macro m() %}{{ i }}{% endmacro %}{% set ns.m = m %}"
                     "{% endfor %}{{ ns.m() }}"),
            "2");
  EXPECT_EQ(Rendered("{% set ns = namespace() %}{% macro outer(x) %}"
                     "{% macro inner() %}{{ x }}{% endmacro %}"
                     "{% set ns.f = inner %}{% endmacro %}{{ outer('deep') }}"
                     "{{ ns.f() }}"),
            "deep");
}

TEST(ChatTemplate, KeyOrderIsKept) {
  const ordered_json variables = ordered_json::parse(
      R"({"tools": [{"zeta": 1, "alpha": {"b": 1, "a": 2}}]})");
  EXPECT_EQ(Rendered("{{ tools | tojson }}", variables),
            R"([{"zeta": 1, "alpha": {"b": 1, "a": 2}}])");
}

TEST(ChatTemplate, VariablesThatTransformersAlwaysGives) {
  EXPECT_EQ(Rendered("{{ tools is none }}{{ documents is none }}"
                     "{{ add_generation_prompt }}{{ bos_token is defined }}"),
            "TrueTrueFalseFalse");
  const ordered_json variables = ordered_json::parse(
      R"({"messages": [{"role": "assistant", "thinking": "hm"},
                       {"role": "assistant", "reasoning": "ha",
                        "reasoning_content": null}]})");
  EXPECT_EQ(Rendered("{{ messages }}", variables),
            "[{'thinking': 'hm', 'role': 'assistant', 'reasoning_content': "
            "'hm'}, {'thinking': 'ha', 'role': 'assistant', 'reasoning': 'ha', "
            "'reasoning_content': 'ha'}]");
}

TEST(ChatTemplate, Numbers) {
  const ordered_json variables = ordered_json::parse(
      R"({"a": 18446744073709551615, "b": -9223372036854775808, "c": 1.0,
          "d": 1e22, "e": -0.0, "f": 123456789012345680.0})");
  EXPECT_EQ(
      Rendered("{{ a }} {{ b }} {{ c }} {{ d }} {{ e }} {{ f }}", variables),
      "18446744073709551615 -9223372036854775808 1.0 1e+22 -0.0 "
      "1.2345678901234568e+17");
  EXPECT_EQ(
      Rendered("{{ a + 1 }} {{ b * 2 }} {{ [a, c] | tojson }}", variables),
      "18446744073709551616 -18446744073709551616 "
      "[18446744073709551615, 1.0]");
}

TEST(ChatTemplate, TheRealClock) {
  auto parsed = ChatTemplate::Parse("{{ strftime_now('%Y-%m-%d') }}");
  ASSERT_TRUE(parsed.ok());
  const auto text = (*parsed)->Render(ordered_json::object());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, ::testing::MatchesRegex("20[0-9]+-[0-9]+-[0-9]+"));
}

TEST(ChatTemplate, ErrorsNameLineAndReason) {
  const std::pair<const char*, const char*> kBad[] = {
      {"a\nb\n{% if x %}", "line 3"},
      {"a\n{{ 1 + }}", "line 2"},
      {"{% endfor %}", "endfor"},
      {"{% nosuch %}", "nosuch"},
      {"{{ x | nosuch }}", "nosuch"},
      {"{{ x is nosuch }}", "nosuch"},
      {"{% for x %}{% endfor %}", "'in'"},
      {"{% set 1 = 2 %}", "assign"},
      {"{% break %}", "break"},
      {"{{ 'open }}", "line 1"},
      {"{# open", "comment"},
      {"{% raw %}", "raw"},
      {"{{ (1] }}", "]"},
      {"{{ a b }}", "'b'"},
      {"{{ f(a=1, 2) }}", "call"},
      {"{{ \"\\x4\" }}", "escape"},
      {"{{ \"\\ud800\" }}", "Unicode"},
      {"{{ $ }}", "$"},
      {"{% macro m(a=1, b) %}{% endmacro %}", "default"},
      {"\xff", "UTF-8"},
  };
  for (const auto& [source, says] : kBad) {
    const auto parsed = ChatTemplate::Parse(source);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument)
        << source;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(says))
        << source;
  }
  const std::pair<const char*, const char*> kFailing[] = {
      {"a\nb\n{{ undefined.x }}", "line 3: 'undefined' is undefined"},
      {"{{ {}.x.y }}", "no attribute 'x'"},
      {"\n{{ 1 + 'a' }}", "line 2"},
      {"{{ [1].append(2) }}", "unsafe"},
      {"{{ {'a': 1}.update({}) }}", "unsafe"},
      {"{{ nosuch() }}", "'nosuch' is undefined"},
      {"{% if true %}{{ 1 | nosuch }}{% endif %}", "nosuch"},
      {"{{ 1 / 0 }}", "zero"},
      {"{{ 2 ** 200 }}", "too large"},
      {"{% set ns = 1 %}{% set ns.x = 1 %}", "non-namespace"},
      {"{% set ns = namespace(_x=1) %}", "underscore"},
      {"{% set ns = namespace() %}{% set ns._x = 1 %}", "underscore"},
      {"{% set a, b = [1] %}", "unpack"},
      {"{{ range(100001) }}", "Range too big"},
      {"{{ range(0, 9 ** 30) }}", "oo big"},
      {"{% macro m() %}{% endmacro %}{{ m(1) }}", "m"},
      {"{{ namespace() | tojson }}", "JSON"},
  };
  for (const auto& [source, says] : kFailing) {
    const absl::Status status = ErrorOf(source);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << source;
    EXPECT_THAT(std::string(status.message()), HasSubstr(says)) << source;
  }
  EXPECT_EQ(ErrorOf("{{ raise_exception('roles!') }}").message(), "roles!");
}

TEST(ChatTemplate, UnsupportedConstructsAreNamed) {
  for (const char* source :
       {"{% extends 'x' %}", "{% include 'x' %}", "{% import 'x' as y %}",
        "{% block b %}{% endblock %}", "{{ x | urlize }}", "{{ lipsum() }}",
        "{{ 'a'.encode() }}", "{{ '\\N{DASH}' }}"}) {
    const absl::Status status = ErrorOf(source);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << source;
    EXPECT_THAT(std::string(status.message()), HasSubstr("not supported"));
  }
}

// Each template would run too long, fill the memory or overflow the stack.
TEST(ChatTemplate, WorkMemoryAndRecursionAreBounded) {
  const char* kGreedy[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}"
      "{% endfor %}",
      "{{ 'x' * 10000000000 }}",
      "{{ [1] * 10000000000 }}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}"
      "{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}"
      "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(s='xx') %}{% for i in range(100) %}"
      "{% set ns.s = ns.s.replace('x', ns.s) %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}"
      "{% set ns.l = ns.l + ns.l %}{% endfor %}",
      // Values with shared parts are small in memory, but exponential when
      // written or compared.
      "{% set ns = namespace(l=[1]) %}{% for i in range(90) %}"
      "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(90000) %}"
      "{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(d={}) %}{% for i in range(90000) %}"
      "{% set ns.d = {'k': ns.d} %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
      "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{{ 'x' | center(10000000000) }}",
      "{{ 'x'.ljust(10000000000) }}",
      "{{ 'a\nb' | indent(10000000000) }}",
      "{{ 'x' * 60000000 }}{{ 'x' * 60000000 }}",
      "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}"
      "{{ s[5] }}{% endfor %}",
      "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}"
      "{{ s == s }}{% endfor %}",
      "{{ range(100000) | batch(1) | map('batch', 1) | list }}"
      "{% for i in range(1000) %}{{ range(100000) | list }}{% endfor %}",
      "{{ (['x' * 1000] * 10000) | join('y' * 1000000) }}",
      "{{ (['x'] * 100000) | join('y' * 1000000) }}",
      "{% set ns = namespace() %}{% for i in range(100000) %}"
      "{% set ns.x = namespace(a=ns.x, b='y' * 10000) %}{% endfor %}",
  };
  for (const char* source : kGreedy) {
    const absl::Status status = ErrorOf(source);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted)
        << source << "\n"
        << status;
  }
  // These end by themselves, in an error of another kind or none.
  EXPECT_FALSE(Render("{{ '%1000000000d' % 1 }}").ok());
  EXPECT_FALSE(Render("{{ '{:1000000000}'.format(1) }}").ok());
  EXPECT_FALSE(Render("{{ [1] | tojson(indent=1000000000) }}").ok());
  EXPECT_FALSE(Render("{{ strftime_now('%c' * 1000000) }}").ok());
  EXPECT_EQ(Rendered("{% set ns = namespace() %}{% set ns.x = ns %}"
                     "{{ ns.x.x.x is defined }}"),
            "True");
}

TEST(ChatTemplate, QuadraticSearchesAreNotQuadratic) {
  // A naive search would compare 10^11 bytes.
  EXPECT_EQ(
      Rendered("{% set a = 'a' * 1000000 %}{% set b = 'a' * 500000 ~ 'b' "
               "%}{{ b in a }}{{ a.find(b) }}{{ a.count(b) }}"
               "{{ a.replace(b, '') | length }}{{ a.split(b) | length }}"),
      "False-1010000001");
}

TEST(ChatTemplate, DeepNestingIsAnErrorNotAnOverflow) {
  const auto repeat = [](const std::string& text, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += text;
    return out;
  };
  const std::string kDeep[] = {
      "{{ " + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}",
      "{{ " + repeat("[", 100000) + " }}",
      "{{ " + repeat("{1:", 100000) + " }}",
      "{{ " + repeat("not ", 100000) + "1 }}",
      "{{ " + repeat("-", 100000) + "1 }}",
      "{{ 1" + repeat(" + 1", 100000) + " }}",
      "{{ 1" + repeat(" or 1", 100000) + " }}",
      "{{ 1" + repeat(" ** 1", 100000) + " }}",
      "{{ a" + repeat(".a", 100000) + " }}",
      "{{ a" + repeat("[0]", 100000) + " }}",
      "{{ a" + repeat("()", 100000) + " }}",
      "{{ a" + repeat("|list", 100000) + " }}",
      "{{ a" + repeat(" is defined", 1) + repeat(" if a else a", 100000) +
          " }}",
      repeat("{% if 1 %}", 100000),
      repeat("{% for x in y %}", 100000),
      repeat("{% macro m() %}", 100000),
      "{% set x " + repeat("|trim", 100000) + " %}{% endset %}",
      "{% for " + repeat("(", 100000) + "x in y %}{% endfor %}",
  };
  for (const std::string& source : kDeep) {
    EXPECT_FALSE(ChatTemplate::Parse(source).ok()) << source.substr(0, 20);
  }
  // Wide expressions and statements are fine.
  EXPECT_TRUE(Render("{{ 1" + repeat(" ~ 1", 5000) + " }}").ok());
  EXPECT_TRUE(
      Render("{% if 0 %}" + repeat("{% elif 0 %}", 2000) + "{% endif %}").ok());
  EXPECT_FALSE(ChatTemplate::Parse(std::string(5 << 20, 'x')).ok());

  ordered_json deep = 1;
  for (int i = 0; i < 150; ++i) deep = ordered_json::array({deep});
  EXPECT_EQ(ErrorOf("x", {{"messages", deep}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf("x", ordered_json::array()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, LongConversationsAreNotRefused) {
  ordered_json messages = ordered_json::array();
  for (int i = 0; i < 2000; ++i) {
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"},
                        {"content", std::string(5000, 'x')}});
  }
  const std::string source = ReadFile(Golden() / "templates/qwen2.5.jinja");
  const auto text = Render(source, {{"messages", messages}});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_GT(text->size(), 10'000'000u);
}

// Any bytes are parsed and rendered, or give an error, in bounded time.
TEST(ChatTemplate, MutatedTemplatesNeverCrash) {
  uint64_t state = 3;
  const auto random = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  const ordered_json variables = ordered_json::parse(
      R"({"messages": [{"role": "user", "content": "a"},
                       {"role": "assistant", "content": null}],
          "add_generation_prompt": true, "bos_token": "<s>",
          "eos_token": "</s>"})");
  constexpr absl::string_view kBits[] = {
      "{{", "}}", "{%",      "%}",   "-",    "|",     "(",        ")",
      "[",  "]",  "'",       "\"",   ".",    ",",     ":",        "~",
      "*",  "0",  "9999999", " in ", " is ", " not ", "loop",     "messages",
      "{#", "#}", "\n",      "\\",   "%",    "=",     "\xC3\xA9", "namespace"};
  size_t rendered = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(Golden() / "templates")) {
    const std::string source = ReadFile(entry.path());
    for (int i = 0; i < 300; ++i) {
      std::string text = source;
      for (uint64_t n = 1 + random(4); n > 0; --n) {
        const size_t at = random(text.size());
        switch (random(3)) {
          case 0:
            text.erase(at, 1 + random(20));
            break;
          case 1: {
            const absl::string_view bit = kBits[random(std::size(kBits))];
            text.insert(at, bit.data(), bit.size());
            break;
          }
          default:
            text.insert(at, text.substr(random(text.size()), random(60)));
        }
      }
      rendered += Render(text, variables).ok();
    }
  }
  EXPECT_GT(rendered, 0u);
}

class LoadTest : public ::testing::Test {
 protected:
  void Write(const char* name, const std::string& text) {
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }
  std::string Loaded() {
    auto loaded = ChatTemplate::Load(dir_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok()) return "";
    return (*loaded)->Render(ordered_json::object()).value_or("error");
  }
  std::string LoadedForTools() {
    auto loaded = ChatTemplate::Load(dir_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok()) return "";
    const auto for_tools = (*loaded)->ForTools();
    EXPECT_TRUE(for_tools.ok()) << for_tools.status();
    if (!for_tools.ok()) return "";
    return (*for_tools)->Render(ordered_json::object()).value_or("error");
  }
  absl::Status LoadError() { return ChatTemplate::Load(dir_).status(); }

  const TempDir temp_;
  const std::filesystem::path& dir_ = temp_.path();
};

TEST_F(LoadTest, FromEitherFile) {
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kNotFound);
  Write("tokenizer_config.json", "{}");
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kNotFound);
  Write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kNotFound);
  Write("tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(Loaded(), "one");
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "no"},
                              {"name": "default", "template": "two"}]})");
  EXPECT_EQ(Loaded(), "two");
  EXPECT_EQ(LoadedForTools(), "no");
  Write("chat_template.jinja", "three");
  EXPECT_EQ(Loaded(), "three");
  EXPECT_EQ(LoadedForTools(), "three");
  std::filesystem::create_directory(dir_ / "additional_chat_templates");
  Write("additional_chat_templates/tool_use.jinja", "four");
  EXPECT_EQ(Loaded(), "three");
  EXPECT_EQ(LoadedForTools(), "four");
}

// Chats without tools do not need the template for them.
TEST_F(LoadTest, ABadTemplateForToolsIsOnlyTheirs) {
  const auto error_for_tools = [&] {
    auto loaded = ChatTemplate::Load(dir_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? (*loaded)->ForTools().status() : loaded.status();
  };
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "one"},
                              {"name": "tool_use", "template": "{% if %}"}]})");
  EXPECT_EQ(Loaded(), "one");
  EXPECT_EQ(error_for_tools().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(error_for_tools().message()),
              testing::AllOf(HasSubstr("tokenizer_config.json"),
                             HasSubstr("tool_use")));
  Write("chat_template.jinja", "two");
  const std::filesystem::path more =
      dir_ / "additional_chat_templates" / "tool_use.jinja";
  std::filesystem::create_directory(more.parent_path());
  Write("additional_chat_templates/tool_use.jinja", "{{");
  EXPECT_EQ(Loaded(), "two");
  EXPECT_EQ(error_for_tools().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(error_for_tools().message()),
              HasSubstr("tool_use.jinja"));
  std::filesystem::remove(more);
  std::filesystem::create_directory(more);  // which can't be read
  EXPECT_EQ(Loaded(), "two");
  EXPECT_EQ(error_for_tools().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LoadTest, ErrorsNameTheFile) {
  for (const char* bad :
       {"{", "[]", R"({"chat_template": 3})", R"({"chat_template": []})",
        R"({"chat_template": [{"name": "x", "template": "y"}]})",
        R"({"chat_template": [{"name": "default", "template": 1}]})",
        R"({"chat_template": [1]})", R"({"chat_template": "{{"})"}) {
    Write("tokenizer_config.json", bad);
    EXPECT_EQ(LoadError().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(LoadError().message()),
                HasSubstr("tokenizer_config.json"))
        << bad;
  }
  Write("chat_template.jinja", "{% if %}");
  EXPECT_THAT(std::string(LoadError().message()),
              HasSubstr("chat_template.jinja"));
  std::filesystem::remove(dir_ / "chat_template.jinja");
  std::filesystem::create_directory(dir_ / "chat_template.jinja");
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
