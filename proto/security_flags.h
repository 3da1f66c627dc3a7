#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/grpc_endpoint.h"

namespace sluice {

// The flags by which a program's connections are encrypted and it shows who it
// is.
struct SecurityFlags {
  TlsFiles tls;
  bool system_authorities = false;  // --tls
  std::string server_name;
  std::string cluster_token_file;  // of coordinators and workers
  std::string token_file;          // of clients
  bool insecure_listen = false;    // of servers

  // --tls-cert, --tls-key, --tls-ca, --cluster-token-file, --insecure-listen.
  void AddCoordinator(CLI::App* app);
  // Those, and --tls-server-name.
  void AddWorker(CLI::App* app);
  // --tls, --tls-ca, --tls-cert, --tls-key, --tls-server-name, --token-file.
  void AddClient(CLI::App* app);

  // What this end's server needs: checked.
  absl::StatusOr<TlsFiles> Server() const;
  // What this end's channels need, checked, with the token of
  // --cluster-token-file or --token-file, or else of SLUICE_TOKEN, if there is
  // one.
  absl::StatusOr<ChannelSecurity> Channel() const;
};

// Reads a token from its file. kInvalidArgument if there is none in it.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

}  // namespace sluice
