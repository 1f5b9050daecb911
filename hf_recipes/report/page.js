"use strict";
// Draws the report's charts with Plotly from the numbers embedded in the page. Of each curve at most about LIMIT points
// of the visible steps are drawn: of each stretch the lowest and the highest. Zooming in draws anew, down to every point.
(() => {
  const LIMIT = 2000;
  const MARKS = 300; // alarms and non-finite values marked in one chart
  const element = (id) => document.getElementById(id);
  const touch = matchMedia("(pointer: coarse)").matches; // there a drag scrolls the page, and buttons zoom
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  // Plotly reads a few tags in texts: foreign ones are taken out of force.
  const inert = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const view = { steps: null, weight: 0 }; // what all charts share: visible steps, weight of the smoothing
  const charts = new Map(); // title → { chart, figure, plot, log, range, seen }
  let data = JSON.parse(element("data").textContent);

  // ---- numbers -----------------------------------------------------------------------------------------------------
  function unpack(index) {
    const packed = data.arrays[index];
    if (packed.values) return packed.values;
    if ("count" in packed) {
      packed.values = new Float64Array(packed.count);
      for (let i = 0; i < packed.count; i++) packed.values[i] = packed.from + i * packed.by;
    } else {
      const text = atob(packed.b64);
      const bytes = new Uint8Array(text.length);
      for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
      packed.values = packed.type === "f4" ? new Float32Array(bytes.buffer) : new Float64Array(bytes.buffer);
    }
    packed.b64 = null;
    return packed.values;
  }

  // The first index whose step is not below `step`.
  function place(steps, step) {
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1; else high = middle;
    }
    return low;
  }

  // The indices to draw of what is visible, and one beyond each edge, so that lines reach it.
  function pick(steps, values) {
    const first = view.steps ? Math.max(place(steps, view.steps[0]) - 1, 0) : 0;
    const end = view.steps ? Math.min(place(steps, view.steps[1]) + 2, steps.length) : steps.length;
    const width = end - first > LIMIT ? Math.ceil((2 * (end - first)) / LIMIT) : 1;
    const kept = [];
    for (let start = first; start < end; start += width) {
      let low = -1, high = -1;
      for (let i = start; i < Math.min(start + width, end); i++) {
        if (!Number.isFinite(values[i])) continue;
        if (low < 0 || values[i] < values[low]) low = i;
        if (high < 0 || values[i] > values[high]) high = i;
      }
      if (low >= 0) kept.push(Math.min(low, high));
      if (low !== high) kept.push(Math.max(low, high));
    }
    return kept;
  }

  function notFinite(values) {
    const found = [];
    for (let i = 0; i < values.length; i++) if (!Number.isFinite(values[i])) found.push(i);
    return found;
  }

  // Points to draw, with a gap wherever a value between two of them was not finite.
  function points(steps, values, gaps) {
    const drawn = { x: [], y: [], text: [] };
    let gap = 0, before = -1;
    for (const i of pick(steps, values)) {
      while (gap < gaps.length && gaps[gap] < before) gap++;
      if (before >= 0 && gap < gaps.length && gaps[gap] < i) {
        drawn.x.push(steps[gaps[gap]]); drawn.y.push(null); drawn.text.push("");
      }
      drawn.x.push(steps[i]); drawn.y.push(values[i]); drawn.text.push(String(values[i]));
      before = i;
    }
    return drawn;
  }

  // Exponential moving average, corrected for its start; what is not finite stays so and does not enter it.
  function smoothed(values, weight) {
    const result = new Float64Array(values.length);
    let sum = 0, mass = 0;
    for (let i = 0; i < values.length; i++) {
      if (Number.isFinite(values[i])) {
        sum = weight * sum + (1 - weight) * values[i];
        mass = weight * mass + (1 - weight);
      }
      result[i] = Number.isFinite(values[i]) ? sum / mass : NaN;
    }
    return result;
  }

  // ---- one chart ---------------------------------------------------------------------------------------------------
  function curveTraces(curve, legend) {
    const steps = unpack(curve.steps), values = unpack(curve.values);
    const gaps = notFinite(values), ink = colour(`c${curve.colour}`), name = inert(curve.name);
    const drawn = points(steps, values, gaps);
    const few = drawn.x.length <= 60, pale = view.weight > 0 && curve.smooth;
    const traces = [{
      ...drawn, type: "scatter", name, showlegend: legend && !pale, legendgroup: name, opacity: pale ? 0.35 : 1,
      mode: few || curve.sparse || pale ? "lines+markers" : "lines", connectgaps: false,
      line: { color: ink, width: pale ? 1 : 1.8, dash: curve.dash, simplify: false },
      marker: { color: ink, size: pale ? 3 : curve.sparse ? 7 : 4 },
      hovertemplate: `${name} <b>%{text}</b> (step %{x})<extra></extra>`,
    }];
    if (pale) {
      const line = points(steps, smoothed(values, view.weight), gaps);
      traces.push({ ...line, text: undefined, type: "scatter", mode: "lines", name: `${name}, smoothed`, showlegend: legend,
        legendgroup: name, hoverinfo: "skip", line: { color: ink, width: 2.4, dash: curve.dash, simplify: false } });
    }
    if (gaps.length) {
      const shown = gaps.filter((_, i) => i % Math.ceil(gaps.length / MARKS) === 0);
      traces.push({ x: shown.map((i) => steps[i]), y: shown.map(() => 0.94), yaxis: "y2", type: "scatter", mode: "markers",
        name: `${name}, not finite`, showlegend: false, legendgroup: name, text: shown.map((i) => String(values[i]).toLowerCase()),
        marker: { symbol: "x-thin", size: 9, line: { width: 2, color: colour("bad") } },
        hovertemplate: `${name} <b>%{text}</b> (step %{x})<extra></extra>` });
    }
    return traces;
  }

  function bandTraces(band) {
    const ink = colour("band");
    const side = (part) => points(unpack(part.steps), unpack(part.values), []);
    const shared = { type: "scatter", mode: "lines", showlegend: false };
    const line = { color: ink, width: 0 };
    return [
      { ...shared, ...side(band.low), name: "band, low", line, hovertemplate: "band from %{text}<extra></extra>" },
      { ...shared, ...side(band.high), name: "healthy band", showlegend: true, line, fill: "tonexty", fillcolor: ink,
        hovertemplate: "band to %{text}<extra></extra>" },
      { ...shared, ...side(band.median), name: "band, median", hoverinfo: "skip", line: { color: colour("quiet"), width: 1, dash: "dot" } },
    ];
  }

  function wrapped(text) {
    const width = innerWidth < 600 ? 34 : 56, lines = [""];
    for (const word of String(text).split(/\s+/).flatMap((long) => long.match(/.{1,34}/gsu) || [])) {
      if ((lines.at(-1) + word).length > width) lines.push("");
      lines[lines.length - 1] += `${word} `;
    }
    return lines.slice(0, 14).map((line) => inert(line.trimEnd())).join("<br>");
  }

  // With several runs an alarm has the colour of its run.
  const alarmInk = (alarm) => colour(data.runs.length > 1 ? `c${alarm.run % 8}` : "bad");

  function alarmTrace() {
    const several = data.runs.length > 1;
    const shown = data.alarms.slice(-MARKS);
    return {
      x: shown.map((alarm) => alarm.step), y: shown.map(() => 0.985), yaxis: "y2", type: "scatter", mode: "markers",
      name: "alarms", showlegend: false, marker: { symbol: "triangle-down", size: 11, color: shown.map(alarmInk) },
      text: shown.map((alarm) => `<b>${inert(several ? `${data.runs[alarm.run]}, ` : "")}${inert(alarm.detector)}</b><br>${wrapped(alarm.message)}`),
      hovertemplate: "%{text}<extra></extra>",
    };
  }

  function allSteps() {
    let low = Infinity, high = -Infinity;
    for (const { steps } of data.charts.flatMap((chart) => chart.curves)) {
      const values = unpack(steps);
      low = Math.min(low, values[0]);
      high = Math.max(high, values[values.length - 1]);
    }
    const margin = Math.max((high - low) * 0.02, 0.5);
    return [low - margin, high + margin];
  }

  function layout(box) {
    const axis = { gridcolor: colour("line"), zeroline: false, linecolor: colour("line"), tickfont: { color: colour("quiet") } };
    const y = { ...axis, type: box.log ? "log" : "linear", exponentformat: "e", automargin: true, nticks: 6, rangemode: box.chart.from_zero ? "tozero" : "normal",
      ...(box.range ? { range: box.range, autorange: false } : { autorange: true }) };
    return {
      autosize: true, margin: { l: 48, r: 8, t: 6, b: 28 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: colour("ink") }, dragmode: touch ? false : "zoom",
      hovermode: "x unified", hoverdistance: 10, // each line tells its own step: the box may join neighbours
      showlegend: true, legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom" },
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink"), size: 12 }, align: "left" },
      xaxis: { ...axis, range: view.steps || allSteps(), spikecolor: colour("quiet"), spikethickness: 1, spikedash: "dot",
        tickformat: ",d", hoverformat: ",d", nticks: 7, unifiedhovertitle: { text: "step %{x}" } },
      yaxis: y, yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      shapes: data.alarms.slice(-MARKS).map((alarm) => ({ type: "line", x0: alarm.step, x1: alarm.step, yref: "paper", y0: 0, y1: 1,
        line: { color: alarmInk(alarm), width: 1, dash: "dot" }, opacity: 0.6 })),
    };
  }

  async function draw(box) {
    if (!box.seen) return;
    const legend = box.chart.curves.length > 1 || box.chart.bands.length > 0;
    const traces = [
      ...box.chart.bands.flatMap(bandTraces), ...box.chart.curves.flatMap((curve) => curveTraces(curve, legend)),
      ...(data.alarms.length ? [alarmTrace()] : []),
    ];
    const config = { responsive: true, displayModeBar: false, doubleClick: false, scrollZoom: false };
    await Plotly.react(box.plot, traces, layout(box), config);
    if (box.heard) return;
    box.heard = true;
    box.plot.on("plotly_relayout", (change) => zoomed(box, change));
    box.plot.on("plotly_doubleclick", wholeRun);
  }

  // ---- what all charts share ---------------------------------------------------------------------------------------
  const drawAll = () => Promise.all([...charts.values()].map(draw));

  function zoomed(box, change) {
    const range = (axis) => change[`${axis}.range`] || (`${axis}.range[0]` in change && [change[`${axis}.range[0]`], change[`${axis}.range[1]`]]);
    const steps = range("xaxis");
    if (range("yaxis")) box.range = range("yaxis");
    if (!steps && !range("yaxis")) return;
    if (steps) view.steps = steps.map(Number);
    element("whole").hidden = false;
    if (steps) drawAll(); else draw(box);
  }

  // Zoom by `factor` and move by `shift` of what is visible, within the run.
  function step(factor, shift) {
    const whole = allSteps(), [low, high] = view.steps || whole;
    const width = Math.min(Math.max((high - low) * factor, 2), whole[1] - whole[0]);
    const middle = (low + high) / 2 + shift * (high - low);
    const start = Math.min(Math.max(middle - width / 2, whole[0]), whole[1] - width);
    view.steps = [start, start + width];
    element("whole").hidden = false;
    drawAll();
  }

  function wholeRun() {
    view.steps = null;
    for (const box of charts.values()) box.range = null;
    element("whole").hidden = true;
    drawAll();
  }

  const onSight = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      const box = charts.get(entry.target.dataset.title);
      onSight.unobserve(entry.target);
      box.seen = true;
      draw(box);
    }
  }, { rootMargin: "300px" });

  function figureOf(chart) {
    const figure = document.createElement("figure"), title = document.createElement("h3");
    const toggle = document.createElement("button"), plot = document.createElement("div");
    figure.className = "chart"; plot.className = "plot"; toggle.className = "log";
    figure.dataset.title = chart.title; title.textContent = chart.title; toggle.textContent = "log scale";
    const box = { chart, figure, plot, log: chart.log, range: null, seen: false };
    const press = () => toggle.setAttribute("aria-pressed", box.log);
    toggle.onclick = () => { box.log = !box.log; box.range = null; press(); draw(box); };
    press();
    const caption = document.createElement("figcaption");
    caption.append(title, toggle);
    figure.append(caption, plot);
    element(chart.folded ? "folded" : "charts").append(figure);
    charts.set(chart.title, box);
    onSight.observe(figure);
    return box;
  }

  function build() {
    for (const chart of data.charts) {
      const box = charts.get(chart.title) || figureOf(chart);
      box.chart = chart;
      box.plot.setAttribute("role", "img");
      box.plot.setAttribute("aria-label", chart.summary);
    }
    element("others").hidden = !data.charts.some((chart) => chart.folded);
    const marked = data.alarms.length ? " Triangles: alarms, with what was seen and what to do." : "";
    element("hint").textContent = data.charts.length
      ? `${touch ? "Tap for values; the buttons above zoom and move." : "Drag to zoom, double-click for the whole run, point for values."}${marked} ` +
        "Red crosses: values that were NaN or infinite; the line breaks there."
      : "Nothing was logged yet.";
    return drawAll();
  }

  element("smoothing").oninput = (event) => {
    view.weight = Number(event.target.value);
    element("weight").textContent = view.weight ? view.weight.toFixed(2) : "off";
    drawAll();
  };
  element("whole").onclick = wholeRun;
  for (const button of document.querySelectorAll("button[data-factor]")) {
    button.onclick = () => step(Number(button.dataset.factor), Number(button.dataset.shift));
  }
  dark.addEventListener("change", drawAll);

  // ---- following a live run ----------------------------------------------------------------------------------------
  function show(id, html) {
    const open = [...element(id).querySelectorAll("details")].map((part) => part.open);
    element(id).innerHTML = html; // made and escaped by the same code as the page
    element(id).querySelectorAll("details").forEach((part, i) => { part.open = part.open || Boolean(open[i]); });
  }

  async function follow() {
    const asked = performance.now();
    let wait = 2000;
    try {
      const answer = await fetch(`data.json?version=${encodeURIComponent(data.version)}`, { cache: "no-store", signal: AbortSignal.timeout(60000) });
      if (answer.status === 200) {
        const fresh = await answer.json();
        wait = Math.max(wait, 5 * (performance.now() - asked)); // a large log is not asked for all the time
        show("head", fresh.head);
        show("rest", fresh.rest);
        data = fresh.data;
        await build();
      }
      element("link").textContent = "live";
    } catch {
      element("link").textContent = "the server does not answer: values are as of the last that came";
    }
    setTimeout(follow, wait);
  }

  build();
  if (data.version) follow();
})();
