// Servers and workers of neighbouring releases: each speaks what the last one spoke. The golden
// conversation is what a worker of this release says; the next release is this one with another
// range of protocols, and with fields that this one has never heard of.
#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "tests/golden/conversation.h"
#include "tests/golden/stored.h"
#include "tests/server/server_harness.h"

namespace foreshard::golden {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using google::protobuf::Message;

constexpr ProtocolRange kThis;
constexpr ProtocolRange kNext = {.oldest = kProtocolVersion, .newest = kProtocolVersion + 1};
constexpr ProtocolRange kAfterNext = {.oldest = kProtocolVersion + 1, .newest = kProtocolVersion + 2};

std::vector<Said> StoredConversation() {
  std::vector<Said> said;
  for (const auto& [name, request] : Under("conversation")) said.push_back({name, MethodOf(name), request});
  return said;
}

struct Played {
  std::vector<absl::Status> refused;
  std::vector<uint32_t> protocols;  // that Hello and Register have agreed on
  uint64_t applied = 0;
  std::vector<std::string> segments;  // as they are after it
};

Played Play(const std::vector<Said>& conversation, const ProtocolRange& server_speaks) {
  auto server = ShardServer::Start({.job = ConversationJob(), .speaks = server_speaks});
  EXPECT_TRUE(server.ok()) << server.status();
  const auto channel = MakeChannel((*server)->address());
  Played played;
  for (const Said& said : conversation) {
    const grpc::Slice slice(said.request);
    const auto reply = SendRaw(channel, grpc::ByteBuffer(&slice, 1), 30, said.method);
    if (!reply.ok()) {
      played.refused.push_back(reply.status());
      continue;
    }
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(reply->Dump(&slices).ok());
    std::string bytes;
    for (const grpc::Slice& each : slices) bytes.append(reinterpret_cast<const char*>(each.begin()), each.size());
    if (v1::HelloReply hello; said.method.ends_with("/Hello")) {
      EXPECT_TRUE(hello.ParseFromString(bytes));
      played.protocols.push_back(hello.protocol());
    } else if (v1::RegisterReply registered; said.method.ends_with("/Register")) {
      EXPECT_TRUE(registered.ParseFromString(bytes));
      played.protocols.push_back(registered.protocol());
    } else if (v1::ExchangeReply exchanged; said.method.ends_with("/Exchange")) {
      EXPECT_TRUE(exchanged.ParseFromString(bytes));
      played.applied += exchanged.header().result() == v1::ReplyHeader::APPLIED;
    }
  }
  played.segments = (*server)->SaveSegments();
  return played;
}

// Fields of a later release, in the message and in all within it.
void AddUnknownFields(Message* message) {
  const auto* reflection = message->GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const auto* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      AddUnknownFields(reflection->MutableMessage(message, field));
      continue;
    }
    for (int k = 0; k < reflection->FieldSize(*message, field); ++k) {
      AddUnknownFields(reflection->MutableRepeatedMessage(message, field, k));
    }
  }
  reflection->MutableUnknownFields(message)->AddVarint(900, 7);
  reflection->MutableUnknownFields(message)->AddLengthDelimited(901, "of a later release");
}

template <typename Request>
std::string Changed(const std::string& bytes, const ProtocolRange& speaks) {
  Request request;
  EXPECT_TRUE(request.ParseFromString(bytes));
  v1::Contract* contract;
  if constexpr (std::is_same_v<Request, v1::ExchangeRequest>) {
    contract = request.mutable_header()->mutable_contract();
  } else {
    contract = request.mutable_contract();
  }
  contract->set_protocol(speaks.newest);
  contract->set_oldest_protocol(speaks.oldest);
  AddUnknownFields(&request);
  return request.SerializeAsString();
}

