"""Of each alert: how long its fault has to last, what is just beyond its threshold, and what is at half of it; as cases
for promtool.

    promtool_cases("rules.yaml")
"""

import dataclasses

_STEP_SECONDS = 15
_SERVER = 'job_name="j",shard="0"'
_WORKER = 'job_name="j",instance="w0"'


@dataclasses.dataclass(frozen=True)
class Bound:
    """fault, half: values by series, in promtool's form, each from the start on. seen: seconds until the fault shows, since a
    rate has to have two samples."""
    lasts: int
    fault: dict
    half: dict
    seen: int = 0


def _rates(**by_series):
    return {series: f"0+{each}x120" for series, each in by_series.items()}


def _pushes(result):
    return f'foreshard_pushes_total{{{_SERVER},result="{result}"}}'


def _steps(worker):
    return f'foreshard_steps_total{{job_name="j",instance="{worker}"}}'


def _share(part, whole, beyond, half, of=1000):
    """A rate as a share of another one."""
    return {"fault": _rates(**{part: beyond, whole: of}), "half": _rates(**{part: half, whole: of}), "seen": _STEP_SECONDS}


def _server(name, value, labels=""):
    return {f"foreshard_{name}{{{_SERVER}{labels}}}": f"{value}x120"}


_TRAINING = ',state="training"'
_VERSION = f"foreshard_parameter_version{{{_SERVER}}}"
_OTHER_VERSION = 'foreshard_parameter_version{job_name="j",shard="1"}'

BOUNDS = {
    "ForeshardServerGone": [Bound(
        120, {_VERSION: "0+1x120", **_server("shards", 2)}, {_VERSION: "0+1x120", _OTHER_VERSION: "0+1x120", **_server("shards", 2)})],
    "ForeshardDealingStopped": [Bound(
        300, {_pushes("applied"): "9x120", **_server("workers", 1, _TRAINING)},
        {_pushes("applied"): "0+1x120", **_server("workers", 1, _TRAINING)}, seen=15)],
    "ForeshardNoWorkers": [Bound(
        600, {_pushes("applied"): "9x120", **_server("workers", 0, _TRAINING), **_server("job_finished", 0)}, half, seen=15)
        for half in ({_pushes("applied"): "9x120", **_server("workers", 1, _TRAINING), **_server("job_finished", 0)},
                     {_pushes("applied"): "9x120", **_server("workers", 0, _TRAINING), **_server("job_finished", 1)},
                     {_pushes("applied"): "0+1x120", **_server("workers", 0, _TRAINING), **_server("job_finished", 0)})],
    "ForeshardWorkersExpired": [Bound(300, _server("workers", 1, ',state="expired"'), _server("workers", 0, ',state="expired"'))],
    "ForeshardStraggler": [Bound(600, _rates(**{_steps("w0"): 1000, _steps("w1"): 1000, _steps("w2"): 390}),
                                 _rates(**{_steps("w0"): 1000, _steps("w1"): 1000, _steps("w2"): 800}), seen=15)],
    "ForeshardRoundsWithoutMembers": [Bound(600, **_share(
        f"foreshard_round_absences_total{{{_SERVER}}}", f"foreshard_round_duration_seconds_count{{{_SERVER}}}", 110, 50))],
    "ForeshardStalePushes": [Bound(600, **_share(_pushes("stale"), _pushes("applied"), 120, 52))],
    "ForeshardPushesRejected": [Bound(300, **_share(_pushes("rejected"), _pushes("applied"), 11, 5))],
    "ForeshardGradientsNotFinite": [Bound(300, **_share(f"foreshard_skipped_steps_total{{{_WORKER}}}", _steps("w0"), 55, 25))],
    "ForeshardErrorFeedbackDiverged": [
        Bound(300, {series: "26x120"}, {series: "12.5x120"})
        for series in (f"foreshard_error_feedback_ratio{{{_WORKER}}}", f"foreshard_server_error_ratio{{{_SERVER}}}")],
    "ForeshardByteBudget": [Bound(300, **_share(
        f"foreshard_refusals_total{{{_SERVER}}}", f'foreshard_request_duration_seconds_count{{{_SERVER},method="Exchange"}}', 55, 25))],
    "ForeshardCheckpointOld": [Bound(
        60, {_VERSION: "0+1x120", **_server("checkpoint_age_seconds", 1830)},
        {_VERSION: "0+1x120", **_server("checkpoint_age_seconds", 900)}, seen=15)],
    "ForeshardCheckpointFailed": [Bound(
        0, {f"foreshard_checkpoint_failures_total{{{_SERVER}}}": "0x10 1x110"}, _server("checkpoint_failures_total", 0), seen=11 * 15)],
    "ForeshardJournalFailed": [Bound(0, _server("journal_failed", 1), _server("journal_failed", 0))],
}


def _case(name, values, checks):
    return {"name": name, "interval": f"{_STEP_SECONDS}s",
            "input_series": [{"series": series, "values": text} for series, text in values.items()],
            "promql_expr_test": [{"expr": expression, "eval_time": f"{seconds}s",
                                  "exp_samples": [] if count == 0 else [{"labels": "{}", "value": count}]}
                                 for seconds, expression, count in checks]}


def promtool_cases(rules):
    cases = []
    for alert, bounds in BOUNDS.items():
        firing, any_state = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})', f'count(ALERTS{{alertname="{alert}"}})'
        for bound in bounds:
            fires = bound.seen + bound.lasts
            before = [(fires - _STEP_SECONDS, firing, 0)] if fires >= _STEP_SECONDS else []
            cases.append(_case(f"{alert}, beyond its threshold", bound.fault, [*before, (fires, firing, 1)]))
            cases.append(_case(f"{alert}, at half of it", bound.half, [(1740, any_state, 0)]))
    return {"rule_files": [str(rules)], "evaluation_interval": f"{_STEP_SECONDS}s", "group_eval_order": ["foreshard", "foreshard-alerts"],
            "tests": cases}
