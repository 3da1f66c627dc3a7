#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/threads/mutex.h"
#include "common/types.h"
#include "coordinator/request.h"

namespace sluice {

// Joins the requests of a line that has several: each ends by itself, and the
// line is answered once, when all have ended. Thread-safe.
class LineJoiner {
 public:
  // Returns the whole line if this was the last of its requests.
  std::optional<FinishedLine> Add(FinishedRequest finished);
  // Forgets the lines of a job that has ended.
  void Forget(JobId job);
  // The bytes of requests that wait for others of their lines.
  int64_t bytes() const;
  // Whether these are so many that no more lines may be begun.
  bool HoldsBack();
  // Whether HoldsBack() was true when it was asked last, and would not be now.
  bool LetsGo();

 private:
  struct Begun {
    FinishedLine parts;
    std::vector<bool> ended;  // parallel
    size_t left = 0;
    int64_t bytes = 0;
  };
  mutable Mutex mu_;
  std::map<std::pair<JobId, int64_t>, Begun> lines_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool held_back_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice
