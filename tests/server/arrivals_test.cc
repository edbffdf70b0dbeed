#include "server/arrivals.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ArrivalsTest : public ::testing::Test {
 protected:
  ~ArrivalsTest() override { std::remove(path_.c_str()); }

  std::string Content() const {
    std::ifstream file(path_);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string ErrorOf(const std::string& lines) {
    std::ofstream(path_) << "number,segment,kind,worker,incarnation,sequence,ticket,held_version,"
                            "argument\n"
                         << lines;
    const auto events = LoadArrivals(path_);
    EXPECT_TRUE(absl::IsInvalidArgument(events.status())) << events.status();
    return std::string(events.status().message());
  }

  const std::string path_ = ::testing::TempDir() + std::to_string(getpid()) + ".arrivals_test.csv";
};

Event Numbered(uint64_t number) {
  return {.kind = EventKind::kPush, .segment = 3, .worker = 2, .number = number};
}

TEST_F(ArrivalsTest, ReadsBackEveryKindAndField) {
  std::vector<Event> events;
  const auto add = [&](int from, int to) {
    for (int kind = from; kind <= to; ++kind) {
      const uint64_t n = events.size() + 1;
      events.push_back({.kind = static_cast<EventKind>(kind),
                        .segment = kind >= 64 ? kDealerSegment : 7,
                        .worker = 4,
                        .incarnation = ~uint64_t{0} - n,
                        .sequence = 10 + n,
                        .ticket = 20 + n,
                        .held_version = 30 + n,
                        .argument = 40 + n,
                        .number = n});
    }
  };
  add(1, 11);
  add(13, 17);
  add(64, 70);
  {
    auto recorder = ArrivalRecorder::Create(path_);
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    for (const Event& event : events) (*recorder)->Record(event);
  }
  EXPECT_THAT(Content(), HasSubstr("\n3,7,push,4,"));
  EXPECT_THAT(Content(), HasSubstr(",dealer,dealer_stop,4,"));
  const auto read = LoadArrivals(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), events.size());
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_NE(ToString(events[i].kind), "unknown");
    const auto fields = [](const Event& e) {
      return std::tuple(e.kind, e.segment, e.worker, e.incarnation, e.sequence, e.ticket,
                        e.held_version, e.argument, e.number);
    };
    EXPECT_EQ(fields((*read)[i]), fields(events[i])) << i;
  }
}

TEST_F(ArrivalsTest, WritesInTheOrderOfNumbersWhateverOrderTheyComeIn) {
  // Four threads record 40,000 events, each a few places away from where it belongs.
  constexpr uint64_t kEvents = 40'000;
  {
    auto recorder = ArrivalRecorder::Create(path_);
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937 random(thread);
        std::vector<uint64_t> mine;
        for (uint64_t n = 1 + thread; n <= kEvents; n += 4) mine.push_back(n);
        for (size_t i = 0; i < mine.size(); i += 50) {
          std::shuffle(mine.begin() + i, mine.begin() + std::min(i + 50, mine.size()), random);
        }
        for (const uint64_t n : mine) (*recorder)->Record(Numbered(n));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const auto read = LoadArrivals(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->size(), kEvents);
}

TEST_F(ArrivalsTest, WhoIsFarAheadWaits) {
  auto recorder = ArrivalRecorder::Create(path_);
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  for (uint64_t n = 2; n <= ArrivalRecorder::kWindow; ++n) (*recorder)->Record(Numbered(n));
  std::atomic<bool> through{false};
  std::thread far([&] {
    (*recorder)->Record(Numbered(ArrivalRecorder::kWindow + 1));
    through = true;
  });
  EXPECT_FALSE(through);
  (*recorder)->Record(Numbered(1));
  far.join();
  EXPECT_TRUE(through);
  recorder->reset();
  EXPECT_EQ(LoadArrivals(path_).value().size(), ArrivalRecorder::kWindow + 1);
}

TEST_F(ArrivalsTest, AFullDiskEndsTheRecordAtAWholeLine) {
  EXPECT_FALSE(ArrivalRecorder::Create("/dev/full").ok());
  EXPECT_FALSE(ArrivalRecorder::Create("/nowhere/arrivals.csv").ok());
  auto recorder = ArrivalRecorder::Create(path_);
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_action = signal(SIGXFSZ, SIG_IGN);
  const rlimit full = {.rlim_cur = 100'000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  constexpr uint64_t kEvents = 20'000;
  for (uint64_t n = 1; n <= kEvents; ++n) (*recorder)->Record(Numbered(n));
  recorder->reset();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, old_action);
  EXPECT_LE(std::filesystem::file_size(path_), 100'000u);
  const auto read = LoadArrivals(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_GT(read->size(), 1000u);
  EXPECT_LT(read->size(), kEvents);
}

TEST_F(ArrivalsTest, BadFilesAreNamedByLine) {
  EXPECT_TRUE(absl::IsNotFound(LoadArrivals(path_).status()));
  EXPECT_THAT(ErrorOf("1,0,push,0,1,1,0,0,0\n2,0,shove,0,1,1,0,0,0\n"),
              AllOf(HasSubstr(path_ + ":3:"), HasSubstr("shove")));
  EXPECT_THAT(ErrorOf("1,0,push,0,1,1,0,0\n"), HasSubstr(":2:"));
  EXPECT_THAT(ErrorOf("1,-1,push,0,1,1,0,0,0\n"), HasSubstr(":2:"));
  EXPECT_THAT(ErrorOf("1,0,push,0,1,1,0,0,0\n3,0,push,0,1,2,0,0,0\n"),
              AllOf(HasSubstr(":3:"), HasSubstr("event 3 where 2 belongs")));
  std::ofstream(path_) << "1,0,push,0,1,1,0,0,0\n";
  EXPECT_THAT(std::string(LoadArrivals(path_).status().message()), HasSubstr(":1:"));
}

}  // namespace
}  // namespace foreshard
