// Two drawings, made of SVG elements: the sparkline of a card and the chart of the detail.
// A line breaks where windows are missing, and its last step is dashed while that window is open.

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const round = (value) => Math.round(value * 10) / 10;

/** Points {at, value} in time order, cut wherever more than one window length is missing. */
function runs(points, step) {
  const found = [];
  for (const point of points) {
    const run = found.at(-1);
    if (run && point.at - run.at(-1).at < step * 1.5) run.push(point);
    else found.push([point]);
  }
  return found;
}

const path = (run) => run.map(({ x, y }, i) => `${i ? "L" : "M"}${round(x)} ${round(y)}`).join("");

function area(run, floor) {
  return `${path(run)}L${round(run.at(-1).x)} ${floor}L${round(run[0].x)} ${floor}Z`;
}

/** Lines of one series; `open` says that the last point belongs to a window still being counted. */
function series(points, step, open, name) {
  const drawn = [];
  for (const run of runs(points, step)) {
    const unfinished = open && run.at(-1) === points.at(-1);
    const done = unfinished ? run.slice(0, -1) : run;
    if (done.length > 1) drawn.push(svg("path", { d: path(done), class: `line ${name}` }));
    if (done.length === 1) drawn.push(svg("circle", { cx: done[0].x, cy: done[0].y, r: 1.6, class: `point ${name}` }));
    if (unfinished && run.length > 1) drawn.push(svg("path", { d: path(run.slice(-2)), class: `line open ${name}` }));
  }
  return drawn;
}

export function sparkline(recent, step, open) {
  const [width, height, pad] = [280, 56, 5];
  const counts = recent.map((w) => w.ride_count);
  const times = recent.map((w) => Date.parse(w.window_start));
  // The floor lies at half of the least value: a sparkline shows shape, the number beside it the size.
  const least = Math.min(...counts) / 2;
  const most = Math.max(least + 1, ...counts);
  const span = Math.max(step, times.at(-1) - times[0]);
  const points = recent.map((w, i) => ({
    at: times[i],
    x: recent.length === 1 ? width - pad : ((times[i] - times[0]) / span) * (width - pad),
    y: height - pad - ((w.ride_count - least) / (most - least)) * (height - 2 * pad),
  }));
  const last = points.at(-1);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const run of runs(points, step)) if (run.length > 1) picture.append(svg("path", { d: area(run, height), class: "area", fill: "url(#water)" }));
  picture.append(...series(points, step, open, "rides"));
  const dot = svg("svg", { viewBox: "0 0 10 10", class: open ? "spark-dot open" : "spark-dot", "aria-hidden": "true" }, svg("circle", { cx: 5, cy: 5, r: 3.4 }));
  dot.style.left = `${(last.x / width) * 100}%`;
  dot.style.top = `${(last.y / height) * 100}%`;
  return [picture, dot];
}

/** A step for at most four grid lines: 1, 2 or 5 times a power of ten. */
function niceStep(most) {
  const raw = most / 4;
  const power = 10 ** Math.floor(Math.log10(Math.max(raw, 1)));
  return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) ?? 1;
}

/** Round moments between two times, at most `count` of them. */
function ticks(from, to, count) {
  const minutes = [5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880];
  const step = 60000 * (minutes.find((m) => (to - from) / (m * 60000) <= count) ?? minutes.at(-1));
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

/** Neighbouring windows with the same kind of surge, as one band. */
function bands(windows, times, step) {
  const found = [];
  windows.forEach((w, i) => {
    if (w.surge_multiplier <= 1) return;
    const name = w.surge_multiplier >= 2 ? "high" : "raised";
    const band = found.at(-1);
    if (band?.name === name && times[i] - band.to < step * 1.5) band.to = times[i];
    else found.push({ name, from: times[i], to: times[i] });
  });
  return found;
}

export function historyChart(windows, { width, height, step, open, clock, number, onPoint }) {
  const [left, right, top, bottom] = [44, 14, 12, 26];
  const times = windows.map((w) => Date.parse(w.window_start));
  const grid = niceStep(Math.max(4, ...windows.map((w) => w.ride_count)));
  const most = Math.max(grid, Math.ceil(Math.max(4, ...windows.map((w) => w.ride_count)) / grid) * grid);
  const span = Math.max(step, times.at(-1) - times[0]);
  const x = (at) => (windows.length === 1 ? width - right : left + ((at - times[0]) / span) * (width - left - right));
  const y = (value) => height - bottom - (value / most) * (height - top - bottom);
  const floor = height - bottom;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Rides and completed rides per window; the table below holds the same numbers." });

  for (let value = 0; value <= most; value += grid) {
    const label = svg("text", { x: left - 10, y: y(value) + 4, class: "tick", "text-anchor": "end" });
    label.textContent = number(value);
    picture.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: value ? "rule" : "rule base" }), label);
  }
  for (const at of ticks(times[0], times.at(-1), Math.max(2, Math.floor((width - left) / 64)))) {
    // Near an edge a centred label would be cut off.
    const anchor = x(at) > width - right - 18 ? "end" : "middle";
    const label = svg("text", { x: x(at), y: height - 6, class: "tick", "text-anchor": anchor });
    label.textContent = clock(at);
    picture.append(label);
  }
  const half = ((step / span) * (width - left - right)) / 2;
  for (const band of bands(windows, times, step)) {
    const from = Math.max(left, x(band.from) - half);
    const to = Math.min(width - right, x(band.to) + half);
    picture.append(svg("rect", { x: from, y: top, width: Math.max(3, to - from), height: floor - top, class: `band ${band.name}` }));
  }
  const rides = windows.map((w, i) => ({ at: times[i], x: x(times[i]), y: y(w.ride_count) }));
  const completed = windows.map((w, i) => ({ at: times[i], x: x(times[i]), y: y(w.completed_rides) }));
  for (const run of runs(rides, step)) if (run.length > 1) picture.append(svg("path", { d: area(run, floor), class: "area", fill: "url(#water)" }));
  picture.append(...series(completed, step, open, "completed"), ...series(rides, step, open, "rides"));

  const cross = svg("line", { y1: top, y2: floor, class: "cross", visibility: "hidden" });
  const mark = svg("circle", { r: 4.5, class: open ? "mark open" : "mark", cx: rides.at(-1).x, cy: rides.at(-1).y });
  picture.append(cross, mark);
  const choose = (index) => {
    const point = rides[index ?? rides.length - 1];
    mark.setAttribute("cx", point.x);
    mark.setAttribute("cy", point.y);
    mark.setAttribute("class", open && point === rides.at(-1) ? "mark open" : "mark");
    cross.setAttribute("x1", point.x);
    cross.setAttribute("x2", point.x);
    cross.setAttribute("visibility", index === null ? "hidden" : "visible");
    onPoint(index === null ? null : windows[index]);
  };
  picture.addEventListener("pointermove", (event) => {
    const at = ((event.clientX - picture.getBoundingClientRect().left) / picture.getBoundingClientRect().width) * width;
    let nearest = 0;
    rides.forEach((point, i) => {
      if (Math.abs(point.x - at) < Math.abs(rides[nearest].x - at)) nearest = i;
    });
    choose(nearest);
  });
  picture.addEventListener("pointerleave", () => choose(null));
  return picture;
}