// What a worker of another release says that otherwise means the same.
std::vector<Said> ConversationOf(const ProtocolRange& speaks) {
  std::vector<Said> conversation = StoredConversation();
  for (Said& said : conversation) {
    if (said.method.ends_with("/Exchange")) said.request = Changed<v1::ExchangeRequest>(said.request, speaks);
    if (said.method.ends_with("/Hello")) said.request = Changed<v1::HelloRequest>(said.request, speaks);
    if (said.method.ends_with("/Register")) said.request = Changed<v1::RegisterRequest>(said.request, speaks);
    if (said.method.ends_with("/Report")) said.request = Changed<v1::ReportRequest>(said.request, speaks);
  }
  return conversation;
}

const Played& PlayedHere() {
  static const auto& played = *new Played(Play(StoredConversation(), kThis));
  return played;
}

TEST(Releases, ThisOneServesItsOwnGoldenMessages) {
  EXPECT_THAT(PlayedHere().refused, ::testing::IsEmpty());
  EXPECT_THAT(PlayedHere().protocols, ::testing::ElementsAre(kProtocolVersion, kProtocolVersion));
  EXPECT_EQ(PlayedHere().applied, 2 * PlayedHere().segments.size());
  EXPECT_GT(PlayedHere().segments.size(), 3u);
}

TEST(Releases, AServerOfTheNextOneServesTheGoldenMessagesOfThisOne) {
  const Played played = Play(StoredConversation(), kNext);
  EXPECT_THAT(played.refused, ::testing::IsEmpty());
  EXPECT_EQ(played.protocols, PlayedHere().protocols) << "the newest that both speak";
  EXPECT_TRUE(played.segments == PlayedHere().segments) << "to the same state";
}

TEST(Releases, ThisOneServesWorkersOfTheNextOne) {
  const std::vector<Said> conversation = ConversationOf(kNext);
  EXPECT_NE(conversation[0].request, StoredConversation()[0].request);
  const Played played = Play(conversation, kThis);
  EXPECT_THAT(played.refused, ::testing::IsEmpty());
  EXPECT_EQ(played.protocols, PlayedHere().protocols);
  EXPECT_TRUE(played.segments == PlayedHere().segments);
}

TEST(Releases, OfWhichNoneIsCommonAreRefusedWithBothRangesAndWhoIsToBeUpgraded) {
  const auto refusals = [](const std::vector<Said>& conversation, const ProtocolRange& server) {
    const Played played = Play(conversation, server);
    EXPECT_TRUE(played.segments.empty()) << "nothing was agreed on";
    // The rest is refused for want of a Hello.
    std::vector<absl::Status> refused;
    for (const absl::Status& status : played.refused) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      if (status.message().find("protocol version") != absl::string_view::npos) refused.push_back(status);
    }
    EXPECT_EQ(refused.size(), 2u) << "Hello and Register";
    return refused;
  };
  for (const absl::Status& status : refusals(StoredConversation(), kAfterNext)) {
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("this server speaks 4 to 5, the caller 3"), HasSubstr("upgrade the caller")));
  }
  for (const absl::Status& status : refusals(ConversationOf(kAfterNext), kThis)) {
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("this server speaks 3, the caller 4 to 5"), HasSubstr("upgrade this server")));
  }
}

TEST(Releases, EveryMessageIsHeldAgainstTheRangeNotOnlyTheFirst) {
  std::vector<Said> conversation = StoredConversation();
  const std::vector<Said> later = ConversationOf(kAfterNext);
  for (size_t k = 1; k < conversation.size(); ++k) conversation[k] = later[k];
  const Played played = Play(conversation, kThis);
  EXPECT_EQ(played.applied, 0u);
  // All but the heartbeat, which says nothing of it.
  EXPECT_EQ(played.refused.size(), conversation.size() - 2);
  for (const absl::Status& status : played.refused) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("another protocol version")) << status;
  }
}

TEST(Releases, AServerSaysWhatItSpeaks) {
  const auto server = ShardServer::Start({.job = ConversationJob(), .speaks = kNext}).value();
  EXPECT_EQ(server->status().oldest_protocol(), kProtocolVersion);
  EXPECT_EQ(server->status().protocol(), kProtocolVersion + 1);
}

}  // namespace
}  // namespace foreshard::golden
