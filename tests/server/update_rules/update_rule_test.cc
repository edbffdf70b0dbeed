// What holds for every rule, and each rule's formula on numbers that can be checked
// by hand.
#include "server/update_rules/update_rule.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "common/core/catalogue.h"
#include "common/core/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/isa.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

using kernels::Isa;
using kernels::ScopedIsa;
using testing::ElementsAre;

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> Numbers(uint64_t seed, uint64_t n) {
  std::vector<float> values(n);
  for (uint64_t i = 0; i < n; ++i) {
    values[i] = static_cast<float>(RandomUniform(seed, 5, i) - 0.5);
  }
  return values;
}

using State = std::vector<std::pair<std::string, std::vector<float>>>;
using Numerals = std::vector<std::pair<std::string, std::vector<double>>>;

class Saver : public StateVisitor {
 public:
  void Visit(std::string_view name, std::vector<float>& values) override {
    state.emplace_back(name, values);
  }
  void VisitNumbers(std::string_view name, std::vector<double>& values) override {
    numbers.emplace_back(name, values);
  }
  State state;
  Numerals numbers;
};

class Loader : public StateVisitor {
 public:
  explicit Loader(Saver from) : from_(std::move(from.state)), numbers_(std::move(from.numbers)) {}
  void Visit(std::string_view name, std::vector<float>& values) override {
    ASSERT_LT(next_, from_.size());
    EXPECT_EQ(from_[next_].first, name);
    values = from_[next_++].second;
  }
  void VisitNumbers(std::string_view name, std::vector<double>& values) override {
    ASSERT_LT(next_number_, numbers_.size());
    EXPECT_EQ(numbers_[next_number_].first, name);
    ASSERT_EQ(numbers_[next_number_].second.size(), values.size());
    values = numbers_[next_number_++].second;
  }
  bool done() const { return next_ == from_.size() && next_number_ == numbers_.size(); }

 private:
  State from_;
  Numerals numbers_;
  size_t next_ = 0;
  size_t next_number_ = 0;
};

Saver Saved(UpdateRule& rule) {
  Saver saver;
  rule.VisitState(saver);
  return saver;
}

State StateOf(UpdateRule& rule) { return Saved(rule).state; }

RuleSettings Settings(std::string_view rule) {
  return {.rule = std::string(rule),
          .momentum = 0.9f,
          .weight_decay = 1e-2f,
          .statistics_weight = 0.1f,
          .max_workers = 5,
          .workers = 4};
}

// A segment's view of a rule: theta in runs, some decayed, some without a reply.
class Driver {
 public:
  static constexpr uint64_t kElements = 4096 + 1000 + 7 + 1;

  explicit Driver(std::unique_ptr<UpdateRule> rule) : rule_(std::move(rule)), theta_(Numbers(1, kElements)) {}

  std::vector<float> Push(uint32_t worker, uint64_t number, bool with_reply = true) {
    const UpdateContext context{.worker = worker,
                                .eta = number % 3 == 0 ? 0.05f : 0.1f,
                                .version = number,
                                .lag = number % 5,
                                .contributors = 1 + static_cast<uint32_t>(number % 3)};
    const std::vector<float> gradient = Numbers(100 + number, kElements);
    std::vector<float> reply(kElements);
    rule_->Begin(context);
    std::vector<float>& held = held_[worker];
    for (Run run : kRuns) {
      if (!held.empty()) run.held = held.data() + run.offset;
      rule_->Update(context, run, gradient.data() + run.offset, theta_.data(),
                    with_reply ? reply.data() + run.offset : nullptr);
    }
    std::vector<float> read(kElements);
    for (const Run& run : kRuns) {
      rule_->Reply(context, run, theta_.data(), read.data() + run.offset);
    }
    if (with_reply) {
      EXPECT_TRUE(SameBits(reply, read)) << "a read differs from the reply";
      held = reply;
    }
    return read;
  }

  UpdateRule& rule() { return *rule_; }
  std::vector<float>& theta() { return theta_; }
  // By worker, what it holds; empty where it was sent nothing.
  std::vector<std::vector<float>>& held() { return held_; }

 private:
  static constexpr Run kRuns[] = {
      {0, 4096, true}, {4096, 1000, false}, {5096, 7, true}, {5103, 1, false}};

  std::unique_ptr<UpdateRule> rule_;
  std::vector<float> theta_;
  std::vector<std::vector<float>> held_{5};
};

class UpdateRuleTest : public testing::TestWithParam<std::string_view> {};

