// The table of predictions: rows that are sorted, filtered and chosen, of which only those in view are elements.
import { drawSoon, element, picture } from "./common.js";
import { bar, colour, grade, read } from "./cells.js";

const FEW = 6, MOST_CHOSEN = 3, MARGIN = 6, CACHED = 600, DOMAIN = "in_domain";
const collator = new Intl.Collator(undefined, { numeric: true });

export class Table {
  // `changed` is called when the rows that are shown, or chosen, are others; `open` with the rows to see in full.
  constructor(scroller, table, { changed, open }) {
    Object.assign(this, { scroller, table, changed, open, find: "", inside: false, hidden: new Set(), conditions: {} });
    const update = () => (this.render(), scroller.classList.toggle("more", scroller.scrollLeft + scroller.clientWidth < scroller.scrollWidth - 1));
    scroller.addEventListener("scroll", update, { passive: true });
    for (const one of [scroller, table]) new ResizeObserver(update).observe(one);
  }

  start(model, molecules) {
    Object.assign(this, { model, molecules, rows: [], view: [], chosen: new Set(), sorted: null, conditions: {}, ranges: {} });
    this.scroller.scrollTo(0, 0);
    this.header();
  }

  add(rows) {
    this.rows.push(...rows);
    for (const target of Object.keys(this.model.targets)) this.widen(target, rows);
    this.update();
  }

  // Update the limits of a target's bars, those of predictions and intervals, and its predictions in ascending order.
  widen(target, rows) {
    const isClass = target in this.model.classes, numbers = (end) => rows.map((row) => row[target + end]).filter((value) => typeof value === "number");
    const range = (this.ranges[target] ??= isClass ? { min: 0, max: 1 } : { min: Infinity, max: -Infinity, values: [] });
    if (isClass) return;
    for (const value of ["_pred", "_low", "_high"].flatMap(numbers)) Object.assign(range, { min: Math.min(range.min, value), max: Math.max(range.max, value) });
    range.values.push(...numbers("_pred"));
    if (!this.model.reference[target]) range.values.sort((a, b) => a - b);
  }

  // --- what is shown, in which order ---------------------------------------------------------------

  get targets() {
    return Object.entries(this.model.groups).filter(([group]) => !this.hidden.has(group)).flatMap(([, names]) => names);
  }

  nameOf(index) {
    return this.molecules[index].name || `${index + 1}`;
  }

  // The value of a row in a column: a number, a text, or null, which is last in any order.
  value(index, column) {
    const row = this.rows[index];
    if (column === "") return this.nameOf(index);
    if (row.error !== null) return null;
    return column === DOMAIN ? row.similarity : read(this.model, row, column).at;
  }

  update() {
    const text = this.find.trim().toLowerCase(), conditions = Object.values(this.conditions);
    this.view = [...this.rows.keys()].filter((index) => {
      const row = this.rows[index];
      if (text && ![this.nameOf(index), row.smiles].some((one) => one.toLowerCase().includes(text))) return false;
      return !(this.inside && row.in_domain !== true) && conditions.every(({ test }) => row.error === null && test(index));
    });
    if (this.sorted) {
      const { column, down } = this.sorted, keys = new Map(this.view.map((index) => [index, this.value(index, column)]));
      const compare = column === "" ? collator.compare : (a, b) => a - b;
      this.view.sort((one, other) => {
        const [a, b] = [keys.get(one), keys.get(other)];
        return a === null || b === null ? (a === null) - (b === null) : (down ? -1 : 1) * compare(a, b);
      });
    }
    this.cache = new Map();
    this.shown = null;
    this.render();
    this.changed();
  }

  sort(column) {
    const { sorted } = this, same = sorted?.column === column;
    this.sorted = same && sorted.down ? null : { column, down: same };  // ascending, descending, as given
    this.markSorted();
    this.update();
  }

  markSorted() {
    const order = ({ dataset }) => (dataset.column === this.sorted?.column ? (this.sorted.down ? "descending" : "ascending") : null);
    for (const head of this.table.tHead.querySelectorAll("[data-column]")) head.ariaSort = order(head);
  }

  // A condition on a column: "<0.5", "> 3", "1 to 2", or a word of a class or a colour.
  filter(column, text) {
    const word = text.trim().toLowerCase(), number = String.raw`(-?\d*\.?\d+(?:e[-+]?\d+)?)`;
    const one = word.match(new RegExp(`^([<>])=?\\s*${number}$`)), two = word.match(new RegExp(`^${number}\\s+to\\s+${number}$`));
    let test = (index) => this.words(index, column).some((each) => each.startsWith(word));
    if (one || two) {
      const [low, high] = two ? [two[1], two[2]].map(Number) : one[1] === "<" ? [-Infinity, Number(one[2])] : [Number(one[2]), Infinity];
      test = (index) => low <= this.value(index, column) && this.value(index, column) <= high;
    }
    if (word) this.conditions[column] = { text, test };
    else delete this.conditions[column];
    this.update();
  }

  words(index, column) {
    const row = this.rows[index];
    if (column === DOMAIN) return [row.in_domain ? "yes" : "no"];
    const found = read(this.model, row, column);
    return [found.word ?? found.text, grade(this.model, row, column, this.ranges[column]).grade].map((word) => word.toLowerCase());
  }

  // --- elements ------------------------------------------------------------------------------------

