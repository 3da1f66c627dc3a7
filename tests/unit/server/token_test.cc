// Tokens: their file, the guard that reads it, and the audit log.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/access/audit_log.h"
#include "server/access/token_file.h"
#include "server/access/token_guard.h"
#include "tests/support/manual_clock.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr char kHash[] =
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

TEST(TokenFileTest, IsReadAsItWasWritten) {
  const TempDir dir;
  const std::string path = (dir.path() / "tokens.json").string();
  const TokenRecord token = {.name = "ci",
                             .tenant = "lab",
                             .read = true,
                             .admin = true,
                             .sha256 = HashToken("test"),
                             .created_s = 1'700'000'000,
                             .expires_s = 1'800'000'000,
                             .revoked = true};
  EXPECT_EQ(token.sha256, kHash);  // FIPS 180-4
  ASSERT_TRUE(
      WriteTokens(
          path,
          {.tokens = {token, {.name = "b", .submit = true, .sha256 = kHash}},
           .quotas = {{"lab", {.requests = 7, .bytes = 1 << 30}},
                      {"", {.tokens = 9}}}})
          .ok());
  const auto read = ReadTokens(path);
  ASSERT_TRUE(read.ok()) << read.status();
  const std::vector<TokenRecord>& tokens = read->tokens;
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokens[0].tenant, "lab");
  EXPECT_EQ(FormatScopes(tokens[0]), "read,admin");
  EXPECT_EQ(tokens[0].expires_s, 1'800'000'000);
  EXPECT_TRUE(tokens[0].revoked);
  EXPECT_FALSE(tokens[1].revoked);
  EXPECT_EQ(read->QuotaOf("lab").requests, 7);
  EXPECT_EQ(read->QuotaOf("lab").tokens, std::nullopt);
  EXPECT_EQ(read->QuotaOf("lab").bytes, 1 << 30);
  EXPECT_EQ(read->QuotaOf("").tokens, 9);
  EXPECT_EQ(read->QuotaOf("shop").tokens, std::nullopt);
}

TEST(TokenFileTest, TheQuotaOfOthersIsForThoseWithoutOne) {
  const auto file = ParseTokens(
      R"({"tokens": [], "quotas": [{"tenant": "*", "requests": 1},
                                   {"tenant": "lab", "tokens": 2}]})");
  ASSERT_TRUE(file.ok()) << file.status();
  for (const char* tenant : {"shop", ""}) {
    EXPECT_EQ(file->QuotaOf(tenant).requests, 1) << tenant;
  }
  EXPECT_EQ(file->QuotaOf("lab").requests, std::nullopt);
  EXPECT_EQ(file->QuotaOf("lab").tokens, 2);
}

TEST(TokenFileTest, WhatIsWrongWithAQuotaIsNamed) {
  const auto why = [](const std::string& entries) {
    return std::string(
        ParseTokens("{\"tokens\": [], \"quotas\": [" + entries + "]}")
            .status()
            .message());
  };
  EXPECT_EQ(why(""), "");
  EXPECT_THAT(why("{\"tenant\": \"a b\"}"), HasSubstr("quota 1: tenant"));
  EXPECT_THAT(why("{\"request\": 1}"), HasSubstr("unknown field"));
  EXPECT_THAT(why("{}, {}"), HasSubstr("quota 2: the tenant"));
  EXPECT_THAT(why("7"), HasSubstr("no object"));
  for (const char* wrong :
       {"0", "-1", "1.5", "\"1\"", "null", "9223372036854775808"}) {
    EXPECT_THAT(why(std::string("{\"tokens\": ") + wrong + "}"),
                HasSubstr("tokens is no whole number from 1 on"))
        << wrong;
  }
  EXPECT_EQ(why("{\"tokens\": 9223372036854775807}"), "");
}

