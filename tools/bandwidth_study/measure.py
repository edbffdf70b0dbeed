"""From what was seen of a run, several times a second, to its figures.

A *step* is one batch by each worker: in synchronous training, a round. Its time is a
median over windows of time, so that pauses of the machine and the first steps count for
little. In rounds the servers' own clocks say how long each took; without rounds batches
are counted, which is exact to one batch a window. Bytes are those of all workers together.
"""

import statistics
from dataclasses import dataclass, field

# A window has at least so many seconds, and as many as so many steps take on average.
WINDOW_SECONDS = 2.0
WINDOW_STEPS = 10
_CURVE_POINTS = 400


@dataclass
class Sample:
    """What was seen at one moment; counts since the start of the run."""
    seconds: float
    batches: float = 0           # completed, by all workers
    loss: float = None           # mean over workers of their running averages
    compute_seconds: float = 0   # in all batches
    compute_batches: float = 0
    push_bytes: float = 0
    pull_bytes: float = 0
    push_plain_bytes: float = 0  # what they would be in fp32
    pull_plain_bytes: float = 0
    rounds: float = None         # closed, of all segments; None: not known
    round_seconds: float = None  # from one closed round to the next, together
    links: dict = field(default_factory=dict)  # node: (received, sent)
    phase: int = None            # of two-phase methods


def windows(samples, workers):
    """Seconds a step over consecutive windows. The first, in which the run starts, is left
    out where there are at least three others."""
    steps = (samples[-1].batches - samples[0].batches) / workers
    if steps <= 0:
        return []
    length = max(WINDOW_SECONDS,
                 WINDOW_STEPS * (samples[-1].seconds - samples[0].seconds) / steps)
    found = []
    begin = samples[0]
    for sample in samples[1:]:
        if sample.seconds - begin.seconds < length:
            continue
        if sample.batches > begin.batches:
            found.append(mean_step_seconds(begin, sample, workers))
        begin = sample
    return found[1:] if len(found) > 3 else found


def quantile(values, q):
    """By linear interpolation between the ordered values."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def mean_step_seconds(first, last, workers):
    """Between two samples."""
    if None not in (first.rounds, last.rounds) and last.rounds > first.rounds:
        return (last.round_seconds - first.round_seconds) / (last.rounds - first.rounds)
    return (last.seconds - first.seconds) * workers / (last.batches - first.batches)


def _short_step_seconds(samples, workers):
    """Of a stretch shorter than a window: by the servers' clocks as soon as they are known."""
    known = next((sample for sample in samples if sample.rounds), samples[0])
    if None in (known.rounds, samples[-1].rounds) or known.rounds >= samples[-1].rounds:
        known = samples[0]
    return mean_step_seconds(known, samples[-1], workers)


def median_ratio(samples):
    """How many times fewer bytes than in fp32 moved between one sample and the next, so
    that a single round in full precision among compressed ones does not count."""
    def moved(sample):
        return sample.push_bytes + sample.pull_bytes

    def plain(sample):
        return sample.push_plain_bytes + sample.pull_plain_bytes

    found = [(plain(b) - plain(a)) / (moved(b) - moved(a))
             for a, b in zip(samples, samples[1:]) if moved(b) > moved(a)]
    return statistics.median(found) if found else None


def stretch(samples, workers, phase=None):
    """The figures of a stretch of samples; None where it has no whole step."""
    first, last = samples[0], samples[-1]
    steps = (last.batches - first.batches) / workers
    seconds = last.seconds - first.seconds
    if steps < 1 or seconds <= 0:
        return None
    times = windows(samples, workers) or [_short_step_seconds(samples, workers)]
    computed = last.compute_batches - first.compute_batches

    def a_step(name):
        return (getattr(last, name) - getattr(first, name)) / steps

    # The start is no moment at which batches and links were looked at together: workers of
    # asynchronous methods do not wait for each other.
    origin = samples[1] if first.seconds == 0 and len(samples) > 2 else first
    linked_steps = (last.batches - origin.batches) / workers
    if linked_steps < 1:
        origin, linked_steps = first, steps
    links = {}
    for node, (received, sent) in last.links.items():
        before = origin.links.get(node, (0, 0))
        links[node] = {"received": (received - before[0]) / linked_steps,
                       "sent": (sent - before[1]) / linked_steps}
    bytes_moved = a_step("push_bytes") + a_step("pull_bytes")
    plain = a_step("push_plain_bytes") + a_step("pull_plain_bytes")
    return {
        "phase": phase,
        "from_step": round(first.batches / workers),
        "steps": round(steps),
        "seconds": seconds,
        "step_seconds": statistics.median(times),
        "step_seconds_p10": quantile(times, 0.1),
        "step_seconds_p90": quantile(times, 0.9),
        "step_seconds_mean": seconds / steps,
        "compute_seconds": (last.compute_seconds - first.compute_seconds) / computed
                           if computed > 0 else None,
        "push_bytes_per_step": a_step("push_bytes"),
        "pull_bytes_per_step": a_step("pull_bytes"),
        "bytes_ratio": plain / bytes_moved if bytes_moved > 0 else None,
        "bytes_ratio_median": median_ratio(samples),
        "link_bytes_per_step": links,
        # Both ways together, and the fuller way alone.
        "busiest_link_bytes_per_step": max(
            (link["received"] + link["sent"] for link in links.values()), default=0),
        "busiest_way_bytes_per_step": max(
            (max(link["received"], link["sent"]) for link in links.values()), default=0),
    }


def stretches(samples, workers):
    """The stretches of a run by phase, in order; one where it has no phases. Samples
    between which the phase changed belong to neither."""
    found = []
    begin = 0
    for i in range(1, len(samples) + 1):
        if i < len(samples) and samples[i].phase == samples[begin].phase:
            continue
        part = stretch(samples[begin:i], workers, samples[begin].phase)
        if part is not None:
            found.append(part)
        begin = i
    return found


def curve(samples, workers):
    """{"seconds": [...], "step": [...], "loss": [...]}, thinned."""
    seen = [sample for sample in samples if sample.loss is not None and sample.batches > 0]
    stride = max(1, -(-len(seen) // _CURVE_POINTS))
    kept = seen[::stride]
    if seen and kept[-1] is not seen[-1]:
        kept.append(seen[-1])
    return {"seconds": [round(sample.seconds, 3) for sample in kept],
            "step": [round(sample.batches / workers, 1) for sample in kept],
            "loss": [sample.loss for sample in kept]}


def time_to_loss(curve_of_run, target):
    """Seconds until the training loss is at or below the target; None: never."""
    for seconds, loss in zip(curve_of_run["seconds"], curve_of_run["loss"]):
        if loss <= target:
            return seconds
    return None


def time_to_accuracy(evaluations, target):
    """Seconds until the parameters that were first evaluated at or above the target."""
    reached = [evaluation["seconds"] for evaluation in evaluations
               if evaluation["parameters"] == "master" and evaluation["accuracy"] >= target]
    return min(reached, default=None)
