// The live page: asks status.json every two seconds and shows what it says. Texts go into the page as
// texts, never as markup.
'use strict';

const POLL_MS = 2000;
const LONGEST_PAUSE_MS = 10000;
const ANSWER_WITHIN_MS = 8000;
// Rates are over so much of what was seen; curves have as many points at most.
const RATE_WINDOW_SECONDS = 10;
const CURVE_POINTS = 300;

const element = (id) => document.getElementById(id);
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

// As the command line writes them.
function count(value) { return known(value) ? Math.round(value).toLocaleString('en-US') : '-'; }
function rate(value) { return !known(value) ? '-' : value < 99.95 ? Math.max(0, value).toFixed(1) : count(value); }
function fixed(value, digits) { return known(value) ? value.toFixed(digits) : '-'; }
function bytes(value) {
  if (!known(value)) return '-';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  while (value >= 999.95 && unit + 1 < units.length) { value /= 1024; unit += 1; }
  return `${value.toFixed(unit === 0 ? 0 : 1)} ${units[unit]}`;
}
function duration(seconds) {
  if (!known(seconds)) return '-';
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, '0');
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}:${two(whole % 60)}`;
  return `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(whole % 60)}`;
}
function smaller(ratio) { return !known(ratio) ? '' : ratio < 1.05 ? 'in fp32' : `${times(ratio)} smaller than fp32`; }
function times(ratio) { return known(ratio) ? `${ratio.toFixed(1)} times` : '-'; }

function show(id, text) {
  const node = element(id);
  if (node.textContent !== text) node.textContent = text;
}
function showOrHide(id, text) {
  element(id).hidden = text === '';
  show(id, text);
}

// What was seen, newest last: {seconds, status}. A server that began anew begins all of it anew.
let seen = [];
let curve = [];

function starts(status) { return status.servers.map((server) => server.incarnation || '').join(); }

function remember(status) {
  const seconds = performance.now() / 1000;
  const last = seen[seen.length - 1];
  // One that is away has no number; what was counted goes on when it is there again.
  const restarted = last && last.status.servers.some((server, i) => {
    const now = status.servers[i];
    return server.incarnation && now && now.incarnation && server.incarnation !== now.incarnation;
  });
  if (restarted || (last && last.status.job.name !== status.job.name)) { seen = []; }
  if (last && last.status.job.name !== status.job.name) { curve = []; }
  seen.push({seconds, status, starts: starts(status)});
  while (seen.length > 2 && seen[0].seconds < seconds - RATE_WINDOW_SECONDS) seen.shift();
}

// What `counter` gained a second over the window; undefined before two looks. Looks at which other
// servers answered count other things.
function perSecond(counter) {
  const now = seen[seen.length - 1];
  for (const before of seen) {
    if (before === now || before.starts !== now.starts) continue;
    const was = counter(before.status), is = counter(now.status);
    if (known(was) && known(is) && is >= was) return (is - was) / (now.seconds - before.seconds);
  }
  return undefined;
}

function workerOf(status, worker) {
  return status.workers.find((other) => other.worker === worker.worker && other.name === worker.name);
}

function ownRate(worker) {
  const measured = perSecond((status) => { const found = workerOf(status, worker); return found ? found.examples : undefined; });
  return known(measured) ? measured : worker.state === 'training' ? worker.examples_per_second : undefined;
}

// Rows by key, so that what is focused or selected stays.
function fill(id, columns, rows, key, mark) {
  const table = element(id);
  const head = table.tHead.rows[0];
  if (head.cells.length === 0) {
    for (const column of columns) {
      const cell = document.createElement('th');
      cell.scope = 'col';
      cell.setAttribute('role', 'columnheader');
      cell.className = column.kind;
      cell.textContent = column.title;
      head.append(cell);
    }
  }
  // A column that says nothing is not shown.
  const unused = columns.map((column) => rows.every((data) => column.text(data) === ''));
  columns.forEach((column, at) => { head.cells[at].hidden = unused[at]; });
  const body = table.tBodies[0];
  const there = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  rows.forEach((data, place) => {
    const name = key(data);
    let row = there.get(name);
    there.delete(name);
    if (!row) {
      row = document.createElement('tr');
      row.dataset.key = name;
      row.setAttribute('role', 'row');
      columns.forEach((column, at) => {
        const cell = document.createElement(at === 0 ? 'th' : 'td');
        if (at === 0) cell.scope = 'row';
        cell.setAttribute('role', at === 0 ? 'rowheader' : 'cell');
        cell.className = column.kind;
        cell.dataset.field = column.field;
        if (at > 0) cell.dataset.label = column.title;
        row.append(cell);
      });
    }
    mark(row, data);
    columns.forEach((column, at) => {
      const text = column.text(data);
      const cell = row.cells[at];
      if (cell.textContent !== text) cell.textContent = text;
      cell.classList.toggle('empty', text === '');
      cell.hidden = unused[at];
    });
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] || null);
  });
  for (const row of there.values()) row.remove();
}

const WORKER_COLUMNS = [
  {field: 'name', title: 'Worker', kind: 'text', text: (w) => `${w.worker} ${w.name}`},
  {field: 'state', title: 'State', kind: 'text pair', text: (w) => w.state + (w.state !== 'training' || w.seconds_since_seen > 3 ? `, seen ${duration(w.seconds_since_seen)} ago` : '')},
  {field: 'rate', title: 'Examples/s', kind: 'number', text: (w) => rate(ownRate(w))},
  {field: 'loss', title: 'Loss', kind: 'number', text: (w) => fixed(w.loss, 4)},
  {field: 'staleness', title: 'Staleness', kind: 'number', text: (w) => fixed(w.staleness_mean, 2)},
  {field: 'lag', title: 'Lag', kind: 'number', text: (w) => fixed(w.lag, 2)},
  {field: 'max', title: 'Highest', kind: 'number', text: (w) => count(w.staleness_max)},
  {field: 'pushes', title: 'Pushes', kind: 'number', text: (w) => count(w.pushes)},
  {field: 'examples', title: 'Examples', kind: 'number', text: (w) => count(w.examples)},
  {field: 'compression', title: 'Compression', kind: 'number', text: (w) => times(w.push_compression)},
  {field: 'kept', title: 'Kept back', kind: 'number', text: (w) => times(w.error_feedback_ratio)},
  {field: 'device', title: 'Device', kind: 'text pair', text: (w) => w.device},
  {field: 'waiting', title: 'Waits for', kind: 'text', text: (w) => w.waiting_for},
];

const of = (field, format) => (server) => (server.answers ? format(server[field]) : '');
const SERVER_COLUMNS = [
  {field: 'server', title: 'Server', kind: 'text', text: (s) => (known(s.shard) ? `shard ${s.shard}${s.lead ? ', the lead' : ''}` : s.address)},
  {field: 'state', title: 'State', kind: 'text pair', text: (s) => (s.answers ? `${s.state}${String(s.journal).startsWith('failed') ? ', journal failed' : ''}` : 'away')},
  {field: 'applied', title: 'Applied', kind: 'number', text: of('applied', count)},
  {field: 'stale', title: 'Stale', kind: 'number', text: of('stale', count)},
  {field: 'rejected', title: 'Rejected', kind: 'number', text: of('rejected', count)},
  {field: 'skipped', title: 'Skipped', kind: 'number', text: of('skipped', count)},
  {field: 'staleness', title: 'Staleness', kind: 'number', text: of('staleness_mean', (v) => fixed(v, 2))},
  {field: 'pushed', title: 'Pushed', kind: 'number', text: of('push_bytes', bytes)},
  {field: 'compression', title: 'Compression', kind: 'number', text: of('push_compression', times)},
  {field: 'pulled', title: 'Pulled', kind: 'number', text: of('pull_bytes', bytes)},
  {field: 'checkpoint', title: 'Checkpoint', kind: 'number', text: of('checkpoint_age_seconds', (v) => (known(v) ? `${duration(v)} ago` : 'none'))},
  {field: 'up', title: 'Up', kind: 'number', text: of('uptime_seconds', duration)},
  {field: 'waiting', title: 'Waits for', kind: 'text', text: (s) => (s.answers ? s.waiting_for : '')},
];

function histogram(staleness) {
  const body = element('histogram').tBodies[0];
  const total = staleness.buckets.reduce((sum, bucket) => sum + bucket.pushes, 0);
  const most = Math.max(1, ...staleness.buckets.map((bucket) => bucket.pushes));
  while (body.rows.length > staleness.buckets.length) body.lastElementChild.remove();
  staleness.buckets.forEach((bucket, place) => {
    let row = body.rows[place];
    if (!row) {
      row = body.insertRow();
      const title = document.createElement('th');
      title.scope = 'row';
      row.append(title);
      const bar = document.createElement('span');
      bar.className = 'fill';
      bar.setAttribute('aria-hidden', 'true');
      row.insertCell().append(bar);
      row.insertCell();
    }
    row.cells[0].textContent = bucket.to === null ? `${bucket.from} and more`
      : bucket.from === bucket.to ? `${bucket.from}` : `${bucket.from} to ${bucket.to}`;
    row.cells[1].firstChild.style.width = `${(100 * bucket.pushes) / most}%`;
    row.cells[2].textContent = total === 0 ? '-' : `${((100 * bucket.pushes) / total).toFixed(1)} %`;
    row.dataset.pushes = bucket.pushes;
  });
}

const SVG = 'http://www.w3.org/2000/svg';
function drawn(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// One curve over the seconds since the page was opened.
function chart(id, field, format, fromZero) {
  const points = curve.filter((point) => known(point[field]));
  const svg = element(`${id}-chart`);
  if (points.length < 2) { svg.replaceChildren(); return; }
  const left = 52, right = 392, top = 10, bottom = 126;
  const values = points.map((point) => point[field]);
  let low = fromZero ? 0 : Math.min(...values), high = Math.max(...values);
  if (high - low < 1e-9 + 1e-6 * Math.abs(high)) { high += Math.abs(high) * 0.1 || 1; if (!fromZero) low -= Math.abs(low) * 0.1; }
  const first = points[0].seconds, last = points[points.length - 1].seconds;
  const x = (seconds) => left + ((seconds - first) / (last - first)) * (right - left);
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  const parts = [];
  for (const value of [low, (low + high) / 2, high]) {
    parts.push(drawn('line', {class: 'grid', x1: left, x2: right, y1: y(value), y2: y(value)}));
    parts.push(drawn('text', {x: left - 6, y: y(value) + 4, 'text-anchor': 'end'}, format(value)));
  }
  const ago = last - first;
  parts.push(drawn('text', {x: left, y: bottom + 18}, `${duration(ago)} ago`));
  parts.push(drawn('text', {x: right, y: bottom + 18, 'text-anchor': 'end'}, 'now'));
  parts.push(drawn('path', {class: 'curve', d: points.map((p, i) => `${i === 0 ? 'M' : 'L'}${x(p.seconds).toFixed(1)} ${y(p[field]).toFixed(1)}`).join('')}));
  const end = points[points.length - 1];
  parts.push(drawn('circle', {class: 'now', r: 3.5, cx: x(end.seconds), cy: y(end[field])}));
  svg.replaceChildren(...parts);
  show(`${id}-text`, `${format(end[field])} now, ${format(values[0])} ${duration(ago)} ago; between ${format(Math.min(...values))} and ${format(Math.max(...values))} since this page was opened.`);
}

function header(status) {
  const job = status.job;
  show('job', job.name || 'Foreshard');
  document.title = job.name ? `${job.name} - Foreshard` : 'Foreshard';
  showOrHide('rule', job.rule);
  const away = status.servers.filter((server) => !server.answers).length;
  show('state', away > 0 ? `${away} of ${status.servers.length} servers away`
    : job.finished && job.finish_reason ? `${job.state}: ${job.finish_reason}` : job.state);
  element('state').className = `tag ${away > 0 ? 'bad' : job.state === 'training' && job.waiting_for === '' ? 'good' : job.finished ? '' : 'warn'}`;
  element('progress-row').hidden = !(job.epochs > 0);
  element('progress').value = job.progress;
  const round = job.round_members > 0 ? `, round ${count(job.round)} of ${job.round_members} workers${job.compressed ? ', compressed' : ''}` : '';
  show('position', `epoch ${job.epoch.toFixed(1)} of ${job.epochs} (${(100 * job.progress).toFixed(1)} %), learning rate ${known(job.learning_rate) ? Number(job.learning_rate.toPrecision(4)) : '-'}${round}`);
  const missing = status.servers.filter((server) => !server.answers).map((server) => `server ${server.address}, which does not answer`);
  const waits = [...missing, ...(job.waiting_for === '' ? [] : [job.waiting_for])];
  showOrHide('waiting', waits.length === 0 ? '' : `Waiting for ${waits.join('; ')}.`);
  const shards = status.totals.shards;
  const alone = status.daemon.role === 'server' && shards > 1;
  showOrHide('scope', !alone ? '' : job.has_lead
    ? `Staleness, bytes and pushes are those of shard 0 of ${shards}; the shards of a job are alike. A worker's own page has all of them together.`
    : `This is shard ${status.servers[0].shard} of ${shards}. Progress, losses and speeds are on the page of shard 0, the lead; a worker's own page has all shards together.`);
}

