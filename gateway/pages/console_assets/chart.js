// A chart of the last hour.

import { html, useEffect, useRef } from "./lib.js";
import uPlot from "./vendor/uplot.js";

const TONES = ["--busy", "--ask", "--good"];
const HEIGHT = 180;

if (!document.querySelector('link[href$="uplot.css"]')) {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = "/console/vendor/uplot.css";
  document.head.append(link);
}

export function Chart({ title, times, lines }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = [times, ...lines.map((line) => line.values)];
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    plot.current = new uPlot(
      {
        width: place.current.clientWidth, height: HEIGHT, axes: [axis, axis],
        series: [{}, ...lines.map((line, index) => ({ label: line.name, stroke: colour(TONES[index]), width: 1.5 }))],
      },
      data, place.current,
    ); // prettier-ignore
    const watch = new ResizeObserver(() => plot.current.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    watch.observe(place.current);
    return () => {
      watch.disconnect();
      plot.current.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(data), [times.at(-1), times.length]);
  const now = lines.map((line) => `${line.name} ${Math.round(line.values.at(-1))}`).join(", ");
  return html`<figure class="chart" role="img" aria-label=${`${title} over the last hour. Now: ${now}`}><figcaption>${title}</figcaption><div ref=${place}></div></figure>`;
}
