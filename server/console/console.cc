#include "server/console/console.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/access/http_guard.h"
#include "server/console/console_files.h"
#include "server/console/console_json.h"
#include "server/console/same_origin.h"
#include "server/job_operations.h"

namespace sluice {
namespace {

constexpr size_t kMaxBodyBytes = 4096;
constexpr int64_t kDefaultErrors = 25;
constexpr int64_t kMaxErrors = 200;
constexpr int64_t kMaxPage = 200;
// Nothing but the page's own files, and no text becomes part of the page.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'";

std::string MachineName() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0) return "";
  return name;
}

HttpAnswer Guarded(HttpAnswer answer) {
  answer.headers.emplace_back("Content-Security-Policy", kPolicy);
  answer.headers.emplace_back("Referrer-Policy", "no-referrer");
  answer.headers.emplace_back("Cross-Origin-Opener-Policy", "same-origin");
  answer.headers.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
  return answer;
}

HttpAnswer File(const std::string& name) {
  for (const ConsoleFile& file : ConsoleFiles()) {
    if (file.name != name) continue;
    return Guarded({.content_type = std::string(file.content_type),
                    .body = std::string(file.body)});
  }
  return Guarded(HttpError(404, "the console has no such file"));
}

// From / and /console.
HttpAnswer ToConsole(const HttpRequest&) {
  return {.code = 302,
          .body =
              "/console/  what this coordinator does\n"
              "/sd        its workers, for Prometheus\n"
              "/metrics   for Prometheus\n"
              "/healthz   whether this process lives\n"
              "/readyz    whether it can do its work\n",
          .headers = {{"Location", "console/"}}};
}

// A number of the query from 0 to `max`.
absl::StatusOr<int64_t> Number(const HttpRequest& request, const char* key,
                               int64_t value, int64_t max) {
  const auto it = request.query.find(key);
  if (it == request.query.end()) return value;
  if (!absl::SimpleAtoi(it->second, &value) || value < 0) {
    return InvalidArgument(key, " is no number from 0 on");
  }
  return std::min(value, max);
}

absl::StatusOr<int32_t> Priority(const HttpRequest& request) {
  const auto body = nlohmann::json::parse(request.body, nullptr, false);
  if (!body.is_object() || body.size() != 1 || !body.contains("priority") ||
      !body["priority"].is_number_integer() ||
      body["priority"] < std::numeric_limits<int32_t>::min() ||
      body["priority"] > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument(
        "the body is not {\"priority\": N} with a whole number of 32 bits");
  }
  return body["priority"].get<int32_t>();
}

const std::string& Job(const HttpRequest& request) {
  return request.params.at("job");
}

absl::StatusOr<std::string> ShowJob(JobOperations jobs,
                                    absl::StatusOr<v1::Job> job) {
  if (!job.ok()) return job.status();
  return JobJson(*job, jobs.PaceOf(*job));
}

absl::StatusOr<std::string> ListJobs(JobOperations jobs,
                                     const HttpRequest& request) {
  v1::ListJobsRequest list;
  SLUICE_ASSIGN_OR_RETURN(const int64_t size,
                          Number(request, "page_size", 0, kMaxPage));
  list.set_page_size(static_cast<int32_t>(size));
  if (const auto it = request.query.find("page_token");
      it != request.query.end()) {
    list.set_page_token(it->second);
  }
  SLUICE_ASSIGN_OR_RETURN(v1::ListJobsResponse page,
                          jobs.List(list, request.caller));
  std::vector<std::string> rows;
  for (v1::Job& job : *page.mutable_jobs()) {
    job.clear_plan();  // it is as large as the cluster
    rows.push_back(JobJson(job, jobs.PaceOf(job)));
  }
  return JobsJson(rows, page.next_page_token());
}

absl::StatusOr<std::string> ListErrors(JobOperations jobs,
                                       const HttpRequest& request) {
  SLUICE_ASSIGN_OR_RETURN(
      const int64_t from,
      Number(request, "from", 0, std::numeric_limits<int64_t>::max()));
  SLUICE_ASSIGN_OR_RETURN(const int64_t limit,
                          Number(request, "limit", kDefaultErrors, kMaxErrors));
  // One more tells whether there are others.
  SLUICE_ASSIGN_OR_RETURN(
      const std::vector<JobManager::FailedRequest> errors,
      jobs.ReadErrors(Job(request), from, limit + 1, request.caller));
  return ErrorsJson(errors, static_cast<size_t>(limit));
}

}  // namespace

Console::Console(CoordinatorHandle* coordinator, CallGuard* guard,
                 bool needs_token)
    : coordinator_(coordinator),
      guard_(guard),
      needs_token_(needs_token),
      machine_(MachineName()) {}

