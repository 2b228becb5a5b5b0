// The status page: asks info.json each second and shows what it says. It keeps nothing but the points of its graphs,
// which begin with those of history.json, and writes only text into the page, never markup.
"use strict";

const $ = (id) => document.getElementById(id);
const SPAN_S = 900; // for which points are kept
const RATE_S = 5; // over which a rate is taken
const TRAIL_S = 60; // of the limiter's trail, of recent ages and of recent waiting
const BRIEF_S = 1; // a wait that ends sooner is the limiter at work

let server = null; // whose points these are
let past = null; // {at_s: [], resident_bytes: [], tables: {name: {size: [], …}}}
let minute = []; // [{at_s, tables: {name: {ages, blocked}}}] of the last minute

// --- words and numbers ---------------------------------------------------------------------------------------------

const count = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;

function number(n) {
  const size = Math.abs(n);
  if (size >= 1e9) return `${(n / 1e9).toPrecision(3)} G`;
  if (size >= 1e6) return `${(n / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return `${(n / 1e3).toPrecision(3)} k`;
  return size >= 100 || Number.isInteger(n) ? String(Math.round(n)) : n.toPrecision(2);
}

function bytes(n) {
  let unit = 0;
  while (n >= 1024 && unit < 4) { n /= 1024; unit += 1; }
  return `${unit && n < 100 ? n.toPrecision(3) : Math.round(n)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

function duration(s) {
  if (s < 0.01) return `${(s * 1000).toPrecision(2)} ms`;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s < 10 ? +s.toFixed(1) : Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s < 600 && s % 60 >= 1 ? ` ${Math.floor(s % 60)} s` : ""}`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// "0.01" → "10 ms", "14400" → "4 h": a bound, which is a round number of some unit.
function bound(s) {
  if (s < 1) return `${Math.round(s * 1000)}ms`;
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${s / 60}min`;
  return s < 86400 ? `${s / 3600}h` : `${s / 86400}d`;
}

// What a graph may be of.
const PER_SECOND = { text: (n) => `${number(n)}/s`, size: () => 1 };
const BYTES = { text: bytes, size: (n) => 1024 ** Math.max(0, Math.floor(Math.log2(n) / 10)) };

const percent = (share) => `${share > 0 && share < 0.0095 ? "<1" : Math.round(share * 100)} %`;

// --- the page ------------------------------------------------------------------------------------------------------

const slot = (root, key) => root.querySelector(`[data-k="${key}"]`);
const say = (root, key, text) => { const at = slot(root, key); if (at.textContent !== text) at.textContent = text; return at; };
const width = (element, share) => { element.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`; };
const left = (element, share) => { element.style.left = `${Math.max(0, Math.min(1, share)) * 100}%`; };

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function facts(list, rows) {
  while (list.children.length > rows.length) list.lastChild.remove();
  rows.forEach(([term, text, bad], i) => {
    const row = list.children[i] || list.appendChild(make("div"));
    if (!row.firstChild) row.append(make("dt"), make("dd"));
    row.firstChild.textContent = term;
    row.lastChild.textContent = text;
    row.lastChild.className = bad ? "bad" : "";
  });
}

function show(info) {
  document.title = `replayd · ${location.host}`;
  $("server").textContent = `${info.server.replace("replayd ", "")} at ${location.host}, up ${duration(info.uptime_s)}`;
  showTiles(info);
  const cards = $("tables");
  while (cards.children.length > info.tables.length) cards.lastChild.remove();
  const states = info.tables.map((table, i) => {
    const card = cards.children[i] || cards.appendChild($("table").content.firstElementChild.cloneNode(true));
    return showTable(card, table, info.store?.inserts_wait);
  });
  const worst = ["bad", "insert", "sample", "flowing", ""].map((kind) => states.find((s) => s.kind === kind)).find(Boolean);
  $("state").textContent = states.length > 1 && worst.kind !== "flowing" && worst.kind ? `${worst.name}: ${worst.text}` : worst.text;
  $("state").className = `pill ${worst.kind}`;
  showMemory(info);
  showCounts(info);
}

function showTiles(info) {
  const rates = info.tables.map((table) => rateOf(past.tables[table.name]));
  const sum = (key) => rates.reduce((total, rate) => total + rate[key], 0);
  const tiles = $("tiles");
  for (const key of ["inserts", "samples"]) {
    say(tiles, key, `${number(sum(key))} /s`);
    say(tiles, `${key}-of`, `${number(info.tables.reduce((total, table) => total + table.limiter[key], 0))} in all`);
  }
  const { resident_bytes: resident, limit_bytes: limit } = info.memory;
  const whole = info.memory.bytes_when_full ?? resident;
  const growth = whole - resident;
  const [used, ahead] = slot(tiles, "memory-meter").children;
  say(tiles, "memory", bytes(resident));
  width(used, limit ? resident / limit : 0);
  left(ahead, limit ? Math.min(whole / limit, 0.995) : 0);
  ahead.hidden = !growth;
  ahead.className = !limit || whole <= limit ? "" : "bad";
  const empty = info.tables.filter((table) => !table.size).map((table) => table.name);
  const fits = !limit || whole <= limit;
  const full = `about ${bytes(whole)} when all tables are full${fits ? "" : ": too much"}`;
  const forecast = empty.length === info.tables.length ? "no forecast before there are items" : growth || empty.length ? full : "tables are full";
  const unknown = empty.length && empty.length < info.tables.length ? ` (but for ${empty.join(", ")}, not known yet)` : "";
  const { held_bytes: held, max_bytes: most } = info.memory;
  const may = most === undefined ? "" : `tables hold ${bytes(held)} of ${bytes(most)} (max_bytes); `;
  say(tiles, "memory-of", `${limit ? `of ${bytes(limit)}; ` : ""}${may}${forecast}${unknown}`);
  say(tiles, "peers", number(info.peers.connected));
  say(tiles, "peers-of", `${info.peers.connected === 1 ? "connection" : "connections"}, ${count(info.streams.open, "writer")}; ${info.peers.waiting ? `${count(info.peers.waiting, "peer")} waiting` : "nobody waits"}`);
  say(tiles, "loop", `${percent(busyOf(info))} busy`);
  showDurable(tiles, info.store);
  say(tiles, "loop-of", `slowest turn lately ${duration(info.loop.slowest_turn_s)}`);
}

function showMemory(info) {
  const full = info.memory.bytes_when_full ?? info.memory.resident_bytes;
  const growth = full - info.memory.resident_bytes;
  const lines = [
    { name: "in use", colour: "plain", values: past.resident_bytes },
    { name: "when full", colour: "dim", dash: [5, 5], values: past.at_s.map(() => (growth ? full : null)) },
  ];
  const card = $("memory");
  say(card, "resident", bytes(info.memory.resident_bytes));
  say(card, "full", bytes(full)).parentElement.hidden = !growth;
  graph(slot(card, "memory-graph"), past.at_s, lines, BYTES);
}

function showDurable(tiles, store) {
  slot(tiles, "durable-tile").hidden = !store;
  if (!store) return;
  const { running, last, last_error: error, durable_age_s: age, checkpoint_age_s: checkpoint } = store;
  say(tiles, "durable", age === undefined ? "not yet" : `${duration(age)} ago`);
  const took = last ? `the last checkpoint took ${duration(last.duration_s)}, wrote ${bytes(last.bytes)} and held requests for ${duration(last.held_ms / 1000)}` : "no checkpoint since the start";
  const writing = running && `writing a checkpoint for ${duration(running.elapsed_s)}: ${running.phase}${running.chunks_total ? `, ${number(running.chunks)} of ${count(running.chunks_total, "chunk")}` : ""}`;
  say(tiles, "durable-of", writing || (error ? `the last checkpoint failed: ${error}` : took)).className = error && !writing ? "bad" : "";
  // With a journal what is durable is younger than the checkpoint, whose age is what a restart has to repeat.
  say(tiles, "checkpoint", `${last ? "the last checkpoint is of" : "without a checkpoint since the start,"} ${duration(checkpoint)} ago`).hidden = !store.journal;
}

let turns = []; // [[uptime_s, busy seconds]] of the last ten seconds
function busyOf(info) {
  turns.push([info.uptime_s, info.loop.turn_s.sum]);
  turns = turns.filter(([at]) => at > info.uptime_s - 10 && at <= info.uptime_s);
  const [[from, before]] = turns;
  return info.uptime_s > from ? (info.loop.turn_s.sum - before) / (info.uptime_s - from) : 0;
}

// --- a table -------------------------------------------------------------------------------------------------------

function showTable(card, table, disk) {
  const points = past.tables[table.name];
  const rate = rateOf(points);
  const state = stateOf(table, rate, points, disk);
  say(card, "name", table.name);
  const selector = (s) => s.kind + (s.priority_exponent === undefined ? "" : ` (exponent ${s.priority_exponent})`);
  const draws = table.max_times_sampled ? `, ${table.max_times_sampled === 1 ? "one draw" : `${table.max_times_sampled} draws`} of each at most` : "";
  say(card, "policy", `drawn ${selector(table.sampler)}, removed ${selector(table.remover)}${draws}`);
  say(card, "state", state.text).className = `pill ${state.kind}`;
  say(card, "words", state.words).className = `words ${state.kind}`;

  const { held_bytes: held, max_bytes: most, bytes_when_full: whole } = table;
  const shares = [table.size / table.max_size, most ? held / most : 0];
  const fill = Math.max(...shares);
  say(card, "fill", `${percent(fill)}${most ? ` of ${shares[1] > shares[0] ? "max_bytes" : "max_size"}` : ""}`);
  width(slot(card, "fill-meter").firstChild, fill);
  const full = whole > held && whole !== most ? `; about ${bytes(whole)} when full` : "";
  say(card, "fill-of", `${number(table.size)} of ${count(table.max_size, "item")} of ${count(table.episodes, "episode")}, ${bytes(held)} held${most ? ` of ${bytes(most)}` : ""}${full}`);

  showBand(card, table, points);
  say(card, "insert-rate", `${number(rate.inserts)}/s`);
  say(card, "sample-rate", `${number(rate.samples)}/s`);
  const line = (side) => ({ name: `${side}s`, colour: side, values: rates(points[`${side}s`]) });
  graph(slot(card, "graph"), past.at_s, [line("insert"), line("sample")], PER_SECOND);

  const recent = recentAges(table);
  say(card, "ages-of", recent.of);
  bars(slot(card, "ages"), table.sample_age_s.bounds.map(bound), recent.counts, "draws", "nothing has been drawn yet");
  const looked = table.times_sampled.counts.reduce((a, b) => a + b, 0);
  say(card, "times-of", looked && looked < table.size ? `of ${number(looked)} items looked at` : "of the items there are");
  const bounds = table.times_sampled.bounds;
  const names = bounds.map((b, i) => (i && b - bounds[i - 1] > 1 ? `${bounds[i - 1] + 1}–${b}` : String(b)));
  bars(slot(card, "times"), names, table.times_sampled.counts, "items", "there are no items");

  const blocked = (side) => {
    const terms = Object.entries(table.blocked_by_s[side]).filter(([, s]) => s >= 0.05);
    if (!terms.length) return "never";
    const total = duration(table.blocked_s[side]);
    return terms.length === 1 ? `${total}: ${terms[0][0]}` : `${total}: ${terms.map(([term, s]) => `${term} ${duration(s)}`).join(", ")}`;
  };
  facts(slot(card, "facts"), [
    ["Inserts waited", blocked("insert")],
    ["Samples waited", blocked("sample")],
    ["Samples per insert", table.limiter.inserts ? `${+(table.limiter.samples / table.limiter.inserts).toPrecision(3)} so far` : "–"],
    ["Evicted without a draw", table.evictions ? `${number(table.evicted_unsampled)} of ${number(table.evictions)} (${percent(table.evicted_unsampled / table.evictions)})` : "nothing evicted"],
    ["Drawn at least once", count(table.unique_samples, "item")],
    ...(table.staleness_versions ? [["Policy", recentStaleness(table)]] : []),
    ...(table.max_priority === undefined ? [] : [["Largest priority", number(table.max_priority)]]),
    ...(table.extension_faults ? [["Faults of extensions", number(table.extension_faults), true]] : []),
  ]);
  return { name: table.name, ...state };
}

// `disk`: why inserts into all tables wait for it; undefined where they do not.
function stateOf(table, rate, points, disk) {
  const sentences = table.waiting.map((side) => {
    const needs = side.side === "insert" ? side.needs_samples : side.needs_inserts;
    const free = needs === undefined ? "" : ` ${count(needs, side.side === "insert" ? "sample" : "insert")} would set the first one free.`;
    const more = side.peers > side.who.length ? ", …" : "";
    const who = side.who.length ? ` (${side.who.join(", ")}${more})` : "";
    const verb = side.requests === 1 ? "waits" : "wait";
    return `${count(side.requests, `${side.side} request`)} of ${count(side.peers, "peer")}${who} ${verb}, the first for ${duration(side.waited_s)}: ${side.why}.${free}`;
  });
  const words = sentences.join(" ");
  if (disk) return { kind: "bad", text: "inserts wait for the disk", words: `Inserts wait: ${disk}. ${words}`.trim() };
  const paused = table.paused.length ? `${table.paused.join("s and ")}s paused` : "";
  if (paused) {
    return { kind: table.waiting.length ? table.waiting[0].side : "", text: paused, words: words || `An operator holds back ${table.paused.join("s and ")}s; nobody waits for them.` };
  }
  const flows = rate.inserts > 0 && rate.samples > 0;
  if (flows && table.waiting.every((side) => side.waited_s < BRIEF_S)) {
    const brief = table.waiting.length ? "The limiter holds requests back for moments." : "Nobody waits.";
    return { kind: "flowing", text: "flowing", words: brief + recentWaiting(table) };
  }
  if (table.waiting.length === 2) return { kind: "bad", text: "both sides wait", words };
  if (table.waiting.length) {
    const side = table.waiting[0].side;
    const who = { writers: "is a writer running?", learners: "is a learner running?" }[table.waiting[0].who_must_act];
    const stands = rate[side === "insert" ? "samples" : "inserts"] === 0 && who ? ` Nothing comes from the other side: ${who}` : "";
    return { kind: side, text: `${side}s wait`, words: words + stands + recentWaiting(table) };
  }
  if (rate.inserts || rate.samples) return { kind: "flowing", text: "flowing", words: `Nobody waits.${recentWaiting(table)}` };
  const quiet = quietFor(points);
  return { kind: "", text: "idle", words: quiet === null ? "Nobody waits, and nothing has come in or gone out yet." : `Nobody waits, and nothing has come in or gone out for ${quiet}.` };
}

function quietFor(points) {
  const last = points.inserts.length - 1;
  if (points.inserts[last] === 0 && points.samples[last] === 0) return null;
  let i = last;
  while (i > 0 && points.inserts[i - 1] === points.inserts[last] && points.samples[i - 1] === points.samples[last]) i -= 1;
  const quiet = duration(past.at_s[last] - past.at_s[i]);
  return i === 0 ? `${quiet} or longer` : quiet;
}

function showBand(card, table, points) {
  const { cursor, min_diff: low, max_diff: high, min_size_to_sample: least } = table.limiter;
  const band = slot(card, "band");
  const [zones, trail, marker] = band.children;
  const bounded = low !== undefined || high !== undefined;
  band.className = bounded ? "band" : "band none";
  trail.hidden = marker.hidden = !bounded;
  say(card, "cursor", bounded ? `cursor ${number(cursor)}` : "no band: inserts and samples need not keep step");
  say(card, "low", low === undefined ? (bounded ? "samples need not wait" : "") : `samples wait at ${number(low)}`);
  say(card, "high", high === undefined ? (bounded ? "inserts need not wait" : "") : `inserts wait at ${number(high)}`);
  const aim = `aims at ${+table.limiter.samples_per_insert.toPrecision(4)} sample${table.limiter.samples_per_insert === 1 ? "" : "s"} per insert`;
  const start = table.size < least ? `samples begin at ${count(least, "item")}, ${number(least - table.size)} to go` : `samples pass from ${count(least, "item")} on`;
  say(card, "limiter-of", bounded ? `${aim}; ${start}` : start);
  if (!bounded) { zones.style.background = "none"; return; }
  // An open side ends where the cursor has been lately, and a little beyond.
  const first = past.at_s.findIndex((at) => at >= past.at_s[past.at_s.length - 1] - TRAIL_S);
  const recent = points.cursor.slice(first);
  const [least_, most] = [Math.min(cursor, ...recent), Math.max(cursor, ...recent)];
  const span = low !== undefined && high !== undefined ? high - low || 1 : Math.max(1, 1.25 * (low === undefined ? high - least_ : most - low));
  const from = (low === undefined ? high - span : low) - span * 0.12;
  const to = (high === undefined ? low + span : high) + span * 0.12;
  const at = (value) => Math.max(0, Math.min(1, (value - from) / (to - from)));
  const [a, b] = [low === undefined ? 0 : at(low) * 100, high === undefined ? 100 : at(high) * 100];
  const mix = (side) => `color-mix(in srgb, var(--${side}) 45%, var(--track))`;
  zones.style.background = `linear-gradient(90deg, ${mix("sample")} ${a}%, var(--track) ${a}% ${b}%, ${mix("insert")} ${b}%)`;
  left(marker, at(cursor));
  left(trail, at(least_));
  width(trail, at(most) - at(least_));
  band.setAttribute("role", "img");
  band.setAttribute("aria-label", `cursor ${number(cursor)}, band ${low ?? "without end"} to ${high ?? "without end"}`);
}

// --- points, rates and ages ----------------------------------------------------------------------------------------

function rateOf(points) {
  const last = (key) => { const all = rates(points[key]); return all.length ? all[all.length - 1] ?? 0 : 0; };
  return { inserts: last("inserts"), samples: last("samples") };
}

// Per second, over RATE_S before each point; null where a reset set the counter back.
function rates(values) {
  const at = past.at_s;
  let from = 0;
  return values.map((value, i) => {
    while (at[i] - at[from] > RATE_S + 0.5) from += 1;
    return i === from ? null : value < values[from] ? null : (value - values[from]) / (at[i] - at[from]);
  });
}

function recentAges(table) {
  const counts = table.sample_age_s.counts;
  const old = aMinuteAgo(table);
  if (old && old.ages.length === counts.length) {
    const recent = counts.map((n, i) => n - old.ages[i]);
    if (recent.every((n) => n >= 0) && recent.some((n) => n > 0)) return { counts: recent, of: "in the last minute" };
  }
  return { counts, of: "since the start" };
}

// "newest version 12, draws 1.5 behind it in the last minute", or since the start where this page is not open for so long.
function recentStaleness(table) {
  const all = (of) => of.counts.reduce((a, b) => a + b, 0);
  const now = table.staleness_versions;
  const before = aMinuteAgo(table)?.staleness;
  const draws = all(now) - (before ? all(before) : 0);
  const newest = `newest version ${number(table.newest_policy_version)}`;
  if (draws <= 0) return newest;
  const behind = (now.sum - (before ? before.sum : 0)) / draws;
  return `${newest}, draws ${+behind.toPrecision(3)} behind it ${before ? "in the last minute" : "since the start"}`;
}

// What a table said a minute ago, or at least ten seconds; null if this page has not been open for so long.
function aMinuteAgo(table) {
  const [first, last] = [minute[0], minute[minute.length - 1]];
  return last.at_s - first.at_s >= 10 && first.tables[table.name] ? { ...first.tables[table.name], span: last.at_s - first.at_s } : null;
}

// "samples waited 62 % of the last minute", for each side that did.
function recentWaiting(table) {
  const old = aMinuteAgo(table);
  if (!old) return "";
  const shares = ["insert", "sample"].map((side) => [side, (table.blocked_s[side] - old.blocked[side]) / old.span]);
  const told = shares.filter(([, share]) => share >= 0.01).map(([side, share]) => `${side}s waited ${percent(Math.min(1, share))} of the time`);
  return told.length ? ` In the last ${old.span > 50 ? "minute" : duration(old.span)} ${told.join(" and ")}.` : "";
}

function remember(info) {
  const tables = Object.fromEntries(info.tables.map((table) => [table.name, { ages: table.sample_age_s.counts, staleness: table.staleness_versions, blocked: table.blocked_s }]));
  minute = [...minute.filter(({ at_s: at }) => at > info.uptime_s - TRAIL_S - 1 && at < info.uptime_s), { at_s: info.uptime_s, tables }];
  if (info.uptime_s <= past.at_s[past.at_s.length - 1]) return;
  past.at_s.push(info.uptime_s);
  past.resident_bytes.push(info.memory.resident_bytes);
  for (const table of info.tables) {
    const points = past.tables[table.name];
    points.size.push(table.size);
    points.inserts.push(table.limiter.inserts);
    points.samples.push(table.limiter.samples);
    points.cursor.push(table.limiter.cursor);
  }
  while (past.at_s[0] < info.uptime_s - SPAN_S) {
    past.at_s.shift();
    past.resident_bytes.shift();
    for (const points of Object.values(past.tables)) for (const values of Object.values(points)) values.shift();
  }
}

function showCounts(info) {
  const { counters, chunks, streams } = info;
  const rows = [
    ["Requests", number(counters.requests)],
    ["Refused with an error", number(counters.refused)],
    ["Connections refused", number(counters.connections_refused), counters.connections_refused],
    ["Replies dropped", number(counters.replies_dropped), counters.replies_dropped],
    ["Replies to peers gone", number(counters.replies_to_the_gone)],
    ["Inserts received twice", number(counters.duplicates)],
    ["Pushed: refused, lost", `${number(counters.pushes_refused)}, ${number(counters.push_gaps)}`, counters.push_gaps],
    ["Priorities set", number(counters.priority_updates)],
    ["Chunks", `${number(chunks.count)}, ${bytes(chunks.bytes)}`],
    ["In no item yet", bytes(chunks.orphan_bytes)],
    ["Received", `${number(chunks.added)} chunks, ${bytes(chunks.bytes_added)}`],
    ["Writers whose lease ran out", number(streams.expired)],
  ];
  if (info.store) {
    rows.push(["Checkpoints: written, failed", `${number(info.store.checkpoints)}, ${number(info.store.failures)}`, info.store.failures]);
    const { lost_items: items = 0, lost_requests: requests = 0 } = info.store;
    rows.push(["Damage took: items, requests", `${number(items)}, ${number(requests)}`, items || requests]);
    rows.push(["Inserts waited for the disk", info.store.blocked_s ? duration(info.store.blocked_s) : "never", info.store.blocked_s]);
    rows.push(["Store on the disk", `${bytes(info.store.size_bytes)} in ${info.store.path}`]);
  }
  facts($("counts").querySelector("dl"), rows);
}

// --- asking --------------------------------------------------------------------------------------------------------

class NotReady extends Error {}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(4000) });
  if (answer.status === 503) throw new NotReady((await answer.text()).trim());
  if (!answer.ok) throw new Error(`${path} answers ${answer.status}: ${(await answer.text()).trim()}`);
  return answer.json();
}

async function turn() {
  try {
    const info = await ask("info.json");
    const known = past && past.at_s[past.at_s.length - 1];
    if (server !== info.server_id || info.uptime_s - known > 5 || info.tables.some((t) => !past.tables[t.name])) {
      if (server !== info.server_id) { minute = []; turns = []; }
      past = await ask("history.json");
      server = info.server_id;
    }
    remember(info);
    show(info);
    const stuck = info.age_s > info.stale_after_s;
    alarm(stuck ? `The daemon's loop is stuck: it last went round ${duration(info.age_s)} ago. This is how it was then.` : "");
    $("as-of").textContent = `as of ${new Date(Date.now() - info.age_s * 1000).toLocaleTimeString()}, asked each second`;
  } catch (error) {
    const story = error instanceof NotReady ? `The daemon is not ready: ${error.message}.` : `The daemon does not answer (${error.message}).`;
    alarm(`${story} ${past ? "This is how it was." : ""}`);
  }
}

function alarm(text) {
  $("alarm").hidden = !text;
  if ($("alarm").textContent !== text) $("alarm").textContent = text;
  document.body.classList.toggle("stale", Boolean(text));
}

let asking = false;
async function again() {
  if (asking || document.hidden) return;
  asking = true;
  await turn();
  asking = false;
}
setInterval(again, 1000);
document.addEventListener("visibilitychange", again);
again();
