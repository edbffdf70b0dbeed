// Ctrl-C and its like as something a loop can ask about.
//
//   Interrupt interrupt;
//   while (!interrupt.requested()) ...
#pragma once

#include <signal.h>

#include <vector>

namespace foreshard {

// Notes SIGINT, SIGTERM and SIGHUP while it lives, then restores what was there.
// One at a time in a process.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const { return count() > 0; }
  // How often it was asked for: a second time means "now".
  int count() const;
  // The last signal, or 0.
  int signal() const;

 private:
  std::vector<struct sigaction> before_;
};

}  // namespace foreshard
