// The device interface: what models need from a CPU or a GPU. A model is a list
// of layers, made into a network once for a batch size; each step the device
// reads the parameters from one flat fp32 vector in canonical layout and writes
// the gradient to one flat vector in the same layout. In between, the device
// lays activations and filters out as it likes.
//
//   auto device = kernels::MakeDevice("auto").value();
//   kernels::NetworkSpec spec{.input = {28, 28, 1}, .layers = {
//       kernels::Dense{.units = 10, .weight = 0, .bias = 7840}},
//       .batch_size = 64, .trainable_elements = 7850, .elements = 7850};
//   auto network = device->MakeNetwork(spec).value();
//   auto loss = network->Train(batch, vector, gate, {.gradient = gradient});
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace foreshard::kernels {

// Of one example. Canonical order is height, width, channels; after Dense it is
// {1, 1, units}.
struct Shape {
  uint32_t height = 0, width = 0, channels = 0;
  uint64_t elements() const { return uint64_t{height} * width * channels; }
  bool operator==(const Shape&) const = default;
};

// Layers name their tensors by position of the first element in the flat vector.
inline constexpr uint64_t kNoTensor = ~uint64_t{0};

// Square filters, zero padding on every side.
struct Convolution {
  uint32_t filters = 0, kernel = 3, stride = 1, padding = 1;
  uint64_t weight = kNoTensor;  // [filters, kernel, kernel, input channels] (OHWI)
  uint64_t bias = kNoTensor;    // [filters], may be absent
};

// Over examples and positions, a channel at a time (Ioffe, Szegedy,
// arXiv 1502.03167): y = weight * (x - mean) / sqrt(variance + epsilon) + bias.
// Training uses the batch's mean and biased variance and gives out its mean and
// *unbiased* variance as statistics (the biased one, 0, where a channel has one
// value only); inference uses the vector's running statistics.
struct BatchNorm {
  float epsilon = 1e-5f;
  uint64_t weight = kNoTensor, bias = kNoTensor;    // [channels], trainable
  uint64_t mean = kNoTensor, variance = kNoTensor;  // [channels], statistics
};

struct Relu {};

// Square windows, with padding on every side that is never the largest; rows and
// columns that fill no window are dropped. At most half a window is padding.
struct MaxPool {
  uint32_t size = 2, stride = 2, padding = 0;
};

// The mean over all positions: {1, 1, channels}.
struct GlobalAveragePool {};

// Every stride-th row and column from the first on, and zeros for the channels that
// the input lacks: (channels - the input's) / 2 of them before the input's, the others
// behind. The shortcut without tensors of He et al. (arXiv 1512.03385, 4.2, A).
struct Subsample {
  uint32_t stride = 1, channels = 0;
};

// Of the whole input: {1, 1, units}. Or of each position alone: {height, width, units}.
struct Dense {
  uint32_t units = 0;
  uint64_t weight = kNoTensor;  // [units, inputs], inputs in canonical order
  uint64_t bias = kNoTensor;    // [units], may be absent
  bool each_position = false;   // inputs are the channels of one position
};

// The layers of text read sequences, {positions, 1, channels}.

// The first layer of a network that reads text: the sum of a row of each table, by token, by
// position and by segment. The network's input is {positions, 1, 1}; it has no floats.
// `token` may be the weight of a Dense too (a tied output projection).
struct Embedding {
  uint32_t channels = 0;
  uint32_t tokens = 0, positions = 0, segments = 0;  // rows; positions: at least the input's
  uint64_t token = kNoTensor, position = kNoTensor, segment = kNoTensor;  // [rows, channels]
};

// Over the channels of each position (Ba, Kiros, Hinton, arXiv 1607.06450), with the biased
// variance: y = weight * (x - mean) / sqrt(variance + epsilon) + bias.
struct LayerNorm {
  float epsilon = 1e-12f;
  uint64_t weight = kNoTensor, bias = kNoTensor;  // [channels]
};

// Scaled dot products (Vaswani et al., arXiv 1706.03762, 3.2), each head on its own slice of d
// channels: softmax(Q K' / sqrt(d)) V. The input's channels are those of Q, K and V, one behind the
// other; the output has a third. Positions from an example's length on are not attended to, and
// their own output is 0. `dropout`: as Dropout, of the softmax; its value at (head, row, column)
// is number (head * positions + row) * positions + column.
struct Attention {
  uint32_t heads = 1;
  float dropout = 0;
};

// x * Phi(x), Phi the normal distribution function itself (Hendrycks, Gimpel, arXiv 1606.08415).
struct Gelu {};

struct Tanh {};

// Training: a value is 0 with this probability, else divided by the rest of it. Which, follows
// from the example's key, the layer's number and the value's (philox.h). Inference: nothing.
struct Dropout {
  float rate = 0;
};

// The positions that each example's targets are at: {count, 1, channels}.
struct TargetPositions {
  uint32_t count = 0;
};

// The first position: {1, 1, channels}.
struct FirstPosition {};

// Says that what is before it are the logits of a second loss, {1, 1, classes}: the cross-entropy
// with BatchView::labels, its mean over the examples added to the loss. Computes nothing, and only
// From can follow. In networks that read text, once at most.
struct SideLoss {};

// A layer reads the output of the one before it. These two make branches: the number
// of an earlier layer stands for its output. A residual block whose shortcut has a
// convolution, after layer 0:
//
//   1 Convolution  2 BatchNorm  3 Relu  4 Convolution  5 BatchNorm
//   6 From{0}  7 Convolution  8 BatchNorm  9 AddFrom{5}  10 Relu
//
// From goes on with the output of an earlier layer and computes nothing.
struct From {
  uint32_t layer = 0;
};

// Adds the output of an earlier layer, which has the same shape.
struct AddFrom {
  uint32_t layer = 0;
};

using Layer = std::variant<Convolution, BatchNorm, Relu, MaxPool, Dense, GlobalAveragePool,
                           Subsample, From, AddFrom, Embedding, LayerNorm, Attention, Gelu, Tanh,
                           Dropout, TargetPositions, FirstPosition, SideLoss>;

// The last layer is Dense; its outputs are the logits of a softmax whose
// cross-entropy with the labels is the loss; with text, of each of its positions one with the
// targets. Every other output is read by some layer.
struct NetworkSpec {
  Shape input;
  std::vector<Layer> layers;
  uint32_t batch_size = 0;          // most examples of a batch
  uint64_t trainable_elements = 0;  // where the statistics begin in the vector
  uint64_t elements = 0;            // of the whole vector
};

// Shape that a layer makes of its input; `before` are the shapes after each layer
// before it, for those that name one. INVALID_ARGUMENT when it does not fit.
absl::StatusOr<Shape> OutputShape(const Layer& layer, const Shape& input,
                                  absl::Span<const Shape> before = {});

// Shapes after each layer, all of the spec checked: sizes, tensors inside the
// vector, branches, the last layer. INVALID_ARGUMENT names the layer by its number.
absl::StatusOr<std::vector<Shape>> CheckNetwork(const NetworkSpec& spec);

// Floating-point operations of forward and backward for one example, a
// multiply-add counted as two: those of convolutions, dense layers and attention only, no
// gradient with respect to the network's input.
uint64_t TrainingFlops(const NetworkSpec& spec);

// A target that is none: its place in the last layer's output has no loss.
inline constexpr int32_t kNoTarget = -1;

// Sequences in host memory, of `positions` tokens each.
struct TextView {
  const int32_t* tokens = nullptr;            // [examples, positions]
  const int32_t* segments = nullptr;          // [examples, positions]
  const int32_t* lengths = nullptr;           // [examples], 1..positions: the rest is padding
  const int32_t* target_positions = nullptr;  // [examples, targets], below the length
  const int32_t* targets = nullptr;           // [examples, targets], a token or kNoTarget
  const uint64_t* keys = nullptr;  // [examples], of dropout; null: nothing is dropped
  // What the sum of the targets' losses is divided by. 0: by how many there are; of a
  // part of a batch its share of the whole one's, so that the parts' gradients add up.
  double divisor = 0;
};

// A batch in host memory; whoever calls keeps it alive during the call.
struct BatchView {
  uint64_t examples = 0;
  const float* inputs = nullptr;    // [examples, height, width, channels]; none with text
  const int32_t* labels = nullptr;  // [examples], 0..units of the last layer - 1; with text of SideLoss
  TextView text = {};
};

// Sums over what the last layer has a loss for: the examples, or the targets.
struct LossSum {
  double loss = 0;
  uint64_t correct = 0;
  uint64_t count = 0;
  double side_loss = 0;  // of SideLoss, over the examples
  uint64_t side_correct = 0;
};

// Where a step's results go: gradient [trainable_elements] and statistics
// [elements - trainable_elements], indexed as the vector is. Written are the
// gradient of the batch's mean loss, and the statistics, both times `weight`;
// `accumulate` adds to what is there. What belongs to no layer is left alone.
struct StepOutput {
  float weight = 1;
  bool accumulate = false;
  float* gradient = nullptr;
  float* statistics = nullptr;
  // Where networks do not work in host memory: called once the whole step has been given to the
  // device and before it is waited for, to give it what follows. An error ends the step. May be
  // empty; the CPU does not call it.
  std::function<absl::Status()> given;
};

// Asked with the extent of each tensor before a step first reads it.
using Gate = absl::FunctionRef<absl::Status(uint64_t begin, uint64_t elements)>;

// Thread-compatible: one call at a time, from any thread. Pointers to vectors
// are to the device's memory; on the CPU that is any host memory, aligned for
// float. The same inputs give the same bits on the same machine with the same
// number of threads. INVALID_ARGUMENT: an empty batch, one larger than
// batch_size, a label out of range.
class Network {
 public:
  virtual ~Network() = default;

  // Forward in training mode and backward. Errors of the gate end the step and
  // leave the output undefined.
  virtual absl::StatusOr<LossSum> Train(const BatchView& batch, const float* vector, Gate gate,
                                        const StepOutput& output) = 0;
  // The batch's statistics alone, forward in training mode; labels are not read.
  virtual absl::Status Statistics(const BatchView& batch, const float* vector,
                                  float* statistics) = 0;
  // Forward in inference mode.
  virtual absl::StatusOr<LossSum> Evaluate(const BatchView& batch, const float* vector) = 0;

  // Device memory of a training step of a full batch, beside the vectors that the caller brings:
  // activations, their gradients and scratch, laid out before the first step.
  virtual uint64_t step_bytes() const = 0;
};

// Device memory, aligned to 64 bytes, zeroed when made.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;  // a device address
  virtual uint64_t bytes() const = 0;
  // Copies between host and [offset, offset + bytes); OUT_OF_RANGE beyond the end.
  virtual absl::Status Write(uint64_t offset, const void* host, uint64_t bytes) = 0;
  virtual absl::Status Read(uint64_t offset, void* host, uint64_t bytes) const = 0;
};

