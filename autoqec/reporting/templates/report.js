"use strict";
(() => {
  const root = document.documentElement;
  const keep = (key, value) => { try { sessionStorage.setItem(key, value); } catch { /* a page opened as a file may keep nothing */ } };
  const kept = (key) => { try { return sessionStorage.getItem(key); } catch { return null; } };

  const themes = ["system", "light", "dark"];
  const button = document.getElementById("theme");
  const show = (theme) => {
    if (theme === "system") delete root.dataset.theme; else root.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    keep("theme", theme);
  };
  show(themes.includes(kept("theme")) ? kept("theme") : "system");
  button.hidden = false;
  button.addEventListener("click", () => show(themes[(themes.indexOf(root.dataset.theme ?? "system") + 1) % 3]));

  const open = () => {
    const round = document.getElementById(location.hash.slice(1));
    if (round?.matches("details.round")) {
      round.open = true;
      round.querySelector("summary").focus({ preventScroll: true });
      round.scrollIntoView();
    }
  };
  addEventListener("hashchange", open);
  document.addEventListener("click", (event) => {
    // A second click on the same link changes no hash.
    const link = event.target.closest("a[href^='#']");
    if (link && link.getAttribute("href") === location.hash) open();
  });

  const compare = (one, other) => (one === "") - (other === "") || (one - other) || one.localeCompare(other);
  const value = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const sorter = document.createElement("button");
      sorter.type = "button";
      sorter.append(...head.childNodes);
      head.append(sorter);
      sorter.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => {
          const [one, other] = [value(a, column), value(b, column)];
          return one === "" || other === "" ? compare(one, other) : compare(one, other) * (down ? -1 : 1);
        });
        table.tBodies[0].append(...rows);
      });
    });
  }

  // Charts of one figure that differ in an axis: all are shown without this script, one at a time with it.
  for (const figure of document.querySelectorAll("figure:has([data-option])")) {
    const charts = [...figure.querySelectorAll("[data-option]")];
    const select = (name) => charts.forEach((chart, index) => {
      chart.hidden = chart.dataset.option !== name;
      switches[index].setAttribute("aria-pressed", String(!chart.hidden));
    });
    const switches = charts.map((chart) => {
      const option = document.createElement("button");
      option.type = "button";
      option.textContent = chart.dataset.option;
      option.addEventListener("click", () => { select(chart.dataset.option); keep("cost", chart.dataset.option); });
      return option;
    });
    const group = document.createElement("div");
    group.className = "options";
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", "Cost axis");
    group.append(...switches);
    charts[0].before(group);
    select(charts.find((chart) => chart.dataset.option === kept("cost"))?.dataset.option ?? charts[0].dataset.option);
  }

  const opened = () => [...document.querySelectorAll("details[open][id]")].map((one) => one.id);
  for (const id of JSON.parse(kept("open") ?? "[]")) document.getElementById(id)?.setAttribute("open", "");
  addEventListener("pagehide", () => keep("open", JSON.stringify(opened())));
  open();

  if (document.body.hasAttribute("data-following")) {
    const state = document.getElementById("state");
    let known = null;
    const ask = async () => {
      try {
        const version = await (await fetch("version", { cache: "no-store" })).text();
        if (known !== null && version !== known) return location.reload();
        known = version;
        state.textContent = "following";
      } catch {
        state.textContent = "the server has stopped; this is its last page";
      }
      setTimeout(ask, 2000);
    };
    ask();
  }
})();
