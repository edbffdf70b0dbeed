// Segment::Save and Load, and the memory a segment takes.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/core/bytes.h"
#include "common/core/catalogue.h"
#include "server/segment.h"

namespace foreshard {
namespace {

constexpr uint32_t kMagic = 0x47535346;  // "FSSG"
// 3: views and phases; 4: phases that were announced, measures, results without bytes
constexpr uint16_t kFormat = 4;
// Those before 4 were never released.
constexpr FormatRange kFormats = {.oldest = 4, .newest = kFormat};

class Saver final : public StateVisitor {
 public:
  explicit Saver(ByteWriter& writer) : writer_(writer) {}
  void Visit(std::string_view name, std::vector<float>& values) override {
    writer_.PutString(name);
    writer_.PutFloats(values);
  }
  void VisitNumbers(std::string_view name, std::vector<double>& values) override {
    writer_.PutString(name);
    writer_.PutBytes(ByteSpan(reinterpret_cast<const uint8_t*>(values.data()),
                              values.size() * sizeof(double)));
  }

 private:
  ByteWriter& writer_;
};

class Loader final : public StateVisitor {
 public:
  Loader(ByteReader& reader, uint64_t elements) : reader_(reader), elements_(elements) {}
  void Visit(std::string_view name, std::vector<float>& values) override {
    if (reader_.GetString() != name) ok_ = false;
    const ByteSpan bytes = reader_.GetBytes();
    // An array is as long as the segment, or empty where a slot is free.
    if (!reader_.ok() || (!bytes.empty() && bytes.size() != elements_ * sizeof(float))) ok_ = false;
    if (!ok_) return;
    values.resize(bytes.size() / sizeof(float));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  void VisitNumbers(std::string_view name, std::vector<double>& values) override {
    if (reader_.GetString() != name) ok_ = false;
    const ByteSpan bytes = reader_.GetBytes();
    if (!reader_.ok() || bytes.size() != values.size() * sizeof(double)) ok_ = false;
    if (ok_) std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  bool ok() const { return ok_; }

 private:
  ByteReader& reader_;
  uint64_t elements_;
  bool ok_ = true;
};

}  // namespace

std::string Segment::Save() const {
  ByteWriter writer;
  Save(&writer);
  return writer.TakeSealed();
}

void Segment::Save(ByteWriter* to) const {
  ByteWriter& writer = *to;
  writer.Put(kMagic);
  writer.Put(kFormat);
  writer.Put(options_.plan.id);
  writer.Put(options_.plan.begin);
  writer.Put(options_.plan.elements);
  writer.PutString(options_.rule.rule);
  writer.Put<uint64_t>(slots_.size());
  writer.Put(options_.synchronous);
  writer.Put(options_.members);
  writer.Put(held_elements_);

  writer.Put(initialised_);
  writer.Put(version_);
  writer.Put(clock_);
  writer.Put(open_round_);
  writer.Put(view_);
  writer.Put(phase_);
  writer.Put(next_phase_.has_value());
  writer.Put(next_phase_.value_or(Phase::kFull));
  writer.Put(next_phase_round_);
  writer.Put(announced_round_);
  writer.Put(phase_round_);
  writer.Put(measure_.round);
  writer.Put(measure_.variance_sum);
  writer.Put(measure_.error_squares);
  writer.Put(measure_.momentum_squares);
  writer.Put(has_result_);
  writer.PutBytes(result_);
  writer.Put(result_eta_);
  writer.Put(result_folded_);
  writer.PutFloats(theta_);
  for (const Slot& slot : slots_) {
    writer.Put(slot.joined);
    writer.Put(slot.incarnation);
    writer.Put(slot.sequence);
    writer.Put(slot.version_sent);
    writer.Put(slot.has_held);
    writer.Put(slot.unsure);
    writer.PutFloats(slot.has_held ? absl::MakeConstSpan(slot.held) : absl::Span<const float>());
    writer.Put(slot.has_pending);
    writer.Put(slot.in_round);
    writer.Put(slot.first_round);
    writer.Put(slot.contributed_before);
    writer.Put(slot.absent_before);
    writer.Put(slot.late_sequence);
    writer.Put(slot.has_share);
    writer.Put(slot.share_ticket);
    writer.Put(slot.pending_codec);
    writer.PutBytes(slot.has_pending ? absl::MakeConstSpan(slot.pending) : ByteSpan());
  }
  Saver saver(writer);
  rule_->VisitState(saver);
}

absl::Status Segment::Load(std::string_view bytes) {
  const auto damaged = [&](const std::string& what) {
    return absl::DataLossError(absl::StrCat("segment ", options_.plan.id, ": saved state ", what));
  };
  const absl::StatusOr<std::string_view> body = Unsealed(bytes);
  if (!body.ok()) return damaged(std::string(body.status().message()));
  ByteReader reader(*body);
  if (reader.Get<uint32_t>() != kMagic) return damaged("is no segment's state");
  if (absl::Status known = CheckFormat(absl::StrCat("segment ", options_.plan.id, "'s saved state"),
                                       reader.Get<uint16_t>(), kFormats);
      !known.ok()) {
    return known;
  }
  const bool same = reader.Get<uint32_t>() == options_.plan.id && reader.Get<uint64_t>() == options_.plan.begin &&
                    reader.Get<uint64_t>() == options_.plan.elements &&
                    reader.GetString() == options_.rule.rule && reader.Get<uint64_t>() == slots_.size() &&
                    reader.Get<bool>() == options_.synchronous && reader.Get<uint32_t>() == options_.members &&
                    reader.Get<uint64_t>() == held_elements_;
  if (!same) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", options_.plan.id,
                     ": saved state is of another segment, rule or number of workers"));
  }
  // Into fresh parts first: a state that turns out damaged changes nothing.
  absl::StatusOr<std::unique_ptr<Segment>> created = Create(options_);
  if (!created.ok()) return created.status();
  Segment& loaded = **created;
  loaded.initialised_ = reader.Get<bool>();
  loaded.version_ = reader.Get<uint64_t>();
  loaded.clock_ = reader.Get<uint64_t>();
  loaded.open_round_ = reader.Get<uint64_t>();
  loaded.view_ = reader.Get<uint64_t>();
  loaded.phase_ = reader.Get<Phase>();
  const bool has_next_phase = reader.Get<bool>();
  const Phase next_phase = reader.Get<Phase>();
  loaded.next_phase_.reset();
  if (has_next_phase) loaded.next_phase_ = next_phase;
  loaded.next_phase_round_ = reader.Get<uint64_t>();
  loaded.announced_round_ = reader.Get<uint64_t>();
  loaded.phase_round_ = reader.Get<uint64_t>();
  loaded.measure_.round = reader.Get<uint64_t>();
  loaded.measure_.variance_sum = reader.Get<double>();
  loaded.measure_.error_squares = reader.Get<double>();
  loaded.measure_.momentum_squares = reader.Get<double>();
  if (loaded.phase_ > Phase::kFrozen || next_phase > Phase::kFrozen ||
      (squeeze_ == nullptr && loaded.phase_ != Phase::kFull)) {
    return damaged("has a phase that there is not");
  }
  loaded.has_result_ = reader.Get<bool>();
  const ByteSpan result = reader.GetBytes();
  if (result.size() != (loaded.has_result_
                            ? EncodedBytes(*codecs_.Find(options_.squeeze.codec), options_.plan.blocks)
                            : 0)) {
    return damaged("has a round's result of the wrong size");
  }
  loaded.result_.assign(result.begin(), result.end());
  loaded.result_eta_ = reader.Get<float>();
  loaded.result_folded_ = reader.Get<bool>();
  reader.GetFloats(absl::MakeSpan(loaded.theta_));
  loaded.round_members_ = 0;
  for (Slot& slot : loaded.slots_) {
    slot.joined = reader.Get<bool>();
    slot.incarnation = reader.Get<uint64_t>();
    slot.sequence = reader.Get<uint64_t>();
    slot.version_sent = reader.Get<uint64_t>();
    slot.has_held = reader.Get<bool>();
    slot.unsure = reader.Get<bool>();
    if (slot.has_held) slot.held.resize(held_elements_);
    reader.GetFloats(absl::MakeSpan(slot.held));
    slot.has_pending = reader.Get<bool>();
    slot.in_round = reader.Get<bool>();
    loaded.round_members_ += slot.in_round;
    slot.first_round = reader.Get<uint64_t>();
    slot.contributed_before = reader.Get<uint64_t>();
    slot.absent_before = reader.Get<uint64_t>();
    slot.late_sequence = reader.Get<uint64_t>();
    slot.has_share = reader.Get<bool>();
    slot.share_ticket = reader.Get<uint64_t>();
    slot.pending_codec = reader.Get<uint8_t>();
    const ByteSpan pending = reader.GetBytes();
    slot.pending.assign(pending.begin(), pending.end());
    if (slot.has_pending) {
      const ByteSpan piece(slot.pending);
      const Event push = {.kind = EventKind::kPush,
                          .codec = slot.pending_codec,
                          .payload = {absl::MakeConstSpan(&piece, 1), piece.size()}};
      if (!CheckPayload(push).ok()) return damaged("has a pending push of the wrong size");
    }
  }
  Loader loader(reader, options_.plan.elements);
  loaded.rule_->VisitState(loader);
  if (!reader.ok() || !loader.ok() || reader.left() != 0) return damaged("has lengths that contradict");
  *this = std::move(loaded);
  return absl::OkStatus();
}

uint64_t Segment::MemoryBytes(const SegmentOptions& options) {
  const uint64_t elements = options.plan.elements;
  const uint64_t workers = options.rule.max_workers;
  uint64_t floats = elements;
  uint64_t bytes = options.plan.blocks.size() * (sizeof(Block) + sizeof(uint64_t));
  if (options.plan.kind == TensorKind::kTrainable) {
    if (const RuleTraits* traits = FindRule(options.rule.rule); traits != nullptr) {
      floats += elements * (traits->state_fixed + traits->state_per_worker * workers);
      bytes += traits->state_bytes;
    }
  }
  const uint64_t held_blocks =
      (options.plan.blocks.size() + options.sample_stride - 1) / options.sample_stride;
  floats += workers * (options.keep_all_held
                           ? elements
                           : std::min<uint64_t>(elements, held_blocks * kMaxBlockElements));
  if (options.synchronous) floats += workers * elements;  // pending pushes, at most fp32
  if (options.rule.rule == "apmsqueeze") {
    // A round's result.
    bytes += EncodedBytes(*CodecSet(options.codec).Find(options.squeeze.codec), options.plan.blocks);
  }
  return floats * sizeof(float) + bytes;
}

}  // namespace foreshard
