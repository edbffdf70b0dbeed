// What exists, as data that every program can check a JobSpec against without
// linking the code behind it: rules (made in server/update_rules), codecs
// (kernels/codecs), models (worker/models). A test holds each registry to it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace foreshard {

enum class Setting : uint8_t { kUnused, kOptional, kRequired };

struct RuleTraits {
  std::string_view name;
  bool synchronous = false;    // updates once a round, with the workers' mean
  // Asynchronous, unless update.synchronous makes it rounds.
  bool optional_rounds = false;
  // Rounds are compressed both ways after a warm-up (JobSpec.apmsqueeze).
  bool squeezes = false;
  // Workers step on parameters of their own and exchange differences to the center:
  // local_steps, elasticity.
  bool elastic = false;
  Setting momentum = Setting::kUnused;
  Setting weight_decay = Setting::kOptional;
  Setting delay_compensation = Setting::kUnused;  // dc_adaptive, dc_lambda, dc_decay
  Setting moments = Setting::kUnused;  // beta1, beta2, epsilon, bias_correction
  Setting lag = Setting::kUnused;
  bool worker_half = false;    // momentum and weight decay live at the worker
  bool needs_held = false;     // needs all of x_i, not only a sample
  bool lookahead = false;      // what it sends to workers is not the master's parameters
  // The server's floats per element beyond theta: fixed + per_worker * N.
  uint32_t state_fixed = 0;
  uint32_t state_per_worker = 0;
  uint32_t state_bytes = 0;  // a segment, whatever its length; 0: a few hundred
};

struct CodecTraits {
  std::string_view name;  // as in the JobSpec
  // Of replies: parameters as they are, else the difference to those that the worker
  // holds, of which the server keeps a copy.
  bool replies_carry_values = false;
  // Whether it has this setting of CodecSettings.
  bool fraction = false;
  bool bits = false;
};

absl::Span<const RuleTraits> Rules();
absl::Span<const CodecTraits> Codecs();
absl::Span<const std::string_view> Models();
// Models that are formulas: they have a given number of elements, and read no data.
bool IsAnalytic(std::string_view model);
// Models whose data are text.
bool ReadsText(std::string_view model);
// Models whose layers have the widths that a job says.
bool HasWidths(std::string_view model);

// Of data.format "cifar10" and "cifar100"; 0 of any other.
uint32_t CifarClasses(std::string_view format);

// nullptr when there is none of that name.
const RuleTraits* FindRule(std::string_view name);
const CodecTraits* FindCodecTraits(std::string_view name);

// Whether one of the two codecs has this setting.
bool HasCodecSetting(std::string_view push, std::string_view reply, bool CodecTraits::*setting);

}  // namespace foreshard