INSTANTIATE_TEST_SUITE_P(All, UpdateRuleTest, testing::ValuesIn(RuleNames()),
                         [](const auto& info) { return std::string(info.param); });

TEST(UpdateRuleRegistryTest, IsTheCatalogue) {
  std::vector<std::string_view> names;
  for (const RuleTraits& rule : Rules()) names.push_back(rule.name);
  names.push_back(kStatisticsRule);
  EXPECT_EQ(RuleNames(), names);
  for (const std::string_view name : names) {
    EXPECT_NE(MakeUpdateRule(Settings(name), 8), nullptr) << name;
  }
  EXPECT_EQ(MakeUpdateRule(Settings("no_such_rule"), 8), nullptr);
  EXPECT_EQ(MakeUpdateRule(Settings(""), 8), nullptr);
}

// The memory that start-up computes from the catalogue is what a rule takes.
TEST(UpdateRuleRegistryTest, StateIsAsTheCatalogueSays) {
  for (const RuleTraits& traits : Rules()) {
    const auto rule = MakeUpdateRule(Settings(traits.name), 100);
    for (uint32_t joined = 0; joined <= 3; ++joined) {
      if (joined > 0) rule->Join(joined);
      uint64_t floats = 0;
      for (const auto& [name, values] : StateOf(*rule)) floats += values.size();
      EXPECT_EQ(floats, 100 * (traits.state_fixed + joined * traits.state_per_worker))
          << traits.name;
    }
  }
}

// The fused loops on every instruction set against the formula, through joins,
// leaves, changing rates, decayed and plain runs, with and without replies.
TEST_P(UpdateRuleTest, FusedLoopsAreTheReference) {
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > kernels::BestIsa()) continue;
    ScopedIsa forced(isa);
    SCOPED_TRACE(kernels::IsaName(isa));
    Driver fused(MakeUpdateRule(Settings(GetParam()), Driver::kElements, Loops::kFused));
    Driver plain(MakeUpdateRule(Settings(GetParam()), Driver::kElements, Loops::kReference));
    for (Driver* driver : {&fused, &plain}) {
      for (uint32_t worker = 0; worker < 4; ++worker) driver->rule().Join(worker);
    }
    for (uint64_t push = 0; push < 40; ++push) {
      if (push == 20) {
        for (Driver* driver : {&fused, &plain}) {
          driver->rule().Leave(1);
          driver->rule().Join(4);
        }
      }
      auto worker = static_cast<uint32_t>(RandomBits(1, 1, push) % 4);
      if (push >= 20 && worker == 1) worker = 4;
      const bool with_reply = push % 4 != 0;
      ASSERT_TRUE(SameBits(fused.Push(worker, push, with_reply),
                           plain.Push(worker, push, with_reply)))
          << "push " << push;
      ASSERT_TRUE(SameBits(fused.theta(), plain.theta())) << "push " << push;
    }
    const State a = StateOf(fused.rule());
    const State b = StateOf(plain.rule());
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(SameBits(a[i].second, b[i].second));
    EXPECT_EQ(Saved(fused.rule()).numbers, Saved(plain.rule()).numbers);
  }
}

TEST_P(UpdateRuleTest, SavedStateGoesOnAsIfNothingHappened) {
  Driver first(MakeUpdateRule(Settings(GetParam()), Driver::kElements));
  for (const uint32_t worker : {0u, 2u, 3u}) first.rule().Join(worker);
  for (uint64_t push = 0; push < 6; ++push) first.Push(push % 2 ? 3 : 0, push);

  Driver second(MakeUpdateRule(Settings(GetParam()), Driver::kElements));
  Loader loader(Saved(first.rule()));
  second.rule().VisitState(loader);
  EXPECT_TRUE(loader.done());
  second.theta() = first.theta();
  second.held() = first.held();
  for (uint64_t push = 6; push < 12; ++push) {
    if (push == 9) {
      first.rule().Leave(2);
      second.rule().Leave(2);
    }
    const uint32_t worker = push < 9 ? 2 : 3;
    EXPECT_TRUE(SameBits(first.Push(worker, push), second.Push(worker, push))) << push;
  }
}

// ---- each formula, on one decayed and one plain element; every number is exact ----

class FormulaTest : public testing::Test {
 protected:
  void Make(const char* name) {
    Make({.rule = name,
          .momentum = 0.5f,
          .weight_decay = 0.25f,
          .statistics_weight = 0.5f,
          .max_workers = 2});
  }
  void Make(const RuleSettings& settings) {
    rule_ = MakeUpdateRule(settings, 2);
    rule_->Join(0);
    rule_->Join(1);
  }

