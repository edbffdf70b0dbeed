#include "common/net/logging.h"

#include <iomanip>
#include <mutex>
#include <ostream>

#include "glog/logging.h"
#include "grpc/support/log.h"

namespace foreshard {
namespace {

std::mutex role_mutex;
std::string& Role() {
  static auto* role = new std::string;  // outlives every log line
  return *role;
}

void WritePrefix(std::ostream& out, const google::LogMessageInfo& info, void*) {
  const google::LogMessageTime& time = info.time;
  out << info.severity[0] << ' ' << std::setfill('0') << 1900 + time.year() << '-' << std::setw(2)
      << 1 + time.month() << '-' << std::setw(2) << time.day() << 'T' << std::setw(2)
      << time.hour() << ':' << std::setw(2) << time.min() << ':' << std::setw(2) << time.sec()
      << '.' << std::setw(6) << time.usec() << "Z ";
  {
    const std::lock_guard<std::mutex> lock(role_mutex);
    out << Role();
  }
  out << ' ' << info.filename << ':' << info.line_number << ']';
}

// gRPC's own lines, in the same form.
void WriteGrpcLine(gpr_log_func_args* line) {
  google::LogSeverity severity = google::GLOG_INFO;
  if (line->severity == GPR_LOG_SEVERITY_ERROR) severity = google::GLOG_WARNING;
  google::LogMessage(line->file, line->line, severity).stream() << "gRPC: " << line->message;
}

}  // namespace

void InitLogging(const char* program, const std::string& role) {
  SetLogRole(role);
  if (google::IsGoogleLoggingInitialized()) return;
  FLAGS_logtostderr = true;
  FLAGS_log_utc_time = true;
  google::InitGoogleLogging(program, &WritePrefix);
  gpr_set_log_function(&WriteGrpcLine);
}

void SetLogRole(const std::string& role) {
  const std::lock_guard<std::mutex> lock(role_mutex);
  Role() = role;
}

}  // namespace foreshard
