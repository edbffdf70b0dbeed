#include "tools/interrupt.h"

#include <atomic>

namespace foreshard {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Signal handlers reach nothing but globals.
std::atomic<int> interrupts = 0;
std::atomic<int> last_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void Note(int signal) {
  last_signal = signal;
  ++interrupts;
}

}  // namespace

Interrupt::Interrupt() {
  interrupts = 0;
  last_signal = 0;
  for (int signal : kSignals) {
    struct sigaction action = {};
    action.sa_handler = Note;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    struct sigaction before = {};
    sigaction(signal, &action, &before);
    // nohup asks for hang-ups to be ignored.
    if (signal == SIGHUP && before.sa_handler == SIG_IGN) sigaction(signal, &before, nullptr);
    before_.push_back(before);
  }
}

Interrupt::~Interrupt() {
  for (size_t i = 0; i < before_.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

int Interrupt::count() const { return interrupts; }

int Interrupt::signal() const { return last_signal; }

}  // namespace foreshard
