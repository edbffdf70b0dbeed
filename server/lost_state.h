// Whether a state directory may lack what its server had acknowledged, as its next start, and whoever
// else goes on with what is in it, has to know.
//
//   const std::string why = WhyLost(description, *storage, ReadBootId());
#pragma once

#include <string>

#include "common/storage/storage.h"
#include "foreshard/v1/state.pb.h"

namespace foreshard {

// Why it may, in words that go on a line; empty: all that was acknowledged is there. `boot_id`: of whoever asks. Of a server
// that runs, what would be, were it killed now.
std::string WhyLost(const v1::RunDescription& found, const Storage& storage, const std::string& boot_id);

}  // namespace foreshard
