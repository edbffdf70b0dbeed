#include "tests/end_to_end/job_folder.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/net/admin_client.h"
#include "common/net/job_spec.h"
#include "tools/files.h"

namespace foreshard {
namespace {

constexpr uint32_t kSide = 16;
constexpr uint32_t kClasses = 4;

std::string BigEndian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

// Noise with one bright quadrant, which is the class.
void WriteIdx(const std::string& images_path, const std::string& labels_path, uint32_t examples,
              uint32_t seed) {
  std::mt19937 random(seed);
  std::string images = absl::StrCat(BigEndian(0x00000803), BigEndian(examples), BigEndian(kSide),
                                    BigEndian(kSide));
  std::string labels = absl::StrCat(BigEndian(0x00000801), BigEndian(examples));
  for (uint32_t i = 0; i < examples; ++i) {
    const uint32_t label = i % kClasses;
    labels.push_back(static_cast<char>(label));
    for (uint32_t y = 0; y < kSide; ++y) {
      for (uint32_t x = 0; x < kSide; ++x) {
        const uint32_t quadrant = (y >= kSide / 2 ? 2 : 0) + (x >= kSide / 2 ? 1 : 0);
        const bool bright = quadrant == label;
        images.push_back(static_cast<char>(random() % 128 + (bright ? 100 : 0)));
      }
    }
  }
  ASSERT_TRUE(WriteFileAtomically(images_path, images).ok());
  ASSERT_TRUE(WriteFileAtomically(labels_path, labels).ok());
}

constexpr char kCommon[] = R"(
seed: 7
servers { shards: 2 segment_elements: 2048 }
compression { push: "one_bit" block_elements: 512 }
evaluation { recalibration_batches: 2 }
timeouts { lease_seconds: 20 connect_seconds: 20 }
)";

}  // namespace

bool WaitUntil(const std::function<bool()>& condition, absl::Duration bound) {
  const absl::Time deadline = absl::Now() + bound;
  while (!condition()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

bool IsRunning(int64_t pid) {
  absl::StatusOr<std::string> stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  return stat.ok() && !stat->empty() && !absl::StrContains(*stat, ") Z");
}

std::string CommandLine(int64_t pid) {
  return ReadFile(absl::StrCat("/proc/", pid, "/cmdline")).value_or("");
}

std::vector<int64_t> ProcessesWith(const std::string& text) {
  std::vector<int64_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    int64_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid) || pid == getpid()) continue;
    if (absl::StrContains(CommandLine(pid), text) && IsRunning(pid)) found.push_back(pid);
  }
  return found;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  const size_t colon = address.rfind(':');
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) != 1) {
    return "";
  }
  to.sin_port = htons(static_cast<uint16_t>(port));
  const int socket_fd = socket(AF_INET, SOCK_STREAM, 0);
  if (socket_fd < 0) return "";
  std::string answer;
  if (connect(socket_fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) {
    const std::string request =
        absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: ", address, "\r\n\r\n");
    if (send(socket_fd, request.data(), request.size(), MSG_NOSIGNAL) ==
        static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      ssize_t got;
      while ((got = recv(socket_fd, buffer, sizeof buffer, 0)) > 0) answer.append(buffer, got);
    }
  }
  close(socket_fd);
  return answer;
}

void EndToEndTest::SetUp() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = absl::StrCat(info->test_suite_name(), ".", info->name(), ".", getpid());
  absl::StrReplaceAll({{"/", "-"}}, &name);
  folder_ = ::testing::TempDir() + name;
  std::filesystem::create_directories(folder_);
}

void EndToEndTest::TearDown() {
  std::error_code error;
  if (!HasFailure()) std::filesystem::remove_all(folder_, error);
}

void EndToEndTest::WriteDataSet() {
  WriteIdx(Path("train-images"), Path("train-labels"), 512, 1);
  WriteIdx(Path("test-images"), Path("test-labels"), 128, 2);
}

