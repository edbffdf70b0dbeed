#include "kernels/cuda/step_plan.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/step_builder.h"
#include "kernels/cuda/step_shapes.h"
#include "kernels/cuda/text_steps.h"
#include "kernels/device_failure.h"
#include "kernels/text_layers.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

// cuDNN and cuBLASLt read weights of other positions slowly or not at all.
constexpr uint64_t kAlignedElements = 4;
// Of a bias gradient: from here on its sum is made in two steps.
constexpr uint32_t kManyRows = 256;

// A weight as layers read it: where it lies in the vector, or in the arena where its type or
// position is another.
struct Weight {
  uint64_t offset = 0, elements = 0;
  bool copied = false;
  Region copy;

  const void* Read(const Bindings& bindings) const {
    return copied ? At(bindings, copy) : bindings.vector + offset;
  }
};

class Builder : public StepBuilder {
 public:
  Builder(LayerLibrary& library, const NetworkSpec& spec, const std::vector<Shape>& shapes,
          uint32_t examples, bool training)
      : StepBuilder(library, spec, shapes, examples, training),
        text_(*this),
        layers_(spec.layers.size()),
        values_(wiring_.values()),
        reads_left_(wiring_.values()),
        stays_(wiring_.values()),
        gradients_(wiring_.values()) {
    for (uint32_t value = 0; value < wiring_.values(); ++value) {
      reads_left_[value] = wiring_.uses(value);
    }
    for (size_t i = 0; training && i < layers_.size(); ++i) {
      if (ReadsInput(spec.layers[i])) stays_[wiring_.input(i)] = true;
      if (ReadsOutput(spec.layers[i])) stays_[wiring_.output(i)] = true;
    }
  }