  // Gradients (1, 1) at eta = 1/2.
  void Push(uint32_t worker, uint64_t lag = 0) {
    const UpdateContext context{.worker = worker, .eta = 0.5f, .version = version_++, .lag = lag};
    const float gradient[] = {1, 1};
    const float* const held = held_[worker].empty() ? nullptr : held_[worker].data();
    rule_->Begin(context);
    rule_->Update(context, {0, 1, true, held}, gradient, theta_.data(), reply_.data());
    rule_->Update(context, {1, 1, false, held == nullptr ? nullptr : held + 1}, gradient + 1,
                  theta_.data(), reply_.data() + 1);
    held_[worker] = reply_;
  }

  std::unique_ptr<UpdateRule> rule_;
  std::vector<float> theta_ = {4, 4};
  std::vector<float> reply_ = {0, 0};
  std::vector<float> held_[2];
  uint64_t version_ = 0;
};

TEST_F(FormulaTest, Asgd) {
  Make("asgd");
  Push(0);  // g' = 2 and 1
  EXPECT_THAT(theta_, ElementsAre(3, 3.5f));
  EXPECT_THAT(reply_, ElementsAre(3, 3.5f));
}

TEST_F(FormulaTest, NagAsgd) {
  Make("nag_asgd");
  Push(0);  // v = 2, 1
  EXPECT_THAT(theta_, ElementsAre(3, 3.5f));
  EXPECT_THAT(reply_, ElementsAre(2.5f, 3.25f));  // minus v/4
  Push(1);  // g' = 1.75, 1; v = 2.75, 1.5, shared
  EXPECT_THAT(theta_, ElementsAre(1.625f, 2.75f));
  EXPECT_THAT(reply_, ElementsAre(0.9375f, 2.375f));
}

TEST_F(FormulaTest, MultiAsgd) {
  Make("multi_asgd");
  Push(0);  // v_0 = 2, 1
  EXPECT_THAT(reply_, ElementsAre(3, 3.5f));
  Push(1);  // v_1 = 1.75, 1: its own
  EXPECT_THAT(theta_, ElementsAre(2.125f, 3));
  Push(0);  // g' = 1.53125, 1; v_0 = 2.53125, 1.5
  EXPECT_THAT(theta_, ElementsAre(0.859375f, 2.25f));
  EXPECT_THAT(reply_, ElementsAre(0.859375f, 2.25f));
}

TEST_F(FormulaTest, DanaZero) {
  Make("dana_zero");
  Push(0);  // v_0 = S = 2, 1
  EXPECT_THAT(theta_, ElementsAre(3, 3.5f));
  EXPECT_THAT(reply_, ElementsAre(2.5f, 3.25f));
  Push(1);  // v_1 = 1.75, 1; S = 3.75, 2
  EXPECT_THAT(theta_, ElementsAre(2.125f, 3));
  EXPECT_THAT(reply_, ElementsAre(1.1875f, 2.5f));
  rule_->Leave(0);  // S = v_1
  Push(1);          // g' = 1.53125, 1; v_1 = S = 2.40625, 1.5
  EXPECT_THAT(theta_, ElementsAre(0.921875f, 2.25f));
  EXPECT_THAT(reply_, ElementsAre(0.3203125f, 1.875f));
}

TEST_F(FormulaTest, DanaSlimLeavesDecayToTheWorker) {
  Make("dana_slim");
  Push(0);
  EXPECT_THAT(theta_, ElementsAre(3.5f, 3.5f));
  EXPECT_THAT(reply_, ElementsAre(3.5f, 3.5f));
}

TEST_F(FormulaTest, LwpLooksAsFarAheadAsOthersWillPush) {
  Make("lwp");
  Push(0);  // v = 2, 1; tau = N - 1 = 1
  EXPECT_THAT(theta_, ElementsAre(3, 3.5f));
  EXPECT_THAT(reply_, ElementsAre(2, 3));  // minus v/2
  rule_->Leave(1);
  Push(0);  // g' = 1.75, 1; v = 2.75, 1.5; alone
  EXPECT_THAT(theta_, ElementsAre(1.625f, 2.75f));
  EXPECT_THAT(reply_, ElementsAre(1.625f, 2.75f));
}

TEST_F(FormulaTest, LwpByTheMeasuredLag) {
  Make({.rule = "lwp", .momentum = 0.5f, .weight_decay = 0.25f, .max_workers = 2,
        .measured_lag = true});
  Push(0, 4);  // v = 2, 1; tau = 4
  EXPECT_THAT(reply_, ElementsAre(-1, 1.5f));
  Push(1, 0);  // v = 2.75, 1.5; tau = 0.99 * 4 / 1.99
  const double tau = 3.96 / 1.99;
  EXPECT_NEAR(reply_[0], 1.625 - tau * 0.5 * 2.75, 1e-6);
  EXPECT_NEAR(reply_[1], 2.75 - tau * 0.5 * 1.5, 1e-6);
}

