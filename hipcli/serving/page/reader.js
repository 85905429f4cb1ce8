// The document beside the answer: one page at a time, a quote marked on it, and a map of all pages.

import { listPages, readPage } from "/page/api.js";

const byId = (id) => document.getElementById(id);
const map = byId("map"), text = byId("text"), place = byId("place");
let file = null, pages = [], at = 0, turn = 0;

// Show a document from its first page on.
export async function open(entry) {
  file = entry;
  pages = entry ? await listPages(entry.id) : [];
  byId("reader").hidden = !pages.length;
  if (!pages.length) return;
  map.setAttribute("aria-valuemax", pages.length);
  draw(null, []);
  await show(0);
}

// Show a page; quote: {start, end} on it, or nothing.
export async function show(index, quote = null) {
  const mine = ++turn;
  at = Math.max(0, Math.min(pages.length - 1, index));
  const page = await readPage(file.id, at);
  // a later click must not be overtaken by an earlier page
  if (mine !== turn) return;
  place.textContent = page.place;
  byId("back").disabled = at === 0;
  byId("next").disabled = at === pages.length - 1;
  map.setAttribute("aria-valuenow", at + 1);
  map.setAttribute("aria-valuetext", page.place);
  [...map.children].forEach((bar, n) => bar.classList.toggle("here", n === binOf(at)));
  fill(page.text || "This page holds no text.", quote);
}

function fill(whole, quote) {
  text.replaceChildren();
  if (!quote) { text.textContent = whole; text.scrollTop = 0; return; }
  // offsets count characters as Python does, and not UTF-16 units
  const chars = Array.from(whole);
  const mark = document.createElement("mark");
  mark.textContent = chars.slice(quote.start, quote.end).join("");
  text.append(chars.slice(0, quote.start).join(""), mark, chars.slice(quote.end).join(""));
  text.scrollTop = Math.max(0, mark.offsetTop - text.offsetTop - text.clientHeight / 3);
}

// shares: of attention, one a page, or null; cited: indices of pages.
export function draw(shares, cited) {
  const bins = Math.min(pages.length, 150), most = Math.max(...(shares || [0]), 1e-9);
  const bars = Array.from({ length: bins }, () => ({ share: 0, cited: false }));
  pages.forEach((_, index) => {
    const bar = bars[binOf(index)];
    bar.share = Math.max(bar.share, shares ? shares[index] / most : 0);
    bar.cited ||= cited.includes(index);
  });
  map.replaceChildren(...bars.map((bar) => {
    const outer = document.createElement("span"), inner = document.createElement("i");
    inner.style.height = `${Math.round(100 * bar.share)}%`;
    outer.classList.toggle("cited", bar.cited);
    outer.append(inner);
    return outer;
  }));
  byId("legend").textContent = shares
    ? "Where the question looked, page by page; cited pages stand out."
    : cited.length ? "All pages; cited ones stand out." : `${pages.length} page${pages.length === 1 ? "" : "s"}`;
}

function binOf(index) { return Math.floor(index * Math.min(pages.length, 150) / pages.length); }

map.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: 10, PageUp: -10 }[event.key];
  const to = event.key === "Home" ? 0 : event.key === "End" ? pages.length - 1 : step ? at + step : null;
  if (to === null) return;
  event.preventDefault();
  show(to);
});
map.addEventListener("click", (event) => {
  const box = map.getBoundingClientRect();
  show(Math.floor((event.clientX - box.left) / box.width * pages.length));
});
byId("back").addEventListener("click", () => show(at - 1));
byId("next").addEventListener("click", () => show(at + 1));
