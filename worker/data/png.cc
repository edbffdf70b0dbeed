// PNG through libpng's simplified interface, which returns errors.
#include <png.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/data/image_formats.h"

namespace foreshard::internal {
namespace {

struct Reader {
  png_image image;
  Reader() {
    std::memset(&image, 0, sizeof image);
    image.version = PNG_IMAGE_VERSION;
  }
  ~Reader() { png_image_free(&image); }
};

absl::Status Damaged(const png_image& image) {
  return absl::InvalidArgumentError(absl::StrCat("does not decode as PNG: ", image.message));
}

}  // namespace

absl::StatusOr<ImageAbout> AboutPng(ByteSpan bytes) {
  Reader reader;
  if (png_image_begin_read_from_memory(&reader.image, bytes.data(), bytes.size()) == 0) {
    return Damaged(reader.image);
  }
  if (auto s = CheckImageSize(reader.image.width, reader.image.height); !s.ok()) return s;
  const uint32_t special = PNG_FORMAT_FLAG_ALPHA | PNG_FORMAT_FLAG_LINEAR | PNG_FORMAT_FLAG_COLORMAP;
  return ImageAbout{.kind = ImageKind::kPng,
                    .width = reader.image.width,
                    .height = reader.image.height,
                    .plain = (reader.image.format & special) == 0};
}

absl::StatusOr<Image> DecodePng(ByteSpan bytes) {
  Reader reader;
  if (png_image_begin_read_from_memory(&reader.image, bytes.data(), bytes.size()) == 0) {
    return Damaged(reader.image);
  }
  if (auto s = CheckImageSize(reader.image.width, reader.image.height); !s.ok()) return s;
  reader.image.format = PNG_FORMAT_RGB;
  Image image{reader.image.width, reader.image.height, {}};
  image.pixels.resize(size_t{image.width} * image.height * 3);
  png_color black = {};
  if (png_image_finish_read(&reader.image, &black, image.pixels.data(), 0, nullptr) == 0) {
    return Damaged(reader.image);
  }
  return image;
}

}  // namespace foreshard::internal
