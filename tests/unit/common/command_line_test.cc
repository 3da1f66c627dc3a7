#include "common/flags/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/flags/checks.h"
#include "common/flags/foreign_flags.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::Not;

class CommandLineTest : public testing::Test {
 protected:
  CommandLineTest() {
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.set_version_flag("-V,--version", "1");
    app_.add_option("--coordinator", coordinator_, "the coordinator")
        ->capture_default_str();
    CLI::App* run = app_.add_subcommand("run", "Run one job");
    run->add_option("--model", model_, "model directory")
        ->required()
        ->group(kMainGroup)
        ->type_name("DIR");
    auto* output =
        run->add_option("-o,--output,--output-file", output_, "results")
            ->group(kMainGroup);
    run->add_option("--errors", errors_, "error lines")->needs(output);
    run->add_option("--name", name_, "for people")->check(Utf8Text());
    run->add_option("--max-tokens", max_tokens_,
                    "tokens to generate, for requests that do not say, and so "
                    "on until the line is full")
        ->check(AtLeast(1));
    run->add_option("--temperature", temperature_, "0 is greedy");
    AddFormatAliases(run, &policy_);
    run->add_flag("-q,--quiet", quiet_, "no progress");
    CLI::App* results = app_.add_subcommand("results", "Write results");
    results->add_option("--input,--input-file", input_, "requests")
        ->required()
        ->check(AtLeast(1));
    AddEnvironmentTwins(&app_, "SLUICE_");
  }

  std::string Unknown(std::vector<const char*> words) {
    words.insert(words.begin(), "sluice");
    return UnknownName(app_, static_cast<int>(words.size()), words.data());
  }
  // Returns the text on stderr; "" if there is no error.
  std::string Parse(std::vector<const char*> words) {
    words.insert(words.begin(), "sluice");
    testing::internal::CaptureStderr();
    const std::optional<int> code =
        ParseCommandLine(&app_, static_cast<int>(words.size()), words.data());
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code.has_value(), !said.empty());
    if (code) {
      EXPECT_EQ(*code, kExitUsage);
    }
    return said;
  }

  CLI::App app_{"Offline inference", "sluice"};
  std::string coordinator_ = "127.0.0.1:7070", model_, input_, output_, errors_,
              name_;
  std::vector<std::string> policy_;
  int max_tokens_ = 0;
  double temperature_ = 0;
  bool quiet_ = false;
};

TEST_F(CommandLineTest, SaysWhatWasMeant) {
  EXPECT_EQ(Unknown({"runn"}), "unknown command 'runn'; did you mean 'run'?");
  EXPECT_EQ(Unknown({"run", "--max-token", "5"}),
            "unknown flag --max-token; did you mean --max-tokens?");
  EXPECT_EQ(Unknown({"run", "--tempreature=5"}),
            "unknown flag --tempreature; did you mean --temperature?");
  EXPECT_EQ(Unknown({"run", "-model", "x"}),
            "unknown flag -model; did you mean --model?");
  EXPECT_EQ(Unknown({"run", "--cordinator", "x"}),
            "unknown flag --cordinator; did you mean --coordinator?");
  EXPECT_EQ(Unknown({"run", "--frobnicate"}),
            "unknown flag --frobnicate; `sluice run --help` lists those that "
            "there are");
  EXPECT_EQ(Unknown({"frobnicate"}),
            "unknown command 'frobnicate'; `sluice --help` lists those that "
            "there are");
  EXPECT_EQ(Unknown({"run", "--e\x1b[2J"}),
            "unknown flag --e\\x1b[2J; `sluice run --help` lists those that "
            "there are");
}

TEST_F(CommandLineTest, ValuesAreNoNames) {
  EXPECT_EQ(Unknown({"--coordinator", "runn", "run", "--model", "--quiett"}),
            "");
  EXPECT_EQ(Unknown({"run", "-o", "-", "--model", "m", "-q"}), "");
  EXPECT_EQ(Unknown({"run", "-o-", "--max-tokens", "-5"}), "");
  EXPECT_EQ(Unknown({"run", "--", "--max-token"}), "");
  EXPECT_EQ(Unknown({"run", "--help", "--max-token"}), "");
}

