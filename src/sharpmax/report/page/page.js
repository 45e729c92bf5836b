// Draws the page's charts, lets one slider drive them all, and turns everything light or dark.
"use strict";

const content = JSON.parse(document.getElementById("content").textContent);
const boxes = [...document.querySelectorAll("[data-chart]")];
const main = document.querySelector("main");
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 30rem)");

// A page opened from disk may have no storage: the choice then lasts as long as the page.
const remembered = {
  get() { try { return localStorage.getItem("sharpmax-theme"); } catch { return null; } },
  set(theme) { try { localStorage.setItem("sharpmax-theme", theme); } catch { /* not kept */ } },
};

let theme = remembered.get();
let position = 0;
let embedded = [];
const chosen = {}; // what is selected, by the selection's name: shared by all charts that have it
let drawing = Promise.resolve();

const isDark = () => (theme ? theme === "dark" : systemDark.matches);

// Exchange the palette's light colours for their dark ones, everywhere but in data.
function recoloured(node) {
  if (typeof node === "string") return content.dark[node] ?? node;
  if (Array.isArray(node)) return node.map(recoloured);
  if (node === null || typeof node !== "object") return node;
  return Object.fromEntries(Object.entries(node).map(
    ([key, value]) => [key, key === "datasets" || key === "values" ? value : recoloured(value)]));
}

function driven(spec) {
  return Boolean(content.slider) && (spec.params ?? []).some((p) => p.name === content.slider.parameter);
}

async function draw(dark) {
  main.setAttribute("aria-busy", "true");
  embedded.forEach((chart) => chart.finalize());
  const font = getComputedStyle(document.body).fontFamily;
  const padding = { left: 0, right: 8, top: 4, bottom: 4 };
  const config = { ...content.config, font, padding, legend: { ...content.config.legend } };
  if (narrow.matches) config.legend.columns = 3;
  embedded = await Promise.all(boxes.map(async (box) => {
    const spec = structuredClone(content.charts[Number(box.dataset.chart)]);
    spec.datasets = Object.fromEntries(spec.datasets.map( // a copy: Vega writes into its data
      (name) => [name, structuredClone(content.datasets[name])]));
    if (driven(spec)) {
      spec.params.find((p) => p.name === content.slider.parameter).value = content.slider.values[position];
    }
    const colour = dark ? recoloured : (node) => node;
    return vegaEmbed(box, colour(spec), {
      actions: false,
      ast: true, // Vega's interpreter: expressions run though the page forbids eval
      config: colour(config),
      mode: "vega-lite",
      renderer: "svg",
      tooltip: { theme: "custom" },
    });
  }));
  embedded.forEach((chart) => stores(chart).forEach((name) => {
    if (chosen[name]) chart.view.data(name, chosen[name].map((tuple) => ({ ...tuple }))).runAsync();
    chart.view.addDataListener(name, (_, tuples) => choose(name, tuples));
  }));
  main.setAttribute("aria-busy", "false");
}

// Vega-Lite keeps the selection NAME as data called NAME_store; a click in one chart holds for all.
function stores(chart) {
  const { data } = chart.view.getState({ data: (name) => name?.endsWith("_store"), signals: () => false });
  return Object.keys(data);
}

function choose(name, tuples) {
  const plain = tuples.map(({ unit, fields, values }) => ({ unit, fields, values }));
  const key = (list) => JSON.stringify((list ?? []).map((tuple) => tuple.values));
  if (key(plain) === key(chosen[name])) return;
  chosen[name] = plain;
  embedded.filter((chart) => stores(chart).includes(name)).forEach((chart) => {
    if (key(chart.view.data(name)) !== key(plain)) chart.view.data(name, plain.map((tuple) => ({ ...tuple }))).runAsync();
  });
}

function redraw(dark = isDark()) {
  drawing = drawing.then(() => draw(dark)).catch((error) => {
    main.setAttribute("aria-busy", "false");
    console.error(error);
  });
  return drawing;
}

function showTheme() {
  const button = document.getElementById("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  button.textContent = isDark() ? "Light" : "Dark";
  button.title = `Switch to ${isDark() ? "light" : "dark"} colours`;
}

document.getElementById("theme").addEventListener("click", () => {
  theme = isDark() ? "light" : "dark";
  remembered.set(theme);
  showTheme();
  redraw();
});
systemDark.addEventListener("change", () => { if (!theme) { showTheme(); redraw(); } });
narrow.addEventListener("change", () => redraw());
addEventListener("beforeprint", () => { if (isDark()) redraw(false); });
addEventListener("afterprint", () => { if (isDark()) redraw(); });

const slider = document.getElementById("slider");
if (slider) {
  const output = document.querySelector(".slider output");
  const show = () => {
    const value = content.slider.values[position];
    output.textContent = `${value.toLocaleString("en")} ${content.slider.unit}`.trim();
    slider.setAttribute("aria-valuetext", output.textContent);
  };
  slider.form.addEventListener("submit", (event) => event.preventDefault());
  slider.addEventListener("input", async () => {
    position = Number(slider.value);
    show();
    await drawing;
    const { parameter, values } = content.slider;
    embedded.filter((chart) => driven(chart.spec))
      .forEach((chart) => chart.view.signal(parameter, values[position]).runAsync());
  });
  position = Number(slider.value);
  show();
}

showTheme();
redraw();
