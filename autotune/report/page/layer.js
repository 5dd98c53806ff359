// The view of one layer: its trials, their times over each parameter, importances and failures.
// The address holds the selection (#layer=ID), so a link to a layer can be kept.

const LAYERS = JSON.parse(document.getElementById("data").textContent);
const VIEW = document.getElementById("layer");
const ROWS = 300; // rows of a table that are made at once; the others follow on demand
const [US, SPREAD, STATUS, ERROR, FINAL, RECORDED, FIRST] = [0, 1, 2, 3, 4, 5, 6]; // places in a trial

// Columns of kernels for GPUs: registers of a thread, bytes of spill stores and loads.
const RESOURCES = [["registers", "registers"], ["spills, B", "spills"]]
  .map(([heading, name]) => [heading, t => t[name], t => String(t[name] ?? "")]);

// Return a number with about three significant digits.
const number = value => (value === null ? "" : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0));
const clock = seconds => (seconds === null ? "" : new Date(1000 * seconds).toISOString().slice(0, 19).replace("T", " "));
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// Return the trials of some families as rows with names instead of indices.
function trialsOf(families) {
  return families.flatMap(family =>
    family.trials.map((trial, n) => ({
      family: family.name,
      us: trial[US],
      spread: trial[SPREAD],
      status: trial[STATUS],
      error: family.errors[trial[ERROR]],
      final: Boolean(trial[FINAL]),
      recorded: trial[RECORDED],
      registers: family.resources[n]?.[0] ?? null,
      spills: family.resources[n]?.[1] ?? null,
      values: Object.fromEntries(
        family.parameters.flatMap(([name, known], i) => {
          const index = trial[FIRST + i];
          return index === null ? [] : [[name, known[index]]];
        })
      ),
    }))
  );
}

const config = trial => Object.entries(trial.values).map(([name, value]) => `${name}=${value}`).join(" ");
const tipOf = trial => `${number(trial.us)} us, ${trial.family}\n${config(trial)}`;

// Return the columns of the table of trials: heading, value to sort by, text.
function columnsOf(families) {
  const one = families.length === 1 ? families[0] : null;
  const own = one
    ? one.parameters.map(([name]) => [name, t => t.values[name] ?? null, t => String(t.values[name] ?? "")])
    : [["family", t => t.family, t => t.family], ["config", config, config]];
  return [
    ["time, us", t => t.us, t => number(t.us)],
    ["spread, us", t => t.spread, t => number(t.spread)],
    ...own,
    ...(families.some(family => family.resources.length) ? RESOURCES : []),
    ["final", t => (t.final ? "final" : null), t => (t.final ? "final" : "")],
    ["status", t => t.status, t => (t.status === "ok" ? "ok" : `${t.status}: ${t.error}`)],
    ["recorded, UTC", t => t.recorded, t => clock(t.recorded)],
  ];
}

// Return a table of trials with filters above it; the fastest trial comes first.
function trialTable(families) {
  const columns = columnsOf(families), all = trialsOf(families);
  const head = make("tr", {}, ...columns.map(([name]) => make("th", {}, name)));
  const table = make("table", { id: "trials" }, make("thead", {}, head), make("tbody"));
  const words = make("input", { type: "search", placeholder: "tile_m=128" });
  const statuses = [...new Set(all.map(trial => trial.status))].sort();
  const status = make("select", {}, make("option", { value: "" }, "all"), ...statuses.map(s => make("option", {}, s)));
  const more = make("button", { type: "button" }), count = make("span", { class: "note" });
  let [key, ascending, shown] = [columns[0][1], true, ROWS];
  const fill = () => {
    const found = all.filter(t => (!status.value || t.status === status.value) &&
      hasWords(`${t.family} ${config(t)} ${t.error}`, words.value));
    const sign = ascending ? 1 : -1;
    found.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return x === null || y === null ? ordered(x, y) : sign * ordered(x, y);
    });
    const rows = found.slice(0, shown).map(t => make("tr", {}, ...columns.map(([, , say]) => make("td", {}, say(t)))));
    table.tBodies[0].replaceChildren(...rows);
    count.textContent = found.length === all.length ? plural(all.length, "trial") : `${found.length} of ${plural(all.length, "trial")}`;
    more.hidden = found.length <= shown;
    more.textContent = `show all ${found.length}`;
  };
  addSorting(table, (column, up) => {
    [key, ascending] = [columns[column][1], up];
    fill();
  });
  head.cells[0].setAttribute("aria-sort", "ascending");
  words.addEventListener("input", fill);
  status.addEventListener("change", fill);
  more.addEventListener("click", () => {
    shown = Infinity;
    fill();
  });
  fill();
  return [
    make("div", { class: "controls" }, make("label", {}, "Filter ", words), make("label", {}, "Status ", status), count, more),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "trials" }, table),
  ];
}

