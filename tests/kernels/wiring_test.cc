#include "kernels/wiring.h"

#include <gtest/gtest.h>

namespace foreshard::kernels {
namespace {

TEST(WiringTest, AChainReadsWhatIsBefore) {
  const Wiring wiring(std::vector<Layer>{Relu{}, Convolution{}, Relu{}, Dense{}});
  EXPECT_EQ(wiring.values(), 5u);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(wiring.input(i), i);
    EXPECT_EQ(wiring.output(i), i + 1);
    EXPECT_EQ(wiring.other(i), Wiring::kNoValue);
    EXPECT_EQ(wiring.uses(i), 1u);
    EXPECT_EQ(wiring.needs_gradient(i), i >= 2) << i;
    EXPECT_EQ(wiring.relu_follows(i), i == 1) << i;
  }
  EXPECT_EQ(wiring.uses(4), 0u);
}

TEST(WiringTest, BranchesPartAndMeet) {
  // 0 conv, 1 relu; 2 conv, 3 batch norm; from 1: 5 conv; sum 6, relu 7.
  const Wiring wiring(std::vector<Layer>{Convolution{}, Relu{}, Convolution{}, BatchNorm{}, From{1},
                                         Convolution{}, AddFrom{3}, Relu{}, Dense{}});
  EXPECT_EQ(wiring.output(4), 2u);  // From makes no value
  EXPECT_EQ(wiring.input(5), 2u);
  EXPECT_EQ(wiring.input(6), 6u);
  EXPECT_EQ(wiring.other(6), 4u);
  EXPECT_EQ(wiring.uses(2), 2u);
  EXPECT_EQ(wiring.uses(4), 1u);
  EXPECT_EQ(wiring.uses(5), 0u);  // nobody's
  EXPECT_TRUE(wiring.relu_follows(0));
  EXPECT_TRUE(wiring.relu_follows(6));
  EXPECT_FALSE(wiring.relu_follows(3));
}

TEST(WiringTest, ARelusInputThatIsReadElsewhereStays) {
  const Wiring wiring(std::vector<Layer>{Convolution{}, Relu{}, AddFrom{0}, Dense{}});
  EXPECT_FALSE(wiring.relu_follows(0));
  EXPECT_EQ(wiring.uses(1), 2u);
}

TEST(WiringTest, AReluAfterFromIsItsOwn) {
  const Wiring wiring(std::vector<Layer>{Convolution{}, Convolution{}, From{0}, Relu{}, AddFrom{1},
                                         Dense{}});
  EXPECT_FALSE(wiring.relu_follows(2));
  EXPECT_EQ(wiring.input(3), 1u);
}

TEST(WiringTest, WhatIsTrainedLiesBeforeASumByEitherWay) {
  const Wiring wiring(std::vector<Layer>{Relu{}, Convolution{}, From{0}, AddFrom{1}, From{0},
                                         AddFrom{0}, Dense{}});
  EXPECT_TRUE(wiring.needs_gradient(4));
  EXPECT_FALSE(wiring.needs_gradient(6));
}

TEST(WiringTest, ASideLossReadsAndComputesNothing) {
  const std::vector<Layer> layers = {Embedding{.channels = 4}, FirstPosition{}, Dense{.units = 2}, SideLoss{},
                                     From{0},                  LayerNorm{},     Dense{.units = 5}};
  const Wiring wiring(layers);
  EXPECT_EQ(wiring.input(3), 3u);
  EXPECT_EQ(wiring.output(3), 3u);
  EXPECT_EQ(wiring.uses(3), 1u);
  EXPECT_EQ(wiring.input(5), 1u);
  EXPECT_EQ(wiring.uses(1), 2u);
  EXPECT_FALSE(wiring.needs_gradient(0));
  EXPECT_TRUE(wiring.needs_gradient(1));
  EXPECT_TRUE(wiring.needs_gradient(6));
}

}  // namespace
}  // namespace foreshard::kernels
