#include "common/net/credentials.h"

#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/channel.h"
#include "common/net/pem_watcher.h"
#include "common/net/secret_file.h"
#include "common/net/tls_probe.h"
#include "glog/logging.h"
#include "grpc/grpc.h"
#include "grpc/grpc_security.h"
#include "grpc/slice.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace foreshard {
namespace {

constexpr char kHeader[] = "authorization";
constexpr char kScheme[] = "Bearer ";

std::string_view View(grpc::string_ref text) { return {text.data(), text.length()}; }

// Refuses every call that does not bear the token; handlers never see it.
class TokenCheck final : public grpc::AuthMetadataProcessor {
 public:
  explicit TokenCheck(const std::string& token) : expected_(absl::StrCat(kScheme, token)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*,
                       OutputMetadata* consumed, OutputMetadata*) override {
    const auto found = metadata.equal_range(kHeader);
    if (found.first == found.second) {
      return {grpc::StatusCode::UNAUTHENTICATED,
              "this server's job has a token and the call came without one: give --token-file "
              "with a copy of the file that foreshard-server has as its --token-file"};
    }
    bool good = false;
    for (auto it = found.first; it != found.second; ++it) {
      good |= SameSecret(View(it->second), expected_);
      consumed->emplace(kHeader, std::string(View(it->second)));
    }
    if (good) return grpc::Status::OK;
    return {grpc::StatusCode::UNAUTHENTICATED,
            "the job token is another one than this server's: the file of --token-file must be a "
            "copy of the one that foreshard-server has as its --token-file (is this server one of "
            "your job's?)"};
  }

 private:
  const std::string expected_;
};

// Plain text with a metadata processor: grpc::InsecureServerCredentials abort where they are
// given one.
class PlainServerCredentials final : public grpc::ServerCredentials {
 public:
  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& processor) override {
    processor_ = processor;
  }

 private:
  using Processor = std::shared_ptr<grpc::AuthMetadataProcessor>;

  int AddPortToServer(const std::string& address, grpc_server* server) override {
    grpc_server_credentials* credentials = grpc_insecure_server_credentials_create();
    if (processor_ != nullptr) {
      grpc_server_credentials_set_auth_metadata_processor(
          credentials, {.process = Process, .destroy = Destroy, .state = new Processor(processor_)});
    }
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  static void Destroy(void* state) { delete static_cast<Processor*>(state); }

  static std::string_view View(const grpc_slice& slice) {
    return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
  }

  static void Process(void* state, grpc_auth_context*, const grpc_metadata* metadata, size_t count,
                      grpc_process_auth_metadata_done_cb done, void* user_data) {
    grpc::AuthMetadataProcessor::InputMetadata input;
    std::vector<grpc_metadata> consumed;
    for (size_t k = 0; k < count; ++k) {
      const std::string_view key = View(metadata[k].key);
      const std::string_view value = View(metadata[k].value);
      input.emplace(grpc::string_ref(key.data(), key.size()),
                    grpc::string_ref(value.data(), value.size()));
      if (key == kHeader) consumed.push_back(metadata[k]);
    }
    grpc::AuthMetadataProcessor::OutputMetadata taken, response;
    const grpc::Status status =
        (*static_cast<Processor*>(state))->Process(input, nullptr, &taken, &response);
    done(user_data, consumed.data(), taken.empty() ? 0 : consumed.size(), nullptr, 0,
         static_cast<grpc_status_code>(status.error_code()), status.error_message().c_str());
  }

  Processor processor_;
};

// Gives every call of a channel with TLS the token.
class TokenPlugin final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenPlugin(const std::string& token) : value_(absl::StrCat(kScheme, token)) {}

  bool IsBlocking() const override { return false; }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<std::string, std::string>* metadata) override {
    metadata->emplace(kHeader, value_);
    return grpc::Status::OK;
  }
  std::string DebugString() override { return "job token"; }

 private:
  const std::string value_;
};

// The same in plain text, where gRPC takes no call credentials. Interceptors cost another
// pass through the completion queue.
class TokenSender final : public grpc::experimental::Interceptor {
 public:
  explicit TokenSender(const std::string& value) : value_(value) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(kHeader, value_);
    }
    methods->Proceed();
  }

 private:
  const std::string& value_;  // the factory's
};

class TokenSenderFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenSenderFactory(const std::string& token) : value_(absl::StrCat(kScheme, token)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenSender(value_);
  }

 private:
  const std::string value_;
};

absl::Status CheckComplete(const PemFiles& files) {
  std::string missing;
  const std::pair<const char*, const std::string*> all[] = {{"--tls-certificate", &files.certificate},
                                                            {"--tls-key", &files.key},
                                                            {"--tls-ca", &files.ca}};
  for (const auto& [flag, path] : all) {
    if (path->empty()) absl::StrAppend(&missing, missing.empty() ? "" : ", ", flag);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      missing, " missing: TLS here is mutual and needs --tls-certificate, --tls-key and --tls-ca "
      "together; tools/make-certificates makes all three"));
}

}  // namespace

struct Credentials::State {
  CredentialFiles files;
  std::string token;  // empty: none
  bool tls = false;
  const PemWatcher* watcher = nullptr;
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider;
  std::shared_ptr<grpc::ChannelCredentials> channel;
};