// Return round values between two times for a logarithmic axis.
function roundTimes(low, high) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
    for (const factor of [1, 2, 5]) if (factor * power >= low && factor * power <= high) found.push(factor * power);
  }
  return found.length > 5 ? found.filter((_, i) => i % 2 === 0) : found;
}

// Return a figure with the times of trials over the values of one parameter. Points are spread to both sides of their
// value, always in the same way, so that they do not hide each other.
function scatter(title, known, trials, valueOf) {
  const [width, height, left, bottom, top] = [300, 180, 44, 24, 8];
  const times = trials.map(trial => trial.us), low = Math.min(...times) / 1.06, high = Math.max(...times) * 1.06;
  const slot = (width - left) / known.length;
  const y = us => top + (height - bottom - top) * (1 - Math.log(us / low) / Math.log(high / low));
  const points = trials.map((trial, i) => {
    const side = (((i * 7919) % 101) / 100 - 0.5) * Math.min(0.6 * slot, 36);
    return [left + slot * (known.indexOf(valueOf(trial)) + 0.5) + side, y(trial.us), trial];
  });
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "data-own-tip": "", "aria-label": `time over ${title}` });
  for (const us of roundTimes(low, high)) {
    svg.append(
      make("g", { class: "grid" }, make("path", { d: `M${left} ${y(us)}H${width}` })),
      make("text", { x: left - 6, y: y(us) + 3, "text-anchor": "end" }, us.toLocaleString("en"))
    );
  }
  const every = Math.ceil(known.length / 8); // more labels than that overlap
  known.forEach((value, i) => {
    if (i % every === 0) svg.append(make("text", { x: left + slot * (i + 0.5), y: height - 8, "text-anchor": "middle" }, String(value)));
  });
  svg.append(make("path", { class: "dots", d: points.map(([x, at]) => `M${x.toFixed(1)} ${at.toFixed(1)}h0`).join("") }));
  const [x, at] = points[times.indexOf(Math.min(...times))];
  svg.append(make("circle", { class: "fastest", cx: x, cy: at, r: 5 }));
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), scale = width / box.width;
    const [px, py] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const near = points.map(([a, b, trial]) => [Math.hypot(a - px, b - py), trial]).sort((a, b) => a[0] - b[0])[0];
    if (near[0] < 12) showTip(tipOf(near[1]), event.clientX, event.clientY);
    else hideTip();
  });
  return make("figure", {}, make("figcaption", {}, title), svg);
}

// Return the figures of all parameters that have several values, and the importances of a single family's parameters.
function charts(families) {
  const trials = trialsOf(families).filter(trial => trial.us !== null);
  if (trials.length < 2) return [make("p", { class: "none" }, "There are too few timed trials for a chart.")];
  const one = families.length === 1 ? families[0] : null;
  const shown = (one ? one.parameters : [["family", families.map(family => family.name)]])
    .map(([name, known]) => [name, known, trial => (one ? trial.values[name] : trial.family)])
    .map(([name, known, valueOf]) => [name, known.filter(value => trials.some(t => valueOf(t) === value)), valueOf])
    .filter(([, known]) => known.length > 1);
  const figures = shown.map(([name, known, valueOf]) =>
    scatter(name, known, trials.filter(trial => valueOf(trial) !== undefined), valueOf)
  );
  return [
    ...(figures.length ? [make("h4", {}, "Time in us over each parameter; the fastest trial has a ring"), make("div", { class: "plots" }, ...figures)] : []),
    ...(one ? importances(one) : []),
  ];
}

