// foreshard top: a running fleet at a glance, again and again.
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/core/exit_code.h"
#include "common/net/admin_client.h"
#include "common/net/credential_flags.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/live_text.h"
#include "tools/top_text.h"

namespace foreshard {
namespace {

// A line below the figures says which keys there are.
constexpr size_t kKeyRows = 2;
constexpr absl::Duration kSoon = absl::Milliseconds(100);

struct TopFlags {
  std::string servers;
  CredentialFlags credentials;
  double interval_seconds = 2;
  double timeout_seconds = 2;
  std::string sort = "rate";
  bool once = false;
};

// Keys of a terminal one by one, without a line feed and unseen, while it lives; nothing where
// standard input is no terminal, or not ours.
class Keys {
 public:
  Keys() {
    if (isatty(STDIN_FILENO) == 0 || tcgetpgrp(STDIN_FILENO) != getpgrp() || tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios mode = before_;
    mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    mode.c_cc[VMIN] = 0;
    mode.c_cc[VTIME] = 0;
    there_ = tcsetattr(STDIN_FILENO, TCSANOW, &mode) == 0;
  }
  ~Keys() {
    if (there_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  bool there() const { return there_; }

  // The next key within this time; 0: none. A signal ends the wait.
  char Next(absl::Duration within) {
    pollfd input = {.fd = there_ ? STDIN_FILENO : -1, .events = POLLIN};
    if (poll(&input, 1, static_cast<int>(absl::ToInt64Milliseconds(within))) <= 0) return 0;
    char key = 0;
    if (read(STDIN_FILENO, &key, 1) == 1) return key;
    // The terminal has gone.
    tcsetattr(STDIN_FILENO, TCSANOW, &before_);
    there_ = false;
    return 0;
  }

 private:
  bool there_ = false;
  termios before_ = {};
};

TopOrder OrderOf(const std::string& name) {
  const std::vector<std::string>& names = TopOrderNames();
  return static_cast<TopOrder>(std::find(names.begin(), names.end(), name) - names.begin());
}

int Top(const TopFlags& flags) {
  const absl::StatusOr<std::unique_ptr<AdminClient>> connected = AdminClient::Connect(flags.servers, flags.credentials);
  if (!connected.ok()) return Fail("top", connected.status());
  AdminClient& admin = **connected;
  TopView view(admin.addresses());
  TopOrder order = OrderOf(flags.sort);
  const absl::Time start = absl::Now();
  const Interrupt interrupt;
  LiveText text(stdout);
  std::optional<Keys> keys;
  if (text.terminal() && !flags.once) keys.emplace();

  const auto draw = [&] {
    if (!text.terminal() || flags.once) {
      std::printf("%s%s", view.Text(order, 0).c_str(), flags.once ? "" : "\n");
      std::fflush(stdout);
      return;
    }
    const size_t rows = text.rows() > kKeyRows ? text.rows() - kKeyRows : 1;
    std::vector<std::string> lines = absl::StrSplit(view.Text(order, rows), '\n');
    if (lines.size() > rows) lines.resize(rows);
    const std::string& sorted = TopOrderNames()[static_cast<size_t>(order)];
    lines.push_back(keys->there() ? absl::StrCat("q: quit   s: sort by the next of ", absl::StrJoin(TopOrderNames(), ", "),
                                                 " (now: ", sorted, ")")
                                  : absl::StrCat("sorted by ", sorted, "; Ctrl-C ends"));
    text.Draw(lines);
  };

  for (int looks = 1; !interrupt.requested(); ++looks) {
    const absl::Time next = absl::Now() + absl::Seconds(flags.interval_seconds);
    const std::vector<absl::StatusOr<v1::StatusReply>> replies = admin.GetStatus(absl::Seconds(flags.timeout_seconds));
    if (interrupt.requested()) break;
    view.Add(absl::ToDoubleSeconds(absl::Now() - start), replies);
    if (flags.once && looks == 2) {
      draw();
      int exit_code = kExitDone;
      for (const absl::StatusOr<v1::StatusReply>& reply : replies) {
        if (!reply.ok()) exit_code = Fail("top", absl::Status(absl::StatusCode::kUnavailable, reply.status().message()));
      }
      return exit_code;
    }
    if (!flags.once) draw();
    if (std::ferror(stdout) != 0) return kExitFailed;
    while (!interrupt.requested() && absl::Now() < next) {
      const absl::Duration left = std::min(next - absl::Now(), kSoon);
      if (!keys.has_value()) {
        absl::SleepFor(left);
        continue;
      }
      const char key = keys->Next(std::max(left, absl::Milliseconds(1)));
      if (key == 'q' || key == 'Q') return kExitDone;
      if (key == 's' || key == 'S') {
        order = static_cast<TopOrder>((static_cast<size_t>(order) + 1) % TopOrderNames().size());
        draw();
      }
    }
  }
  return kExitInterrupted;
}

}  // namespace

void AddTopCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<TopFlags>();
  CLI::App* top = program.add_subcommand("top", "Watch a running fleet: who trains, how fast, how stale");
  top->add_option("--servers", flags->servers, "The servers, as in host1:7001,host2:7001")
      ->required()
      ->type_name("ADDRESSES");
  top->add_option("--interval", flags->interval_seconds, "Seconds from one look to the next")
      ->check(NumberAboveZero())
      ->capture_default_str();
  top->add_option("--sort", flags->sort, "Order of the workers: by rate, staleness, lag or loss, the largest first, or by worker")
      ->check(CLI::IsMember(TopOrderNames()))
      ->capture_default_str();
  top->add_flag("--once", flags->once, "Look twice, an interval apart, print the figures once and end");
  top->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for an answer")
      ->check(NumberAboveZero())
      ->capture_default_str();
  flags->credentials.AddTo(*top);
  top->footer(
      "On a terminal the figures are redrawn in place; q ends, s sorts by the next column. Elsewhere they are printed at "
      "each look. A server that does not answer is shown as away, and asked again. Staleness is the mean over the run of "
      "updates between a push's parameters and itself, lag the same of late, both in updates; compression is fp32 over what "
      "was pushed; kept back is error feedback over what is pushed.\n"
      "Exit status: 0 q, or with --once all servers answered, 1 one did not, 2 bad arguments, 130 Ctrl-C.");
  top->callback([flags, exit_code] { *exit_code = Top(*flags); });
}

}  // namespace foreshard
