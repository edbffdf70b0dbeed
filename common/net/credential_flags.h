// The options by which every program that listens or calls takes its credentials.
//
//   CLI::App app;
//   CredentialFlags credential_flags;
//   credential_flags.AddTo(app);
//   CLI11_PARSE(app, argc, argv);
//   auto credentials = credential_flags.Load(TlsSide::kClient);
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "common/net/credentials.h"

namespace foreshard {

struct CredentialFlags {
  CredentialFiles files;

  void AddTo(CLI::App& app) {
    const auto file = [&](const char* flag, std::string& path, const char* help) {
      app.add_option(flag, path, help)->type_name("FILE")->group("Trust");
    };
    file("--tls-certificate", files.pem.certificate,
         "Mutual TLS: this program's certificate, PEM; tools/make-certificates makes all three. "
         "They are read again when they change");
    file("--tls-key", files.pem.key, "Its private key, which others must not be able to read");
    file("--tls-ca", files.pem.ca, "Who may sign the certificates of the other side");
    file("--token-file", files.token,
         "The job's secret: servers that have one refuse everybody without it");
    app.add_flag("--insecure", files.insecure,
                 "Let plain text leave this machine: allow other addresses than loopback without "
                 "TLS, also for /metrics, which never has it")
        ->group("Trust");
  }

  // Errors as Credentials::Load.
  absl::StatusOr<Credentials> Load(TlsSide side) const { return Credentials::Load(files, side); }

  // The same options for another program: names of files, no secrets.
  std::vector<std::string> Arguments() const {
    std::vector<std::string> arguments;
    const auto add = [&](const char* flag, const std::string& path) {
      if (!path.empty()) arguments.push_back(std::string(flag) + "=" + path);
    };
    add("--tls-certificate", files.pem.certificate);
    add("--tls-key", files.pem.key);
    add("--tls-ca", files.pem.ca);
    add("--token-file", files.token);
    if (files.insecure) arguments.push_back("--insecure");
    return arguments;
  }
};

}  // namespace foreshard
