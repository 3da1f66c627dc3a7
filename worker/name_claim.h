#pragma once

#include <string>

#include "common/host/file_descriptor.h"

namespace sluice {

// A name that no other process of this machine holds: `base`, or the first free
// one of base-2, base-3 and so on. The claim ends with the object, and with the
// process however that ends, so that a worker that is started again gets the
// name that it had. Where claims can't be made, the name is `base`.
class NameClaim {
 public:
  explicit NameClaim(const std::string& base);

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  FileDescriptor socket_;
};

}  // namespace sluice
