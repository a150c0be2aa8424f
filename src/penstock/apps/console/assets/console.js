// Behaviour of the console's pages. Every page also works without this script.
(() => {
  "use strict";
  const root = document.documentElement;
  const find = (selector) => document.querySelector(selector);
  const findAll = (selector) => Array.from(document.querySelectorAll(selector));
  document.body.classList.add("js");

  // Theme: the switch stores the choice in a cookie, which the broker reads.
  const dark = () => {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  find("[data-theme-switch]")?.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    document.cookie = `penstock_theme=${root.dataset.theme}; path=/console; max-age=31536000; samesite=strict`;
    drawCharts();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts());

  // Menu of narrow windows
  const menu = find(".menu");
  const nav = find("#nav");
  const setMenu = (open) => {
    nav?.classList.toggle("open", open);
    menu?.setAttribute("aria-expanded", String(open));
  };
  menu?.addEventListener("click", () => setMenu(!nav.classList.contains("open")));

  // Keyboard
  const keys = find("#keys");
  let waitsForKey = 0;
  find("[data-keys]")?.addEventListener("click", () => keys.showModal());
  const isTyping = (element) =>
    element.closest("input, select, textarea, [contenteditable]") !== null;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") setMenu(false);
    if (isTyping(event.target) || keys.open) return;
    if (Date.now() < waitsForKey) {
      waitsForKey = 0;
      const link = findAll("#nav a").find((found) => found.dataset.key === event.key);
      if (link) {
        event.preventDefault();
        location.assign(link.href);
      }
    } else if (event.key === "g") {
      waitsForKey = Date.now() + 1500;
    } else if (event.key === "/") {
      const search = find("[data-search]");
      if (search) {
        event.preventDefault();
        search.focus();
        search.select();
      }
    } else if (event.key === "?") {
      event.preventDefault();
      keys.showModal();
    }
  });

  // Charts: an element with data-chart shows these fields of the samples.
  const KEPT = 300;
  const samples = [];
  let charts = [];
  const units = {
    bytes: (value) => {
      const names = ["B", "KiB", "MiB", "GiB", "TiB"];
      let unit = 0;
      while (value >= 1024 && unit < names.length - 1) {
        value /= 1024;
        unit += 1;
      }
      return `${value >= 10 || !unit ? Math.round(value) : value.toFixed(1)} ${names[unit]}/s`;
    },
    ms: (value) => `${value >= 10 ? Math.round(value) : +value.toPrecision(2)} ms`,
    number: (value) => value.toLocaleString("en"),
  };
  const columns = (fields) => [
    samples.map((sample) => sample.at_ms / 1000),
    ...fields.map((field) => samples.map((sample) => sample[field])),
  ];
  const chartOf = (element) => {
    const fields = element.dataset.chart.split(" ");
    const names = element.dataset.names.split(",");
    const style = getComputedStyle(root);
    const colour = (name) => {
      const probe = document.createElement("i");
      probe.style.color = `var(${name})`;
      element.append(probe);
      const found = getComputedStyle(probe).color;
      probe.remove();
      return found;
    };
    const unit = units[element.dataset.unit];
    const least = element.dataset.unit === "bytes" ? 2048 : 1;
    const text = colour("--muted");
    const line = colour("--line");
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    element.replaceChildren();
    const chart = new uPlot(
      {
        width: element.clientWidth,
        height: element.clientHeight - 24,
        cursor: { y: false, points: { size: 6 } },
        scales: {
          x: { range: (_, low, high) => (high > low ? [low, high] : [Date.now() / 1000 - 10, Date.now() / 1000]) },
          y: { range: (_, low, high) => [0, 1.1 * Math.max(high || 0, least)] },
        },
        axes: [
          { ...axis, space: 70, size: 28, values: [[1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
          { ...axis, size: 76, values: (_, ticks) => ticks.map(unit) },
        ],
        series: [
          { label: "", value: "{HH}:{mm}:{ss}" },
          ...fields.map((field, index) => ({
            label: names[index],
            stroke: colour(`--series-${index + 1}`),
            width: 1.75,
            points: { show: false },
            spanGaps: true,
            value: (_, value) => (value == null ? "–" : unit(value)),
          })),
        ],
      },
      columns(fields),
      element,
    );
    return { chart, fields, element };
  };
  function drawCharts() {
    if (typeof uPlot === "undefined") return;
    charts.forEach((drawn) => drawn.chart.destroy());
    charts = findAll("[data-chart]").map(chartOf);
  }
  addEventListener("resize", () =>
    charts.forEach(({ chart, element }) =>
      chart.setSize({ width: element.clientWidth, height: element.clientHeight - 24 }),
    ),
  );

  // Live figures: events of the element with data-live-source
  const source = find("[data-live-source]");
  if (source) {
    const state = find("[data-live-state]");
    samples.push(...JSON.parse(source.dataset.samples));
    source.addEventListener("sample", (event) => {
      const { sample, texts } = JSON.parse(event.detail.data);
      samples.push(sample);
      if (samples.length > KEPT) samples.shift();
      for (const element of findAll("[data-live]")) {
        const text = texts[element.dataset.live];
        if (text !== undefined) element.textContent = text;
      }
      charts.forEach(({ chart, fields }) => chart.setData(columns(fields)));
      state.textContent = "Live, updated every 2 seconds while this page is open.";
    });
    source.addEventListener("htmx:sse:error", () => {
      state.textContent = "No live figures at the moment. The page connects again by itself.";
    });
    state.textContent = "Connecting …";
    drawCharts();
  }
})();
