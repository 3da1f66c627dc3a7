#include "common/http/http_tls.h"

#include <boost/asio/ssl/context.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

namespace ssl = boost::asio::ssl;

absl::StatusOr<std::shared_ptr<ssl::context>> MakeContext(
    const TlsFiles& files) {
  SLUICE_RETURN_IF_ERROR(CheckTlsFiles(files));
  if (files.certificate.empty()) {
    return InvalidArgument("a server of TLS needs a certificate and its key");
  }
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  boost::system::error_code error;
  context->set_options(ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1 |
                           ssl::context::no_sslv3 | ssl::context::no_sslv2,
                       error);
  if (!error) context->use_certificate_chain_file(files.certificate, error);
  if (!error) {
    context->use_private_key_file(files.key, ssl::context::pem, error);
  }
  if (!error && !files.authorities.empty()) {
    context->load_verify_file(files.authorities, error);
    if (!error) {
      context->set_verify_mode(
          ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, error);
    }
  }
  if (error) {
    return InvalidArgument("TLS with ", files.certificate, ", ", files.key,
                           files.authorities.empty() ? "" : ", ",
                           files.authorities, ": ", error.message());
  }
  return context;
}

}  // namespace

HttpTls::HttpTls(TlsFiles files, std::string stamp,
                 std::shared_ptr<ssl::context> context)
    : files_(std::move(files)),
      stamp_(std::move(stamp)),
      context_(std::move(context)) {}

absl::StatusOr<std::shared_ptr<HttpTls>> HttpTls::Create(
    const TlsFiles& files) {
  std::string stamp = TlsFilesStamp(files);
  SLUICE_ASSIGN_OR_RETURN(auto context, MakeContext(files));
  return std::shared_ptr<HttpTls>(
      new HttpTls(files, std::move(stamp), std::move(context)));
}

std::shared_ptr<ssl::context> HttpTls::Context() {
  std::string stamp = TlsFilesStamp(files_);
  if (stamp == stamp_) return context_;
  stamp_ = std::move(stamp);
  auto context = MakeContext(files_);
  if (context.ok()) {
    context_ = *std::move(context);
    LogInfo("the TLS certificate was read again, file=", files_.certificate);
  } else {
    LogWarning("the changed TLS files are not used: ",
               context.status().message());
  }
  return context_;
}

}  // namespace sluice
