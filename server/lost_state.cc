#include "server/lost_state.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/boot_id.h"
#include "server/run_description.h"

namespace foreshard {

std::string WhyLost(const v1::RunDescription& found, const Storage& storage, const std::string& boot_id) {
  // Also of a program that made no such mark.
  if (found.unjournaled() || (found.run_id() == 0 && found.job().durability().journal() == "off")) {
    return "what came after its newest checkpoint is lost, since there was no journal (durability.journal, on_failure)";
  }
  if (found.watched() && absl::IsNotFound(storage.Size(kJournaledFile).status())) {
    return absl::StrCat("what came after the end of its journal is lost, since the journal had failed there, or had not been "
                        "able to make safe what it held (durability.on_failure): the file ", kJournaledFile, " is gone");
  }
  if (IsAnotherBoot(found.boot_id(), boot_id)) {
    return absl::StrCat("what came after the end of its journal may be lost, since the machine was started anew, or is "
                        "another one, and durability.journal: buffered outlives a process alone (boot ", found.boot_id(),
                        " then, ", boot_id.empty() ? "unknown" : boot_id, " now); synced outlives a machine");
  }
  return "";
}

}  // namespace foreshard
