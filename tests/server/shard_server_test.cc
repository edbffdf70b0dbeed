#include "server/shard_server.h"

#include "gmock/gmock.h"
#include "tests/common/net/http_get.h"
#include "tests/server/server_harness.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

TEST(Server, AsksTheProcessToExitWhenToldTo) {
  bool asked = false;
  auto server = ShardServer::Start({.job = TestJob(), .exit_requested = [&] { asked = true; }});
  ASSERT_TRUE(server.ok());
  grpc::ClientContext context;
  v1::StopRequest stop;
  stop.set_exit_process(true);
  v1::StopReply stopped;
  ASSERT_TRUE(
      v1::Admin::NewStub(MakeChannel((*server)->address()))->Stop(&context, stop, &stopped).ok());
  (*server)->Shutdown().IgnoreError();
  EXPECT_TRUE(asked);
  (*server)->Shutdown().IgnoreError();  // again does nothing
}

TEST(Server, NamesWhatItCannotListenOn) {
  auto server = ShardServer::Start({.job = TestJob(), .metrics_listen = "127.0.0.1:0"});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto taken = ShardServer::Start({.job = TestJob(), .listen = (*server)->address()});
  EXPECT_EQ(taken.status().code(), Code::kUnavailable);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr((*server)->address()));
  const auto metrics =
      ShardServer::Start({.job = TestJob(), .metrics_listen = (*server)->metrics_address()});
  EXPECT_EQ(metrics.status().code(), Code::kUnavailable);
  EXPECT_EQ(ShardServer::Start({.job = TestJob(), .listen = "0.0.0.0:0"}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(ShardServer::Start({.job = TestJob(), .shard = 1}).status().code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(ShardServer::Start({.job = TestJob(), .listen = "0.0.0.0:0", .credentials = Credentials::Load({.insecure = true}, TlsSide::kServer).value()}).ok());
}

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

TEST(Server, AnswersHealthChecksAndReflection) {
  TestServers servers(TestJob());
  grpc::Slice empty(std::string{});
  const auto health = SendRaw(servers.channels[0], grpc::ByteBuffer(&empty, 1), 10,
                              "/grpc.health.v1.Health/Check");
  ASSERT_TRUE(health.ok()) << health.status();
  EXPECT_EQ(Bytes(*health), std::string("\x08\x01", 2));  // status: SERVING
  grpc::Slice list_services(std::string("\x3a\x01*", 3));
  const auto services =
      SendRaw(servers.channels[0], grpc::ByteBuffer(&list_services, 1), 10,
              "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
  ASSERT_TRUE(services.ok()) << services.status();
  for (const char* name : {"ParameterServer", "Lead", "Admin"}) {
    EXPECT_THAT(Bytes(*services), HasSubstr("foreshard.v1." + std::string(name)));
  }
}

TEST(Server, ExportsWhatItCounts) {
  auto server = ShardServer::Start({.job = TestJob(), .metrics_listen = "127.0.0.1:0"});
  ASSERT_TRUE(server.ok()) << server.status();
  // The harness's worker talks to the servers it is given.
  TestServers servers(TestJob());
  servers.servers[0] = *std::move(server);
  servers.channels[0] = MakeChannel(servers.servers[0]->address());
  TestWorker worker(servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.InitialiseAll();
  worker.Read(0);
  for (uint64_t ticket = 0; ticket < 3; ++ticket) worker.Push(0, ticket);
  worker.sequence(0) = 2;
  worker.Push(0, 3);  // has been
  worker.Send(worker.PushHeader(0, 3), "short");
  const std::string metrics = HttpGet(servers.servers[0]->metrics_address(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("result=\"applied\"} 3\n"));
  EXPECT_THAT(metrics, HasSubstr("result=\"duplicate\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("result=\"rejected\"} 1\n"));
  const std::string labels = "{job_name=\"test\",rule=\"dana_zero\",shard=\"0\"";
  EXPECT_THAT(metrics, HasSubstr("foreshard_parameter_version" + labels + "} 3\n"));
  EXPECT_THAT(metrics, HasSubstr("foreshard_push_staleness_updates_count" + labels + "} 3\n"));
  EXPECT_THAT(metrics, HasSubstr("foreshard_push_gap_count" + labels + "} 3\n"));
  EXPECT_THAT(metrics, HasSubstr("foreshard_apply_duration_seconds_count" + labels + "} 4\n"));
  EXPECT_EQ(servers.Status().metrics_address(), servers.servers[0]->metrics_address());
}

}  // namespace
}  // namespace foreshard
