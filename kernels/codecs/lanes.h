// The one order in which scales are summed: element i of a block goes to lane
// i % 8, in fp64; then this (internal to kernels).
#pragma once

namespace foreshard {

inline double JoinLanes(const double lanes[8]) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace foreshard
