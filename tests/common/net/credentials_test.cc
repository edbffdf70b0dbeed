#include "common/net/credentials.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/net/channel.h"
#include "common/net/tls_probe.h"
#include "foreshard/v1/admin.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server.h"
#include "gtest/gtest.h"
#include "tests/common/net/test_certificates.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "the-token-of-this-job";
constexpr char kOtherToken[] = "the-token-of-another-job";

// Counts the calls that came through to it, and looks for the token among what they bring.
class CountingAdmin final : public v1::Admin::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                      v1::StatusReply* reply) override {
    ++calls;
    for (const auto& [key, value] : context->client_metadata()) {
      saw_token = saw_token || key == "authorization";
    }
    reply->set_job_name("answered");
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  std::atomic<int> calls{0};
  std::atomic<bool> saw_token{false};
};

class CredentialsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    authority_ = std::make_unique<TestAuthority>(folder_ + "/ca.pem");
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string Token(const std::string& token) {
    const std::string path = absl::StrCat(folder_, "/", token);
    WriteFileWithMode(path, token + "\n", 0600);
    return path;
  }
  PemFiles ServerFiles(const std::vector<std::string>& names = {"IP:127.0.0.1"}) {
    return authority_->Issue(folder_ + "/server", {.names = names});
  }
  PemFiles ClientFiles() { return authority_->Issue(folder_ + "/client", {.use = "clientAuth"}); }

  static Credentials Load(const CredentialFiles& files, TlsSide side) {
    auto loaded = Credentials::Load(files, side);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.value_or(Credentials());
  }
  static Credentials Client(const CredentialFiles& files) { return Load(files, TlsSide::kClient); }

  // Its address.
  std::string Serve(const CredentialFiles& files, const std::string& host = "127.0.0.1") {
    return ServeWith(Load(files, TlsSide::kServer), host);
  }
  std::string ServeWith(const Credentials& credentials, const std::string& host) {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    int port = 0;
    builder.AddListeningPort(host + ":0", credentials.Server(), &port);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
    return absl::StrCat(host, ":", port);
  }

  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    v1::StatusReply reply;
    const grpc::Status status = v1::Admin::NewStub(channel)->GetStatus(&context, {}, &reply);
    EXPECT_EQ(reply.job_name(), status.ok() ? "answered" : "");
    return status;
  }
  static grpc::Status Call(const std::string& address, const Credentials& credentials) {
    return Call(MakeChannel(address, credentials));
  }

  const std::string folder_ =
      ::testing::TempDir() + "credentials_test." + std::to_string(getpid());
  std::unique_ptr<TestAuthority> authority_;
  CountingAdmin admin_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(CredentialsTest, PlainTextIsForLoopback) {
  const Credentials plain;
  EXPECT_FALSE(plain.tls());
  EXPECT_TRUE(plain.CheckListen("127.0.0.1:0").ok());
  EXPECT_TRUE(plain.CheckCall({"localhost:1", "[::1]:2", "127.0.0.7:3"}).ok());
  const absl::Status listen = plain.CheckListen("0.0.0.0:7000");
  EXPECT_EQ(listen.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(listen.message()),
              AllOf(HasSubstr("0.0.0.0:7000"), HasSubstr("--tls-certificate"), HasSubstr("--insecure")));
  const absl::Status call = plain.CheckCall({"127.0.0.1:1", "alpha:7000", "10.0.0.7:7000"});
  EXPECT_EQ(call.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(call.message()),
              AllOf(HasSubstr("alpha:7000, 10.0.0.7:7000"), Not(HasSubstr("127.0.0.1")),
                    HasSubstr("--tls-ca"), HasSubstr("--insecure")));
  EXPECT_FALSE(plain.CheckListen("nonsense").ok());
  EXPECT_FALSE(plain.CheckCall({"nonsense"}).ok());
}

TEST_F(CredentialsTest, InsecureIsSaidAloud) {
  const Credentials insecure = Load({.token = Token(kToken), .insecure = true}, TlsSide::kServer);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(insecure.CheckListen("0.0.0.0:7000").ok());
  EXPECT_TRUE(insecure.CheckCall({"alpha:7000"}).ok());
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("INSECURE: listening on 0.0.0.0:7000"),
                          HasSubstr("INSECURE: calling alpha:7000"), HasSubstr("job token"),
                          Not(HasSubstr(kToken))));
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(insecure.CheckListen("127.0.0.1:0").ok());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(CredentialsTest, TlsMayGoAnywhere) {
  const Credentials tls = Load({.pem = ServerFiles()}, TlsSide::kBoth);
  EXPECT_TRUE(tls.tls());
  EXPECT_TRUE(tls.CheckListen("0.0.0.0:7000").ok());
  EXPECT_TRUE(tls.CheckCall({"alpha:7000"}).ok());
}