  header() {
    const { model, table } = this, { targets } = this, hasDomain = model.calibrated;
    const groups = Object.entries(model.groups).filter(([group]) => group && !this.hidden.has(group));
    this.few = Object.keys(model.targets).length <= FEW;
    table.classList.toggle("few", this.few);
    // A column is as wide as the longest part of its name, which is bold in a smaller font.
    const wide = (target) => `max(var(--cell), ${0.76 * Math.min(20, Math.max(...target.split("_").map((part) => part.length + 2)))}ch + 0.6rem)`;
    const widths = ["var(--first)", ...(hasDomain ? ["var(--similarity)"] : []), ...targets.map(wide)];
    table.style.width = `calc(${widths.join(" + ")})`;
    const columns = element("colgroup", {}, ...widths.map((width) => element("col", { style: `width: ${width}` })));
    const span = ([group, names]) => element("th", { colSpan: names.length, scope: "colgroup", className: "group" }, element("span", { textContent: group }));
    const above = element("tr", {}, element("th"), ...(hasDomain ? [element("th")] : []), ...groups.map(span));
    const unit = (target) => (model.classes[target]?.length === 2 ? `P(${model.classes[target][1]})` : "");
    const names = element("tr", {}, this.columnHead("", "molecule", ""));
    if (hasDomain) names.append(this.columnHead(DOMAIN, "similarity", `to ${model.compared}`));
    names.append(...targets.map((target) => this.columnHead(target, target, model.units[target] ?? unit(target))));
    table.replaceChildren(columns, element("thead", {}, ...(groups.length ? [above] : []), names), element("tbody"));
    this.markSorted();
  }

  // The head of a column: a button that sorts, and the input of its filter.
  columnHead(column, name, unit) {
    const button = element("button", { type: "button", onclick: () => this.sort(column) });
    name.split("_").forEach((part, i) => button.append(...(i ? ["_", element("wbr"), part] : [part])));
    if (unit) button.append(element("small", { textContent: unit }));
    const head = element("th", { scope: "col" }, button);
    head.dataset.column = column;
    if (!column) return head;
    const input = element("input", { className: "condition", type: "search", placeholder: "<0.5", value: this.conditions[column]?.text ?? "" });
    input.onchange = () => this.filter(column, input.value);
    input.title = "<0.5, >3, 1 to 2, or a word: a class, good, between, bad or unsure";
    input.setAttribute("aria-label", `Filter ${name}: ${input.title}`);
    head.append(input);
    return head;
  }

  // Only the rows in view, and some above and below, are elements; empty rows have the height of the others.
  render() {
    if (!this.view?.length && !this.shown) this.table.tBodies[0]?.replaceChildren();
    if (!this.view?.length) return;
    const { scroller, view, table } = this, [body] = table.tBodies;
    const height = body.querySelector("[data-index]")?.getBoundingClientRect().height ?? 84;
    const first = Math.max(0, Math.min(view.length - 1, Math.floor((scroller.scrollTop - table.tHead.offsetHeight) / height)));
    const last = first + Math.ceil(scroller.clientHeight / height);
    if (this.shown && first >= this.shown.begin && Math.min(last, view.length) <= this.shown.end) return;
    const begin = Math.max(0, first - MARGIN), end = Math.min(view.length, last + MARGIN), focused = document.activeElement;
    if (this.cache.size > CACHED) this.cache.clear();
    const rows = view.slice(begin, end).map((index) => this.cache.get(index) ?? this.makeRow(index));
    const space = (count) => element("tr", { className: "space", hidden: !count, style: `height: ${count * height}px` });
    this.shown = { begin, end };
    body.replaceChildren(space(begin), ...rows, space(view.length - end));
    drawSoon();
    if (body.contains(focused)) focused.focus({ preventScroll: true });
    if (Math.abs(body.querySelector("[data-index]").getBoundingClientRect().height - height) > 0.5) {
      this.shown = null;  // the first rows, or another width of the window, show how high a row is
      this.render();
    }
  }

  makeRow(index) {
    const { model, targets } = this, row = this.rows[index], made = element("tr", {}, this.rowHead(index, row));
    made.dataset.index = index;
    this.cache.set(index, made);
    if (row.error !== null) {
      made.append(element("td", { className: "error", colSpan: targets.length + 1, title: row.error }, element("div", { textContent: row.error })));
      return made;
    }
    if (model.calibrated) {
      const note = row.in_domain ? [] : [element("small", { textContent: "outside" })];
      made.append(element("td", { className: row.in_domain ? "" : "outside" }, row.similarity.toFixed(2), ...note));
    }
    for (const target of targets) {
      const found = read(model, row, target), range = this.ranges[target], cell = element("td", { className: "target" }, this.few ? "" : found.text);
      cell.dataset.target = target;
      if (this.few) {
        const bounds = element("small", { textContent: found.bounds });
        cell.append(element("div", {}, found.prediction, bounds, ...(found.at === null ? [] : [bar(found, range)])));
      }
      made.append(colour(cell, grade(model, row, target, range)));
    }
    return made;
  }

  rowHead(index, row) {
    const name = this.nameOf(index), hasError = row.error !== null;
    const box = element("input", { type: "checkbox", checked: this.chosen.has(index), onchange: () => this.choose(index, box) });
    box.setAttribute("aria-label", `Choose ${name} to compare`);
    const button = element("button", { type: "button", className: "name", textContent: name, title: name, disabled: hasError, onclick: () => this.open([index]) });
    const title = element("span", { className: "title" }, ...(hasError ? [] : [box]), button);
    const texts = element("div", {}, title, element("code", { className: "smiles", textContent: row.smiles, title: row.smiles }));
    return element("th", { scope: "row" }, element("div", { className: "molecule-cell" }, picture(row.smiles), texts));
  }

  choose(index, box) {
    if (box.checked && this.chosen.size === MOST_CHOSEN) box.checked = false;
    else this.chosen[box.checked ? "add" : "delete"](index);
    this.changed();
  }
}
