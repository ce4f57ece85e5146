// The live page of the cities. State comes from one event stream; the page only draws it.

import { historyChart, sparkline, svg } from "./charts.js";

const STALE_AFTER = 180; // seconds without a new row: six batches of 30 s were missed
const SILENT_AFTER = 35; // seconds without any event: three heartbeats were missed
const DETAIL_WINDOWS = 48; // four hours of 5-minute windows

const byId = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en");
const money = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const percent = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 0 });
const hourMinute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const toSecond = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const clock = (time) => hourMinute.format(typeof time === "string" ? Date.parse(time) : time);
const windowText = (w) => `${clock(w.window_start)}–${clock(w.window_end)}`;
const fare = (value) => (value === null ? "–" : money.format(value));
const length = (w) => Date.parse(w.window_end) - Date.parse(w.window_start);

function remembered(key, fallback) {
  try {
    return localStorage.getItem(key) ?? fallback;
  } catch {
    return fallback; // storage may be forbidden
  }
}

function remember(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // the choice then lasts as long as the page
  }
}

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function setText(node, text) {
  if (node.textContent === text) return false;
  const first = node.textContent === "";
  node.textContent = text;
  return !first;
}

// ---------------------------------------------------------------- state

const state = {
  cities: new Map(),
  totals: null,
  asOf: null,
  ageBase: 0, // seconds, as the server counted them, at `heardAt`
  heardAt: 0,
  answered: false,
  link: "connecting", // connecting | open | lost
  feed: null,
  sort: remembered("headrace.sort", "rides"),
};

const isOpen = (w) => state.asOf !== null && Date.parse(w.window_end) > Date.parse(state.asOf);
const dataAge = () => (state.asOf === null ? null : state.ageBase + (performance.now() - state.heardAt) / 1000);

function take(answer, whole) {
  if (whole) state.cities.clear();
  for (const city of answer.cities) state.cities.set(city.city, city);
  state.totals = answer.totals;
  state.asOf = answer.as_of;
  state.ageBase = answer.freshness_seconds ?? 0;
  state.heardAt = performance.now();
  state.answered = true;
  schedule();
  if (detail.city && answer.cities.some((c) => c.city === detail.city)) followDetail();
}

// ---------------------------------------------------------------- the surge badge

function level(multiplier) {
  if (multiplier >= 2) return "high";
  return multiplier > 1 ? "raised" : "calm";
}

const BADGES = {
  calm: { word: "Calm", icon: "M3 9c2-2 3.5-2 5 0s3 2 5 0" },
  raised: { word: "Surge", icon: "M4 10l4-4 4 4" },
  high: { word: "High surge", icon: "M4 8l4-4 4 4M4 12.5l4-4 4 4" },
};

function drawBadge(node, multiplier) {
  const name = level(multiplier);
  const text = `${multiplier.toFixed(1)}× ${BADGES[name].word}`;
  if (node.textContent === text) return;
  node.className = `badge ${name}`;
  const icon = svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: BADGES[name].icon }));
  node.replaceChildren(icon, document.createTextNode(text));
}

// ---------------------------------------------------------------- cards

const cards = new Map();

function fact(label) {
  const value = element("dd");
  return { value, box: element("div", "", element("dt", "", label), value) };
}

function makeCard(name) {
  const open = element("button", "card-open", name);
  open.type = "button";
  open.setAttribute("aria-haspopup", "dialog");
  open.addEventListener("click", () => openDetail(name));
  const when = element("p", "card-when");
  const badge = element("span", "badge");
  const rides = element("span", "card-rides");
  const ridesWord = element("span", "card-unit");
  const spark = element("div", "card-spark");
  const facts = { fare: fact("Avg fare"), completion: fact("Completion"), drivers: fact("Drivers") };
  const root = element(
    "li",
    "card",
    element("div", "card-head", element("div", "", element("h3", "", open), when), badge),
    element("p", "card-figure", rides, " ", ridesWord),
    spark,
    element("dl", "card-facts", facts.fare.box, facts.completion.box, facts.drivers.box),
  );
  root.dataset.city = name;
  return { root, open, when, badge, rides, ridesWord, spark, facts, drawn: null };
}

