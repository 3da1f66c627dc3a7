// The console's routes: who may ask them, for which site, and what they answer.

#include "server/console/console.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/http/http_router.h"
#include "common/threads/clock.h"
#include "coordinator/jobs/job_manager.h"
#include "server/access/http_guard.h"
#include "server/access/token_guard.h"
#include "server/console/console_files.h"
#include "server/console/same_origin.h"
#include "server/http/discovery.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

// Asks a console's routes as an HttpServer does.
class ConsoleTest : public testing::Test {
 protected:
  void Start(bool tokens) {
    TokenGuard::Options access = {.clock = Clock::Real()};
    if (tokens) {
      access.tokens_file = (dir_.path() / "tokens.json").string();
      access.cluster_token = "the cluster's secret";
      const auto record = [](const std::string& name, bool read, bool submit) {
        return TokenRecord{.name = name,
                           .tenant = name == "b" ? "b" : "a",
                           .read = read,
                           .submit = submit,
                           .sha256 = HashToken(name)};
      };
      ASSERT_TRUE(WriteTokens(access.tokens_file,
                              {.tokens = {record("a", true, true),
                                          record("b", true, true),
                                          record("reader", true, false),
                                          record("submitter", false, true)}})
                      .ok());
    }
    guard_ = *TokenGuard::Create(access);
    Coordinator::Options options;
    options.model_dir = TestsDir() + "/models/llama-kjv";
    options.state_dir = dir_.path() / "state";
    coordinator_ = *Coordinator::Create(options);
    console_ = std::make_unique<Console>(&handle_, guard_.get(), tokens);
    std::vector<HttpRoute> routes = console_->Routes();
    routes.push_back(DiscoveryRoute(&handle_));
    router_ = std::make_unique<HttpRouter>(std::move(routes));
    handle_.Open(coordinator_.get());
    auto upload = coordinator_->jobs().BeginUpload({}, nullptr, "a");
    ASSERT_TRUE((*upload)->Append("{\"prompt\": \"x\"}\nnonsense\n").ok());
    job_ = (*upload)->Commit()->id();
  }

  HttpAnswer Ask(const std::string& method, const std::string& target,
                 const std::string& token = "",
                 std::map<std::string, std::string> headers = {},
                 const std::string& body = "{}") {
    HttpRequest request;
    request.method = method;
    request.peer = "127.0.0.1:1";
    request.headers = std::move(headers);
    request.headers.try_emplace("host", "127.0.0.1:7071");
    if (method == "POST") {
      request.headers.try_emplace("content-type", "application/json");
      request.body = body;
    }
    if (!token.empty()) request.headers["authorization"] = "Bearer " + token;
    EXPECT_TRUE(HttpRouter::ParseTarget(target, &request).ok());
    HttpAnswer answer;
    const HttpRoute* const route = router_->Find(&request, &answer);
    if (route == nullptr) return answer;
    if (route->scope != Scope::kOpen) {
      const absl::Status allowed =
          GuardHttp(guard_.get())(&request, route->scope);
      if (!allowed.ok()) return HttpError(allowed);
    }
    return route->handler(request);
  }

  std::string At(const std::string& rest) const {
    return absl::StrCat("/console/api/jobs/", job_, rest);
  }

  TempDir dir_;
  std::unique_ptr<TokenGuard> guard_;
  std::unique_ptr<Coordinator> coordinator_;
  CoordinatorHandle handle_;
  std::unique_ptr<Console> console_;
  std::unique_ptr<HttpRouter> router_;
  std::string job_;
};