std::string EndToEndTest::WriteJob(const std::vector<std::string>& overrides) {
  WriteDataSet();
  const std::string text = absl::StrCat(kCommon, R"(
name: "quadrants"
model { name: "mlp" widths: [32] }
data { format: "idx" train_images: "train-images" train_labels: "train-labels"
       test_images: "test-images" test_labels: "test-labels" classes: 4
       mean: 0.35 deviation: 0.25 directory: ")",
                                        folder_, R"(" }
training { epochs: 3 batch_size: 16 workers: 2 }
update { rule: "dana_slim" momentum: 0.9 }
schedule { learning_rate: 0.02 }
)");
  absl::StatusOr<v1::JobSpec> job = ParseJobSpec(text, "the test's job", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  const std::string path = Path("job.textproto");
  if (job.ok()) {
    EXPECT_TRUE(WriteFileAtomically(path, PrintJobSpec(*job)).ok());
  }
  return path;
}

std::string EndToEndTest::WriteSyntheticJob(uint64_t elements, uint64_t examples,
                                            const std::vector<std::string>& overrides) {
  const std::string text = absl::StrCat(kCommon, R"(
name: "synthetic"
model { name: "synthetic" elements: )",
                                        elements, R"( }
data { format: "synthetic" examples: )",
                                        examples, R"( }
training { epochs: 1 batch_size: 1 workers: 2 }
update { rule: "dana_slim" momentum: 0.9 }
schedule { learning_rate: 0.001 }
)");
  absl::StatusOr<v1::JobSpec> job = ParseJobSpec(text, "the test's job", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  const std::string path = Path("synthetic.textproto");
  if (job.ok()) {
    EXPECT_TRUE(WriteFileAtomically(path, PrintJobSpec(*job)).ok());
  }
  return path;
}

std::unique_ptr<Process> EndToEndTest::Foreshard(const std::vector<std::string>& arguments,
                                                 const std::string& log) {
  auto process = Process::Start({.program = FORESHARD_BINARY_DIR "/foreshard",
                                 .arguments = arguments,
                                 .log_path = Path(log)});
  EXPECT_TRUE(process.ok()) << process.status();
  return process.ok() ? *std::move(process) : nullptr;
}

Ended EndToEndTest::Finish(Process& process, const std::string& log) {
  Ended ended;
  const std::optional<ProcessExit> exit = process.Wait(2 * kPatience);
  ended.output = ReadFile(Path(log)).value_or("");
  EXPECT_TRUE(exit.has_value()) << "still running:\n" << ended.output;
  if (exit.has_value() && exit->signal == 0) ended.status = exit->status;
  return ended;
}

Ended EndToEndTest::RunForeshard(const std::vector<std::string>& arguments) {
  std::unique_ptr<Process> process = Foreshard(arguments);
  return process == nullptr ? Ended() : Finish(*process);
}

nlohmann::json EndToEndTest::Results(const std::string& folder) {
  absl::StatusOr<std::string> text = ReadFile(Path(folder + "/results.json"));
  EXPECT_TRUE(text.ok()) << text.status();
  return nlohmann::json::parse(text.value_or("null"), nullptr, false);
}

std::unique_ptr<Fleet> EndToEndTest::MakeFleet(const std::string& job) {
  return std::make_unique<Fleet>(FleetOptions{.programs = FORESHARD_BINARY_DIR,
                                              .folder = folder_,
                                              .job = {absl::StrCat("--job=", job)}});
}

std::unique_ptr<Fleet> EndToEndTest::Servers(const std::string& job) {
  std::unique_ptr<Fleet> fleet = MakeFleet(job);
  for (uint32_t shard = 0; shard < 2; ++shard) EXPECT_TRUE(fleet->StartServer(shard).ok());
  const absl::Status up = fleet->WaitForServers(kPatience);
  EXPECT_TRUE(up.ok()) << up;
  return fleet;
}

std::vector<v1::StatusReply> EndToEndTest::Statuses(const Fleet& fleet) {
  std::vector<v1::StatusReply> statuses;
  for (absl::StatusOr<v1::StatusReply>& reply :
       AdminClient(fleet.addresses()).GetStatus(absl::Seconds(10))) {
    if (!reply.ok()) return {};
    statuses.push_back(*std::move(reply));
  }
  return statuses;
}

uint64_t EndToEndTest::Completed(const Fleet& fleet) {
  for (const v1::StatusReply& status : Statuses(fleet)) {
    if (status.lead()) return status.completed_tickets();
  }
  return 0;
}

std::string EndToEndTest::LogOf(Fleet& fleet, const std::string& name) {
  Child* child = fleet.Find(name);
  return child == nullptr ? "" : ReadFile(child->log_path).value_or("");
}

}  // namespace foreshard
