// Log lines of every process, to stderr: severity, UTC time, the process's role,
// where, what.
//
//   InitLogging(argv[0], "server 0");
//   LOG(INFO) << "listening on " << address;
//   // I 2024-05-01T12:00:00.123456Z server 0 main.cc:40] listening on 127.0.0.1:50051
#pragma once

#include <string>

namespace foreshard {

// Once, at the start of main.
void InitLogging(const char* program, const std::string& role);

// The role may become known later (a worker's slot). Thread-safe.
void SetLogRole(const std::string& role);

}  // namespace foreshard
