// A server among peers that do everything wrong: bytes that are no messages, no HTTP/2, no
// requests; connections that are opened and dropped, that stall, that never read; fields at their
// extremes; more than there is room for. After each it answers, and an honest worker's exchange
// gives the right result.
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "google/protobuf/message.h"
#include "tests/end_to_end/raw_connection.h"
#include "tests/server/server_harness.h"

namespace foreshard {
namespace {

using Code = absl::StatusCode;

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

class AbuseTest : public testing::Test {
 protected:
  static constexpr uint64_t kBudget = 64 << 20;

  AbuseTest()
      : servers_(TestJob({"servers.inflight_bytes=67108864", "servers.segment_elements=1048576",
                          "update.rule=asgd", "update.momentum="})),
        honest_(servers_, 0, 5) {
    EXPECT_TRUE(honest_.SayHello().ok());
    honest_.InitialiseAll();
    expected_ = honest_.Read(0).values;
  }

  const std::string& address() const { return servers_.servers[0]->address(); }

  // asgd: theta -= eta g, so that the right result is known. Over a connection of its own.
  void ExpectTheServerWorks(const char* after) {
    SCOPED_TRACE(after);
    EXPECT_EQ(servers_.Status().shard(), 0u);
    const uint64_t ticket = tickets_++;
    const Answer answer = honest_.Push(0, ticket);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.header.result(), v1::ReplyHeader::APPLIED);
    const std::vector<float> gradient = honest_.Gradient(0, ticket);
    ASSERT_EQ(answer.values.size(), expected_.size());
    for (size_t k = 0; k < expected_.size(); ++k) {
      expected_[k] -= 0.01f * gradient[k];
      ASSERT_NEAR(answer.values[k], expected_[k], 1e-5) << k;
    }
    expected_ = answer.values;
  }

