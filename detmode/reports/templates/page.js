"use strict";
const filters = document.querySelector(".filters");
if (filters) {
  const rows = [...document.querySelectorAll(".rows tbody")];
  const lanes = [...document.querySelectorAll("button.lane")];
  const inLane = (module, lane) =>
    module ? module === lane || module.startsWith(lane + ".") : lane === "(no module)";
  const apply = () => {
    const groups = new Set(new FormData(filters).getAll("group"));
    const text = filters.elements.text.value.toLowerCase();
    const pressed = lanes.find((lane) => lane.getAttribute("aria-pressed") === "true");
    let shown = 0;
    for (const row of rows) {
      row.hidden = !(
        groups.has(row.dataset.group) &&
        row.textContent.toLowerCase().includes(text) &&
        (!pressed || JSON.parse(row.dataset.modules).some((module) => inLane(module, pressed.dataset.module)))
      );
      shown += row.hidden ? 0 : 1;
    }
    filters.querySelector("output").textContent = `${shown} of ${rows.length} rows`;
  };
  for (const lane of lanes) {
    lane.addEventListener("click", () => {
      const on = lane.getAttribute("aria-pressed") !== "true";
      for (const other of lanes) other.setAttribute("aria-pressed", String(on && other === lane));
      apply();
    });
  }
  filters.addEventListener("input", apply);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.hidden = false;
  apply();
}
const UNITS = { kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
const collator = new Intl.Collator("en", { numeric: true });
const sizeOf = (text) => {
  const found = /^-?([\d,]+(?:\.\d+)?(?:e[+-]?\d+)?)(?: ([kMGT]B))?(?: |$)/.exec(text);
  return found ? Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1) : NaN;
};
for (const table of document.querySelectorAll(".sorted")) {
  const items = table.classList.contains("rows") ? [...table.tBodies] : [...table.tBodies[0].rows];
  const place = items[0].parentNode;
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const texts = new Map(items.map((item) => [item, (item.rows?.[0] ?? item).cells[column].textContent.trim()]));
      const sizes = new Map(items.map((item) => [item, sizeOf(texts.get(item))]));
      const known = [...sizes.values()].filter((size) => !Number.isNaN(size)).length;
      const areSizes = known > 0 && items.every((item) => !Number.isNaN(sizes.get(item)) || /^(|-|not counted)$/.test(texts.get(item)));
      // What is most is looked for first; the third click brings the first order back.
      const orders = areSizes ? [null, "descending", "ascending"] : [null, "ascending", "descending"];
      const order = orders[(orders.indexOf(head.getAttribute("aria-sort")) + 1) % orders.length];
      for (const other of heads) other.removeAttribute("aria-sort");
      const sorted = [...items];
      if (order) {
        head.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const missing = (item) => Number(areSizes && Number.isNaN(sizes.get(item)));
        sorted.sort((one, other) =>
          missing(one) - missing(other) ||
          sign * (areSizes ? sizes.get(one) - sizes.get(other) || 0 : collator.compare(texts.get(one), texts.get(other))));
      }
      place.append(...sorted);
    });
  });
}