function drawCard(card, city) {
  const behind = state.totals !== null && Date.parse(city.window_start) < Date.parse(state.totals.window_start);
  const open = isOpen(city);
  const signature = JSON.stringify([city, behind, open]);
  if (card.drawn === signature) return;
  const wasDrawn = card.drawn !== null;
  card.drawn = signature;
  const changed = setText(card.rides, whole.format(city.ride_count));
  setText(card.ridesWord, open ? "rides so far" : city.ride_count === 1 ? "ride" : "rides");
  setText(card.when, behind ? `${windowText(city)} · behind` : windowText(city));
  setText(card.facts.fare.value, fare(city.avg_fare));
  setText(card.facts.completion.value, percent.format(city.completion_rate));
  setText(card.facts.drivers.value, whole.format(city.active_drivers));
  drawBadge(card.badge, city.surge_multiplier);
  card.root.dataset.surge = level(city.surge_multiplier);
  card.root.classList.toggle("behind", behind);
  card.spark.replaceChildren(...sparkline(city.recent, length(city), open));
  if (changed && wasDrawn && !calm.matches) {
    card.rides.animate([{ color: "var(--accent)", transform: "translateY(-2px)" }, {}], { duration: 700, easing: "ease-out" });
  }
}

const ORDERS = {
  rides: (a, b) => b.ride_count - a.ride_count,
  surge: (a, b) => b.surge_multiplier - a.surge_multiplier || b.ride_count - a.ride_count,
  name: () => 0,
};

function sorted() {
  const order = ORDERS[state.sort] ?? ORDERS.rides;
  return [...state.cities.values()].sort((a, b) => order(a, b) || a.city.localeCompare(b.city));
}

function drawGrid() {
  const grid = byId("grid");
  const before = new Map([...cards].map(([name, card]) => [name, card.root.getBoundingClientRect()]));
  const focused = document.activeElement;
  let moved = false;
  const wanted = sorted().map((city) => {
    if (!cards.has(city.city)) cards.set(city.city, makeCard(city.city));
    const card = cards.get(city.city);
    drawCard(card, city);
    return card.root;
  });
  for (const [name, card] of cards) {
    if (state.cities.has(name)) continue;
    card.root.remove();
    cards.delete(name);
  }
  wanted.forEach((root, i) => {
    if (grid.children[i] === root) return;
    grid.insertBefore(root, grid.children[i] ?? null);
    moved = true;
  });
  if (!moved) return;
  // Moving a node takes the focus away from it.
  if (grid.contains(focused) && document.activeElement !== focused) focused.focus({ preventScroll: true });
  if (calm.matches) return;
  for (const [name, card] of cards) {
    const old = before.get(name);
    if (!old) {
      card.root.animate([{ opacity: 0, transform: "translateY(6px)" }, {}], { duration: 260, easing: "ease-out" });
      continue;
    }
    const now = card.root.getBoundingClientRect();
    const [dx, dy] = [old.left - now.left, old.top - now.top];
    if (dx || dy) card.root.animate([{ transform: `translate(${dx}px, ${dy}px)` }, {}], { duration: 320, easing: "cubic-bezier(.2,.7,.2,1)" });
  }
}

// ---------------------------------------------------------------- totals, notices, time

function names(list) {
  const shown = list.slice(0, 2).join(", ");
  return list.length > 2 ? `${shown} +${list.length - 2}` : shown;
}

function drawTotals() {
  const totals = state.totals;
  if (!totals) return;
  const all = state.cities.size;
  setText(byId("total-rides"), whole.format(totals.ride_count));
  setText(byId("total-rides-sub"), totals.cities === all ? `${all === 1 ? "1 city" : `all ${all} cities`} reporting` : `${totals.cities} of ${all} cities reporting`);
  setText(byId("total-completion"), percent.format(totals.completion_rate));
  setText(byId("total-completion-sub"), `${whole.format(totals.completed_rides)} completed`);
  setText(byId("total-fare"), fare(totals.avg_fare));
  setText(byId("total-surging"), whole.format(totals.surging_cities));
  // The same rule as the server's count: a surge holds for one window more.
  const since = Date.parse(totals.window_start) - length(totals);
  const surging = [...state.cities.values()].filter((c) => c.surge_multiplier > 1 && Date.parse(c.window_start) >= since);
  surging.sort(ORDERS.surge);
  setText(byId("total-surging-sub"), totals.surging_cities ? names(surging.map((c) => c.city)) : "every city is calm");
  setText(byId("lede"), `Window ${windowText(totals)}${isOpen(totals) ? ", still counting" : ""}`);
}

