// The fuzz targets without a fuzzer: over the corpus, and over seeded mutations of it.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/core/random.h"
#include "gtest/gtest.h"
#include "tests/fuzz/fuzz.h"

namespace foreshard::fuzz {
namespace {

constexpr int kMutations = 5000;  // a target
constexpr size_t kMostBytes = 64 << 10;

Seeds CorpusOf(const std::string& target) {
  Seeds corpus;
  const auto folder = std::filesystem::path(FORESHARD_SOURCE_DIR) / "tests/fuzz/corpus" / target;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ostringstream content;
    content << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    corpus[entry.path().filename().string()] = content.str();
  }
  return corpus;
}

// A few changes of the kinds that fuzzers make.
class Mutations {
 public:
  Mutations(const std::vector<std::string>& inputs, uint64_t seed) : inputs_(inputs), seed_(seed) {}

  std::string Next() {
    std::string input = inputs_[Below(inputs_.size())];
    for (uint64_t changes = 1 + Below(4); changes > 0; --changes) Change(&input);
    return input;
  }

 private:
  uint64_t Below(uint64_t bound) { return RandomBits(seed_, 0x66757a7a, ++draws_) % bound; }

  void Change(std::string* input) {
    static constexpr uint64_t kEdges[] = {0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x7fffffff, 0x80000000,
                                          0xffffffff, ~uint64_t{0} >> 1, ~uint64_t{0}};
    const size_t at = Below(input->size() + 1);
    const size_t left = input->size() - at;
    const size_t run = left == 0 ? 0 : Below(std::min<size_t>(left, 40)) + 1;
    switch (Below(8)) {
      case 0:
        if (left > 0) (*input)[at] ^= static_cast<char>(1 << Below(8));
        break;
      case 1:
        if (left > 0) (*input)[at] = static_cast<char>(Below(256));
        break;
      case 2:
        input->erase(at, run);
        break;
      case 3:
        if (input->size() < kMostBytes) input->insert(at, input->substr(at, run));
        break;
      case 4:
        input->resize(at);
        break;
      case 5: {
        const uint64_t value = kEdges[Below(std::size(kEdges))];
        if (left >= 4) std::memcpy(input->data() + at, &value, left >= 8 && Below(2) == 0 ? 8 : 4);
        break;
      }
      case 6: {
        const std::string& other = inputs_[Below(inputs_.size())];
        const size_t from = Below(other.size() + 1);
        if (input->size() < kMostBytes) *input = input->substr(0, at) + other.substr(from);
        break;
      }
      default:
        if (input->size() < kMostBytes) input->insert(at, 1 + Below(9), static_cast<char>(Below(256)));
    }
  }

  const std::vector<std::string>& inputs_;
  const uint64_t seed_;
  uint64_t draws_ = 0;
};

class FuzzTest : public testing::TestWithParam<std::string> {};

TEST_P(FuzzTest, SeedsAreAsTheEncodersMakeThem) {
  const Seeds corpus = CorpusOf(GetParam());
  const Seeds seeds = Targets().at(GetParam()).seeds();
  EXPECT_FALSE(seeds.empty());
  for (const auto& [name, bytes] : seeds) {
    ASSERT_EQ(corpus.count("seed-" + name), 1u) << name << ": run write_golden (tests/golden/README.md)";
    EXPECT_TRUE(corpus.at("seed-" + name) == bytes) << name << ": run write_golden (tests/golden/README.md)";
  }
}

TEST_P(FuzzTest, TheCorpusAndMutationsOfItAreSurvived) {
  const Target& target = Targets().at(GetParam());
  std::vector<std::string> inputs;
  for (const auto& [name, bytes] : CorpusOf(GetParam())) {
    target.run(AsBytes(bytes));
    inputs.push_back(bytes);
  }
  ASSERT_FALSE(inputs.empty());
  target.run({});
  Mutations mutations(inputs, 1);
  for (int k = 0; k < kMutations; ++k) {
    std::string input = mutations.Next();
    if (target.repair != nullptr && k % 8 != 0) target.repair(&input);
    target.run(AsBytes(input));
  }
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, target] : Targets()) names.push_back(name);
  return names;
}

// gtest asks for the names once all targets are registered.
INSTANTIATE_TEST_SUITE_P(Targets, FuzzTest, testing::ValuesIn(Names()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace foreshard::fuzz
