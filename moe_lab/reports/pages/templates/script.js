"use strict";

const make = (tag, text, className) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
};

// Elements that do nothing without this script are hidden until it runs.
for (const element of document.querySelectorAll(".needs-script")) element.hidden = false;

// What is wider than the screen is scrolled with the keyboard, too: tables and figures, once they are seen.
const nameOf = (wide) => wide.dataset.name ?? wide.querySelector("caption")?.textContent ?? wide.querySelector("img")?.alt ?? wide.firstElementChild.getAttribute("aria-label");
const widths = new ResizeObserver((seen) => {
  for (const { target } of seen) {
    if (target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight) {
      target.tabIndex = 0;
      target.setAttribute("role", "region");
      target.setAttribute("aria-label", `${nameOf(target)} (scrolled)`);
    } else for (const name of ["tabindex", "role", "aria-label"]) target.removeAttribute(name);
  }
});
for (const wide of document.querySelectorAll(".wide")) widths.observe(wide);

// Tables: a button in each heading sorts by its column, empty cells last.
const valueOf = (row, index) => {
  const cell = row.cells[index];
  return cell.dataset.value !== undefined ? cell.dataset.value : cell.textContent.trim();
};
const compare = (one, other) => {
  const numbers = one !== "" && other !== "" && !isNaN(one) && !isNaN(other);
  return numbers ? one - other : one.localeCompare(other, "en", { numeric: true });
};
const sortBy = (table, heading, index) => {
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].sort((one, other) => {
    const [first, second] = [valueOf(one, index), valueOf(other, index)];
    if ((first === "") !== (second === "")) return first === "" ? 1 : -1;
    return down ? compare(second, first) : compare(first, second);
  });
  body.append(...rows);
};
for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((heading, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sortBy(table, heading, index));
    heading.append(button);
  });
}

// Filters: a form shows the rows whose data has the chosen values and whose text has the words.
const matches = (row, chosen, words) =>
  Object.entries(chosen).every(([key, value]) => value === "" || row.dataset[key] === value) &&
  words.every((word) => row.textContent.toLowerCase().includes(word));
const filterRows = (form) => {
  const chosen = Object.fromEntries([...form.querySelectorAll("select")].map((each) => [each.name, each.value]));
  const words = form.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = document.querySelectorAll(form.dataset.rows);
  let shown = 0;
  for (const row of rows) {
    row.hidden = !matches(row, chosen, words);
    shown += row.hidden ? 0 : 1;
  }
  const idle = words.length === 0 && Object.values(chosen).every((value) => value === "");
  for (const block of document.querySelectorAll(".filtered"))
    block.hidden = !idle && !block.querySelector("[data-row]:not([hidden])");
  form.querySelector("[role=status]").textContent = `${shown} of ${rows.length} rows`;
};
for (const form of document.querySelectorAll("form.filters[data-rows]")) {
  form.addEventListener("input", () => filterRows(form));
  form.addEventListener("submit", (event) => event.preventDefault());
  filterRows(form);
}

