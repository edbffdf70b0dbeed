#include "server/format_range.h"

#include "absl/strings/str_cat.h"

namespace foreshard {

absl::Status CheckFormat(absl::string_view what, uint64_t format, const FormatRange& reads) {
  if (format >= reads.oldest && format <= reads.newest) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      what, " has format ", format, ", and this program reads ",
      reads.oldest == reads.newest ? absl::StrCat("only ", reads.newest)
                                   : absl::StrCat(reads.oldest, " to ", reads.newest),
      format > reads.newest
          ? ": a newer release wrote it; use that release, or a newer one"
          : ": a release wrote it that is too old for this one; let a release between the two go on with "
            "it first"));
}

}  // namespace foreshard
