#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace sluice {

// Finds the worker to blame when links between workers can't be opened. Workers
// are known by name. Thread-compatible.
//
// One failure does not tell which end is to blame; mostly it is the far one,
// which can't be reached: a wrong address, a firewall. But a worker that fails
// to reach two others, which all others reach, is itself cut off.
class LinkBlame {
 public:
  struct Verdict {
    std::string culprit;
    // Workers blamed before for failures that now are the culprit's.
    std::vector<std::string> innocent;
  };
  // `from` could not open its link to `to`.
  Verdict OnUnreached(const std::string& from, const std::string& to);
  void OnReached(const std::string& from, const std::string& to);
  // Forgets all findings about this worker.
  void Forget(const std::string& name);

 private:
  // The workers that each failed to reach since it last reached them.
  std::map<std::string, std::set<std::string>> unreached_;
};

}  // namespace sluice
