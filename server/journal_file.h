// A file of the journal, byte by byte; server/README.md says what it is for. All numbers are
// little-endian.
//
// File "journal.0000000001", the number being its place in the sequence of files:
//   header     88 bytes
//   records    of events (server/event.h), by rising number without holes, and marks
//
// Header:
//    0  8    "FSJRNL\r\n"
//    8  u16  format version (1)          10  u8  mode (1 buffered, 2 synced)
//   11  u8   format of the records (1)   12  u32 protocol
//   16  u32  shard                       20  u32 shards
//   24  u64  job fingerprint             32  u64 schema fingerprint
//   40  u64  plan fingerprint            48  u64 incarnation of the server
//   56  u64  the file's place in the sequence, as in its name
//   64  u64  number of the first event that this file may hold
//   72  u64  zero
//   80  u64  XXH3-64 of the 80 bytes before
// Every later format keeps the first ten bytes, the length and the checksum.
//
// Mark: what tells a torn end from damage. Shorter than any record, 32 bytes:
//    0  u32  28, the length of what follows
//    4  u32  1, or 3: and this is the end of the file, which was finished properly
//    8  u64  the file's place in the sequence
//   16  u64  so many bytes of this file were synced before the mark was written
//   24  u64  XXH3-64 of bytes 4 to 23
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/core/bytes.h"
#include "common/storage/storage.h"
#include "server/format_range.h"
#include "server/state_identity.h"

namespace foreshard {

enum class JournalMode : uint8_t {
  kOff = 0,
  kBuffered = 1,  // survives a killed process
  kSynced = 2,    // survives a lost machine
};

inline constexpr uint64_t kJournalHeaderBytes = 88;
inline constexpr uint16_t kJournalFormat = 1;
inline constexpr FormatRange kJournalFormats = {.oldest = 1, .newest = kJournalFormat};

struct JournalFileHeader {
  StateIdentity identity;
  JournalMode mode = JournalMode::kBuffered;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;
  uint64_t first_number = 0;

  bool operator==(const JournalFileHeader&) const = default;
};

std::string EncodeJournalHeader(const JournalFileHeader& header);
// DATA_LOSS: too short, or damaged. FAILED_PRECONDITION: a format that this program does not read.
absl::StatusOr<JournalFileHeader> ParseJournalHeader(ByteSpan bytes);

inline constexpr uint64_t kJournalMarkBytes = 32;

struct JournalMark {
  bool closed = false;
  uint64_t sequence = 0;
  uint64_t synced_bytes = 0;
};

std::string EncodeJournalMark(const JournalMark& mark);
// None: no mark of this file begins here.
std::optional<JournalMark> ParseJournalMark(ByteSpan bytes, uint64_t sequence);

struct JournalFileName {
  uint64_t sequence = 0;
  std::string name;
};

std::string NameOfJournalFile(uint64_t sequence);
// Those of the storage, by rising sequence. Other files are nobody's business.
absl::StatusOr<std::vector<JournalFileName>> ListJournalFiles(const Storage& storage);

}  // namespace foreshard
