#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/host/tls_files.h"

namespace boost::asio::ssl {
class context;
}  // namespace boost::asio::ssl

namespace sluice {

// What a server needs to speak TLS, read again when its files change, so that
// certificates are renewed without a restart. Used from one thread.
class HttpTls {
 public:
  // kInvalidArgument names the file that can't be read or does not fit.
  static absl::StatusOr<std::shared_ptr<HttpTls>> Create(const TlsFiles& files);

  // For a new connection. If the files changed and are not right, this is
  // logged once, and what was read before stays in use.
  std::shared_ptr<boost::asio::ssl::context> Context();

 private:
  HttpTls(TlsFiles files, std::string stamp,
          std::shared_ptr<boost::asio::ssl::context> context);

  const TlsFiles files_;
  std::string stamp_;
  std::shared_ptr<boost::asio::ssl::context> context_;
};

}  // namespace sluice
