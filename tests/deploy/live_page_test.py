"""The live page of real daemons, as JSON, as a page in headless Chromium (desktop and phone, light and dark), and in a
terminal (`foreshard top`).

  live_page_test.py --programs=build-release/bin [--screenshots=DIR]
"""

import argparse
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import browser
import found_tools
import real_fleet

TOKEN = "a-secret-that-no-page-shows-0123456789"
JOB = """
name: "live" seed: 1
model { name: "quadratic" elements: 65536 }
data { format: "synthetic" examples: 6400000 }
training { epochs: 100 batch_size: 64 workers: 4 }
update { rule: "dana_slim" momentum: 0.9 }
schedule { learning_rate: 0.0001 }
compression { push: "one_bit" }
servers { shards: 2 }
timeouts { lease_seconds: 120 }
"""
COLLECT = """(() => {
  const text = (id) => document.getElementById(id).textContent;
  const rows = (id) => [...document.querySelectorAll(`#${id} tbody tr`)].map(
    (row) => Object.fromEntries([...row.cells].map((cell) => [cell.dataset.field, cell.textContent])));
  const ids = ['job', 'rule', 'state', 'position', 'examples', 'updates', 'loss', 'staleness-mean', 'staleness-tail',
    'push-compression', 'pull-compression', 'examples-rate', 'updates-rate', 'push-rate', 'workers-text', 'connection', 'scope'];
  return {
    ...Object.fromEntries(ids.map((id) => [id, text(id)])), workers: rows('workers'), servers: rows('servers'),
    histogram: [...document.querySelectorAll('#histogram tbody tr')].map(
      (row) => [row.cells[0].textContent, Number(row.dataset.pushes), row.cells[2].textContent, row.cells[1].firstChild.style.width]),
  };
})()"""
# The least contrast of all texts that are seen, with its text: [ratio, text].
CONTRAST = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  let least = [99, ''];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || node.getClientRects().length === 0 || node.closest('noscript')) continue;
    const svg = node.namespaceURI.endsWith('svg');
    const colours = [parse(svg ? getComputedStyle(node).fill : getComputedStyle(node).color), behind(node)].map(light);
    const ratio = (Math.max(...colours) + 0.05) / (Math.min(...colours) + 0.05);
    if (ratio < least[0]) least = [ratio, node.textContent];
  }
  return least;
})()"""
# What screen readers need and is missing.
UNNAMED = """(() => {
  const wrong = [];
  for (const node of document.querySelectorAll('[aria-labelledby]')) {
    for (const id of node.getAttribute('aria-labelledby').split(' ')) if (!document.getElementById(id)) wrong.push(`no ${id}`);
  }
  const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`twice ${id}`);
  for (const node of document.querySelectorAll('section, svg[role=img], table')) {
    if (!node.hasAttribute('aria-labelledby') && !node.querySelector('caption')) wrong.push(`no name for ${node.outerHTML.slice(0, 60)}`);
  }
  for (const node of document.querySelectorAll('th')) if (!node.scope) wrong.push(`no scope for ${node.textContent}`);
  for (const node of document.querySelectorAll('button, a')) if (!node.textContent.trim()) wrong.push('a control without a name');
  const levels = [...document.querySelectorAll('h1, h2, h3')].map((node) => Number(node.tagName[1]));
  if (levels[0] !== 1 || levels.filter((level) => level === 1).length !== 1) wrong.push(`headings ${levels}`);
  if (document.documentElement.lang !== 'en' || document.querySelectorAll('main').length !== 1) wrong.push('lang or main');
  return wrong;
})()"""


def number(text):
    return int(text.replace(",", ""))


def setUpModule():
    global FLEET
    FLEET = real_fleet.Fleet(PROGRAMS, JOB, shards=2, workers=4, pace=[0.02, 0.02, 0.03, 0.09], state=True, token=TOKEN)
    real_fleet.wait_until(lambda: all(w["steps"] for w in status()["workers"]), "all workers report")


def tearDownModule():
    FLEET.stop()


def status(title="server-0"):
    return json.loads(real_fleet.fetch(FLEET.metrics[title], "/status.json"))


class Served(unittest.TestCase):
    def test_each_daemon_has_page_script_style_and_json(self):
        types = {"/": "text/html", "/live.css": "text/css", "/live.js": "text/javascript", "/status.json": "application/json",
                 "/metrics": "text/plain"}
        for title, address in FLEET.metrics.items():
            for path, kind in types.items():
                with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as reply:
                    self.assertTrue(reply.headers["Content-Type"].startswith(kind), f"{title}{path}")
                    self.assertIn("default-src 'none'", reply.headers["Content-Security-Policy"])
                    self.assertNotIn("Access-Control-Allow-Origin", reply.headers)
                    text = reply.read().decode()
                self.assertNotIn(TOKEN, text)
                self.assertNotIn(str(FLEET.root), text, "a path of the machine")
                self.assertLess(len(text), 100_000)

    def test_it_takes_nothing_but_get(self):
        for method in ("POST", "PUT", "DELETE"):
            request = urllib.request.Request(f"http://{FLEET.metrics['server-0']}/status.json", data=b"x", method=method)
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=10)
            self.assertEqual(refused.exception.code, 405)
            refused.exception.close()

    def test_the_json_is_what_status_says(self):
        def admin():
            done = subprocess.run([PROGRAMS / "foreshard", "status", "--json", f"--servers={','.join(FLEET.addresses)}", *FLEET.trust],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["servers"]

        before, page, whole, after = admin(), status(), status("worker-2"), admin()
        self.assertEqual(page["daemon"]["role"], "server")
        self.assertEqual(whole["daemon"], {**whole["daemon"], "role": "worker", "name": "worker-2"})
        for found, servers in ((page, [0]), (whole, [0, 1])):
            for field, theirs in (("push_bytes", "push_bytes"), ("pull_bytes", "pull_bytes")):
                low, high = (sum(look[s][theirs] for s in servers) for look in (before, after))
                self.assertLessEqual(low, found["traffic"][field])
                self.assertLessEqual(found["traffic"][field], high)
            self.assertEqual(len(found["servers"]), len(servers))
            self.assertEqual([w["name"] for w in found["workers"]], [f"worker-{k}" for k in range(4)])
            self.assertEqual(sum(b["pushes"] for b in found["staleness"]["buckets"]), found["staleness"]["pushes"])
        self.assertLessEqual(before[0]["completed_tickets"], page["totals"]["batches"])
        self.assertLessEqual(page["totals"]["batches"], after[0]["completed_tickets"])
        self.assertGreater(page["traffic"]["push_compression"], 25)
        other = status("server-1")
        self.assertFalse(other["job"]["has_lead"])
        self.assertEqual(other["job"]["name"], "live")
        self.assertEqual({w["state"] for w in other["workers"]}, {"training"})

    def test_it_does_not_wait_long_for_a_server_that_hangs(self):
        FLEET.send("server-1", signal.SIGSTOP)
        try:
            found = real_fleet.wait_until(lambda: next((s for s in status("worker-0")["servers"] if not s["answers"]), None),
                                          "server 1 is away")
            self.assertIn(FLEET.addresses[1], found["error"])
        finally:
            FLEET.send("server-1", signal.SIGCONT)
        real_fleet.wait_until(lambda: all(s["answers"] for s in status("worker-0")["servers"]), "server 1 is back")


class Top(unittest.TestCase):
    def command(self, *flags, interval=0.5):
        return [PROGRAMS / "foreshard", "top", f"--servers={','.join(FLEET.addresses)}", f"--interval={interval}", *FLEET.trust, *flags]

    def test_once_prints_plain_text(self):
        done = subprocess.run(self.command("--once", "--sort=worker"), capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("\x1b", done.stdout)
        self.assertRegex(done.stdout, r"^live, dana_slim: training   epoch 0\.\d of 100")
        self.assertRegex(done.stdout, r"speed +[\d,.]+ examples/s   [\d.]+ updates/s   4 of 4 workers train")
        self.assertRegex(done.stdout, r"pushed [\d.]+ [KM]iB/s \(3\d\.\d times smaller\)")
        self.assertEqual(re.findall(r"(?m)^  (\d) +worker-\d", done.stdout), ["0", "1", "2", "3"])
        for address in FLEET.addresses:
            self.assertIn(address, done.stdout)

    def test_workers_are_sorted_by_their_rates(self):
        done = subprocess.run(self.command("--once", interval=2), capture_output=True, text=True, timeout=60)
        self.assertEqual(re.findall(r"worker-\d", done.stdout)[-1], "worker-3", done.stdout)

    def test_it_goes_on_in_a_pipe_until_it_is_interrupted(self):
        with subprocess.Popen(self.command(), stdout=subprocess.PIPE, text=True) as process:
            looks = 0
            for line in process.stdout:
                looks += line.startswith("live, dana_slim")
                if looks == 3:
                    break
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            self.assertEqual(process.wait(timeout=30), 130)

    def test_a_server_that_is_away_is_named_and_asked_again(self):
        unused = f"127.0.0.1:{real_fleet.free_port()}"
        done = subprocess.run([PROGRAMS / "foreshard", "top", f"--servers={FLEET.addresses[0]},{unused}", "--once", "--interval=0.2",
                               *FLEET.trust], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"server {unused}, which does not answer", done.stdout)
        self.assertIn(unused, done.stderr)
        self.assertIn("worker-3", done.stdout)

    def test_bad_arguments_end_with_2(self):
        for command, named in ((self.command("--sort=size"), "--sort"), (self.command(interval=0), "--interval"),
                               ([PROGRAMS / "foreshard", "top", "--servers=nowhere"], "nowhere"),
                               ([PROGRAMS / "foreshard", "top"], "--servers")):
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, command)
            self.assertIn(named, done.stderr)

    def on_terminal(self, *flags):
        master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 100))

        def own_terminal():
            os.setsid()
            os.close(os.open(os.ttyname(slave), os.O_RDWR))  # a session's first one is its own

        process = subprocess.Popen(self.command(*flags), stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_terminal,
                                   env={**os.environ, "TERM": "xterm"})
        return process, master, slave

    def read_until(self, master, text, seconds=30):
        seen, end = "", time.monotonic() + seconds
        while text not in seen:
            self.assertLess(time.monotonic(), end, f"no {text!r} in {seen!r}")
            if select.select([master], [], [], 0.2)[0]:
                seen += os.read(master, 1 << 16).decode()
        return seen

    def test_on_a_terminal_it_redraws_sorts_and_quits(self):
        process, master, slave = self.on_terminal()
        before = termios.tcgetattr(slave)
        try:
            self.read_until(master, "(now: rate)")
            seen = self.read_until(master, "(now: rate)")
            self.assertRegex(seen, r"\x1b\[\d+A\x1b\[J")
            self.assertLessEqual(max(len(line) for line in seen.replace("\r", "").split("\n")), 120)
            os.write(master, b"s")
            self.read_until(master, "(now: staleness)")
            os.write(master, b"q")
            self.assertEqual(process.wait(timeout=30), 0)
            self.assertEqual(termios.tcgetattr(slave), before)
        finally:
            real_fleet.end([process])
            os.close(master)
            os.close(slave)

    def test_ctrl_c_leaves_the_terminal_as_it_was(self):
        process, master, slave = self.on_terminal()
        before = termios.tcgetattr(slave)
        try:
            self.read_until(master, "(now: rate)")
            self.assertNotEqual(termios.tcgetattr(slave), before)
            os.write(master, b"\x03")
            self.assertEqual(process.wait(timeout=30), 130)
            self.assertEqual(termios.tcgetattr(slave), before)
        finally:
            real_fleet.end([process])
            os.close(master)
            os.close(slave)


@unittest.skipIf(browser.find() is None, "no chromium: apt-get install chromium")
class InBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.chromium = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.chromium.__exit__()

    def open(self, title="server-0", **how):
        page = self.chromium.page(f"http://{FLEET.metrics[title]}/", **how)
        self.addCleanup(page.close)
        page.wait("document.body && Number(document.body.dataset.looks || 0) >= 2")
        return page

    def check_page(self, page, width):
        self.assertLessEqual(page.value("document.documentElement.scrollWidth"), width, "wider than its window")
        ratio, text = page.value(CONTRAST)
        self.assertGreaterEqual(ratio, 4.5, f"contrast of {text!r}")
        self.assertEqual(page.value(UNNAMED), [])
        self.assertEqual(page.complaints(), [])
        origin = page.value("location.origin")
        self.assertEqual({url for url in page.asked() if not url.startswith((origin, "data:"))}, set())

    def test_a_desktop_sees_the_numbers_of_the_json(self):
        page = self.open()
        before = status()
        page.wait("(window.n = window.n || Number(document.body.dataset.looks)) < Number(document.body.dataset.looks)")
        seen = page.value(COLLECT)
        after = status()
        self.assertEqual((seen["job"], seen["rule"], seen["state"], seen["connection"]), ("live", "dana_slim", "training", "Live"))
        self.assertEqual(seen["workers-text"], "4 of 4 train.")
        for k, worker in enumerate(seen["workers"]):
            low, high = before["workers"][k], after["workers"][k]
            self.assertEqual(worker["name"], f"{k} worker-{k}")
            self.assertEqual(worker["device"], low["device"])
            for field in ("pushes", "examples"):
                self.assertLessEqual(low[field], number(worker[field]))
                self.assertLessEqual(number(worker[field]), high[field])
        self.assertEqual(len(seen["servers"]), 1)
        self.assertLessEqual(before["servers"][0]["applied"], number(seen["servers"][0]["applied"]))
        self.assertLessEqual(sum(pushes for _, pushes, _, _ in seen["histogram"]), after["staleness"]["pushes"])
        # Three workers a step of 20 to 30 ms, one of 90 ms, 64 examples each: at most 2 + 1/1.5 + 1/4.5 times 3,200.
        self.assertGreater(float(seen["examples-rate"].replace(",", "")), 100)
        self.assertLess(float(seen["examples-rate"].replace(",", "")), 12_000)
        self.assertIn("/s", seen["push-rate"])
        self.assertTrue(page.value("document.querySelector('#loss-chart path') !== null"))
        self.check_page(page, 1280)
        page.screenshot(SCREENSHOTS / "live-desktop.png")
        for width in (1160, 1024, 768, 500, 320):
            page.resize(900, width)
            self.assertLessEqual(page.value("document.documentElement.scrollWidth"), width)

    def test_when_nothing_moves_every_number_is_that_of_the_json(self):
        for k in range(4):
            FLEET.send(f"worker-{k}", signal.SIGSTOP)
        try:
            def still():
                first = status()
                time.sleep(0.7)
                return first["totals"] == status()["totals"] and first["traffic"] == status()["traffic"]
            real_fleet.wait_until(still, "nothing moves")
            page = self.open()
            seen, told = page.value(COLLECT), status()
        finally:
            for k in range(4):
                FLEET.send(f"worker-{k}", signal.SIGCONT)
        staleness, totals, traffic = told["staleness"], told["totals"], told["traffic"]
        self.assertEqual(seen["examples"], f"{totals['examples']:,} in all")
        self.assertEqual(seen["updates"], f"{totals['updates']:,} in all")
        self.assertEqual(seen["loss"], f"{totals['loss']:.4f}")
        self.assertEqual(seen["staleness-mean"], f"{staleness['mean']:.2f}")
        self.assertEqual(seen["staleness-tail"], f"median {staleness['p50']}, 99 % within {staleness['p99']}, most {staleness['max']}")
        self.assertEqual(seen["push-compression"], f"{traffic['push_compression']:.1f} times smaller than fp32")
        self.assertEqual(seen["examples-rate"], "0.0")
        self.assertEqual([pushes for _, pushes, _, _ in seen["histogram"]], [b["pushes"] for b in staleness["buckets"]])
        most = max(b["pushes"] for b in staleness["buckets"])
        for (title, pushes, part, width), bucket in zip(seen["histogram"], staleness["buckets"]):
            self.assertEqual(title, str(bucket["from"]) if bucket["from"] == bucket["to"] else f"{bucket['from']} to {bucket['to']}")
            self.assertAlmostEqual(float(part.removesuffix(" %")), 100 * pushes / staleness["pushes"], delta=0.051)
            self.assertAlmostEqual(float(width.removesuffix("%")), 100 * pushes / most, delta=0.01)
        for worker, row in zip(told["workers"], seen["workers"], strict=True):
            self.assertEqual(row["name"], f"{worker['worker']} {worker['name']}")
            self.assertEqual(row["loss"], f"{worker['loss']:.4f}")
            self.assertEqual(row["staleness"], f"{worker['staleness_mean']:.2f}")
            self.assertEqual(row["lag"], f"{worker['lag']:.2f}")
            self.assertEqual(row["pushes"], f"{worker['pushes']:,}")
            self.assertEqual(row["compression"], f"{worker['push_compression']:.1f} times")
        self.assertEqual(seen["servers"][0]["applied"], f"{told['servers'][0]['applied']:,}")

    def test_a_phone_reads_it_without_scrolling_sideways(self):
        page = self.open(width=360, height=740, mobile=True)
        self.check_page(page, 360)
        self.assertEqual(page.value("[...document.querySelectorAll('main *')].filter((node) => node.getClientRects().length > 0 "
                                    "&& !node.closest('.hidden, thead') && node.getBoundingClientRect().right > 361)"
                                    ".map((node) => node.outerHTML.slice(0, 80))"), [])
        self.assertGreaterEqual(page.value("document.getElementById('pause').getBoundingClientRect().height"), 44)
        self.assertGreaterEqual(page.value("Math.min(...[...document.querySelectorAll('main *')].filter((node) => node.children.length === 0 "
                                           "&& node.textContent.trim() && !node.closest('svg')).map((node) => parseFloat(getComputedStyle(node).fontSize)))"), 12)
        page.screenshot(SCREENSHOTS / "live-phone.png")

    def test_dark_and_still_where_that_is_wished(self):
        page = self.open(dark=True, still=True)
        self.check_page(page, 1280)
        self.assertLess(sum(map(int, re.findall(r"\d+", page.value("getComputedStyle(document.body).backgroundColor"))[:3])), 150)
        self.assertEqual(page.value("getComputedStyle(document.querySelector('.fill')).transitionDuration"), "0s")
        page.screenshot(SCREENSHOTS / "live-dark.png")
        phone = self.open(dark=True, width=360, height=740, mobile=True)
        self.check_page(phone, 360)
        phone.screenshot(SCREENSHOTS / "live-phone-dark.png")

    def test_the_keyboard_reaches_and_pauses_it(self):
        page = self.open()
        page.press("Tab", 9)
        self.assertEqual(page.value("document.activeElement.textContent"), "Skip to workers")
        page.press("Tab", 9)
        self.assertEqual(page.value("document.activeElement.id"), "pause")
        self.assertNotEqual(page.value("getComputedStyle(document.activeElement).outlineStyle"), "none")
        page.press("Enter", 13)
        page.wait("document.getElementById('pause').getAttribute('aria-pressed') === 'true'")
        page.wait("document.getElementById('connection').textContent === 'Paused'")
        # An answer may have been under way; after that there are none.
        time.sleep(0.5)
        looks = page.value("document.body.dataset.looks")
        time.sleep(2.2)
        self.assertEqual(page.value("document.body.dataset.looks"), looks)
        page.press("Enter", 13)
        page.wait(f"Number(document.body.dataset.looks) > {looks}")
        self.assertEqual(page.value("document.getElementById('connection').textContent"), "Live")

    def test_a_worker_s_page_has_all_servers_and_marks_itself(self):
        page = self.open("worker-1")
        seen = page.value(COLLECT)
        self.assertEqual([server["server"] for server in seen["servers"]], ["shard 0, the lead", "shard 1"])
        self.assertEqual(page.value("[...document.querySelectorAll('#workers tr.own')].map((row) => row.cells[0].textContent)"),
                         ["1 worker-1"])
        self.check_page(page, 1280)

    def test_the_page_of_another_shard_says_where_the_rest_is(self):
        page = self.open("server-1")
        seen = page.value(COLLECT)
        self.assertIn("on the page of shard 0, the lead", seen["scope"])
        self.assertEqual(seen["loss"], "-")
        self.assertEqual(len(seen["workers"]), 4)
        self.check_page(page, 1280)

    def test_it_says_when_the_server_is_gone_and_goes_on_when_it_is_back(self):
        page, whole = self.open(), self.open("worker-0")
        FLEET.send("server-0", signal.SIGKILL)
        FLEET.processes["server-0"].wait()
        page.wait("document.getElementById('connection').textContent.startsWith('No answer')")
        whole.wait("document.getElementById('waiting').textContent.includes('which does not answer')")
        page.screenshot(SCREENSHOTS / "live-away.png")
        whole.screenshot(SCREENSHOTS / "live-server-away.png")
        FLEET.restart("server-0")
        page.wait("document.getElementById('connection').textContent === 'Live'")
        page.wait("document.getElementById('workers-text').textContent === '4 of 4 train.'", 60)
        whole.wait("document.querySelectorAll('#servers tr.away').length === 0")
        rate = page.wait("(() => { const text = document.getElementById('examples-rate').textContent;"
                         " return text !== '-' && text !== '0.0' && text; })()", 60)
        self.assertLess(float(rate.replace(",", "")), 12_000, "counted what was there before as new")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True, type=pathlib.Path)
    parser.add_argument("--screenshots", type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    PROGRAMS = arguments.programs.resolve()
    with tempfile.TemporaryDirectory(prefix="foreshard-live-") as scratch:
        SCREENSHOTS = arguments.screenshots or pathlib.Path(scratch)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        program = unittest.main(argv=[sys.argv[0], *rest], exit=False)
    if program.result.wasSuccessful() and browser.find() is None:
        found_tools.skip("no chromium for the page: apt-get install chromium; the rest passed")
    sys.exit(not program.result.wasSuccessful())
