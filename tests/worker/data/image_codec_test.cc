#include "worker/data/image_codec.h"

#include <cmath>
#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/pictures.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

Image Decoded(const std::string& bytes) {
  auto image = DecodeImage(AsBytes(bytes));
  EXPECT_TRUE(image.ok()) << image.status();
  return image.ok() ? *std::move(image) : Image{};
}

int Largest(const Image& a, const Image& b) {
  EXPECT_EQ(a.width, b.width);
  EXPECT_EQ(a.height, b.height);
  if (a.pixels.size() != b.pixels.size()) return 256;
  int largest = 0;
  for (size_t i = 0; i < a.pixels.size(); ++i) {
    largest = std::max(largest, std::abs(int{a.pixels[i]} - int{b.pixels[i]}));
  }
  return largest;
}

const uint8_t* At(const Image& image, uint32_t x, uint32_t y) {
  return &image.pixels[(size_t{y} * image.width + x) * 3];
}

TEST(ImageCodec, PngIsExactAndJpegNear) {
  const Image image = Gradient(40, 24);
  EXPECT_EQ(Largest(Decoded(MakePng(image)), image), 0);
  EXPECT_LE(Largest(Decoded(MakeJpeg(image)), image), 8);
  const auto encoded = EncodeJpeg(image);
  ASSERT_TRUE(encoded.ok());
  EXPECT_LE(Largest(Decoded(*encoded), image), 4);
}

TEST(ImageCodec, GrayBecomesThreeEqualChannels) {
  std::vector<uint8_t> gray;
  for (int i = 0; i < 16 * 8; ++i) gray.push_back(static_cast<uint8_t>(i));
  for (const std::string& file : {MakeJpeg(gray, 16, 8, 1), MakePng(gray, 16, 8, PNG_FORMAT_GRAY)}) {
    const Image image = Decoded(file);
    ASSERT_EQ(image.pixels.size(), gray.size() * 3);
    for (size_t i = 0; i < gray.size(); ++i) {
      EXPECT_NEAR(image.pixels[3 * i], gray[i], 4);
      EXPECT_EQ(image.pixels[3 * i], image.pixels[3 * i + 1]);
      EXPECT_EQ(image.pixels[3 * i], image.pixels[3 * i + 2]);
    }
  }
}

TEST(ImageCodec, InksBecomeLight) {
  // Cyan 0, magenta full, yellow half, black a quarter.
  std::vector<uint8_t> inks, inverted;
  for (int i = 0; i < 16 * 16; ++i) {
    for (int ink : {0, 255, 128, 64}) {
      inks.push_back(static_cast<uint8_t>(ink));
      inverted.push_back(static_cast<uint8_t>(255 - ink));
    }
  }
  // With its marker Adobe means inverted inks.
  for (const std::string& file : {MakeJpeg(inverted, 16, 16, 4), MakeJpeg(inks, 16, 16, 4, 0, false)}) {
    const Image image = Decoded(file);
    ASSERT_EQ(image.pixels.size(), 16u * 16 * 3);
    EXPECT_NEAR(image.pixels[0], 191, 3);
    EXPECT_NEAR(image.pixels[1], 0, 3);
    EXPECT_NEAR(image.pixels[2], 95, 3);
    EXPECT_FALSE(AboutImage(AsBytes(file))->plain);
  }
}

TEST(ImageCodec, TransparencyIsOnBlack) {
  std::vector<uint8_t> pixels(2 * 2 * 4, 255);
  pixels[3] = 0;
  const std::string file = MakePng(pixels, 2, 2, PNG_FORMAT_RGBA);
  const Image image = Decoded(file);
  EXPECT_EQ(image.pixels[0], 0);
  EXPECT_EQ(image.pixels[3], 255);
  EXPECT_FALSE(AboutImage(AsBytes(file))->plain);
  EXPECT_TRUE(AboutImage(AsBytes(MakePng(Gradient(2, 2))))->plain);
}

