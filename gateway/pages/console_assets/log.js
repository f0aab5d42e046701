// The log of a conversation: only the items near what is seen stand in the page, however many there are.

import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "./vendor/virtual.js";
import { html, useEffect, useLayoutEffect, useReducer, useRef, useState } from "./lib.js";

const NEAR_PX = 48; // so near the end, the log follows what comes
const ESTIMATE_PX = 72;
const OVERSCAN = 8;

export function Log({ items, label, busy, draw, goal }) {
  const scroller = useRef(null);
  const list = useRef(null);
  const follows = useRef(true);
  const placed = useRef(0); // where the page itself has scrolled to; elsewhere a person has
  const [away, setAway] = useState(false);
  const [, again] = useReducer((count) => count + 1, 0);
  const options = {
    count: items.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ESTIMATE_PX,
    getItemKey: (index) => items[index]?.key ?? index,
    overscan: OVERSCAN,
    scrollToFn: (...given) => {
      elementScroll(...given);
      if (scroller.current) placed.current = scroller.current.scrollTop;
    },
    observeElementRect,
    observeElementOffset,
    useAnimationFrameWithResizeObserver: true,
    onChange: again,
  };
  list.current ??= new Virtualizer(options);
  list.current.setOptions(options);
  useLayoutEffect(() => list.current._didMount(), []);
  useLayoutEffect(() => {
    list.current._willUpdate();
    const place = scroller.current;
    if (place && follows.current && !goal) {
      place.scrollTop = place.scrollHeight;
      placed.current = place.scrollTop;
    }
  });
  useEffect(() => {
    const index = goal ? items.findIndex((item) => item.id === goal || item.key === goal) : -1;
    if (index >= 0) {
      follows.current = false;
      list.current.scrollToIndex(index, { align: "center" });
    }
  }, [goal, items.length > 0]);

  function scrolled() {
    const place = scroller.current;
    if (!place || Math.abs(place.scrollTop - placed.current) < 2) return;
    placed.current = place.scrollTop;
    follows.current = place.scrollHeight - place.scrollTop - place.clientHeight < NEAR_PX;
    setAway(!follows.current);
  }
  function toEnd() {
    follows.current = true;
    setAway(false);
    list.current.scrollToIndex(items.length - 1, { align: "end" });
    again();
  }
  return html`<div class="log-frame">
    <div class="log" role="log" aria-label=${label} aria-busy=${busy} tabindex="0" ref=${scroller} onScroll=${scrolled}>
      <div class="log-inner" style=${{ height: `${list.current.getTotalSize()}px` }}>
        ${list.current.getVirtualItems().map(
          (place) => html`<div
            key=${place.key}
            class="log-item"
            data-index=${place.index}
            ref=${(element) => element && list.current.measureElement(element)}
            style=${{ transform: `translateY(${place.start}px)` }}
          >
            ${items[place.index] && draw(items[place.index])}
          </div>`,
        )}
      </div>
    </div>
    ${away && html`<button class="to-end" onClick=${toEnd}>To the newest</button>`}
  </div>`;
}
