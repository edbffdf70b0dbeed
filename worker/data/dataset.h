// Labelled examples, in memory or on disk, and the mapping from tickets to batches.
//
//   auto train = LoadIdx("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", options);
//   Batch batch;
//   RETURN_IF_ERROR(train.value()->Gather(indices, key, &batch));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/models/model.h"

namespace foreshard {

// Immutable after loading; Gather is safe from several threads.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual uint64_t examples() const = 0;
  virtual InputShape shape() const = 0;
  virtual uint32_t classes() const = 0;
  // How many losses these examples have: one each, or of text the masked tokens, most of an
  // example's being targets() (0: no text). The same in every epoch.
  virtual uint64_t Targets(absl::Span<const uint32_t> indices) const { return indices.size(); }
  virtual uint32_t targets() const { return 0; }
  // Whether pairs of segments have labels, for model.next_sentence.
  virtual bool has_pairs() const { return false; }
  // Of the vocabulary that tokens are numbers of; 0: no text.
  virtual uint64_t vocabulary_checksum() const { return 0; }
  // Whether draws belong to the record and the epoch, whatever batch it is in. Then the key of a
  // batch is its epoch's.
  virtual bool draws_by_epoch() const { return false; }
  // Fills the batch with these examples (each < examples()), normalised. Where
  // flips are on, example k is mirrored when bit k of the draw keyed by
  // `augment_key` says so, and where crops are on, moved as draw k says; 0 turns
  // augmentation off. DATA_LOSS names a record that cannot be read; only data that stays on
  // disk has such.
  virtual absl::Status Gather(absl::Span<const uint32_t> indices, uint64_t augment_key,
                              Batch* batch) const = 0;
  // Says that these will be gathered soon, so that their reading begins meanwhile. What is not
  // gathered after all is dropped when others are expected.
  virtual void Expect(absl::Span<const uint32_t> indices, uint64_t augment_key) const {}
};

// How bytes become inputs. One number for every channel, or one for each.
struct ImageOptions {
  std::vector<float> means;       // subtracted from pixels scaled to [0, 1]; none: 0
  std::vector<float> deviations;  // then divided by; none: 1
  bool flip = false;              // mirror half of the images
  // Black pixels put around an image, out of which one of its size is then cut at a
  // random place; 0: none. Before it is mirrored.
  uint32_t crop_padding = 0;
};

struct IdxOptions {
  uint32_t classes = 10;
  float mean = 0;       // subtracted from pixels scaled to [0, 1]
  float deviation = 1;  // then divided by
  bool flip = false;
  uint32_t crop_padding = 0;  // as in ImageOptions
};

// IDX files (LeCun et al., MNIST page), plain or gzipped. Errors name the file,
// what was expected and found: NOT_FOUND, INVALID_ARGUMENT (wrong magic, sizes
// that disagree, a label out of range), DATA_LOSS (truncated, trailing bytes,
// bad gzip).
absl::StatusOr<std::unique_ptr<Dataset>> LoadIdx(const std::string& images_path,
                                                 const std::string& labels_path,
                                                 const IdxOptions& options);

// The binary version of CIFAR-10 (`classes` 10) or CIFAR-100 (100, its fine labels), plain or
// gzipped; the files' images in the order of the names. Errors name the file: NOT_FOUND,
// INVALID_ARGUMENT (a label out of range), DATA_LOSS (a length that is no whole number of
// images, bad gzip).
absl::StatusOr<std::unique_ptr<Dataset>> LoadCifar(const std::vector<std::string>& paths,
                                                   uint32_t classes, const ImageOptions& options);

struct PackedOptions {
  ImageOptions images;  // crop_padding: 0
  uint32_t classes = 0;  // must be as packed
  uint32_t side = 224;   // height and width of what the model gets
  // A training image is a random part of the picture, at least so much of its area.
  float least_area = 0.08f;
  uint32_t decode_threads = 0;  // 0: one less than the machine's cores, at least 1
};

// A folder of packed images (packed_records.h), which stay on disk and are decoded by threads
// of their own. Errors name the file: NOT_FOUND, INVALID_ARGUMENT (no packed images, another
// version, other classes), DATA_LOSS (cut off, a wrong checksum of the index).
absl::StatusOr<std::unique_ptr<Dataset>> LoadPacked(const std::string& folder,
                                                    const PackedOptions& options);

struct TokenOptions {
  float mask_fraction = 0.15f;  // of a sequence's words, at least one
};

// A folder of packed text (token_records.h), mapped. A batch's targets are drawn by its key and
// the record: of them 80 % become [MASK], 10 % any token of the vocabulary, 10 % stay (Devlin et al.).
// With key 0 too, always the same, and without keys of dropout. Errors name the file: NOT_FOUND,
// INVALID_ARGUMENT (no packed text, another version, an empty shard, another vocabulary), DATA_LOSS
// (cut off, a wrong checksum).
absl::StatusOr<std::unique_ptr<Dataset>> LoadTokens(const std::string& folder, const TokenOptions& options);

// Examples without content, for synthetic models.
std::unique_ptr<Dataset> MakeSyntheticDataset(uint64_t examples, InputShape shape,
                                              uint32_t classes);

// Which examples a ticket stands for: one seeded permutation an epoch, cut into
// batches; the last batch of an epoch may be shorter (never empty).
class BatchOrder {
 public:
  BatchOrder(uint64_t seed, uint64_t examples, uint32_t batch_size);
  uint64_t batches_per_epoch() const { return batches_per_epoch_; }
  // Thread-compatible: keeps the last epoch's permutation.
  absl::Span<const uint32_t> Indices(uint64_t ticket);

 private:
  uint64_t seed_, examples_, batches_per_epoch_;
  uint32_t batch_size_;
  uint64_t epoch_ = ~0ull;
  std::vector<uint32_t> permutation_;
};

}  // namespace foreshard