class StepEncoder;  // step_encoder.h
struct StepEncoderOptions;
class StepReceiver;  // step_receiver.h
struct StepReceiverOptions;

// The vectors of steps on a device that does not work in host memory: the whole flat vector, the
// gradient [trainable_elements] and the statistics [the rest]. Thread-compatible; lives on while
// a network works on it. Errors are the device's (device_failure.h).
class StepMemory {
 public:
  virtual ~StepMemory() = default;
  virtual float* vector() = 0;
  virtual float* gradient() = 0;
  virtual float* statistics() = 0;

  // Begins to copy elements of the host's vector, which stays as it is until the next step is
  // done; networks of the device that are asked to run from now on find them there. Copies run
  // beside computing. `vector` is the host's whole vector, the same one each time.
  virtual absl::Status Upload(const float* vector, uint64_t begin, uint64_t elements) = 0;
  // After a step: brings the two to host memory; null is left out.
  virtual absl::Status Download(float* gradient, float* statistics) = 0;

  // Encodes the gradient where it is (step_encoder.h). The memory outlives it. INVALID_ARGUMENT: a
  // segment beyond the gradient; UNIMPLEMENTED: blocks of dead tensors; RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::unique_ptr<StepEncoder>> MakeEncoder(
      const StepEncoderOptions& options) = 0;
  // Decodes parameters into the vector (step_receiver.h), in place of Upload. As MakeEncoder.
  virtual absl::StatusOr<std::unique_ptr<StepReceiver>> MakeReceiver(
      const StepReceiverOptions& options) = 0;
};

