#pragma once

#include <string>

#include "absl/status/status.h"

namespace sluice {

// The PEM files of one end of a TLS connection. All are read again when they
// change.
struct TlsFiles {
  std::string certificate;  // this end's, with what leads to its authority
  std::string key;          // of the certificate
  // The authorities whose certificates the other end may show. Of a server:
  // clients must then show one (mutual TLS). Of a client: "" stands for the
  // system's.
  std::string authorities;

  bool empty() const {
    return certificate.empty() && key.empty() && authorities.empty();
  }
};

// Checks that the files can be read, hold what they should, and that key and
// certificate belong together. kInvalidArgument names the file and says what
// is wrong with it.
absl::Status CheckTlsFiles(const TlsFiles& files);

// Tells one state of the files from another: by modification times and sizes.
std::string TlsFilesStamp(const TlsFiles& files);

}  // namespace sluice
