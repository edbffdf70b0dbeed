"""The page of a study: one file, no script, nothing from the network, light and dark. Made
from the content of results.json alone."""

import html as escape_html
import math

from . import svg

_LIGHT = ("#0b62c4", "#b4470d", "#1a7f37", "#8250df", "#c2185b", "#8f6000", "#00737d", "#4d5b6a")
_DARK = ("#6cb6ff", "#f0985a", "#6bd387", "#c297ff", "#ff80b0", "#e3b341", "#4dd0e1", "#b6c2cf")

_STYLE = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 24px 20px 48px; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
.lead, .note { color: var(--soft); } .lead { margin: 0 0 1.2rem; }
.charts { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }
figure { margin: 0; padding: 12px; background: var(--card); border: 1px solid var(--grid);
  border-radius: 8px; }
figcaption { font-weight: 600; margin-bottom: 4px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; } svg .tick { fill: var(--soft); }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--soft); }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .reference { stroke: var(--ink); stroke-width: 1.2; stroke-dasharray: 6 4; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: .86rem; }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--grid);
  vertical-align: top; }
.scroll + .scroll { margin-top: .8rem; }
thead th { vertical-align: bottom; color: var(--soft); font-weight: 600; }
td.number, th.number { text-align: right; white-space: nowrap; }
tbody th, thead th:first-child { font-weight: 600; white-space: nowrap; }
.met { color: var(--good); font-weight: 600; } .missed { color: var(--bad); font-weight: 600; }
dt { font-weight: 600; } dd { margin: 0 0 .6rem; max-width: 75ch; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--grid);
  border-radius: 8px; padding: 12px; }
