// A folder of a packer's, made whole or not at all: as OUTPUT.part, which is renamed at the end.
//
//   if (auto s = CheckNewFolder(output); !s.ok()) return s;         // before long work
//   return MakeFolderWhole(output, IsOurs, [&](const std::string& part) { return Fill(part); });
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace foreshard {

// INVALID_ARGUMENT: it is there, and is no empty folder.
absl::Status CheckNewFolder(const std::string& output);

// Removes what an earlier run has left, has OUTPUT.part filled, which need not be there then, and
// renames it. INVALID_ARGUMENT: OUTPUT.part holds a name that is not `ours`; UNAVAILABLE: it cannot be
// removed; the errors of `fill`, behind which nothing is left, and of the renaming.
absl::Status MakeFolderWhole(const std::string& output, absl::FunctionRef<bool(const std::string& name)> ours,
                             absl::FunctionRef<absl::Status(const std::string& part)> fill);

}  // namespace foreshard
