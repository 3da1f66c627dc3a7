#pragma once

#include <string>

namespace sluice {

// An authority of certificates for tests, valid for an hour, with keys on the
// P-256 curve.
class TestAuthority {
 public:
  // Writes its certificate to `dir`/`name`.pem. Several may have one name.
  TestAuthority(const std::string& dir, const std::string& name);
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  // The file of its certificate.
  const std::string& path() const { return path_; }

  // Writes a certificate for "localhost" and 127.0.0.1 with `subject` as its
  // common name to `certificate_path` and its key to `key_path`, each in one
  // rename. `seconds`: how long it is valid, which may be in the past.
  void Issue(const std::string& subject, const std::string& certificate_path,
             const std::string& key_path, long seconds = 3600) const;

 private:
  struct Keys;
  std::string path_;
  Keys* keys_;
};

}  // namespace sluice