TEST_F(CredentialsTest, TheThreeFilesBelongTogether) {
  const PemFiles good = ServerFiles();
  for (std::string PemFiles::* const left_out :
       {&PemFiles::certificate, &PemFiles::key, &PemFiles::ca}) {
    PemFiles files = good;
    (files.*left_out).clear();
    const auto loaded = Credentials::Load({.pem = files}, TlsSide::kServer);
    ASSERT_FALSE(loaded.ok());
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("missing: TLS here is mutual"));
  }
}

TEST_F(CredentialsTest, BadFilesAreErrorsNotCrashes) {
  PemFiles files = ServerFiles();
  files.key = folder_ + "/missing";
  EXPECT_FALSE(Credentials::Load({.pem = files}, TlsSide::kServer).ok());
  EXPECT_FALSE(Credentials::Load({.token = folder_ + "/missing"}, TlsSide::kClient).ok());
}

TEST_F(CredentialsTest, WithoutATokenTheServerTakesAllCalls) {
  const std::string address = Serve({});
  EXPECT_TRUE(Call(address, {}).ok());
  EXPECT_TRUE(Call(address, Client({.token = Token(kToken)})).ok());
}

TEST_F(CredentialsTest, ATokenIsAskedOfEveryCallInPlainText) {
  const std::string address = Serve({.token = Token(kToken)});
  grpc::Status status = Call(address, Client({.token = Token(kToken)}));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(admin_.calls, 1);
  EXPECT_FALSE(admin_.saw_token);

  status = Call(address, {});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("--token-file"), Not(HasSubstr(kToken))));
  status = Call(address, Client({.token = Token(kOtherToken)}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(status.error_message(),
              AllOf(HasSubstr("--token-file"), Not(HasSubstr(kToken)), Not(HasSubstr(kOtherToken))));
  EXPECT_EQ(admin_.calls, 1);
}

TEST_F(CredentialsTest, ATokenIsAskedOfEveryCallOverTls) {
  const std::string address = Serve({.pem = ServerFiles(), .token = Token(kToken)});
  const PemFiles client = ClientFiles();
  grpc::Status status = Call(address, Client({.pem = client, .token = Token(kToken)}));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(admin_.saw_token);
  EXPECT_EQ(Call(address, Client({.pem = client})).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  status = Call(address, Client({.pem = client, .token = Token(kOtherToken)}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("--token-file"), Not(HasSubstr(kToken))));
  EXPECT_EQ(admin_.calls, 1);
}

// Methods that nobody has are no way around it, nor are large messages.
TEST_F(CredentialsTest, ATokenIsAskedBeforeAnythingElse) {
  const std::string address = Serve({.token = Token(kToken)});
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(MakeChannel(address));
  const grpc::Slice slice(std::string(4 << 20, 'x'));
  const grpc::ByteBuffer request(&slice, 1);
  for (const char* method : {"/no.such.Service/Method", "/foreshard.v1.Admin/GetStatus"}) {
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    grpc::ByteBuffer reply;
    grpc::Status status;
    auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
    call->StartCall();
    call->Finish(&reply, &status, &reply);
    void* tag;
    bool ok;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
  }
  EXPECT_EQ(admin_.calls, 0);
}

// Through the interface that the hot path uses.
TEST_F(CredentialsTest, RawCallsBearTheToken) {
  const std::string address = Serve({.token = Token(kToken)});
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(
      MakeChannel(address, Client({.token = Token(kToken)})));
  grpc::CompletionQueue queue;
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  for (int k = 0; k < 3; ++k) {
    grpc::ClientContext context;
    grpc::ByteBuffer reply;
    grpc::Status status;
    auto call = stub.PrepareUnaryCall(&context, "/foreshard.v1.Admin/GetStatus", request, &queue);
    call->StartCall();
    call->Finish(&reply, &status, &reply);
    void* tag;
    bool ok;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  queue.Shutdown();
  void* tag;
  bool ok;
  while (queue.Next(&tag, &ok)) {
  }
  EXPECT_EQ(admin_.calls, 3);
}

TEST_F(CredentialsTest, TheServersNameMustBeTheOneCalled) {
  const std::string address =
      Serve({.pem = ServerFiles({"DNS:localhost", "IP:127.0.0.1"})});
  const std::string port = address.substr(address.rfind(':'));
  const Credentials client = Client({.pem = ClientFiles()});
  EXPECT_TRUE(Call("127.0.0.1" + port, client).ok());
  EXPECT_TRUE(Call("localhost" + port, client).ok());
  EXPECT_EQ(client.Explain(address), "");

  server_.reset();
  const std::string other = Serve({.pem = ServerFiles({"DNS:beta", "IP:10.0.0.7"})});
  const grpc::Status status = Call(other, client);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_THAT(client.Explain(other),
              AllOf(HasSubstr("beta, 10.0.0.7"), HasSubstr("not for 127.0.0.1")));
  EXPECT_EQ(admin_.calls, 2);
}

TEST_F(CredentialsTest, IPv6AddressesAreNamesToo) {
  // Some machines have no IPv6.
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("[::1]:0", Load({.pem = ServerFiles({"IP:::1"})}, TlsSide::kServer).Server(),
                           &port);
  builder.RegisterService(&admin_);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) GTEST_SKIP() << "no IPv6 loopback on this machine";
  const Credentials client = Client({.pem = ClientFiles()});
  const std::string address = absl::StrCat("[::1]:", port);
  const grpc::Status status = Call(address, client);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(client.Explain(address), "");
}

TEST_F(CredentialsTest, StrangersAreRefusedOnBothSides) {
  const std::string address = Serve({.pem = ServerFiles()});
  TestAuthority stranger(folder_ + "/stranger-ca.pem");

  // Of another authority, trusting ours: the server refuses it.
  PemFiles files = stranger.Issue(folder_ + "/stranger", {.use = "clientAuth"});
  files.ca = folder_ + "/ca.pem";
  Credentials client = Client({.pem = files});
  EXPECT_EQ(Call(address, client).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(client.Explain(address), HasSubstr(files.certificate));

  // Of ours, trusting another one: it refuses the server.
  files = ClientFiles();
  files.ca = folder_ + "/stranger-ca.pem";
  client = Client({.pem = files});
  EXPECT_EQ(Call(address, client).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(client.Explain(address),
              AllOf(HasSubstr("not signed by an authority"), HasSubstr("stranger-ca.pem")));

  // A worker's certificate does not make a server.
  EXPECT_FALSE(Credentials::Load({.pem = ClientFiles()}, TlsSide::kServer).ok());
  EXPECT_EQ(admin_.calls, 0);
}

TEST_F(CredentialsTest, WithoutAClientCertificateNobodyIsAnswered) {
  const std::string address = Serve({.pem = ServerFiles()});
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = Read(folder_ + "/ca.pem");
  EXPECT_EQ(Call(grpc::CreateChannel(address, grpc::SslCredentials(options))).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(address, {}).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(admin_.calls, 0);
}

TEST_F(CredentialsTest, WhoSpeaksTlsAndWhoDoesNotIsTold) {
  const std::string secure = Serve({.pem = ServerFiles()});
  EXPECT_THAT(Credentials().Explain(secure),
              AllOf(HasSubstr("it speaks TLS"), HasSubstr("--tls-certificate")));
  server_.reset();
  EXPECT_EQ(Credentials().Explain(secure), "") << "nobody listens there";
  const std::string plain = Serve({});
  const Credentials client = Client({.pem = ClientFiles()});
  EXPECT_EQ(Call(plain, client).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(client.Explain(plain), HasSubstr("does not speak TLS"));
  EXPECT_EQ(Credentials().Explain(plain), "");
}

TEST_F(CredentialsTest, NewFilesServeNewConnectionsWithoutARestart) {
  const PemFiles files = ServerFiles({"IP:127.0.0.1"});
  const std::string address = Serve({.pem = files});
  const Credentials client = Client({.pem = ClientFiles()});
  ASSERT_TRUE(Call(address, client).ok());
  const auto old_connection = MakeChannel(address, client);
  ASSERT_TRUE(Call(old_connection).ok());

  // The same paths, another authority: whoever has the old one is a stranger from now on.
  TestAuthority next(folder_ + "/next-ca.pem");
  const PemFiles next_server = next.Issue(folder_ + "/next", {.names = {"IP:127.0.0.1"}});
  std::filesystem::rename(next_server.key, files.key);
  std::filesystem::rename(next_server.certificate, files.certificate);
  std::filesystem::copy_file(next_server.ca, folder_ + "/copy.pem");
  std::filesystem::rename(folder_ + "/copy.pem", files.ca);
  const Credentials next_client =
      Client({.pem = next.Issue(folder_ + "/next-client", {.use = "clientAuth"})});
  grpc::Status status;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  do {
    absl::SleepFor(absl::Milliseconds(100));
    status = Call(address, next_client);
  } while (!status.ok() && absl::Now() < deadline);
  EXPECT_TRUE(status.ok()) << status.error_message();
  // What is connected stays so.
  EXPECT_TRUE(Call(old_connection).ok());
  // `client` has reloaded ca.pem, too, so that it takes the server; the server does not take it.
  EXPECT_EQ(Call(address, client).error_code(), grpc::StatusCode::UNAVAILABLE);
}

// What is written in place is there in halves for a moment, and a full disk leaves nothing: the last
// good set is served on.
TEST_F(CredentialsTest, WhatCannotServeIsNotTaken) {
  const PemFiles files = ServerFiles({"IP:127.0.0.1"});
  const Credentials server = Load({.pem = files}, TlsSide::kServer);
  const std::string address = ServeWith(server, "127.0.0.1");
  const Credentials client = Client({.pem = ClientFiles()});
  const PemFiles good = {.certificate = Read(files.certificate), .key = Read(files.key), .ca = {}};
  const PemFiles other = authority_->Issue(folder_ + "/other", {.names = {"IP:127.0.0.1"}});
  const auto write = [](const std::string& path, const std::string& text) { WriteFileWithMode(path, text, 0600); };
  const auto wait_for = [&](bool taken) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (server.reload_status().ok() != taken && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(20));
    return server.reload_status();
  };
  const struct {
    const std::string& path;
    std::string text, why;
    bool ends_grpc;  // were it given to it
  } kBad[] = {
      {files.certificate, "", "holds no certificate", true},
      {files.key, "", "holds no private key", true},
      {files.certificate, good.certificate.substr(0, good.certificate.size() / 2), "damaged", false},
      {files.key, Read(other.key), "is not the key of the certificate", false},
  };
  for (const auto& [path, text, why, ends_grpc] : kBad) {
    write(path, text);
    const absl::Status refused = wait_for(false);
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(path), HasSubstr(why)));
    // For as long as gRPC takes to look.
    if (ends_grpc) absl::SleepFor(absl::Seconds(kReloadSeconds));
    EXPECT_TRUE(Call(address, client).ok()) << why;
    write(files.certificate, good.certificate);
    write(files.key, good.key);
    EXPECT_TRUE(wait_for(true).ok()) << why;
  }
  std::filesystem::remove(files.key);
  EXPECT_THAT(std::string(wait_for(false).message()), HasSubstr("cannot be opened"));
  EXPECT_TRUE(Call(address, client).ok());
  // Another pair of the same authority, certificate first: between the two they do not fit.
  write(files.certificate, Read(other.certificate));
  write(files.key, Read(other.key));
  EXPECT_TRUE(wait_for(true).ok());
  EXPECT_TRUE(Call(address, client).ok());
}

// It ended while the server ran: none would start with it.
TEST_F(CredentialsTest, AServerWhoseCertificateHasExpiredIsNamed) {
  const PemFiles files = authority_->Issue(
      folder_ + "/server", {.names = {"IP:127.0.0.1"}, .until = absl::Now() - absl::Minutes(5)});
  EXPECT_FALSE(Credentials::Load({.pem = files}, TlsSide::kServer).ok());
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = Read(files.ca);
  options.pem_key_cert_pairs.push_back({Read(files.key), Read(files.certificate)});
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
  builder.RegisterService(&admin_);
  server_ = builder.BuildAndStart();
  ASSERT_NE(server_, nullptr);
  const std::string address = absl::StrCat("127.0.0.1:", port);
  const Credentials client = Client({.pem = ClientFiles()});
  EXPECT_EQ(Call(address, client).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(client.Explain(address), AllOf(HasSubstr("has expired"), HasSubstr("--renew")));
}

}  // namespace
}  // namespace foreshard
