// foreshard bench: each figure beside the limit that was measured in the same run.
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/exit_code.h"
#include "common/net/credential_flags.h"
#include "glog/logging.h"
#include "tools/bench/bench.h"
#include "tools/bench/table.h"
#include "tools/commands.h"
#include "tools/files.h"

namespace foreshard {
namespace {

struct BenchFlags {
  std::string what;
  std::string json;
  CredentialFlags credentials;
  bench::BenchOptions options;
};

struct Suite {
  const char* name;
  std::vector<bench::BenchResult> (*run)(const bench::BenchOptions&);
};

constexpr Suite kSuites[] = {{"codec", bench::BenchCodec},
                             {"apply", bench::BenchApply},
                             {"exchange", bench::BenchExchange},
                             {"journal", bench::BenchJournal},
                             {"restart", bench::BenchRestart},
                             {"metrics", bench::BenchMetrics},
                             {"train", bench::BenchTrain}};

int Bench(const BenchFlags& flags) {
  FLAGS_minloglevel = google::GLOG_WARNING;  // servers of the exchange say much
  // Rather now than after minutes of measuring.
  if (!flags.json.empty()) {
    if (absl::Status status = WriteFileAtomically(flags.json, "[]\n"); !status.ok()) {
      Fail("bench", status);
      return kExitFailed;
    }
  }
  std::vector<bench::BenchResult> all;
  std::fputs(bench::TableHeader().c_str(), stdout);
  for (const Suite& suite : kSuites) {
    if (flags.what != "all" && flags.what != suite.name) continue;
    std::fprintf(stderr, "measuring %s ...\n", suite.name);
    std::fflush(stdout);
    for (const bench::BenchResult& result : suite.run(flags.options)) {
      std::fputs(bench::TableLine(result).c_str(), stdout);
      all.push_back(result);
    }
    std::fflush(stdout);
    if (flags.json.empty()) continue;
    // After each suite, so that one that is broken off leaves what there is.
    if (absl::Status status =
            WriteFileAtomically(flags.json, bench::ToJson(all).dump(2) + "\n");
        !status.ok()) {
      Fail("bench", status);
      return kExitFailed;
    }
  }
  if (all.empty()) {
    std::fprintf(stderr, "foreshard bench: %s measured nothing\n", flags.what.c_str());
    return kExitFailed;
  }
  return kExitDone;
}

}  // namespace

void AddBenchCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* bench = program.add_subcommand(
      "bench", "Measure this machine: each figure beside the limit measured in the same run");
  bench->add_option("what", flags->what, "codec, apply, exchange, journal, restart, metrics, train or all")
      ->required()
      ->check(CLI::IsMember({"codec", "apply", "exchange", "journal", "restart", "metrics", "train", "all"}));
  bench->add_option("--json", flags->json, "Also write a JSON list of name, value, unit, limit, ratio")
      ->type_name("FILE");
  bench->add_option("--seconds", flags->options.seconds, "Seconds of measuring for each figure")
      ->check(NumberAboveZero())
      ->capture_default_str();
  bench->add_flag("--quick", flags->options.quick, "Smallest sizes only");
  flags->credentials.AddTo(*bench);
  bench->footer("A ratio above 1 is better than the limit. Exit status: 0 done, 1 failed, "
                "2 bad arguments.");
  bench->callback([flags, exit_code] {
    flags->options.credentials = flags->credentials.files;
    *exit_code = Bench(*flags);
  });
}

}  // namespace foreshard
