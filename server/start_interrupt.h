// SIGTERM and SIGINT while a server starts, which may take minutes where much is restored.
//
//   block SIGTERM and SIGINT, before any thread is made
//   auto server = [&] { const StartInterrupt interrupt; return ShardServer::Start(options); }();
//   sigwait(...);
#pragma once

#include <pthread.h>

#include <atomic>
#include <thread>

namespace foreshard {

// While it lives, both signals end the process at once, with 0 and 130: nothing has been promised by then,
// and what lies on disk is what a crash could leave as well. Made and destroyed by the main thread,
// in a process where all threads block both signals.
class StartInterrupt {
 public:
  StartInterrupt();
  ~StartInterrupt();
  StartInterrupt(const StartInterrupt&) = delete;
  StartInterrupt& operator=(const StartInterrupt&) = delete;

 private:
  void Run();

  const pthread_t main_thread_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace foreshard
