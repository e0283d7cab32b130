// The page of graphslice serve: reads molecules, asks the API in batches, and shows what it returns.
import { $, api, element } from "./common.js";
import { GRADES, describe, describeColumn } from "./cells.js";
import { compare } from "./compare.js";
import { decode, featureColumns, readList, readTable } from "./input.js";
import { Table } from "./table.js";

const BATCH = 250, FILE_BYTES = 2e7, RETRY = 2000;
const EXAMPLE = `CC(=O)Oc1ccccc1C(=O)O aspirin
CC(=O)CC(c1ccccc1)C1=C(O)c2ccccc2OC1=O warfarin
CC(C)c1c(C(=O)Nc2ccccc2)c(-c2ccccc2)c(-c2ccc(F)cc2)n1CCC(O)CC(O)CC(=O)O atorvastatin
CN(C)C(=N)NC(=N)N metformin
COc1ccc(CCN2CCC(CC2)Nc2nc3ccccc3n2Cc2ccc(F)cc2)cc1 astemizole
CC(C)NCC(O)COc1cccc2ccccc12 propranolol
CN1C=NC2=C1C(=O)N(C)C(=O)N2C caffeine
CC(=O)Nc1ccc(O)cc1 paracetamol
Cc1ccc(cc1)-c1cc(nn1-c1ccc(cc1)S(N)(=O)=O)C(F)(F)F celecoxib
`;
let models = [], maxMolecules = BATCH, running = null, editor = null, level = null, unread = 0;
const table = new Table($("scroller"), $("table"), { changed, open: (indices) => compare($("dialog"), table, indices, level) });

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", isError);
}

// --- input ---------------------------------------------------------------------------------------

// Without a byte order mark, blank lines and "sep=;" of Excel at the beginning.
const text = () => $("text").value.replace(/^(\ufeff|\s*\n|"?sep=[,;\t]"?\n)+/, "");

function readMolecules() {
  const read = readTable(text());
  if (!read) return readList(text());
  const [smiles, name] = [$("smiles-column"), $("name-column")].map((select) => Number(select.value)), { header, hasHeader } = read;
  return read.rows.map((row) => {
    if (row.length === header.length || !hasHeader) return { smiles: row[smiles] ?? "", name: row[name] ?? "", row, header };
    return { smiles: "", name: "", row: [], header, fault: `${row.length} fields where the header has ${header.length}: ${row.join(read.separator)}` };
  });
}

function setText(value) {
  $("text").value = value;
  showColumns();
}

function showColumns() {
  const read = readTable(text());
  $("columns").hidden = !read;
  if (!read) return;
  const options = () => read.header.map((name, i) => element("option", { value: i, textContent: name || `column ${i + 1}` }));
  $("smiles-column").replaceChildren(...options());
  $("name-column").replaceChildren(element("option", { value: -1, textContent: "none" }), ...options());
  $("smiles-column").value = read.smiles;
  $("name-column").value = read.name;
}

async function openFile() {
  const [file] = $("file").files;
  if (!file) return;
  if (file.size > FILE_BYTES) return say("The file has more than 20 MB: use graphslice predict.", true);
  try {
    if (!/\.(xlsx|sdf)$/i.test(file.name)) return setText(decode(await file.arrayBuffer()));
    say("Reading the file …");
    const { csv, notes } = await api(`read?name=${encodeURIComponent(file.name)}`, file);
    setText(csv);
    say(notes.join(". "));
  } catch (error) {
    say(error.message, true);
  }
}

// --- predictions ---------------------------------------------------------------------------------

