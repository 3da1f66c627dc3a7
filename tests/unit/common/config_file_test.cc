#include "common/flags/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "common/flags/checks.h"
#include "common/flags/command_line.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class ConfigFileTest : public testing::Test {
 protected:
  ConfigFileTest() {
    app_.add_option("--model", model_, "a model")->required();
    app_.add_option("--min-workers", min_workers_, "so many")
        ->check(AtLeast(1))
        ->envname("SLUICE_CONFIG_TEST_WORKERS");
    app_.add_option("--timeout", timeout_, "seconds");
    app_.add_flag("--no-refill", no_refill_, "a switch");
    app_.add_option("--hidden", hidden_)->group("");
    app_.add_option("--config", config_, "this");
    AddEnvironmentTwins(&app_, "SLUICE_CONFIG_TEST_");
  }
  ~ConfigFileTest() override {
    for (const CLI::Option* option : app_.get_options()) {
      if (const std::string twin = option->get_envname(); !twin.empty()) {
        unsetenv(twin.c_str());
      }
    }
  }

  absl::StatusOr<ConfigFile> Read(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return ConfigFile::Read(app_, path_);
  }
  // The error of a file, without the file's name.
  std::string Mistake(const std::string& text) {
    const absl::Status status = Read(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(path_));
    return std::string(status.message().substr(path_.size()));
  }
  // Returns the text on stderr; "" if there is no error.
  std::string Parse(const ConfigFile& file, std::vector<const char*> words) {
    words.insert(words.begin(), "test");
    testing::internal::CaptureStderr();
    ParseCommandLine(&app_, static_cast<int>(words.size()), words.data(),
                     nullptr, &file);
    return testing::internal::GetCapturedStderr();
  }

  TempDir dir_;
  const std::string path_ = dir_.path() / "a.toml";
  CLI::App app_{"", "test"};
  std::string model_, hidden_, config_;
  int min_workers_ = 1;
  double timeout_ = 0;
  bool no_refill_ = false;
};

TEST_F(ConfigFileTest, GivesValuesToFlags) {
  auto file = Read(
      "# of a test\nmodel = \"a \\\"b\\\"\"\nmin-workers = 3\n"
      "timeout = 2.5\nno-refill = true\n");
  ASSERT_TRUE(file.ok()) << file.status();
  file->SetTwins();
  EXPECT_EQ(Parse(*file, {}), "");
  EXPECT_EQ(model_, "a \"b\"");
  EXPECT_EQ(min_workers_, 3);
  EXPECT_EQ(timeout_, 2.5);
  EXPECT_TRUE(no_refill_);
}

TEST_F(ConfigFileTest, StandsUnderEnvironmentAndFlags) {
  setenv("SLUICE_CONFIG_TEST_WORKERS", "5", 1);
  setenv("SLUICE_CONFIG_TEST_NO_REFILL", "", 1);  // an empty one is none
  auto file = Read(
      "model = \"file\"\nmin-workers = 3\ntimeout = 7\nno-refill = true\n");
  ASSERT_TRUE(file.ok()) << file.status();
  file->SetTwins();
  EXPECT_EQ(Parse(*file, {"--model", "flag"}), "");
  EXPECT_EQ(model_, "flag");
  EXPECT_EQ(min_workers_, 5);
  EXPECT_EQ(timeout_, 7);
  EXPECT_TRUE(no_refill_);
}

TEST_F(ConfigFileTest, AFalseSwitchIsNotSet) {
  auto file = Read("model = \"m\"\nno-refill = false");
  ASSERT_TRUE(file.ok()) << file.status();
  file->SetTwins();
  EXPECT_EQ(Parse(*file, {}), "");
  EXPECT_FALSE(no_refill_);
}

TEST_F(ConfigFileTest, MistakesNameTheLineAndSayWhatToDo) {
  EXPECT_EQ(Mistake("\nmin-worker = 2"),
            ", line 2: unknown key min-worker; did you mean min-workers?");
  EXPECT_EQ(Mistake("min_workers = 2"),
            ", line 1: unknown key min_workers; did you mean min-workers?");
  EXPECT_EQ(Mistake("zzz = 2"),
            ", line 1: unknown key zzz; keys are the flags of --help");
  for (const char* none : {"hidden = \"x\"", "config = \"x\"", "help = true"}) {
    EXPECT_THAT(Mistake(none), HasSubstr(", line 1: unknown key ")) << none;
  }
  EXPECT_EQ(Mistake("[jobs]\nmin-workers = 2"),
            ", line 1: [jobs]: keys stand in no table; take it out");
  EXPECT_EQ(Mistake("model = [\"a\"]"),
            ", line 1: model is a list; write a string, a number, true or "
            "false");
  EXPECT_EQ(Mistake("model = 2026-11-26"),
            ", line 1: model is a date or a time; write a string, a number, "
            "true or false");
  EXPECT_EQ(Mistake("model = true"),
            ", line 1: model takes a value, not true or false; see --help");
  EXPECT_EQ(Mistake("no-refill = 1"),
            ", line 1: no-refill is a switch: write true or false");
  EXPECT_THAT(Mistake("model = \"a\"\nmodel = \"b\""), HasSubstr(", line 2: "));
  EXPECT_THAT(Mistake("model = "), HasSubstr(", line 1: "));
  EXPECT_THAT(Mistake("model = \"\xff\""), HasSubstr(", line 1: "));
  EXPECT_EQ(ConfigFile::Read(app_, dir_.path() / "none").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ConfigFileTest, AValueThatItsFlagRefusesIsNamedByItsLine) {
  auto file = Read("model = \"m\"\nmin-workers = 0\n");
  ASSERT_TRUE(file.ok()) << file.status();
  file->SetTwins();
  EXPECT_EQ(Parse(*file, {}),
            "test: " + path_ +
                ", line 2: --min-workers: must be a whole number of at least "
                "1, not 0\n");
  EXPECT_EQ(Parse(*file, {"--min-workers", "-1"}),
            "test: --min-workers: must be a whole number of at least 1, not "
            "-1\n");
}

TEST_F(ConfigFileTest, ThePathIsFoundBeforeTheRestIsParsed) {
  const auto value = [this](std::vector<const char*> words) {
    words.insert(words.begin(), "test");
    return EarlyValue(app_, static_cast<int>(words.size()), words.data(),
                      "--config");
  };
  EXPECT_EQ(value({"--model", "m"}), "");
  EXPECT_EQ(value({"--no-refill", "--config", "a"}), "a");
  EXPECT_EQ(value({"--config=a=b"}), "a=b");
  EXPECT_EQ(value({"--model", "--config", "a"}), "");
  EXPECT_EQ(value({"--", "--config", "a"}), "");
  EXPECT_EQ(value({"--config"}), "");
  setenv("SLUICE_CONFIG_TEST_CONFIG", "b", 1);
  EXPECT_EQ(value({}), "b");
  EXPECT_EQ(value({"--config", "a"}), "a");
}

}  // namespace
}  // namespace sluice