absl::StatusOr<Credentials> Credentials::Load(const CredentialFiles& files, TlsSide side) {
  auto state = std::make_shared<State>();
  state->files = files;
  const PemFiles& pem = files.pem;
  state->tls = !(pem.certificate.empty() && pem.key.empty() && pem.ca.empty());
  if (!files.token.empty()) {
    absl::StatusOr<std::string> token = LoadJobToken(files.token);
    if (!token.ok()) return token.status();
    state->token = *std::move(token);
  }
  if (state->tls) {
    if (absl::Status status = CheckComplete(pem); !status.ok()) return status;
    const auto watcher = PemWatcher::Start(pem, side);
    if (!watcher.ok()) return watcher.status();
    state->watcher = *watcher;
    const PemFiles& served = state->watcher->served();
    // The watcher takes as long at most to see what is new.
    state->provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
        served.key, served.certificate, served.ca, kReloadSeconds / 2);
    grpc::experimental::TlsChannelCredentialsOptions options;
    options.set_certificate_provider(state->provider);
    options.watch_root_certs();
    options.watch_identity_key_cert_pairs();
    options.set_certificate_verifier(
        std::make_shared<grpc::experimental::HostNameCertificateVerifier>());
    state->channel = grpc::experimental::TlsCredentials(options);
    if (!state->token.empty()) {
      state->channel = grpc::CompositeChannelCredentials(
          state->channel,
          grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenPlugin>(state->token)));
    }
  }
  Credentials credentials;
  credentials.state_ = std::move(state);
  return credentials;
}

bool Credentials::tls() const { return state_ != nullptr && state_->tls; }

bool Credentials::insecure() const { return state_ != nullptr && state_->files.insecure; }

std::string Credentials::Describe() const {
  return absl::StrCat(tls() ? "mutual TLS" : "plain text",
                      state_ != nullptr && !state_->token.empty() ? ", job token required" : "");
}

absl::Status Credentials::reload_status() const {
  return tls() ? state_->watcher->status() : absl::OkStatus();
}

absl::Status Credentials::CheckListen(const std::string& address) const {
  const absl::StatusOr<bool> loopback = IsLoopbackAddress(address);
  if (!loopback.ok()) return loopback.status();
  if (tls() || *loopback) return absl::OkStatus();
  if (!insecure()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "refusing to listen on ", address,
        ": other machines can reach it and there is no encryption. Give --tls-certificate, "
        "--tls-key and --tls-ca (tools/make-certificates makes them), listen on a loopback address "
        "such as 127.0.0.1, or say --insecure on a network that is yours alone"));
  }
  LOG(WARNING) << "INSECURE: listening on " << address
               << " without TLS: everybody who reaches it can read all that is sent"
               << (state_->token.empty()
                       ? ", and change the parameters"
                       : "; the job token, too, so that it keeps nobody out for long");
  return absl::OkStatus();
}

absl::Status Credentials::CheckCall(const std::vector<std::string>& addresses) const {
  std::string far;
  for (const std::string& address : addresses) {
    const absl::StatusOr<bool> loopback = IsLoopbackAddress(address);
    if (!loopback.ok()) return loopback.status();
    if (!*loopback) absl::StrAppend(&far, far.empty() ? "" : ", ", address);
  }
  if (tls() || far.empty()) return absl::OkStatus();
  if (!insecure()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "refusing to call ", far,
        ": not on this machine, and there is no encryption. Give --tls-certificate, --tls-key and "
        "--tls-ca (tools/make-certificates makes them), or say --insecure on a network that is "
        "yours alone"));
  }
  LOG(WARNING) << "INSECURE: calling " << far
               << " without TLS: everybody in between can read and change what is sent"
               << (state_->token.empty() ? "" : ", and learn the job token");
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> Credentials::Server() const {
  std::shared_ptr<grpc::ServerCredentials> server;
  if (tls()) {
    grpc::experimental::TlsServerCredentialsOptions options(state_->provider);
    options.watch_root_certs();
    options.watch_identity_key_cert_pairs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    server = grpc::experimental::TlsServerCredentials(options);
  } else if (state_ == nullptr || state_->token.empty()) {
    return grpc::InsecureServerCredentials();
  } else {
    server = std::make_shared<PlainServerCredentials>();
  }
  if (!state_->token.empty()) {
    server->SetAuthMetadataProcessor(std::make_shared<TokenCheck>(state_->token));
  }
  return server;
}

std::shared_ptr<grpc::ChannelCredentials> Credentials::Channel() const {
  return tls() ? state_->channel : grpc::InsecureChannelCredentials();
}

std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
Credentials::Interceptors() const {
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> all;
  if (state_ != nullptr && !tls() && !state_->token.empty()) {
    all.push_back(std::make_unique<TokenSenderFactory>(state_->token));
  }
  return all;
}

std::string Credentials::Explain(const std::string& address) const {
  return ProbeTls(address, tls() ? &state_->files.pem : nullptr);
}

std::function<std::string()> Credentials::Explainer(const std::string& address) const {
  return [*this, address] { return Explain(address); };
}

}  // namespace foreshard
