// The page of graphslice serve: reads molecules, asks the API in batches, and shows what it returns.
const $ = (id) => document.getElementById(id);
const SHOWN = 1000, BATCH = 250, MOST_COLUMNS = 6, SEPARATORS = [",", ";", "\t"];
let models = [], maxMolecules = BATCH, shown = null, running = null, editor = null;

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

async function api(path, body, signal) {
  const options = body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("The server does not respond.");
  }
  const content = await response.json().catch(() => ({ error: `The server returned status ${response.status}.` }));
  if (!response.ok) throw new Error(content.error);
  return content;
}

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", isError);
}

// --- input ---------------------------------------------------------------------------------------

// A text is a table if its first line names a SMILES column, or all lines have a comma or semicolon.
const SMILES_NAMES = [/^\W*(smiles|canonical_smiles|smi)\W*$/i, /smiles/i, /^\W*(mol|structure|drug)\W*$/i];
const isSmilesName = (name) => SMILES_NAMES.some((pattern) => pattern.test(name));
const findSmilesName = (names) => SMILES_NAMES.map((pattern) => names.findIndex((name) => pattern.test(name))).find((i) => i >= 0) ?? -1;
const isSmiles = (text) => /[A-Za-z]/.test(text) && /^(\[[^\]]+\]|Br|Cl|[BCNOPSFIbcnops]|[-=#$:.\/\\()%0-9])+$/.test(text);
// Of several separators the one that gives the most SMILES, as names and decimal numbers may have commas too.
function readTable(text) {
  const tables = SEPARATORS.map((one) => readCells(text, one)).filter(Boolean), [best] = tables.sort((a, b) => b.most - a.most);
  const inList = text.split("\n").filter((line) => isSmiles(readLine(line)?.smiles ?? "")).length;
  return best && (best.isNamed || best.most >= inList) ? best : null;
}

function readCells(text, one) {
  const first = text.split("\n", 1)[0], isNamed = first.split(one).some(isSmilesName);
  const lines = text.split("\n").filter((line) => line.trim());
  const isTable = isNamed || ((one !== "\t" && !first.includes("|")) && lines.length > 1 && lines.every((line) => line.includes(one)));
  const separator = first.includes(one) && isTable ? one : undefined;
  if (!separator && !isSmilesName(first)) return null;
  const rows = [[]];
  let cell = "", quoted = false;
  for (let i = 0; i < text.length; i++) {
    const letter = text[i];
    if (quoted && letter === '"' && text[i + 1] === '"') cell += text[++i];
    else if (letter === '"' && (quoted || cell === "")) quoted = !quoted;
    else if (!quoted && (letter === separator || letter === "\n")) {
      rows.at(-1).push(cell);
      cell = "";
      if (letter === "\n") rows.push([]);
    } else if (letter !== "\r" || quoted) cell += letter;
  }
  rows.at(-1).push(cell);
  const names = rows[0].map((cell) => cell.trim()), count = (i) => rows.filter((row) => isSmiles((row[i] ?? "").trim())).length;
  // Without a name it is the column with the most SMILES, and a first line without one there names the columns.
  const named = findSmilesName(names), most = Math.max(...names.map((_, i) => count(i)));
  if (named < 0 && most === 0) return null;
  const smiles = named >= 0 ? named : names.findIndex((_, i) => count(i) === most), hasHeader = named >= 0 || !isSmiles(names[smiles]);
  const header = hasHeader ? names : names.map((_, i) => `column ${i + 1}`);
  const body = rows.slice(hasHeader ? 1 : 0).filter((row) => row.length > 1 || row[0].trim());
  return { header, rows: body, smiles, separator, most, isNamed: named >= 0 };
}

function readLine(line) {
  const match = line.trim().match(/^(\S+(?:\s+\|.*\|)?)\s*(.*)$/);
  return match && { smiles: match[1], name: match[2] };
}

function readMolecules() {
  const text = $("text").value.replace(/^\ufeff/, ""), table = readTable(text);
  if (!table) return text.split("\n").filter((line) => line.trim()).map(readLine);
  const [smiles, name] = [$("smiles-column"), $("name-column")].map((select) => Number(select.value));
  return table.rows.map((row) => ({ smiles: row[smiles] ?? "", name: row[name] ?? "", row, header: table.header }));
}

function showColumns() {
  const table = readTable($("text").value.replace(/^\ufeff/, ""));
  $("columns").hidden = !table;
  if (!table) return;
  const options = () => table.header.map((name, i) => element("option", { value: i, textContent: name || `column ${i + 1}` }));
  $("smiles-column").replaceChildren(...options());
  $("name-column").replaceChildren(element("option", { value: -1, textContent: "none" }), ...options());
  $("smiles-column").value = table.smiles;
  $("name-column").value = table.header.findIndex((name) => /(id|name)$/i.test(name));
}

// Numbers of the feature columns that the model reads.
function featureColumns(model, molecules) {
  let unread = 0;
  const number = (text) => {
    if (text === undefined || text.trim() === "") return null;
    if (!isNaN(text)) return Number(text);
    unread++;
    return null;
  };
  const columns = {};
  for (const name of model.columns) {
    const index = molecules[0].header?.indexOf(name) ?? -1;
    if (index < 0) throw new Error(`The model reads a feature column ${name}: give a CSV table that has it.`);
    columns[name] = molecules.map((molecule) => number(molecule.row[index]));
  }
  return { columns, unread };
}

// --- predictions ---------------------------------------------------------------------------------

async function predict() {
  if (running) return running.abort();
  const model = models.find((one) => one.name === $("model").value), molecules = readMolecules();
  if (!model || !molecules.length) return say("Give at least one SMILES.", true);
  running = new AbortController();
  $("go").textContent = "Stop";
  $("progress").hidden = false;
  shown = { model, molecules, rows: [] };
  $("results").hidden = true;
  $("table").replaceChildren();
  try {
    const { columns, unread } = featureColumns(model, molecules), size = Math.min(BATCH, maxMolecules);
    shown.unread = unread;
    const interval = model.calibrated && $("interval").value ? Number($("interval").value) : null;
    for (let start = 0; start < molecules.length; start += size) {
      say(`${start.toLocaleString()} of ${molecules.length.toLocaleString()} molecules …`);
      Object.assign($("progress"), { max: molecules.length, value: start });
      const part = molecules.slice(start, start + size);
      const values = Object.fromEntries(Object.entries(columns).map(([name, all]) => [name, all.slice(start, start + size)]));
      const body = { smiles: part.map((one) => one.smiles), model: model.name, interval, nearest: model.calibrated, columns: values };
      addRows((await api("/predict", body, running.signal)).rows);
    }
    say(summary());
  } catch (error) {
    say(error.name === "AbortError" ? `Stopped. ${summary()}` : error.message, error.name !== "AbortError");
  }
  running = null;
  $("go").textContent = "Predict";
  $("progress").hidden = true;
}

function summary() {
  const { rows } = shown, failed = rows.filter((row) => row.error !== null).length;
  const outside = rows.filter((row) => row.in_domain === false).length;
  const texts = [`${(rows.length - failed).toLocaleString()} molecule${rows.length - failed === 1 ? "" : "s"} predicted.`];
  if (failed) texts.push(`${failed.toLocaleString()} without a prediction.`);
  if (outside) texts.push(`${outside.toLocaleString()} outside the applicability domain.`);
  if (shown.unread) texts.push(`${shown.unread.toLocaleString()} cells of feature columns are no numbers, such as 1.5, and count as unknown.`);
  if (rows.length > SHOWN) texts.push(`The first ${SHOWN.toLocaleString()} are shown; the CSV file has all.`);
  return texts.join(" ");
}

function addRows(rows) {
  const table = $("table"), { model } = shown, begin = shown.rows.length;
  $("results").hidden = false;
  if (!begin) {
    const targets = Object.keys(model.targets);
    table.classList.toggle("many", targets.length > MOST_COLUMNS);
    const names = ["Structure", "Name", ...targets, ...(model.calibrated ? ["In domain"] : [])];
    const header = (name) => element("th", { textContent: withUnit(model, name), scope: "col", title: model.descriptions[name] ?? "" });
    table.append(element("thead", {}, element("tr", {}, ...names.map(header))));
    table.append(element("tbody"));
  }
  shown.rows.push(...rows);
  Object.keys(model.targets).forEach((target, t) => {  // the scale of the bars of each target
    const values = shown.rows.flatMap((row) => ["_low", "_high", "_pred"].map((part) => row[target + part]));
    const numbers = values.filter((value) => typeof value === "number");
    const isClass = target in model.classes;
    table.style.setProperty(`--min${t}`, isClass ? 0 : numbers.reduce((a, b) => Math.min(a, b), Infinity));
    table.style.setProperty(`--max${t}`, isClass ? 1 : numbers.reduce((a, b) => Math.max(a, b), -Infinity));
  });
  table.tBodies[0].append(...rows.slice(0, Math.max(0, SHOWN - begin)).map((row, i) => makeRow(row, begin + i)));
}

const withUnit = (model, name) => (model.units[name] ? `${name} (${model.units[name]})` : name);

function makeRow(row, index) {
  const { model, molecules } = shown, picture = element("div");
  picture.dataset.smiles = row.smiles;
  visible.observe(picture);
  const name = element("td", { className: "name" }, molecules[index].name || `${index + 1}`);
  name.append(element("code", { className: "smiles", textContent: row.smiles }));
  const made = element("tr", {}, element("td", { className: "structure" }, picture), name);
  const targets = Object.keys(model.targets);
  if (row.error !== null) {
    made.append(element("td", { className: "outside", colSpan: targets.length + 1, textContent: row.error }));
    return made;
  }
  made.append(...targets.map((target, t) => targetCell(model, row, target, t)));
  if (model.calibrated) {
    const cell = element("td", { className: row.in_domain ? "domain" : "domain outside", textContent: row.in_domain ? "yes" : "no" });
    cell.append(element("span", { className: "bounds", textContent: `similarity ${row.similarity.toFixed(2)}` }));
    cell.dataset.label = "in domain";
    made.append(cell);
  }
  if (model.level === "molecule") {
    const button = element("button", { type: "button", textContent: "Explain" });
    button.setAttribute("aria-expanded", "false");
    button.setAttribute("aria-label", `Explain the prediction of ${molecules[index].name || row.smiles}`);
    button.onclick = () => toggleDetail(made, button, row, molecules[index]);
    name.append(button);
  }
  return made;
}

const short = (value, digits = 4) => (typeof value === "number" ? String(Number(value.toPrecision(digits))) : String(value ?? "unbounded"));

function targetCell(model, row, target, t) {
  const cell = element("td", { className: "target", title: model.descriptions[target] ?? "" }), value = row[`${target}_pred`];
  cell.dataset.label = withUnit(model, target);
  if (Array.isArray(value)) {
    cell.append(element("code", { className: "values", textContent: value.map((one) => short(one)).join(" ") }));
    return cell;
  }
  let low = row[`${target}_low`], high = row[`${target}_high`], at = value, bounds = "";
  if (target in model.classes) {
    const names = model.classes[target], chances = names.map((name) => row[`${target}_prob_${name}`]);
    const named = names.length > 2 ? value : names[1];
    [low, high, at] = [0, chances[names.indexOf(named)], chances[names.indexOf(named)]];
    cell.append(value);
    bounds = `P(${named}) ${at.toFixed(2)}`;
    if (`${target}_sure` in row) bounds += row[`${target}_sure`] ? ", sure" : ", unsure";
    if (names.length > 2 && row[`${target}_sure`] === false) bounds += `: ${row[`${target}_set`].replaceAll("|", " or ") || "no class"}`;
  } else {
    const narrow = low === undefined || (low * high > 0 && Math.max(low / high, high / low) < 10), digits = narrow ? 4 : 2;
    cell.append(short(value, digits));
    if (low !== undefined) bounds = `${short(low, digits)} to ${short(high, digits)}`;
  }
  if (`${target}_std` in row) bounds += `${bounds && "; "}SD over models ${short(row[`${target}_std`])}`;
  const place = (number) => `calc((${number} - var(--min${t})) / max(1e-9, var(--max${t}) - var(--min${t})) * 100%)`;
  const bar = element("div", { className: "bar" }), mark = element("b");
  mark.style.left = place(at);
  if (typeof low === "number" && typeof high === "number") {
    const interval = element("i");
    interval.style.left = place(low);
    interval.style.right = `calc(100% - ${place(high)})`;
    bar.append(interval);
  }
  bar.append(mark);
  cell.append(element("span", { className: "bounds", textContent: bounds }), bar);
  return cell;
}

async function toggleDetail(row, button, prediction, molecule) {
  const open = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!open));
  if (open) return row.nextElementSibling.remove();
  const { model } = shown, content = element("div", { className: "fields" }), result = element("div");
  const select = element("select", {}, ...Object.keys(model.targets).map((name) => element("option", { textContent: name })));
  result.setAttribute("aria-live", "polite");
  content.append(element("label", {}, "Target ", select), result);
  if (prediction.nearest) {
    const picture = element("div");
    picture.dataset.smiles = prediction.nearest;
    visible.observe(picture);
    content.append(element("div", { className: "neighbour" }, "Nearest training molecule", picture, element("code", { className: "smiles", textContent: prediction.nearest })));
  }
  row.after(element("tr", { className: "detail" }, element("td", { colSpan: row.cells.length }, content)));
  const columns = Object.fromEntries(Object.entries(molecule.header ? featureColumns(model, [molecule]) : {}).map(([name, [value]]) => [name, value]));
  const explain = async () => {
    result.textContent = "Computing atom contributions …";
    try {
      const found = await api("/explain", { smiles: prediction.smiles, model: model.name, target: select.value, columns });
      const picture = element("img", { src: `data:image/svg+xml,${encodeURIComponent(found.svg)}`, alt: `contributions of the atoms to ${found.quantity}` });
      result.replaceChildren(picture, element("p", { className: "caption", textContent: found.warning ?? "" }));
    } catch (error) {
      result.textContent = error.message;
    }
  };
  select.onchange = explain;
  explain();
}

