// Tasks of a timeline. Where some in sight are narrow, every pixel shows what it is mostly of, so that none hides others.

const LEAST_PX = 6;  // of a task that is drawn as a bar
const MOST_TASKS = 1000;
const FIELDS = ["row", "category", "start", "length"];

async function drawTimeline(id, figure, packed) {
  const element = document.getElementById(id);
  await draw(id, figure, true);
  const values = new Uint32Array(await unpacked(packed.columns)), tasks = {};
  FIELDS.forEach((name, i) => {
    tasks[name] = values.subarray(i * packed.num_tasks, (i + 1) * packed.num_tasks);
  });
  const labels = JSON.parse(await unpackedText(packed.labels));
  const show = () => showTimeline(element, figure.data, tasks, labels, packed);
  element.on("plotly_relayout", show);
  redraws.push(show);
  show();
}

function showTimeline(element, legend, tasks, labels, packed, tries = 3) {
  const {xaxis, _size} = element._fullLayout;
  const [left, right] = xaxis.range.map(value => value / packed.step), numPixels = Math.max(1, Math.round(_size.w));
  const pixel = (right - left) / numPixels, found = [];
  let shortest = Infinity;
  for (let i = 0; i < packed.num_tasks; i++) {
    if (tasks.start[i] >= right || tasks.start[i] + tasks.length[i] <= left) continue;
    found.push(i);
    shortest = Math.min(shortest, tasks.length[i]);
  }
  const text = i => `${labels[i]}<br>from ${quantity(tasks.start[i], packed)}, ${quantity(tasks.length[i], packed)}`;
  const asBars = found.length <= MOST_TASKS && shortest >= LEAST_PX * pixel;
  const shown = asBars ? taskBars(found, tasks, text, packed) : [taskPixels(found, tasks, text, packed, left, pixel, numPixels)];
  Plotly.react(element, coloured([...legend, ...shown]), element.layout);
  // The names of the rows may leave another width than before.
  const isAsWide = Math.round(element._fullLayout._size.w) === numPixels;
  if (!isAsWide && tries > 0) showTimeline(element, legend, tasks, labels, packed, tries - 1);
}

function quantity(steps, packed) {
  return `${Number((steps * packed.step).toPrecision(5))} ${packed.unit}`;
}

function taskBars(found, tasks, text, packed) {
  return packed.colors.map((color, category) => {
    const own = found.filter(i => tasks.category[i] === category);
    return {
      type: "bar", orientation: "h", showlegend: false, width: 0.82, textposition: "none",
      y: own.map(i => tasks.row[i]), base: own.map(i => tasks.start[i] * packed.step),
      x: own.map(i => tasks.length[i] * packed.step), text: own.map(text), hovertemplate: "%{text}<extra></extra>",
      marker: {color, line: {color: "theme:paper", width: 0.5}},
    };
  });
}

function taskPixels(found, tasks, text, packed, left, pixel, numPixels) {
  const {colors, num_rows} = packed, count = colors.length;
  const rows = Array.from({length: num_rows}, () => []);
  found.forEach(i => rows[tasks.row[i]].push(i));
  const z = [], texts = [];
  for (const own of rows) {
    const {shares, longest} = pixelShares(own, tasks, count, left, pixel, numPixels);
    const chosen = chosenCategories(shares, count, numPixels);
    z.push(chosen.map(category => category === count ? null : category));
    texts.push(chosen.map((category, x) => category === count ? "" : text(longest[x * count + category])));
  }
  return {
    type: "heatmap", z, text: texts, hovertemplate: "%{text}<extra></extra>", hoverongaps: false, showscale: false,
    x0: (left + pixel / 2) * packed.step, dx: pixel * packed.step, y0: 0, dy: 1, ygap: 4, zmin: 0, zmax: count,
    colorscale: colors.flatMap((color, i) => [[i / count, color], [(i + 1) / count, color]]),
  };
}

// The share of every pixel that each category has, and the task that has most of it.
function pixelShares(own, tasks, count, left, pixel, numPixels) {
  const shares = new Float64Array(numPixels * count), longest = new Int32Array(numPixels * count);
  const most = new Float64Array(numPixels * count);
  for (const i of own) {
    const start = Math.max(0, (tasks.start[i] - left) / pixel);
    const end = Math.min(numPixels, (tasks.start[i] + tasks.length[i] - left) / pixel);
    for (let x = Math.floor(start); x < end; x++) {
      const share = Math.min(end, x + 1) - Math.max(start, x), cell = x * count + tasks.category[i];
      shares[cell] += share;
      if (share > most[cell]) [most[cell], longest[cell]] = [share, i];
    }
  }
  return {shares, longest};
}

// What has most of a pixel and of what the pixels before it left over; the last category is idleness. Where tasks are
// shorter than pixels, each category thus has as many pixels as it has time.
function chosenCategories(shares, count, numPixels) {
  const owed = new Float64Array(count + 1), chosen = [];
  for (let x = 0; x < numPixels; x++) {
    let busy = 0, best = -1;
    for (let category = 0; category <= count; category++) {
      const share = category < count ? shares[x * count + category] : Math.max(0, 1 - busy);
      busy += share;
      owed[category] += share;
      if (share > 1e-9 && (best < 0 || owed[category] > owed[best])) best = category;
    }
    owed[best] -= 1;
    chosen.push(best);
  }
  return chosen;
}
