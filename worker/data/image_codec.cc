#include "worker/data/image_codec.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/data/image_formats.h"

namespace foreshard {
namespace {

constexpr uint8_t kPngSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

absl::Status NoImage() {
  return absl::InvalidArgumentError("neither a JPEG nor a PNG file; convert it, or take it out");
}

// EXIF orientations 2 to 8 as TIFF 6.0 numbers them: 1 is upright, 3 turned by half.
Image Upright(Image image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  const bool turned = orientation >= 5;  // rows are columns
  Image out{turned ? image.height : image.width, turned ? image.width : image.height, {}};
  out.pixels.resize(image.pixels.size());
  for (uint32_t y = 0; y < out.height; ++y) {
    for (uint32_t x = 0; x < out.width; ++x) {
      uint32_t from_x = turned ? y : x, from_y = turned ? x : y;
      const bool flip_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
      const bool flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
      if (flip_x) from_x = image.width - 1 - from_x;
      if (flip_y) from_y = image.height - 1 - from_y;
      std::memcpy(&out.pixels[(size_t{y} * out.width + x) * 3],
                  &image.pixels[(size_t{from_y} * image.width + from_x) * 3], 3);
    }
  }
  return out;
}

}  // namespace

ImageKind KindOfImage(ByteSpan bytes) {
  if (bytes.size() >= 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF) {
    return ImageKind::kJpeg;
  }
  if (bytes.size() >= sizeof kPngSignature &&
      std::memcmp(bytes.data(), kPngSignature, sizeof kPngSignature) == 0) {
    return ImageKind::kPng;
  }
  return ImageKind::kNone;
}

absl::Status internal::CheckImageSize(uint64_t width, uint64_t height) {
  if (width >= 1 && height >= 1 && width <= kMaxImageSide && height <= kMaxImageSide &&
      width * height <= kMaxImagePixels) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("is ", width, " x ", height, " pixels; a side has 1 to ", kMaxImageSide,
                   ", and all together are ", kMaxImagePixels, " at most"));
}

absl::StatusOr<ImageAbout> AboutImage(ByteSpan bytes) {
  switch (KindOfImage(bytes)) {
    case ImageKind::kJpeg:
      return internal::AboutJpeg(bytes);
    case ImageKind::kPng:
      return internal::AboutPng(bytes);
    default:
      return NoImage();
  }
}

absl::StatusOr<Image> DecodeImage(ByteSpan bytes) {
  switch (KindOfImage(bytes)) {
    case ImageKind::kJpeg: {
      int orientation = 1;
      auto image = internal::DecodeJpeg(bytes, &orientation);
      if (!image.ok()) return image.status();
      return Upright(*std::move(image), orientation);
    }
    case ImageKind::kPng:
      return internal::DecodePng(bytes);
    default:
      return NoImage();
  }
}

}  // namespace foreshard
