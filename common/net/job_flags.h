// The options by which every program takes its job.
//
//   CLI::App app;
//   JobFlags job_flags;
//   job_flags.AddTo(app);
//   CLI11_PARSE(app, argc, argv);
//   auto job = job_flags.Load();
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "common/net/job_spec.h"

namespace foreshard {

struct JobFlags {
  std::string path;
  std::vector<std::string> overrides;

  void AddTo(CLI::App& app) {
    app.add_option("--job", path, "The job: a JobSpec as protobuf text (deploy/jobs has ready ones)")
        ->required();
    app.add_option("--set", overrides,
                   "Override a field of the job, as in --set training.epochs=3; may be repeated. "
                   "Lists take commas; an empty value clears the field")
        ->type_name("FIELD=VALUE")
        ->expected(1)
        ->take_all();
  }

  // Errors as LoadJobSpec.
  absl::StatusOr<v1::JobSpec> Load() const { return LoadJobSpec(path, overrides); }
};

}  // namespace foreshard
