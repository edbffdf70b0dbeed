"""Rates of links, and what follows from them by arithmetic.

A step of full precision takes `step_seconds` where the network costs nothing, and moves
`link_bytes` over the busiest link, received and sent together: a round pushes first and
replies then, so that one direction waits for the other. At a rate of r bit/s it takes
about step_seconds + 8 * link_bytes / r.
"""

import re

# What tc and the daemons' time-outs bear.
LOWEST = 100e3
HIGHEST = 100e9

# Full precision spends this part of its step on the wire at the first automatic rate;
# the second is ten times as fast.
WIRE_SHARE = 0.96
FASTER = 10

_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def parse_rate(text):
    """Bits a second of "10mbit", "1.5gbit"; ValueError says what is wrong."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)", text.strip().lower())
    if not match or match.group(2) not in _UNITS:
        raise ValueError(f"'{text}' is no rate; write it as 500kbit, 10mbit or 1.5gbit")
    rate = float(match.group(1)) * _UNITS[match.group(2)]
    if not LOWEST <= rate <= HIGHEST:
        raise ValueError(
            f"'{text}' is not between {format_rate(LOWEST)} and {format_rate(HIGHEST)}")
    return round(rate)


def parse_rates(text):
    """"auto", or a list with commas of different rates; the fastest comes first."""
    if text.strip().lower() == "auto":
        return "auto"
    rates = [parse_rate(part) for part in text.split(",")]
    if len(set(rates)) != len(rates):
        raise ValueError(f"'{text}' names a rate twice")
    return sorted(rates, reverse=True)


def format_rate(rate):
    """"62.1mbit" of 62100000; None: "unlimited"."""
    if rate is None:
        return "unlimited"
    for unit in ("gbit", "mbit", "kbit"):
        if rate >= _UNITS[unit]:
            return f"{rate / _UNITS[unit]:.6g}{unit}"
    return f"{rate:.0f}bit"


def wire_seconds(link_bytes, rate):
    return 0.0 if rate is None else 8 * link_bytes / rate


def rate_for_share(step_seconds, link_bytes, share=WIRE_SHARE):
    """The rate at which the wire takes `share` of a step, to three digits."""
    if step_seconds <= 0 or link_bytes <= 0 or not 0 < share < 1:
        raise ValueError("a step takes time and moves bytes, and a share is between 0 and 1")
    return _rounded(8 * link_bytes * (1 - share) / (step_seconds * share))


def corrected_rate(rate, step_seconds, unlimited_step_seconds, share=WIRE_SHARE):
    """The rate at which the wire takes `share` of a step, after a trial at `rate` took
    step_seconds. What the wire takes goes as 1/rate, and is less than rate_for_share counts
    where one worker sends already while another still receives."""
    on_the_wire = step_seconds - unlimited_step_seconds
    if on_the_wire <= 0:
        raise ValueError(f"at {format_rate(rate)} a step takes no longer than without limits")
    return _rounded(rate * on_the_wire * (1 - share) / (unlimited_step_seconds * share))


def _rounded(rate):
    return min(max(round(float(f"{rate:.3g}")), round(LOWEST)), round(HIGHEST))


def automatic_rates(slow):
    """The rate of WIRE_SHARE and that times FASTER, fastest first."""
    return [_rounded(FASTER * slow), slow]


def step_limit(wire_share, bytes_ratio):
    """How many times faster a step gets, at best, whose bytes are bytes_ratio times
    fewer, where the wire took wire_share of it."""
    return 1 / (1 - wire_share + wire_share / bytes_ratio)


def end_to_end_limit(step_speedup, warm_up):
    """The same for a run that makes the first `warm_up` of its steps at the old speed."""
    return 1 / (warm_up + (1 - warm_up) / step_speedup)


def wire_share(step_seconds, unlimited_step_seconds):
    """The part of a measured step that the wire took."""
    return max(0.0, 1 - unlimited_step_seconds / step_seconds)
