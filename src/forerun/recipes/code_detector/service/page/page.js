"use strict";
// Everything that came from a file is shown with textContent only.
const languages = { python: "Python", java: "Java", cpp: "C++" };
const endings = { py: "python", java: "java", cpp: "cpp", cc: "cpp", cxx: "cpp", hpp: "cpp", h: "cpp" };
const verdicts = {
  "worth-a-conversation": ["Worth a conversation", "flag"],
  "no-finding": ["No finding", "calm"],
  "not-enough-code": ["Not enough code", ""],
  "not-code": ["Not code", ""],
  "no-verdict": ["No verdict", ""],
};
const find = (id) => document.getElementById(id);
let chosen = [];

function make(kind, options = {}, ...children) {
  const made = Object.assign(document.createElement(kind), options);
  made.append(...children.filter((child) => child !== null));
  return made;
}

async function ask(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (find("token").value) headers.Authorization = "Bearer " + find("token").value;
  const options = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
  const response = await fetch(path, options);
  if (response.status === 401) find("token-row").hidden = false;
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.problem || "The service answered " + response.status + ".");
  return answer;
}

async function showing(button, place, work) {
  button.disabled = true;
  try {
    find(place).replaceChildren(...(await work()));
  } catch (error) {
    find(place).replaceChildren(make("p", { className: "problem", textContent: error.message }));
  }
  button.disabled = false;
}

const percent = (share) => (100 * share).toFixed(share < 0.1 ? 1 : 0) + " %";

function statement(sentences) {
  const list = make("ul", {}, ...sentences.map((text) => make("li", { textContent: text })));
  return make("div", { className: "statement" }, make("strong", { textContent: "What this does not prove" }), list);
}

function codeView(code, classOf) {
  const lines = code.split("\n").map((text, place) =>
    make("div", { className: classOf(place + 1) },
      make("span", { className: "number", textContent: String(place + 1) }),
      make("span", { className: "text", textContent: text || " " })));
  return make("div", { className: "code", tabIndex: 0 }, ...lines);
}

function verdictBox(answer) {
  const [title, kind] = verdicts[answer.verdict];
  const score = answer.probability === null ? null : make("p", {
    className: "quiet",
    textContent: "Score " + answer.probability.toFixed(3) + ", threshold " + answer.threshold.toFixed(3) + " (at most " +
      percent(answer.budget) + " of people's files), " + secondOpinion(answer) + answer.tokens + " tokens, model " + answer.model,
  });
  return make("div", { className: "verdict " + kind },
    make("strong", { textContent: (answer.name ? answer.name + ": " : "") + title }), make("p", { textContent: answer.reason }),
    score, feedback(answer.prediction_id));
}

function secondOpinion(answer) {
  if (answer.second_threshold === null) return "no second opinion, ";
  if (answer.second_opinion === null) return "second opinion not needed, ";
  return "second opinion without formatting " + answer.second_opinion.toFixed(3) + ", threshold " +
    answer.second_threshold.toFixed(3) + ", ";
}

function feedback(prediction_id) {
  const said = make("span", { className: "quiet", textContent: "Known since?" });
  const button = (text, outcome) => {
    const made = make("button", { type: "button", textContent: text });
    made.addEventListener("click", async () => {
      try {
        await ask("/v1/feedback", { prediction_id, outcome });
        said.textContent = "Noted: " + text.toLowerCase() + ".";
      } catch (error) {
        said.textContent = error.message;
      }
    });
    return made;
  };
  return make("p", { className: "feedback" }, said, button("AI-written", "confirmed"), button("A person's", "refuted"));
}

function heat(windows) {
  return (line) => {
    const here = windows.filter((w) => w.first_line <= line && line <= w.last_line).map((w) => w.probability);
    if (!here.length) return "";
    const mean = here.reduce((sum, value) => sum + value, 0) / here.length;
    return mean > 0.95 ? "w3" : mean > 0.8 ? "w2" : mean > 0.5 ? "w1" : "";
  };
}

function knownHuman(rates, budget) {
  if (!rates.length) return " How often it flags code that people are known to have written was not measured.";
  return rates.map((rate) => " Of " + rate.files + " files of " + rate.name + (rate.looked_at ? " (looked at before)" : "") + ", which people wrote, it flags " + rate.flagged + " (" +
    percent(rate.flagged / rate.files) + ", 95 % interval " + percent(rate.low) + " to " + percent(rate.high) + ")" +
    (rate.low > budget ? ": more than the " + percent(budget) + " that its validation files promise." : ".")).join("");
}

