// Packs a folder of class folders of pictures (torchvision's ImageFolder) into packed image
// records (worker/data/packed_records.h).
//
//   PackOptions options{.input = "imagenet/train", .output = "packed/train"};
//   auto figures = PackImages(options);
//
// Labels are the ranks of the class folders' names, byte by byte. A JPEG or PNG whose shorter
// side is at most `size`, upright, in RGB or gray is taken as it is; others are decoded, made
// so large that the shorter side is `size`, and encoded as JPEG of quality 95.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace foreshard {

struct PackFigures {
  uint64_t images = 0;   // in the folders
  uint64_t packed = 0;
  uint64_t skipped = 0;  // those that do not decode
  uint64_t resized = 0;  // of those packed
  uint64_t bytes = 0;    // of records
  std::vector<std::string> first_skipped;  // why, at most ten
};

struct PackOptions {
  std::string input, output;
  uint32_t size = 256;
  uint32_t shards = 1;
  bool skip_bad = false;
  uint32_t threads = 0;  // 0: the machine's cores
  // Asked now and then, on the calling thread.
  std::function<bool()> interrupted;
  // Called after every few pictures.
  std::function<void(const PackFigures&)> progress;
};

// Writes to OUTPUT.part and renames at the end: OUTPUT is there whole or not at all, and what
// an earlier run that was killed has left is replaced. NOT_FOUND, INVALID_ARGUMENT: an input
// that is no folder of class folders, a class without pictures, a name that is no UTF-8, an output that
// exists, a picture that does not decode (without skip_bad); each names it. CANCELLED:
// interrupted, and nothing is left. RESOURCE_EXHAUSTED and so on: the disk.
absl::StatusOr<PackFigures> PackImages(const PackOptions& options);

}  // namespace foreshard
