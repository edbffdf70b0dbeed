// A shared library that is looked for when it is needed: a program starts, and says what is
// missing, on machines that have neither cuDNN nor cuBLAS (internal to kernels/cuda/libraries).
//
//   ASSIGN(SharedLibrary library, SharedLibrary::Open("libcudnn.so.9"));
//   auto* create = library.Find<decltype(&cudnnCreate)>("cudnnCreate");   // null: not there
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foreshard::kernels::cuda {

// Once opened a library stays until the program ends.
class SharedLibrary {
 public:
  // UNAVAILABLE with the loader's words. Looked for where the loader looks (LD_LIBRARY_PATH,
  // ldconfig), then in the CUDA installation that this was built with.
  static absl::StatusOr<SharedLibrary> Open(const std::string& name);

  template <typename Function>
  Function Find(const char* name) const {
    return reinterpret_cast<Function>(FindAddress(name));
  }

 private:
  explicit SharedLibrary(void* handle) : handle_(handle) {}
  void* FindAddress(const char* name) const;

  void* handle_;
};

}  // namespace foreshard::kernels::cuda