// Answers: the page holds the data and shows one line per answer. Opening a line builds the rest of it.
const PER_PAGE = 25;
const LONGEST_LINE = 200; // characters of a question or an answer in its line
const SEARCHED = 1500; // characters of a prompt: few-shot examples before them would match every search
const box = (title, ...content) => {
  const made = make("div", undefined, "box");
  made.append(make("h3", title), ...content);
  return made;
};
const marked = (text, differs) => {
  const shown = make("pre", text.slice(0, differs));
  const word = text.slice(differs).match(/^\s*\S*/)[0];
  if (word) shown.append(make("mark", word), text.slice(differs + word.length));
  return shown;
};
const sides = () => [document.getElementById("answers").dataset.before, document.getElementById("answers").dataset.after];
const END = 600;
const promptBox = ([prompt, cut]) => {
  if (prompt.length + cut <= END) return box("Prompt", make("pre", prompt));
  const made = box("Prompt, its end", make("pre", "…" + prompt.slice(-END)));
  const tall = make("div", undefined, "wide tall");
  tall.dataset.name = "The prompt as the model saw it";
  tall.append(make("pre", prompt));
  widths.observe(tall);
  const whole = make("details");
  const missing = cut ? `The first ${cut.toLocaleString("en")} characters are left out.` : "";
  whole.append(make("summary", `The prompt as the model saw it, ${(prompt.length + cut).toLocaleString("en")} characters`), make("p", missing, "small soft"), tall);
  made.append(whole);
  return made;
};
const optionTable = (answer) => {
  const table = make("table");
  table.append(make("caption", "Log-probability of each choice, in nats; * marks the choice that counts as the answer"));
  const head = table.createTHead().insertRow();
  for (const name of ["choice", ...sides().slice(-answer.picked.length)]) {
    const heading = make("th", name, name === "choice" ? "" : "n");
    heading.scope = "col";
    head.append(heading);
  }
  const body = table.createTBody();
  answer.options.forEach(([text, ...scores], index) => {
    const row = body.insertRow();
    row.append(make("td", text));
    scores.forEach((score, side) => row.append(make("td", (score === null ? "−∞" : score.toFixed(3)) + (answer.picked[side] === index ? " *" : ""), "n")));
  });
  return table;
};
const answerBox = (title, content, extracted) => {
  const made = box(title, content);
  if (extracted) made.append(make("p", `The metric reads: ${extracted}`, "small soft"));
  return made;
};
// A line shows the question without few-shot examples, and the part of each answer that counts.
const lastParagraph = (text) => {
  const parts = text.trim().split(/\n\s*\n/);
  return parts.at(-1).length < 20 ? parts.slice(-2).join(" ") : parts.at(-1); // not "Answer:" alone
};
// Where each choice has its own prompt (WinoGrande), the choices begin alike: how many characters, to the end of a word.
const alike = (options) => {
  const texts = options.map(([text]) => text.trim());
  let same = 0;
  while (texts.length > 1 && texts.every((text) => same < text.length && text[same] === texts[0][same])) same += 1;
  return same > 40 ? texts[0].lastIndexOf(" ", same - 1) + 1 : 0;
};
const questionOf = ({ options = [] }, [prompt]) => {
  const start = alike(options);
  const question = lastParagraph(prompt);
  return (start ? `${lastParagraph(options[0][0].trim().slice(0, start))} … ${question}` : question).slice(0, LONGEST_LINE);
};
const lastLine = (text) => text.trim().split("\n").at(-1).replace(/^#### /, "").slice(-LONGEST_LINE); // GSM8K's answers follow ####
const shortAnswers = ({ options, picked, base, own, extracted }) => {
  if (options) {
    const start = alike(options);
    return picked.map((choice) => (choice === null ? "" : options[choice][0].trim().slice(start, start + LONGEST_LINE)));
  }
  return (base === undefined ? [own] : [base, own]).map((text, side) => lastLine(extracted?.[side] ?? text));
};
const lineOf = (answer, { prompts, names, manyRuns }) => {
  const made = make("summary");
  const place = make("span", `${answer.task} ${answer.document}`);
  if (manyRuns) place.append(make("span", answer.run.replace(` on ${answer.task}`, ""), "soft"));
  made.append(make("span", answer.kind, `kind ${TONES[answer.kind] ?? ""}`), place, make("span", questionOf(answer, prompts[answer.prompt]), "question"));
  const texts = shortAnswers(answer);
  if (texts.length < names.length) texts.unshift("");
  const target = answer.target.trim() === prompts[answer.prompt][0].trim() ? "" : lastLine(answer.target);
  [target, ...texts].forEach((text, index) => {
    const cell = make("span", undefined, "short");
    cell.append(make("span", `${["target", ...names][index]}: `, "label"), text);
    made.append(cell);
  });
  return made;
};
const TONES = { "wrong to right": "better", "right to wrong": "worse" };
const detailsOf = (answer, prompts) => {
  const made = make("div", undefined, "content");
  made.append(make("p", `${answer.task}, document ${answer.document}, ${answer.run}`, "small soft"));
  const prompt = promptBox(prompts[answer.prompt]);
  const target = box("Target", make("pre", answer.target));
  const pair = make("div", undefined, "pair");
  if (answer.options) {
    const question = make("div");
    question.append(prompt, target);
    pair.append(question, optionTable(answer));
    made.append(pair);
  } else {
    const texts = [answer.base, answer.own];
    const read = answer.extracted ?? [];
    if (answer.base === undefined) pair.append(answerBox(sides()[1], make("pre", answer.own), read[0]));
    else pair.append(...texts.map((text, side) => answerBox(sides()[side], marked(text, answer.differs), read[side])));
    made.append(prompt, pair, target);
  }
  if (answer.scores) made.append(make("p", `Score: ${answer.scores.join(" and ")}`, "small"));
  return made;
};
const answerLine = (answer, shared, open) => {
  const made = make("details", undefined, "answer");
  made.append(lineOf(answer, shared));
  const fill = () => made.children.length === 1 && made.append(detailsOf(answer, shared.prompts));
  made.addEventListener("toggle", fill);
  if (open) fill();
  made.open = open;
  return made;
};
const KEPT = { changed: (answer) => answer.changed, right: (answer) => answer.right === true, wrong: (answer) => answer.right === false };
const showAnswers = ({ prompts, answers: data }) => {
  const form = document.getElementById("answer-filters");
  const place = document.getElementById("answers");
  const pager = document.querySelector(".pager");
  const texts = [];
  const paired = data.some(({ base, picked }) => base !== undefined || picked?.length === 2);
  const shared = { prompts, names: sides().slice(paired ? 0 : 1), manyRuns: data.some(({ run }) => run !== data[0].run) };
  const columns = make("div", undefined, "columns");
  columns.setAttribute("aria-hidden", "true"); // each line names its own cells
  columns.append(...["answer", "example", "question", "target", ...shared.names].map((name) => make("span", name)));
  place.before(columns);
  place.classList.toggle("paired", paired);
  let found = data.map((_, index) => index);
  let page = 0;
  const text = (index) => {
    const { prompt, base = "", own = "", target, options = [] } = data[index];
    return (texts[index] ??= [prompts[prompt][0].slice(-SEARCHED), base, own, target, ...options.map((each) => each[0])].join("\n").toLowerCase());
  };
  const draw = () => {
    const pages = Math.max(1, Math.ceil(found.length / PER_PAGE));
    page = Math.min(Math.max(page, 0), pages - 1);
    const shown = found.slice(page * PER_PAGE, (page + 1) * PER_PAGE);
    place.replaceChildren(...shown.map((index, number) => answerLine(data[index], shared, number === 0)));
    form.querySelector("[role=status]").textContent = `${found.length} of ${data.length} answers`;
    pager.hidden = pages === 1;
    pager.querySelector("input").value = page + 1;
    pager.querySelector("span").textContent = `of ${pages}`;
    pager.querySelector("[name=back]").disabled = page === 0;
    pager.querySelector("[name=on]").disabled = page === pages - 1;
  };
  const search = () => {
    const chosen = [...form.querySelectorAll("select")].filter((each) => each.value !== "");
    const words = form.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
    found = data.map((_, index) => index).filter((index) =>
      chosen.every((each) => KEPT[each.value]?.(data[index]) ?? data[index][each.name] === each.value) && words.every((word) => text(index).includes(word)));
    page = 0;
    draw();
  };
  form.addEventListener("input", search);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.elements.open.addEventListener("click", () => {
    const lines = [...place.children];
    const open = lines.some((line) => !line.open);
    for (const line of lines) line.open = open;
  });
  pager.addEventListener("click", (event) => {
    if (event.target.tagName !== "BUTTON") return;
    page += event.target.name === "on" ? 1 : -1;
    draw();
    place.scrollIntoView();
  });
  pager.addEventListener("change", ({ target }) => {
    page = (parseInt(target.value, 10) || 1) - 1;
    draw();
  });
  draw();
};
const answerData = document.getElementById("answer-data");
if (answerData) showAnswers(JSON.parse(answerData.textContent));
