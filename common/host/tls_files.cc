#include "common/host/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kMaxPemBytes = size_t{1} << 20;

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
struct FreeX509 {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Bio = std::unique_ptr<BIO, FreeBio>;
using Certificate = std::unique_ptr<X509, FreeX509>;
using Key = std::unique_ptr<EVP_PKEY, FreeKey>;

// A key with a passphrase must not ask for it on the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::StatusOr<Bio> OpenPem(const std::string& path) {
  const absl::StatusOr<std::string> read = ReadSmallFile(path, kMaxPemBytes);
  if (!read.ok()) return InvalidArgument(read.status().message());
  const std::string& text = *read;
  Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr ||
      BIO_write(bio.get(), text.data(), static_cast<int>(text.size())) !=
          static_cast<int>(text.size())) {
    return ResourceExhausted(path, ": no memory to read it");
  }
  return bio;
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const Bio bio, OpenPem(path));
  Certificate certificate(
      PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (certificate == nullptr) {
    return InvalidArgument(path, " has no certificate in PEM format");
  }
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) {
    return InvalidArgument(path, ": the certificate has expired; renew it");
  }
  return certificate;
}

absl::StatusOr<Key> ReadKey(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const Bio bio, OpenPem(path));
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return InvalidArgument(
        path, " has no private key in PEM format without a passphrase");
  }
  return key;
}

}  // namespace

absl::Status CheckTlsFiles(const TlsFiles& files) {
  if (files.certificate.empty() != files.key.empty()) {
    return InvalidArgument(
        "a TLS certificate and its key are needed together; ",
        files.key.empty() ? "the key" : "the certificate", " is missing");
  }
  if (!files.certificate.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const Certificate certificate,
                            ReadCertificate(files.certificate));
    SLUICE_ASSIGN_OR_RETURN(const Key key, ReadKey(files.key));
    const bool fits = X509_check_private_key(certificate.get(), key.get()) == 1;
    ERR_clear_error();
    if (!fits) {
      return InvalidArgument(files.key,
                             " is not the key of the certificate in ",
                             files.certificate);
    }
  }
  if (!files.authorities.empty()) {
    SLUICE_RETURN_IF_ERROR(ReadCertificate(files.authorities).status());
  }
  return absl::OkStatus();
}

std::string TlsFilesStamp(const TlsFiles& files) {
  std::string stamp;
  for (const std::string* path :
       {&files.certificate, &files.key, &files.authorities}) {
    struct stat s = {};
    if (path->empty() || stat(path->c_str(), &s) != 0) {
      absl::StrAppend(&stamp, "-;");
      continue;
    }
    absl::StrAppend(&stamp, s.st_ino, ",", s.st_size, ",", s.st_mtim.tv_sec,
                    ".", s.st_mtim.tv_nsec, ";");
  }
  return stamp;
}

}  // namespace sluice