function tiles(status) {
  const {totals, traffic, staleness} = status;
  const examples = perSecond((s) => (s.job.has_lead ? s.totals.examples : undefined));
  const updates = perSecond((s) => (s.job.has_lead ? s.totals.updates : undefined));
  const speed = known(examples) ? examples : totals.examples_per_second;
  show('examples-rate', rate(speed));
  show('examples', status.job.has_lead ? `${count(totals.examples)} in all` : '');
  show('updates-rate', rate(known(updates) ? updates : totals.updates_per_second));
  const lost = [];
  if (totals.skipped > 0) lost.push(`${count(totals.skipped)} not finite`);
  if (totals.discarded > 0) lost.push(`${count(totals.discarded)} too late`);
  show('updates', status.job.has_lead ? [`${count(totals.updates)} in all`, ...lost].join(', ') : '');
  show('loss', fixed(totals.loss, 4));
  const newest = status.evaluations[0];
  show('accuracy', newest ? `test accuracy ${(100 * newest.accuracy).toFixed(2)} % (epoch ${newest.epoch})` : '');
  show('staleness-mean', staleness.pushes > 0 ? fixed(staleness.mean, 2) : '-');
  show('staleness-tail', staleness.pushes > 0 ? `median ${staleness.p50}, 99 % within ${staleness.p99}, most ${staleness.max}` : '');
  const pushed = perSecond((s) => s.traffic.push_bytes), pulled = perSecond((s) => s.traffic.pull_bytes);
  show('push-rate', known(pushed) ? `${bytes(pushed)}/s` : bytes(traffic.push_bytes));
  show('push-compression', smaller(traffic.push_compression));
  show('pull-rate', known(pulled) ? `${bytes(pulled)}/s` : bytes(traffic.pull_bytes));
  show('pull-compression', smaller(traffic.pull_compression));
  curve.push({seconds: performance.now() / 1000, loss: totals.loss, rate: speed});
  // Every other point goes, so that curves reach back to the start.
  if (curve.length > CURVE_POINTS) curve = curve.filter((point, i) => i % 2 === 1 || i === curve.length - 1);
}

