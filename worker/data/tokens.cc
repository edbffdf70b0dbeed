// The data set of a folder of packed text: what is masked, and by what, is drawn anew in every
// epoch. Made by LoadTokens (dataset.h).
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/core/random.h"
#include "worker/data/dataset.h"
#include "worker/data/token_records.h"

namespace foreshard {
namespace {

// Random streams of a record's key.
enum Stream : uint64_t { kPlace = 1, kKind, kToken, kDrop };
// Of the records of a batch's key; key 0 is that of evaluation.
constexpr uint64_t kRecordStream = 0x746f6b656e73;

class TokenDataset : public Dataset {
 public:
  TokenDataset(std::unique_ptr<TokenRecords> records, const TokenOptions& options)
      : records_(std::move(records)), options_(options) {}

  uint64_t examples() const override { return records_->records(); }
  InputShape shape() const override { return {records_->index().sequence, 1, 1}; }
  uint32_t classes() const override { return records_->index().vocabulary; }
  bool has_pairs() const override { return records_->index().pairs; }
  uint64_t vocabulary_checksum() const override { return records_->index().vocabulary_checksum; }
  bool draws_by_epoch() const override { return true; }
  uint32_t targets() const override {
    return std::max(1u, static_cast<uint32_t>(std::lround(options_.mask_fraction * records_->index().sequence)));
  }
  uint64_t Targets(absl::Span<const uint32_t> indices) const override {
    uint64_t sum = 0;
    for (uint32_t index : indices) sum += TargetsOf(records_->Words(index));
    return sum;
  }

  absl::Status Gather(absl::Span<const uint32_t> indices, uint64_t augment_key, Batch* batch) const override {
    const uint64_t sequence = records_->index().sequence, most = targets();
    const SpecialTokens& special = records_->vocabulary().special();
    batch->examples = indices.size();
    batch->tokens.assign(indices.size() * sequence, static_cast<int32_t>(special.pad));
    batch->segments.assign(indices.size() * sequence, 0);
    batch->target_positions.assign(indices.size() * most, 0);
    batch->targets.assign(indices.size() * most, kernels::kNoTarget);
    batch->lengths.resize(indices.size());
    batch->labels.resize(indices.size());
    batch->keys.clear();
    TokenRecord record;
    for (size_t k = 0; k < indices.size(); ++k) {
      if (auto s = records_->Read(indices[k], &record); !s.ok()) return s;
      int32_t* tokens = batch->tokens.data() + k * sequence;
      std::copy(record.tokens.begin(), record.tokens.end(), tokens);
      std::fill(batch->segments.begin() + static_cast<int64_t>(k * sequence + record.second),
                batch->segments.begin() + static_cast<int64_t>(k * sequence + record.tokens.size()), 1);
      batch->lengths[k] = static_cast<int32_t>(record.tokens.size());
      batch->labels[k] = static_cast<int32_t>(record.label);
      const uint64_t key = RandomBits(augment_key, kRecordStream, indices[k]);
      if (augment_key != 0) batch->keys.push_back(RandomBits(key, kDrop, 0));
      Mask(key, record, tokens, batch->target_positions.data() + k * most, batch->targets.data() + k * most);
    }
    return absl::OkStatus();
  }

 private:
  // At least one of any, at most what there is.
  uint32_t TargetsOf(uint32_t words) const {
    const auto wanted = static_cast<uint32_t>(std::lround(options_.mask_fraction * words));
    return std::min({std::max(wanted, 1u), words, targets()});
  }

  // Chooses words, notes them as targets, and changes most of them.
  void Mask(uint64_t key, const TokenRecord& record, int32_t* tokens, int32_t* positions, int32_t* targets) const {
    const SpecialTokens& special = records_->vocabulary().special();
    std::vector<int32_t> words;
    for (size_t i = 0; i < record.tokens.size(); ++i) {
      const uint32_t token = record.tokens[i];
      if (token != special.first && token != special.separator) words.push_back(static_cast<int32_t>(i));
    }
    const uint32_t count = TargetsOf(static_cast<uint32_t>(words.size()));
    for (uint32_t t = 0; t < count; ++t) {
      std::swap(words[t], words[t + RandomBits(key, kPlace, t) % (words.size() - t)]);
    }
    std::sort(words.begin(), words.begin() + count);
    for (uint32_t t = 0; t < count; ++t) {
      positions[t] = words[t];
      targets[t] = tokens[words[t]];
      const double kind = RandomUniform(key, kKind, t);
      if (kind < 0.8) {
        tokens[words[t]] = static_cast<int32_t>(special.mask);
      } else if (kind < 0.9) {
        tokens[words[t]] = static_cast<int32_t>(RandomBits(key, kToken, t) % records_->index().vocabulary);
      }
    }
  }

  const std::unique_ptr<TokenRecords> records_;
  const TokenOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> LoadTokens(const std::string& folder, const TokenOptions& options) {
  if (!(options.mask_fraction > 0 && options.mask_fraction < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("data.mask_fraction: ", options.mask_fraction,
                                                   ": make it above 0 and below 1"));
  }
  auto records = TokenRecords::Open(folder);
  if (!records.ok()) return records.status();
  return std::make_unique<TokenDataset>(*std::move(records), options);
}

}  // namespace foreshard
