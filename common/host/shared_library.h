#pragma once

#include <string>

namespace sluice {

// A library that is loaded at run time; it stays until the process ends.
// Thread-compatible.
class SharedLibrary {
 public:
  // Loads the library at `path`, which is looked up as dlopen does.
  explicit SharedLibrary(const std::string& path);
  bool loaded() const { return handle_ != nullptr; }
  // The reason why the library can't be loaded; "" if it is loaded.
  const std::string& error() const { return error_; }

  // Sets `function` to the library's function of this name, or to null if there
  // is none.
  template <typename Function>
  void Take(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(Symbol(name));
  }
  // The first name that Take did not find; "" if it found all.
  const std::string& missing() const { return missing_; }

 private:
  void* Symbol(const char* name);

  void* handle_ = nullptr;
  std::string error_;
  std::string missing_;
};

}  // namespace sluice
