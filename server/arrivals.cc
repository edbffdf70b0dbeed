#include "server/arrivals.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"

namespace foreshard {
namespace {

constexpr char kHeader[] =
    "number,segment,kind,worker,incarnation,sequence,ticket,held_version,argument";
constexpr char kDealer[] = "dealer";
constexpr size_t kFlushBytes = 64 << 10;

constexpr std::pair<EventKind, absl::string_view> kNames[] = {
    {EventKind::kInitialise, "initialise"},
    {EventKind::kJoin, "join"},
    {EventKind::kPush, "push"},
    {EventKind::kResend, "resend"},
    {EventKind::kRead, "read"},
    {EventKind::kDiscard, "discard"},
    {EventKind::kSkip, "skip"},
    {EventKind::kExpire, "expire"},
    {EventKind::kLeave, "leave"},
    {EventKind::kRoundClosed, "round_closed"},
    {EventKind::kPhaseChange, "phase_change"},
    {EventKind::kLearningRateRepair, "learning_rate_repair"},
    {EventKind::kSnapshot, "snapshot"},
    {EventKind::kLate, "late"},
    {EventKind::kAbsent, "absent"},
    {EventKind::kViewChange, "view_change"},
    {EventKind::kDealerJoin, "dealer_join"},
    {EventKind::kDealerFetch, "dealer_fetch"},
    {EventKind::kDealerComplete, "dealer_complete"},
    {EventKind::kDealerLost, "dealer_lost"},
    {EventKind::kDealerStop, "dealer_stop"},
    {EventKind::kDealerSkipTo, "dealer_skip_to"},
    {EventKind::kDealerViewKnown, "dealer_view_known"},
    {EventKind::kDealerAnnounce, "dealer_announce"},
};

std::string Line(const Event& event) {
  const std::string segment =
      event.segment == kDealerSegment ? kDealer : absl::StrCat(event.segment);
  return absl::StrCat(event.number, ",", segment, ",", ToString(event.kind), ",", event.worker, ",",
                      event.incarnation, ",", event.sequence, ",", event.ticket, ",",
                      event.held_version, ",", event.argument, "\n");
}

bool ParseKind(absl::string_view text, EventKind* kind) {
  for (const auto& [known, name] : kNames) {
    if (name != text) continue;
    *kind = known;
    return true;
  }
  return false;
}

bool Parse(absl::string_view line, Event* event) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
  if (fields.size() != 9) return false;
  event->segment = kDealerSegment;
  return absl::SimpleAtoi(fields[0], &event->number) &&
         (fields[1] == kDealer || absl::SimpleAtoi(fields[1], &event->segment)) &&
         ParseKind(fields[2], &event->kind) && absl::SimpleAtoi(fields[3], &event->worker) &&
         absl::SimpleAtoi(fields[4], &event->incarnation) &&
         absl::SimpleAtoi(fields[5], &event->sequence) &&
         absl::SimpleAtoi(fields[6], &event->ticket) &&
         absl::SimpleAtoi(fields[7], &event->held_version) &&
         absl::SimpleAtoi(fields[8], &event->argument);
}

}  // namespace

absl::string_view ToString(EventKind kind) {
  for (const auto& [known, name] : kNames) {
    if (known == kind) return name;
  }
  return "unknown";
}

absl::StatusOr<std::unique_ptr<ArrivalRecorder>> ArrivalRecorder::Create(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) {
    return absl::UnavailableError(
        absl::StrCat("--record-arrivals: cannot write ", path, ": ", std::strerror(errno)));
  }
  std::unique_ptr<ArrivalRecorder> recorder(new ArrivalRecorder(path, file));
  absl::MutexLock lock(&recorder->mutex_);
  recorder->lines_ = absl::StrCat(kHeader, "\n");
  recorder->Flush();
  if (recorder->file_ < 0) {
    return absl::UnavailableError(absl::StrCat("--record-arrivals: cannot write ", path));
  }
  return recorder;
}

ArrivalRecorder::~ArrivalRecorder() {
  absl::MutexLock lock(&mutex_);
  Flush();
  if (!ahead_.empty() && file_ >= 0) {
    LOG(ERROR) << path_ << " ends at event " << next_ - 1 << ": the next was never recorded";
  }
  if (file_ >= 0) close(file_);
}

void ArrivalRecorder::Record(const Event& event) {
  std::string line = Line(event);
  absl::MutexLock lock(&mutex_);
  const auto near = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return file_ < 0 || event.number < next_ + kWindow;
  };
  mutex_.Await(absl::Condition(&near));
  if (file_ < 0) return;
  if (event.number < next_) {
    LOG_EVERY_T(ERROR, 1) << path_ << ": event " << event.number << " came twice";
    return;
  }
  const size_t place = event.number - next_;
  if (place >= ahead_.size()) ahead_.resize(place + 1);
  ahead_[place] = std::move(line);
  while (!ahead_.empty() && ahead_.front().has_value()) {
    lines_ += *ahead_.front();
    ahead_.pop_front();
    ++next_;
  }
  if (lines_.size() >= kFlushBytes) Flush();
}

void ArrivalRecorder::Flush() {
  const char* data = lines_.data();
  size_t left = lines_.size();
  while (left > 0 && file_ >= 0) {
    const ssize_t written = write(file_, data, left);
    if (written >= 0) {
      data += written;
      left -= written;
    } else if (errno != EINTR) {
      LOG(ERROR) << "cannot write " << path_ << ": " << std::strerror(errno)
                 << "; the order of events from here on is not recorded";
      // What is there stays readable. The lines that were written, torn ones not.
      const size_t done = lines_.size() - left;
      const size_t end = lines_.rfind('\n', done > 0 ? done - 1 : 0);
      const int64_t whole = done > 0 && end != std::string::npos ? static_cast<int64_t>(end) + 1 : 0;
      if (ftruncate(file_, whole_bytes_ + whole) != 0) {
        LOG(ERROR) << "the last line of " << path_ << " may be torn: " << std::strerror(errno);
      }
      close(file_);
      file_ = -1;
      ahead_.clear();
    }
  }
  whole_bytes_ += static_cast<int64_t>(lines_.size());
  lines_.clear();
}

absl::StatusOr<std::vector<Event>> LoadArrivals(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat("can't read the arrivals ", path));
  const auto bad = [&](size_t number, const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": ", what...));
  };
  std::vector<Event> events;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    if (number == 1) {
      if (line != kHeader) return bad(1, "arrivals begin with the line '", kHeader, "'");
      continue;
    }
    Event event;
    if (!Parse(line, &event)) {
      return bad(number, "'", line.substr(0, 120), "' is no event: ", kHeader, " belong there");
    }
    if (event.number != events.size() + 1) {
      return bad(number, "event ", event.number, " where ", events.size() + 1, " belongs");
    }
    events.push_back(event);
  }
  if (file.bad()) return absl::DataLossError(absl::StrCat("can't read the arrivals ", path));
  return events;
}

}  // namespace foreshard