async function detect() {
  const code = find("detect-code").value;
  const answer = await ask("/v1/detect", { code, language: find("detect-language").value });
  const parts = [make("h2", { textContent: "Verdict" }), verdictBox(answer), statement(answer.statement)];
  if (answer.windows.length) {
    parts.push(make("h2", { textContent: "Where the score comes from" }),
      make("p", { className: "quiet", textContent: "The darker, the more a part alone looks like AI-written code." }),
      codeView(code, heat(answer.windows)));
  }
  return parts;
}

function scoreTable(comparison, embedding, unrelated) {
  const cell = (text, kind) => make("td", { textContent: text, className: kind || "" });
  const row = (name, tier) => make("tr", {}, cell(name), ...[tier.score, tier.of_a, tier.of_b].map((v) => cell(percent(v), "number")));
  const head = make("tr", {}, ...["In common", "of both", "of the first", "of the second"].map((text, n) =>
    make("th", { textContent: text, className: n ? "number" : "" })));
  const rows = [row("Words, without names", comparison.words), row("Syntax, loops made alike", comparison.syntax)];
  if (embedding !== undefined) {
    const said = typeof unrelated === "number" ? "reached by " + percent(unrelated) + " of unrelated pairs" : "";
    rows.push(make("tr", {}, cell("Learned vectors, cosine"), cell(embedding.toFixed(3), "number"),
      make("td", { textContent: said, className: "quiet", colSpan: 2 })));
  }
  return make("div", { className: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

function shownOf(evidence) {
  for (const tier of ["syntax", "words", "embedding"]) {
    const found = evidence.filter((e) => e.tier === tier);
    if (found.length) return found;
  }
  return [];
}

function spans(evidence, side) {
  const shown = shownOf(evidence);
  return (line) => {
    const place = shown.findIndex((e) => e[side + "_first_line"] <= line && line <= e[side + "_last_line"]);
    return place < 0 ? "" : "e" + (place % 6);
  };
}

async function compare() {
  const sides = ["a", "b"].map((side) => ({ code: find(side + "-code").value, language: find(side + "-language").value }));
  const answer = await ask("/v1/similarity", { a: sides[0], b: sides[1] });
  const found = answer.comparison;
  const note = found.too_small ? "One of the files is too small: such files look alike whoever wrote them."
    : shownOf(found.evidence).length + " stretches in common; equal colours belong together. " + answer.guarantee +
      " words in a row cannot be shared unnoticed.";
  const pieces = found.evidence.filter((e) => e.tier === "embedding").map((e) => make("li", { textContent:
    "Lines " + e.a_first_line + "–" + e.a_last_line + " and " + e.b_first_line + "–" + e.b_last_line + ": cosine " + e.cosine.toFixed(3) }));
  const alike = pieces.length ? make("div", {}, make("p", { className: "quiet", textContent:
    "Pieces that do much the same, closer than 99 % of unrelated pairs of files have:" }), make("ul", { className: "quiet" }, ...pieces)) : null;
  return [make("h2", { textContent: "In common" }), scoreTable(found, answer.embedding, answer.unrelated),
    make("p", { className: "quiet", textContent: note }), ...(alike ? [alike] : []),
    make("div", { className: "pair" }, ...["a", "b"].map((side, n) => codeView(sides[n].code, spans(found.evidence, side)))),
    statement(answer.statement)];
}

async function batch() {
  if (!chosen.length) throw new Error("Choose files first.");
  const files = chosen.map(({ name, code, language }) => ({ name, code, language }));
  const answer = await ask("/v1/batch", { files });
  const cell = (text, kind) => make("td", { textContent: text, className: kind || "" });
  const rows = answer.pairs.map((pair) => make("tr", {}, cell(pair.comparison.a), cell(pair.comparison.b),
    cell(percent(pair.comparison.words.score), "number"), cell(percent(pair.comparison.syntax.score), "number"),
    cell(pair.standing === null ? "–" : pair.standing.toFixed(1), "number")));
  const head = make("tr", {}, ...["First", "Second", "Words", "Syntax", "Standing"].map((text, n) =>
    make("th", { textContent: text, className: n > 1 ? "number" : "" })));
  return [make("h2", { textContent: "Most similar pairs" }),
    make("div", { className: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))),
    make("h2", { textContent: "Verdicts" }), ...answer.files.map(verdictBox), statement(answer.statement)];
}

function languageOf(name) {
  return endings[name.split(".").pop().toLowerCase()];
}

async function fill(file, codeId) {
  find(codeId).value = await file.text();
  const language = languageOf(file.name);
  const select = find(codeId.replace("-code", "-language"));
  if (language) select.value = language;
}

async function choose(list) {
  const known = [...list].filter((file) => languageOf(file.name)).slice(0, 50);
  chosen = await Promise.all(known.map(async (file) => ({ name: file.name, code: await file.text(), language: languageOf(file.name) })));
  const left = list.length - chosen.length;
  find("batch-files").textContent = chosen.length + " files" + (left ? ", " + left + " left out (another language, or too many)." : ".");
}

function dropping(place, take) {
  place.addEventListener("dragover", (event) => { event.preventDefault(); place.classList.add("over"); });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    place.classList.remove("over");
    if (event.dataTransfer.files.length) take(event.dataTransfer.files);
  });
}