TEST_F(FormulaTest, StalenessAware) {
  Make("staleness_aware");
  Push(0);  // as asgd
  EXPECT_THAT(theta_, ElementsAre(3, 3.5f));
  Push(1, 1);  // still: g' = 1.75, 1
  EXPECT_THAT(theta_, ElementsAre(2.125f, 3));
  Push(0, 4);  // g' = 1.53125, 1; a quarter
  EXPECT_THAT(theta_, ElementsAre(1.93359375f, 2.875f));
  EXPECT_THAT(reply_, ElementsAre(1.93359375f, 2.875f));
}

TEST_F(FormulaTest, DcAsgdConstant) {
  Make({.rule = "dc_asgd", .weight_decay = 0.25f, .max_workers = 2, .dc_adaptive = false,
        .dc_lambda = 0.5f});
  Push(0);  // held unknown: as asgd
  EXPECT_THAT(reply_, ElementsAre(3, 3.5f));
  Push(1);
  EXPECT_THAT(theta_, ElementsAre(2.125f, 3));
  Push(0);  // theta - x = -0.875, -0.5; g^ = 0.5625, 0.75; and decay
  EXPECT_THAT(theta_, ElementsAre(2.125f - (0.5625f + 0.53125f) / 2, 2.625f));
}

TEST_F(FormulaTest, DcAsgdAdaptive) {
  Make({.rule = "dc_asgd", .max_workers = 2, .dc_lambda = 0.5f, .dc_decay = 0.75f});
  for (const uint32_t worker : {0, 1, 0}) Push(worker);
  // MS = 1/4, 7/16, 37/64; theta - x = -1/2 at the third.
  const double rate = 0.5 / std::sqrt(37.0 / 64 + 1e-7);
  EXPECT_NEAR(theta_[0], 3 - (1 - rate / 2) / 2, 1e-6);
}

TEST_F(FormulaTest, DanaDcConstant) {
  Make({.rule = "dana_dc", .momentum = 0.5f, .max_workers = 2, .dc_adaptive = false,
        .dc_lambda = 0.5f});
  Push(0);  // v_0 = 1
  EXPECT_EQ(reply_[0], 3.25f);
  Push(1);  // v_1 = 1, theta = 3
  Push(0);  // theta - x_0 = -1/4; g^ = 7/8; v_0 = 11/8
  EXPECT_EQ(theta_[0], 3 - 11.0f / 16);
  EXPECT_EQ(reply_[0], 3 - 11.0f / 16 - (11.0f / 8 + 1) / 4);
}

TEST_F(FormulaTest, GapAware) {
  Make({.rule = "gap_aware", .momentum = 0.5f, .max_workers = 2, .peak_eta = 0.5f});
  Push(0);  // A = 0: v = 1, theta = 3.5, A = 0.001
  Push(1);  // unknown: v = 1.5, theta = 2.75
  EXPECT_THAT(theta_, ElementsAre(2.75f, 2.75f));
  Push(0);  // theta - x = -0.75; A / (1 - 0.999^2) is about the mean of 1 and 2.25
  const double a = (0.999 * 0.001 + 0.001 * 2.25) / (1 - 0.999 * 0.999);
  const double v = 0.75 + 1 / (1 + 0.75 / (0.5 * (std::sqrt(a) + 1e-8)));
  EXPECT_NEAR(theta_[0], 2.75 - v / 2, 1e-5);
  EXPECT_EQ(reply_[0], theta_[0]);
}

TEST_F(FormulaTest, GapAwareDecaysUndivided) {
  Make({.rule = "gap_aware", .momentum = 0.5f, .weight_decay = 0.25f, .max_workers = 2,
        .peak_eta = 1e-20f});
  Push(0);  // v = 2, 1
  Push(1);  // v = 2.75, 1.5
  EXPECT_THAT(theta_, ElementsAre(1.625f, 2.75f));
  Push(0);  // P is huge: only momentum and decay are left
  EXPECT_THAT(theta_, ElementsAre(1.625f - (1.375f + 0.40625f) / 2, 2.375f));
}

