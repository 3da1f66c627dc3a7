#pragma once

#include <string>

namespace sluice {

// A library that is loaded at run time; it stays until the process ends.
// Thread-compatible.
class SharedLibrary {
 public:
  // `path` as dlopen takes it.
  explicit SharedLibrary(const std::string& path);
  bool loaded() const { return handle_ != nullptr; }
  // Why it can't be loaded; "" if it is.
  const std::string& error() const { return error_; }

  // Sets `function` to the one of this name; to null if there is none, or no
  // library.
  template <typename Function>
  void Take(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(Symbol(name));
  }
  // The first name that was not there; "" if all were.
  const std::string& missing() const { return missing_; }

 private:
  void* Symbol(const char* name);

  void* handle_ = nullptr;
  std::string error_;
  std::string missing_;
};

}  // namespace sluice