  absl::StatusOr<StepPlan> Build() {
    plan_.forward.emplace_back();
    operations_ = &plan_.forward.back().operations;
    if (const absl::Status fits = text_.Check(); !fits.ok()) return fits;
    if (const size_t side = SideLossAt(spec_); side < layers_.size() &&
                                               storage_ != Storage::kFp32 &&
                                               wiring_.uses(wiring_.output(side)) > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", side, ": another layer reads the logits of the side loss, which are fp32 with bf16 too"));
    }
    // Never given back: the host writes them before a step.
    const uint64_t input_elements = examples_ * spec_.input.elements();
    if (ReadsText(spec_)) plan_.text = {examples_, spec_.input.height, shapes_.back().height};
    plan_.inputs =
        arena_.Take(ReadsText(spec_) ? plan_.text.bytes : input_elements * sizeof(float));
    plan_.labels = arena_.Take(examples_ * sizeof(int32_t));
    plan_.scalars = arena_.Take(sizeof(StepScalars));
    if (storage_ == Storage::kFp32 || ReadsText(spec_)) {
      values_[0] = std::make_shared<const Region>(plan_.inputs);
    } else {
      values_[0] = Take(input_elements);
      Add([n = input_elements, from = plan_.inputs, to = *values_[0],
           storage = storage_](const Bindings& b, NativeStream stream) {
        return StoreAs(storage, n, At<float>(b, from), At(b, to), stream);
      });
    }
    // cuBLASLt's and cuDNN's workspace: one for all calls, since they run one after another.
    workspace_bytes_ = library_.DenseWorkspace();
    if (const absl::Status sized = SizeWorkspace(); !sized.ok()) return sized;
    workspace_ = arena_.Take(workspace_bytes_);
    if (training_) TakeNormResults();
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (wiring_.output(i) == i + 1) i = Forward(i);
    }
    Loss();
    if (training_) {
      operations_ = &plan_.backward;
      for (size_t i = layers_.size(); i-- > 0;) Backward(i);
    }
    for (StepPlan::Piece& piece : plan_.forward) JoinWaits(&piece.waits);
    plan_.arena_bytes = arena_.bytes();
    return std::move(plan_);
  }

 private:
  struct LayerState {
    Weight weight, bias;
    std::vector<Held> copies;  // of weight and bias, until backward is done
    Region norm_results;       // mean, variance: a run of channels each
    Held norm_inverse;         // one more, until backward is done
  };

  // Whether backward of a layer reads its input, or its output.
  static bool ReadsInput(const Layer& layer) {
    return std::holds_alternative<Convolution>(layer) ||
           std::holds_alternative<BatchNorm>(layer) || std::holds_alternative<Dense>(layer) ||
           IsPool(layer) || TextSteps::ReadsInput(layer);
  }
  static bool ReadsOutput(const Layer& layer) {
    return std::holds_alternative<Relu>(layer) || IsPool(layer) || TextSteps::ReadsOutput(layer);
  }
  static bool IsPool(const Layer& layer) {
    return std::holds_alternative<MaxPool>(layer) ||
           std::holds_alternative<GlobalAveragePool>(layer);
  }

  uint64_t Elements(const Shape& shape) const { return examples_ * shape.elements(); }
  LayerShapes Shapes(size_t i) const { return {examples_, InputShape(i), shapes_[i]}; }

  absl::Status SizeWorkspace() {
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const auto* conv = std::get_if<Convolution>(&spec_.layers[i]);
      if (conv == nullptr) continue;
      std::vector<ConvolutionPass> passes = {ConvolutionPass::kForward};
      if (training_) {
        passes.push_back(ConvolutionPass::kBackwardFilter);
        if (wiring_.needs_gradient(wiring_.input(i))) passes.push_back(ConvolutionPass::kBackwardData);
      }
      for (const ConvolutionPass pass : passes) {
        const auto bytes = library_.ConvolutionWorkspace(pass, ShapeOf(*conv, Shapes(i)));
        if (!bytes.ok()) {
          absl::Status status(bytes.status().code(),
                              absl::StrCat("layer ", i, ": ", bytes.status().message()));
          return IsDeviceFailure(bytes.status()) ? DeviceFailure(status) : status;
        }
        workspace_bytes_ = std::max(workspace_bytes_, *bytes);
      }
    }
    return absl::OkStatus();
  }

  // Tensors that follow each other in the vector are asked for, and copied, at once.
  static void JoinWaits(std::vector<StepPlan::Wait>* waits) {
    std::vector<StepPlan::Wait> joined;
    for (const StepPlan::Wait& wait : *waits) {
      if (!joined.empty() && joined.back().begin + joined.back().elements == wait.begin) {
        joined.back().elements += wait.elements;
      } else {
        joined.push_back(wait);
      }
    }
    *waits = std::move(joined);
  }

  // A new piece begins where enough tensors came together.
  void CutPiece() {
    const uint64_t enough = std::max(StepPlan::kPieceElements,
                                     spec_.trainable_elements / StepPlan::kMostPieces);
    if (piece_elements_ < enough || plan_.forward.back().operations.empty()) return;
    plan_.forward.emplace_back();
    operations_ = &plan_.forward.back().operations;
    piece_elements_ = 0;
  }

  // Of layer i, as `storage`, aligned.
  Weight Prepare(size_t i, uint64_t offset, uint64_t elements, Storage storage) {
    AwaitTensor(offset, elements);
    Weight weight = {.offset = offset, .elements = elements};
    if (storage == Storage::kFp32 && offset % kAlignedElements == 0) return weight;
    layers_[i].copies.push_back(TakeBytes(elements * BytesOf(storage)));
    weight.copied = true;
    weight.copy = *layers_[i].copies.back();
    Add([=, to = weight.copy](const Bindings& b, NativeStream stream) {
      return StoreAs(storage, elements, b.vector + offset, At(b, to), stream);
    });
    return weight;
  }

  // A value that has been read as often as it is, is needed by backward only, if at all.
  void Read(uint32_t value) {
    if (--reads_left_[value] == 0 && !stays_[value]) values_[value].reset();
  }

  // Where layer i writes.
  Held Output(size_t i, const Held& x) {
    if (std::holds_alternative<Dropout>(spec_.layers[i])) {
      // In place where nobody else has it: but for its value's, `x` is the only holder.
      const uint32_t input = wiring_.input(i);
      if (!text_.Drops(i)) return x;
      if (reads_left_[input] == 1 && !stays_[input] && x.use_count() == 2) return x;
    }
    const uint64_t n = Elements(shapes_[i]);
    return MakesLogits(i) ? TakeBytes(n * sizeof(float)) : Take(n);
  }

  // Whether a loss reads layer i's output, which then is fp32.
  bool MakesLogits(size_t i) const {
    return i + 1 == spec_.layers.size() ||
           std::holds_alternative<SideLoss>(spec_.layers[i + 1]);
  }

  // Adds layer i, with the Relu that follows where both are done together. Returns the number
  // of the last layer that was added.
  size_t Forward(size_t i) {
    CutPiece();
    const Layer& layer = spec_.layers[i];
    const uint32_t input = wiring_.input(i);
    const bool relu = TakesRelu(layer) && wiring_.relu_follows(i);
    const size_t end = relu ? i + 1 : i;
    const Held x = values_[input];
    const uint64_t n = Elements(shapes_[i]);
    const Held y = Output(i, x);
    values_[wiring_.output(end)] = y;
    if (const auto* conv = std::get_if<Convolution>(&layer)) {
      ForwardConvolution(*conv, i, *x, *y, relu);
    } else if (const auto* norm = std::get_if<BatchNorm>(&layer)) {
      ForwardNorm(*norm, i, *x, *y, relu);
    } else if (const auto* dense = std::get_if<Dense>(&layer)) {
      ForwardDense(*dense, i, *x, *y, relu, MakesLogits(i));
    } else if (std::holds_alternative<AddFrom>(layer)) {
      const uint32_t other = wiring_.other(i);
      Add([n, relu, storage = storage_, a = *x, b = *values_[other], to = *y](
              const Bindings& at, NativeStream stream) {
        return Sum(storage, n, At(at, a), At(at, b), At(at, to), relu, stream);
      });
      Read(other);
    } else if (const auto* subsample = std::get_if<Subsample>(&layer)) {
      Add([shape = ShapeOf(*subsample, Shapes(i)), storage = storage_, from = *x, to = *y](
              const Bindings& b, NativeStream stream) {
        return SubsampleForward(storage, shape, At(b, from), At(b, to), stream);
      });
    } else if (std::holds_alternative<Relu>(layer)) {
      AddRelu(n, *x, *y);
    } else if (TextSteps::Has(layer)) {
      text_.Forward(i, *x, *y);
    } else {
      Add([shape = PoolShapeOf(layer, Shapes(i)), library = &library_, from = *x, to = *y](
              const Bindings& b, NativeStream stream) {
        return library->PoolForward(shape, At(b, from), At(b, to), stream);
      });
    }
    Read(input);
    return end;
  }

  static bool TakesRelu(const Layer& layer) {
    return std::holds_alternative<Convolution>(layer) ||
           std::holds_alternative<BatchNorm>(layer) || std::holds_alternative<Dense>(layer) ||
           std::holds_alternative<AddFrom>(layer);
  }

  void AddRelu(uint64_t n, const Region& x, const Region& y) {
    Add([n, storage = storage_, x, y](const Bindings& b, NativeStream stream) {
      return ApplyRelu(storage, n, At(b, x), At(b, y), stream);
    });
  }

  void ForwardConvolution(const Convolution& layer, size_t i, const Region& x, const Region& y,
                          bool relu) {
    const ConvolutionShape shape = ShapeOf(layer, Shapes(i));
    const uint64_t elements = uint64_t{shape.filters} * shape.kernel * shape.kernel * shape.channels;
    layers_[i].weight = Prepare(i, layer.weight, elements, storage_);
    AwaitTensor(layer.bias, shape.filters);
    Add([workspace = workspace_, bytes = workspace_bytes_, shape, library = &library_,
         weight = layers_[i].weight, x, y](const Bindings& b, NativeStream stream) {
      return library->ConvolutionForward(shape, At(b, x), weight.Read(b), At(b, y),
                                         {At(b, workspace), bytes}, stream);
    });
    const uint64_t rows = uint64_t{examples_} * shape.out_height * shape.out_width;
    if (layer.bias != kNoTensor) {
      Add([rows, relu, storage = storage_, channels = shape.filters, bias = layer.bias, y](
              const Bindings& b, NativeStream stream) {
        return AddBias(storage, rows, channels, b.vector + bias, relu, At(b, y), stream);
      });
    } else if (relu) {
      AddRelu(rows * shape.filters, y, y);
    }
  }

  static NormTraining NormAt(const Bindings& b, const BatchNorm& layer, const Region& results,
                             const Region& inverse) {
    float* const mean = At<float>(b, results);
    return {b.vector + layer.weight, b.vector + layer.bias, mean, mean + results.bytes / (2 * sizeof(float)),
            At<float>(b, inverse)};
  }

  // Of all batch norms: read when forward is over, so not given back.
  void TakeNormResults() {
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (!std::holds_alternative<BatchNorm>(spec_.layers[i])) continue;
      layers_[i].norm_results = arena_.Take(2 * uint64_t{shapes_[i].channels} * sizeof(float));
    }
  }

  void ForwardNorm(const BatchNorm& layer, size_t i, const Region& x, const Region& y, bool relu) {
    const NormShape shape = ShapeOf(layer, Shapes(i));
    for (const uint64_t tensor : {layer.weight, layer.bias}) AwaitTensor(tensor, shape.channels);
    if (!training_) {
      for (const uint64_t tensor : {layer.mean, layer.variance}) AwaitTensor(tensor, shape.channels);
      Add([layer, shape, relu, storage = storage_, x, y](const Bindings& b, NativeStream stream) {
        return NormForwardInference(storage, shape, At(b, x), b.vector + layer.weight, b.vector + layer.bias,
                                    b.vector + layer.mean, b.vector + layer.variance, relu, At(b, y), stream);
      });
      return;
    }
    layers_[i].norm_inverse = TakeBytes(shape.channels * sizeof(float));
    const Held scratch = TakeBytes(NormScratch(shape));
    const auto norm = [layer, results = layers_[i].norm_results, inverse = *layers_[i].norm_inverse](
                          const Bindings& b) { return NormAt(b, layer, results, inverse); };
    Add([norm, shape, relu, storage = storage_, scratch = *scratch, x, y](const Bindings& b, NativeStream stream) {
      return NormForwardTraining(storage, shape, At(b, x), norm(b), relu, At(b, y), At<float>(b, scratch), stream);
    });
    plan_.statistics.push_back([norm, layer, shape, scalars = plan_.scalars, begin = spec_.trainable_elements](
                                   const Bindings& b, NativeStream stream) {
      return WriteStatistics({.channels = shape.channels,
                              .values = shape.rows,
                              .mean = norm(b).mean,
                              .variance = norm(b).variance,
                              .scalars = At<StepScalars>(b, scalars),
                              .accumulate = b.accumulate,
                              .to_mean = b.statistics + (layer.mean - begin),
                              .to_variance = b.statistics + (layer.variance - begin)},
                             stream);
    });
  }

  void ForwardDense(const Dense& layer, size_t i, const Region& x, const Region& y, bool relu,
                    bool fp32) {
    const DenseShape shape = ShapeOf(layer, Shapes(i));
    layers_[i].weight =
        Prepare(i, layer.weight, uint64_t{shape.units} * shape.inputs, storage_);
    const bool has_bias = layer.bias != kNoTensor;
    if (has_bias) {
      // Of the output's type.
      layers_[i].bias = Prepare(i, layer.bias, shape.units, fp32 ? Storage::kFp32 : storage_);
    }
    Add([shape, relu, fp32, has_bias, weight = layers_[i].weight, bias = layers_[i].bias,
         workspace = workspace_, bytes = workspace_bytes_, library = &library_, x, y](
            const Bindings& b, NativeStream stream) {
      return library->DenseForward(shape, At(b, x), weight.Read(b),
                                   has_bias ? bias.Read(b) : nullptr, relu, At(b, y), fp32,
                                   {At(b, workspace), bytes}, stream);
    });
  }

  void Loss() {
    operations_ = &plan_.loss;
    const uint32_t logits = wiring_.output(spec_.layers.size() - 1);
    const size_t side = SideLossAt(spec_);
    if (!ReadsText(spec_)) {
      AddLoss(logits, shapes_.back().channels, /*side=*/false);
      return;
    }
    // A vocabulary's logits are many, and read only once.
    if (training_) {
      gradients_[logits] = storage_ == Storage::kFp32 ? values_[logits] : Take(Elements(shapes_.back()));
    }
    text_.Loss(*values_[logits], gradients_[logits]);
    if (side < layers_.size()) AddLoss(wiring_.output(side), shapes_[side].channels, /*side=*/true);
  }

  // Of the examples with their labels.
  void AddLoss(uint32_t logits, uint32_t classes, bool side) {
    if (training_) gradients_[logits] = Take(uint64_t{examples_} * classes);
    const Held rows = TakeBytes(examples_ * (sizeof(double) + sizeof(uint32_t)));
    Add([classes, side, examples = examples_, storage = storage_, from = *values_[logits],
         to = training_ ? *gradients_[logits] : Region{}, has_gradient = training_,
         labels = plan_.labels, scalars = plan_.scalars, memory = *rows](const Bindings& b,
                                                                        NativeStream stream) {
      double* const row_loss = At<double>(b, memory);
      return SoftmaxCrossEntropy(
          {.examples = examples,
           .classes = classes,
           .logits = At<float>(b, from),
           .labels = At<int32_t>(b, labels),
           .storage = storage,
           .gradient = has_gradient ? At(b, to) : nullptr,
           .row_loss = row_loss,
           .row_correct = reinterpret_cast<uint32_t*>(row_loss + examples),
           .scalars = At<StepScalars>(b, scalars),
           .side = side},
          stream);
    });
  }

  void Backward(size_t i) {
    const Layer& layer = spec_.layers[i];
    if (wiring_.output(i) != i + 1) return;  // From, SideLoss
    // A Relu that the layer before it took over.
    if (std::holds_alternative<Relu>(layer) && i > 0 && wiring_.relu_follows(i - 1) &&
        TakesRelu(spec_.layers[i - 1])) {
      return;
    }
    const bool relu = TakesRelu(layer) && wiring_.relu_follows(i);
    const uint32_t output = wiring_.output(relu ? i + 1 : i);
    const uint32_t input = wiring_.input(i);
    Held dy = std::exchange(gradients_[output], nullptr);
    if (dy == nullptr) return;  // nothing before it is trained
    const uint64_t n = Elements(shapes_[i]);
    // A batch norm's own backward knows where its output was above 0.
    if (relu && !std::holds_alternative<BatchNorm>(layer)) dy = Masked(n, *values_[output], dy);
    const bool wanted = wiring_.needs_gradient(input);
    if (std::holds_alternative<AddFrom>(layer)) {
      AddGradient(wiring_.other(i), dy);
      AddGradient(input, std::move(dy));
    } else if (std::holds_alternative<Relu>(layer)) {
      if (wanted) AddGradient(input, Masked(n, *values_[output], dy));
    } else {
      Held dx = wanted ? GradientPlace(i, dy) : nullptr;
      // What backward does not read may be gone.
      const Region x = values_[input] == nullptr ? Region{} : *values_[input];
      const Region y = values_[output] == nullptr ? Region{} : *values_[output];
      if (TextSteps::Has(layer)) {
        text_.Backward(i, x, y, *dy, dx);
      } else if (const auto* conv = std::get_if<Convolution>(&layer)) {
        BackwardConvolution(*conv, i, x, *dy, dx);
      } else if (const auto* norm = std::get_if<BatchNorm>(&layer)) {
        BackwardNorm(*norm, i, x, *dy, dx, relu);
      } else if (const auto* dense = std::get_if<Dense>(&layer)) {
        BackwardDense(*dense, i, x, *dy, dx);
      } else if (wanted) {
        if (const auto* subsample = std::get_if<Subsample>(&layer)) {
          Add([shape = ShapeOf(*subsample, Shapes(i)), storage = storage_, from = *dy, to = *dx](
                  const Bindings& b, NativeStream stream) {
            return SubsampleGradient(storage, shape, At(b, from), At(b, to), stream);
          });
        } else {
          Add([shape = PoolShapeOf(layer, Shapes(i)), library = &library_, x, y, from = *dy, to = *dx](
                  const Bindings& b, NativeStream stream) {
            return library->PoolBackward(shape, At(b, x), At(b, y), At(b, from), At(b, to),
                                         stream);
          });
        }
      }
      dy.reset();
      if (wanted) AddGradient(input, std::move(dx));
    }
    // All that read it come after it in the list, so their backward is done.
    values_[output].reset();
    layers_[i] = {};
  }

  // Where the gradient of layer i's input goes: to dy's own place where it can, and nobody else
  // holds that.
  Held GradientPlace(size_t i, const Held& dy) {
    const Layer& layer = spec_.layers[i];
    const bool dropout = std::holds_alternative<Dropout>(layer);
    if (dropout && !text_.Drops(i)) return dy;
    if ((TextSteps::InPlace(layer) || std::holds_alternative<BatchNorm>(layer)) && dy.use_count() == 1) return dy;
    return Take(Elements(InputShape(i)));
  }

  // dy where the layer's output is above 0: in place where nobody else holds dy.
  Held Masked(uint64_t n, const Region& y, Held& dy) {
    const Held to = dy.use_count() == 1 ? dy : Take(n);
    Add([n, storage = storage_, y, from = *dy, to = *to](const Bindings& b, NativeStream stream) {
      return ReluGradient(storage, n, At(b, y), At(b, from), At(b, to), stream);
    });
    return to;
  }

  // Brings a gradient that a library made in `from` to its place in the vector's layout.
  void AddLoad(uint64_t elements, const Region& from, uint64_t offset) {
    Add([=, storage = storage_](const Bindings& b, NativeStream stream) {
      return LoadFrom(storage, elements, At(b, from), b.accumulate, b.gradient + offset, stream);
    });
  }

  void BackwardConvolution(const Convolution& layer, size_t i, const Region& x, const Region& dy,
                           const Held& dx) {
    const ConvolutionShape shape = ShapeOf(layer, Shapes(i));
    const Weight& weight = layers_[i].weight;
    const bool direct = !weight.copied;
    const Held scratch = direct ? nullptr : Take(weight.elements);
    Add([shape, direct, x, dy, offset = layer.weight, to = direct ? Region{} : *scratch,
         workspace = workspace_, bytes = workspace_bytes_, library = &library_](
            const Bindings& b, NativeStream stream) {
      void* const dw = direct ? static_cast<void*>(b.gradient + offset) : At(b, to);
      return library->ConvolutionBackwardFilter(shape, At(b, x), At(b, dy),
                                                direct && b.accumulate, dw,
                                                {At(b, workspace), bytes}, stream);
    });
    if (!direct) AddLoad(weight.elements, *scratch, layer.weight);
    if (layer.bias != kNoTensor) {
      AddBiasGradient(uint64_t{examples_} * shape.out_height * shape.out_width, shape.filters, dy, layer.bias);
    }
    if (dx == nullptr) return;
    Add([shape, dy, weight, to = *dx, workspace = workspace_, bytes = workspace_bytes_,
         library = &library_](const Bindings& b, NativeStream stream) {
      return library->ConvolutionBackwardData(shape, weight.Read(b), At(b, dy), At(b, to),
                                              {At(b, workspace), bytes}, stream);
    });
  }

  // In two steps, where the rows of one would be too many for a thread block.
  void AddBiasGradient(uint64_t rows, uint32_t channels, const Region& dy, uint64_t offset) {
    if (rows <= kManyRows) {
      Add([=, storage = storage_](const Bindings& b, NativeStream stream) {
        return BiasGradient(storage, rows, channels, At(b, dy), b.accumulate, b.gradient + offset, stream);
      });
      return;
    }
    const Held scratch = TakeBytes(RowSumsScratch(static_cast<uint32_t>(rows), channels));
    Add([=, storage = storage_, scratch = *scratch](const Bindings& b, NativeStream stream) {
      return RowSums(storage, static_cast<uint32_t>(rows), channels, At(b, dy), b.accumulate, b.gradient + offset,
                     At<float>(b, scratch), stream);
    });
  }

  void BackwardNorm(const BatchNorm& layer, size_t i, const Region& x, const Region& dy, const Held& dx, bool relu) {
    const NormShape shape = ShapeOf(layer, Shapes(i));
    const Held scratch = TakeBytes(NormScratch(shape));
    Add([layer, shape, relu, storage = storage_, x, dy, results = layers_[i].norm_results,
         inverse = *layers_[i].norm_inverse, scratch = *scratch, wanted = dx != nullptr,
         to = dx == nullptr ? Region{} : *dx](const Bindings& b, NativeStream stream) {
      return NormBackward(storage, shape, At(b, x), At(b, dy), NormAt(b, layer, results, inverse), relu, b.accumulate,
                          wanted ? At(b, to) : nullptr, b.gradient + layer.weight, b.gradient + layer.bias,
                          At<float>(b, scratch), stream);
    });
  }

  void BackwardDense(const Dense& layer, size_t i, const Region& x, const Region& dy,
                     const Held& dx) {
    const DenseShape shape = ShapeOf(layer, Shapes(i));
    const uint64_t elements = uint64_t{shape.units} * shape.inputs;
    // fp32 whatever the storage.
    const bool direct = layer.weight % kAlignedElements == 0;
    const Held scratch = direct ? nullptr : TakeBytes(elements * sizeof(float));
    Add([shape, direct, x, dy, offset = layer.weight, to = direct ? Region{} : *scratch,
         workspace = workspace_, bytes = workspace_bytes_, library = &library_](
            const Bindings& b, NativeStream stream) {
      float* const dw = direct ? b.gradient + offset : At<float>(b, to);
      return library->DenseBackwardWeight(shape, At(b, x), At(b, dy), direct && b.accumulate, dw,
                                          {At(b, workspace), bytes}, stream);
    });
    if (!direct) {
      Add([elements, from = *scratch, offset = layer.weight](const Bindings& b,
                                                            NativeStream stream) {
        return LoadFrom(Storage::kFp32, elements, At(b, from), b.accumulate, b.gradient + offset,
                        stream);
      });
    }
    if (layer.bias != kNoTensor) AddBiasGradient(shape.rows, shape.units, dy, layer.bias);
    if (dx == nullptr) return;
    Add([shape, dy, weight = layers_[i].weight, to = *dx, workspace = workspace_,
         bytes = workspace_bytes_, library = &library_](const Bindings& b, NativeStream stream) {
      return library->DenseBackwardData(shape, weight.Read(b), At(b, dy), At(b, to),
                                        {At(b, workspace), bytes}, stream);
    });
  }

  // The gradient of a value is the sum of those of all that read it.
  void AddGradient(uint32_t value, Held gradient) {
    if (!wiring_.needs_gradient(value)) return;
    Held& total = gradients_[value];
    if (total == nullptr) {
      total = std::move(gradient);
      return;
    }
    const uint64_t n =
        Elements(value == 0 ? spec_.input : shapes_[value - 1]);
    if (total.use_count() > 1) std::swap(total, gradient);
    const Held sum = total.use_count() == 1 ? total : Take(n);
    Add([n, storage = storage_, a = *total, b = *gradient, to = *sum](const Bindings& at,
                                                                     NativeStream stream) {
      return Sum(storage, n, At(at, a), At(at, b), At(at, to), /*relu=*/false, stream);
    });
    total = sum;
  }

  TextSteps text_;
  Region workspace_;
  uint64_t workspace_bytes_ = 0;
  std::vector<LayerState> layers_;
  // By value. Those that a Relu after them took over, and From's, stay empty.
  std::vector<Held> values_;
  std::vector<uint32_t> reads_left_;
  std::vector<bool> stays_;  // backward reads it
  std::vector<Held> gradients_;
};

}  // namespace

absl::StatusOr<StepPlan> BuildStepPlan(LayerLibrary& library, const NetworkSpec& spec,
                                       const std::vector<Shape>& shapes, uint32_t examples,
                                       bool training) {
  return Builder(library, spec, shapes, examples, training).Build();
}

}  // namespace FORESHARD_CUDA_NAMESPACE
