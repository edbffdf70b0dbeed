"""Line charts as inline SVG: no script, nothing from the network, colours from the page's
CSS variables, a title and a description for screen readers."""

import html
import math

_WIDTH, _HEIGHT = 640, 340
_LEFT, _RIGHT, _BOTTOM = 64, 18, 46
_LEGEND_ROW, _LETTER = 18, 7.5
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
COLOURS = 8


def ticks(low, high, wanted):
    """Round values inside [low, high], about so many."""
    raw = (high - low) / max(1, wanted)
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def log_ticks(low, high):
    """Powers of ten inside [low, high], and between them where they are few."""
    decades = math.log10(high / low)
    factors = (1,) if decades > 3 else (1, 3) if decades > 1.5 else (1, 2, 5)
    found = []
    for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1):
        found += [factor * 10.0 ** power for factor in factors
                  if low * (1 - 1e-9) <= factor * 10.0 ** power <= high * (1 + 1e-9)]
    return found


def label(value):
    """"10k", "0.05"."""
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= bound:
            return f"{value / bound:.4g}{unit}"
    return f"{value:.4g}"


class _Axis:
    """Of values or of their logarithms, onto [begin, end] of the drawing."""

    def __init__(self, values, log, begin, end, from_zero=False, room=0.0):
        self._log = log
        places = [self._place(value) for value in values]
        self._low, self._high = (min(places), max(places)) if places else (0.0, 1.0)
        if from_zero and not log:
            self._low = min(0.0, self._low)
        if self._high - self._low < 1e-12:
            self._low, self._high = self._low - 0.5, self._high + 0.5
        pad = room * (self._high - self._low)
        if not (from_zero and not log):
            self._low -= pad
        self._high += pad
        self._begin, self._end = begin, end

    def _place(self, value):
        return math.log10(value) if self._log else value

    def at(self, value):
        share = (self._place(value) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)

    def ticks(self, wanted):
        if self._log:
            return log_ticks(10 ** self._low, 10 ** self._high)
        return ticks(self._low, self._high, wanted)


def line_chart(identity, title, description, x_label, y_label, series, x_log=False, y_log=False,
               y_from_zero=False, x_ticks=None, reference=None):
    """`series`: dicts with `name`, `points` [(x, y)], `look` (colour and dashes), and
    optionally `markers` and `dash`. `x_ticks`: [(value, text)]. `reference`: (y, text), a
    dashed line across. What has no place on an axis of logarithms is left out."""
    shown = []
    for entry in series:
        points = [(x, y) for x, y in entry["points"]
                  if y is not None and math.isfinite(y) and (x > 0 or not x_log)
                  and (y > 0 or not y_log)]
        if points:
            shown.append({**entry, "points": points})
    if not shown:
        return f'<p class="note">{html.escape(title)}: nothing measured yet.</p>\n'

    places, x, y = [], _LEFT, 16
    for entry in shown:
        width = 30 + _LETTER * len(entry["name"]) + 20
        if x > _LEFT and x + width - 20 > _WIDTH - _RIGHT:
            x, y = _LEFT, y + _LEGEND_ROW
        places.append((x, y))
        x += width
    top = y + 18
    height = _HEIGHT + y - 16
    bottom = height - _BOTTOM

    ys = [y for entry in shown for _, y in entry["points"]]
    if reference is not None and (reference[0] > 0 or not y_log):
        ys.append(reference[0])
    xs = [x for entry in shown for x, _ in entry["points"]]
    across = _Axis(xs, x_log, _LEFT, _WIDTH - _RIGHT, room=0.03 if x_ticks else 0.0)
    up = _Axis(ys, y_log, bottom, top, from_zero=y_from_zero, room=0.05)

    out = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" '
           f'aria-labelledby="{identity}-t {identity}-d">',
           f'<title id="{identity}-t">{html.escape(title)}</title>',
           f'<desc id="{identity}-d">{html.escape(description)}</desc>']
    for value in up.ticks(5):
        at = up.at(value)
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" '
                   f'y2="{at:.1f}"/><text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" '
                   f'text-anchor="end">{label(value)}</text>')
    for value, text in x_ticks or [(value, label(value)) for value in across.ticks(7)]:
        at = across.at(value)
        out.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" '
                   f'y2="{bottom + 4}"/><text class="tick" x="{at:.1f}" y="{bottom + 18}" '
                   f'text-anchor="middle">{html.escape(text)}</text>')
    out.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" '
               f'y2="{bottom}"/>')
    out.append(f'<text class="tick" x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{height - 8}" '
               f'text-anchor="middle">{html.escape(x_label)}</text>')
    out.append(f'<text class="tick" transform="translate(14 {(top + bottom) / 2:.0f}) rotate(-90)" '
               f'text-anchor="middle">{html.escape(y_label)}</text>')
    if reference is not None and (reference[0] > 0 or not y_log):
        at = up.at(reference[0])
        out.append(f'<line class="reference" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" '
                   f'y2="{at:.1f}"/><text class="tick" x="{_WIDTH - _RIGHT}" y="{at - 5:.1f}" '
                   f'text-anchor="end">{html.escape(reference[1])}</text>')
    for entry, (x, y) in zip(shown, places):
        look = entry["look"] % COLOURS
        dash = _DASHES[(entry["look"] + entry.get("dash", 0)) % len(_DASHES)]
        style = f' stroke-dasharray="{dash}"' if dash else ""
        path = "M" + "L".join(f"{across.at(px):.1f} {up.at(py):.1f}" for px, py in entry["points"])
        out.append(f'<path class="line s{look}"{style} d="{path}"/>')
        if entry.get("markers") or len(entry["points"]) == 1:
            out += [f'<circle class="dot s{look}" cx="{across.at(px):.1f}" '
                    f'cy="{up.at(py):.1f}" r="3.5"/>' for px, py in entry["points"]]
        out.append(f'<line class="line s{look}"{style} x1="{x:.0f}" x2="{x + 22:.0f}" '
                   f'y1="{y - 4}" y2="{y - 4}"/><text x="{x + 28:.0f}" y="{y}">'
                   f'{html.escape(entry["name"])}</text>')
    out.append("</svg>\n")
    return "\n".join(out)
