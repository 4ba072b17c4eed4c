"use strict";
const filters = document.querySelector(".filters");
if (filters) {
  const rows = [...document.querySelectorAll(".rows tbody tr")];
  const lanes = [...document.querySelectorAll(".lane")];
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
  apply();
}
