#include "common/core/catalogue.h"

namespace foreshard {
namespace {

constexpr RuleTraits kRules[] = {
    {.name = "asgd"},
    {.name = "nag_asgd", .momentum = Setting::kRequired, .lookahead = true, .state_fixed = 1},
    {.name = "multi_asgd", .momentum = Setting::kRequired, .state_per_worker = 1},
    {.name = "dana_zero",
     .momentum = Setting::kRequired,
     .lookahead = true,
     .state_fixed = 1,
     .state_per_worker = 1},
    {.name = "dana_slim", .momentum = Setting::kRequired, .worker_half = true},
    {.name = "lwp",
     .momentum = Setting::kRequired,
     .lag = Setting::kOptional,
     .lookahead = true,
     .state_fixed = 1},
    {.name = "staleness_aware"},
    {.name = "dc_asgd",
     .delay_compensation = Setting::kOptional,
     .needs_held = true,
     .state_fixed = 1},
    {.name = "dana_dc",
     .momentum = Setting::kRequired,
     .delay_compensation = Setting::kOptional,
     .needs_held = true,
     .lookahead = true,
     .state_fixed = 2,
     .state_per_worker = 1},
    {.name = "gap_aware", .momentum = Setting::kRequired, .needs_held = true, .state_fixed = 2},
    {.name = "dana_ga",
     .momentum = Setting::kRequired,
     .needs_held = true,
     .lookahead = true,
     .state_fixed = 2,
     .state_per_worker = 1},
    {.name = "adam",
     .optional_rounds = true,
     .moments = Setting::kOptional,
     .state_fixed = 2},
    {.name = "smega2", .momentum = Setting::kRequired, .lookahead = true, .state_fixed = 2},
    {.name = "ormo_da", .momentum = Setting::kRequired, .state_fixed = 1},
    {.name = "yellow_fin", .lookahead = true, .state_fixed = 2, .state_bytes = 72 << 10},
    {.name = "dana_rate_aware",
     .momentum = Setting::kRequired,
     .lookahead = true,
     .state_fixed = 9,
     .state_per_worker = 1},
    {.name = "easgd", .optional_rounds = true, .elastic = true},
    {.name = "eamsgd", .optional_rounds = true, .elastic = true, .momentum = Setting::kRequired},
    {.name = "ssgd", .synchronous = true, .momentum = Setting::kOptional, .state_fixed = 1},
    {.name = "apmsqueeze",
     .synchronous = true,
     .squeezes = true,
     .moments = Setting::kOptional,
     .state_fixed = 3},
};

constexpr CodecTraits kCodecs[] = {
    {.name = "none", .replies_carry_values = true},
    {.name = "fp16", .replies_carry_values = true},
    {.name = "bf16", .replies_carry_values = true},
    {.name = "one_bit"},
    {.name = "one_bit_mean"},
    {.name = "top_k", .fraction = true},
    {.name = "random_k", .fraction = true},
    {.name = "quantized", .bits = true},
};

constexpr std::string_view kModels[] = {"cnn",      "mlp",      "quadratic", "synthetic",
                                        "resnet18", "resnet20", "resnet50",  "wrn16_4",
                                        "bert_tiny", "bert_base", "bert_large"};

}  // namespace

absl::Span<const RuleTraits> Rules() { return kRules; }
absl::Span<const CodecTraits> Codecs() { return kCodecs; }
absl::Span<const std::string_view> Models() { return kModels; }
bool IsAnalytic(std::string_view model) { return model == "quadratic" || model == "synthetic"; }
bool ReadsText(std::string_view model) {
  return model == "bert_tiny" || model == "bert_base" || model == "bert_large";
}
bool HasWidths(std::string_view model) { return model == "cnn" || model == "mlp"; }

uint32_t CifarClasses(std::string_view format) {
  return format == "cifar10" ? 10 : format == "cifar100" ? 100 : 0;
}

const RuleTraits* FindRule(std::string_view name) {
  for (const RuleTraits& rule : kRules) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

const CodecTraits* FindCodecTraits(std::string_view name) {
  for (const CodecTraits& codec : kCodecs) {
    if (codec.name == name) return &codec;
  }
  return nullptr;
}

bool HasCodecSetting(std::string_view push, std::string_view reply, bool CodecTraits::*setting) {
  for (const std::string_view name : {push, reply}) {
    const CodecTraits* codec = FindCodecTraits(name);
    if (codec != nullptr && codec->*setting) return true;
  }
  return false;
}

}  // namespace foreshard
