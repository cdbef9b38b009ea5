// The live part of the page: asks /ui/state once a second while the page is seen, and shows the answer. Texts from the
// server go in as text (textContent), never as HTML.
"use strict";

const EVERY_MS = 1000;
const KEPT_S = 120;
const KEY = "ringcast api key";
const byId = (id) => document.getElementById(id);

// What the chat uses too: the key's header, and asking for a key.
const access = {
  headers() {
    const key = sessionStorage.getItem(KEY);
    return key ? { authorization: `Bearer ${key}` } : {};
  },
  ask() {
    if (!byId("key-form").hidden) return;
    byId("key-form").hidden = false;
    byId("key").focus();
  },
};
let model = null; // the served name, once the server has told it

const last = { actors: new Map(), totals: null, state: null };
let rates = []; // [{time_s, rate}]

function put(id, value) {
  const text = String(value);
  if (byId(id).textContent !== text) byId(id).textContent = text; // unchanged text is not announced again
}

function number(value) {
  return value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}

function tell(text) {
  const item = document.createElement("li");
  item.textContent = `${new Date().toLocaleTimeString()}: ${text}`;
  byId("events").prepend(item);
  while (byId("events").children.length > 50) byId("events").lastChild.remove();
}

function showHealth(state, detail) {
  const badge = byId("health");
  badge.className = `badge ${state}`;
  put("health", detail ? `${state}: ${detail}` : state);
}

function showLoad(answer) {
  const figures = answer.scheduler;
  if (!figures) {
    for (const id of ["rate", "running", "waiting", "kv-text"]) put(id, "–");
    last.totals = null;
    return;
  }
  put("running", figures.num_running);
  put("waiting", figures.num_waiting);
  put("preemptions", figures.num_preemptions);
  put("hits", figures.num_looked_up_tokens
    ? `${Math.round(100 * figures.num_cached_tokens / figures.num_looked_up_tokens)} %` : "–");
  const used = figures.num_blocks - figures.num_free_blocks;
  const share = figures.num_blocks ? used / figures.num_blocks : 0;
  byId("kv").value = share;
  put("kv-text", `${used} of ${figures.num_blocks} blocks, ${Math.round(100 * share)} %`);
  const now = { time_s: answer.time_s, tokens: figures.num_generated_tokens };
  // A core that restarted counts from 0 again.
  if (last.totals && now.tokens >= last.totals.tokens && now.time_s > last.totals.time_s) {
    const rate = (now.tokens - last.totals.tokens) / (now.time_s - last.totals.time_s);
    put("rate", number(rate));
    rates.push({ time_s: now.time_s, rate });
  }
  last.totals = now;
}

function drawRates(now_s) {
  rates = rates.filter((point) => now_s - point.time_s < KEPT_S);
  const peak = Math.max(1, ...rates.map((point) => point.rate));
  const at = rates.map(({ time_s, rate }) =>
    [(KEPT_S - (now_s - time_s)) * 120 / KEPT_S, 29 - 28 * rate / peak]);
  const line = at.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join(" ");
  document.querySelector("#chart polyline").setAttribute("points", line);
  const area = at.length ? `${at[0][0]},30 ${line} ${at.at(-1)[0]},30` : "";
  document.querySelector("#chart polygon").setAttribute("points", area);
  put("peak", rates.length ? `; peak ${number(peak)}` : "");
}

function watchActor(row, old) {
  if (row.state === "spare") return;
  if (!old || old.isDown) {
    if (old) tell(`${row.name} is ${row.state} again, as process ${row.pid} (restart ${row.incarnation - 1})`);
  } else if (old.incarnation !== row.incarnation) {
    tell(`${row.name} died, and has restarted as process ${row.pid} (restart ${row.incarnation - 1})`);
  }
}

function actorRow(row, old, seconds) {
  const line = document.createElement("tr");
  line.dataset.actor = row.name;
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = row.name;
  line.append(head);
  const same = old && old.incarnation === row.incarnation && seconds > 0 && !row.isDown;
  const cells = [
    row.isDown ? "down" : row.is_busy ? `${row.state}, busy` : row.state,
    row.state === "spare" ? "–" : Math.max(0, row.incarnation - 1),
    row.isDown ? "–" : row.depth + (row.oldest_age_s >= 0.1 ? ` (${row.oldest_age_s.toFixed(1)} s)` : ""),
    same ? number((row.handled - old.handled) / seconds) : "–",
    same ? `${Math.max(0, Math.round(100 * (row.cpu_s - old.cpu_s) / seconds))} %` : "–",
    row.isDown ? "–" : `${Math.round(row.memory_bytes / 2 ** 20).toLocaleString("en")} MiB`,
    row.isDown ? "–" : row.pid,
  ];
  for (const text of cells) {
    const cell = document.createElement("td");
    cell.textContent = text;
    line.append(cell);
  }
  line.children[1].className = row.isDown ? "down" : row.state;
  return line;
}

function showActors(answer) {
  const seconds = last.state ? answer.time_s - last.state.time_s : 0;
  const now = new Map(answer.actors.map((row) => [row.name, row]));
  for (const [name, old] of last.actors) {
    if (now.has(name) || old.state === "spare") continue; // who has no place on the board now is down
    if (!old.isDown) tell(`${name} (process ${old.pid}) is down`);
    now.set(name, { ...old, isDown: true });
  }
  const rows = [...now.values()].sort((a, b) => (a.state === "spare") - (b.state === "spare") || (a.name < b.name ? -1 : 1));
  byId("actors").replaceChildren(...rows.map((row) => {
    const old = last.actors.get(row.name);
    if (!row.isDown) watchActor(row, old);
    return actorRow(row, old, seconds);
  }));
  last.actors = now;
}

function show(answer) {
  model = answer.model;
  const limit = answer.engine ? `, context of ${answer.engine.max_model_len.toLocaleString("en")} tokens` : "";
  put("model", `${answer.model}${limit}; ringcast ${answer.version}`);
  showHealth(answer.health.state, answer.health.detail);
  showLoad(answer);
  drawRates(answer.time_s);
  showActors(answer);
  last.state = answer;
}

async function poll() {
  if (document.hidden) return;
  try {
    const response = await fetch("state", {
      headers: access.headers(), cache: "no-store", signal: AbortSignal.timeout(5 * EVERY_MS),
    });
    if (response.status === 401) {
      showHealth("unreachable", "an API key is needed");
      access.ask();
      return;
    }
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    show(await response.json());
  } catch (error) {
    showHealth("unreachable", error.message);
    last.totals = null;
  }
}

let timer = null;

async function loop() {
  clearTimeout(timer);
  await poll();
  clearTimeout(timer);
  timer = document.hidden ? null : setTimeout(loop, EVERY_MS);
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("key").value.trim());
  byId("key-form").hidden = true;
  loop();
});
document.addEventListener("visibilitychange", loop);
loop();
