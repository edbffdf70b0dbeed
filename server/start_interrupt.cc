#include "server/start_interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "common/core/exit_code.h"
#include "glog/logging.h"

namespace foreshard {
namespace {

// To the thread alone: its work is done.
constexpr int kOver = SIGUSR2;

}  // namespace

StartInterrupt::StartInterrupt() : main_thread_(pthread_self()) {
  // The thread has the mask of who makes it.
  sigset_t over, before;
  sigemptyset(&over);
  sigaddset(&over, kOver);
  pthread_sigmask(SIG_BLOCK, &over, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StartInterrupt::~StartInterrupt() {
  over_ = true;
  pthread_kill(thread_.native_handle(), kOver);
  thread_.join();
}

void StartInterrupt::Run() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, kOver}) sigaddset(&signals, number);
  int number = 0;
  if (sigwait(&signals, &number) != 0 || number == kOver) return;
  if (over_) {
    // Taken in the last moment, and not for it.
    pthread_kill(main_thread_, number);
    return;
  }
  LOG(INFO) << "ending before it has started: " << strsignal(number);
  _exit(number == SIGINT ? kExitInterrupted : kExitDone);
}

}  // namespace foreshard