async function predict() {
  if (running) return running.abort();
  const model = models.find((one) => one.name === $("model").value), molecules = readMolecules();
  if (!model || !molecules.length) return say("Give at least one SMILES.", true);
  running = new AbortController();
  $("go").textContent = "Stop";
  $("progress").hidden = false;
  $("results").hidden = true;
  level = model.calibrated && $("interval").value ? Number($("interval").value) : null;
  showFilters(false);
  table.hidden.clear();
  table.start(model, molecules);
  showControls(model);
  try {
    const size = Math.min(BATCH, maxMolecules);
    unread = 0;
    for (let start = 0; start < molecules.length; start += size) {
      say(`${start.toLocaleString()} of ${molecules.length.toLocaleString()} molecules …`);
      Object.assign($("progress"), { max: molecules.length, value: start });
      const part = molecules.slice(start, start + size), { columns, unread: more } = featureColumns(model, part);
      unread += more;
      const body = { smiles: part.map((one) => one.smiles), model: model.name, interval: level, nearest: model.calibrated, columns };
      const { rows } = await api("predict", body, running.signal);
      rows.forEach((row, i) => (row.error = part[i].fault ?? row.error));
      const isFirst = $("results").hidden;
      $("results").hidden = false;
      table.add(rows);
      if (isFirst) $("status").scrollIntoView({ behavior: "smooth" });
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
  const { rows } = table, failed = rows.filter((row) => row.error !== null).length;
  const outside = rows.filter((row) => row.in_domain === false).length, predicted = rows.length - failed;
  const texts = [`${predicted.toLocaleString()} molecule${predicted === 1 ? "" : "s"} predicted.`];
  if (failed) texts.push(`${failed.toLocaleString()} without a prediction.`);
  if (outside) texts.push(`${outside.toLocaleString()} outside the applicability domain.`);
  if (unread) texts.push(`${unread.toLocaleString()} cells of feature columns are no numbers, such as 1.5, and count as unknown.`);
  return texts.join(" ");
}

// --- controls of the table -----------------------------------------------------------------------

function showControls(model) {
  const groups = Object.keys(model.groups), names = groups.filter(Boolean);
  const box = (group) => {
    const input = element("input", { type: "checkbox", checked: true, onchange: () => {
      table.hidden[input.checked ? "delete" : "add"](group);
      table.header();
      table.update();
    } });
    return element("label", {}, input, ` ${group}`);
  };
  $("groups").replaceChildren(...(names.length > 1 ? names.map(box) : []));
  $("inside-label").hidden = !model.calibrated;
  $("inside").checked = table.inside = false;
  $("find").value = table.find = "";
  const swatch = (name, label) => element("span", {}, element("i", { className: `swatch ${name}` }), ` ${label}`);
  const targets = Object.keys(model.targets), graded = targets.some((target) => model.better[target]);
  const shares = targets.some((target) => !model.better[target]);
  const scale = Object.keys(model.reference).length ? "neither good nor bad: probability, or percentile among approved drugs" : "low to high in this table";
  const labels = Object.entries(GRADES).filter(([name]) => name === "unsure" ? model.calibrated : graded);
  $("legend").replaceChildren(...labels.map(([name, label]) => swatch(name, label)), ...(shares ? [swatch("ramp", scale)] : []));
}

function showFilters(open) {
  $("filter").setAttribute("aria-expanded", String(open));
  $("table").classList.toggle("filtered", open);
}

function changed() {
  const { view, rows, chosen } = table;
  $("count").textContent = view.length === rows.length ? "" : `${view.length.toLocaleString()} of ${rows.length.toLocaleString()} molecules`;
  $("compare").disabled = chosen.size < 2;
  $("compare").textContent = chosen.size < 2 ? "Compare: choose 2 or 3" : `Compare ${chosen.size}`;
  $("card").hidden = true;
}

function showCard(cell) {
  const card = $("card"), { target, column } = cell?.dataset ?? {};
  card.hidden = !target && !column;
  if (card.hidden) return;
  if (column) card.replaceChildren(...describeColumn(table.model, column));
  else card.replaceChildren(...describe(table.model, table.rows[cell.closest("tr").dataset.index], target, table.ranges[target], level));
  const at = cell.getBoundingClientRect(), { offsetWidth, offsetHeight } = card;
  const fits = at.bottom + offsetHeight < innerHeight;
  card.style.left = `${Math.max(4, Math.min(at.left, document.documentElement.clientWidth - offsetWidth - 4))}px`;
  card.style.top = `${fits ? at.bottom + 4 : Math.max(4, at.top - offsetHeight - 4)}px`;
}

function download() {
  const keys = Object.keys(table.rows[0]), cell = (value) => {
    const written = Array.isArray(value) ? JSON.stringify(value) : String(value ?? "");
    return /[",\r\n]/.test(written) ? `"${written.replaceAll('"', '""')}"` : written;
  };
  const lines = table.view.map((index) => [table.molecules[index].name, ...keys.map((key) => table.rows[index][key])]);
  const csv = [["name", ...keys], ...lines].map((line) => line.map(cell).join(",")).join("\r\n");
  const link = element("a", { href: URL.createObjectURL(new Blob(["\ufeff", csv, "\r\n"], { type: "text/csv" })), download: "predictions.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function showModel() {
  const model = models.find((one) => one.name === $("model").value), targets = Object.keys(model.targets);
  const reads = model.columns.length ? `; reads ${model.columns.join(", ")}` : "", of = model.level === "molecule" ? "" : ` of each ${model.level}`;
  const groups = Object.entries(model.groups).map(([group, names]) => `${names.length} of ${group}`);
  const what = model.groups[""] ? targets.join(", ") : `${targets.length} endpoints, ${groups.join(", ")}`;
  $("about").textContent = `Predicts ${what}${of}${reads}.`;
  $("interval").disabled = !model.calibrated;
}

$("form").onsubmit = (event) => (event.preventDefault(), predict());
$("text").oninput = showColumns;
$("text").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) predict();
};
$("example").onclick = () => setText(EXAMPLE);
$("file").onchange = openFile;
$("model").onchange = showModel;
$("find").oninput = () => (table.find = $("find").value, table.update());
$("inside").onchange = () => (table.inside = $("inside").checked, table.update());
$("filter").onclick = () => showFilters($("filter").getAttribute("aria-expanded") !== "true");
$("compare").onclick = () => table.open([...table.chosen]);
$("download").onclick = download;
for (const kind of ["pointerover", "click"]) $("table").addEventListener(kind, (event) => showCard(event.target.closest("[data-target], [data-column]")));
$("table").onpointerleave = () => showCard(null);
document.addEventListener("scroll", () => showCard(null), true);
document.addEventListener("keydown", (event) => event.key === "Escape" && showCard(null));
$("draw").ontoggle = async () => {
  if (editor || !$("draw").open) return;
  const { CanvasEditor } = await import("./openchemlib.js");
  editor = new CanvasEditor($("editor"));
};
$("add").onclick = () => {
  const smiles = editor?.getMolecule().toIsomericSmiles(), read = readTable(text());
  if (!smiles) return;
  const row = read ? read.header.map((_, i) => (i === Number($("smiles-column").value) ? smiles : "")).join(read.separator) : smiles;
  $("text").value = `${$("text").value.trimEnd()}\n${row}\n`.trimStart();
};

async function start() {
  try {
    ({ models, max_molecules: maxMolecules } = await api("models"));
    $("model").replaceChildren(...models.map(({ name }) => element("option", { textContent: name })));
    say("");
    showModel();
  } catch (error) {
    say(error.message, true);
    if (error.status === 503) setTimeout(start, RETRY);  // the models are being loaded
  }
}
start();