TEST_F(FormulaTest, DanaGa) {
  Make({.rule = "dana_ga", .momentum = 0.5f, .max_workers = 2, .peak_eta = 0.5f});
  Push(0);  // v_0 = 1
  EXPECT_EQ(reply_[0], 3.25f);
  Push(1);  // v_1 = 1, theta = 3; A / (1 - 0.999^2) = 1
  Push(0);  // theta - x_0 = -1/4; P = 3/2
  const double v = 0.5 + 1 / 1.5;
  EXPECT_NEAR(theta_[0], 3 - v / 2, 1e-5);
  EXPECT_NEAR(reply_[0], 3 - v / 2 - (v + 1) / 4, 1e-5);
}

TEST_F(FormulaTest, Adam) {
  Make({.rule = "adam", .weight_decay = 0.25f, .max_workers = 2, .beta1 = 0.5f, .beta2 = 0.75f,
        .epsilon = 0.5f});
  Push(0);  // m = 1/2, v = 1/4; m / (sqrt(v) + 1/2) = 1/2; decay 1
  EXPECT_THAT(theta_, ElementsAre(3.25f, 3.75f));
  EXPECT_THAT(reply_, ElementsAre(3.25f, 3.75f));
}

TEST_F(FormulaTest, Smega2) {
  Make("smega2");
  Push(0);  // g' = b = 2, 1; s = 1: minus (1.5 v + b/2) / 4
  EXPECT_THAT(theta_, ElementsAre(3, 3.5f));
  EXPECT_THAT(reply_, ElementsAre(2.75f, 3.375f));
  Push(1);  // g' = 1.75, 1; v = 1.875, 1; s = 0: minus 2 v / 4
  EXPECT_THAT(theta_, ElementsAre(2.125f, 3));
  EXPECT_THAT(reply_, ElementsAre(1.1875f, 2.5f));
  rule_->Leave(1);
  Push(0);  // g' = 1.53125, 1; a bucket of one: v = 2.46875, 1.5
  EXPECT_THAT(theta_, ElementsAre(2.125f - (1.53125f + 0.9375f) / 2, 2.25f));
  EXPECT_EQ(reply_[1], 2.25f - 1.5f / 4);
}

TEST_F(FormulaTest, OrmoDa) {
  Make({.rule = "ormo_da", .momentum = 0.5f, .max_workers = 2, .workers = 2});
  Push(0);  // stamp 1, one bucket old once 3 is given: 1 + 1/2 of it; u = 1/2
  EXPECT_THAT(theta_, ElementsAre(3.25f, 3.25f));
  Push(1);  // stamp 2, as old; u = 1
  EXPECT_THAT(theta_, ElementsAre(2.5f, 2.5f));
  Push(0);  // 5 is given: theta -= u/4, u = 1/2; stamp 3 is one old; u = 1
  EXPECT_THAT(theta_, ElementsAre(1.5f, 1.5f));
  Push(1, 8);  // stamp 4, at half the rate
  EXPECT_THAT(theta_, ElementsAre(1.125f, 1.125f));
  EXPECT_THAT(reply_, ElementsAre(1.125f, 1.125f));
}

TEST_F(FormulaTest, ElasticAveragingMovesTheCenterByWhatIsPushed) {
  for (const char* name : {"easgd", "eamsgd"}) {
    theta_ = {4, 4};
    Make(name);
    Push(0);
    EXPECT_THAT(theta_, ElementsAre(5, 5)) << name;
    Push(1);
    EXPECT_THAT(reply_, ElementsAre(6, 6)) << name;
    const float mean[] = {0.5f, -1};  // of a round of three
    rule_->Update({.contributors = 3}, {0, 2, true}, mean, theta_.data(), nullptr);
    EXPECT_THAT(theta_, ElementsAre(7.5f, 3)) << name;
  }
}

TEST_F(FormulaTest, Ssgd) {
  Make("ssgd");
  Push(0);  // g' = v = 2, 1; step 3, 1.5
  EXPECT_THAT(theta_, ElementsAre(2.5f, 3.25f));
  EXPECT_THAT(reply_, ElementsAre(2.5f, 3.25f));
  Push(0);  // g' = 1.625, 1; v = 2.625, 1.5; step 2.9375, 1.75
  EXPECT_THAT(theta_, ElementsAre(1.03125f, 2.375f));
}

TEST_F(FormulaTest, StatisticsAverageWhateverTheRate) {
  Make("statistics_average");
  Push(0);
  EXPECT_THAT(theta_, ElementsAre(2.5f, 2.5f));
  Push(1);
  EXPECT_THAT(theta_, ElementsAre(1.75f, 1.75f));
  EXPECT_THAT(reply_, ElementsAre(1.75f, 1.75f));
}

}  // namespace
}  // namespace foreshard
