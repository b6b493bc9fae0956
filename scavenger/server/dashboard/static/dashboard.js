// Keeps the live parts of a page up to date, and draws its figures in the reader's colours and width.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 45rem)");
const tags = new Map();
const drawn = new Map();
let ended = false;

// The server's answer, or null if nothing has changed since the last one.
async function fetched(path) {
  const known = tags.get(path);
  const answer = await fetch(path, { headers: known ? { "If-None-Match": known } : {}, cache: "no-store", redirect: "error" });
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Error(String(answer.status));
  tags.set(path, answer.headers.get("ETag"));
  return answer;
}

async function refresh(part) {
  if (part.contains(document.activeElement) && document.activeElement.closest("form")) return;
  const answer = await fetched(part.dataset.live);
  part.classList.remove("stale");
  if (answer === null) return;
  const scrolled = [...part.querySelectorAll(".wide")].map((one) => [one.scrollLeft, one.scrollTop]);
  const focused = [...part.querySelectorAll("a, .wide")].indexOf(document.activeElement);
  part.innerHTML = await answer.text();
  part.querySelectorAll(".wide").forEach((one, place) => { if (scrolled[place]) [one.scrollLeft, one.scrollTop] = scrolled[place]; });
  if (focused >= 0) part.querySelectorAll("a, .wide")[focused]?.focus({ preventScroll: true });
  if (part.querySelector("[data-ended]")) end();
}

function end() {
  if (!ended) setTimeout(() => { for (const part of document.querySelectorAll("[data-figures]")) load(part).catch(() => {}); }, 2000);
  ended = true;
}

async function load(part) {
  const answer = await fetched(part.dataset.figures);
  if (answer === null) return;
  const { themes, figures } = await answer.json();
  for (const [id, figure] of Object.entries(figures)) {
    drawn.set(id, { themes, figure });
    draw(id);
  }
}

function coloured(value, theme) {
  if (typeof value === "string") return theme[value] ?? value;
  if (Array.isArray(value)) return value.map((one) => coloured(one, theme));
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, coloured(one, theme)]));
  }
  return value;
}

function draw(id) {
  const plot = document.getElementById(id), words = document.getElementById(id + "-words");
  const { themes, figure } = drawn.get(id);
  if (!plot || !window.Plotly) return;
  document.getElementById(id + "-title").textContent = figure.title;
  words.textContent = figure.words;
  plot.hidden = figure.plot === null;
  if (figure.plot === null) return;
  const { data, layout } = coloured(figure.plot, themes[dark.matches ? "dark" : "light"]);
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  layout.font.size = 0.8 * rem;
  layout.hoverlabel.font.size = 0.8 * rem;
  layout.legend = { orientation: "h", xref: "container", x: 0, yref: "container", y: 0, yanchor: "bottom", font: { size: 0.75 * rem } };
  layout.margin = narrow.matches ? { l: 8, r: 8, t: 12, b: 8 } : { l: 16, r: 12, t: 16, b: 16 };
  for (const axis of ["xaxis", "yaxis", "yaxis2"]) if (layout[axis] && !layout[axis].tickvals) layout[axis].nticks = narrow.matches || layout[axis].type === "date" ? 4 : 8;
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", figure.words);
  Plotly.react(plot, data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
}

// Calls `work` at intervals while the page is seen and the job lives; what fails is shown as stale, and tried again.
function repeat(part, work) {
  const every = 1000 * Number(part.dataset.every || 5);
  const again = async () => {
    if (!document.hidden && !ended) {
      try { await work(part); } catch { part.classList.add("stale"); }
    }
    setTimeout(again, every);
  };
  setTimeout(again, every);
}

// Events of the job hurry the next look; without them, looks at intervals show the same a little later.
function follow(part) {
  if (!part.dataset.events || !window.EventSource || ended) return;
  const source = new EventSource(part.dataset.events);
  let due = false;
  const hurry = () => {
    if (due) return;
    due = true;
    setTimeout(() => { due = false; refresh(part).catch(() => part.classList.add("stale")); }, 300);
  };
  source.addEventListener("job", hurry);
  source.addEventListener("end", () => { hurry(); source.close(); });
}

for (const part of document.querySelectorAll("[data-live]")) {
  if (part.querySelector("[data-ended]")) ended = true;
}
for (const part of document.querySelectorAll("[data-live]")) { repeat(part, refresh); follow(part); }
for (const part of document.querySelectorAll("[data-figures]")) {
  load(part).catch(() => part.classList.add("stale"));
  repeat(part, load);
}
for (const one of document.querySelectorAll("[data-needs-script]")) one.hidden = false;
for (const upload of document.querySelectorAll("input[data-into]")) {
  upload.addEventListener("change", async () => {
    const file = upload.files[0], into = document.getElementById(upload.dataset.into);
    if (file && file.size <= into.maxLength) into.value = await file.text();
    else if (file) upload.setCustomValidity("The file is too large to be a job file."), upload.reportValidity();
  });
}
const redraw = () => { for (const id of drawn.keys()) draw(id); };
dark.addEventListener("change", redraw);
narrow.addEventListener("change", redraw);
