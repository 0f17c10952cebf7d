// Sort the rows of a table inside their block; published rows stay below measured ones, missing scores come last.
for (const table of document.querySelectorAll("table.sortable")) {
  const head = table.tHead.rows[table.tHead.rows.length - 1];
  const before = [...table.tBodies].map(body => [...body.rows]);
  [...head.cells].forEach((cell, column) => {
    const button = document.createElement("button");
    button.className = "sort";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const now = cell.getAttribute("aria-sort");
      const next = column === 0 ? (now ? null : "ascending") : now === "descending" ? "ascending" : now ? null : "descending";
      for (const other of head.cells) other.removeAttribute("aria-sort");
      if (next) cell.setAttribute("aria-sort", next);
      [...table.tBodies].forEach((body, i) => {
        const fixed = before[i].filter(row => row.className === "block");
        const rows = before[i].filter(row => row.className !== "block");
        const key = row => column === 0 ? row.cells[0].textContent : parseFloat(row.cells[column].dataset.v ?? "NaN");
        const missing = value => typeof value === "number" && isNaN(value);
        const sign = next === "descending" ? -1 : 1;
        if (next) rows.sort((a, b) => {
          const group = a.classList.contains("published") - b.classList.contains("published");
          const x = key(a), y = key(b);
          if (group || missing(x) || missing(y)) return group || missing(x) - missing(y);
          return sign * (column === 0 ? x.localeCompare(y) : x - y);
        });
        body.append(...fixed, ...rows);
      });
    });
  });
}