TEST(ImageCodec, ExifOrientationIsApplied) {
  // Where the corner that lies first in the file is to be seen, and whether sides are changed.
  struct Case {
    int orientation;
    bool turned, right, bottom;
  };
  Image image{48, 16, std::vector<uint8_t>(48 * 16 * 3, 20)};
  for (uint32_t y = 0; y < 8; ++y) {
    for (uint32_t x = 0; x < 16; ++x) image.pixels[(y * 48 + x) * 3] = 220;
  }
  // And next to it along the row, one that is green.
  for (uint32_t y = 0; y < 8; ++y) {
    for (uint32_t x = 16; x < 32; ++x) image.pixels[(y * 48 + x) * 3 + 1] = 220;
  }
  for (const Case& c : {Case{1, false, false, false}, Case{2, false, true, false}, Case{3, false, true, true},
                        Case{4, false, false, true}, Case{5, true, false, false}, Case{6, true, true, false},
                        Case{7, true, true, true}, Case{8, true, false, true}}) {
    const std::string file = MakeJpeg(image, c.orientation);
    const Image seen = Decoded(file);
    ASSERT_EQ(seen.width, c.turned ? 16u : 48u) << c.orientation;
    const uint32_t x = c.right ? seen.width - 3 : 2, y = c.bottom ? seen.height - 3 : 2;
    EXPECT_GT(At(seen, x, y)[0], 150) << c.orientation;
    const uint32_t along = 24;
    const uint32_t green_x = c.turned ? x : c.right ? seen.width - along : along;
    const uint32_t green_y = !c.turned ? y : c.bottom ? seen.height - along : along;
    EXPECT_GT(At(seen, green_x, green_y)[1], 150) << c.orientation;
    EXPECT_EQ(AboutImage(AsBytes(file))->plain, c.orientation == 1);
  }
  EXPECT_EQ(Decoded(MakeJpeg(image, 9)).width, 48u);  // no such orientation
}

TEST(ImageCodec, WhatIsDamagedIsRefused) {
  const Image image = Gradient(64, 64);
  for (const std::string& file : {MakeJpeg(image), MakePng(image)}) {
    for (size_t bytes : {size_t{9}, file.size() / 4, file.size() / 2, file.size() * 3 / 4}) {
      const auto cut = DecodeImage(AsBytes(file.substr(0, bytes)));
      ASSERT_FALSE(cut.ok()) << bytes << " of " << file.size();
      EXPECT_THAT(std::string(cut.status().message()), HasSubstr("does not decode as"));
    }
  }
  for (const char* text : {"", "GIF89a and more of it", "\xff\xd8"}) {
    EXPECT_THAT(std::string(DecodeImage(AsBytes(text)).status().message()),
                HasSubstr("neither a JPEG nor a PNG file"));
    EXPECT_FALSE(AboutImage(AsBytes(text)).ok());
  }
  // A header that claims far more than may be.
  std::string large = MakeJpeg(image);
  const size_t frame = large.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  for (size_t i = 5; i < 9; ++i) large[frame + i] = '\xfa';
  EXPECT_THAT(std::string(DecodeImage(AsBytes(large)).status().message()), HasSubstr("64250 x 64250 pixels"));
}

// No byte of a file makes it more than an error.
TEST(ImageCodec, SurvivesAnyByte) {
  const Image image = Gradient(16, 16);
  for (const std::string& file : {MakeJpeg(image, 6), MakePng(image)}) {
    for (size_t at = 0; at < file.size(); ++at) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      const auto decoded = DecodeImage(AsBytes(damaged));
      if (decoded.ok()) {
        EXPECT_EQ(decoded->pixels.size(), size_t{decoded->width} * decoded->height * 3);
      }
    }
  }
}

TEST(Resize, KeepsWhatDoesNotChange) {
  const Image image = Gradient(20, 10);
  EXPECT_EQ(Largest(Resize(image, {0, 0, 20, 10}, 20, 10), image), 0);
  const Image mirrored = Resize(image, {0, 0, 20, 10}, 20, 10, true);
  for (uint32_t y = 0; y < 10; ++y) {
    for (uint32_t x = 0; x < 20; ++x) {
      for (int c = 0; c < 3; ++c) EXPECT_EQ(At(mirrored, x, y)[c], At(image, 19 - x, y)[c]);
    }
  }
  const Image part = Resize(image, {3, 2, 5, 4}, 5, 4);
  for (uint32_t y = 0; y < 4; ++y) {
    for (uint32_t x = 0; x < 5; ++x) EXPECT_EQ(At(part, x, y)[0], At(image, x + 3, y + 2)[0]);
  }
}

TEST(Resize, AveragesWhatGetsSmallerAndInterpolatesWhatGetsLarger) {
  // Stripes of one pixel come to their mean.
  Image stripes{64, 64, {}};
  for (uint32_t i = 0; i < 64 * 64; ++i) {
    for (int c = 0; c < 3; ++c) stripes.pixels.push_back(i % 2 == 0 ? 0 : 200);
  }
  const Image small = Resize(stripes, {0, 0, 64, 64}, 8, 8);
  for (uint32_t x = 1; x < 7; ++x) EXPECT_NEAR(At(small, x, 4)[0], 100, 2);
  // A ramp stays one.
  const Image large = Resize(Gradient(16, 16), {0, 0, 16, 16}, 64, 64);
  for (uint32_t x = 8; x < 56; ++x) {
    EXPECT_NEAR(At(large, x, 32)[0], 40 + 10 * ((x + 0.5) / 4 - 0.5), 1.01);
  }
  // One pixel fills anything.
  const Image one = Resize(Image{1, 1, {7, 8, 9}}, {0, 0, 1, 1}, 5, 3);
  EXPECT_EQ(At(one, 4, 2)[2], 9);
}

}  // namespace
}  // namespace foreshard