TEST_F(ConsoleTest, WithoutTokensEverybodySeesAndDoesAll) {
  Start(/*tokens=*/false);
  const auto session = Json::parse(Ask("GET", "/console/api/session").body);
  EXPECT_TRUE(session["read"] && session["submit"] && session["admin"]);
  EXPECT_EQ(session["problem"], "");
  const auto jobs = Json::parse(Ask("GET", "/console/api/jobs").body);
  ASSERT_EQ(jobs["jobs"].size(), 1u);
  EXPECT_EQ(jobs["jobs"][0]["job"]["id"], job_);
  EXPECT_EQ(jobs["jobs"][0]["job"]["counts"]["total"], "2");
  EXPECT_EQ(jobs["next_page_token"], "");
  const auto errors = Json::parse(Ask("GET", At("/errors")).body);
  ASSERT_EQ(errors["errors"].size(), 1u);
  EXPECT_EQ(errors["errors"][0]["index"], 1);
  EXPECT_TRUE(errors["next_from"].is_null());
  const auto course = Json::parse(Ask("GET", At("/timeline")).body);
  EXPECT_EQ(course["events"][0]["kind"], "accepted");
  const auto cluster = Json::parse(Ask("GET", "/console/api/cluster").body);
  EXPECT_EQ(cluster["model"], "llama-kjv");
  EXPECT_TRUE(
      Json::parse(Ask("GET", "/console/api/queue").body)["samples"].is_array());

  EXPECT_EQ(Ask("POST", At("/pause")).code, 200);
  EXPECT_TRUE(coordinator_->jobs().GetJob(job_)->paused());
  EXPECT_EQ(Ask("POST", At("/resume")).code, 200);
  EXPECT_FALSE(coordinator_->jobs().GetJob(job_)->paused());
  EXPECT_EQ(Ask("POST", At("/priority"), "", {}, "{\"priority\": -3}").code,
            200);
  EXPECT_EQ(coordinator_->jobs().GetJob(job_)->priority(), -3);
  EXPECT_EQ(Ask("POST", At("/cancel")).code, 200);
  EXPECT_EQ(Ask("POST", At("/nonsense")).code, 404);
  EXPECT_EQ(Ask("GET", At("/cancel")).code, 405);
}

TEST_F(ConsoleTest, WhatIsWrongWithARequestIsSaid) {
  Start(/*tokens=*/false);
  for (const char* body :
       {"", "{}", "[]", "{\"priority\": 1.5}", "{\"priority\": \"1\"}",
        "{\"priority\": 99999999999}", "{\"priority\": 1, \"more\": 2}"}) {
    EXPECT_EQ(Ask("POST", At("/priority"), "", {}, body).code, 400) << body;
  }
  EXPECT_EQ(Ask("GET", "/console/api/jobs?page_size=x").code, 400);
  EXPECT_EQ(Ask("GET", "/console/api/jobs?page_token=x").code, 400);
  EXPECT_EQ(Ask("GET", At("/errors?from=-1")).code, 400);
  EXPECT_EQ(Ask("GET", "/console/api/jobs/job_99").code, 404);
  EXPECT_EQ(Ask("GET", "/console/api/jobs/..%2F").code, 404);
  EXPECT_EQ(Ask("GET", "/console/..%2F..%2Fetc%2Fpasswd").code, 404);
}

TEST_F(ConsoleTest, EachRouteNeedsItsScopeAndItsTenant) {
  Start(/*tokens=*/true);
  const std::string reads[] = {"/console/api/cluster", "/console/api/queue",
                               "/console/api/jobs",    At(""),
                               At("/timeline"),        At("/errors")};
  for (const std::string& path : reads) {
    EXPECT_EQ(Ask("GET", path).code, 401) << path;
    EXPECT_EQ(Ask("GET", path, "unknown").code, 401) << path;
    EXPECT_EQ(Ask("GET", path, "submitter").code, 403) << path;
    EXPECT_EQ(Ask("GET", path, "reader").code, 200) << path;
    const bool of_a_job = path.find(job_) != std::string::npos;
    EXPECT_EQ(Ask("GET", path, "b").code, of_a_job ? 404 : 200) << path;
  }
  EXPECT_EQ(
      Json::parse(Ask("GET", "/console/api/jobs", "b").body)["jobs"].size(),
      0u);
  for (const char* verb : {"/pause", "/resume", "/priority", "/cancel"}) {
    const auto ask = [&](const char* token) {
      return Ask("POST", At(verb), token, {}, "{\"priority\": 1}").code;
    };
    EXPECT_EQ(ask(""), 401) << verb;
    EXPECT_EQ(ask("reader"), 403) << verb;
    EXPECT_EQ(ask("b"), 404) << verb;
    EXPECT_EQ(ask("a"), 200) << verb;
  }
  // No other route changes anything or tells of jobs.
  for (const HttpRoute& route : router_->routes()) {
    if (route.scope != Scope::kOpen) continue;
    EXPECT_EQ(route.method, "GET") << route.pattern;
    EXPECT_THAT(Ask("GET", route.pattern).body, Not(HasSubstr(job_)));
  }
}

