#include "tests/support/test_certificates.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>

namespace sluice {
namespace {

void Require(bool fine) {
  if (fine) return;
  fputs("test_certificates: OpenSSL refused\n", stderr);
  abort();
}

void WritePem(const std::string& path, const std::function<int(FILE*)>& write) {
  const std::string partial = path + ".partial";
  FILE* const file = fopen(partial.c_str(), "w");
  Require(file != nullptr && write(file) == 1 && fclose(file) == 0);
  std::filesystem::rename(partial, path);
}

X509* NewCertificate(const std::string& subject, EVP_PKEY* key, long seconds) {
  static std::atomic<long> serial = 1;
  X509* const certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -7200);
  X509_gmtime_adj(X509_getm_notAfter(certificate), seconds);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(
      X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
      reinterpret_cast<const unsigned char*>(subject.c_str()), -1, -1, 0);
  return certificate;
}

void AddExtension(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension =
      X509V3_EXT_conf_nid(nullptr, &context, nid, value);
  Require(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

}  // namespace

struct TestAuthority::Keys {
  EVP_PKEY* key;
  X509* certificate;
};

TestAuthority::TestAuthority(const std::string& dir, const std::string& name)
    : path_(dir + "/" + name + ".pem"), keys_(new Keys) {
  keys_->key = EVP_EC_gen("P-256");
  Require(keys_->key != nullptr);
  X509* const certificate = NewCertificate(name, keys_->key, 3600);
  keys_->certificate = certificate;
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  AddExtension(certificate, certificate, NID_basic_constraints,
               "critical,CA:TRUE");
  AddExtension(certificate, certificate, NID_subject_key_identifier, "hash");
  Require(X509_sign(certificate, keys_->key, EVP_sha256()) > 0);
  WritePem(path_,
           [&](FILE* file) { return PEM_write_X509(file, certificate); });
}

TestAuthority::~TestAuthority() {
  X509_free(keys_->certificate);
  EVP_PKEY_free(keys_->key);
  delete keys_;
}

void TestAuthority::Issue(const std::string& subject,
                          const std::string& certificate_path,
                          const std::string& key_path, long seconds) const {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  Require(key != nullptr);
  X509* const certificate = NewCertificate(subject, key, seconds);
  X509_set_issuer_name(certificate, X509_get_subject_name(keys_->certificate));
  AddExtension(certificate, keys_->certificate, NID_subject_alt_name,
               "DNS:localhost,IP:127.0.0.1");
  AddExtension(certificate, keys_->certificate, NID_ext_key_usage,
               "serverAuth,clientAuth");
  Require(X509_sign(certificate, keys_->key, EVP_sha256()) > 0);
  WritePem(key_path, [&](FILE* file) {
    return PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr,
                                nullptr);
  });
  WritePem(certificate_path,
           [&](FILE* file) { return PEM_write_X509(file, certificate); });
  X509_free(certificate);
  EVP_PKEY_free(key);
}

}  // namespace sluice
