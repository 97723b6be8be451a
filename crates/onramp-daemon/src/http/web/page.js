"use strict";
// What the daemon tells every second, as a tree, and the selected row as charts.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
// Points that a chart has, a second each, and the rows that are asked for at first.
const POINTS = 180, FEW = 300, MOST = 5000;
// How long no news is good news.
const STALE_MS = 4000;

const state = {
  stats: null, limit: FEW, selected: null, focused: null, paused: false, last: 0,
  // What was opened or closed by hand; the rest follows `opens`.
  open: new Map(), history: new Map(), trs: new Map(), order: [], source: null,
};

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Figures, as short as they can be read.

function scaled(value, units, step = 1000) {
  let unit = 0;
  while (unit < units.length - 1 && value >= step * 0.9995) { value /= step; unit += 1; }
  const digits = value === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return value.toFixed(digits) + units[unit];
}

const known = (write) => (value) => value === null || value === undefined ? "–" : write(value);
const bits = known((bytes) => scaled(bytes * 8, [" bit", " Kbit", " Mbit", " Gbit", " Tbit"]));
const count = known((value) => value < 1000 && value % 1 === 0 ? String(value)
  : scaled(value, ["", "k", "M", "G", "T"]));
const bytes = known((value) => scaled(value, [" B", " kB", " MB", " GB", " TB", " PB"]));
const time = known((ns) => scaled(ns, [" ns", " µs", " ms", " s"]));
const exact = known((value) => value.toLocaleString("en"));

// News.

function connect() {
  if (state.source) state.source.close();
  const query = new URLSearchParams({ limit: state.limit, sort: $("sort").value });
  const filter = $("filter").value.trim();
  if (filter) query.set("filter", filter);
  if (state.selected) query.set("keep", state.selected);
  const source = new EventSource("/api/v1/events?" + query);
  source.addEventListener("stats", (event) => {
    state.last = Date.now();
    if (state.paused) { say(); return; }
    state.stats = JSON.parse(event.data);
    if (state.stats.seconds !== null) remember(state.stats);
    render();
  });
  source.addEventListener("error", () => {
    say();
    // A browser gives up where the answer is no stream of events; we do not.
    if (source.readyState === EventSource.CLOSED && state.source === source) {
      setTimeout(() => { if (state.source === source) connect(); }, 2000);
    }
  });
  state.source = source;
}

function remember(stats) {
  for (const row of stats.rows) {
    let past = state.history.get(row.id);
    if (!past) state.history.set(row.id, past = []);
    past.push({
      at: stats.unix_ms, rate: row.bytes_per_second, backlog: row.backlog_packets,
      p50: row.sojourn_p50_ns, p99: row.sojourn_p99_ns,
    });
    if (past.length > POINTS) past.shift();
  }
  // What has gone is forgotten in the end.
  for (const [id, past] of state.history) {
    if (stats.unix_ms - past[past.length - 1].at > POINTS * 1000) state.history.delete(id);
  }
}

function say() {
  const silent = Date.now() - state.last;
  const lost = state.source !== null && silent > STALE_MS;
  const seen = state.last > 0;
  document.body.classList.toggle("old", lost && seen);
  $("state").className = lost ? "lost" : seen ? "live" : "";
  const text = lost ? "no answer" : !seen ? "connecting" : state.paused ? "paused" : "live";
  if ($("state-text").textContent !== text) $("state-text").textContent = text;
  $("gone").hidden = !lost;
  if (lost) {
    const since = seen ? `for ${Math.round(silent / 1000)} s` : "";
    const text = `The daemon has not answered ${since}. This page tries again by itself; is ` +
      "“onramp daemon” still running?";
    if ($("gone").textContent !== text) $("gone").textContent = text;
  }
}

// The tree.

// A queue that is the only one says nothing that its device does not say.
function shown(rows) {
  const alone = new Set(rows.filter((row) => row.queues === 1).map((row) => row.device));
  const kept = [];
  for (const row of rows) {
    if (!alone.has(row.device)) kept.push({ row, depth: row.depth });
    else if (row.what !== "queue") kept.push({ row, depth: Math.max(0, row.depth - 1) });
  }
  kept.forEach((item, at) => { item.parent = at + 1 < kept.length && kept[at + 1].depth > item.depth; });
  return kept;
}

function opens(item, many) {
  const byHand = state.open.get(item.row.id);
  if (byHand !== undefined) return byHand;
  if ($("filter").value.trim()) return true;
  return item.row.what !== "queue" || !many.has(item.row.device);
}