TEST_F(ConsoleTest, TheSessionTellsWhatATokenMayDo) {
  Start(/*tokens=*/true);
  const auto session = [&](const char* token) {
    return Json::parse(Ask("GET", "/console/api/session", token).body);
  };
  EXPECT_FALSE(session("")["read"]);
  EXPECT_THAT(session("")["problem"].get<std::string>(),
              HasSubstr("enter a token"));
  EXPECT_THAT(session("unknown")["problem"].get<std::string>(),
              HasSubstr("not known"));
  EXPECT_FALSE(session("submitter")["read"]);
  EXPECT_TRUE(session("reader")["read"]);
  EXPECT_FALSE(session("reader")["submit"]);
  EXPECT_EQ(session("a")["name"], "a");
}

TEST_F(ConsoleTest, APageOfAnotherSiteCanDoNothing) {
  Start(/*tokens=*/false);
  using Headers = std::map<std::string, std::string>;
  const Headers foreign[] = {{{"origin", "http://elsewhere.example"}},
                             {{"origin", "null"}},
                             {{"origin", "http://127.0.0.1:9"}},
                             {{"sec-fetch-site", "cross-site"}},
                             {{"sec-fetch-site", "same-site"}},
                             {{"host", "elsewhere.example:7071"}},
                             {{"host", "elsewhere.example:7071"},
                              {"origin", "http://elsewhere.example:7071"},
                              {"sec-fetch-site", "same-origin"}}};
  for (const Headers& headers : foreign) {
    EXPECT_EQ(Ask("POST", At("/cancel"), "", headers).code, 403);
    EXPECT_EQ(Ask("GET", "/console/api/cluster", "", headers).code, 403);
  }
  for (const char* type : {"text/plain", "application/x-www-form-urlencoded",
                           "multipart/form-data", ""}) {
    EXPECT_EQ(Ask("POST", At("/cancel"), "", {{"content-type", type}}).code,
              400)
        << type;
  }
  EXPECT_EQ(coordinator_->jobs().GetJob(job_)->state(),
            v1::JOB_STATE_IN_PROGRESS);
  EXPECT_EQ(Ask("POST", At("/cancel"), "",
                {{"origin", "http://127.0.0.1:7071"},
                 {"sec-fetch-site", "same-origin"},
                 {"content-type", "application/json; charset=utf-8"}})
                .code,
            200);
}

TEST(SameOriginTest, WithoutTokensOnlyNamesThatNobodyElseCanHaveAreRight) {
  for (const char* host :
       {"127.0.0.1", "127.0.0.1:7071", "10.1.2.3:80", "[::1]:7071", "[::1]",
        "localhost:7071", "node-1", "node-1:7071", "me.cluster.example:1",
        "ME.cluster.example", "me.cluster.example."}) {
    EXPECT_TRUE(CheckHost(host, "me.cluster.example").ok()) << host;
  }
  for (const char* host : {"", "elsewhere.example", "elsewhere.example:7071",
                           "127.0.0.1.elsewhere.example", "[elsewhere.example]",
                           "[::1", "1.2.3.4.5", "x.me.cluster.example"}) {
    EXPECT_FALSE(CheckHost(host, "me.cluster.example").ok()) << host;
  }
}

