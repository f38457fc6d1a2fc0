"use strict";
// What a page does: draws its figures, makes its tables sortable, moves its sliders, changes its theme.
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));

  const system = matchMedia("(prefers-color-scheme: dark)");
  const themes = ["auto", "light", "dark"];
  let theme = "auto";
  function dress() {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    root.classList.toggle("dark", theme === "auto" ? system.matches : theme === "dark"); // what DataTables asks for
    document.getElementById("theme-name").textContent = theme;
  }
  document.getElementById("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    dress();
  });
  system.addEventListener("change", dress);
  dress();

  for (const group of all(".sliders")) {
    const sliders = all(".slider", group);
    const show = (at, stop) => {
      sliders.forEach((slider, number) => {
        const shown = number === at ? stop : Number(slider.dataset.start);
        slider.querySelector("input").value = shown;
        all(".stop", slider).forEach((text, index) => (text.hidden = index !== shown));
      });
      for (const answer of all(".answer", group)) {
        answer.hidden = Number(answer.dataset.slider) !== at || Number(answer.dataset.stop) !== stop;
      }
    };
    sliders.forEach((slider, at) => {
      const input = slider.querySelector("input");
      input.addEventListener("input", () => show(at, Number(input.value)));
    });
  }

  const options = {
    responsive: true,
    displaylogo: false,
    displayModeBar: matchMedia("(max-width: 600px)").matches ? false : "hover", // it stands beside the caption
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "sendDataToCloud"],
    topojsonURL: "",
  };
  const figures = all("figure").map((figure) => {
    const { data, layout } = JSON.parse(figure.querySelector(".plot-data").textContent);
    if (figure.clientWidth < 600) layout.font.size = 11.5;
    return Plotly.newPlot(figure.querySelector(".plot"), data, layout, options);
  });

  async function tables() {
    const holders = all(".table table");
    if (!holders.length) return;
    const text = JSON.parse(document.getElementById("tables-module").textContent);
    const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    const { default: DataTable } = await import(address);
    URL.revokeObjectURL(address);
    const many = { topStart: "pageLength", topEnd: "search", bottomStart: "info", bottomEnd: "paging" };
    const few = { topStart: null, topEnd: "search", bottomStart: null, bottomEnd: null };
    for (const table of holders) {
      const isLong = table.tBodies[0].rows.length > Number(table.dataset.rows);
      const shown = new DataTable(table, {
        autoWidth: false,
        columnControl: ["searchDropdown"],
        columnDefs: [{ targets: "detail", visible: false }],
        layout: isLong ? many : few,
        lengthMenu: [...new Set([10, 25, 100, Number(table.dataset.rows)])]
          .sort((a, b) => a - b)
          .concat({ label: "all", value: -1 }),
        order: [],
        pageLength: Number(table.dataset.rows),
        paging: isLong,
      });
      const button = table.closest(".table").querySelector("button.details");
      button?.addEventListener("click", () => {
        const pressed = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(pressed));
        button.textContent = pressed ? "Fewer columns" : "All columns";
        shown.columns(".detail").visible(pressed);
      });
    }
  }

  Promise.all([...figures, tables()]).then(
    () => (root.dataset.ready = "yes"),
    (error) => console.error(error),
  );
})();
