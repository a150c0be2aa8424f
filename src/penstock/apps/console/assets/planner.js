// Plots: elements with data-plot within data-planner, drawn again whenever they are replaced.
(() => {
  "use strict";
  const place = document.querySelector("[data-planner]");
  if (!place) return;
  const COLOURS = 8;
  const DASHES = [[], [6, 4], [2, 3]];
  let drawn = [];

  const colour = (element, name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    element.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const short = (value, unknown = "–") => {
    if (value == null) return unknown;
    const size = Math.abs(value);
    for (const [factor, suffix] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (size >= factor) return `${+(value / factor).toPrecision(3)} ${suffix}`;
    return String(+value.toPrecision(3));
  };
  const positive = (values) => values.map((value) => (value > 0 ? value : null));

  // Bars of several curves stand side by side: each curve has places of its own on the x axis.
  const tables = (chart) => {
    const width = 0.8 / chart.curves.length;
    return chart.curves.map((curve, index) => {
      const x = chart.kind === "bar" ? curve.x.map((_, at) => at - 0.4 + width * (index + 0.5)) : curve.x;
      return [x, chart.y_log ? positive(curve.y) : curve.y];
    });
  };
  const marks = (chart, colour) => (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    for (const [label, value] of Object.entries(chart.marks || {})) {
      const at = plot.valToPos(value, "x", true);
      if (at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.strokeStyle = colour;
      ctx.setLineDash([6, 4]);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillStyle = colour;
      ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
      const left = at > bbox.left + bbox.width / 2;
      ctx.textAlign = left ? "right" : "left";
      ctx.fillText(label, at + (left ? -6 : 6), bbox.top + 14 * devicePixelRatio);
    }
    ctx.restore();
  };
  const draw = (element) => {
    const chart = JSON.parse(element.dataset.plot);
    const bars = chart.kind === "bar";
    const names = bars ? chart.curves[0].x.map(String) : [];
    const text = colour(element, "--muted");
    const line = colour(element, "--line");
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18 };
    const names_axis = { splits: () => names.map((_, at) => at), values: (_, ticks) => ticks.map((at) => names[at] ?? ""), rotate: -35, size: 96, grid: { show: false } };
    const barWidth = (0.75 * (element.clientWidth - 100)) / Math.max(1, names.length) / chart.curves.length;
    element.replaceChildren();
    const plot = new uPlot(
      {
        width: element.clientWidth,
        height: bars ? 320 : 260,
        cursor: { y: false, points: { size: 6 } },
        hooks: { draw: [marks(chart, text)] },
        scales: {
          x: { time: false, distr: !bars && chart.x_log ? 3 : 1, ...(bars && { range: [-0.6, names.length - 0.4] }) },
          y: { distr: chart.y_log ? 3 : 1, ...(!chart.y_log && { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 0, 1e-9) * 1.05] }) },
        },
        axes: [
          { ...axis, label: chart.x_label, values: (_, ticks) => ticks.map((tick) => short(tick, "")), space: 60, size: 36, ...(bars && names_axis) },
          { ...axis, label: chart.y_label, values: (_, ticks) => ticks.map((tick) => short(tick, "")), size: 64 },
        ],
        series: [
          { label: chart.x_label, value: (_, value) => (bars ? names[Math.round(value)] ?? "–" : short(value)) },
          ...chart.curves.map((curve, index) => ({
            label: curve.label || chart.y_label,
            stroke: colour(element, `--series-${(index % COLOURS) + 1}`),
            fill: bars ? colour(element, `--series-${(index % COLOURS) + 1}`) : undefined,
            dash: DASHES[Math.floor(index / COLOURS) % DASHES.length],
            width: bars ? 0 : 1.75,
            points: { show: false },
            spanGaps: !bars,
            value: (_, value) => short(value),
            ...(bars && { paths: uPlot.paths.bars({ size: [1, barWidth] }) }),
          })),
        ],
      },
      uPlot.join(tables(chart)),
      element,
    );
    return { plot, element };
  };
  const drawAll = () => {
    drawn.forEach(({ plot }) => plot.destroy());
    drawn = Array.from(place.querySelectorAll("[data-plot]")).map(draw);
  };
  new MutationObserver((changes) => {
    if (changes.some((change) => change.target === place)) drawAll();
  }).observe(place, { childList: true });
  new MutationObserver(drawAll).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("resize", () =>
    drawn.forEach(({ plot, element }) => plot.setSize({ width: element.clientWidth, height: plot.height })),
  );
  drawAll();
})();
