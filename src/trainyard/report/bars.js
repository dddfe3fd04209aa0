// Bars of which those in sight are drawn, where they are few enough; until one has zoomed in so far, a density.

const MOST_BARS = 2500;
const COLUMNS = ["job", "first", "count", "size", "start", "end"];  // starts as differences, ends as lengths

async function drawBars(id, figure, packed) {
  const element = document.getElementById(id), density = figure.data[0];
  density.text = packed.rows.map(row => Array(packed.num_parts).fill(row));
  const said = document.createElement("p");
  said.className = "note";
  element.before(said);
  await draw(id, figure, true);
  const columns = {}, values = new Uint32Array(await unpacked(packed.columns));
  COLUMNS.forEach((name, i) => {
    columns[name] = values.subarray(i * packed.num_bars, (i + 1) * packed.num_bars);
  });
  const {start, end} = columns;
  for (let i = 0; i < packed.num_bars; i++) {
    if (i) start[i] += start[i - 1];
    end[i] += start[i];
  }
  const labels = JSON.parse(await unpackedText(packed.labels));
  const show = () => showBars(element, said, density, columns, labels, packed);
  element.on("plotly_relayout", show);
  redraws.push(show);
  show();
}

function showBars(element, said, density, columns, labels, packed) {
  const {xaxis, yaxis} = element._fullLayout;
  const [left, right] = xaxis.range.map(value => (xaxis.r2l(value) - packed.origin) / packed.step);
  const [high, low] = yaxis.range.map(value => yaxis.r2l(value));
  const {first, count, start, end} = columns, found = [];
  for (let i = 0; i < packed.num_bars; i++) {
    if (start[i] < right && end[i] > left && first[i] - 0.5 < high && first[i] + count[i] - 0.5 > low) found.push(i);
  }
  const few = found.length <= MOST_BARS;
  element.dataset.bars = few ? found.length : 0;
  const number = found.length.toLocaleString("en");
  said.textContent = few
    ? `Each bar is a job on neighbouring devices, and colours tell jobs apart: ${number} bars are in sight.`
    : `${packed.density} Behind it are ${number} bars of jobs: drag over a part to see it larger; where it has at most `
      + `${MOST_BARS.toLocaleString("en")}, they are drawn. A double click goes back.`;
  const bars = few ? barsOf(found, columns, labels, packed) : {type: "bar", x: [], y: []};
  Plotly.react(element, coloured([{...density, visible: !few || packed.num_left_out > 0}, bars]), element.layout);
}

function barsOf(found, columns, labels, packed) {
  const {job, first, count, size, start, end} = columns;
  const clock = packed.is_date ? dateText : durationText;
  const time = value => clock(value * packed.seconds_per_step, packed.origin);
  return {
    type: "bar",
    orientation: "h",
    y: found.map(i => first[i] + (count[i] - 1) / 2),
    width: found.map(i => count[i] - 0.1),
    base: found.map(i => packed.origin + start[i] * packed.step),
    x: found.map(i => (end[i] - start[i]) * packed.step),
    marker: {
      color: found.map(i => packed.palette[job[i] % packed.palette.length]),
      line: {width: 0.5, color: "theme:paper"},
    },
    text: found.map(i => `${labels[job[i]]}<br>${devicesText(first[i], count[i], size[i])}<br>`
      + `${time(start[i])} to ${time(end[i])}`),
    textposition: "none",
    hovertemplate: "%{text}<extra></extra>",
  };
}

function devicesText(first, count, size) {
  const which = count === 1 ? `device ${first}` : `devices ${first} to ${first + count - 1}`;
  return count === size ? which : `${which}, of ${size}`;
}

function dateText(seconds, origin) {
  return new Date(origin + seconds * 1000).toISOString().slice(0, 19).replace("T", " ");
}

function durationText(seconds) {
  const whole = Math.round(seconds), days = Math.floor(whole / 86400);
  return (days ? `${days} d ` : "") + new Date((whole % 86400) * 1000).toISOString().slice(11, 19);
}
