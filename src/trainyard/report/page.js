// Figures of a page, one after the other, in the colours of the theme: light, dark, or light where it is printed.

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
const redraws = [];
let theme = THEMES[prefersDark.matches ? "dark" : "light"];

window.addEventListener("error", event => {
  document.getElementById("errors").textContent += event.message + "\n";
});

function say(id, problem) {
  document.getElementById("errors").textContent += id + ": " + problem + "\n";
}

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), character => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

async function unpackedText(text) {
  return new TextDecoder().decode(await unpacked(text));
}

let drawn = unpackedText(PLOTLY).then(text => {
  const script = document.createElement("script");
  script.textContent = text;
  document.head.append(script);
}).catch(problem => say("Plotly", problem));

// A figure with the colours of the theme in place of their names.
function coloured(value) {
  if (typeof value === "string") return value.startsWith("theme:") ? theme[value.slice(6)] ?? value : value;
  if (Array.isArray(value)) return value.every(each => typeof each === "number") ? value : value.map(coloured);
  if (value?.constructor !== Object) return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, coloured(each)]));
}

function themed(layout) {
  const axis = {gridcolor: theme.line, linecolor: theme.line, zeroline: false, automargin: true};
  const template = {layout: {
    paper_bgcolor: theme.paper, plot_bgcolor: theme.paper, xaxis: axis, yaxis: axis, hoverlabel: {namelength: -1},
    font: {family: "system-ui, sans-serif", size: 13, color: theme.ink}, barcornerradius: 0,
  }};
  return {...coloured(layout), template, uirevision: "kept"};
}

function draw(id, figure, hasButtons = window.innerWidth > 600) {
  const {data, layout} = figure;
  // On a phone a finger scrolls the page, unless there is a reason to zoom.
  if (!hasButtons) layout.dragmode = false;
  const names = layout.showlegend ? data.filter(each => each.showlegend !== false).length : 0;
  // There names stand one below the other, above the plot.
  if (window.innerWidth <= 600 && layout.height) layout.height += 18 * names;
  const config = {...CONFIG, ...(hasButtons ? {} : {displayModeBar: false})};
  const show = () => Plotly.react(id, coloured(data), themed(layout), config);
  // The page answers between figures.
  drawn = drawn.then(() => new Promise(resolve => setTimeout(resolve))).then(show)
    .then(() => redraws.push(show)).catch(problem => say(id, problem));
  return drawn;
}

function redraw(name) {
  theme = THEMES[name];
  redraws.forEach(show => show());
}

prefersDark.addEventListener("change", () => redraw(prefersDark.matches ? "dark" : "light"));
window.addEventListener("beforeprint", () => redraw("light"));
window.addEventListener("afterprint", () => redraw(prefersDark.matches ? "dark" : "light"));
