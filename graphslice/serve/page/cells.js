// What a cell says: the number of a target, its colour, and the lines of its card.
import { element } from "./common.js";

// Words of the colours, by which cells can be filtered, and of the legend.
export const GRADES = { good: "good", between: "between", bad: "bad", unsure: "unsure (more than one class is possible, or a wide interval) or outside the domain" };

export const short = (value, digits = 4) => (typeof value === "number" ? String(Number(value.toPrecision(digits))) : String(value ?? "unbounded"));
export const chance = (value) => value.toFixed(value >= 0.005 && value < 0.995 ? 2 : 4);
export const withUnit = (model, name) => (model.units[name] ? `${name} (${model.units[name]})` : name);

// A target of a row: `at` is the number that is sorted, filtered and coloured.
export function read(model, row, target) {
  const value = row[`${target}_pred`], classes = model.classes[target], named = classes?.length > 2 ? value : classes?.[1];
  const deviation = row[classes ? `${target}_prob_${named}_std` : `${target}_std`];
  const spread = typeof deviation === "number" ? `SD over models ${short(deviation)}` : "";
  if (Array.isArray(value)) {
    const text = value.map((one) => short(one)).join(" ");
    return { at: null, text, prediction: text, bounds: "", spread };
  }
  if (classes) {
    const at = row[`${target}_prob_${named}`], sure = row[`${target}_sure`];
    let bounds = sure === undefined ? "" : sure ? "sure" : "unsure";
    if (classes.length > 2 && sure === false) bounds += `: ${row[`${target}_set`].replaceAll("|", " or ") || "no class"}`;
    const prediction = `${value}, P(${named}) ${chance(at)}`;
    return { at, word: value, text: classes.length > 2 ? value : chance(at), prediction, bounds, sure, low: 0, high: at, spread };
  }
  const low = row[`${target}_low`], high = row[`${target}_high`], hasInterval = low !== undefined;
  const digits = !hasInterval || (low * high > 0 && Math.max(low / high, high / low) < 10) ? 4 : 2;
  const bounds = hasInterval ? `${short(low, digits)} to ${short(high, digits)}` : "";
  const sure = hasInterval ? low !== null && high !== null : undefined;
  return { at: value, text: short(value, 3), prediction: `${short(value, digits)} ${model.units[target] ?? ""}`.trim(), bounds, sure, low, high, spread };
}

// The percentage of ascending numbers that are smaller, where half of equal ones count.
export function percentile(numbers, at) {
  const count = (isBelow) => {
    let [low, high] = [0, numbers.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (isBelow(numbers[middle])) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  return (50 * (count((one) => one < at) + count((one) => one <= at))) / numbers.length;
}

// The percentile of a prediction among those for approved drugs; null if the model has none.
export function percentileOfDrugs(model, target, at) {
  return at === null || !model.reference[target] || model.classes[target]?.length > 2 ? null : percentile(model.reference[target], at);
}

// The colour of a cell: a grade, or `scale` with a share from 0 to 1. A class is graded by its probability, a number by
// its percentile among drugs, both in thirds. Without drugs, the share is the percentile in the table.
export function grade(model, row, target, range) {
  const found = read(model, row, target), better = model.better[target], isClass = target in model.classes, drugs = model.reference[target];
  const place = (value) => (isClass ? value : percentile(drugs ?? range.values, value) / 100);
  if (row.in_domain === false) return { grade: "unsure", reason: "outside the applicability domain" };
  if (found.sure === false) return { grade: "unsure", reason: isClass ? "more than one class is possible, or none" : "the interval is unbounded" };
  if (found.at === null) return { grade: "" };
  if (!isClass && drugs && found.bounds && place(found.low) < 1 / 3 && place(found.high) > 2 / 3) {
    return { grade: "unsure", reason: "the interval reaches from the lowest to the highest third of drugs" };
  }
  const share = place(found.at), worth = better === "lower" ? 1 - share : share;
  if (!better) return { grade: "scale", share };
  return { grade: worth > 2 / 3 ? "good" : worth < 1 / 3 ? "bad" : "between" };
}

export function colour(cell, { grade: name, share }) {
  if (name) cell.classList.add(name);
  if (name === "scale") cell.style.setProperty("--share", share);
  return cell;
}

// A track with the interval and a mark for the prediction, on the range of the table.
export function bar({ low, high, at }, range) {
  const place = (number) => `${Math.min(100, Math.max(0, ((number - range.min) / Math.max(1e-9, range.max - range.min)) * 100))}%`;
  const made = element("span", { className: "bar" }), mark = element("b"), interval = element("i");
  mark.style.left = place(at);
  if (typeof low === "number" && typeof high === "number") {
    interval.style.left = place(low);
    interval.style.right = `calc(100% - ${place(high)})`;
    made.append(interval);
  }
  made.append(mark);
  return made;
}

export function describeColumn(model, column) {
  const text = column in model.targets ? model.descriptions[column] : `Tanimoto similarity to the nearest of ${model.compared}`;
  return [element("strong", { textContent: column in model.targets ? withUnit(model, column) : "similarity" }), element("p", { textContent: text ?? "" })];
}

// The lines of the card of a cell.
export function describe(model, row, target, range, level) {
  const found = read(model, row, target), { grade: name, reason } = grade(model, row, target, range), rank = percentileOfDrugs(model, target, found.at);
  const lines = [["prediction", found.prediction]];
  if (found.bounds) lines.push([target in model.classes ? `at ${level}%` : `${level}% interval`, found.bounds]);
  if (rank !== null) lines.push(["percentile", `${rank.toFixed(0)} among approved drugs`]);
  if (found.spread) lines.push(["ensemble", found.spread]);
  if (name in GRADES) lines.push(["colour", reason ? `grey: ${reason}` : name]);
  if ("similarity" in row) lines.push(["similarity", `${row.similarity.toFixed(2)} to the nearest of ${model.compared}`]);
  return [
    element("strong", { textContent: withUnit(model, target) }),
    element("dl", {}, ...lines.flatMap(([term, text]) => [element("dt", { textContent: term }), element("dd", { textContent: text })])),
    ...(model.descriptions[target] ? [element("p", { textContent: model.descriptions[target] })] : []),
  ];
}
