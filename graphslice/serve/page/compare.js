// One to three molecules in full, side by side, with the contributions of their atoms.
import { api, element, picture, svgImage } from "./common.js";
import { colour, grade, percentileOfDrugs, read, withUnit } from "./cells.js";
import { featureColumns } from "./input.js";

export function compare(dialog, table, indices, level) {
  const { model } = table, close = element("button", { type: "button", textContent: "Close", onclick: () => dialog.close() });
  const rows = explanation(table, indices);
  for (const [group, targets] of Object.entries(model.groups)) {
    const title = element("span", { textContent: group });
    if (group) rows.push(element("tr", { className: "groups" }, element("th", { colSpan: indices.length + 1, scope: "colgroup" }, title)));
    for (const target of targets) rows.push(element("tr", {}, targetHead(model, target), ...indices.map((index) => full(table, index, target, level))));
  }
  const heads = element("tr", {}, element("th", {}, close), ...indices.map((index) => moleculeHead(table, index)));
  const whole = element("table", {}, element("thead", {}, heads), element("tbody", {}, ...rows));
  dialog.replaceChildren(element("div", { className: "side-by-side" }, whole));
  dialog.onclick = (event) => event.target === dialog && dialog.close();
  dialog.showModal();
}

const code = (smiles) => element("code", { className: "smiles", textContent: smiles, title: smiles });

function moleculeHead(table, index) {
  const row = table.rows[index], made = element("th", { scope: "col" }, picture(row.smiles), table.nameOf(index), code(row.smiles));
  if (!("similarity" in row)) return made;
  const text = `${row.in_domain ? "inside" : "outside"} the applicability domain, similarity ${row.similarity.toFixed(2)} to the nearest of ${table.model.compared}`;
  made.append(element("small", { className: row.in_domain ? "" : "outside", textContent: text }));
  return made;
}

function targetHead(model, target) {
  return element("th", { scope: "row" }, withUnit(model, target), element("small", { textContent: model.descriptions[target] ?? "" }));
}

function full(table, index, target, level) {
  const { model } = table, row = table.rows[index], found = read(model, row, target);
  const rank = percentileOfDrugs(model, target, found.at);
  const lines = [found.bounds && `${found.bounds} (${level}%)`, rank !== null && `percentile ${rank.toFixed(0)}`, found.spread];
  const cell = element("td", {}, found.prediction, ...lines.filter(Boolean).map((text) => element("small", { textContent: text })));
  return colour(cell, grade(model, row, target, table.ranges[target]));
}

// Rows for the nearest training molecules and, on demand, for the contributions of the atoms to a target.
function explanation(table, indices) {
  const { model } = table, rows = [], cells = indices.map(() => element("td", { className: "explained" }));
  if (model.level === "molecule") {
    const select = element("select", {}, ...Object.values(model.groups).flat().map((name) => element("option", { textContent: name })));
    select.setAttribute("aria-label", "Target to explain");
    const explain = () => indices.forEach((index, i) => fill(table, index, select.value, cells[i]));
    const button = element("button", { type: "button", textContent: "Explain", onclick: explain });
    rows.push(element("tr", {}, element("th", { scope: "row" }, "atom contributions", select, button), ...cells));
  }
  if (model.calibrated) {
    const nearest = indices.map((index) => table.rows[index].nearest).map((smiles) => element("td", {}, picture(smiles), code(smiles)));
    rows.push(element("tr", {}, element("th", { scope: "row" }, "nearest training molecule"), ...nearest));
  }
  return rows;
}

async function fill(table, index, target, cell) {
  const { model } = table, molecule = table.molecules[index];
  cell.textContent = "computing, a minute or more on a busy machine …";
  try {
    const { columns: lists } = molecule.header ? featureColumns(model, [molecule]) : { columns: {} };
    const columns = Object.fromEntries(Object.entries(lists).map(([name, [value]]) => [name, value]));
    const found = await api("explain", { smiles: table.rows[index].smiles, model: model.name, target, columns });
    const image = svgImage(found.svg, { alt: `contributions of the atoms to ${found.quantity}` });
    cell.replaceChildren(image, element("small", { textContent: found.warning ?? "" }));
  } catch (error) {
    cell.textContent = error.message;
  }
}
