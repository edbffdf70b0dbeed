// From a JobSpec to the data and the model of a worker or evaluator.
//
//   auto train = LoadTrainingData(job).value();
//   auto model = MakeJobModel(job, *train, *device).value();
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "foreshard/v1/exchange.pb.h"
#include "foreshard/v1/job.pb.h"
#include "kernels/device.h"
#include "kernels/step_encoder.h"
#include "kernels/step_receiver.h"
#include "worker/data/dataset.h"
#include "worker/elastic_replica.h"
#include "worker/gradient.h"
#include "worker/gradient_use.h"
#include "worker/models/model.h"
#include "worker/parameter_client.h"

namespace foreshard {

// Errors as LoadIdx, LoadCifar, LoadPacked and LoadTokens; INVALID_ARGUMENT where the files do not fit each other, or
// the training data are less than a batch.
absl::StatusOr<std::unique_ptr<Dataset>> LoadTrainingData(const v1::JobSpec& job);
// INVALID_ARGUMENT too where a model of the training data cannot be tested on these: examples of
// another size, text of another vocabulary, with pairs or without; names both files or folders.
absl::StatusOr<std::unique_ptr<Dataset>> LoadTestData(const v1::JobSpec& job, const Dataset& train);

// HelloRequest.data_identity: of text, by its vocabulary, sequence length and kind (pairs); 0: no text.
uint64_t DataIdentity(const Dataset& data);

// Most examples that a model of the job computes at once: training.batch_size, and of text, whose
// activations are large and which has no statistics of a batch, a micro-batch.
uint32_t LargestBatch(const v1::JobSpec& job);

// Takes batches of up to LargestBatch. Errors as MakeModel.
absl::StatusOr<std::unique_ptr<Model>> MakeJobModel(const v1::JobSpec& job, const Dataset& data,
                                                    kernels::Device& device);

// A job's model and what it stands on, for programs that train nothing: on the CPU.
struct JobModel {
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<Dataset> train;  // which says how large the model's input is
  std::unique_ptr<Model> model;
};
// Errors as LoadTrainingData and MakeJobModel.
absl::StatusOr<JobModel> LoadJobModel(const v1::JobSpec& job);

// Memory of a worker of the job, known before its first step: what a step lays out, and the
// vectors that it keeps (parameters, gradient and statistics, what compression keeps back, what the
// rule keeps at workers). Not the program itself, nor messages under way: three segments to each
// server at a time, of which gRPC and the allocator hold several copies and what earlier ones took
// (up to 25 segments' bytes were measured with one server).
struct WorkerMemory {
  uint64_t step_bytes = 0;     // activations, their gradients and scratch
  uint64_t vectors_bytes = 0;
  uint64_t vectors = 0;        // as long as the parameters
};
WorkerMemory MemoryOf(const v1::JobSpec& job, const Model& model);

// The first values of the whole vector: of model.initial_weights where the job has it, else the
// model's own. INVALID_ARGUMENT naming the field, the file and what is wrong with it.
absl::Status WriteFirstValues(const v1::JobSpec& job, const Model& model, float* vector);

GradientOptions MakeGradientOptions(const v1::JobSpec& job);

// All but who this client is (hello.worker, incarnation, reader, worker_name) and
// the callbacks. Errors as ShardPlan::Create.
absl::StatusOr<ParameterClientOptions> MakeClientOptions(const v1::JobSpec& job,
                                                         const Schema& schema,
                                                         uint64_t train_examples,
                                                         const std::vector<std::string>& servers,
                                                         uint64_t data_identity = 0);

// Elastic averaging as the job says; nullopt for other rules.
std::optional<ElasticOptions> MakeElasticOptions(const v1::JobSpec& job,
                                                 uint64_t batches_per_epoch);

// What the job's rule makes of a worker's gradients. `options` are the client's and, like
// it, outlive the result.
std::unique_ptr<GradientUse> MakeGradientUse(const v1::JobSpec& job,
                                             const ParameterClientOptions& options,
                                             ParameterClient* client);

// What makes the job's pushes and takes its replies where its model computes gradients, on a device
// with memory of its own: for GradientComputer and ParameterClientOptions. Both are null where the
// model works in host memory, and where the rule or a codec is the host's (elastic averaging, dead
// tensors), which a log line says. The model outlives them.
struct DeviceExchange {
  std::unique_ptr<kernels::StepEncoder> encoder;  // outlives the receiver
  std::unique_ptr<kernels::StepReceiver> receiver;
};
// Errors: the device's.
absl::StatusOr<DeviceExchange> MakeDeviceExchange(const ParameterClientOptions& options, Model& model);

// What the lead is told of a worker, from what every server will be told. All but
// wanted_slot.
v1::RegisterRequest MakeRegistration(const v1::HelloRequest& hello, const std::string& worker_name,
                                     const std::string& device);

}  // namespace foreshard
