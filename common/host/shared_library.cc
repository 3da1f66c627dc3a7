#include "common/host/shared_library.h"

#include <dlfcn.h>

namespace sluice {

SharedLibrary::SharedLibrary(const std::string& path)
    : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* error = dlerror();
  error_ = error != nullptr ? error : path;
}

void* SharedLibrary::Symbol(const char* name) {
  void* const symbol = handle_ == nullptr ? nullptr : dlsym(handle_, name);
  if (symbol == nullptr && missing_.empty()) missing_ = name;
  return symbol;
}

}  // namespace sluice
