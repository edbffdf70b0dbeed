// Reads a journal back, in the order of Event::number: what recovery, replay and checks do.
//
//   auto reader = JournalReader::Open(storage, identity, checkpoint.first_number()).value();
//   for (;;) {
//     auto event = reader->Next();
//     if (!event.ok()) return event.status();
//     if (!event->has_value()) break;
//     if ((*event)->number <= snapshot_number[segment]) continue;   // is in the checkpoint
//     RETURN_IF_ERROR(segments[segment]->Replay(**event));
//   }
//   reader->end().next_number;
//
// The last file may end in the middle of an append: a process was killed, or a machine lost.
// Such an end is cut, nothing of it having been acknowledged. Whether it is one:
// * a file that a `synced` journal wrote says again and again how much of it is safe; an end
//   begins beyond all that, whatever lies behind it;
// * a file of a `buffered` one ends at the first thing that is no record, and no record
//   follows.
// Anything else that is not as it was written is damage, and an error that names file and offset;
// what comes before the damage has been given out by then.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/event.h"
#include "server/journal_file.h"

namespace foreshard {

// Where a journal ends, for what goes on with it.
struct JournalEnd {
  uint64_t next_number = 1;  // one beyond the last event
  uint64_t files_end = 1;    // one beyond the last file that stays
  uint64_t incarnation = 0;  // highest of the files read; 0: there are none
  // What is to be cut off the last file: everything, where not even its header is whole.
  struct Torn {
    std::string file;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    bool whole_file = false;
    std::string why;
  };
  // The file above; and one begun behind it of which not even the header is whole.
  std::vector<Torn> torn;
};

// Thread-compatible. Changes nothing.
class JournalReader {
 public:
  // From the event with the number `from` on; 0: from the first that there is. Older files
  // are not looked at. FAILED_PRECONDITION: another job, shard, schema or plan, or a format that
  // this program does not read.
  // DATA_LOSS: events from `from` on are missing, a header is damaged. The storage outlives
  // this.
  static absl::StatusOr<std::unique_ptr<JournalReader>> Open(const Storage& storage,
                                                             const StateIdentity& identity, uint64_t from);
  // As Open, from the beginning of the last file on.
  static absl::StatusOr<std::unique_ptr<JournalReader>> OpenLastFile(const Storage& storage,
                                                                     const StateIdentity& identity);

  // The next event; none at the end. Its payload is valid until the next call. After an error
  // the same error.
  absl::StatusOr<std::optional<Event>> Next();

  // Where Next has failed since events are in no file, and no file is missing or the one before them had never
  // been finished: the number of the first event behind them. A journal that has failed ends so, where its server went
  // on without it.
  std::optional<uint64_t> beyond_gap() const { return beyond_gap_; }
  // After Next has given none.
  const JournalEnd& end() const { return end_; }
  // Headers of the files from the first one read on.
  const std::vector<JournalFileHeader>& files() const { return files_; }
  // Where the event given last begins, as "FILE, offset 88".
  std::string place() const;

 private:
  JournalReader(const Storage& storage, uint64_t from) : storage_(storage), from_(from) {}
  // `from`: none for the last file only.
  static absl::StatusOr<std::unique_ptr<JournalReader>> Make(const Storage& storage,
                                                             const StateIdentity& identity,
                                                             std::optional<uint64_t> from);

  absl::Status BeginFile();
  absl::StatusOr<std::optional<Event>> Advance();
  // The file's bytes from position_ on: so many, or all that are left.
  absl::StatusOr<ByteSpan> Window(uint64_t bytes);
  // What is at position_ is nothing: the file's torn end (OK), or an error.
  absl::Status EndAt(const std::string& why);
  // What shows that the bytes from position_ on were whole once; empty where nothing does.
  absl::StatusOr<std::string> EvidenceOfDamage();
  absl::Status Damaged(uint64_t offset, const std::string& why) const;
  bool InLastFile() const { return file_ + 1 == files_.size(); }

  const Storage& storage_;
  const uint64_t from_;
  std::vector<JournalFileHeader> files_;
  size_t file_ = 0;          // index of the one being read
  uint64_t file_bytes_ = 0;  // as long as it was when it was begun
  uint64_t position_ = 0;    // in it
  uint64_t event_position_ = 0;
  bool closed_ = false;    // a mark said that it ends here
  uint64_t expected_ = 0;  // number of the next event
  std::optional<uint64_t> beyond_gap_;
  bool done_ = false;
  absl::Status fault_;
  std::string buffer_;  // the file's bytes from buffer_at_ on
  uint64_t buffer_at_ = 0;
  ByteSpan piece_;  // payload of the event given last
  JournalEnd end_;
};

}  // namespace foreshard
