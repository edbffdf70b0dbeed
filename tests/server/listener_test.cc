#include "server/listener.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/net/channel.h"
#include "foreshard/v1/admin.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "grpcpp/security/server_credentials.h"

namespace foreshard {
namespace {

class Answering final : public v1::Admin::Service {
  grpc::Status GetStatus(grpc::ServerContext*, const v1::StatusRequest*, v1::StatusReply* reply) override {
    reply->set_job_name("answered");
    return grpc::Status::OK;
  }
};

struct Served {
  explicit Served(const std::string& address, uint32_t most_files = 10000) {
    auto bound = Listener::Bind(address);
    EXPECT_TRUE(bound.ok()) << bound.status();
    listener = *std::move(bound);
    grpc::ServerBuilder builder;
    builder.RegisterService(&service);
    listener->AddTo(builder, grpc::InsecureServerCredentials());
    server = builder.BuildAndStart();
    listener->Start(most_files);
  }
  ~Served() {
    listener->Stop();
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  }

  Answering service;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<grpc::Server> server;
};

bool Answers(const std::shared_ptr<grpc::Channel>& channel, int seconds = 20) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
  context.set_wait_for_ready(true);
  v1::StatusReply reply;
  return v1::Admin::NewStub(channel)->GetStatus(&context, {}, &reply).ok() && reply.job_name() == "answered";
}

bool HasIpv6() {
  const int made = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 loopback = {};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  const bool has = made >= 0 && bind(made, reinterpret_cast<sockaddr*>(&loopback), sizeof loopback) == 0;
  if (made >= 0) close(made);
  return has;
}

TEST(Listener, AnswersOnWhatItWasGiven) {
  for (const char* address : {"127.0.0.1:0", "localhost:0", "0.0.0.0:0"}) {
    const Served served(address);
    EXPECT_GT(served.listener->port(), 0);
    EXPECT_TRUE(Answers(MakeChannel(absl::StrCat("127.0.0.1:", served.listener->port())))) << address;
  }
  if (!HasIpv6()) GTEST_SKIP() << "no IPv6 on this machine";
  for (const char* address : {"[::1]:0", "[::]:0", "0.0.0.0:0"}) {
    const Served served(address);
    EXPECT_TRUE(Answers(MakeChannel(absl::StrCat("[::1]:", served.listener->port())))) << address;
  }
}

TEST(Listener, APortThatIsTakenAndWhatIsNoAddressOfThisMachine) {
  const auto first = Listener::Bind("127.0.0.1:0").value();
  const auto second = Listener::Bind(absl::StrCat("127.0.0.1:", first->port()));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), ::testing::HasSubstr("Address already in use"));
  EXPECT_EQ(Listener::Bind("192.0.2.1:0").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Listener::Bind("127.0.0.1").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Listener, APortIsFreeAgainOnceItHasStopped) {
  auto served = std::make_unique<Served>("127.0.0.1:0");
  const std::string address = absl::StrCat("127.0.0.1:", served->listener->port());
  EXPECT_TRUE(Answers(MakeChannel(address)));
  served.reset();
  const Served again(address);
  EXPECT_TRUE(Answers(MakeChannel(address)));
}

TEST(Listener, AtItsBoundConnectionsAreClosedAndThoseThatThereAreGoOn) {
  // The lowest number that is free; the server and the first caller take some.
  const int free_file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(free_file, 0);
  close(free_file);
  const Served served("127.0.0.1:0", static_cast<uint32_t>(free_file) + 100);
  const std::string address = absl::StrCat("127.0.0.1:", served.listener->port());
  const auto before = MakeChannel(address);
  ASSERT_TRUE(Answers(before));
  std::vector<int> sockets;
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(served.listener->port()));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Both ends are this process's files.
  for (int k = 0; k < 100; ++k) {
    sockets.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(sockets.back(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0) << k;
  }
  for (int k = 0; k < 2000 && served.listener->refused() == 0; ++k) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GT(served.listener->refused(), 0u);
  EXPECT_TRUE(Answers(before)) << "who was there is served";
  for (const int socket : sockets) close(socket);
  EXPECT_TRUE(Answers(MakeChannel(address))) << "and others once there is room";
}

}  // namespace
}  // namespace foreshard
