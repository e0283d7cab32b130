// Reads what is typed, pasted or opened: a list of SMILES with names, or a table.

const SEPARATORS = [",", ";", "\t"];
const SMILES_NAMES = [/^\W*(smiles|canonical_smiles|smi)\W*$/i, /smiles/i, /^\W*(mol|structure|drug)\W*$/i];
const isSmilesName = (name) => SMILES_NAMES.some((pattern) => pattern.test(name));
const NAMES = [/(^|[\W_])(id|name)$/i, /(id|name)$/i];
const find = (names, patterns) => patterns.map((pattern) => names.findIndex((name) => pattern.test(name))).find((i) => i >= 0) ?? -1;
const isSmiles = (text) => /[A-Za-z]/.test(text) && /^(\[[^\]]+\]|Br|Cl|[BCNOPSFIbcnops]|[-=#$:.\/\\()%0-9])+(\s+\|.*\|)?$/.test(text);

// A file in UTF-8, in UTF-16 with its mark, or else in Windows-1252, as Excel saves texts.
export function decode(bytes) {
  const marked = { "255,254": "utf-16le", "254,255": "utf-16be" }[new Uint8Array(bytes.slice(0, 2)).join()];
  const valid = (encoding) => { try { return new TextDecoder(encoding, { fatal: true }).decode(bytes); } catch { return null; } };
  return valid(marked) ?? valid("windows-1252");
}

function readLine(line) {
  const [, smiles, name] = line.trim().replace(/^"(.*)"$/, "$1").match(/^(\S*(?:\s+\|.*\|)?)\s*(.*)$/);
  return { smiles, name };
}

// A list, without a first line such as "SMILES Name".
export function readList(text) {
  const isHeader = ({ smiles, name }) => !isSmiles(smiles) && [smiles, name].some(isSmilesName);
  return text.split("\n").filter((line) => line.trim()).map(readLine).filter((one, i) => i || !isHeader(one));
}

// A text is a table if its first line names a SMILES column, or all lines have a separator. Of several separators the
// one that gives the most SMILES, as names and decimal numbers may have commas too.
export function readTable(text) {
  const tables = SEPARATORS.map((one) => readCells(text, one)).filter(Boolean), [best] = tables.sort((a, b) => b.most - a.most);
  const inList = text.split("\n").filter((line) => isSmiles(readLine(line).smiles)).length;
  return best && (best.isNamed || best.most >= inList) ? best : null;
}

function readCells(text, separator) {
  let rows = [[]], cell = "", quoted = false;
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
  rows = rows.filter((row) => row.length > 1 || row[0].trim());
  const names = (rows[0] ?? []).map((one) => one.trim()), named = find(names, SMILES_NAMES), isNamed = named >= 0;
  const found = names.map((_, i) => rows.map((row) => (row[i] ?? "").trim()).filter(isSmiles)), most = Math.max(...found.map((cells) => cells.length));
  const isTable = isNamed || (most && rows.length > 1 && rows.every((row) => row.length > 1) && (separator === "\t" || !names.join().includes("|")));
  if (names.length < 2 || !isTable) return null;
  // Without a name it is the column with the longest SMILES (B may be a name), and a first line without one is a header.
  const sizes = found.map((cells) => cells.join("").length), smiles = isNamed ? named : sizes.indexOf(Math.max(...sizes));
  const hasHeader = isNamed || !isSmiles(names[smiles]), header = hasHeader ? names : names.map((_, i) => `column ${i + 1}`);
  const name = hasHeader ? find(names, NAMES) : names.findIndex((_, i) => i !== smiles);
  return { header, hasHeader, rows: rows.slice(hasHeader ? 1 : 0), smiles, name, separator, most, isNamed };
}

// Numbers of the feature columns that the model reads, NaN (null in JSON) for other cells, and how many are NaN.
export function featureColumns(model, molecules) {
  const columns = {}, words = { true: 1, false: 0, "": null };
  const number = (text = "", word = text.trim().toLowerCase()) => (word in words ? words[word] : Number(word));
  for (const name of model.columns) {
    const index = molecules[0].header?.indexOf(name) ?? -1;
    if (index < 0) throw new Error(`The model reads a feature column ${name}: give a table that has it.`);
    columns[name] = molecules.map((molecule) => number(molecule.row[index]));
  }
  return { columns, unread: Object.values(columns).flat().filter(Number.isNaN).length };
}
