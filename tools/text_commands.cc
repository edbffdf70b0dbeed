// foreshard pack-text and foreshard learn-vocabulary: plain text as token records, and the
// vocabulary for it.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "common/core/exit_code.h"
#include "tools/commands.h"
#include "tools/counted.h"
#include "tools/interrupt.h"
#include "tools/pack_text.h"
#include "tools/progress_line.h"

namespace foreshard {
namespace {

double Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 100 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

int Pack(PackTextOptions options) {
  const Interrupt interrupt;
  options.interrupted = [&] { return interrupt.requested(); };
  absl::StatusOr<PackTextFigures> figures;
  {
    ProgressLine line;
    options.progress = [&](const PackTextFigures& now) {
      line.Say([&](double seconds) {
        return absl::StrFormat("file %d of %d (%.1f %% of the bytes), %d sequences, %.0f tokens a second",
                               now.files_done + 1, now.files, Percent(now.bytes_done, now.bytes), now.records,
                               static_cast<double>(now.tokens) / seconds);
      });
    };
    figures = PackText(options);
  }
  if (!figures.ok()) return Fail("pack-text", figures.status());
  std::printf("%s: %s\n", options.output.c_str(),
              absl::StrFormat("%s of %d tokens%s in %s; %d tokens of %s, %.2f %% unknown",
                              Counted(figures->records, "sequence"), options.sequence,
                              figures->held_out > 0 ? absl::StrFormat(", %d of them for testing,", figures->held_out)
                                                    : std::string(),
                              Counted(options.shards, "shard"), figures->tokens, Counted(figures->files, "file"),
                              Percent(figures->unknown, std::max<uint64_t>(figures->tokens, 1)))
                  .c_str());
  return kExitDone;
}

int Learn(LearnTextOptions options) {
  const Interrupt interrupt;
  options.interrupted = [&] { return interrupt.requested(); };
  absl::StatusOr<uint32_t> tokens;
  {
    ProgressLine line;
    options.progress = [&](const char* what, uint64_t done, uint64_t of) {
      line.Say([&](double) { return absl::StrFormat("%d of %d %s", done, of, what); });
    };
    tokens = LearnTextVocabulary(options);
  }
  if (!tokens.ok()) return Fail("learn-vocabulary", tokens.status());
  std::printf("%s: %u tokens%s\n", options.output.c_str(), *tokens,
              *tokens < options.size ? "; the text has no more pieces that are there twice" : "");
  return kExitDone;
}

}  // namespace

void AddPackTextCommand(CLI::App& program, int* exit_code) {
  auto options = std::make_shared<PackTextOptions>();
  CLI::App* pack = program.add_subcommand("pack-text", "Pack plain text files into records of tokens");
  pack->add_option("--input", options->inputs, "Text files in UTF-8, plain or gzipped, or folders of them; each is a document")
      ->required()
      ->type_name("PATH");
  pack->add_option("--vocabulary", options->vocabulary, "vocab.txt: a BERT's, or one of learn-vocabulary")
      ->required()
      ->type_name("FILE");
  pack->add_option("--output", options->output, "Folder to make; it must not be there, or be empty")
      ->required()
      ->type_name("DIR");
  pack->add_option("--sequence", options->sequence, "Tokens of a sequence, its special ones included")
      ->check(WholeNumberFromOne())
      ->capture_default_str();
  pack->add_flag("--pairs", options->pairs, "Two segments a sequence, for model.next_sentence");
  pack->add_flag("--cased", options->cased, "Keep capitals and accents, for a cased vocabulary");
  pack->add_option("--shards", options->shards, "Files to spread the sequences over")
      ->check(WholeNumberFromOne())
      ->capture_default_str();
  pack->add_option("--held-out", options->held_out,
                   "Every so many-th sequence goes to DIR/test, the others to DIR/train; 0: all to DIR")
      ->capture_default_str();
  pack->add_option("--seed", options->seed, "Of the choice of pairs")->capture_default_str();
  pack->footer("Exit status: 0 packed, 1 failed (the disk), 2 bad arguments, vocabulary or text, 130 interrupted.");
  pack->callback([options, exit_code] { *exit_code = Pack(*options); });
}

void AddLearnVocabularyCommand(CLI::App& program, int* exit_code) {
  auto options = std::make_shared<LearnTextOptions>();
  CLI::App* learn = program.add_subcommand("learn-vocabulary", "Learn a vocabulary of word pieces from plain text files");
  learn->add_option("--input", options->inputs, "Text files in UTF-8, plain or gzipped, or folders of them")
      ->required()
      ->type_name("PATH");
  learn->add_option("--output", options->output, "vocab.txt to write")->required()->type_name("FILE");
  learn->add_option("--size", options->size, "Tokens wanted")->check(WholeNumberFromOne())->capture_default_str();
  learn->add_flag("--cased", options->cased, "Keep capitals and accents");
  learn->footer("Exit status: 0 written, 1 failed (the disk), 2 bad arguments or text, 130 interrupted.");
  learn->callback([options, exit_code] { *exit_code = Learn(*options); });
}

}  // namespace foreshard
