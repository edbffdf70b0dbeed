// Drives one Segment as workers would: each worker holds parameters, makes
// gradients at them, pushes and takes the reply.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "common/core/catalogue.h"
#include "common/core/random.h"
#include "kernels/worker_half.h"
#include "server/segment.h"

namespace foreshard {

inline std::vector<Block> CutBlocks(uint64_t elements, uint32_t block_elements, bool decayed = true) {
  std::vector<Block> blocks;
  for (uint64_t at = 0; at < elements; at += block_elements) {
    blocks.push_back({at, static_cast<uint32_t>(std::min<uint64_t>(block_elements, elements - at)), decayed});
  }
  return blocks;
}

inline SegmentOptions MakeSegmentOptions(const std::string& rule, uint64_t elements, uint32_t workers,
                                         float eta = 0.05f) {
  SegmentOptions options;
  options.plan.elements = elements;
  options.plan.blocks = CutBlocks(elements, 100);
  options.rule = {.rule = rule, .momentum = 0.9f, .max_workers = workers};
  options.schedule = {.learning_rate = eta, .workers = workers, .batches_per_epoch = 1000000};
  options.sample_stride = 1;
  options.keep_all_held = FindRule(rule)->needs_held;
  return options;
}

class SegmentHarness {
 public:
  struct Worker {
    std::vector<float> parameters;
    uint64_t sequence = 0;
    uint64_t held_version = 0;
    uint64_t incarnation = 1;
    float last_eta = 0;
    uint64_t share_ticket = 0;  // clock of the last push, or what it has repaired to
    std::unique_ptr<WorkerHalf> half;
  };

  explicit SegmentHarness(const SegmentOptions& options, uint32_t workers)
      : options(options), segment(Segment::Create(options).value()), workers(workers) {
    std::vector<float> values(options.plan.elements);
    for (size_t k = 0; k < values.size(); ++k) {
      values[k] = static_cast<float>(RandomNormal(1, 1, k));
    }
    Send({.kind = EventKind::kInitialise}, values);
    for (uint32_t w = 0; w < workers; ++w) Join(w);
  }

  void Join(uint32_t w) {
    workers[w].half = MakeWorkerHalf(options.rule.rule, {.momentum = options.rule.momentum},
                                     options.plan.elements);
    workers[w].last_eta = 0;
    workers[w].share_ticket = 0;
    Send({.kind = EventKind::kJoin, .worker = w, .incarnation = workers[w].incarnation}, {});
    Read(w);
  }

  void Read(uint32_t w) {
    Take(w, Send({.kind = EventKind::kRead, .worker = w, .incarnation = workers[w].incarnation,
                  .held_version = workers[w].held_version},
                 {}));
  }

  // Pushes `gradient` (raw) from worker w with this ticket; takes the reply.
  Outcome Push(uint32_t w, std::vector<float> gradient, uint64_t ticket, CodecId codec = CodecId::kNone,
               CodecId reply_codec = CodecId::kNone) {
    Worker& worker = workers[w];
    if (worker.half != nullptr) {
      const float eta = options.schedule.At(std::max(ticket, segment->clock()));
      worker.half->Transform(options.plan.blocks, 0, eta, worker.last_eta == 0 ? eta : worker.last_eta,
                             worker.parameters.data(), gradient.data());
      worker.last_eta = eta;
    }
    const Outcome outcome =
        Send({.kind = EventKind::kPush, .codec = static_cast<uint8_t>(codec),
              .reply_codec = static_cast<uint8_t>(reply_codec), .worker = w, .incarnation = worker.incarnation,
              .sequence = ++worker.sequence, .ticket = ticket, .held_version = worker.held_version},
             gradient);
    Take(w, outcome);
    if (status.ok()) worker.share_ticket = outcome.clock;
    return outcome;
  }