// Outlives what it makes. Safe to share between threads.
class Device {
 public:
  virtual ~Device() = default;

  // One line for people: what it is, and where "auto" chose it, why.
  virtual const std::string& description() const = 0;
  // "cpu", or "cuda:0".
  virtual std::string_view name() const = 0;
  // Whether networks read and write host memory; else their vectors are StepMemory's.
  virtual bool uses_host_memory() const { return true; }
  // Null where networks work in host memory. RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::unique_ptr<StepMemory>> MakeStepMemory(uint64_t trainable_elements,
                                                                     uint64_t elements) {
    return nullptr;
  }

  // RESOURCE_EXHAUSTED when there is not that much memory.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(uint64_t bytes) = 0;
  // INVALID_ARGUMENT as CheckNetwork; RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::unique_ptr<Network>> MakeNetwork(const NetworkSpec& spec) = 0;
  // c = a b, row-major a [m, k], b [k, n], c [m, n], in device memory: the
  // library's own multiplication, the yardstick of `foreshard bench train`.
  virtual absl::Status MatrixMultiply(uint64_t m, uint64_t n, uint64_t k, const float* a,
                                      const float* b, float* c) = 0;
};

// Of a GPU's layers. Parameters, gradients, statistics and the loss are fp32 with each.
enum class Precision : uint8_t {
  kFp32,  // throughout
  kTf32,  // products of fp32 numbers rounded to 10 bits of mantissa, on cards that have it
  kBf16,  // activations, and weights as layers read them, are bf16; sums fp32
};

// "fp32", "tf32", "bf16".
absl::StatusOr<Precision> ParsePrecision(std::string_view text);
std::string_view NameOf(Precision precision);

struct DeviceOptions {
  // CPU threads of one network. More than one only pays on a machine that the
  // worker has to itself; then start the program with OMP_WAIT_POLICY=passive in
  // its environment (OpenMP reads it before main), or its threads spin between
  // layers. One thread never waits for others, so it needs nothing.
  uint32_t threads = 1;
  // Of layers on a GPU; the CPU computes in fp32.
  Precision precision = Precision::kTf32;
};

// spec: "auto", "cpu", "cuda" or "cuda:n". auto takes a GPU where one can be
// used, else the CPU. INVALID_ARGUMENT: any other spec, a number beyond the GPUs
// that are there, or no threads.
// UNAVAILABLE: the device asked for is not there or cannot be used; the text
// says what was found (a worker then exits with kExitDeviceLost).
absl::StatusOr<std::unique_ptr<Device>> MakeDevice(std::string_view spec,
                                                   const DeviceOptions& options = {});

}  // namespace foreshard::kernels
