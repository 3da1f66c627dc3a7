#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "common/threads/thread_annotations.h"

namespace sluice {

// Looks up host names on a thread of its own, one after the other, since that
// may take its time. Thread-safe.
class NameResolver {
 public:
  using Answer =
      std::function<void(absl::StatusOr<std::vector<std::string>> addresses)>;

  NameResolver() = default;
  // Waits for the look-up under way; the others get no answer.
  ~NameResolver();
  NameResolver(const NameResolver&) = delete;
  NameResolver& operator=(const NameResolver&) = delete;

  // `answer` is called on the resolver's thread, with the errors of
  // ResolveHost; kResourceExhausted where too many wait: then it is not called.
  // Never waits.
  absl::Status Resolve(std::string host, Answer answer);

 private:
  struct Question {
    std::string host;
    Answer answer;
  };

  void Run();

  Mutex mu_;
  CondVar changed_;
  std::deque<Question> questions_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_ ABSL_GUARDED_BY(mu_);  // once there was a question
};

}  // namespace sluice