// --- drawings of the molecules in view -----------------------------------------------------------

const waiting = new Set();
const visible = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) waiting[isIntersecting ? "add" : "delete"](target);
  clearTimeout(visible.timer);
  visible.timer = setTimeout(drawVisible, 60);
}, { rootMargin: "300px" });

async function drawVisible() {
  const pictures = [...waiting].slice(0, 32);
  if (!pictures.length) return;
  pictures.forEach((picture) => (waiting.delete(picture), visible.unobserve(picture)));
  const { svg } = await api("/draw", { smiles: pictures.map((picture) => picture.dataset.smiles) }).catch(() => ({ svg: [] }));
  pictures.forEach((picture, i) => {
    if (svg[i]) picture.replaceChildren(element("img", { className: "molecule", src: `data:image/svg+xml,${encodeURIComponent(svg[i])}`, alt: picture.dataset.smiles }));
  });
  drawVisible();
}

// --- controls ------------------------------------------------------------------------------------

function download() {
  const keys = Object.keys(shown.rows[0]), cell = (value) => {
    const text = Array.isArray(value) ? JSON.stringify(value) : String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = shown.rows.map((row, i) => [shown.molecules[i].name, ...keys.map((key) => row[key])]);
  const text = [["name", ...keys], ...lines].map((line) => line.map(cell).join(",")).join("\r\n");
  const link = element("a", { href: URL.createObjectURL(new Blob([text + "\r\n"], { type: "text/csv" })), download: "predictions.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function showModel() {
  const model = models.find((one) => one.name === $("model").value), reads = model.columns.length ? `; reads ${model.columns.join(", ")}` : "";
  $("about").textContent = `Predicts ${Object.keys(model.targets).join(", ")}${model.level === "molecule" ? "" : ` of each ${model.level}`}${reads}.`;
  $("interval").disabled = !model.calibrated;
}

$("form").onsubmit = (event) => (event.preventDefault(), predict());
$("text").oninput = showColumns;
$("text").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) predict();
};
$("model").onchange = showModel;
$("download").onclick = download;
$("file").onchange = async () => {
  const [file] = $("file").files;
  if (!file) return;
  if (file.size > 2e7) return say("The file has more than 20 MB: use graphslice predict.", true);
  $("text").value = await file.text();
  showColumns();
};
$("draw").ontoggle = async () => {
  if (editor || !$("draw").open) return;
  const { CanvasEditor } = await import("/openchemlib.js");
  editor = new CanvasEditor($("editor"));
};
$("add").onclick = () => {
  const smiles = editor?.getMolecule().toIsomericSmiles(), table = readTable($("text").value);
  if (!smiles) return;
  const row = table ? table.header.map((_, i) => (i === Number($("smiles-column").value) ? smiles : "")).join(table.separator) : smiles;
  $("text").value = `${$("text").value.trimEnd()}\n${row}\n`.trimStart();
  if (!table) showColumns();
};
try {
  ({ models, max_molecules: maxMolecules } = await api("/models"));
  $("model").replaceChildren(...models.map(({ name }) => element("option", { textContent: name })));
  showModel();
} catch (error) {
  say(error.message, true);
}
