// Evaluates the servers' parameters on the test set: after each completed epoch
// while the job runs, and once on all of it when the job is over. Running
// statistics were gathered at other parameters, so they are first averaged anew
// over a few training batches.
//
//   Evaluator evaluator(options, model, train, test);
//   auto result = evaluator.Evaluate(client->parameters(), 0);
//   absl::Status status = RunEvaluator(run, &evaluator, client.get());
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/credentials.h"
#include "common/net/metrics.h"
#include "foreshard/v1/exchange.pb.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"
#include "worker/parameter_client.h"

namespace foreshard {

struct EvaluatorOptions {
  uint64_t seed = 0;
  uint32_t batch_size = 1;
  uint32_t recalibration_batches = 20;
};

// Thread-compatible.
class Evaluator {
 public:
  Evaluator(const EvaluatorOptions& options, Model* model, const Dataset* train,
            const Dataset* test);

  // Overwrites the statistics in `parameters` (the whole vector) with those of the
  // first recalibration_batches training batches at these parameters.
  absl::Status Recalibrate(float* parameters);

  // Loss and accuracy of recalibrated parameters on the first `examples` of the
  // test set; 0: all of it.
  absl::StatusOr<v1::Evaluation> Evaluate(float* parameters, uint64_t examples);

 private:
  const EvaluatorOptions options_;
  Model* const model_;
  const Dataset* const train_;
  const Dataset* const test_;
  BatchOrder order_;
  Batch batch_;
};

struct EvaluatorRun {
  std::string lead;  // address of server 0
  Credentials credentials;
  v1::Contract contract;  // tells the lead that this is an evaluator of its job
  uint32_t interval_epochs = 1;
  uint64_t examples = 0;      // of the test set while the job runs; 0: all
  bool lookahead = false;     // also evaluate the parameters that workers are sent
  double connect_seconds = 60;
  const std::atomic<bool>* stop = nullptr;
  WorkerMetrics* metrics = nullptr;
};

// Asks the lead how far the job is, evaluates the newest state when another
// interval of epochs is complete (skipping those it was too slow for), and
// returns OK after the final evaluation. CANCELLED once `stop` is set.
absl::Status RunEvaluator(const EvaluatorRun& run, Evaluator* evaluator, ParameterClient* client);

}  // namespace foreshard