function visible(rows) {
  const many = new Set(rows.filter((row) => row.queues > 4).map((row) => row.device));
  const out = [];
  let closed = Infinity;
  for (const item of shown(rows)) {
    if (item.depth > closed) continue;
    item.open = item.parent && opens(item, many);
    closed = item.parent && !item.open ? item.depth : Infinity;
    out.push(item);
  }
  return out;
}

function newRow(id) {
  const toggle = make("button", { class: "toggle", tabindex: "-1", type: "button" });
  const name = make("span", { class: "name" });
  const spark = draw("svg", { class: "spark", viewBox: "0 0 60 20", preserveAspectRatio: "none",
    "aria-hidden": "true" });
  const paths = [draw("path", {}), draw("path", {})];
  spark.append(...paths);
  const first = make("td", { role: "rowheader" }, toggle, name);
  const cells = Array.from({ length: 5 }, () => make("td", { role: "gridcell" }));
  cells[1].className = "wide";
  const graph = make("td", { role: "gridcell", class: "wide" }, spark);
  const tr = make("tr", { role: "row", tabindex: "-1" }, first, graph, ...cells);
  tr.dataset.id = id;
  toggle.addEventListener("click", (event) => {
    event.stopPropagation();
    setOpen(id, tr.getAttribute("aria-expanded") !== "true");
  });
  tr.addEventListener("click", () => select(id, true));
  tr.addEventListener("focus", () => select(id, false));
  return { tr, first, toggle, name, paths, cells };
}

function put(cell, text, style) {
  if (cell.textContent !== text) cell.textContent = text;
  const base = cell.classList.contains("wide") ? "wide " : "";
  if (cell.className !== base + style) cell.className = base + style;
}

function fill(parts, item) {
  const { row, depth } = item;
  const { tr, first, toggle, name, paths, cells } = parts;
  tr.className = row.what;
  tr.setAttribute("aria-level", depth + 1);
  tr.setAttribute("aria-selected", row.id === state.selected);
  if (item.parent) tr.setAttribute("aria-expanded", item.open);
  else tr.removeAttribute("aria-expanded");
  first.className = "in" + Math.min(depth, 6);
  const sign = !item.parent ? "" : item.open ? "▾" : "▸";
  if (toggle.textContent !== sign) toggle.textContent = sign;
  toggle.setAttribute("aria-label", item.open ? "Close" : "Open");
  toggle.disabled = !item.parent;
  const label = [row.kind, row.handle, row.up, row.queues, Boolean(row.shares)].join();
  if (name.dataset.label !== label) {
    name.dataset.label = label;
    name.replaceChildren(...named(row));
  }
  const past = (state.history.get(row.id) || []).slice(-60);
  const [area, edge] = outline(past.map((point) => point.rate));
  paths[0].setAttribute("d", area);
  paths[1].setAttribute("d", edge);
  const plain = (value) => value ? "" : "zero";
  put(cells[0], bits(row.bytes_per_second), plain(row.bytes_per_second));
  put(cells[1], count(row.packets_per_second), plain(row.packets_per_second));
  put(cells[2], count(row.backlog_packets), row.backlog_packets ? "waits" : "zero");
  put(cells[3], time(row.sojourn_p99_ns), row.sojourn_p99_ns === null ? "zero" : "");
  put(cells[4], count(row.drops_per_second), row.drops_per_second ? "drops" : "zero");
}

function named(row) {
  const badge = (text, style = "") => make("span", { class: "badge " + style }, text);
  const handle = () => make("span", { class: "handle" }, row.handle);
  // A limit's name may be long, so it stands beside the charts only.
  const fleet = row.shares ? [badge("fleet")] : [];
  switch (row.what) {
    case "device": {
      const parts = [row.device, badge(row.kind)];
      if (row.queues > 1) parts.push(badge(`${exact(row.queues)} queues`));
      if (!row.up) parts.push(badge("down", "down"));
      return parts;
    }
    case "queue": return [`queue ${row.queue}`];
    case "qdisc": return [row.kind, handle(), ...fleet];
    default: return ["class", handle(), ...fleet];
  }
}

function outline(values) {
  if (values.length < 2) return ["", ""];
  const most = Math.max(...values, 1);
  const step = 60 / 59, from = 60 - (values.length - 1) * step;
  const points = values.map((value, at) =>
    `${(from + at * step).toFixed(1)} ${(19 - 18 * (value || 0) / most).toFixed(1)}`);
  const edge = points.join("L");
  return [`M${from.toFixed(1)} 20L${edge}L60 20Z`, `M${edge}`];
}