TEST(TokenFileTest, WhatIsWrongIsNamed) {
  const auto why = [](const std::string& entry) {
    return std::string(
        ParseTokens("{\"tokens\": [" + entry + "]}").status().message());
  };
  const std::string rest =
      absl::StrCat("\"scopes\": \"read\", \"sha256\": \"", kHash, "\"");
  EXPECT_EQ(why("{\"name\": \"a\", " + rest + "}"), "");
  EXPECT_THAT(why("{\"name\": \"a b\", " + rest + "}"), HasSubstr("token 1"));
  EXPECT_THAT(why("{" + rest + "}"), HasSubstr("name"));
  EXPECT_THAT(why("{\"name\": \"a\", \"scope\": 1, " + rest + "}"),
              HasSubstr("unknown field"));
  EXPECT_THAT(why("{\"name\": \"a\", \"scopes\": \"write\"}"),
              HasSubstr("read,submit,admin"));
  EXPECT_THAT(why("{\"name\": \"a\", \"scopes\": \"read\", \"sha256\": \"1\"}"),
              HasSubstr("sha256"));
  EXPECT_THAT(why("{\"name\": \"a\", \"expires\": \"soon\", " + rest + "}"),
              HasSubstr("expires"));
  EXPECT_THAT(why("{\"name\": \"a\", \"revoked\": 1, " + rest + "}"),
              HasSubstr("revoked"));
  EXPECT_THAT(
      why("{\"name\": \"a\", " + rest + "}, {\"name\": \"a\", " + rest + "}"),
      HasSubstr("twice"));
  EXPECT_THAT(why("7"), HasSubstr("no object"));
  for (const char* text :
       {"", "[]", "{}", "{\"tokens\": 1}", "{\"tokens\":[]", "{\"quotas\": []}",
        "{\"tokens\": [], \"quotas\": 1}", "{\"tokens\": [], \"quota\": []}"}) {
    EXPECT_FALSE(ParseTokens(text).ok()) << text;
  }
}

TEST(TokenFileTest, TokensDiffer) {
  const std::string token = MakeToken();
  EXPECT_EQ(token.size(), 7u + 43u);
  EXPECT_NE(token, MakeToken());
}

class TokenGuardTest : public testing::Test {
 protected:
  TokenGuardTest() {
    now_s_ = absl::ToUnixSeconds(clock_.Now());
    Save({{.name = "reader", .read = true, .sha256 = HashToken("r")},
          {.name = "lab",
           .tenant = "lab",
           .read = true,
           .submit = true,
           .sha256 = HashToken("l")},
          {.name = "short",
           .read = true,
           .sha256 = HashToken("s"),
           .expires_s = now_s_ + 60},
          {.name = "gone",
           .read = true,
           .sha256 = HashToken("g"),
           .revoked = true}});
    auto audit = AuditLog::Open(audit_path_);
    audit_ = *std::move(audit);
    auto guard = TokenGuard::Create({.tokens_file = path_,
                                     .cluster_token = "cluster secret",
                                     .audit = audit_.get(),
                                     .clock = &clock_});
    EXPECT_TRUE(guard.ok()) << guard.status();
    guard_ = *std::move(guard);
  }

  void Save(const std::vector<TokenRecord>& tokens) {
    ASSERT_TRUE(WriteTokens(path_, {.tokens = tokens}).ok());
  }
  absl::StatusCode Ask(const std::string& credential, Scope scope) {
    return guard_->Check(credential, scope, "peer", "what").status().code();
  }
  std::vector<nlohmann::json> Audited() const {
    std::vector<nlohmann::json> entries;
    std::ifstream file(audit_path_);
    for (std::string line; std::getline(file, line);) {
      entries.push_back(nlohmann::json::parse(line));
    }
    return entries;
  }

  const TempDir dir_;
  const std::string path_ = (dir_.path() / "tokens.json").string();
  const std::string audit_path_ = (dir_.path() / "audit").string();
  ManualClock clock_;
  int64_t now_s_ = 0;
  std::unique_ptr<AuditLog> audit_;
  std::unique_ptr<TokenGuard> guard_;
};

constexpr auto kOk = absl::StatusCode::kOk;
constexpr auto kUnknown = absl::StatusCode::kUnauthenticated;
constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

TEST_F(TokenGuardTest, GrantsWhatATokenIsGranted) {
  EXPECT_EQ(Ask("Bearer r", Scope::kRead), kOk);
  EXPECT_EQ(Ask("Bearer r", Scope::kSubmit), kDenied);
  EXPECT_EQ(Ask("Bearer r", Scope::kAdmin), kDenied);
  EXPECT_EQ(Ask("Bearer r", Scope::kCluster), kUnknown);
  EXPECT_EQ(Ask("Bearer l", Scope::kSubmit), kOk);
  EXPECT_EQ(guard_->Check("Bearer l", Scope::kRead, "", "")->tenant, "lab");
  EXPECT_EQ(Ask("Bearer cluster secret", Scope::kCluster), kOk);
  EXPECT_EQ(Ask("Bearer cluster secret", Scope::kRead), kDenied);
  EXPECT_EQ(Ask("", Scope::kOpen), kOk);
}

