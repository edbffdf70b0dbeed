// The statuses of a job's servers as text for a person: first what is being waited
// for, then progress, servers and workers as tables.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "foreshard/v1/admin.pb.h"

namespace foreshard {

// `replies[i]` is what `addresses[i]` answered. Ends with a line feed.
std::string StatusText(const std::vector<std::string>& addresses,
                       const std::vector<absl::StatusOr<v1::StatusReply>>& replies);

// Rows of cells as columns two spaces apart, each as wide as its widest cell; no
// spaces at the ends of lines.
std::string AlignColumns(const std::vector<std::vector<std::string>>& rows);

// The same text with a '?' for each control character but line feeds: what servers and workers
// call themselves must not reach a terminal as commands.
std::string PlainText(std::string text);

}  // namespace foreshard