  // Brings the momentum of w for this step of the rate, or asks again; takes the reply.
  Outcome Repair(uint32_t w, uint64_t step) {
    Worker& worker = workers[w];
    const bool brings = worker.last_eta != 0 && worker.share_ticket < step;
    std::vector<float> momentum;
    if (brings) momentum.assign(worker.half->momentum().begin(), worker.half->momentum().end());
    const Outcome outcome =
        Send({.kind = EventKind::kLearningRateRepair, .worker = w, .incarnation = worker.incarnation,
              .ticket = step, .held_version = worker.held_version},
             momentum);
    if (!status.ok()) return outcome;
    if (brings) {
      worker.share_ticket = step;
      worker.last_eta = options.schedule.At(step);
    }
    Take(w, outcome);
    return outcome;
  }

  // Encodes `values` (where given) and performs the event; records it.
  Outcome Send(Event event, const std::vector<float>& values) {
    if (!values.empty()) {
      const Codec& codec = *codecs.Find(static_cast<CodecId>(event.codec));
      PushPlace place = {.worker = event.worker, .sequence = event.sequence};
      if (options.synchronous) place.round = event.argument;
      encoded.resize(EncodedBytes(codec, options.plan.blocks));
      EncodeSegment(codec, options.plan.blocks, values.data(), nullptr,
                    PushKey(options.seed, options.plan.id, place), encoded.data());
    } else {
      encoded.clear();
    }
    const ByteSpan piece(encoded);
    event.payload = {absl::MakeConstSpan(&piece, 1), piece.size()};
    status = segment->CheckPayload(event);
    if (status.ok()) status = segment->Admit(&event);
    reply.bytes = 0;
    if (!status.ok()) return {};
    if (event.kind == EventKind::kResend) ++resends;
    event.number = ++numbers;
    AppendRecord(event, &records);
    buffer.resize(options.plan.elements * sizeof(float));
    reply.data = buffer.data();
    return segment->Apply(event, &reply);
  }

  void Take(uint32_t w, const Outcome& outcome) {
    if (reply.bytes == 0) return;
    Worker& worker = workers[w];
    worker.parameters.resize(options.plan.elements);
    const Codec& codec = *codecs.Find(reply.codec);
    std::vector<float> decoded(options.plan.elements);
    DecodeSegment(codec, options.plan.blocks, buffer.data(),
                  ReplyKey(options.seed, options.plan.id, w, outcome.version), decoded.data());
    EXPECT_EQ(reply.delta, !codec.replies_carry_values());
    if (reply.delta) {
      EXPECT_EQ(reply.delta_base, worker.held_version);
    }
    for (const Block& block : options.plan.blocks) {
      const bool added = !BlockCodec(codec, block).replies_carry_values();
      for (uint64_t k = block.offset; k < block.offset + block.elements; ++k) {
        worker.parameters[k] = added ? worker.parameters[k] + decoded[k] : decoded[k];
      }
    }
    worker.held_version = outcome.version;
  }

  SegmentOptions options;
  CodecSet codecs{options.codec};
  std::unique_ptr<Segment> segment;
  std::vector<Worker> workers;
  std::string records;
  uint64_t numbers = 0;
  uint64_t resends = 0;  // of the events performed
  absl::Status status;
  std::vector<uint8_t> encoded, buffer;
  Reply reply;
};

// A gradient of a noisy quadratic at these parameters, drawn by `key`.
inline std::vector<float> QuadraticGradient(const std::vector<float>& parameters, uint64_t key) {
  std::vector<float> gradient(parameters.size());
  for (size_t k = 0; k < gradient.size(); ++k) {
    const double curvature = 0.1 + 0.9 * RandomUniform(2, 2, k);
    gradient[k] = static_cast<float>(curvature * parameters[k] + 0.1 * RandomNormal(3, key, k));
  }
  return gradient;
}

inline double RelativeDifference(absl::Span<const float> a, absl::Span<const float> b) {
  double difference = 0, norm = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    difference += (double{a[k]} - b[k]) * (double{a[k]} - b[k]);
    norm += double{a[k]} * a[k];
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

}  // namespace foreshard
