#include "tools/bench/exchange_client.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/net/job_spec.h"
#include "worker/job_setup.h"

namespace foreshard::bench {

v1::JobSpec SyntheticJob(uint64_t elements, const std::string& push, const std::string& reply) {
  const std::string text = absl::StrCat(
      "name: 'bench' model { name: 'synthetic' elements: ", elements,
      " } data { format: 'synthetic' examples: 1000000000 } training { epochs: 1000 batch_size: 1 "
      "workers: 1 } update { rule: 'asgd' } schedule { learning_rate: 1e-6 } compression { push: '",
      push, "' reply: '", reply,
      "' } servers { shards: 1 inflight_bytes: 2147483648 } timeouts { lease_seconds: 600 "
      "connect_seconds: 30 }");
  return ParseJobSpec(text, "a benchmark's job", {}).value();
}

std::unique_ptr<ExchangeClient> ExchangeClient::Connect(const std::string& address, const Credentials& credentials,
                                                        const v1::JobSpec& job) {
  auto client = std::unique_ptr<ExchangeClient>(new ExchangeClient(job));
  client->status_ = client->Begin(address, credentials);
  if (!client->good()) return nullptr;
  return client;
}

void ExchangeClient::Step() {
  if (status_.ok()) status_ = client_->Push({.ticket = ticket_++, .gradient = gradient_.data()});
  if (status_.ok()) status_ = client_->Finish();
}

bool ExchangeClient::good() const {
  if (!status_.ok()) std::fprintf(stderr, "benchmark of exchanges: %s\n", status_.ToString().c_str());
  return status_.ok();
}

absl::Status ExchangeClient::Begin(const std::string& address, const Credentials& credentials) {
  const auto loaded = LoadJobModel(job_);
  if (!loaded.ok()) return loaded.status();
  const Schema& schema = loaded->model->schema();
  auto options = MakeClientOptions(job_, schema, loaded->train->examples(), {address});
  if (!options.ok()) return options.status();
  options->hello.set_incarnation(1);
  options->credentials = credentials;
  window_ = options->window;
  auto client = ParameterClient::Connect(*options);
  if (!client.ok()) return client.status();
  client_ = *std::move(client);
  const std::vector<float> values(schema.elements(), 0.5f);
  if (absl::Status s = client_->Initialise(values); !s.ok()) return s;
  if (absl::Status s = client_->Pull(Parameters::kAsSent); !s.ok()) return s;
  gradient_.resize(schema.trainable_elements());
  for (size_t k = 0; k < gradient_.size(); ++k) {
    gradient_[k] = static_cast<float>(static_cast<int>(k * 2654435761u >> 16 & 0xff) - 127) / 128;
  }
  const Traffic before = client_->traffic();
  Step();
  const Traffic after = client_->traffic();
  push_bytes_ = static_cast<double>(after.push_bytes - before.push_bytes);
  pull_bytes_ = static_cast<double>(after.pull_bytes - before.pull_bytes);
  return status_;
}

}  // namespace foreshard::bench