function render(status) {
  remember(status);
  header(status);
  tiles(status);
  chart('loss', 'loss', (v) => v.toPrecision(4), false);
  chart('rate', 'rate', rate, true);
  histogram(status.staleness);
  const training = `${count(status.totals.training)} of ${count(status.totals.workers)} train`;
  show('workers-text', status.totals.workers === 0 ? 'None has come yet.'
    : status.workers_omitted > 0 ? `${training}; ${count(status.workers_omitted)} more are not listed.` : `${training}.`);
  fill('workers', WORKER_COLUMNS, status.workers, (w) => `${w.worker}/${w.name}`, (row, w) => {
    row.classList.toggle('away', w.state !== 'training');
    row.classList.toggle('own', status.daemon.role === 'worker' && w.name === status.daemon.name);
  });
  fill('servers', SERVER_COLUMNS, status.servers, (s) => s.address, (row, s) => row.classList.toggle('away', !s.answers));
  showOrHide('servers-text', status.servers.filter((s) => !s.answers).map((s) => s.error).join('\n'));
  element('workers').hidden = status.workers.length === 0;
  show('about', `Foreshard ${status.daemon.version}, page of ${status.daemon.role}${status.daemon.name ? ` ${status.daemon.name}` : ''}`);
  document.body.dataset.looks = Number(document.body.dataset.looks || 0) + 1;
}

