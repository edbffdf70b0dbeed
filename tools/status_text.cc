#include "tools/status_text.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/net/fleet_figures.h"
#include "tools/progress.h"

namespace foreshard {
namespace {

// What somebody who finds the job standing still wants to know.
std::string WaitingFor(const std::vector<std::string>& addresses,
                       const std::vector<absl::StatusOr<v1::StatusReply>>& replies) {
  std::vector<std::string> reasons;
  for (size_t i = 0; i < replies.size(); ++i) {
    if (!replies[i].ok()) {
      reasons.push_back(absl::StrCat("server ", addresses[i], ", which does not answer"));
    } else if (!replies[i]->waiting_for().empty()) {
      reasons.push_back(
          absl::StrCat(replies[i]->waiting_for(), " (shard ", replies[i]->shard(), ")"));
    }
  }
  return reasons.empty() ? "nothing" : absl::StrJoin(reasons, "; ");
}

// Shards that the servers speak of and none of them is.
std::string MissingShards(const std::vector<v1::StatusReply>& servers) {
  std::vector<std::string> missing;
  uint32_t shards = 0;
  for (const v1::StatusReply& server : servers) shards = std::max(shards, server.shards());
  for (uint32_t shard = 0; shard < shards; ++shard) {
    const bool there = std::any_of(servers.begin(), servers.end(),
                                   [&](const auto& server) { return server.shard() == shard; });
    if (!there) missing.push_back(absl::StrCat(shard));
  }
  return absl::StrJoin(missing, ", ");
}

// What a server could go on with; "" for one that keeps nothing.
std::string StateLine(const v1::StatusReply& server) {
  if (server.state_directory().empty()) return "";
  std::string line = absl::StrCat("shard ", server.shard(), " keeps its state: journal ", server.journal());
  if (server.checkpoint_age_seconds() >= 0) {
    absl::StrAppend(&line, ", newest checkpoint ", FormatDuration(server.checkpoint_age_seconds()), " ago at step ",
                    server.checkpoint_step());
  } else {
    absl::StrAppend(&line, ", no checkpoint yet");
  }
  if (!server.restored().empty()) absl::StrAppend(&line, "; it went on with ", server.restored());
  return line + "\n";
}

}  // namespace

std::string AlignColumns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string PlainText(std::string text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // In UTF-8 the controls from 0x80 on are 0xc2 and a byte below 0xa0.
    const bool high = byte >= 0x80 && byte < 0xa0 && i > 0 && static_cast<unsigned char>(text[i - 1]) == 0xc2;
    if ((byte < 0x20 && byte != '\n') || byte == 0x7f || high) text[i] = '?';
  }
  return text;
}

