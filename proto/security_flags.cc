#include "proto/security_flags.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "common/flags/command_line.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr char kGroup[] = "Security";
constexpr size_t kMaxTokenBytes = 4096;

void AddIdentity(CLI::App* app, TlsFiles* tls) {
  app->add_option("--tls-cert", tls->certificate,
                  "this end's certificate, in PEM format; files are read again "
                  "when they change")
      ->group(kGroup)
      ->type_name("FILE");
  app->add_option("--tls-key", tls->key, "the certificate's private key")
      ->group(kGroup)
      ->type_name("FILE");
}

CLI::Option* AddAuthorities(CLI::App* app, std::string* path,
                            const char* help) {
  return app->add_option("--tls-ca", *path, help)
      ->group(kGroup)
      ->type_name("FILE");
}

void AddServerName(CLI::App* app, std::string* name) {
  app->add_option("--tls-server-name", *name,
                  "the name that certificates of servers must have; default: "
                  "the host in the address")
      ->group(kGroup)
      ->type_name("NAME");
}

void AddClusterToken(CLI::App* app, std::string* path) {
  app->add_option("--cluster-token-file", *path,
                  "a secret that the coordinator and all workers share: others "
                  "can't join")
      ->group(kGroup)
      ->type_name("FILE")
      ->envname("SLUICE_CLUSTER_TOKEN_FILE");
}

void AddInsecureListen(CLI::App* app, bool* insecure) {
  app->add_flag("--insecure-listen", *insecure,
                "let others reach --host without TLS or without tokens: for a "
                "network where all are trusted")
      ->group(kGroup);
}

}  // namespace

void SecurityFlags::AddCoordinator(CLI::App* app) {
  AddIdentity(app, &tls);
  AddAuthorities(app, &tls.authorities,
                 "authorities: clients and workers must show a certificate of "
                 "one of them");
  AddClusterToken(app, &cluster_token_file);
  AddInsecureListen(app, &insecure_listen);
}

void SecurityFlags::AddWorker(CLI::App* app) {
  AddIdentity(app, &tls);
  AddAuthorities(app, &tls.authorities,
                 "authorities of the coordinator's and the other workers' "
                 "certificates");
  AddServerName(app, &server_name);
  AddClusterToken(app, &cluster_token_file);
  AddInsecureListen(app, &insecure_listen);
}

void SecurityFlags::AddClient(CLI::App* app) {
  app->add_flag("--tls", system_authorities,
                "the coordinator speaks TLS, with a certificate of an "
                "authority that this system trusts")
      ->group(kGroup);
  AddAuthorities(app, &tls.authorities,
                 "the coordinator speaks TLS, with a certificate of these "
                 "authorities");
  AddIdentity(app, &tls);
  AddServerName(app, &server_name);
  app->add_option("--token-file", token_file,
                  "file with the token to show; default: what SLUICE_TOKEN "
                  "holds")
      ->group(kGroup)
      ->type_name("FILE")
      ->envname("SLUICE_TOKEN_FILE");
}

absl::StatusOr<TlsFiles> SecurityFlags::Server() const {
  SLUICE_RETURN_IF_ERROR(Annotate(CheckTlsFiles(tls), "--tls-cert"));
  if (tls.certificate.empty() && !tls.authorities.empty()) {
    return InvalidArgument(
        "--tls-ca needs --tls-cert and --tls-key: this end must show a "
        "certificate, too");
  }
  return tls;
}

absl::StatusOr<ChannelSecurity> SecurityFlags::Channel() const {
  ChannelSecurity security;
  security.tls = system_authorities || !tls.empty();
  security.files = tls;
  security.server_name = server_name;
  const std::string& file =
      cluster_token_file.empty() ? token_file : cluster_token_file;
  if (!file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(security.token, ReadTokenFile(file));
  } else if (const char* token = getenv("SLUICE_TOKEN")) {
    security.token = token;
  }
  SLUICE_RETURN_IF_ERROR(security.Validate());
  return security;
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxTokenBytes);
  if (!text.ok()) return InvalidArgument(text.status().message());
  const std::string token(absl::StripAsciiWhitespace(*text));
  if (token.size() < 16 ||
      !std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return InvalidArgument(
        path,
        " holds no token: one word of 16 characters at least, such as "
        "`openssl rand -hex 32` makes");
  }
  return token;
}

}  // namespace sluice