TEST_F(ConsoleTest, ThePageRunsNothingButItsOwnFiles) {
  Start(/*tokens=*/false);
  const HttpAnswer page = Ask("GET", "/console/");
  EXPECT_EQ(page.code, 200);
  EXPECT_THAT(page.content_type, HasSubstr("text/html"));
  const auto policy = std::find_if(
      page.headers.begin(), page.headers.end(),
      [](const auto& h) { return h.first == "Content-Security-Policy"; });
  ASSERT_NE(policy, page.headers.end());
  EXPECT_THAT(policy->second, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy->second, Not(HasSubstr("unsafe")));
  for (const ConsoleFile& file : ConsoleFiles()) {
    const std::string path = absl::StrCat("/console/", file.name);
    const HttpAnswer answer = Ask("GET", path);
    EXPECT_EQ(answer.code, 200) << path;
    EXPECT_FALSE(answer.body.empty()) << path;
    // Where XML says that a drawing is SVG, nobody is asked.
    for (const char* outside : {"https://", "//cdn", "@import", "url("}) {
      EXPECT_THAT(answer.body, Not(HasSubstr(outside))) << path;
    }
  }
  EXPECT_EQ(Ask("GET", "/console").code, 302);
  EXPECT_EQ(Ask("GET", "/").code, 302);
}

TEST_F(ConsoleTest, PrometheusFindsTheWorkersIfItMayRead) {
  Start(/*tokens=*/true);
  EXPECT_EQ(Ask("GET", "/sd").code, 401);
  EXPECT_EQ(Ask("GET", "/sd", "submitter").code, 403);
  const HttpAnswer answer = Ask("GET", "/sd", "reader");
  EXPECT_EQ(answer.content_type, "application/json");
  EXPECT_EQ(answer.body, "[]");
  handle_.Close();
  EXPECT_EQ(Ask("GET", "/sd", "reader").code, 503);
}

TEST(DiscoveryTest, ATargetIsWhereOthersReachTheWorker) {
  v1::ClusterState state;
  const auto add = [&](const char* name, const char* link,
                       const char* metrics) {
    v1::WorkerInfo* const worker = state.add_workers();
    worker->set_name(name);
    worker->set_link_address(link);
    worker->set_metrics_address(metrics);
    worker->set_device("cpu");
    worker->set_pipeline(1);
  };
  add("a", "10.0.0.5:7072", "host-a:7073");
  add("b", "[2001:db8::1]:7072", "[::1]:7173");
  add("no metrics", "10.0.0.6:7072", "");
  add("c\xff", "c.example.com:7072", "c:7073");
  EXPECT_EQ(Json::parse(DiscoveryJson(state)),
            Json::parse(
                R"([{"targets": ["10.0.0.5:7073"],
               "labels": {"__meta_sluice_worker": "a",
                          "__meta_sluice_device": "cpu",
                          "__meta_sluice_pipeline": "1"}},
              {"targets": ["[2001:db8::1]:7173"],
               "labels": {"__meta_sluice_worker": "b",
                          "__meta_sluice_device": "cpu",
                          "__meta_sluice_pipeline": "1"}},
              {"targets": ["c.example.com:7073"],
               "labels": {"__meta_sluice_worker": "c\ufffd",
                          "__meta_sluice_device": "cpu",
                          "__meta_sluice_pipeline": "1"}}])"));
}

TEST_F(ConsoleTest, NothingIsAnsweredOnceTheCoordinatorEnds) {
  Start(/*tokens=*/false);
  handle_.Close();
  EXPECT_EQ(Ask("GET", "/console/api/cluster").code, 503);
  EXPECT_EQ(Ask("GET", "/console/").code, 200);
}

}  // namespace
}  // namespace sluice