// One question at a time; after an error with longer and longer pauses.
let paused = false;
let timer = 0;
let asking = false;
let failures = 0;
let lastAnswer = 0;

function connection(text, kind) {
  show('connection', text);
  element('connection').className = kind;
}

async function look() {
  if (asking) return;
  asking = true;
  try {
    const answer = await fetch('status.json', {cache: 'no-store', signal: AbortSignal.timeout(ANSWER_WITHIN_MS)});
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const status = await answer.json();
    failures = 0;
    lastAnswer = Date.now();
    connection(paused ? 'Paused' : 'Live', paused ? '' : 'live');
    render(status);
  } catch (error) {
    failures += 1;
    console.info(`status.json: ${error.message}`);
    const since = lastAnswer === 0 ? '' : `; the figures are ${duration((Date.now() - lastAnswer) / 1000)} old`;
    connection(`No answer${since}. Trying again`, 'lost');
  } finally {
    asking = false;
    schedule();
  }
}

function schedule() {
  clearTimeout(timer);
  if (paused || document.hidden) return;
  timer = setTimeout(look, failures === 0 ? POLL_MS : Math.min(LONGEST_PAUSE_MS, POLL_MS * failures));
}

element('pause').addEventListener('click', () => {
  paused = !paused;
  element('pause').setAttribute('aria-pressed', String(paused));
  if (paused) { clearTimeout(timer); connection('Paused', ''); } else { look(); }
});
document.addEventListener('visibilitychange', () => { if (document.hidden) clearTimeout(timer); else if (!paused) look(); });
look();
