// foreshard pack-images: a folder of pictures as packed image records.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "common/core/exit_code.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/pack_images.h"
#include "tools/progress_line.h"

namespace foreshard {
namespace {

int Pack(PackOptions options) {
  const Interrupt interrupt;
  options.interrupted = [&] { return interrupt.requested(); };
  absl::StatusOr<PackFigures> figures;
  {
    ProgressLine line;
    options.progress = [&](const PackFigures& now) {
      line.Say([&](double seconds) {
        const uint64_t done = now.packed + now.skipped;
        return absl::StrFormat("%d of %d pictures, %d skipped, %.0f a second", done, now.images, now.skipped,
                               static_cast<double>(done) / seconds);
      });
    };
    figures = PackImages(options);
  }
  if (!figures.ok()) return Fail("pack-images", figures.status());
  for (const std::string& why : figures->first_skipped) {
    std::fprintf(stderr, "skipped: %s\n", why.c_str());
  }
  std::printf("%s: %llu images in %u shards, %.1f MB; %llu resized or converted, %llu skipped\n",
              options.output.c_str(), static_cast<unsigned long long>(figures->packed), options.shards,
              static_cast<double>(figures->bytes) / 1e6, static_cast<unsigned long long>(figures->resized),
              static_cast<unsigned long long>(figures->skipped));
  return kExitDone;
}

}  // namespace

void AddPackImagesCommand(CLI::App& program, int* exit_code) {
  auto options = std::make_shared<PackOptions>();
  CLI::App* pack = program.add_subcommand(
      "pack-images", "Pack a folder of class folders of JPEG and PNG files into image records");
  pack->add_option("--input", options->input, "The folder; each folder in it is a class")
      ->required()
      ->type_name("FOLDER");
  pack->add_option("--output", options->output, "Folder to make; it must not be there, or be empty")
      ->required()
      ->type_name("DIR");
  pack->add_option("--size", options->size,
                   "Pictures whose shorter side is larger are made so large, in pixels")
      ->check(WholeNumberFromOne())
      ->capture_default_str();
  pack->add_option("--shards", options->shards, "Files to spread the images over")
      ->check(WholeNumberFromOne())
      ->capture_default_str();
  pack->add_option("--threads", options->threads, "Threads that decode and encode [one a core]")
      ->check(WholeNumberFromOne());
  pack->add_flag("--skip-bad", options->skip_bad,
                 "Leave out files that do not decode, and count them, instead of ending");
  pack->footer("Exit status: 0 packed, 1 failed (the disk), 2 bad arguments or pictures, 130 interrupted.");
  pack->callback([options, exit_code] { *exit_code = Pack(*options); });
}

}  // namespace foreshard
