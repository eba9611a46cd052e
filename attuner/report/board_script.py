"""The script of the board's page: sorting, search, filters, and the differences of two recipes. No library, nothing fetched.

The page is whole without it. Foreign text arrives as JSON and is set as text, never as markup. The functions before `start` are
pure: they also run outside a browser.
"""

from __future__ import annotations

SCRIPT = r"""
"use strict";

/* Order of two cells' values: numbers by size, text by letter; what is missing comes last in both directions. */
function order(a, b, numeric, descending) {
  if (a === "" || b === "") { return a === b ? 0 : a === "" ? 1 : -1; }
  const by = numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
  return descending ? -by : by;
}

/* Final values in which recipes i and j differ: [name, value of i, value of j]; null where a recipe doesn't have it. */
function differing(data, i, j) {
  const text = (values, at) => (at < 0 ? null : values[at]);
  return data.varying
    .filter(([, , at]) => at[i] !== at[j])
    .map(([name, values, at]) => [name, text(values, at[i]), text(values, at[j])]);
}

/* How many final values both have, and have equal. */
function equal(data, i, j) {
  return data.same + data.varying.filter(([, , at]) => at[i] === at[j] && at[i] >= 0).length;
}

function start() {
  const find = (id) => document.getElementById(id);
  const data = JSON.parse(find("data").textContent);
  const board = find("board");
  const rows = board ? [...board.tBodies[0].rows] : [];
  if (!rows.length) { return; }
  document.documentElement.classList.add("js");
  const heads = [...board.tHead.rows[0].cells];
  const sortable = heads.filter((head) => head.dataset.sort);
  const filters = [...document.querySelectorAll("select[data-filter]")];
  const picked = [];

  /* --- sorting --- */
  function sort(key, descending) {
    const head = sortable.find((h) => h.dataset.key === key);
    const column = heads.indexOf(head);
    const at = (row) => row.cells[column].dataset.v || "";
    rows.sort((a, b) => order(at(a), at(b), head.dataset.sort === "number", descending));
    board.tBodies[0].append(...rows);
    sortable.forEach((h) => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    find("sort").value = key;
    find("reverse").textContent = descending ? "↓ descending" : "↑ ascending";
  }
  const current = () => sortable.find((h) => h.hasAttribute("aria-sort"));
  const usual = (head) => head.dataset.first === "descending";
  function chosen(head) {
    const again = head === current();
    sort(head.dataset.key, again ? head.getAttribute("aria-sort") === "ascending" : usual(head));
  }
  sortable.forEach((head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => chosen(head));
  });
  find("sort").addEventListener("change", () => {
    const head = sortable.find((h) => h.dataset.key === find("sort").value);
    sort(head.dataset.key, usual(head));
  });
  find("reverse").addEventListener("click", () => chosen(current()));

  /* --- search and filters --- */
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  function narrow() {
    const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row) => {
      const fits = words.every((word) => texts.get(row).includes(word))
        && filters.every((f) => !f.value || row.dataset[f.dataset.filter] === f.value);
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    });
    find("count").textContent = `${shown} of ${rows.length} campaigns shown`;
  }
  find("search").addEventListener("input", narrow);
  filters.forEach((filter) => filter.addEventListener("change", narrow));
  find("filters").addEventListener("reset", () => setTimeout(() => {
    find("sort").value = current().dataset.key;
    narrow();
  }));
  find("filters").addEventListener("submit", (event) => event.preventDefault());

  /* --- two recipes side by side --- */
  const boxes = new Map(rows.map((row) => [Number(row.dataset.i), row.querySelector("input[type=checkbox]")]));
  const selects = [find("first"), find("second")];
  function cell(label, text, css) {
    const td = document.createElement("td");
    const div = document.createElement("div");
    td.dataset.label = label;
    if (css) { td.className = css; }
    if (text === null) { div.className = "soft"; } else if (css !== "head") { div.className = "mono"; }
    div.textContent = text === null ? "not set" : text;
    td.append(div);
    return td;
  }
  function link(recipe) {
    const a = document.createElement("a");
    a.href = recipe.page;
    a.textContent = recipe.name;
    return a;
  }
  function say() {
    const [i, j] = picked;
    const two = picked.length === 2;
    const table = find("differences");
    table.hidden = !two;
    if (!two) {
      find("compared").textContent = "Pick two recipes here, or by their boxes in the table.";
      return;
    }
    const [a, b] = [data.recipes[i], data.recipes[j]];
    const found = differing(data, i, j);
    const raw = [a, b].filter((r) => !r.resolved).map((r) => r.name);
    find("compared").textContent = `${found.length} final value${found.length === 1 ? " differs" : "s differ"}; `
      + `${equal(data, i, j)} are equal.`
      + (raw.length ? ` Without final values on record, as the recipe says it: ${raw.join(", ")}.` : "");
    const heads = table.tHead.rows[0].cells;
    heads[1].replaceChildren(link(a));
    heads[2].replaceChildren(link(b));
    table.tBodies[0].replaceChildren(...found.map(([name, left, right]) => {
      const tr = document.createElement("tr");
      tr.append(cell("Final value", name, "head"), cell(a.name, left), cell(b.name, right));
      return tr;
    }));
    table.hidden = !found.length;
  }
  function show() {
    boxes.forEach((box, i) => { box.checked = picked.includes(i); });
    selects.forEach((select, n) => { select.value = n < picked.length ? String(picked[n]) : ""; });
    find("picked").hidden = !picked.length;
    find("picked-names").textContent = picked.map((i) => data.recipes[i].name).join(" and ")
      + (picked.length === 1 ? ": pick another to compare with" : "");
    find("go").hidden = picked.length < 2;
    say();
  }
  function pick(i, wanted) {
    const at = picked.indexOf(i);
    if (at >= 0) { picked.splice(at, 1); }
    if (wanted) { picked.push(i); }
    if (picked.length > 2) { picked.shift(); }
    remember();
  }
  function remember() {
    const names = picked.map((i) => data.recipes[i].slug).join(",");
    history.replaceState(null, "", names ? `#compare=${names}` : location.pathname + location.search);
    show();
  }
  function recall() {
    const names = location.hash.startsWith("#compare=") ? location.hash.slice(9).split(",") : [];
    const found = names.map((name) => data.recipes.findIndex((r) => r.slug === name)).filter((i) => i >= 0);
    picked.splice(0, picked.length, ...new Set(found.slice(0, 2)));
    show();
  }
  boxes.forEach((box, i) => box.addEventListener("change", () => pick(i, box.checked)));
  selects.forEach((select) => select.addEventListener("change", () => {
    picked.splice(0, picked.length, ...new Set(selects.filter((s) => s.value).map((s) => Number(s.value))));
    remember();
  }));
  find("swap").addEventListener("click", () => { picked.reverse(); remember(); });
  find("clear").addEventListener("click", () => { picked.length = 0; remember(); find("search").focus(); });
  find("go").addEventListener("click", () => {
    find("compare-title").focus();
    find("compare").scrollIntoView({ block: "start" });
  });
  addEventListener("hashchange", recall);
  narrow();
  recall();
  if (picked.length === 2) { find("compare").scrollIntoView({ block: "start" }); }
}

if (typeof document !== "undefined") { start(); }
"""
