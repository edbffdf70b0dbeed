// The two formats behind image_codec.h, which is what others include.
#pragma once

#include "worker/data/image_codec.h"

namespace foreshard::internal {

// INVALID_ARGUMENT: a picture without pixels, or with too many.
absl::Status CheckImageSize(uint64_t width, uint64_t height);

// jpeg.cc. Orientation: of its EXIF data, 1 where there is none.
absl::StatusOr<ImageAbout> AboutJpeg(ByteSpan bytes);
absl::StatusOr<Image> DecodeJpeg(ByteSpan bytes, int* orientation);

// png.cc
absl::StatusOr<ImageAbout> AboutPng(ByteSpan bytes);
absl::StatusOr<Image> DecodePng(ByteSpan bytes);

}  // namespace foreshard::internal
