#include "server/available_memory.h"

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace foreshard {
namespace {

class AvailableMemory : public ::testing::Test {
 protected:
  AvailableMemory() {
    root_ = std::filesystem::path(::testing::TempDir()) /
            ("memory_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(root_);
  }
  ~AvailableMemory() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& content) {
    const std::filesystem::path file = root_.string() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << content;
  }

  std::filesystem::path root_;
};

TEST_F(AvailableMemory, IsUnboundedWhereNothingIsKnown) {
  EXPECT_EQ(AvailableMemoryBytes(root_), UINT64_MAX);
}

TEST_F(AvailableMemory, ReadsTheMachines) {
  Write("/proc/meminfo", "MemTotal:  900 kB\nMemFree:   10 kB\nMemAvailable:   500 kB\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 500 * 1024);
}

TEST_F(AvailableMemory, TakesTheControlGroupsWhereThatIsLess) {
  Write("/proc/meminfo", "MemAvailable:   500 kB\n");
  Write("/proc/self/cgroup", "0::/pod/a\n");
  Write("/sys/fs/cgroup/pod/a/memory.max", "300000\n");
  Write("/sys/fs/cgroup/pod/a/memory.current", "100000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 200000);
  Write("/sys/fs/cgroup/pod/a/memory.max", "max\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 500 * 1024);
  Write("/sys/fs/cgroup/pod/a/memory.max", "100\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 0);
}

TEST_F(AvailableMemory, ReadsVersionOneGroups) {
  Write("/proc/self/cgroup", "5:memory:/pod\n1:cpu:/x\n");
  Write("/sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "5000\n");
  Write("/sys/fs/cgroup/memory/pod/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 4000);
}

TEST(AvailableMemoryHere, IsKnown) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_LT(AvailableMemoryBytes(), UINT64_MAX);
}

}  // namespace
}  // namespace foreshard
