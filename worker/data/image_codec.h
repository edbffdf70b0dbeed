// Pictures as files have them (JPEG, PNG), decoded to rows of red, green and blue, and back.
//
//   auto image = DecodeImage(bytes).value();            // upright, 3 bytes a pixel
//   Image small = Resize(image, {0, 0, 500, 375}, 341, 256);
//   std::string jpeg = EncodeJpeg(small).value();
//
// Libraries: libjpeg-turbo and libpng. What they make of a file: gray becomes three equal
// channels, CMYK and YCCK (with Adobe's inversion where its marker is) RGB, a palette its
// colors, 16 bits a channel 8, transparency is put on black. A JPEG's EXIF orientation is
// applied. All functions are thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/core/bytes.h"

namespace foreshard {

// Most pixels of a picture that is decoded, and of a side: what a header claims costs memory.
inline constexpr uint64_t kMaxImagePixels = uint64_t{1} << 27;
inline constexpr uint32_t kMaxImageSide = 65500;

struct Image {
  uint32_t width = 0, height = 0;
  std::vector<uint8_t> pixels;  // [height, width, 3]
};

enum class ImageKind : uint8_t { kNone, kJpeg, kPng };

// By its first bytes.
ImageKind KindOfImage(ByteSpan bytes);

// What can be known without decoding the pixels.
struct ImageAbout {
  ImageKind kind = ImageKind::kNone;
  uint32_t width = 0, height = 0;  // as they lie in the file
  bool plain = false;              // RGB or gray, 8 bits, upright: as it is decoded
};

// INVALID_ARGUMENT in words that go on from "NAME: ": neither JPEG nor PNG, damaged (also where
// the pixels end early), too large.
absl::StatusOr<ImageAbout> AboutImage(ByteSpan bytes);
absl::StatusOr<Image> DecodeImage(ByteSpan bytes);

// Quality 95, all colors at full resolution. INTERNAL where the library fails.
absl::StatusOr<std::string> EncodeJpeg(const Image& image);

// A part of a picture, in pixels.
struct ImageBox {
  double x = 0, y = 0, width = 0, height = 0;
};

// The box, inside the picture, at another size: bilinear, and over all of what a pixel covers
// where it gets smaller (a triangle filter as wide as the scale), rounded to bytes. Mirrored:
// left becomes right. The same bytes on every machine.
Image Resize(const Image& image, const ImageBox& box, uint32_t width, uint32_t height,
             bool mirrored = false);

}  // namespace foreshard
