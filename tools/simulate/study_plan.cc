#include "tools/simulate/study_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace foreshard {
namespace {

// Best first; of what a user could not tell apart, the smaller rate.
bool IsBetter(const SearchCandidate& a, const SearchCandidate& b) {
  if (a.diverged != b.diverged) return !a.diverged;
  if (a.accuracy != b.accuracy) return a.accuracy > b.accuracy;
  if (a.loss != b.loss && std::isfinite(a.loss) && std::isfinite(b.loss)) return a.loss < b.loss;
  return a.learning_rate < b.learning_rate;
}

size_t Kept(size_t candidates, double keep) {
  const auto kept = static_cast<size_t>(std::ceil(keep * static_cast<double>(candidates) - 1e-9));
  return std::clamp<size_t>(kept, 1, candidates);
}

bool IsComplete(const std::vector<SearchCandidate>& rung) {
  return std::all_of(rung.begin(), rung.end(), [](const auto& candidate) { return candidate.done; });
}

std::optional<float> LargestStable(const std::vector<SearchCandidate>& rung) {
  double best = 0;
  for (const SearchCandidate& candidate : rung) {
    if (!candidate.diverged) best = std::max(best, candidate.accuracy);
  }
  std::optional<float> largest;
  for (const SearchCandidate& candidate : rung) {
    // Exactly nine tenths are enough, whatever the product's rounding.
    if (!candidate.diverged && candidate.accuracy >= StudyPlan::kStablePart * best - 1e-12) {
      largest = candidate.learning_rate;
    }
  }
  return largest;
}

}  // namespace

SearchOutcome StudyPlan::Search(size_t cell, const RunResults& results) const {
  SearchOutcome outcome;
  std::vector<float> rates = study_.LearningRates(cell);
  const size_t rungs = study_.spec().search().epochs_size();
  for (size_t r = 0; r < rungs; ++r) {
    std::vector<SearchCandidate> rung;
    for (float rate : rates) {
      SearchCandidate candidate = {.learning_rate = rate};
      if (auto found = results.find(study_.SearchKey(cell, r, rate)); found != results.end()) {
        candidate.done = true;
        candidate.diverged = found->second.diverged;
        candidate.accuracy = found->second.final_accuracy;
        candidate.loss = found->second.final_loss;
      }
      rung.push_back(candidate);
    }
    outcome.rungs.push_back(rung);
    if (!IsComplete(rung)) return outcome;
    if (r == 0) outcome.largest_stable = LargestStable(rung);
    std::sort(rung.begin(), rung.end(), IsBetter);
    outcome.learning_rate = rung.front().learning_rate;
    outcome.accuracy = rung.front().accuracy;
    outcome.diverged = rung.front().diverged;
    rates.clear();
    const size_t kept = Kept(rung.size(), study_.spec().search().keep());
    for (size_t i = 0; i < kept; ++i) rates.push_back(rung[i].learning_rate);
    std::sort(rates.begin(), rates.end());
  }
  outcome.complete = true;
  return outcome;
}

bool StudyPlan::Failed(size_t cell, const RunResults& results,
                       const std::set<std::string>& failed) const {
  if (!study_.has_search() || failed.empty()) return false;
  const SearchOutcome search = Search(cell, results);
  for (size_t r = 0; r < search.rungs.size(); ++r) {
    for (const SearchCandidate& candidate : search.rungs[r]) {
      if (failed.contains(study_.SearchKey(cell, r, candidate.learning_rate))) return true;
    }
  }
  return false;
}