  TestServers servers_;
  TestWorker honest_;
  std::vector<float> expected_;
  uint64_t tickets_ = 0;
};

TEST_F(AbuseTest, RandomBytesForEveryMethod) {
  for (const char* method :
       {kExchange, "/foreshard.v1.ParameterServer/Hello", "/foreshard.v1.ParameterServer/Heartbeat",
        "/foreshard.v1.ParameterServer/ChangeView", "/foreshard.v1.Lead/Register",
        "/foreshard.v1.Lead/FetchTickets", "/foreshard.v1.Lead/Report", "/foreshard.v1.Lead/Leave",
        "/foreshard.v1.Admin/GetStatus"}) {
    for (uint64_t key = 0; key < 60; ++key) {
      const grpc::Slice slice(RandomBytes(key, key * key));
      const auto reply = SendRaw(servers_.channels[0], grpc::ByteBuffer(&slice, 1), 10, method);
      if (!reply.ok()) {
        EXPECT_NE(reply.status().code(), Code::kDeadlineExceeded) << method << key;
      }
    }
  }
  ExpectTheServerWorks("random bytes");
}

TEST_F(AbuseTest, MethodsThatThereAreNot) {
  const grpc::Slice slice("x");
  for (const std::string& method :
       {std::string("/foreshard.v1.ParameterServer/Nothing"), std::string("/x/y"), std::string("/"),
        "/" + std::string(4000, 'm')}) {
    const auto reply = SendRaw(servers_.channels[0], grpc::ByteBuffer(&slice, 1), 10, method);
    EXPECT_EQ(reply.status().code(), Code::kUnimplemented) << method.substr(0, 50) << reply.status();
  }
  ExpectTheServerWorks("methods that there are not");
}

TEST_F(AbuseTest, GarbageInsteadOfHttp2) {
  for (uint64_t key = 0; key < 40; ++key) {
    RawConnection connection(address());
    ASSERT_TRUE(connection.connected());
    connection.Send((key % 2 == 0 ? std::string(kPreface) : std::string()) + RandomBytes(key, 2000));
  }
  RawConnection http(address());
  http.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ExpectTheServerWorks("garbage");
}

TEST_F(AbuseTest, LengthsThatAreNotTrue) {
  const uint64_t before = ResidentBytes();
  std::vector<std::unique_ptr<RawConnection>> connections;
  // Messages and frames that are announced and never come, for as long as the connection stays.
  for (const uint32_t announced : {0xffffffffu, 0x7fffffffu, 1u << 30, 64u << 20}) {
    for (int k = 0; k < 8; ++k) {
      connections.push_back(std::make_unique<RawConnection>(address()));
      connections.back()->Send(kPreface + Frame(0, 4, 0, 0, "") + RequestHeaders(kExchange) +
                               Frame(5 + 100, 0, 0, 1, MessagePrefix(announced) + std::string(100, 'm')));
    }
  }
  for (int k = 0; k < 8; ++k) {
    connections.push_back(std::make_unique<RawConnection>(address()));
    connections.back()->Send(kPreface + Frame(0xffffff, 0, 0, 1, "cut"));
    connections.push_back(std::make_unique<RawConnection>(address()));
    connections.back()->Send(std::string(kPreface).substr(0, 10));
  }
  ExpectTheServerWorks("lengths that are not true");
  EXPECT_LT(ResidentBytes(), before + (uint64_t{64} << 20));
  connections.clear();
  ExpectTheServerWorks("their connections closed");
}

TEST_F(AbuseTest, AThousandConnectionsOpenedAndDropped) {
  for (int k = 0; k < 1000; ++k) {
    RawConnection connection(address());
    ASSERT_TRUE(connection.connected()) << k;
    if (k % 3 == 1) connection.Send(kPreface);
    if (k % 3 == 2) connection.Send(kPreface + Frame(0, 4, 0, 0, "") + RequestHeaders(kExchange));
  }
  ExpectTheServerWorks("a thousand connections");
}

// Requests of which nobody fetches the answers: they fill the room for replies, but for a quarter that is
// the workers'. Other readers are told to come again, and are served once these have gone.
TEST(Abuse, ReadersThatNeverReadTheirReplies) {
  constexpr uint64_t kBudget = 32 << 20;
  constexpr int64_t kElements = 1'000'000;
  TestServers servers(TestJob({"servers.inflight_bytes=33554432", "servers.segment_elements=1048576",
                               "update.rule=asgd", "update.momentum="}),
                      TestSchema(kElements));
  TestWorker honest(servers, 0, 5);
  ASSERT_TRUE(honest.SayHello().ok());
  honest.InitialiseAll(2);
  ASSERT_TRUE(honest.Read(0).status.ok());
  const uint64_t before = ResidentBytes();

  v1::ExchangeRequest request;
  *request.mutable_header() = TestWorker(servers, 0, 0).Header(v1::ExchangeHeader::READ, 0);
  const std::string message = request.SerializeAsString();
  std::vector<std::unique_ptr<RawConnection>> connections;
  for (int k = 0; k < 4; ++k) {
    connections.push_back(std::make_unique<RawConnection>(servers.servers[0]->address()));
    std::string bytes = kPreface + Frame(0, 4, 0, 0, "");
    for (uint32_t stream = 1; stream < 40; stream += 2) {
      bytes += OnStream(stream, RequestHeaders(kExchange)) +
               Frame(static_cast<uint32_t>(message.size() + 5), 0, 1, stream,
                     MessagePrefix(static_cast<uint32_t>(message.size())) + message);
    }
    connections.back()->Send(bytes);
  }
  TestWorker reader(servers, 0, 0);
  const auto wait_for = [&](Code code) {
    for (int k = 0; k < 600; ++k) {
      if (reader.Read(0).status.code() == code) return true;
      absl::SleepFor(absl::Milliseconds(50));
    }
    return false;
  };
  EXPECT_TRUE(wait_for(Code::kResourceExhausted)) << "80 replies of 4 MB were to be kept";
  for (const uint64_t ticket : {0, 1, 2}) {
    const Answer answer = honest.Push(0, ticket);
    EXPECT_EQ(answer.header.result(), v1::ReplyHeader::APPLIED) << "a worker is served: " << answer.status;
  }
  EXPECT_EQ(servers.Status().shard(), 0u);
  EXPECT_LT(ResidentBytes(), before + 2 * kBudget + (uint64_t{32} << 20));
  connections.clear();
  EXPECT_TRUE(wait_for(Code::kOk));
  EXPECT_EQ(reader.Read(0).values, honest.Read(0).values);
}

// One field after the other, also of the contract within, at its extremes.
TEST_F(AbuseTest, EveryFieldOfAValidHeaderAtItsExtremes) {
  using google::protobuf::FieldDescriptor;
  const std::string payload = honest_.Encode(0, std::vector<float>(servers_.plan.segments()[0].elements));
  const auto* descriptor = v1::ExchangeHeader::descriptor();
  for (const auto kind : {v1::ExchangeHeader::READ, v1::ExchangeHeader::PUSH, v1::ExchangeHeader::SKIP,
                          v1::ExchangeHeader::INITIALISE, v1::ExchangeHeader::FETCH,
                          v1::ExchangeHeader::REPAIR}) {
    for (int k = 0; k < descriptor->field_count(); ++k) {
      const FieldDescriptor* field = descriptor->field(k);
      for (const uint64_t extreme : {uint64_t{0}, uint64_t{1}, uint64_t{0x7fffffff}, uint64_t{0x80000000},
                                     uint64_t{0xffffffff}, ~uint64_t{0} >> 1, ~uint64_t{0}}) {
        // In a slot of its own, so that the honest worker's sequence stays what it is.
        v1::ExchangeHeader header = TestWorker(servers_, 1, 6).Header(kind, 0);
        header.set_sequence(1);
        const auto* reflection = header.GetReflection();
        if (field->name() == "worker" && extreme == 0) continue;
        switch (field->cpp_type()) {
          case FieldDescriptor::CPPTYPE_UINT32:
            reflection->SetUInt32(&header, field, static_cast<uint32_t>(extreme));
            break;
          case FieldDescriptor::CPPTYPE_UINT64:
            reflection->SetUInt64(&header, field, extreme);
            break;
          case FieldDescriptor::CPPTYPE_BOOL:
            reflection->SetBool(&header, field, extreme % 2 == 1);
            break;
          case FieldDescriptor::CPPTYPE_ENUM:
            reflection->SetEnumValue(&header, field, static_cast<int>(extreme));
            break;
          case FieldDescriptor::CPPTYPE_MESSAGE:
            header.mutable_contract()->set_protocol(static_cast<uint32_t>(extreme));
            header.mutable_contract()->set_oldest_protocol(static_cast<uint32_t>(extreme >> 32));
            break;
          default:
            FAIL() << field->name() << ": a kind of field that this test does not know";
        }
        // A worker that has not said Hello is refused for that, whatever else it says.
        EXPECT_FALSE(honest_.Send(header, payload, true, 10).status.ok() && header.incarnation() != 0)
            << field->name() << extreme;
      }
    }
  }
  ExpectTheServerWorks("hostile fields of a stranger");
  // The same from a member, but for what is honest then.
  TestWorker member(servers_, 1, 6);
  ASSERT_TRUE(member.SayHello().ok());
  for (const auto kind : {v1::ExchangeHeader::READ, v1::ExchangeHeader::FETCH, v1::ExchangeHeader::REPAIR}) {
    for (const uint64_t extreme : {uint64_t{0xffffffff}, ~uint64_t{0} >> 1, ~uint64_t{0}}) {
      v1::ExchangeHeader header = member.Header(kind, 0);
      header.set_held_version(extreme);
      header.set_ticket(extreme);
      header.set_round(extreme);
      header.set_sequence(extreme);
      header.set_checksum(extreme);
      header.set_codec(static_cast<uint32_t>(extreme));
      EXPECT_NE(member.Send(header, "", false, 10).status.code(), Code::kDeadlineExceeded);
      header.set_codec(0);
      EXPECT_NE(member.Send(header, payload, true, 10).status.code(), Code::kDeadlineExceeded);
    }
  }
  ExpectTheServerWorks("hostile fields of a member");
}

// A few bytes on the wire that are 40 times as many in memory, and calls that wait for a thread while
// they are: many at once take no more than the budget, and longer ones are not looked at.
TEST_F(AbuseTest, MessagesThatAreMuchLargerInMemory) {
  const auto nested = [](char tag, size_t count) {
    std::string messages;
    for (size_t k = 0; k < count; ++k) messages += std::string{tag, 0};
    return messages;
  };
  v1::HelloRequest hello;
  ASSERT_TRUE(hello.mutable_model()->ParseFromString(nested('\x0a', 400'000)));
  const std::string model = hello.SerializeAsString();
  const std::string evaluations = nested('\x22', 400'000), members = nested('\x1a', 400'000);
  const uint64_t before = ResidentBytes();
  uint64_t most = before;
  for (const auto& [method, message] :
       {std::pair{"/foreshard.v1.ParameterServer/Hello", model}, std::pair{"/foreshard.v1.Lead/Report", evaluations},
        std::pair{"/foreshard.v1.ParameterServer/ChangeView", members}}) {
    std::vector<std::thread> callers;
    std::atomic<int> invalid{0}, exhausted{0}, others{0};
    for (int k = 0; k < 24; ++k) {
      callers.emplace_back([&, method = method, message = message] {
        const grpc::Slice slice(message);
        const absl::Status status = SendRaw(MakeChannel(address()), grpc::ByteBuffer(&slice, 1), 60, method).status();
        const Code code = status.code();
        // Said of the list that was read, not of the message.
        const bool read = absl::StrContains(status.message(), "evaluations");
        ++(code == Code::kInvalidArgument && !read ? invalid : code == Code::kResourceExhausted ? exhausted : others);
      });
    }
    for (std::thread& caller : callers) caller.join();
    most = std::max(most, ResidentBytes());
    EXPECT_EQ(invalid, 0) << method << ": 800 KB are taken where there is room";
    EXPECT_EQ(exhausted + others, 24) << method;
    std::string longer = message;
    longer += longer;
    const grpc::Slice slice(longer);
    EXPECT_EQ(SendRaw(MakeChannel(address()), grpc::ByteBuffer(&slice, 1), 60, method).status().code(),
              Code::kInvalidArgument);
  }
  std::cout << "[ figures  ] memory rose by " << (most - before) / (1 << 20) << " MiB" << std::endl;
  // The budget, what the allocator keeps of it, and the messages themselves; all at once would be 12 budgets.
  EXPECT_LT(most, before + 3 * kBudget);
  ExpectTheServerWorks("messages that swell");
}

// What no release knows is not kept with what is kept of a message: neither shown nor written down.
TEST_F(AbuseTest, FieldsThatAreUnknown) {
  const std::string junk(200'000, 'x');
  v1::ReportRequest report;
  *report.mutable_contract() = servers_.contract;
  v1::Evaluation* evaluation = report.add_evaluations();
  evaluation->set_epoch(1);
  evaluation->GetReflection()->MutableUnknownFields(evaluation)->AddLengthDelimited(4711, junk);
  report.set_worker(0);
  report.set_incarnation(5);
  v1::WorkerFigures* figures = report.mutable_figures();
  figures->set_steps(3);
  figures->GetReflection()->MutableUnknownFields(figures)->AddLengthDelimited(4711, junk);
  const std::string bytes = report.SerializeAsString();
  ASSERT_GT(bytes.size(), 2 * junk.size());
  const grpc::Slice slice(bytes);
  ASSERT_TRUE(SendRaw(MakeChannel(address()), grpc::ByteBuffer(&slice, 1), 60, "/foreshard.v1.Lead/Report").ok());
  const v1::StatusReply status = servers_.Status();
  EXPECT_EQ(status.evaluations_size(), 1);
  EXPECT_LT(status.ByteSizeLong(), 20'000u);
  ExpectTheServerWorks("unknown fields");
}

// As many large messages at once as several budgets: memory stays within bounds, and it is over
// when it is over.
TEST_F(AbuseTest, MoreThanThereIsRoomFor) {
  constexpr size_t kMessage = 4 << 20;
  constexpr int kAtOnce = 96;  // six times the budget
  const grpc::Slice slice(std::string(kMessage, 'f'));
  const grpc::ByteBuffer request(&slice, 1);
  const uint64_t before = ResidentBytes();
  struct Flood {
    grpc::ClientContext context;
    grpc::ByteBuffer reply;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
  };
  uint64_t most = 0;
  int refused = 0;
  for (int turn = 0; turn < 3; ++turn) {
    grpc::CompletionQueue queue;
    std::vector<std::unique_ptr<Flood>> floods;
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    for (int k = 0; k < kAtOnce; ++k) {
      channels.push_back(MakeChannel(address()));
      auto flood = std::make_unique<Flood>();
      flood->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channels.back());
      flood->reader = stub.PrepareUnaryCall(&flood->context, kExchange, request, &queue);
      flood->reader->StartCall();
      flood->reader->Finish(&flood->reply, &flood->status, flood.get());
      floods.push_back(std::move(flood));
    }
    for (int k = 0; k < kAtOnce; ++k) {
      void* tag = nullptr;
      bool ok = false;
      ASSERT_TRUE(queue.Next(&tag, &ok));
      auto* flood = static_cast<Flood*>(tag);
      most = std::max(most, ResidentBytes());
      EXPECT_FALSE(flood->status.ok());
      EXPECT_NE(flood->status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
      refused += flood->status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    }
    queue.Shutdown();
  }
  std::cout << "[ figures  ] " << refused << " of " << 3 * kAtOnce << " refused for want of room; memory rose by "
            << (most - before) / (1 << 20) << " MiB" << std::endl;
  // Of 384 MiB; the other ends of the connections are in this process too.
  EXPECT_LT(most, before + 3 * kBudget);
  ExpectTheServerWorks("a flood");
}

}  // namespace
}  // namespace foreshard