std::string StatusText(const std::vector<std::string>& addresses,
                       const std::vector<absl::StatusOr<v1::StatusReply>>& replies) {
  std::vector<v1::StatusReply> servers;
  const v1::StatusReply* lead = nullptr;
  for (const absl::StatusOr<v1::StatusReply>& reply : replies) {
    if (!reply.ok()) continue;
    servers.push_back(*reply);
    if (reply->lead()) lead = &*reply;
  }
  const RunFigures figures = Combine(servers);
  std::string text = absl::StrCat("waiting for: ", WaitingFor(addresses, replies), "\n");
  if (lead != nullptr) {
    absl::StrAppendFormat(&text, "job %s, %s: %s", lead->job_name(), lead->rule(), lead->state());
    if (lead->total_tickets() > 0) {
      absl::StrAppendFormat(&text, "; epoch %.1f of %d (%.1f %%), %d updates, learning rate %.4g",
                            figures.epoch_position(), figures.epochs, 100 * figures.progress(),
                            figures.updates, figures.learning_rate);
      if (lead->round_members() > 0) {
        absl::StrAppendFormat(&text, "; round %d of %d workers%s", lead->round(), lead->round_members(),
                              lead->compressed_phase() ? ", compressed" : "");
        if (lead->compressed_phase() && lead->server_error_ratio() > 0) {
          absl::StrAppendFormat(&text, " (servers keep back %.2g times the momentum)",
                                lead->server_error_ratio());
        }
        if (lead->variance_stability() > 0) {
          absl::StrAppendFormat(&text, ", variance %.1f %% stable", 100 * lead->variance_stability());
        }
      }
      if (figures.skipped_batches > 0) absl::StrAppend(&text, "; ", FormatSkipped(figures));
      if (figures.discarded_batches > 0) absl::StrAppend(&text, "; ", FormatDiscarded(figures));
    }
    if (figures.finished) {
      absl::StrAppend(&text, "; finished",
                      figures.finish_reason.empty() ? "" : ": " + figures.finish_reason);
    }
    absl::StrAppend(&text, "\n");
    for (auto at = figures.evaluations.rbegin(); at != figures.evaluations.rend(); ++at) {
      absl::StrAppendFormat(&text, "test accuracy %.2f %%, loss %.4f (%s parameters, epoch %d)\n",
                            100 * at->accuracy, at->loss, at->parameters, at->epoch);
      break;
    }
  } else if (!servers.empty()) {
    absl::StrAppend(&text, "the lead (shard 0) is not among the servers that answered: no progress "
                           "and no list of workers\n");
  }
  if (const std::string missing = MissingShards(servers); !missing.empty()) {
    absl::StrAppend(&text, "not asked or silent: shard ", missing, "\n");
  }

  std::vector<std::vector<std::string>> rows = {{"", "server", "shard", "state", "applied",
                                                 "duplicate", "stale", "rejected", "skipped",
                                                 "staleness", "max", "pushed", "up"}};
  for (size_t i = 0; i < replies.size(); ++i) {
    if (!replies[i].ok()) {
      rows.push_back({"", addresses[i], "?", "does not answer"});
      continue;
    }
    const v1::StatusReply& server = *replies[i];
    const double mean =
        server.pushes_applied() == 0 ? 0 : server.staleness_sum() / server.pushes_applied();
    rows.push_back({"", addresses[i], absl::StrCat(server.shard(), " of ", server.shards()),
                    server.state(), absl::StrCat(server.pushes_applied()),
                    absl::StrCat(server.pushes_duplicate()), absl::StrCat(server.pushes_stale()),
                    absl::StrCat(server.pushes_rejected()), absl::StrCat(server.pushes_skipped()),
                    absl::StrFormat("%.2f", mean), absl::StrCat(server.staleness_max()),
                    FormatBytes(server.push_bytes()), FormatDuration(server.uptime_seconds())});
  }
  absl::StrAppend(&text, "\n", AlignColumns(rows));
  for (const v1::StatusReply& server : servers) absl::StrAppend(&text, StateLine(server));
  if (figures.workers.empty()) return PlainText(std::move(text));

  rows = {{"", "worker", "name", "device", "state", "seen", "pushes", "staleness", "max",
           "examples", "examples/s", "loss"}};
  for (const WorkerFigure& worker : figures.workers) {
    rows.push_back({"", absl::StrCat(worker.id), worker.name, worker.device,
                    worker.state.empty() ? "?" : worker.state,
                    worker.state.empty() ? "?" : absl::StrFormat("%.1f s ago", worker.seconds_since_seen),
                    absl::StrCat(worker.pushes), absl::StrFormat("%.2f", worker.staleness_mean),
                    absl::StrCat(worker.staleness_max), absl::StrCat(worker.examples),
                    FormatRate(worker.examples_per_second),
                    worker.steps == 0 ? "-" : absl::StrFormat("%.4f", worker.loss)});
  }
  absl::StrAppend(&text, "\n", AlignColumns(rows));
  for (const WorkerFigure& worker : figures.workers) {
    if (worker.waiting_for.empty()) continue;
    absl::StrAppend(&text, "worker ", worker.id, " waits for ", worker.waiting_for, "\n");
  }
  return PlainText(std::move(text));
}

}  // namespace foreshard
