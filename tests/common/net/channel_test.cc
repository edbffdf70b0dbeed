#include "common/net/channel.h"

#include <chrono>

#include "gmock/gmock.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/security/server_credentials.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

TEST(Addresses, AreSplit) {
  EXPECT_THAT(*ParseAddresses("a:1,[::1]:2,10.0.0.1:65535"),
              ::testing::ElementsAre("a:1", "[::1]:2", "10.0.0.1:65535"));
  for (const char* bad : {"", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:x", "a:1,", ",a:1",
                          "::1:50051", "[]:1"}) {
    EXPECT_EQ(ParseAddresses(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(BindAddress, OtherThanLoopbackMustBeSaidAloud) {
  for (const char* address : {"127.0.0.1:0", "127.1.2.3:5", "localhost:1", "[::1]:50051"}) {
    EXPECT_TRUE(CheckBindAddress(address, false).ok()) << address;
  }
  for (const char* address : {"0.0.0.0:0", "[::]:5", "10.0.0.1:1", "example.org:1",
                              "127.example.org:1"}) {
    const absl::Status status = CheckBindAddress(address, false);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("--insecure"));
    EXPECT_TRUE(CheckBindAddress(address, true).ok()) << address;
  }
  EXPECT_FALSE(CheckBindAddress("127.0.0.1", true).ok());
}

TEST(LoopbackAddress, IsWhatOnlyThisMachineReaches) {
  for (const char* address : {"127.0.0.1:0", "127.1.2.3:5", "localhost:1", "[::1]:50051"}) {
    EXPECT_TRUE(*IsLoopbackAddress(address)) << address;
  }
  for (const char* address : {"0.0.0.0:0", "[::]:5", "10.0.0.1:1", "example.org:1",
                              "127.example.org:1", "localhost.example.org:1", "[::ffff:127.0.0.1]:1"}) {
    EXPECT_FALSE(*IsLoopbackAddress(address)) << address;
  }
  EXPECT_FALSE(IsLoopbackAddress("localhost").ok());
}

TEST(Deadline, GrowsWithTheBytes) {
  grpc::ClientContext small, large;
  SetDeadline(small, 0);
  SetDeadline(large, 10 << 20);
  const auto grown = large.deadline() - small.deadline();
  EXPECT_GE(grown, std::chrono::seconds(10) - std::chrono::milliseconds(1));
  EXPECT_LT(grown, std::chrono::seconds(20));
}

// Two servers must never share a port without knowing.
TEST(ConfigureServer, TakesAPortForItselfAlone) {
  const auto start = [](const std::string& address, grpc::AsyncGenericService* service, int* port) {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), port);
    builder.RegisterAsyncGenericService(service);
    auto queue = builder.AddCompletionQueue();
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    return std::pair(std::move(server), std::move(queue));
  };
  const auto stop = [](auto& started) {
    if (started.first != nullptr) started.first->Shutdown();
    started.second->Shutdown();
    void* tag;
    bool ok;
    while (started.second->Next(&tag, &ok)) {
    }
  };
  grpc::AsyncGenericService first_service, second_service;
  int port = 0, same = 0;
  auto first = start("127.0.0.1:0", &first_service, &port);
  ASSERT_NE(first.first, nullptr);
  ASSERT_GT(port, 0);
  auto second = start("127.0.0.1:" + std::to_string(port), &second_service, &same);
  EXPECT_EQ(same, 0);
  EXPECT_EQ(second.first, nullptr);
  stop(second);
  stop(first);
}

}  // namespace
}  // namespace foreshard
