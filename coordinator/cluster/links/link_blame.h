#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace sluice {

// Whose fault it is that links between workers can't be opened. Workers go by
// name. Thread-compatible.
//
// One failure does not tell the two ends apart, and it is mostly the far one
// that can't be reached: a wrong address, a firewall. But one that reaches
// nobody, of those whom nobody else has failed to reach, is itself cut off.
class LinkBlame {
 public:
  struct Verdict {
    std::string culprit;
    // Blamed before, for what now is the culprit's fault.
    std::vector<std::string> innocent;
  };
  // `from` could not open its link to `to`.
  Verdict OnUnreached(const std::string& from, const std::string& to);
  void OnReached(const std::string& from, const std::string& to);
  // What was found of this worker does not hold any more.
  void Forget(const std::string& name);

 private:
  // Whom each could not reach since it last could.
  std::map<std::string, std::set<std::string>> unreached_;
};

}  // namespace sluice
