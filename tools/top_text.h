// What `foreshard top` shows: a fleet at a glance, from one look at its servers after the other.
// No clock, no network: times are given.
//
//   TopView view({"alpha:7000", "beta:7000"});
//   view.Add(12.5, admin.GetStatus(timeout));
//   std::string text = view.Text(TopOrder::kRate, 40);
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/fleet_figures.h"
#include "foreshard/v1/admin.pb.h"

namespace foreshard {

// By what workers are sorted: the largest first, but kWorker by slot.
enum class TopOrder { kRate, kStaleness, kLag, kLoss, kWorker };

// In the order of TopOrder: "rate", "staleness", "lag", "loss", "worker".
const std::vector<std::string>& TopOrderNames();

// Thread-compatible.
class TopView {
 public:
  explicit TopView(std::vector<std::string> addresses) : servers_(addresses.size()), addresses_(std::move(addresses)) {}

  // `replies[i]`: what the server at address i answered at this second (rising). Of a server that does not
  // answer, the last answer stays, with its age.
  void Add(double seconds, const std::vector<absl::StatusOr<v1::StatusReply>>& replies);

  // Lines of plain text: the job, its servers, and its workers, as many as `rows` lines have room for
  // (0: all). Rates are over the last ten seconds seen; of a single look, as workers report them.
  std::string Text(TopOrder order, size_t rows) const;

 private:
  struct Server {
    std::optional<v1::StatusReply> last;
    double seconds = 0;    // when it answered last
    absl::Status status;   // of the newest look
  };
  struct Look {
    double seconds;
    std::string starts;  // which servers answered, and which start of each
    RunFigures figures;
    std::vector<uint64_t> applied;  // by server
  };

  // What the figure gained a second over the window; nullopt before two looks at the same servers.
  std::optional<double> PerSecond(const std::function<std::optional<uint64_t>(const Look&)>& figure) const;
  double WorkerRate(const WorkerFigure& worker) const;
  std::string Head() const;
  std::vector<std::vector<std::string>> ServerRows() const;
  std::vector<std::vector<std::string>> WorkerRows(TopOrder order) const;

  std::vector<Server> servers_;
  const std::vector<std::string> addresses_;
  std::deque<Look> looks_;  // over the window, oldest first
};

}  // namespace foreshard
