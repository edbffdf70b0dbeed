#include "kernels/cuda/libraries/cudnn_functions.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/libraries/shared_library.h"
#include "kernels/cuda/memory.h"
#include "kernels/device_failure.h"

namespace foreshard::kernels::cuda {
namespace {

absl::Status Lacks(const std::string& library, const char* function) {
  return absl::UnavailableError(absl::StrCat(
      library, " has no ", function, ": it is of another version than the one built with"));
}

}  // namespace

absl::StatusOr<CudnnFunctions> LoadCudnn() {
  const std::string name = absl::StrCat("libcudnn.so.", CUDNN_MAJOR);
  const auto library = SharedLibrary::Open(name);
  if (!library.ok()) return library.status();
  CudnnFunctions functions;
#define FORESHARD_FIND(function)                                                       \
  functions.function = library->Find<decltype(&::function)>(#function);                \
  if (functions.function == nullptr) return Lacks(name, #function);
  FORESHARD_CUDNN_FUNCTIONS(FORESHARD_FIND)
  const size_t version = functions.cudnnGetVersion();
  if (version / 10000 != CUDNN_MAJOR) {
    return absl::UnavailableError(absl::StrCat("cuDNN ", version / 10000, " was found as ", name,
                                               "; cuDNN ", CUDNN_MAJOR, " is needed"));
  }
  return functions;
}

absl::StatusOr<CublasLtFunctions> LoadCublasLt() {
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  const auto library = SharedLibrary::Open(name);
  if (!library.ok()) return library.status();
  CublasLtFunctions functions;
  FORESHARD_CUBLASLT_FUNCTIONS(FORESHARD_FIND)
#undef FORESHARD_FIND
  return functions;
}

absl::Status LibraryFailure(const std::string& text) {
  const absl::Status device = DeviceMemoryInfo().status();
  if (!IsDeviceFailure(device)) return absl::InternalError(text);
  return DeviceFailure(absl::UnavailableError(absl::StrCat(text, "; ", device.message())));
}

}  // namespace foreshard::kernels::cuda
