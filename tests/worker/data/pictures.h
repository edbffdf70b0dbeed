// Pictures as files, made by the libraries that others make theirs with.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <jpeglib.h>
#include <png.h>

#include "gtest/gtest.h"
#include "worker/data/image_codec.h"

namespace foreshard {

// Smooth, and different in every corner and channel.
inline Image Gradient(uint32_t width, uint32_t height) {
  Image image{width, height, {}};
  for (uint32_t y = 0; y < height; ++y) {
    for (uint32_t x = 0; x < width; ++x) {
      image.pixels.push_back(static_cast<uint8_t>(40 + 160 * x / width));
      image.pixels.push_back(static_cast<uint8_t>(40 + 160 * y / height));
      image.pixels.push_back(static_cast<uint8_t>(200 - 80 * (x + y) / (width + height)));
    }
  }
  return image;
}

// A JPEG of these components (1: gray, 3: RGB, 4: inks), with EXIF data of this orientation where
// it is not 0, and Adobe's marker with four of them where `adobe`.
inline std::string MakeJpeg(const std::vector<uint8_t>& pixels, uint32_t width, uint32_t height,
                            int components, int orientation = 0, bool adobe = true) {
  jpeg_compress_struct info = {};
  jpeg_error_mgr error = {};
  info.err = jpeg_std_error(&error);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = width;
  info.image_height = height;
  info.input_components = components;
  info.in_color_space = components == 1 ? JCS_GRAYSCALE : components == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  if (components == 4) info.write_Adobe_marker = adobe ? TRUE : FALSE;
  jpeg_start_compress(&info, TRUE);
  if (orientation != 0) {
    const std::string exif = std::string("Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", 25) +
                             static_cast<char>(orientation) + std::string(6, '\0');
    jpeg_write_marker(&info, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(exif.data()),
                      static_cast<unsigned>(exif.size()));
  }
  const size_t stride = size_t{width} * components;
  while (info.next_scanline < height) {
    JSAMPROW row = const_cast<uint8_t*>(pixels.data()) + info.next_scanline * stride;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string out(reinterpret_cast<const char*>(bytes), size);
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return out;
}

inline std::string MakeJpeg(const Image& image, int orientation = 0) {
  return MakeJpeg(image.pixels, image.width, image.height, 3, orientation);
}

// `format` is one of libpng's, as PNG_FORMAT_RGB.
inline std::string MakePng(const std::vector<uint8_t>& pixels, uint32_t width, uint32_t height,
                           uint32_t format) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = width;
  image.height = height;
  image.format = format;
  png_alloc_size_t size = 0;
  EXPECT_NE(png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0, nullptr), 0);
  std::string out(size, '\0');
  EXPECT_NE(png_image_write_to_memory(&image, out.data(), &size, 0, pixels.data(), 0, nullptr), 0);
  out.resize(size);
  return out;
}

inline std::string MakePng(const Image& image) {
  return MakePng(image.pixels, image.width, image.height, PNG_FORMAT_RGB);
}

}  // namespace foreshard