function select(name) {
  for (const each of ["detect", "compare", "batch"]) {
    find(each).hidden = each !== name;
    find("tab-" + each).setAttribute("aria-selected", String(each === name));
  }
}

const sample = `def moving_average(values, width):
    """Means of every run of width values."""
    if width < 1 or width > len(values):
        raise ValueError("width must be between 1 and the number of values")
    means = []
    total = 0.0
    for place, value in enumerate(values):
        total += value
        if place >= width:
            total -= values[place - width]
        if place >= width - 1:
            means.append(total / width)
    return means


def largest_drop(values):
    """The largest fall from a value to a later one."""
    highest, drop = None, 0.0
    for value in values:
        if highest is None or value > highest:
            highest = value
        drop = max(drop, highest - value)
    return drop


def histogram(values, bins):
    """Counts of values in equal bins between the least and the greatest."""
    low, high = min(values), max(values)
    counts = [0] * bins
    for value in values:
        share = (value - low) / (high - low) if high > low else 0.0
        counts[min(bins - 1, int(share * bins))] += 1
    return counts
`;
const disguised = `# my own work
def biggest_loss(xs):
    top, worst = None, 0.0
    for x in xs:
        if top is None or x > top:
            top = x
        worst = max(worst, top - x)
    return worst

def smooth(xs, n):
    if n < 1 or n > len(xs):
        raise ValueError("bad n")
    result = []
    acc = 0.0
    for i, x in enumerate(xs):
        acc += x   # add
        if i >= n:
            acc -= xs[i - n]
        if i >= n - 1:
            result.append(acc / n)
    return result
`;

function example(name) {
  select(name);
  if (name === "detect") { find("detect-code").value = sample; find("detect-go").click(); }
  if (name === "batch") {
    chosen = [["first.py", sample], ["second.py", disguised], ["third.py", sample.split("\n\n\n").reverse().join("\n\n\n")]]
      .map(([name, code]) => ({ name, code, language: "python" }));
    find("batch-files").textContent = "3 files.";
    find("batch-go").click();
  }
  if (name === "compare") { find("a-code").value = sample; find("b-code").value = disguised; find("compare-go").click(); }
}

async function start() {
  for (const id of ["detect-language", "a-language", "b-language"]) {
    find(id).append(...Object.entries(languages).map(([value, text]) => make("option", { value, textContent: text })));
  }
  for (const name of ["detect", "compare", "batch"]) find("tab-" + name).addEventListener("click", () => select(name));
  find("detect-go").addEventListener("click", () => showing(find("detect-go"), "detect-result", detect));
  find("compare-go").addEventListener("click", () => showing(find("compare-go"), "compare-result", compare));
  find("batch-go").addEventListener("click", () => showing(find("batch-go"), "batch-result", batch));
  for (const name of ["detect", "compare", "batch"]) find(name + "-example").addEventListener("click", () => example(name));
  for (const place of document.querySelectorAll("[data-drop]")) dropping(place, (files) => fill(files[0], place.dataset.drop));
  for (const button of document.querySelectorAll("[data-open]")) {
    button.addEventListener("click", () => {
      find("file").onchange = () => { if (find("file").files.length) fill(find("file").files[0], button.dataset.open); };
      find("file").value = "";
      find("file").click();
    });
  }
  dropping(find("batch-drop"), choose);
  find("batch-open").addEventListener("click", () => find("files").click());
  find("files").addEventListener("change", () => choose(find("files").files));
  try {
    const status = await ask("/v1/status");
    find("model").textContent = "Model " + status.name + " (" + status.model + "). Files of fewer than " + status.least_tokens +
      " tokens get no verdict. " + (status.keeps_code ? "Code that is checked here is stored." : "Code is not stored.") + knownHuman(status.known_human, status.budget);
  } catch (error) {
    find("model").textContent = error.message;
  }
  if (location.hash === "#example-detect") example("detect");
  if (location.hash === "#example-compare") example("compare");
  if (location.hash === "#example-batch") example("batch");
}

start();