TEST_F(CommandLineTest, KnowsOtherProgramsFlags) {
  EXPECT_THAT(Unknown({"run", "--tensor-parallel-size", "2"}),
              HasSubstr("that is --tensor-parallel"));
  EXPECT_THAT(Unknown({"run", "--gpu-memory-utilization", "0.9"}),
              HasSubstr("--device-memory"));
  EXPECT_EQ(Parse({"run", "--model", "m", "--kv-cache-dtype", "int8",
                   "--quantization", "int4", "--output-file", "x"}),
            "");
  EXPECT_EQ(policy_, (std::vector<std::string>{"compress-kv=int8",
                                               "compress-weights=int4"}));
  EXPECT_EQ(output_, "x");
}

TEST_F(CommandLineTest, SaysWhatIsWrongWithAValue) {
  EXPECT_EQ(Parse({"run", "--model", "m", "--model", "n"}),
            "sluice: --model is given more than once; give it once\n");
  EXPECT_EQ(Parse({"run", "--model", "m", "--temperature", "warm"}),
            "sluice: --temperature: \"warm\" is not a number as it takes; see "
            "`sluice run --help`\n");
  EXPECT_EQ(Parse({"run", "--model", "m", "--max-tokens", "2.5"}),
            "sluice: --max-tokens: must be a whole number of at least 1, not "
            "2.5\n");
  EXPECT_EQ(Parse({"run", "--model"}),
            "sluice: --model needs a value; see `sluice run --help`\n");
  std::string text = "2.5";
  EXPECT_EQ(WholeFrom(1, 64)(text),
            "must be a whole number from 1 to 64, not 2.5");
  text = "64";
  EXPECT_EQ(WholeFrom(1, 64)(text), "");
}

TEST_F(CommandLineTest, AliasesAreTheOptionItself) {
  EXPECT_EQ(
      Parse({"run", "--model", "m", "--output-file", "x", "--errors", "e"}),
      "");
  EXPECT_EQ(output_, "x");
  EXPECT_EQ(Parse({"results", "--input-file", "7"}), "");
  EXPECT_EQ(input_, "7");
  // Errors show the name that help shows.
  EXPECT_EQ(Parse({"results"}),
            "sluice: --input is required; see `sluice results --help`\n");
  EXPECT_EQ(Parse({"results", "--input-file", "0"}),
            "sluice: --input: must be a whole number of at least 1, not 0\n");
  EXPECT_EQ(Unknown({"run", "--output-fil", "x"}),
            "unknown flag --output-fil; `sluice run --help` lists those that "
            "there are");
}

TEST_F(CommandLineTest, FormatsThatAreNotThereAreRefused) {
  EXPECT_THAT(Parse({"run", "--model", "m", "--kv-cache-dtype", "fp8"}),
              HasSubstr("\"fp8\" is none of auto, int8 and int4"));
}

TEST_F(CommandLineTest, AHiddenFlagIsNamedInItsError) {
  EXPECT_THAT(Parse({"run", "--model", "m", "--quantization", "awq"}),
              testing::StartsWith("sluice: --quantization \"awq\" is none of"));
}

TEST_F(CommandLineTest, VariablesThatAreAlmostATwinAreSaid) {
  const char* const environment[] = {
      "SLUICE_MAX_TOKNS=3", "SLUICE_MAX_TOKENS=3",  "SLUICE_TOKEN=x",
      "SLUICE_TEST_SLOW=1", "SLUICE_WORKER_PORT=1", "SLUICE_COORDINATOR_HOST=x",
      "PATH=/bin",          "SLUICE_COORDINATOR=a", nullptr};
  EXPECT_THAT(UnknownVariables(app_, "SLUICE_", environment),
              testing::ElementsAre(
                  "SLUICE_MAX_TOKNS is set, but is no flag's variable; did you "
                  "mean SLUICE_MAX_TOKENS?"));
}