function render() {
  say();
  const { stats } = state;
  if (!stats) return;
  const filtered = $("filter").value.trim() !== "";
  const items = visible(stats.rows);
  state.order = items;
  $("empty").hidden = filtered || items.length > 0;
  $("nothing").hidden = !filtered || items.length > 0;
  $("tree").hidden = items.length === 0;
  const cut = stats.omitted > 0 && stats.rows.length >= state.limit;
  $("more").hidden = !cut;
  $("omitted").textContent = cut
    ? `${exact(stats.omitted)} rows are not shown. A filter, or another order, brings others.` : "";
  $("show-more").hidden = state.limit >= MOST;
  const all = !filtered && stats.omitted === 0;
  if (all && !stats.rows.some((row) => row.id === state.selected)) state.selected = null;
  if (!state.selected && items.length) state.selected = items[0].row.id;
  const ids = new Set(items.map((item) => item.row.id));
  if (!ids.has(state.focused)) state.focused = ids.has(state.selected) ? state.selected
    : items.length ? items[0].row.id : null;
  const body = $("rows");
  const rows = items.map((item) => {
    let parts = state.trs.get(item.row.id);
    if (!parts) state.trs.set(item.row.id, parts = newRow(item.row.id));
    fill(parts, item);
    parts.tr.tabIndex = item.row.id === state.focused ? 0 : -1;
    return parts.tr;
  });
  const same = rows.length === body.children.length && rows.every((tr, at) => body.children[at] === tr);
  if (!same) {
    const active = document.activeElement;
    body.replaceChildren(...rows);
    if (active && active !== document.activeElement && body.contains(active)) active.focus();
    for (const id of state.trs.keys()) if (!ids.has(id)) state.trs.delete(id);
  }
  detail();
}

function select(id, focus) {
  const other = state.selected !== id;
  state.selected = state.focused = id;
  if (focus) state.trs.get(id)?.tr.focus();
  if (other) render();
}

function setOpen(id, open) {
  state.open.set(id, open);
  render();
}

$("rows").addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const at = state.order.findIndex((item) => item.row.id === state.focused);
  const item = state.order[at];
  if (!item) return;
  const go = (to) => {
    const target = state.order[Math.max(0, Math.min(state.order.length - 1, to))];
    select(target.row.id, true);
  };
  switch (event.key) {
    case "ArrowDown": go(at + 1); break;
    case "ArrowUp": go(at - 1); break;
    case "PageDown": go(at + 20); break;
    case "PageUp": go(at - 20); break;
    case "Home": go(0); break;
    case "End": go(state.order.length - 1); break;
    case "ArrowRight":
      if (item.parent && !item.open) setOpen(item.row.id, true);
      else if (item.parent) go(at + 1);
      break;
    case "ArrowLeft": {
      if (item.open) { setOpen(item.row.id, false); break; }
      let above = at;
      while (above > 0 && state.order[above].depth >= item.depth) above -= 1;
      go(above);
      break;
    }
    case "Enter": case " ": if (item.parent) setOpen(item.row.id, !item.open); break;
    default: return;
  }
  event.preventDefault();
});

// The selected row.

const CHARTS = [
  { name: "Rate", write: bits, least: 125, area: true, lines: [["rate", ""]] },
  { name: "Backlog", write: (value) => count(value) + " packets", short: count, least: 4, area: true,
    lines: [["backlog", ""]] },
  { name: "Latency", write: time, least: 1000, lines: [["p50", "p50 "], ["p99", "p99 "]] },
];
const WIDTH = 352, HEIGHT = 118, LEFT = 62, TOP = 8, BOTTOM = 18;

function newChart(chart) {
  const output = make("output");
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  const heading = make("div", { class: "heading" }, make("h3", {}, chart.name), output);
  $("charts").append(heading, svg);
  Object.assign(chart, { output, svg, pointed: null });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    chart.pointed = (event.clientX - box.left) / box.width * WIDTH;
    detail();
  });
  svg.addEventListener("pointerleave", () => { chart.pointed = null; detail(); });
}

// The next round figure.
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value * 0.9999) * power;
}

