// Tables that are sorted by a click on a heading, and filtered by the words of a search field.

const text = value => document.createTextNode(value);

// Return a new element with attributes and children; a child that is no element is text.
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "circle", "text", "g"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map(child => (child instanceof Node ? child : text(child))));
  return element;
}

// Return what a cell is sorted by: its data-v or its text, as a number where it is one. Empty cells come last.
function keyOf(cell) {
  const word = (cell.dataset.v ?? cell.textContent).trim();
  return word === "" ? null : Number.isNaN(Number(word)) ? word : Number(word);
}

function ordered(a, b) {
  if (a === b) return 0;
  if (a === null || b === null) return a === null ? 1 : -1;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a < b ? -1 : 1;
}

// Make the headings of a table buttons that call sort(column, ascending).
function addSorting(table, sort) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = make("button", { type: "button" }, ...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const ascending = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      sort(column, ascending);
    });
  });
}

function sortRows(table, column, ascending) {
  const rows = [...table.tBodies[0].rows].map(row => [keyOf(row.cells[column]), row]);
  rows.sort(([a], [b]) => (a === null || b === null ? ordered(a, b) : ascending ? ordered(a, b) : ordered(b, a)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table[data-sort]")) {
  addSorting(table, (column, ascending) => sortRows(table, column, ascending));
}

// Return whether a text has all words of a search field.
function hasWords(whole, words) {
  const lower = whole.toLowerCase();
  return words.toLowerCase().split(/[\s,]+/).every(word => lower.includes(word));
}

for (const field of document.querySelectorAll("input[data-filter]")) {
  const rows = [...document.getElementById(field.dataset.filter).tBodies[0].rows];
  field.addEventListener("input", () => {
    for (const row of rows) row.hidden = !hasWords(`${row.dataset.words} ${row.textContent}`, field.value);
  });
}
