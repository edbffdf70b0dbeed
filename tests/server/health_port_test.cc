#include "server/health_port.h"

#include <chrono>
#include <memory>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "grpcpp/impl/codegen/rpc_method.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"
#include "gtest/gtest.h"
#include "server/shard_server.h"
#include "tests/server/server_harness.h"

namespace foreshard {
namespace {

// The bytes of grpc.health.v1.HealthCheckResponse: field 1, a varint (1: SERVING, 2: NOT_SERVING).
// `service` is shorter than 128 bytes.
std::string Check(const std::string& address, const std::string& service = "") {
  auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                         grpc::internal::RpcMethod::NORMAL_RPC);
  // HealthCheckRequest: field 1, a string; left out, it is the server as a whole.
  const grpc::Slice bytes(service.empty() ? "" : "\x0a" + std::string(1, static_cast<char>(service.size())) + service);
  const grpc::ByteBuffer request(&bytes, 1);
  grpc::ByteBuffer reply;
  const grpc::Status status = grpc::internal::BlockingUnaryCall<
      grpc::ByteBuffer, grpc::ByteBuffer, grpc::ByteBuffer, grpc::ByteBuffer>(
      channel.get(), method, &context, request, &reply);
  if (!status.ok()) return status.error_message();
  grpc::Slice slice;
  if (!reply.DumpToSingleSlice(&slice).ok()) return "no reply";
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

TEST(HealthPortTest, AnswersProbesBesideAServerAndSaysWhenItDrains) {
  ShardServerOptions options;
  options.job = TestJob();
  options.health_listen = "127.0.0.1:0";
  auto server = ShardServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(Check((*server)->health_address()), std::string("\x08\x01"));
  EXPECT_EQ(Check((*server)->health_address(), kLivenessService), std::string("\x08\x01"));
  (*server)->Shutdown().IgnoreError();
  EXPECT_EQ(Check((*server)->health_address()), std::string("\x08\x02"));
  // It is not to be killed for that.
  EXPECT_EQ(Check((*server)->health_address(), kLivenessService), std::string("\x08\x01"));
}

TEST(HealthPortTest, RefusesWhatIsNoAddressAndAPortThatIsTaken) {
  ShardServerOptions options;
  options.job = TestJob();
  auto server = ShardServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(HealthPort::Start((*server)->address()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(HealthPort::Start("nowhere").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace foreshard