function plot(chart, past) {
  const values = past.flatMap((point) => chart.lines.map(([key]) => point[key] || 0));
  const scale = chart.name === "Rate" ? 8 : 1;
  const top = ceiling(Math.max(chart.least, ...values) * scale) / scale;
  const x = (at) => WIDTH - 4 - (past.length - 1 - at) * (WIDTH - 4 - LEFT) / (POINTS - 1);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
  const parts = [];
  for (const part of [0, 0.5, 1]) {
    parts.push(draw("line", { class: "grid", x1: LEFT, x2: WIDTH - 4, y1: y(top * part), y2: y(top * part) }));
    const text = draw("text", { x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" });
    text.textContent = part === 0 ? "0" : (chart.short || chart.write)(top * part);
    parts.push(text);
  }
  for (const [anchor, at, words] of [["start", LEFT, "3 minutes ago"], ["end", WIDTH - 4, "now"]]) {
    const text = draw("text", { x: at, y: HEIGHT - 4, "text-anchor": anchor });
    text.textContent = words;
    parts.push(text);
  }
  chart.lines.forEach(([key], number) => {
    const d = line(past, key, x, y);
    if (chart.area && past.length > 1) {
      parts.push(draw("path", { class: "area", d: `${d}L${x(past.length - 1)} ${y(0)}L${x(0)} ${y(0)}Z` }));
    }
    parts.push(draw("path", { class: `line${number + 1}`, d }));
  });
  let at = past.length - 1;
  if (chart.pointed !== null) {
    at = past.findIndex((_, index) => x(index) >= chart.pointed);
    at = at < 0 ? past.length - 1 : at;
    parts.push(draw("line", { class: "at", x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM }));
  }
  chart.svg.replaceChildren(...parts);
  const point = past[at];
  const said = chart.lines.flatMap(([key, name], number) => [
    number ? "  " : "", make("span", { class: number ? "key2" : "key" }, name),
    point ? chart.write(point[key]) : "–",
  ]);
  const ago = chart.pointed !== null && point
    ? ` ${Math.round((past[past.length - 1].at - point.at) / 1000)} s ago` : "";
  chart.output.replaceChildren(...said, ago);
  chart.svg.setAttribute("aria-label", `${chart.name} over three minutes; ${chart.output.textContent}`);
}

// A line with a gap where nothing was measured.
function line(past, key, x, y) {
  let pen = "M";
  return past.map((point, at) => {
    if (point[key] === null) { pen = "M"; return ""; }
    const step = `${pen}${x(at).toFixed(1)} ${y(point[key]).toFixed(1)}`;
    pen = "L";
    return step;
  }).join("");
}

function detail() {
  const row = state.stats && state.stats.rows.find((row) => row.id === state.selected);
  $("detail").hidden = !row;
  if (!row) return;
  const where = row.what === "device" ? "" : ` on ${row.device}` +
    (row.what === "queue" || row.queue === 0 ? "" : `, queue ${row.queue}`);
  const what = { device: row.device, queue: `queue ${row.queue}`, class: `class ${row.handle}`,
    qdisc: `${row.kind} ${row.handle}` }[row.what];
  $("detail-name").textContent = what + where;
  const facts = [["sent", `${bytes(row.sent_bytes)} in ${exact(row.sent_packets)} packets`],
    ["dropped", `${exact(row.dropped_packets)} packets`],
    ["waiting", `${exact(row.backlog_packets)} packets` +
      (row.backlog_bytes === undefined ? "" : `, ${bytes(row.backlog_bytes)}`)]];
  if (row.what === "device") {
    facts.unshift(["kind", row.kind], ["state", row.up ? "up" : "down: it takes no packets"]);
  }
  if (row.relay) facts.push(...relayed(row.relay));
  for (const share of row.shares || []) facts.push(...shared(share));
  if (row.parent) facts.unshift(["below", row.parent]);
  const list = $("facts");
  const text = facts.flat();
  if (list.children.length !== text.length) {
    list.replaceChildren(...facts.flatMap(([name]) => [make("dt", {}, name), make("dd")]));
  }
  text.forEach((words, at) => {
    if (list.children[at].textContent !== words) list.children[at].textContent = words;
  });
  for (const chart of CHARTS) plot(chart, state.history.get(row.id) || []);
  const drops = Object.entries(row.drops || {}).filter(([, drop]) => drop.packets > 0);
  $("drops").hidden = drops.length === 0;
  $("no-drops").hidden = drops.length > 0;
  drops.sort(([, a], [, b]) => b.packets - a.packets);
  $("drops").tBodies[0].replaceChildren(...drops.map(([reason, drop]) => make("tr", {},
    make("td", {}, reason), make("td", {}, exact(drop.packets)),
    make("td", { class: drop.per_second ? "drops" : "zero" }, count(drop.per_second) + "/s"))));
}

// A share of a limit that a fleet of hosts has in common.
function shared(share) {
  const came = {
    granted: "", alone: ": guaranteed, because the fleet’s engine does not answer",
    full: ": the limit has all the hosts that it may have", unknown: ": no such limit is known",
  }[share.standing];
  const age = share.answer_age_ms;
  return [["fleet limit", `${share.limit}, weight ${exact(share.weight)}`],
    ["share", bits(share.share_bytes_per_second) + "/s" + came],
    ["sends", bits(share.used_bytes_per_second) + "/s"],
    ["wants", bits(share.demand_bytes_per_second) + "/s"],
    ["guaranteed", bits(share.floor_bytes_per_second) + "/s"],
    ["engine", age === null ? "has never answered" : `answered ${time(age * 1e6)} ago`]];
}

// What the relay of a device has done.
function relayed(relay) {
  const refused = (counts) => Object.entries(counts)
    .map(([reason, packets]) => `, ${exact(packets)} refused (${reason})`).join("");
  const { clients, clients_max, forgotten, errors, answers } = relay;
  return [["clients", `${exact(clients)} of ${exact(clients_max)}, ${exact(forgotten)} forgotten` +
      refused(relay.refused)],
    ["answers", `${bytes(answers.bytes)} in ${exact(answers.packets)} packets` +
      refused(answers.refused)],
    ["errors", exact(errors)]];
}

// What people ask for.

let soon = 0;
function ask() {
  clearTimeout(soon);
  soon = setTimeout(connect, 250);
}
$("filter").addEventListener("input", () => { render(); ask(); });
$("sort").addEventListener("change", ask);
$("tools").addEventListener("submit", (event) => event.preventDefault());
$("show-more").addEventListener("click", () => { state.limit = Math.min(MOST, state.limit * 4); connect(); });
$("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", state.paused);
  say();
});
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape" && event.target === $("filter")) {
    $("filter").value = "";
    render();
    ask();
  } else if (!typing && event.key === "/") {
    $("filter").focus();
    event.preventDefault();
  } else if (!typing && event.key === "p") {
    $("pause").click();
  }
});

