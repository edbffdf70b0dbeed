"""The slope of a noisy series, and how sure it is."""

import math
from dataclasses import dataclass

# Sampled memory moves in steps that last, so neighbouring samples say the same thing twice:
# the line is drawn through the means of so many stretches of equal length.
_STRETCHES = 20
# Two-sided 99 % quantiles of Student's t, by degrees of freedom.
_T99 = {1: 63.7, 2: 9.92, 3: 5.84, 4: 4.60, 5: 4.03, 6: 3.71, 7: 3.50, 8: 3.36, 9: 3.25, 10: 3.17,
        11: 3.11, 12: 3.05, 13: 3.01, 14: 2.98, 15: 2.95, 16: 2.92, 17: 2.90, 18: 2.88}


@dataclass(frozen=True)
class Slope:
    """Of a least-squares line; `uncertainty` is half its 99 % confidence interval."""
    per_second: float
    uncertainty: float
    mean: float
    seconds: float  # from the first sample to the last

    @property
    def growth(self):
        """What the line rises by over the series, at least, as far as is certain."""
        return max(0.0, self.per_second - self.uncertainty) * self.seconds


def slope(samples):
    """`samples`: (seconds, value), by rising time, at least three at different times."""
    first, last = samples[0][0], samples[-1][0]
    count = min(_STRETCHES, len(samples))
    stretches = [[] for _ in range(count)]
    for at, value in samples:
        k = min(count - 1, int(count * (at - first) / (last - first)))
        stretches[k].append((at, value))
    points = [(math.fsum(at for at, _ in part) / len(part), math.fsum(v for _, v in part) / len(part))
              for part in stretches if part]
    n = len(points)
    if n < 3:
        raise ValueError(f"{n} points are too few for a line and its uncertainty")
    x = math.fsum(at for at, _ in points) / n
    y = math.fsum(value for _, value in points) / n
    xx = math.fsum((at - x) ** 2 for at, _ in points)
    rise = math.fsum((at - x) * (value - y) for at, value in points) / xx
    left = math.fsum((value - y - rise * (at - x)) ** 2 for at, value in points)
    error = math.sqrt(left / (n - 2) / xx)
    return Slope(rise, _T99[n - 2] * error, y, last - first)
