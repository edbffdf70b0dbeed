#include "worker/segment_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/net/exchange_message.h"
#include "glog/logging.h"
#include "kernels/device_failure.h"

namespace foreshard {
namespace {

constexpr uint64_t kHeaderBytes = 256;  // about; for deadlines

absl::Status Damaged(uint32_t segment, const absl::Status& what) {
  return absl::DataLossError(
      absl::StrCat("segment ", segment, ": the reply is damaged: ", what.message()));
}

std::unique_ptr<PushEncoding> MakeEncoding(const ParameterClientOptions& options) {
  const PushEncoderOptions encoder = MakeEncoderOptions(options);
  if (options.step_encoder == nullptr) return std::make_unique<PushEncoder>(encoder);
  return std::make_unique<DevicePushEncoder>(encoder, options.step_encoder, options.step_receiver);
}

}  // namespace

SegmentExchange::SegmentExchange(const ParameterClientOptions& options,
                                 std::vector<uint64_t> server_incarnations,
                                 std::function<absl::StatusOr<ServerNow>(uint32_t)> who_answers)
    : options_(options),
      who_answers_(std::move(who_answers)),
      codecs_(options.codec_settings),
      plain_(FindCodec(CodecId::kNone)),
      reply_codec_(codecs_.Find(options.reply_codec)),
      parameters_(options.schema.elements()),
      encoder_(MakeEncoding(options)),
      device_(options.step_encoder == nullptr ? nullptr : static_cast<DevicePushEncoder*>(encoder_.get())),
      protocols_(options.servers.size()),
      server_incarnations_(std::move(server_incarnations)),
      queued_(options.servers.size()) {
  for (std::atomic<uint32_t>& protocol : protocols_) protocol = options.hello.contract().protocol();
  for (const SegmentPlan& plan : options.plan.segments()) {
    segments_.push_back({.plan = &plan});
    trainable_segments_ += plan.kind == TensorKind::kTrainable;
  }
  ready_.assign(segments_.size(), 1);
}

void SegmentExchange::Begin(Operation operation) {
  aliases_.Wait();
  absl::MutexLock lock(&mutex_);
  operation_ = std::move(operation);
  if (operation_.fold && device_ == nullptr) encoder_->FoldNext();  // else Prepare did
  began_ = SteadyTime::Now();
  figures_ = {.ticket = operation_.ticket,
              .earlier = std::move(operation_.earlier),
              .skipped = operation_.kind == v1::ExchangeHeader::SKIP};
  lag_elements_ = elements_ = gap_squares_ = gap_elements_ = surprise_squares_ = 0;
  round_totals_ = {};
  if (operation_.kind == v1::ExchangeHeader::PUSH || operation_.kind == v1::ExchangeHeader::SKIP) late_ = false;
  pending_repairs_.clear();
  missing_workers_.clear();
  absl::MutexLock ready_lock(&ready_mutex_);
  left_ = operation_.segments.size();
  all_ready_ = left_ == 0;
  for (const uint32_t id : operation_.segments) {
    queued_[segments_[id].plan->shard].push_back(id);
    ready_[id] = 0;
  }
}

bool SegmentExchange::HasPayload(const SegmentState& segment) const {
  return operation_.kind == v1::ExchangeHeader::PUSH ||
         operation_.kind == v1::ExchangeHeader::INITIALISE ||
         (operation_.kind == v1::ExchangeHeader::REPAIR && BringsShare(segment, operation_.ticket));
}

uint64_t SegmentExchange::PayloadBytes() const {
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (const uint32_t id : operation_.segments) {
    const SegmentState& segment = segments_[id];
    if (!HasPayload(segment)) continue;
    bytes += operation_.kind == v1::ExchangeHeader::PUSH
                 ? EncodedBytes(PushCodec(segment), segment.plan->blocks)
                 : segment.plan->elements * sizeof(float);
  }
  return bytes;
}

std::vector<uint32_t> SegmentExchange::Unrepaired(uint64_t step) const {
  std::vector<uint32_t> segments;
  if (!encoder_->has_momentum()) return segments;
  absl::MutexLock lock(&mutex_);
  for (const SegmentState& segment : segments_) {
    if (IsTrainable(segment) && (segment.clock < step || BringsShare(segment, step))) {
      segments.push_back(segment.plan->id);
    }
  }
  return segments;
}

std::vector<uint32_t> SegmentExchange::pending_repairs() const {
  absl::MutexLock lock(&mutex_);
  return pending_repairs_;
}

uint64_t SegmentExchange::open_round() const {
  absl::MutexLock lock(&mutex_);
  uint64_t round = 0;
  for (const SegmentState& segment : segments_) round = std::max(round, segment.round);
  return round;
}

std::vector<uint32_t> SegmentExchange::Behind(uint64_t round) const {
  absl::MutexLock lock(&mutex_);
  std::vector<uint32_t> behind;
  for (const SegmentState& segment : segments_) {
    if (IsTrainable(segment) && segment.round < round) behind.push_back(segment.plan->id);
  }
  return behind;
}

bool SegmentExchange::late() const {
  absl::MutexLock lock(&mutex_);
  return late_;
}

std::set<uint32_t> SegmentExchange::missing_workers() const {
  absl::MutexLock lock(&mutex_);
  return missing_workers_;
}

std::optional<Outgoing> SegmentExchange::Next(const std::vector<bool>& room) {
  absl::MutexLock lock(&mutex_);
  // Segments lie in the order in which a forward pass reads them.
  std::deque<uint32_t>* best = nullptr;
  for (size_t shard = 0; shard < queued_.size(); ++shard) {
    if (!room[shard] || queued_[shard].empty()) continue;
    if (best == nullptr || queued_[shard].front() < best->front()) best = &queued_[shard];
  }
  if (best == nullptr) return std::nullopt;
  const uint32_t id = best->front();
  best->pop_front();
  SegmentState& segment = segments_[id];
  const v1::ExchangeHeader::Kind kind = operation_.kind;
  segment.sent_to = server_incarnations_[segment.plan->shard];
  if (segment.lost && Moves()) {
    return Outgoing{.shard = segment.plan->shard,
                    .token = id,
                    .message = MakeMessage(ReadAnew(segment), {}),
                    .bytes = kHeaderBytes + segment.plan->elements * sizeof(float)};
  }
  if (Moves()) ++segment.sequence;
  v1::ExchangeHeader header = Header(segment, kind);
  std::vector<grpc::Slice> payload;
  if (HasPayload(segment)) {
    const SteadyTime start = SteadyTime::Now();
    absl::StatusOr<grpc::Slice> made = MakePayload(segment);
    if (!made.ok()) {
      End(made.status());
      return std::nullopt;
    }
    payload.push_back(*std::move(made));
    header.set_checksum(Checksum(ByteSpan(payload[0].begin(), payload[0].size())));
    figures_.encode_seconds += absl::ToDoubleSeconds(SteadyTime::Now() - start);
  }
  Outgoing out = {.shard = segment.plan->shard, .token = id, .message = MakeMessage(header, payload)};
  const uint64_t message_bytes = out.message.Length();
  const uint64_t plain_bytes = segment.plan->elements * sizeof(float);
  if (kind == v1::ExchangeHeader::PUSH || kind == v1::ExchangeHeader::SKIP) {
    if (IsTrainable(segment)) {
      push_bytes_ += message_bytes;
      push_plain_bytes_ += plain_bytes;
    } else {
      statistics_bytes_ += message_bytes;
    }
  }
  out.bytes = message_bytes + plain_bytes + kHeaderBytes;
  return out;
}

v1::ExchangeHeader SegmentExchange::Header(const SegmentState& segment,
                                           v1::ExchangeHeader::Kind kind) const {
  v1::ExchangeHeader header;
  header.set_kind(kind);
  *header.mutable_contract() = options_.hello.contract();
  header.mutable_contract()->set_protocol(protocols_[segment.plan->shard]);
  header.set_segment(segment.plan->id);
  header.set_worker(options_.hello.worker());
  header.set_incarnation(options_.hello.incarnation());
  header.set_sequence(segment.sequence);
  header.set_ticket(operation_.ticket);
  header.set_held_version(segment.held_version);
  header.set_codec(static_cast<uint32_t>(
      kind == v1::ExchangeHeader::PUSH ? PushCodec(segment).id() : CodecId::kNone));
  const bool any_reply =
      IsTrainable(segment) && (reply_codec_->replies_carry_values() || segment.as_sent);
  header.set_reply_codec(static_cast<uint32_t>((any_reply ? reply_codec_ : plain_)->id()));
  header.set_round(operation_.round);
  header.set_lookahead(operation_.lookahead);
  header.set_absent(kind == v1::ExchangeHeader::FETCH && operation_.absent);
  return header;
}

v1::ExchangeHeader SegmentExchange::ReadAnew(const SegmentState& segment) const {
  v1::ExchangeHeader header = Header(segment, v1::ExchangeHeader::READ);
  if (operation_.kind != v1::ExchangeHeader::READ) header.set_lookahead(true);
  return header;
}

PushPlace SegmentExchange::Place(const SegmentState& segment) const {
  PushPlace place = {.worker = options_.hello.worker(), .sequence = segment.sequence};
  if (options_.synchronous) place.round = operation_.round;
  return place;
}

absl::StatusOr<FollowUp> SegmentExchange::Received(uint32_t token, const grpc::ByteBuffer& reply) {
  absl::MutexLock lock(&mutex_);
  SegmentState& segment = segments_[token];
  const auto parsed = ParsedMessage<v1::ReplyHeader>::Parse(reply);
  if (!parsed.ok()) {
    return FollowUp{.what = FollowUp::What::kAgain, .reason = Damaged(token, parsed.status())};
  }
  const v1::ReplyHeader& header = parsed->header();
  const uint32_t shard = segment.plan->shard;
  if (header.server_incarnation() != server_incarnations_[shard]) {
    return FollowUp{.what = FollowUp::What::kRestarted,
                    .reason = absl::UnavailableError(absl::StrCat(
                        "it was started again (incarnation ", server_incarnations_[shard], " before, now ",
                        header.server_incarnation(), ")"))};
  }
  if (header.segment() != token) {
    return absl::InternalError(
        absl::StrCat("it answered for segment ", header.segment(), ", not ", token));
  }
  const bool pending = header.result() == v1::ReplyHeader::PENDING;
  if (pending) NoteAnswer(segment, header);
  if (pending && operation_.kind == v1::ExchangeHeader::REPAIR) {
    pending_repairs_.push_back(token);
    missing_workers_.insert(header.missing_workers().begin(), header.missing_workers().end());
    NoteShare(segment, header);
    MarkReady(token);
    return FollowUp{};
  }
  // Who leaves does not wait for its round.
  if (pending && operation_.fold) {
    MarkReady(token);
    return FollowUp{};
  }
  if (pending) {
    // What is kept back is handed in after the round, before the worker leaves; calls do
    // not outlive a stop by long.
    const bool folds = encoder_->squeezes() && encoder_->keeps_error();
    if (options_.stop != nullptr && options_.stop->load() && !folds) {
      return absl::CancelledError(absl::StrCat("interrupted in round ", operation_.round));
    }
    if (operation_.absent && options_.over && options_.over()) {
      return absl::CancelledError(absl::StrCat("the job ended before round ", operation_.round));
    }
    if (!options_.views && absl::ToDoubleSeconds(SteadyTime::Now() - began_) > options_.connect_seconds) {
      return absl::DeadlineExceededError(absl::StrCat(
          "round ", operation_.round, " of segment ", token, " has not closed for ",
          options_.connect_seconds,
          " s (timeouts.connect_seconds): another worker is missing; `foreshard status` shows which"));
    }
    return FollowUp{.what = FollowUp::What::kSend,
                    .message = MakeMessage(Header(segment, v1::ExchangeHeader::FETCH), {})};
  }
  if (header.result() != v1::ReplyHeader::INITIALISED) {
    const SteadyTime start = SteadyTime::Now();
    const absl::Status read = Read(segment, header, parsed->payload());
    if (kernels::IsDeviceFailure(read)) return read;
    if (!read.ok()) {
      return FollowUp{.what = FollowUp::What::kAgain, .reason = Damaged(token, read)};
    }
    figures_.pull_seconds += absl::ToDoubleSeconds(SteadyTime::Now() - start);
    const bool was_lost = std::exchange(segment.lost, false);
    if (!was_lost) NoteAnswer(segment, header);
    if (IsTrainable(segment)) {
      segment.round = header.round();
      late_ |= header.result() == v1::ReplyHeader::LATE;
      if (was_lost) {
        // What the server's parameters hold of this worker's momentum is as old as they are.
        segment.share_ticket = std::min(segment.share_ticket, header.clock());
      } else {
        NoteShare(segment, header);
      }
      pull_bytes_ += reply.Length();
      pull_plain_bytes_ += segment.plan->elements * sizeof(float);
      NoteFigures(segment, header);
      if (header.has_measure()) NoteMeasure(header.measure());
    }
  }
  MarkReady(token);
  return FollowUp{};
}

absl::Status SegmentExchange::Read(SegmentState& segment, const v1::ReplyHeader& header,
                                   const Payload& payload) {
  const bool of_master = operation_.kind == v1::ExchangeHeader::READ && !operation_.lookahead;
  if (encoder_->squeezes() && IsTrainable(segment) && !of_master) return ReadRound(segment, header, payload);
  const Codec* codec = header.codec() <= 255 ? codecs_.Find(static_cast<CodecId>(header.codec())) : nullptr;
  if (codec == nullptr || codec->replies_carry_values() == header.delta()) {
    return absl::DataLossError(absl::StrCat("codec ", header.codec(), " cannot carry ",
                                            header.delta() ? "differences" : "parameters"));
  }
  if (header.delta() && (!segment.as_sent || header.delta_base() != segment.held_version ||
                         header.version() <= header.delta_base())) {
    return absl::DataLossError(absl::StrCat("the difference of version ", header.version(), " to ",
                                            header.delta_base(), " where ", segment.held_version,
                                            segment.as_sent ? "" : ", changed since,", " is held"));
  }
  if (Checksum(payload) != header.checksum()) return absl::DataLossError("its checksum is wrong");
  const CodecKey key = ReplyKey(options_.seed, segment.plan->id, options_.hello.worker(), header.version());
  const absl::Status read =
      options_.step_receiver != nullptr && IsTrainable(segment)
          ? ReadToDevice(segment, *codec, key, payload)
          : reader_.Read(*segment.plan, *codec, key, payload,
                         parameters_.data() + segment.plan->begin);
  if (!read.ok()) return read;
  // The master's parameters are not what the server takes this worker to hold.
  segment.as_sent = operation_.kind != v1::ExchangeHeader::READ || operation_.lookahead;
  segment.held_version = header.version();
  segment.clock = segment.lost ? header.clock() : std::max(segment.clock, header.clock());
  return absl::OkStatus();
}

void SegmentExchange::NoteShare(SegmentState& segment, const v1::ReplyHeader& header) {
  if (operation_.kind == v1::ExchangeHeader::REPAIR) {
    if (!BringsShare(segment, operation_.ticket)) return;
    segment.share_ticket = operation_.ticket;
    encoder_->NoteRepaired(*segment.plan, operation_.ticket);
  } else if (operation_.kind == v1::ExchangeHeader::PUSH) {
    segment.has_share = true;
    // After DUPLICATE the older ticket stays: should it be too old, the server knows better.
    if (header.result() == v1::ReplyHeader::APPLIED) segment.share_ticket = header.clock();
  }
}

void SegmentExchange::NoteAnswer(SegmentState& segment, const v1::ReplyHeader& header) {
  // A round's push is answered when it is noted, and again with the round's result.
  if (!options_.answered || !Moves() || segment.answered == segment.sequence) return;
  segment.answered = segment.sequence;
  options_.answered({.segment = segment.plan->id,
                     .sequence = segment.sequence,
                     .ticket = operation_.ticket,
                     .version = header.version(),
                     .result = absl::AsciiStrToLower(v1::ReplyHeader::Result_Name(header.result()))});
}

void SegmentExchange::NoteFigures(const SegmentState& segment, const v1::ReplyHeader& header) {
  const auto elements = static_cast<double>(segment.plan->elements);
  if (header.result() == v1::ReplyHeader::APPLIED) {
    figures_.applied = true;
    elements_ += elements;
    lag_elements_ += elements * static_cast<double>(header.lag());
    figures_.max_lag_updates = std::max<uint64_t>(figures_.max_lag_updates, header.lag());
  }
  figures_.duplicates += header.result() == v1::ReplyHeader::DUPLICATE;
  figures_.discarded += header.result() == v1::ReplyHeader::DISCARDED;
  if (header.sampled_elements() > 0) {
    gap_elements_ += elements;
    gap_squares_ += elements * header.gap_squares() / header.sampled_elements();
    surprise_squares_ += elements * header.surprise_squares() / header.sampled_elements();
  }
  if (segment.plan->id == 0) figures_.learning_rate = header.learning_rate();
}

void SegmentExchange::NoteMeasure(const v1::RoundMeasure& measure) {
  if (measure.round() != operation_.round) return;
  round_totals_.Add(measure.variance_sum(), measure.error_squares(), measure.momentum_squares());
}

// The round is measured where all of its segments were.
std::optional<RoundSums> SegmentExchange::TakeRoundSums() const {
  if (round_totals_.segments == 0 || round_totals_.segments != trainable_segments_) return std::nullopt;
  RoundSums sums = round_totals_.Sums(operation_.round);
  if (round_totals_.compressed()) {
    sums.error_ratio = encoder_->ErrorFeedbackRatio(options_.plan.segments(), nullptr);
  }
  return sums;
}

void SegmentExchange::MarkReady(uint32_t id) {
  bool last;
  {
    absl::MutexLock lock(&ready_mutex_);
    last = left_ == 1;
    if (!last) {
      --left_;
      ready_[id] = 1;
    }
  }
  if (!last) return;
  if (operation_.kind == v1::ExchangeHeader::PUSH || operation_.kind == v1::ExchangeHeader::SKIP) {
    figures_.push_seconds = absl::ToDoubleSeconds(SteadyTime::Now() - began_);
    figures_.lag_updates = elements_ > 0 ? lag_elements_ / elements_ : 0;
    figures_.measured = gap_elements_ > 0;
    figures_.gap = gap_elements_ > 0 ? std::sqrt(gap_squares_ / gap_elements_) : 0;
    figures_.surprise = gap_elements_ > 0 ? std::sqrt(surprise_squares_ / gap_elements_) : 0;
    figures_.round = TakeRoundSums();
    if (options_.acknowledged) options_.acknowledged(figures_);
  }
  absl::MutexLock lock(&ready_mutex_);
  left_ = 0;
  ready_[id] = 1;
  all_ready_ = true;
}

absl::StatusOr<std::optional<grpc::ByteBuffer>> SegmentExchange::Refused(uint32_t token,
                                                                         const absl::Status& refusal) {
  uint32_t shard;
  {
    absl::MutexLock lock(&mutex_);
    shard = segments_[token].plan->shard;
  }
  // A server that was started again may know nothing of this worker, and say so in words that
  // would mislead.
  const absl::StatusOr<ServerNow> now = who_answers_(shard);
  if (!now.ok()) return now.status();
  absl::MutexLock lock(&mutex_);
  if (now->lost) {
    for (SegmentState& one : segments_) {
      if (one.plan->shard != shard) continue;
      one.lost = true;
      one.as_sent = false;
      one.held_version = 0;
    }
  }
  SegmentState& segment = segments_[token];
  // Refused by the server that it was sent to: that is final.
  if (now->incarnation == segment.sent_to) return refusal;
  segment.sent_to = now->incarnation;
  server_incarnations_[shard] = now->incarnation;
  const bool anew = segment.lost && (Moves() || operation_.kind == v1::ExchangeHeader::READ);
  if (!anew) return std::nullopt;
  return MakeMessage(ReadAnew(segment), {});
}

void SegmentExchange::Failed(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  End(status);
}

void SegmentExchange::End(const absl::Status& status) {
  for (auto& queue : queued_) queue.clear();
  absl::MutexLock lock(&ready_mutex_);
  if (failure_.ok()) failure_ = status;
  all_ready_ = false;
}

absl::Status SegmentExchange::Await(const std::function<bool()>& ready) {
  if (all_ready_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&ready_mutex_);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(ready_mutex_) {
    return !failure_.ok() || ready();
  };
  if (!done()) {
    const SteadyTime start = SteadyTime::Now();
    ready_mutex_.Await(absl::Condition(&done));
    wait_seconds_ += absl::ToDoubleSeconds(SteadyTime::Now() - start);
  }
  return failure_;
}

absl::Status SegmentExchange::WaitFor(uint64_t begin, uint64_t elements) {
  const auto& plans = options_.plan.segments();
  const auto first = std::partition_point(plans.begin(), plans.end(), [&](const SegmentPlan& p) {
    return p.begin + p.elements <= begin;
  });
  const auto last = std::partition_point(
      first, plans.end(), [&](const SegmentPlan& p) { return p.begin < begin + elements; });
  const absl::Status there = Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return std::all_of(first, last, [&](const SegmentPlan& p) { return ready_[p.id] != 0; });
  });
  if (!there.ok() || options_.step_receiver == nullptr) return there;
  for (auto plan = first; plan != last; ++plan) {
    if (plan->kind != TensorKind::kTrainable) continue;
    if (const absl::Status status = options_.step_receiver->Await(plan->id); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SegmentExchange::WaitDone() {
  return Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return left_ == 0; });
}

double SegmentExchange::TakeWaitSeconds() {
  absl::MutexLock lock(&ready_mutex_);
  return std::exchange(wait_seconds_, 0);
}

double SegmentExchange::ErrorFeedbackRatio(const float* gradient) const {
  absl::MutexLock lock(&mutex_);
  return encoder_->ErrorFeedbackRatio(options_.plan.segments(), gradient);
}

uint64_t SegmentExchange::clock(uint32_t segment) const {
  absl::MutexLock lock(&mutex_);
  return segments_[segment].clock;
}

Traffic SegmentExchange::traffic() const {
  return {.push_bytes = push_bytes_,
          .push_uncompressed_bytes = push_plain_bytes_,
          .pull_bytes = pull_bytes_,
          .pull_uncompressed_bytes = pull_plain_bytes_,
          .statistics_push_bytes = statistics_bytes_};
}

}  // namespace foreshard
