// The program's version, as `--version` and foreshard_build_info show it. A test
// holds it to the project's version in CMakeLists.txt.
#pragma once

namespace foreshard {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace foreshard
