#include "kernels/cuda/libraries/shared_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace foreshard::kernels::cuda {

absl::StatusOr<SharedLibrary> SharedLibrary::Open(const std::string& name) {
  if (void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) {
    return SharedLibrary(handle);
  }
  const char* const found = dlerror();
  const std::string why = found == nullptr ? "no reason is known" : found;
  const std::string built_with = absl::StrCat(FORESHARD_CUDA_LIBRARIES, "/", name);
  if (void* const handle = dlopen(built_with.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) {
    return SharedLibrary(handle);
  }
  return absl::UnavailableError(absl::StrCat(
      name, " cannot be loaded (", why,
      "); install it where the loader finds it, or name its folder in LD_LIBRARY_PATH"));
}

void* SharedLibrary::FindAddress(const char* name) const { return dlsym(handle_, name); }

}  // namespace foreshard::kernels::cuda