// Commands, where they are allowed.

const typed = [];
let place = 0;

// Words as a shell splits them: quotes keep spaces, a backslash keeps what follows.
function words(line) {
  const found = [];
  let word = null, quote = "";
  for (let at = 0; at < line.length; at += 1) {
    let c = line[at];
    if (c === "\\" && quote !== "'" && at + 1 < line.length) { c = line[at += 1]; }
    else if (quote && c === quote) { quote = ""; continue; }
    else if (!quote && (c === "'" || c === '"')) { quote = c; word ??= ""; continue; }
    else if (!quote && /\s/.test(c)) { if (word !== null) found.push(word); word = null; continue; }
    word = (word ?? "") + c;
  }
  if (word !== null) found.push(word);
  return found;
}

async function run(line) {
  const reply = $("reply");
  reply.hidden = false;
  const add = (tag, text) => reply.append(make(tag, {}, text));
  add("b", `$ ${line}\n`);
  try {
    const answer = await fetch("/api/v1/exec", { method: "POST",
      headers: { "Content-Type": "application/json" }, body: JSON.stringify({ argv: words(line) }) });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error);
    const end = (text) => text && !text.endsWith("\n") ? text + "\n" : text;
    if (said.out) add("span", end(said.out));
    if (said.err) add("i", end(said.err));
    if (said.code) add("i", `exit status ${said.code}\n`);
  } catch (error) {
    add("i", `${error.message}\n`);
  }
  while (reply.childNodes.length > 200) reply.firstChild.remove();
  reply.scrollTop = reply.scrollHeight;
}

$("command").addEventListener("submit", (event) => {
  event.preventDefault();
  const line = $("line").value.trim();
  if (!line) return;
  if (typed[typed.length - 1] !== line) typed.push(line);
  place = typed.length;
  $("line").value = "";
  run(line);
});
$("line").addEventListener("keydown", (event) => {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!step || !typed.length) return;
  place = Math.max(0, Math.min(typed.length, place + step));
  $("line").value = typed[place] ?? "";
  event.preventDefault();
});

$("command").hidden = document.body.dataset.control !== "yes";
CHARTS.forEach(newChart);
setInterval(say, 1000);
connect();
