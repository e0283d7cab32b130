// Elements, requests and drawings.
export const $ = (id) => document.getElementById(id);

// Texts of the user become text nodes and properties, never HTML.
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export async function api(path, body, signal) {
  const isFile = body instanceof Blob, headers = { "content-type": isFile ? "application/octet-stream" : "application/json" };
  const request = fetch(path, body && { method: "POST", headers, body: isFile ? body : JSON.stringify(body), signal });
  const response = await request.catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The server does not respond.");
  });
  const content = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;  // not JSON, or not complete
  });
  if (response.ok && content) return content;
  throw Object.assign(new Error(content?.error ?? `The server returned status ${response.status}.`), { status: response.status });
}

export const svgImage = (svg, properties) => element("img", { src: `data:image/svg+xml,${encodeURIComponent(svg)}`, ...properties });

// --- drawings of the molecules that are on the page ------------------------------------------------

const DRAWN_AT_ONCE = 32, drawings = new Map();  // SVG by SMILES, null where there is none
let timer = 0, isDrawing = false;

export function picture(smiles) {
  const made = element("div", { className: "picture" });
  made.dataset.smiles = smiles;
  drawSoon();
  return made;
}

// Draw when the page is complete and nobody scrolls; a row may have left the page before it was drawn.
export function drawSoon() {
  clearTimeout(timer);
  timer = setTimeout(draw, 40);
}

async function draw() {
  if (isDrawing) return;
  isDrawing = true;
  for (let empty; (empty = [...document.querySelectorAll(".picture:empty")]).length; ) {
    const smiles = [...new Set(empty.map((one) => one.dataset.smiles))].filter((one) => !drawings.has(one)).slice(0, DRAWN_AT_ONCE);
    const { svg } = smiles.length ? await api("draw", { smiles }).catch(() => ({})) : { svg: [] };
    if (!svg) break;  // the next picture tries again
    smiles.forEach((one, i) => drawings.set(one, svg[i] ?? null));
    for (const one of empty.filter((each) => drawings.has(each.dataset.smiles))) {
      const found = drawings.get(one.dataset.smiles);
      one.replaceChildren(found ? svgImage(found, { className: "molecule", alt: one.dataset.smiles }) : element("span", { textContent: "no drawing" }));
    }
  }
  isDrawing = false;
}