TEST_F(TokenGuardTest, OtherCredentialsAreNone) {
  for (const char* credential :
       {"", "r", "Bearer ", "Bearer", "bearer r", "Bearer  r", "Bearer r ",
        "Basic r", "Bearer R", "Bearer x"}) {
    EXPECT_EQ(Ask(credential, Scope::kRead), kUnknown) << credential;
    EXPECT_EQ(Ask(credential, Scope::kCluster), kUnknown) << credential;
  }
  // The hash is not the token.
  EXPECT_EQ(Ask("Bearer " + HashToken("r"), Scope::kRead), kUnknown);
}

TEST_F(TokenGuardTest, TokensExpireAndAreRevoked) {
  EXPECT_EQ(Ask("Bearer s", Scope::kRead), kOk);
  clock_.Advance(absl::Seconds(61));
  EXPECT_EQ(Ask("Bearer s", Scope::kRead), kUnknown);
  EXPECT_EQ(Ask("Bearer g", Scope::kRead), kUnknown);
  Save({{.name = "reader", .read = true, .sha256 = HashToken("new")}});
  EXPECT_EQ(Ask("Bearer r", Scope::kRead), kUnknown);
  EXPECT_EQ(Ask("Bearer new", Scope::kRead), kOk);
}

TEST_F(TokenGuardTest, QuotasAreReadAgainAsTheFileChanges) {
  EXPECT_EQ(guard_->QuotaOf("lab").requests, std::nullopt);
  ASSERT_TRUE(WriteTokens(path_, {.quotas = {{"lab", {.requests = 5}}}}).ok());
  EXPECT_EQ(guard_->QuotaOf("lab").requests, 5);
  std::ofstream(path_) << "{";
  EXPECT_EQ(guard_->QuotaOf("lab").requests, 5);
}

TEST_F(TokenGuardTest, ABrokenFileChangesNothing) {
  std::ofstream(path_) << "{";
  EXPECT_EQ(Ask("Bearer r", Scope::kRead), kOk);
  EXPECT_FALSE(guard_->Reload().ok());
  std::filesystem::remove(path_);
  EXPECT_EQ(Ask("Bearer r", Scope::kRead), kOk);
}

TEST_F(TokenGuardTest, ChangesAndRefusalsAreAudited) {
  Ask("Bearer r", Scope::kRead);
  Ask("Bearer l", Scope::kSubmit);
  Ask("Bearer secret of mine", Scope::kAdmin);
  const auto entries = Audited();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0]["who"], "lab");
  EXPECT_EQ(entries[0]["scope"], "submit");
  EXPECT_EQ(entries[0]["outcome"], "allowed");
  EXPECT_EQ(entries[1]["who"], "");
  EXPECT_EQ(entries[1]["outcome"], "this token is not known");
  EXPECT_THAT(entries[1].dump(), testing::Not(HasSubstr("secret")));
}

TEST_F(TokenGuardTest, ManyRefusalsAreCounted) {
  for (int i = 0; i < 1000; ++i) Ask("Bearer x", Scope::kRead);
  EXPECT_LT(Audited().size(), 200u);
  EXPECT_GE(Audited().size(), 20u);
}

TEST_F(TokenGuardTest, TheAuditLogIsOpenedAnewAfterRotation) {
  std::filesystem::rename(audit_path_, audit_path_ + ".1");
  audit_->Reopen();
  Ask("Bearer l", Scope::kSubmit);
  EXPECT_EQ(Audited().size(), 1u);
}

TEST(TokenGuardOptionsTest, WithoutTokensEverybodyMayUseIt) {
  ManualClock clock;
  auto guard = TokenGuard::Create({.clock = &clock});
  for (const Scope scope :
       {Scope::kRead, Scope::kSubmit, Scope::kAdmin, Scope::kCluster}) {
    EXPECT_TRUE((*guard)->Check("", scope, "", "").ok());
  }
  guard = TokenGuard::Create({.cluster_token = "c", .clock = &clock});
  EXPECT_TRUE((*guard)->Check("", Scope::kSubmit, "", "").ok());
  EXPECT_FALSE((*guard)->Check("", Scope::kCluster, "", "").ok());
}

TEST(TokenGuardOptionsTest, TokensNeedAClusterToken) {
  ManualClock clock;
  const auto guard =
      TokenGuard::Create({.tokens_file = "/nowhere", .clock = &clock});
  EXPECT_THAT(std::string(guard.status().message()),
              HasSubstr("--cluster-token-file"));
  EXPECT_FALSE(
      TokenGuard::Create(
          {.tokens_file = "/nowhere", .cluster_token = "c", .clock = &clock})
          .ok());
}

}  // namespace
}  // namespace sluice
