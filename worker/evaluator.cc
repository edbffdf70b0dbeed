#include "worker/evaluator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/core/steady_time.h"
#include "common/net/channel.h"
#include "foreshard/v1/exchange.grpc.pb.h"
#include "glog/logging.h"
#include "worker/patience.h"

namespace foreshard {
namespace {

constexpr absl::Duration kAskEvery = absl::Milliseconds(500);

// What the lead knows of the job's progress, and where evaluations go.
class LeadReports {
 public:
  explicit LeadReports(const EvaluatorRun& run)
      : run_(run),
        stub_(v1::Lead::NewStub(MakeChannel(run.lead, run.credentials))),
        patience_(ServerName(0, run.lead), absl::Seconds(run.connect_seconds),
                  run.credentials.Explainer(run.lead)) {}

  absl::StatusOr<v1::ReportReply> Report(const std::vector<v1::Evaluation>& evaluations) {
    v1::ReportRequest request;
    *request.mutable_contract() = run_.contract;
    for (const v1::Evaluation& evaluation : evaluations) *request.add_evaluations() = evaluation;
    v1::ReportReply reply;
    const absl::Status status = CallPatiently(
        patience_, absl::Seconds(run_.connect_seconds),
        [this] { return run_.stop != nullptr && run_.stop->load(); },
        [&](grpc::ClientContext& context) { return stub_->Report(&context, request, &reply); });
    if (!status.ok()) return status;
    return reply;
  }

 private:
  const EvaluatorRun& run_;
  const std::unique_ptr<v1::Lead::Stub> stub_;
  Patience patience_;
};

absl::StatusOr<std::vector<v1::Evaluation>> EvaluateNow(const EvaluatorRun& run,
                                                        Evaluator* evaluator,
                                                        ParameterClient* client, uint32_t epoch,
                                                        bool final) {
  std::vector<std::pair<Parameters, const char*>> kinds = {{Parameters::kMaster, "master"}};
  if (run.lookahead) kinds.push_back({Parameters::kAsSent, "lookahead"});
  std::vector<v1::Evaluation> evaluations;
  for (const auto& [which, name] : kinds) {
    const SteadyTime start = SteadyTime::Now();
    if (const absl::Status pulled = client->Pull(which); !pulled.ok()) return pulled;
    auto evaluation = evaluator->Evaluate(client->parameters(), final ? 0 : run.examples);
    if (!evaluation.ok()) return evaluation.status();
    evaluation->set_parameters(name);
    evaluation->set_epoch(epoch);
    evaluation->set_final(final);
    evaluation->set_seconds(absl::ToDoubleSeconds(SteadyTime::Now() - start));
    LOG(INFO) << absl::StrFormat(
        "%s %d, %s parameters: accuracy %.2f %%, loss %.4f on %d examples (%.1f s)",
        final ? "final, epoch" : "epoch", epoch, name, 100 * evaluation->accuracy(),
        evaluation->loss(), evaluation->examples(), evaluation->seconds());
    if (run.metrics != nullptr) {
      const bool master = which == Parameters::kMaster;
      (master ? run.metrics->eval_accuracy_master : run.metrics->eval_accuracy_lookahead)
          ->Set(evaluation->accuracy());
      (master ? run.metrics->eval_loss_master : run.metrics->eval_loss_lookahead)
          ->Set(evaluation->loss());
    }
    evaluations.push_back(*std::move(evaluation));
  }
  return evaluations;
}

}  // namespace

Evaluator::Evaluator(const EvaluatorOptions& options, Model* model, const Dataset* train,
                     const Dataset* test)
    : options_(options),
      model_(model),
      train_(train),
      test_(test),
      order_(options.seed, train->examples(), options.batch_size) {}

absl::Status Evaluator::Recalibrate(float* parameters) {
  const Schema& schema = model_->schema();
  const uint64_t batches =
      std::min<uint64_t>(options_.recalibration_batches, order_.batches_per_epoch());
  if (schema.statistic_elements() == 0 || batches == 0) return absl::OkStatus();
  std::vector<float> one(schema.statistic_elements());
  std::vector<double> sum(schema.statistic_elements());
  double weight = 0;  // a short batch counts for less
  for (uint64_t ticket = 0; ticket < batches; ++ticket) {
    if (const absl::Status status = train_->Gather(order_.Indices(ticket), 0, &batch_); !status.ok()) {
      return status;
    }
    if (const absl::Status status = model_->BatchStatistics(batch_, parameters, one.data());
        !status.ok()) {
      return status;
    }
    const auto examples = static_cast<double>(batch_.examples);
    for (size_t k = 0; k < one.size(); ++k) sum[k] += examples * one[k];
    weight += examples;
  }
  float* statistics = parameters + schema.trainable_elements();
  for (size_t k = 0; k < sum.size(); ++k) statistics[k] = static_cast<float>(sum[k] / weight);
  return absl::OkStatus();
}

absl::StatusOr<v1::Evaluation> Evaluator::Evaluate(float* parameters, uint64_t examples) {
  if (const absl::Status status = Recalibrate(parameters); !status.ok()) return status;
  const uint64_t wanted =
      examples == 0 ? test_->examples() : std::min(examples, test_->examples());
  std::vector<uint32_t> indices;
  StepResult sum;
  uint64_t seen = 0;
  for (uint64_t begin = 0; begin < wanted; begin += options_.batch_size) {
    indices.resize(std::min<uint64_t>(options_.batch_size, wanted - begin));
    std::iota(indices.begin(), indices.end(), static_cast<uint32_t>(begin));
    if (const absl::Status status = test_->Gather(indices, 0, &batch_); !status.ok()) return status;
    const auto result = model_->Evaluate(batch_, parameters);
    if (!result.ok()) return result.status();
    sum.loss_sum += result->loss_sum;
    sum.correct += result->correct;
    sum.count += result->count;
    sum.side_loss_sum += result->side_loss_sum;
    seen += indices.size();
  }
  v1::Evaluation evaluation;
  evaluation.set_examples(seen);
  if (sum.count > 0) {
    evaluation.set_loss(sum.loss_sum / static_cast<double>(sum.count) +
                        sum.side_loss_sum / static_cast<double>(seen));
    evaluation.set_accuracy(static_cast<double>(sum.correct) / static_cast<double>(sum.count));
  }
  return evaluation;
}

absl::Status RunEvaluator(const EvaluatorRun& run, Evaluator* evaluator, ParameterClient* client) {
  LeadReports lead(run);
  uint32_t evaluated = 0;  // epochs
  std::vector<v1::Evaluation> news;
  for (;;) {
    if (run.stop != nullptr && run.stop->load()) return absl::CancelledError("interrupted");
    const auto state = lead.Report(news);
    if (!state.ok()) return state.status();
    news.clear();
    const uint32_t epochs = state->completed_epochs();
    if (state->finished()) {
      auto final = EvaluateNow(run, evaluator, client, epochs, true);
      if (!final.ok()) return final.status();
      return lead.Report(*final).status();
    }
    if (epochs >= evaluated + std::max(run.interval_epochs, 1u)) {
      auto evaluations = EvaluateNow(run, evaluator, client, epochs, false);
      if (!evaluations.ok()) return evaluations.status();
      news = *std::move(evaluations);
      evaluated = epochs;
      continue;
    }
    absl::SleepFor(kAskEvery);
  }
}

}  // namespace foreshard