HttpAnswer Console::Answer(const HttpRequest& request, const Work& work) {
  absl::Status refused = CheckSameOrigin(request);
  if (refused.ok() && !needs_token_) {
    refused = CheckHost(request.Header("host"), machine_);
  }
  if (!refused.ok()) return Guarded(HttpError(refused));
  absl::StatusOr<std::string> json = coordinator_->Use(
      [&](Coordinator* coordinator) { return work(coordinator, request); });
  return Guarded(json.ok() ? HttpAnswer::Json(*std::move(json))
                           : HttpError(json.status()));
}

std::string Console::Session(HttpRequest request) const {
  // Whoever shows no token is not refused, but told.
  if (needs_token_ && request.Header("authorization").empty()) {
    return SessionJson(Caller(),
                       "enter a token to see this coordinator's jobs");
  }
  const absl::Status allowed = GuardHttp(guard_)(&request, Scope::kRead);
  return SessionJson(request.caller, std::string(allowed.message()));
}

HttpRoute Console::Api(const char* method, absl::string_view path, Scope scope,
                       Work work) {
  return {.method = method,
          .pattern = absl::StrCat("/console/api/", path),
          .scope = scope,
          .handler =
              [this, work = std::move(work)](const HttpRequest& request) {
                return Answer(request, work);
              },
          .max_body_bytes = kMaxBodyBytes};
}

std::vector<HttpRoute> Console::Routes() {
  std::vector<HttpRoute> routes;
  const auto page = [&](const char* pattern, auto handler) {
    routes.push_back({.method = "GET",
                      .pattern = pattern,
                      .scope = Scope::kOpen,
                      .handler = handler,
                      .quick = true});
  };
  page("/", ToConsole);
  page("/console", ToConsole);
  page("/console/", [](const HttpRequest&) { return File("index.html"); });
  page("/console/{file}", [](const HttpRequest& request) {
    return File(request.params.at("file"));
  });

  routes.push_back(
      Api("GET", "session", Scope::kOpen,
          [this](Coordinator*, const HttpRequest& r)
              -> absl::StatusOr<std::string> { return Session(r); }));
  const auto read = [&](const char* path, Work work) {
    routes.push_back(Api("GET", path, Scope::kRead, std::move(work)));
  };
  read("cluster",
       [](Coordinator* c, const HttpRequest&) -> absl::StatusOr<std::string> {
         return ClusterJson(c->cluster_state());
       });
  read("queue",
       [](Coordinator* c, const HttpRequest& r) -> absl::StatusOr<std::string> {
         SLUICE_ASSIGN_OR_RETURN(
             const int64_t after,
             Number(r, "after_us", 0, std::numeric_limits<int64_t>::max()));
         return QueueJson(c->jobs().queue_history(), after);
       });
  read("jobs", [](Coordinator* c, const HttpRequest& r) {
    return ListJobs(JobOperations(&c->jobs()), r);
  });
  read("jobs/{job}", [](Coordinator* c, const HttpRequest& r) {
    JobOperations jobs(&c->jobs());
    return ShowJob(jobs, jobs.Get(Job(r), r.caller));
  });
  read("jobs/{job}/timeline",
       [](Coordinator* c, const HttpRequest& r) -> absl::StatusOr<std::string> {
         SLUICE_ASSIGN_OR_RETURN(
             const JobHistory history,
             JobOperations(&c->jobs()).History(Job(r), r.caller));
         return TimelineJson(history);
       });
  read("jobs/{job}/errors", [](Coordinator* c, const HttpRequest& r) {
    return ListErrors(JobOperations(&c->jobs()), r);
  });

  const auto change = [&](const char* path, auto operation) {
    routes.push_back(Api("POST", path, Scope::kSubmit,
                         [operation](Coordinator* c, const HttpRequest& r) {
                           JobOperations jobs(&c->jobs());
                           return ShowJob(jobs,
                                          (jobs.*operation)(Job(r), r.caller));
                         }));
  };
  change("jobs/{job}/cancel", &JobOperations::Cancel);
  change("jobs/{job}/pause", &JobOperations::Pause);
  change("jobs/{job}/resume", &JobOperations::Resume);
  routes.push_back(Api(
      "POST", "jobs/{job}/priority", Scope::kSubmit,
      [](Coordinator* c, const HttpRequest& r) -> absl::StatusOr<std::string> {
        SLUICE_ASSIGN_OR_RETURN(const int32_t priority, Priority(r));
        JobOperations jobs(&c->jobs());
        return ShowJob(jobs, jobs.SetPriority(Job(r), priority, r.caller));
      }));
  return routes;
}

}  // namespace sluice