"""

_NONE = "–"


def _style():
    def colours(table):
        return " ".join(f"--series-{i}: {colour};" for i, colour in enumerate(table))
    looks = "".join(f"svg .line.s{i} {{ stroke: var(--series-{i}); }} "
                    f"svg .dot.s{i} {{ fill: var(--series-{i}); }}\n" for i in range(len(_LIGHT)))
    return (":root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --soft: #57606a;"
            " --grid: #d8dee4; --card: #f6f8fa; --good: #1a7f37; --bad: #b4470d; "
            f"{colours(_LIGHT)} }}\n"
            "@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e6edf3; "
            "--soft: #9da7b3; --grid: #30363d; --card: #161b22; --good: #6bd387; --bad: #f0985a; "
            f"{colours(_DARK)} }} }}\n" + _STYLE + looks)


def text(value):
    return escape_html.escape(str(value))


def figure3(value, factor=1.0):
    """Three digits, without powers of ten; "–" of what was not measured."""
    if value is None or not math.isfinite(value):
        return _NONE
    scaled = factor * value
    if scaled == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(scaled))))
    return f"{scaled:,.{places}f}"


def seconds(value):
    if value is None:
        return _NONE
    if value < 100:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def percent(value, spread=None):
    if value is None:
        return _NONE
    return f"{100 * value:.2f} %" + (f" ± {100 * spread:.2f}" if spread is not None else "")


def table(header, rows, texts=1):
    """Cells are escaped, but for those that are (class, text). The first `texts` columns
    are text, the others numbers."""
    def cell(tag, column, content, scope=""):
        kind = "" if column < texts else "number"
        if isinstance(content, tuple):
            kind, content = f"{kind} {content[0]}".strip(), content[1]
        attribute = f' class="{kind}"' if kind else ""
        return f"<{tag}{scope}{attribute}>{text(content)}</{tag}>"

    lines = ['<div class="scroll"><table>', "<thead><tr>" + "".join(
        cell("th", c, content, ' scope="col"') for c, content in enumerate(header)) +
        "</tr></thead>", "<tbody>"]
    for row in rows:
        lines.append("<tr>" + cell("th", 0, row[0], ' scope="row"') + "".join(
            cell("td", c, content) for c, content in enumerate(row[1:], 1)) + "</tr>")
    return "\n".join(lines) + "\n</tbody></table></div>\n"


def _figure(caption, chart):
    return f"<figure><figcaption>{text(caption)}</figcaption>\n{chart}</figure>\n"


class _Page:
    def __init__(self, document):
        self._document = document
        self._looks = {method["name"]: i for i, method in enumerate(document["methods"])}
        self._titles = {method["name"]: method["title"] for method in document["methods"]}
        self._rates = ["unlimited", *(rate["rate"] for rate in document["rates"])]

    def make(self):
        document = self._document
        title = "Bandwidth study"
        parts = [
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            f"<title>{title} - Foreshard</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n"
            f"<main>\n<h1>{title}</h1>\n", self._lead(), self._goals()]
        if document["summary"]:
            parts += [self._step_charts(), self._tables(), self._loss_charts(),
                      self._accuracy_charts(), self._links()]
        parts += [self._failed(), self._definitions(), self._methods(),
                  "</main>\n</body>\n</html>\n"]
        return "".join(parts)

    def _lead(self):
        document = self._document
        sentence = (f"{document['job']} with {_count(document['servers'], 'server')} and "
                    f"{_count(document['workers'], 'worker')} in network namespaces of one machine "
                    f"({_count(document['machine']['cores'], 'core')}), "
                    f"{_count(len(document['runs']), 'run')}.")
        if not document["complete"]:
            sentence += " Not complete: some runs are not done."
        if not document["one_build"]:
            sentence += " Its runs come from different builds of the programs."
        lines = f"<p class=\"lead\">{text(sentence)}</p>\n"
        calibration = document["calibration"]
        if calibration:
            compute = calibration["compute_seconds"]
            computing = (f" ({figure3(compute, 1e3)} ms of it a worker computes)"
                         if compute is not None else "")
            words = (f"Without limits a full-precision step takes "
                     f"{figure3(calibration['step_seconds'], 1e3)} ms{computing}, and moves "
                     f"{figure3(calibration['busiest_link_bytes_per_step'], 1e-6)} MB over the "
                     f"busiest link, both ways together. It spends "
                     f"{100 * calibration['wire_share']:.0f} % of its time on the wire at about "
                     f"{figure3(calibration['rate_bits_per_second'], 1e-6)} Mbit/s")
            trial = calibration["trial"]
            if trial:
                words += (f" (corrected by a trial: {figure3(trial['step_seconds'], 1e3)} ms a "
                          f"step at {figure3(trial['rate_bits_per_second'], 1e-6)} Mbit/s)")
            lines += f"<p>{text(words)}.</p>\n"
        return lines

    def _goals(self):
        if not self._document["goals"]:
            return ""
        verdicts = {True: ("met", "met"), False: ("missed", "missed"), None: "not measured"}
        rows = [[goal["goal"], verdicts[goal["met"]], goal["note"], f"{goal['wanted']:g}",
                 _NONE if goal["measured"] is None else f"{goal['measured']:.2f}",
                 _NONE if goal["limit"] is None else f"{goal['limit']:.1f}"]
                for goal in self._document["goals"]]
        return ("<h2>Goals</h2>\n<p class=\"note\">The limit is what arithmetic allows, from the "
                "measured bytes and the measured part of a full-precision step that the wire "
                "takes; it supposes that the rest of a step takes as long as without "
                "limits.</p>\n" +
                table(["goal", "", "", "wanted", "measured", "limit"], rows, texts=3))

    def _entries(self, rate):
        return [entry for entry in self._document["summary"] if entry["rate"] == rate]

    @staticmethod
    def _phase_name(entry, phase):
        return entry["method"] + (f", phase {phase['phase']}" if phase["phase"] else "")

    def _step_charts(self):
        rates = {rate["rate"]: rate["bits_per_second"] for rate in self._document["rates"]}
        fastest = max(rates.values(), default=1e8)
        rates["unlimited"] = 10 * fastest
        lines = {}
        for entry in self._document["summary"]:
            for phase in entry["phases"]:
                key = (entry["method"], phase["phase"])
                line = lines.setdefault(key, {
                    "name": self._phase_name(entry, phase), "points": [], "markers": True,
                    "look": self._looks[entry["method"]], "dash": 1 if phase["phase"] == 1 else 0})
                line["points"].append((rates[entry["rate"]], 1e3 * phase["step_seconds"]))
        for line in lines.values():
            line["points"].sort()
        step_ticks = [(value, name if name == "unlimited" else svg.label(value))
                      for name, value in sorted(rates.items(), key=lambda item: item[1])]
        steps = svg.line_chart(
            "steps", "Time per step against rate",
            "Milliseconds a step takes at each rate of the links, by method and phase.",
            "bit/s, each link, each direction", "ms a step", list(lines.values()), x_log=True,
            y_log=True, x_ticks=step_ticks)
        whole_times = {}
        for entry in self._document["summary"]:
            line = whole_times.setdefault(entry["method"], {
                "name": entry["method"], "points": [], "markers": True,
                "look": self._looks[entry["method"]]})
            line["points"].append((rates[entry["rate"]], entry["seconds"]))
        for line in whole_times.values():
            line["points"].sort()
        whole = svg.line_chart(
            "whole", "Time of training against rate",
            "Seconds from the first step to the last at each rate of the links, by method.",
            "bit/s, each link, each direction", "seconds", list(whole_times.values()), x_log=True,
            y_log=True, x_ticks=step_ticks)
        return ("<h2>Time against rate</h2>\n<div class=\"charts\">\n" +
                _figure("Time per step", steps) + _figure("Time of the whole training", whole) +
                "</div>\n")

    def _tables(self):
        parts = ["<h2>By rate</h2>\n"]
        targets = self._document["targets"]
        loss = figure3(targets["loss"])
        accuracy = percent(targets["accuracy"])
        for rate in self._rates:
            entries = self._entries(rate)
            if not entries:
                continue
            parts.append(f"<h3>{text('Without limits' if rate == 'unlimited' else rate)}</h3>\n")
            rows = []
            for entry in entries:
                for phase in entry["phases"]:
                    rows.append([
                        self._phase_name(entry, phase), f"{phase['steps']:,.0f}",
                        figure3(phase["step_seconds"], 1e3), _times(phase.get("step_speedup")),
                        figure3(phase["compute_seconds"], 1e3),
                        figure3(phase["push_bytes_per_step"], 1e-6),
                        figure3(phase["pull_bytes_per_step"], 1e-6),
                        _times(phase["bytes_ratio"]),
                        figure3(phase["busiest_link_bytes_per_step"], 1e-6)])
            parts.append(table(
                ["steps", "number", "ms a step", "faster", "computing, ms", "pushed, MB",
                 "replies, MB", "fewer bytes than fp32", "busiest link, MB"], rows))
            rows = [[entry["method"], seconds(entry["seconds"]),
                     _times(entry["end_to_end_speedup"]),
                     seconds(entry["seconds_to_loss"]), seconds(entry["seconds_to_accuracy"]),
                     percent(entry["final_accuracy"], entry["final_accuracy_deviation"]),
                     figure3(entry["final_loss"]), percent(entry["wire_share"]),
                     figure3(entry["expected_step_seconds"], 1e3),
                     figure3(entry["step_seconds"], 1e3),
                     len(entry["seeds"])] for entry in entries]
            parts.append(table(
                ["end to end", "time", "faster", f"to loss {loss}", f"to accuracy {accuracy}",
                 "test accuracy", "test loss", "on the wire", "by arithmetic, ms a step",
                 "measured", "seeds"], rows))
        return "".join(parts)

    def _run_of(self, method, rate):
        return next((run for run in self._document["runs"]
                     if run["method"] == method and run["rate"] == rate), None)

    def _loss_charts(self):
        figures = []
        target = self._document["targets"]["loss"]
        reference = (target, f"target {figure3(target)}") if target else None
        for rate in self._rates:
            runs = [(name, run) for name in self._looks if (run := self._run_of(name, rate))]
            if not runs:
                continue
            where = "without limits" if rate == "unlimited" else f"at {rate}"
            figures.append(_figure(f"Training loss over time, {where}", svg.line_chart(
                f"loss-{rate}".replace(".", "-"), f"Training loss over time, {where}",
                "Mean over the workers of their running averages, against seconds of training; "
                "both axes logarithmic.", "seconds", "loss",
                [{"name": name, "look": self._looks[name],
                  "points": list(zip(run["curve"]["seconds"], run["curve"]["loss"]))}
                 for name, run in runs], x_log=True, y_log=True, reference=reference)))
            if rate == "unlimited":
                figures.append(_figure("Training loss by step, without limits", svg.line_chart(
                    "loss-steps", "Training loss by step",
                    "The same against steps, so that methods and not networks are compared.",
                    "steps", "loss",
                    [{"name": name, "look": self._looks[name],
                      "points": list(zip(run["curve"]["step"], run["curve"]["loss"]))}
                     for name, run in runs], y_log=True)))
        return ("<h2>Loss</h2>\n<p class=\"note\">Of the first seed.</p>\n<div class=\"charts\">\n"
                + "".join(figures) + "</div>\n")

    def _accuracy_charts(self):
        figures = []
        target = self._document["targets"]["accuracy"]
        for rate in self._rates:
            series = []
            for name, look in self._looks.items():
                run = self._run_of(name, rate)
                if run is None:
                    continue
                points = sorted((e["seconds"], 100 * e["accuracy"]) for e in run["evaluations"]
                                if e["parameters"] == "master")
                series.append({"name": name, "look": look, "points": points, "markers": True})
            if not any(entry["points"] for entry in series):
                continue
            where = "without limits" if rate == "unlimited" else f"at {rate}"
            reference = (100 * target, f"target {percent(target)}") if target else None
            figures.append(_figure(f"Test accuracy over time, {where}", svg.line_chart(
                f"accuracy-{rate}".replace(".", "-"), f"Test accuracy over time, {where}",
                "Accuracy of the servers' parameters when they were taken for an evaluation.",
                "seconds", "%", series, x_log=True, reference=reference)))
        if not figures:
            return ""
        return "<h2>Accuracy</h2>\n<div class=\"charts\">\n" + "".join(figures) + "</div>\n"

    def _links(self):
        nodes = list(next(iter(self._document["summary"]))["links"])
        header = ["rate and method"] + [f"{node} {way}" for node in nodes
                                        for way in ("in", "out")] + ["pushed", "replies"]
        rows = []
        for entry in self._document["summary"]:
            run = self._run_of(entry["method"], entry["rate"])
            row = [f"{entry['rate']} {entry['method']}"]
            for node in nodes:
                row += [figure3(entry["links"][node][way], 1e-6) for way in ("received", "sent")]
            row += [figure3(run["total"]["push_bytes_per_step"], 1e-6),
                    figure3(run["total"]["pull_bytes_per_step"], 1e-6)]
            rows.append(row)
        return ("<h2>Bytes on the links</h2>\n<p class=\"note\">MB a step over the whole run, as "
                "each link's interface counted them: headers, acknowledgements, repeated packets, "
                "heartbeats and the lead's answers included. Beside them what workers counted: "
                "pushes and replies of trainable tensors.</p>\n" + table(header, rows))

    def _failed(self):
        failed = self._document["failed"]
        if not failed:
            return ""
        return "<h2>Failed runs</h2>\n" + "".join(
            f"<h3>{text(run['method'])} at {text(run['rate'])}, seed {run['seed']}</h3>\n"
            f"<pre>{text(run['why'])}</pre>\n" for run in failed)

    @staticmethod
    def _definitions():
        words = (
            ("step", "One batch by each worker; in synchronous training a round. Its time is the "
             "median over windows of at least two seconds: from one closed round to the next by "
             "the servers' clocks, or, without rounds, by counting batches. Bytes a step are "
             "those of all workers together."),
            ("end to end", "From when the first worker had its parameters until the last has left, "
             "without the start of the programs and the last evaluation."),
            ("rate", "Of every server's and every worker's link, in each direction apart. The "
             "evaluator reaches the servers by another way, which has no limit."),
            ("on the wire", "The part of a step that it does not take without limits."),
            ("by arithmetic",
             "What it takes without limits, and the bytes of the busiest link, both ways one "
             "after the other, at the rate. Where one worker sends already while another still "
             "receives it is less."),
            ("to loss, to accuracy",
             "Seconds until the training loss is at or below the target for the first time, and "
             "until the parameters that first reached the target accuracy; – where one of the "
             "seeds never did."),
        )
        return "<h2>Definitions</h2>\n<dl>\n" + "".join(
            f"<dt>{text(word)}</dt><dd>{text(meaning)}</dd>\n"
            for word, meaning in words) + "</dl>\n"

    def _methods(self):
        document = self._document
        rows = [[method["name"], method["title"], " ".join(method["overrides"])]
                for method in document["methods"]]
        common = " ".join(document["overrides"])
        return ("<h2>Methods</h2>\n" + table(["method", "", "settings"], rows, texts=3) +
                (f"<p class=\"note\">All of them: {text(common)}</p>\n" if common else ""))


def _times(value):
    return _NONE if value is None else f"{value:.2f} ×"


def _count(number, noun):
    return f"{number} {noun}" + ("" if number == 1 else "s")


def html(document):
    """The page of a document (results.document)."""
    return _Page(document).make()
