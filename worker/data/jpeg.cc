// JPEG through libjpeg-turbo, whose errors leave by longjmp: no object with a destructor lives
// in a function that may be left so.
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <jpeglib.h>

#include <jerror.h>

#include "absl/strings/str_cat.h"
#include "worker/data/image_formats.h"

namespace foreshard::internal {
namespace {

constexpr int kQuality = 95;
constexpr int kExifMarker = JPEG_APP0 + 1;
constexpr uint16_t kOrientationTag = 0x0112;

struct ErrorState {
  jpeg_error_mgr base;  // first: the library points to it
  jmp_buf leave;
  char text[JMSG_LENGTH_MAX];
};

void Leave(j_common_ptr info) {
  auto* state = reinterpret_cast<ErrorState*>(info->err);
  info->err->format_message(info, state->text);
  longjmp(state->leave, 1);
}

// Warnings. Those that say that pixels are missing or wrong are errors; real files have
// plenty of the others.
void Warn(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA:
    case JWRN_BOGUS_PROGRESSION:
      return;
    default:
      Leave(info);
  }
}

void Quiet(j_common_ptr) {}

void Prepare(ErrorState* state) {
  jpeg_std_error(&state->base);
  state->base.error_exit = Leave;
  state->base.emit_message = Warn;
  state->base.output_message = Quiet;
  state->text[0] = '\0';
}

absl::Status Damaged(const char* text) {
  return absl::InvalidArgumentError(absl::StrCat("does not decode as JPEG: ", text));
}

uint32_t Number(const uint8_t* bytes, size_t count, bool big_endian) {
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) value = value << 8 | bytes[big_endian ? i : count - 1 - i];
  return value;
}

// Exif 2.3: "Exif\0\0", then a TIFF header whose first directory has the tag. 1 where it has not.
int Orientation(const uint8_t* data, size_t size) {
  constexpr size_t kFront = 6, kHeader = 8, kEntry = 12;
  if (size < kFront + kHeader || std::memcmp(data, "Exif\0\0", kFront) != 0) return 1;
  const uint8_t* tiff = data + kFront;
  size -= kFront;
  const bool big = tiff[0] == 'M';
  if (!big && tiff[0] != 'I') return 1;
  const uint64_t directory = Number(tiff + 4, 4, big);
  if (directory + 2 > size) return 1;
  const uint32_t entries = Number(tiff + directory, 2, big);
  for (uint32_t i = 0; i < entries; ++i) {
    const uint64_t at = directory + 2 + uint64_t{i} * kEntry;
    if (at + kEntry > size) return 1;
    if (Number(tiff + at, 2, big) != kOrientationTag) continue;
    const uint32_t value = Number(tiff + at + 8, 2, big);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

// One file's decoding, with all that it needs in one place that outlives a longjmp.
struct Decoder {
  jpeg_decompress_struct info;
  ErrorState error;
  int orientation;
  bool adobe_inverted;

  // False: error.text says why. Each may be left by longjmp, so each is called first of all
  // by what has set error.leave.
  bool Begin(ByteSpan bytes) {
    Prepare(&error);
    info.err = &error.base;
    if (setjmp(error.leave) != 0) return false;
    jpeg_create_decompress(&info);
    jpeg_save_markers(&info, kExifMarker, 0xFFFF);
    jpeg_mem_src(&info, bytes.data(), bytes.size());
    jpeg_read_header(&info, TRUE);
    orientation = 1;
    for (jpeg_saved_marker_ptr marker = info.marker_list; marker != nullptr; marker = marker->next) {
      if (marker->marker != kExifMarker) continue;
      const int found = Orientation(marker->data, marker->data_length);
      if (found != 1) orientation = found;
    }
    return true;
  }

  // `rows`: [height] places of [width, components].
  bool Read(uint8_t* to, size_t stride) {
    if (setjmp(error.leave) != 0) return false;
    while (info.output_scanline < info.output_height) {
      JSAMPROW row = to + info.output_scanline * stride;
      jpeg_read_scanlines(&info, &row, 1);
    }
    jpeg_finish_decompress(&info);
    return true;
  }

  bool Start() {
    if (setjmp(error.leave) != 0) return false;
    const bool four = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
    info.out_color_space = four ? JCS_CMYK : JCS_RGB;
    info.dct_method = JDCT_ISLOW;
    adobe_inverted = four && info.saw_Adobe_marker;
    jpeg_start_decompress(&info);
    return true;
  }
};

// Ends the library's object when its decoder goes.
struct Guard {
  Decoder* decoder;
  ~Guard() { jpeg_destroy_decompress(&decoder->info); }
};

// From four inks to three lights.
void FromCmyk(const std::vector<uint8_t>& inks, bool inverted, std::vector<uint8_t>* pixels) {
  const size_t count = inks.size() / 4;
  for (size_t i = 0; i < count; ++i) {
    uint32_t black = inks[4 * i + 3];
    if (!inverted) black = 255 - black;
    for (size_t c = 0; c < 3; ++c) {
      uint32_t value = inks[4 * i + c];
      if (!inverted) value = 255 - value;
      (*pixels)[3 * i + c] = static_cast<uint8_t>((value * black + 127) / 255);
    }
  }
}

struct Encoder {
  jpeg_compress_struct info;
  ErrorState error;
  unsigned char* bytes;
  unsigned long size;

  bool Run(const uint8_t* pixels, uint32_t width, uint32_t height) {
    Prepare(&error);
    info.err = &error.base;
    bytes = nullptr;
    size = 0;
    if (setjmp(error.leave) != 0) return false;
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &bytes, &size);
    info.image_width = width;
    info.image_height = height;
    info.input_components = 3;
    info.in_color_space = JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, kQuality, TRUE);
    for (int c = 0; c < 3; ++c) {
      info.comp_info[c].h_samp_factor = 1;
      info.comp_info[c].v_samp_factor = 1;
    }
    info.optimize_coding = TRUE;
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < height) {
      JSAMPROW row = const_cast<uint8_t*>(pixels) + size_t{info.next_scanline} * width * 3;
      jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    return true;
  }
};

}  // namespace