function ageText(seconds) {
  if (seconds < 2) return "just now";
  if (seconds < 90) return `${Math.floor(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

function linkState() {
  if (state.link === "connecting") return ["connecting", "Connecting…"];
  if (state.link === "lost") return ["lost", "Reconnecting…"];
  if (state.feed?.state === "unreachable") return ["lost", "Broker unreachable"];
  if (state.feed?.state === "stopped") return ["lost", "Feed stopped"];
  const seconds = dataAge();
  if (seconds === null) return ["waiting", "Waiting"];
  return seconds > STALE_AFTER ? ["stale", "Stale"] : ["live", "Live"];
}

function noticeText(link) {
  if (state.cities.size === 0) return "";
  if (state.link === "lost") return "The connection to the server is lost. These are the last numbers received; the page reconnects automatically.";
  if (link === "lost") return "The server cannot reach the Kafka broker. These are the last rows it read; it reconnects automatically.";
  if (link === "stale") return `No new rows for ${Math.round(dataAge() / 60)} minutes. The flows may have stopped, or no rides are under way.`;
  return "";
}

function drawLink() {
  const [name, text] = linkState();
  byId("link").dataset.state = name;
  document.body.dataset.link = name;
  setText(byId("link-text"), text);
  const notice = noticeText(name);
  setText(byId("notice"), notice);
  byId("notice").hidden = notice === "";
  const seconds = dataAge();
  byId("updated").hidden = seconds === null;
  if (seconds !== null) {
    setText(byId("updated-at"), `Updated ${toSecond.format(Date.parse(state.asOf))}`);
    setText(byId("updated-age"), ageText(seconds));
  }
}

function drawEmpty() {
  const empty = state.answered && state.cities.size === 0;
  byId("empty").hidden = !empty;
  byId("totals").hidden = state.totals === null;
  byId("tools").hidden = state.cities.size === 0;
  if (!empty) return;
  const missing = state.feed?.missing_topics ?? [];
  const topics = missing.map((t) => element("code", "", t)).flatMap((t, i) => (i ? [" and ", t] : [t]));
  const why = byId("empty-why");
  if (state.feed?.state === "unreachable") why.replaceChildren("The Kafka broker does not answer. Is the stack running?");
  else if (topics.length) why.replaceChildren("The broker answers, but has no topic ", ...topics, " yet.");
  else why.replaceChildren("Nothing has been published on ", element("code", "", "city-ride-metrics"), " yet.");
}

let scheduled = false;

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    drawEmpty();
    drawTotals();
    drawGrid();
    drawLink();
  });
}

// ---------------------------------------------------------------- detail

const detail = { city: null, windows: [], loading: false, again: false };

function drawDetail() {
  const city = state.cities.get(detail.city);
  if (!city || detail.windows.length === 0) return;
  const newest = detail.windows.at(-1);
  const open = isOpen(newest);
  drawBadge(byId("detail-badge"), newest.surge_multiplier);
  setText(byId("detail-window"), `${windowText(newest)}${open ? ", still counting" : ""}`);
  setText(byId("detail-range"), `Rides per window, ${clock(detail.windows[0].window_start)}–${clock(newest.window_end)}`);
  const box = byId("detail-chart");
  const width = Math.max(280, box.clientWidth);
  const readout = (w) => {
    const chosen = w ?? newest;
    const surge = chosen.surge_multiplier > 1 ? ` · ${chosen.surge_multiplier.toFixed(1)}× surge` : "";
    byId("detail-readout").textContent = `${windowText(chosen)} · ${whole.format(chosen.ride_count)} rides · ${whole.format(chosen.completed_rides)} completed${surge}`;
  };
  box.replaceChildren(historyChart(detail.windows, { width, height: width < 520 ? 190 : 240, step: length(newest), open, clock, number: (v) => whole.format(v), onPoint: readout }));
  readout(null);
  byId("detail-rows").replaceChildren(
    ...detail.windows.toReversed().map((w) => {
      const head = element("th", "", windowText(w));
      head.scope = "row";
      const cells = [whole.format(w.ride_count), whole.format(w.completed_rides), percent.format(w.completion_rate), fare(w.avg_fare), whole.format(w.active_drivers)];
      const surge = element("td", `surge-${level(w.surge_multiplier)}`, `${w.surge_multiplier.toFixed(1)}×`);
      return element("tr", "", head, ...cells.map((text) => element("td", "", text)), surge);
    }),
  );
}

async function loadDetail() {
  const name = detail.city;
  const problem = byId("detail-problem");
  try {
    const answer = await fetch(`/api/v1/cities/${encodeURIComponent(name)}/history?limit=${DETAIL_WINDOWS}`);
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const history = await answer.json();
    if (detail.city !== name) return;
    detail.windows = history.windows;
    problem.hidden = true;
    drawDetail();
  } catch (failure) {
    if (detail.city !== name) return;
    problem.textContent = `The history could not be loaded: ${failure.message}. Close this and try again.`;
    problem.hidden = false;
  }
}

function openDetail(name) {
  detail.city = name;
  detail.windows = [];
  byId("detail-title").textContent = name;
  byId("detail-window").textContent = "";
  byId("detail-badge").replaceChildren();
  byId("detail-chart").replaceChildren();
  byId("detail-readout").textContent = "";
  byId("detail-rows").replaceChildren();
  byId("detail").showModal();
  document.querySelector(".detail-body").scrollTop = 0;
  loadDetail();
}

/** Load the open city again after a change: a late row may have corrected any of its windows. */
async function followDetail() {
  if (detail.loading) {
    detail.again = true;
    return;
  }
  detail.loading = true;
  do {
    detail.again = false;
    await loadDetail();
  } while (detail.again && detail.city);
  detail.loading = false;
}

// ---------------------------------------------------------------- the event stream

let source = null;
let lastHeard = performance.now();
let delay = 1000;
let retry = 0;

function connect() {
  clearTimeout(retry);
  source?.close();
  lastHeard = performance.now();
  source = new EventSource("/api/v1/events");
  const on = (name, use) =>
    source.addEventListener(name, (event) => {
      lastHeard = performance.now();
      use(JSON.parse(event.data));
    });
  on("snapshot", (answer) => {
    state.link = "open";
    delay = 1000;
    take(answer, true);
  });
  on("change", (answer) => take(answer, false));
  on("feed", (answer) => {
    state.feed = answer;
    schedule();
  });
  source.addEventListener("error", () => {
    state.link = "lost";
    schedule();
    // The browser tries again, except after an answer that is no stream.
    if (source.readyState === EventSource.CLOSED) {
      retry = setTimeout(connect, delay);
      delay = Math.min(delay * 2, 15000);
    }
  });
}

setInterval(() => {
  drawLink();
  // A connection that died without saying so, for instance while the computer slept.
  if (state.link === "open" && performance.now() - lastHeard > SILENT_AFTER * 1000) {
    state.link = "lost";
    connect();
  }
}, 1000);

// ---------------------------------------------------------------- controls

function shownTheme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function labelTheme() {
  byId("theme").setAttribute("aria-label", `Switch to ${shownTheme() === "dark" ? "light" : "dark"} theme`);
}

byId("theme").addEventListener("click", () => {
  const next = shownTheme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  remember("headrace.theme", next);
  labelTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", labelTheme);
labelTheme();

for (const input of document.querySelectorAll("input[name=sort]")) {
  input.checked = input.value === state.sort;
  input.addEventListener("change", () => {
    state.sort = input.value;
    remember("headrace.sort", input.value);
    schedule();
  });
}
if (!document.querySelector("input[name=sort]:checked")) document.querySelector("input[name=sort]").checked = true;

const dialog = byId("detail");
byId("detail-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close(); // the backdrop
});
dialog.addEventListener("close", () => {
  detail.city = null;
});
new ResizeObserver(() => detail.city && drawDetail()).observe(byId("detail-chart"));

byId("zone").textContent = `Times in ${Intl.DateTimeFormat().resolvedOptions().timeZone}. Fares in the currency of the rides.`;
schedule();
connect();
