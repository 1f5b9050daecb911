// In a function of its own: names such as top are the window's.
(() => {
"use strict";
// Everything foreign enters the page by textContent or value; nothing is read as HTML.
const sheet = JSON.parse(document.getElementById("data").textContent);
const root = document.getElementById("sheet");
const scale = [];
for (let score = sheet.lowest; score <= sheet.highest; score++) scale.push(score);
// In the order in which keys fill them: each criterion for A and for B, then the preference.
const fields = sheet.criteria.flatMap(criterion => ["A", "B"].map(side => `${side}: ${criterion.name}`));
fields.push("preference");
const preferences = {a: "A", t: "tie", b: "B"};
const place = `hf_recipes ratings ${sheet.sheet}`;
const keeps = restore();
let state = keeps.state, field = 0, referenceShown = false;

function restore() {
  const fresh = {rater: "", at: 0, ratings: {}};
  try {
    localStorage.setItem(`${place} probe`, "1");
    localStorage.removeItem(`${place} probe`);
    const kept = JSON.parse(localStorage.getItem(place));
    const at = kept ? Math.min(Math.max(0, kept.at | 0), sheet.items.length - 1) : 0;
    return {works: true, state: kept ? {...fresh, ...kept, at} : fresh};
  } catch {
    return {works: false, state: fresh};
  }
}

function keep() {
  if (keeps.works) try { localStorage.setItem(place, JSON.stringify(state)); } catch { keeps.works = false; }
}

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const item = () => sheet.items[state.at];
const given = () => (state.ratings[item().item] ||= {});
const complete = each => fields.every(name => state.ratings[each.item]?.[name]);

function set(name, value) {
  given()[name] = value;
  field = Math.min(fields.indexOf(name) + 1, fields.length - 1);
  keep();
  draw();
}

function go(to) {
  state.at = Math.min(Math.max(0, to), sheet.items.length - 1);
  field = Math.max(0, fields.findIndex(name => !given()[name]));
  referenceShown = false;
  keep();
  draw();
  scrollTo(0, 0);
}

function goToOpen() {
  const after = [...sheet.items.keys()].map(step => (state.at + 1 + step) % sheet.items.length);
  const open = after.find(index => !complete(sheet.items[index]));
  if (open !== undefined) go(open);
}

function choice(name, value, label) {
  const pressed = String(given()[name] ?? "") === String(value);
  const button = element("button", {type: "button", textContent: label, onclick: () => set(name, value)});
  button.setAttribute("aria-pressed", pressed);
  button.setAttribute("aria-label", `${name} ${value}`);
  return button;
}

function fieldBox(name, choices) {
  return element("div", {className: fields[field] === name ? "field here" : "field"}, ...choices);
}

function criterionRow(criterion) {
  const head = element("td", {}, element("b", {textContent: criterion.name}), element("br"),
    element("small", {textContent: criterion.question}));
  const cells = ["A", "B"].map(side => {
    const name = `${side}: ${criterion.name}`;
    return element("td", {}, fieldBox(name, scale.map(score => choice(name, score, String(score)))));
  });
  return element("tr", {}, head, ...cells);
}

function ratingTable() {
  const head = element("tr", {}, ...[`${sheet.lowest} = bad, ${sheet.highest} = good`, "A", "B"].map(
    title => element("th", {textContent: title})));
  const better = element("tr", {}, element("td", {}, element("b", {textContent: "Which is better?"})),
    element("td", {colSpan: 2}, fieldBox("preference",
      Object.entries(preferences).map(([key, value]) => choice("preference", value, `${value} (${key})`)))));
  return element("div", {className: "scroll"},
    element("table", {}, element("tbody", {}, head, ...sheet.criteria.map(criterionRow), better)));
}

function foreign(title, text, css) {
  return element("section", {className: css}, element("h2", {textContent: title}),
    element("div", {className: "foreign", dir: "auto", textContent: text}));
}

function reference() {
  const button = element("button", {type: "button", textContent: referenceShown ? "Hide reference (r)" : "Show reference (r)",
    onclick: () => { referenceShown = !referenceShown; draw(); }});
  return referenceShown ? [button, foreign("Reference", item().reference, "said")] : [button];
}

function top() {
  const rater = element("input", {id: "rater", value: state.rater, placeholder: "your name or initials", maxLength: 60,
    oninput: event => { state.rater = event.target.value; keep(); }});
  const done = sheet.items.filter(complete).length;
  return element("header", {className: "top"},
    element("h1", {textContent: `Item ${state.at + 1} of ${sheet.items.length}`}),
    element("div", {className: "grow"}, element("progress", {max: sheet.items.length, value: done}),
      element("small", {id: "done", textContent: `${done} of ${sheet.items.length} rated`})),
    element("label", {textContent: "Rater "}, rater),
    element("button", {type: "button", id: "save", textContent: "Save CSV (s)", onclick: save}));
}

function help() {
  const keys = [[`${sheet.lowest}–${sheet.highest}`, "rate"], ["↑ ↓", "which one"], ["a t b", "better: A, tie, B"],
    ["← →", "item"], ["Enter", "next one not rated"], ["r", "reference"], ["s", "save"]];
  const kept = keeps.works ? "What you rate is kept in this browser; save the CSV when you are done."
    : "This browser keeps nothing between visits: save the CSV before you close the page.";
  return element("footer", {}, ...keys.flatMap(([key, what]) => [element("kbd", {textContent: key}), ` ${what}   `]),
    element("p", {textContent: kept}));
}

function note() {
  return element("label", {}, "Note ", element("textarea", {rows: 2, value: given().note ?? "", dir: "auto",
    oninput: event => { given().note = event.target.value; keep(); }}));
}

function draw() {
  root.replaceChildren(top(), foreign("Prompt", item().prompt, ""),
    element("div", {className: "answers"}, foreign("A", item().A, "answer"), foreign("B", item().B, "answer")),
    element("section", {}, ratingTable(), note(), ...(item().reference ? reference() : [])), help());
}

// A leading quote keeps a spreadsheet from taking a note for a formula.
const cell = value => `"${String(value ?? "").replace(/^[=+@\t\r-]/, "'$&").replaceAll('"', '""')}"`;

function csv() {
  const columns = ["sheet", "rater", "item", ...fields, "note"];
  const rows = sheet.items.map(each => {
    const values = state.ratings[each.item] ?? {};
    return [sheet.sheet, state.rater.trim(), each.item, ...fields.map(name => values[name]), values.note];
  });
  return [columns, ...rows].map(row => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function save() {
  if (!state.rater.trim()) {
    document.getElementById("rater").focus();
    document.getElementById("done").textContent = "Write your name first: it tells raters apart.";
    return;
  }
  const file = new Blob(["\ufeff" + csv()], {type: "text/csv"});  // the mark tells spreadsheets that it is UTF-8
  const link = element("a", {href: URL.createObjectURL(file), download: `ratings-${state.rater.trim().replace(/[^\p{L}\p{N}_-]+/gu, "_")}.csv`});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (event.key === "Enter" && event.target.tagName === "BUTTON") return;
  const score = Number(event.key);
  if (scale.includes(score) && fields[field] !== "preference") set(fields[field], score);
  else if (preferences[event.key]) set("preference", preferences[event.key]);
  else if (event.key === "ArrowDown") { field = Math.min(field + 1, fields.length - 1); draw(); }
  else if (event.key === "ArrowUp") { field = Math.max(field - 1, 0); draw(); }
  else if (event.key === "ArrowRight") go(state.at + 1);
  else if (event.key === "ArrowLeft") go(state.at - 1);
  else if (event.key === "Enter") goToOpen();
  else if (event.key === "r") { referenceShown = !referenceShown; draw(); }
  else if (event.key === "s") save();
  else return;
  event.preventDefault();
});
draw();
})();