function importances(family) {
  const title = make("h4", {}, "Importance of the parameters");
  if (family.reason) return [title, make("p", { class: "none" }, `Not computed: ${family.reason}.`)];
  const rows = Object.entries(family.importances).map(([name, value]) =>
    make("tr", {}, make("td", {}, name), make("td", { class: "bar" },
      make("b", { class: family.runner, style: `width:${100 * value}%` }), make("span", {}, `${(100 * value).toFixed(0)}%`)))
  );
  return [title, make("p", { class: "note" }, "By PED-ANOVA of Optuna: how well the parameter tells the fastest tenth of the trials from all of them."),
    make("table", { id: "importances" }, make("tbody", {}, ...rows))];
}

function failures(layer) {
  if (!layer.failures.length) return [];
  const rows = layer.failures.map(([count, family, status, message, example]) =>
    make("tr", {}, make("td", {}, status), make("td", {}, String(count)), make("td", { class: "text" }, family),
      make("td", { class: "text small" }, message.trim().split("\n").slice(0, 3).join(" ")), make("td", { class: "text small" }, example)));
  const heads = ["status", "candidates", "family", "message", "example"].map(name => make("th", { class: "text" }, name));
  return [make("h4", {}, "Failures by cause"), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "failures" },
    make("table", { id: "failures" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)))];
}

function show(id) {
  const layer = LAYERS[id];
  for (const old of document.querySelectorAll(".selected")) old.classList.remove("selected");
  for (const link of document.querySelectorAll(`a[href="#layer=${id}"]`)) (link.closest("tr") ?? link).classList.add("selected");
  const winner = layer.families.find(family => family.name === layer.winnerFamily) ?? layer.families[0];
  const choice = make("select", { id: "family" }, make("option", { value: "" }, "all"),
    ...layer.families.map(family => make("option", { value: family.name }, `${family.name} (${family.trials.length})`)));
  choice.value = winner.name;
  const ids = Object.keys(LAYERS), place = ids.indexOf(id), body = make("div");
  const step = (by, word) => make("a", { href: `#layer=${ids[(place + by + ids.length) % ids.length]}` }, word);
  const fill = () => {
    const families = layer.families.filter(family => !choice.value || family.name === choice.value);
    body.replaceChildren(...charts(families), make("h4", {}, "Trials"), ...trialTable(families));
  };
  choice.addEventListener("change", fill);
  fill();
  VIEW.replaceChildren(
    make("h3", {}, layer.name),
    make("p", {}, make("code", {}, layer.problem)),
    make("p", {}, [layer.device, ...layer.about].join("; "), "."),
    ...(layer.winner ? [make("p", {}, "Best candidate: ", make("code", {}, layer.winner))] : []),
    ...(layer.uses.length ? [make("p", { class: "note" }, `Layer ${layer.uses.join(", ")}.`)] : []),
    make("div", { class: "controls" }, make("label", {}, "Family ", choice), step(-1, "previous layer"), step(1, "next layer")),
    body,
    ...failures(layer)
  );
}

// Return the id of the layer with the most trials, which is shown at first.
function mostTried() {
  const count = layer => layer.families.reduce((sum, family) => sum + family.trials.length, 0);
  return Object.keys(LAYERS).reduce((most, id) => (count(LAYERS[id]) > count(LAYERS[most]) ? id : most));
}

// Show the layer that the address names; return whether it names one.
function follow() {
  const id = decodeURIComponent(location.hash).match(/^#layer=(.+)$/)?.[1];
  if (!id || !Object.hasOwn(LAYERS, id)) return false;
  show(id);
  return true;
}

addEventListener("hashchange", () => {
  if (!follow()) return;
  VIEW.scrollIntoView();
  VIEW.focus({ preventScroll: true });
});
if (follow()) VIEW.scrollIntoView();
else if (Object.keys(LAYERS).length) show(mostTried());