absl::StatusOr<ImageAbout> AboutJpeg(ByteSpan bytes) {
  Decoder decoder = {};
  const Guard guard{&decoder};
  if (!decoder.Begin(bytes)) return Damaged(decoder.error.text);
  if (auto s = CheckImageSize(decoder.info.image_width, decoder.info.image_height); !s.ok()) return s;
  const J_COLOR_SPACE space = decoder.info.jpeg_color_space;
  return ImageAbout{.kind = ImageKind::kJpeg,
                    .width = decoder.info.image_width,
                    .height = decoder.info.image_height,
                    .plain = decoder.orientation == 1 && space != JCS_CMYK && space != JCS_YCCK};
}

absl::StatusOr<Image> DecodeJpeg(ByteSpan bytes, int* orientation) {
  Decoder decoder = {};
  const Guard guard{&decoder};
  if (!decoder.Begin(bytes)) return Damaged(decoder.error.text);
  if (auto s = CheckImageSize(decoder.info.image_width, decoder.info.image_height); !s.ok()) return s;
  *orientation = decoder.orientation;
  if (!decoder.Start()) return Damaged(decoder.error.text);
  const auto components = static_cast<size_t>(decoder.info.output_components);
  Image image{decoder.info.output_width, decoder.info.output_height, {}};
  const size_t pixels = size_t{image.width} * image.height;
  image.pixels.resize(pixels * 3);
  std::vector<uint8_t> inks(components == 4 ? pixels * 4 : 0);
  uint8_t* const to = components == 4 ? inks.data() : image.pixels.data();
  if (!decoder.Read(to, image.width * components)) return Damaged(decoder.error.text);
  if (components == 4) FromCmyk(inks, decoder.adobe_inverted, &image.pixels);
  return image;
}

}  // namespace foreshard::internal

namespace foreshard {

absl::StatusOr<std::string> EncodeJpeg(const Image& image) {
  if (auto s = internal::CheckImageSize(image.width, image.height); !s.ok()) return s;
  internal::Encoder encoder = {};
  const bool good = encoder.Run(image.pixels.data(), image.width, image.height);
  std::string out;
  if (good) out.assign(reinterpret_cast<const char*>(encoder.bytes), encoder.size);
  jpeg_destroy_compress(&encoder.info);
  std::free(encoder.bytes);
  if (!good) return absl::InternalError(absl::StrCat("cannot be encoded as JPEG: ", encoder.error.text));
  return out;
}

}  // namespace foreshard
