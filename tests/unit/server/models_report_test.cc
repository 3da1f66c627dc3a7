#include "server/cli/plan/models_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

LocalModel Runs() {
  return {.name = "org/name",
          .commit = kCommit,
          .revisions = {"main", "v1"},
          .dir = "/hub/models--org--name",
          .model_type = "llama",
          .dtype = "bfloat16",
          .layers = 16,
          .positions = 131072,
          .vocabulary = 128256,
          .parameters = 1'235'814'400,
          .bytes = uint64_t{5} << 29,
          .remarks = {"it has no chat template"}};
}

LocalModel RunsNot() {
  return {.name = "o\x1b[2J/name",
          .commit = kCommit,
          .why_not =
              "config.json: model_type \"x\x1b\ny\" is not supported "
              "(granite, llama, mistral, opt are)"};
}

TEST(ModelsReportTest, TheTableFitsAnyTerminal) {
  const LocalModels models{.model_types = {"llama", "opt"},
                           .cache = "/hub",
                           .models = {Runs(), RunsNot()}};
  const std::string table = ModelsTable(models);
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    EXPECT_LE(line.size(), 80u) << line;
  }
  EXPECT_THAT(table, HasSubstr("These run:   llama, opt\nIn /hub:\n\nMODEL  "));
  EXPECT_THAT(table, HasSubstr("org/name             main,v1      llama       "
                               "1.24 B   2.5 GiB  yes\n"));
  EXPECT_THAT(table, HasSubstr("0123456789ab ?                ?   0 bytes  "
                               "no\n    config.json: model_type \"x\\x1b\\ny"));
  EXPECT_THAT(table, Not(HasSubstr("\x1b")));
}

TEST(ModelsReportTest, AnEmptyCacheIsSaidWithItsPlace) {
  EXPECT_THAT(ModelsTable({.model_types = {"opt"}, .cache = "/hub"}),
              AllOf(HasSubstr("These run:   opt\n"), HasSubstr("(/hub)"),
                    HasSubstr("`hf download org/name`")));
  EXPECT_THAT(ModelsTable({.model_types = {"opt"}}),
              HasSubstr("HOME is not set"));
}

TEST(ModelsReportTest, AModelIsToldInDetail) {
  const std::string text = ModelText(Runs());
  EXPECT_THAT(text, AllOf(HasSubstr("model        org/name\n"),
                          HasSubstr(std::string("commit       ") + kCommit),
                          HasSubstr("revisions    main, v1\n"),
                          HasSubstr("parameters   1.24 B\n"),
                          HasSubstr("positions    131072\n"),
                          HasSubstr("runs         yes\n"
                                    "             it has no chat template\n")));
  const std::string other = ModelText(RunsNot());
  EXPECT_THAT(
      other, AllOf(HasSubstr("type         ?\n"), HasSubstr("parameters   ?\n"),
                   HasSubstr("runs         no: config.json: "),
                   Not(HasSubstr("layers")), Not(HasSubstr("\x1b"))));
}

TEST(ModelsReportTest, TheSpeedIsToldIfItIsKnown) {
  LocalModel model = Runs();
  EXPECT_THAT(ModelText(model), Not(HasSubstr("speed")));
  model.no_speed = "not measured";
  EXPECT_THAT(ModelText(model),
              HasSubstr("speed        unknown: not measured"));
  auto json = nlohmann::json::parse(ModelJson(model));
  EXPECT_TRUE(json["tokens_per_second"].is_null());
  EXPECT_EQ(json["no_speed"], "not measured");
  model.speed = {.tokens_per_second = 123.456,
                 .prompt = 64,
                 .generated = 8,
                 .requests = 256};
  EXPECT_THAT(ModelText(model),
              HasSubstr("speed        about 123 generated tokens/s here, for "
                        "256 requests of 64 tokens\n             and 8 gen"));
  json = nlohmann::json::parse(ModelJson(model));
  EXPECT_EQ(json["tokens_per_second"], 123.456);
}

TEST(ModelsReportTest, JsonHasNumbersAsNumbers) {
  const auto json =
      nlohmann::json::parse(ModelsJson({.model_types = {"opt"},
                                        .cache = "/hub",
                                        .models = {Runs(), RunsNot()}}));
  EXPECT_EQ(json["model_types"], nlohmann::json({"opt"}));
  EXPECT_EQ(json["cache"], "/hub");
  EXPECT_EQ(json["models"][0], nlohmann::json::parse(ModelJson(Runs())));
  EXPECT_EQ(json["models"][0]["parameters"], 1'235'814'400);
  EXPECT_EQ(json["models"][0]["runs"], true);
  EXPECT_EQ(json["models"][0]["remarks"][0], "it has no chat template");
  EXPECT_TRUE(json["models"][1]["parameters"].is_null());
  EXPECT_EQ(json["models"][1]["runs"], false);
  EXPECT_EQ(json["models"][1]["name"], "o\x1b[2J/name");
}

}  // namespace
}  // namespace sluice
