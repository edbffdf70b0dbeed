// The models that the registry knows; MakeModel in model.h is how to get one.
// Each checks the options that are its own.
#pragma once

#include <memory>

#include "worker/models/model.h"

namespace foreshard {

// mlp.cc
absl::StatusOr<std::unique_ptr<Model>> MakeMlp(const ModelOptions& options,
                                               kernels::Device& device);
// cnn.cc
absl::StatusOr<std::unique_ptr<Model>> MakeCnn(const ModelOptions& options,
                                               kernels::Device& device);
// resnet18.cc
absl::StatusOr<std::unique_ptr<Model>> MakeResnet18(const ModelOptions& options,
                                                    kernels::Device& device);
// resnet20.cc
absl::StatusOr<std::unique_ptr<Model>> MakeResnet20(const ModelOptions& options,
                                                    kernels::Device& device);
// resnet50.cc
absl::StatusOr<std::unique_ptr<Model>> MakeResnet50(const ModelOptions& options,
                                                    kernels::Device& device);
// wrn16_4.cc
absl::StatusOr<std::unique_ptr<Model>> MakeWrn16By4(const ModelOptions& options,
                                                    kernels::Device& device);
// bert.cc
absl::StatusOr<std::unique_ptr<Model>> MakeBertTiny(const ModelOptions& options,
                                                    kernels::Device& device);
absl::StatusOr<std::unique_ptr<Model>> MakeBertBase(const ModelOptions& options,
                                                    kernels::Device& device);
absl::StatusOr<std::unique_ptr<Model>> MakeBertLarge(const ModelOptions& options,
                                                     kernels::Device& device);
// quadratic.cc
absl::StatusOr<std::unique_ptr<Model>> MakeQuadratic(const ModelOptions& options,
                                                     kernels::Device& device);
// synthetic.cc
absl::StatusOr<std::unique_ptr<Model>> MakeSynthetic(const ModelOptions& options,
                                                     kernels::Device& device);

}  // namespace foreshard