std::vector<size_t> StudyPlan::Finalists(const RunResults& results,
                                         const std::set<std::string>& failed) const {
  std::vector<size_t> finalists;
  const uint32_t places = study_.spec().finalists();
  for (const std::vector<size_t>& group : study_.Groups()) {
    struct Rival {
      size_t cell;
      bool diverged;
      double accuracy;
    };
    std::vector<Rival> rivals;
    bool waiting = false;
    for (size_t cell : group) {
      if (!study_.has_search()) {
        finalists.push_back(cell);
        continue;
      }
      if (Failed(cell, results, failed)) continue;
      const SearchOutcome search = Search(cell, results);
      const bool reference = study_.spec().rules(study_.cells()[cell].variant).reference();
      if (reference || places == 0) {
        if (search.complete) finalists.push_back(cell);
        continue;
      }
      waiting = waiting || !search.complete;
      rivals.push_back({cell, search.diverged, search.accuracy});
    }
    if (waiting) continue;
    // Of equals, the one that the study names first.
    std::stable_sort(rivals.begin(), rivals.end(), [](const Rival& a, const Rival& b) {
      if (a.diverged != b.diverged) return !a.diverged;
      return a.accuracy > b.accuracy;
    });
    for (size_t i = 0; i < std::min<size_t>(places, rivals.size()); ++i) {
      finalists.push_back(rivals[i].cell);
    }
  }
  std::sort(finalists.begin(), finalists.end());
  return finalists;
}

std::vector<StudyRun> StudyPlan::FullRuns(const RunResults& results,
                                          const std::set<std::string>& failed) const {
  std::vector<StudyRun> runs;
  for (size_t cell : Finalists(results, failed)) {
    const float rate = study_.has_search() ? Search(cell, results).learning_rate : 0;
    for (uint64_t seed : study_.spec().seeds()) runs.push_back(study_.FinalRun(cell, seed, rate));
  }
  return runs;
}

std::vector<StudyRun> StudyPlan::Ready(const RunResults& results,
                                       const std::set<std::string>& failed) const {
  std::vector<StudyRun> ready;
  if (study_.has_search()) {
    for (size_t cell = 0; cell < study_.cells().size(); ++cell) {
      const SearchOutcome search = Search(cell, results);
      if (search.complete || Failed(cell, results, failed)) continue;
      for (const SearchCandidate& candidate : search.rungs.back()) {
        if (candidate.done) continue;
        ready.push_back(study_.SearchRun(cell, search.rungs.size() - 1, candidate.learning_rate));
      }
    }
    std::stable_sort(ready.begin(), ready.end(),
                     [](const StudyRun& a, const StudyRun& b) { return a.rung > b.rung; });
  }
  std::vector<StudyRun> full;
  for (StudyRun& run : FullRuns(results, failed)) {
    if (!results.contains(run.key) && !failed.contains(run.key)) full.push_back(std::move(run));
  }
  const auto& seeds = study_.spec().seeds();
  std::stable_sort(full.begin(), full.end(), [&](const StudyRun& a, const StudyRun& b) {
    if (a.job.training().epochs() != b.job.training().epochs()) {
      return a.job.training().epochs() > b.job.training().epochs();
    }
    return std::find(seeds.begin(), seeds.end(), a.job.seed()) <
           std::find(seeds.begin(), seeds.end(), b.job.seed());
  });
  ready.insert(ready.end(), std::make_move_iterator(full.begin()), std::make_move_iterator(full.end()));
  return ready;
}

StudyTotals StudyPlan::Totals() const {
  StudyTotals totals;
  const v1::SearchSpec& search = study_.spec().search();
  for (const std::vector<size_t>& group : study_.Groups()) {
    uint64_t places = study_.spec().finalists();
    if (places == 0) places = group.size();
    for (size_t cell : group) {
      size_t candidates = study_.has_search() ? study_.LearningRates(cell).size() : 0;
      for (int r = 0; r < search.epochs_size() && candidates > 0; ++r) {
        totals.search_runs += candidates;
        totals.search_epochs += candidates * search.epochs(r);
        candidates = Kept(candidates, search.keep());
      }
      const bool reference = study_.spec().rules(study_.cells()[cell].variant).reference();
      if (!reference && places == 0) continue;
      if (!reference) --places;
      const uint64_t seeds = study_.spec().seeds_size();
      totals.full_runs += seeds;
      totals.full_epochs += seeds * study_.FinalRun(cell, 0, 0).job.training().epochs();
    }
  }
  return totals;
}

}  // namespace foreshard