TEST(VariablesTest, AProgramsOwnPrefixIsForItsFlags) {
  CLI::App app{"a server", "sluice-coordinator"};
  std::string level, dir;
  app.add_option("--log-level", level)->envname("SLUICE_LOG_LEVEL");
  app.add_option("--state-dir", dir);
  AddEnvironmentTwins(&app, "SLUICE_COORDINATOR_");
  const char* const environment[] = {"SLUICE_COORDINATOR_LOG_LEVEL=debug",
                                     "SLUICE_COORDINATOR_STATE_DIR=x",
                                     "SLUICE_COORDINATOR_NOTHING=1",
                                     "SLUICE_WORKER_NOTHING=1",
                                     "SLUICE_LOG_LEVEL=info",
                                     nullptr};
  EXPECT_THAT(
      UnknownVariables(app, "SLUICE_COORDINATOR_", environment),
      testing::ElementsAre(
          "SLUICE_COORDINATOR_LOG_LEVEL is set, but is no flag's variable; did "
          "you mean SLUICE_LOG_LEVEL?",
          "SLUICE_COORDINATOR_NOTHING is set, but is no flag's variable"));
}

TEST_F(CommandLineTest, MistakesTakeOneLine) {
  EXPECT_EQ(Parse({"run"}),
            "sluice: --model is required; see `sluice run --help`\n");
  EXPECT_EQ(Parse({"--coordinator", "x"}),
            "sluice: a command is required; see `sluice --help`\n");
  EXPECT_EQ(Parse({"run", "--model", "m", "--max-tokens", "-5"}),
            "sluice: --max-tokens: must be a whole number of at least 1, not "
            "-5\n");
  EXPECT_EQ(Parse({"run", "--model", "m", "--name", "caf\xE9"}),
            "sluice: --name: \"caf\\xe9\" is not UTF-8 at byte 4; write it as "
            "UTF-8\n");
  EXPECT_EQ(Parse({"run", "--model", "m", "prompts.jsonl"}),
            "sluice: unexpected 'prompts.jsonl'; see `sluice run --help`\n");
}

TEST_F(CommandLineTest, AloneItPrintsHelp) {
  EXPECT_THAT(Parse({}), HasSubstr("Run one job"));
}

TEST_F(CommandLineTest, HelpFitsAndShowsNoAliases) {
  const std::string help = app_.get_subcommand("run")->help();
  for (const absl::string_view line : absl::StrSplit(help, '\n')) {
    EXPECT_LE(line.size(), 80u) << line;
  }
  EXPECT_THAT(help, HasSubstr("Main:\n      --model DIR"));
  EXPECT_THAT(help, HasSubstr("(default: 127.0.0.1:7070)"));
  EXPECT_THAT(help, HasSubstr("(required)"));
  EXPECT_THAT(help, Not(HasSubstr("--output-file")));
  EXPECT_THAT(help, Not(HasSubstr("--kv-cache-dtype")));
  EXPECT_LT(help.find("--model"), help.find("--name"));
}

TEST_F(CommandLineTest, TwinsSetFlags) {
  setenv("SLUICE_MAX_TOKENS", "7", 1);
  EXPECT_EQ(Parse({"run", "--model", "m"}), "");
  EXPECT_EQ(max_tokens_, 7);
  unsetenv("SLUICE_MAX_TOKENS");
}

TEST(ChecksTest, AddressesAsPeopleWriteThem) {
  EXPECT_EQ(WithDefaultPort("localhost", 7070), "localhost:7070");
  EXPECT_EQ(WithDefaultPort("localhost:", 7070), "localhost:7070");
  EXPECT_EQ(WithDefaultPort("head:7000", 7070), "head:7000");
  EXPECT_EQ(WithDefaultPort("http://head:7000/", 7070), "head:7000");
  EXPECT_EQ(WithDefaultPort("http://head", 7070), "head:7070");
  EXPECT_EQ(WithDefaultPort("::1", 7070), "[::1]:7070");
  EXPECT_EQ(WithDefaultPort("[::1]", 7070), "[::1]:7070");
  EXPECT_EQ(WithDefaultPort("[::1]:80", 7070), "[::1]:80");
  EXPECT_EQ(WithDefaultPort("unix:/run/sluice", 7070), "unix:/run/sluice");
  EXPECT_EQ(WithDefaultPort("nodns:80", 7070), "nodns:80");
  for (const char* target :
       {"unix:/run/sluice", "unix-abstract:sluice", "dns:///head:80",
        "dns:head:80", "dns:head", "dns://9.9.9.9/head", "ipv4:10.0.0.1:80",
        "ipv4:10.0.0.1:80,10.0.0.2:80", "ipv6:[::1]:80", "vsock:2:80",
        "xds:///head"}) {
    EXPECT_EQ(WithDefaultPort(target, 7070), target);
  }
}

}  // namespace
}  // namespace sluice
