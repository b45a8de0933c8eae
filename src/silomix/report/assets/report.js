"use strict";
(function () {
  const byId = (id) => document.getElementById(id);

  function startTheme() {
    const button = byId("theme");
    const root = document.documentElement;
    const tell = () => {
      const dark = root.dataset.theme === "dark";
      button.textContent = dark ? "Light theme" : "Dark theme";
    };
    button.addEventListener("click", () => {
      root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
      tell();
    });
    button.hidden = false;
    tell();
  }

  function startHeatMap() {
    const box = byId("heat");
    const data = JSON.parse(byId("heat-data").textContent);
    const table = box.querySelector("table");
    const body = table.tBodies[0];
    const lines = Array.from(body.rows);
    const heads = Array.from(table.tHead.rows[0].cells);
    const detail = byId("heat-detail");
    const first = 2;
    let sorted = { column: -1, down: true };

    const percent = (part) => (part / 100).toFixed(part < 1000 ? 2 : 1) + "%";
    const signed = (part) => (part < 0 ? "−" : "+") + (Math.abs(part) / 100).toFixed(2);
    const short = (part) => (part / 100).toFixed(part >= 995 ? 0 : 1);

    function sure(part) {
      const edge = Math.max(1 / data.draws, 0.001);
      const share = part / 10000;
      if (share > 1 - edge) return "more than " + (1 - edge).toPrecision(3);
      return share < edge ? "less than " + edge.toPrecision(1) : share.toFixed(3);
    }

    function describe(line, cluster) {
      const i = Number(line.dataset.i);
      const mean = data.mean[i][cluster];
      let text = `Cluster ${data.names[cluster]}, ${line.cells[0].textContent.trim()}: ${percent(mean)}, 95% interval ` +
        `${percent(data.lower[i][cluster])} to ${percent(data.upper[i][cluster])}; in the whole population ` +
        `${percent(data.whole[i])}. Scaled difference ${signed(data.scaled[i][cluster])}; probability of ` +
        `being higher than overall: ${sure(data.above[i][cluster])}.`;
      if (data.rows) {
        const all = data.rows[cluster];
        text += ` About ${Math.round(all * mean / 10000).toLocaleString("en")} of the cluster’s ` +
          `${all.toLocaleString("en")} rows.`;
      }
      return text;
    }

    function showView(view) {
      box.dataset.view = view;
      for (const line of lines) {
        const i = Number(line.dataset.i);
        for (let c = first; c < line.cells.length; c += 1) {
          line.cells[c].textContent = view === "p"
            ? short(data.mean[i][c - first]) : signed(data.scaled[i][c - first]);
        }
      }
      if (sorted.column >= first) sortBy(sorted.column, sorted.down);
    }

    function keyOf(line, column) {
      const i = Number(line.dataset.i);
      if (column === 0) return i;
      if (column === 1) return data.whole[i];
      return (box.dataset.view === "p" ? data.mean : data.scaled)[i][column - first];
    }

    function sortBy(column, down) {
      sorted = { column, down };
      const way = down ? -1 : 1;
      lines.sort((a, b) => way * (keyOf(a, column) - keyOf(b, column)) || a.dataset.i - b.dataset.i);
      body.append(...lines);
      heads.forEach((head, place) => {
        head.setAttribute("aria-sort", place !== column ? "none" : down ? "descending" : "ascending");
      });
    }

    function filter() {
      const wanted = byId("heat-search").value.trim().toLocaleLowerCase();
      const both = byId("heat-both").checked;
      const differing = byId("heat-differs").checked;
      let shown = 0;
      for (const line of lines) {
        const name = line.cells[0].textContent.toLocaleLowerCase();
        line.hidden = !name.includes(wanted) ||
          (!both && line.classList.contains("mirror")) ||
          (differing && !line.classList.contains("differs"));
        shown += line.hidden ? 0 : 1;
      }
      byId("heat-count").textContent = `${shown} of ${lines.length} levels shown.`;
      enter(heads[0].querySelector("button"));
    }

    const visible = () => [table.tHead.rows[0], ...lines.filter((line) => !line.hidden)];
    const stop = (cell) => cell.querySelector("button") || cell;

    function enter(target) {
      for (const old of table.querySelectorAll("[tabindex='0']")) old.tabIndex = -1;
      target.tabIndex = 0;
    }

    function move(event) {
      const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      const cell = event.target.closest("td, th");
      if (!cell || !(event.key in steps || event.key === "Home" || event.key === "End")) return;
      event.preventDefault();
      const rows = visible();
      const row = rows.indexOf(cell.parentNode);
      const last = heads.length - 1;
      const [down, right] = steps[event.key] || [0, event.key === "Home" ? -last : last];
      const to = rows[Math.min(Math.max(row + down, 0), rows.length - 1)];
      const target = stop(to.cells[Math.min(Math.max(cell.cellIndex + right, 0), last)]);
      enter(target);
      target.focus();
    }

    function tell(event) {
      const cell = event.target.closest("td");
      if (cell && cell.cellIndex >= first) detail.textContent = describe(cell.parentNode, cell.cellIndex - first);
    }

    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        sortBy(column, sorted.column === column ? !sorted.down : column > 0);
      });
    });
    for (const cell of table.querySelectorAll("td, tbody th, thead button")) cell.tabIndex = -1;
    table.setAttribute("role", "grid");
    table.addEventListener("keydown", move);
    for (const kind of ["mouseover", "focusin", "click"]) body.addEventListener(kind, tell);
    for (const choice of document.getElementsByName("heat-view")) {
      choice.addEventListener("change", () => showView(choice.value));
    }
    byId("heat-search").addEventListener("input", filter);
    for (const id of ["heat-both", "heat-differs"]) byId(id).addEventListener("change", filter);
    byId("heat-controls").hidden = false;
    detail.hidden = false;
    box.classList.add("live");
    filter();
  }

  // a cell as a spreadsheet should read it: numbers as numbers, nothing as a formula
  function field(cell) {
    const note = cell.querySelector("small");
    let text = cell.innerText.trim();
    if (note) text = `${text.slice(0, text.length - note.innerText.length).trim()} (${note.innerText.trim()})`;
    const number = text.replace(/−/g, "-").replace(/(\d),(?=\d{3})/g, "$1");
    if (/^[+-]?[\d.]+%?$/.test(number)) text = number;
    else if (/^[=+\-@\t\r]/.test(text)) text = "'" + text;
    return `"${text.replace(/"/g, '""')}"`;
  }

  function startDownloads() {
    for (const table of document.querySelectorAll("main table:not(:has(.curve))")) {
      const name = table.caption.textContent.trim();
      const heads = Array.from(table.tHead.rows[0].cells);
      const button = document.createElement("button");
      button.type = "button";
      button.className = "csv";
      button.textContent = "CSV";
      button.setAttribute("aria-label", "Download as CSV: " + name);
      button.addEventListener("click", () => {
        const lines = Array.from(table.rows).filter((line) => !line.hidden).map((line) =>
          Array.from(line.cells).filter((cell, i) => !heads[i].matches(".drawn")).map(field).join(","));
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob(["\ufeff" + lines.join("\r\n") + "\r\n"], { type: "text/csv" }));
        link.download = name.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60) + ".csv";
        link.click();
        URL.revokeObjectURL(link.href);
      });
      table.parentNode.after(button);
    }
  }

  startTheme();
  startDownloads();
  if (byId("heat")) startHeatMap();
})();
