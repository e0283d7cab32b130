// The table of predictions: rows that are sorted, filtered and chosen, of which only those in view are elements.
import { element, picture } from "/common.js";
import { bar, colour, grade, read } from "/cells.js";

const FEW = 6, MOST_CHOSEN = 3, MARGIN = 6, CACHED = 600, DOMAIN = "in_domain";
const collator = new Intl.Collator(undefined, { numeric: true });

export class Table {
  // `changed` is called when the rows that are shown, or chosen, are others; `open` with the rows to see in full.
  constructor(scroller, table, { changed, open }) {
    Object.assign(this, { scroller, table, changed, open, find: "", inside: false, hidden: new Set(), conditions: {} });
    scroller.addEventListener("scroll", () => this.render(), { passive: true });
    new ResizeObserver(() => this.render()).observe(scroller);
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
    const text = this.find.trim().toLowerCase(), conditions = Object.entries(this.conditions);
    this.view = [...this.rows.keys()].filter((index) => {
      const row = this.rows[index];
      if (text && ![this.nameOf(index), row.smiles].some((one) => one.toLowerCase().includes(text))) return false;
      return !(this.inside && row.in_domain !== true) && conditions.every(([column, test]) => row.error === null && test(index, column));
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
    for (const th of this.table.tHead.querySelectorAll("[data-column]")) {
      th.removeAttribute("aria-sort");
      if (th.dataset.column === this.sorted?.column) th.setAttribute("aria-sort", this.sorted.down ? "descending" : "ascending");
    }
    this.update();
  }

  // A condition on a column: "<0.5", "> 3", "1 to 2", or a word of a class or a colour.
  filter(column, text) {
    const word = text.trim().toLowerCase(), number = String.raw`(-?\d*\.?\d+(?:e[-+]?\d+)?)`;
    const one = word.match(new RegExp(`^([<>])=?\\s*${number}$`)), two = word.match(new RegExp(`^${number}\\s+to\\s+${number}$`));
    if (!word) delete this.conditions[column];
    else if (one) this.conditions[column] = (index) => (one[1] === "<" ? this.value(index, column) <= Number(one[2]) : this.value(index, column) >= Number(one[2]));
    else if (two) this.conditions[column] = (index) => this.value(index, column) >= Number(two[1]) && this.value(index, column) <= Number(two[2]);
    else this.conditions[column] = (index) => this.words(index, column).some((each) => each.startsWith(word));
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
    const { model } = this, columns = [...(model.calibrated ? [DOMAIN] : []), ...this.targets], groups = Object.keys(model.groups).filter((group) => group && !this.hidden.has(group));
    this.few = Object.keys(model.targets).length <= FEW;
    this.table.className = this.few ? "few" : "many";
    this.table.style.setProperty("--columns", this.targets.length);
    this.table.style.setProperty("--domain", Number(model.calibrated));
    const head = (column, name, unit) => {
      const th = element("th", { scope: "col" }), button = element("button", { type: "button", onclick: () => this.sort(column) });
      name.split("_").forEach((part, i) => button.append(...(i ? ["_", element("wbr"), part] : [part])));
      if (unit) button.append(element("small", { textContent: unit }));
      const filter = element("input", { className: "condition", type: "search", placeholder: column ? "<0.5" : "", disabled: !column, onchange: () => this.filter(column, filter.value) });
      filter.setAttribute("aria-label", `Filter ${name}: <0.5, >3, 1 to 2, or a word`);
      filter.title = "<0.5, >3, 1 to 2, or a word: a class, good, between, bad or unsure";
      if (column) th.title = model.descriptions[column] ?? "";
      th.className = column === DOMAIN ? "domain" : "";
      th.dataset.column = column;
      th.append(button, ...(column ? [filter] : []));
      return th;
    };
    const unit = (target) => model.units[target] ?? (model.classes[target]?.length === 2 ? `P(${model.classes[target][1]})` : "");
    const names = element("tr", {}, head("", "molecule", ""), ...columns.map((column) => (column === DOMAIN ? head(column, "similarity", "to training set") : head(column, column, unit(column)))));
    const spans = groups.map((group) => element("th", { colSpan: model.groups[group].length, scope: "colgroup", className: "group" }, element("span", { textContent: group })));
    const first = element("th"), domain = model.calibrated ? [element("th", { className: "domain" })] : [];
    this.table.replaceChildren(element("thead", {}, ...(groups.length ? [element("tr", { className: "groups" }, first, ...domain, ...spans)] : []), names), element("tbody"));
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
    if (body.contains(focused)) focused.focus({ preventScroll: true });
    if (Math.abs(body.querySelector("[data-index]").getBoundingClientRect().height - height) > 0.5) {
      this.shown = null;  // the first rows, or another width of the window, show how high a row is
      this.render();
    }
  }

  makeRow(index) {
    const { model } = this, row = this.rows[index], name = this.nameOf(index);
    const box = element("input", { type: "checkbox", checked: this.chosen.has(index), onchange: () => this.choose(index, box) });
    box.setAttribute("aria-label", `Choose ${name} to compare`);
    const button = element("button", { type: "button", className: "name", textContent: name, title: name, onclick: () => this.open([index]) });
    const texts = element("div", {}, element("span", { className: "title" }, ...(row.error === null ? [box] : []), button), element("code", { className: "smiles", textContent: row.smiles, title: row.smiles }));
    const made = element("tr", {}, element("th", { scope: "row" }, element("div", { className: "molecule-cell" }, picture(row.smiles), texts)));
    made.dataset.index = index;
    this.cache.set(index, made);
    if (row.error !== null) {
      button.disabled = true;
      made.append(element("td", { className: "error", colSpan: this.targets.length + 1, title: row.error }, element("div", { textContent: row.error })));
      return made;
    }
    if (model.calibrated) made.append(element("td", { className: row.in_domain ? "" : "outside" }, row.similarity.toFixed(2), ...(row.in_domain ? [] : [element("small", { textContent: "outside" })])));
    for (const target of this.targets) {
      const found = read(model, row, target), range = this.ranges[target], cell = element("td", { className: "target" });
      cell.dataset.target = target;
      const bounds = element("small", { textContent: [found.bounds, found.spread].filter(Boolean).join("; ") });
      cell.append(this.few ? element("div", {}, found.prediction, bounds, ...(found.at === null ? [] : [bar(found, range)])) : found.text);
      made.append(colour(cell, grade(model, row, target, range)));
    }
    return made;
  }

  choose(index, box) {
    if (box.checked && this.chosen.size === MOST_CHOSEN) box.checked = false;
    else this.chosen[box.checked ? "add" : "delete"](index);
    this.changed();
  }
}
