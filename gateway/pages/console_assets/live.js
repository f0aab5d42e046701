// A conversation as it is now: its log over the session socket, resumed where it broke off.

import { at, get, Socket } from "./api.js";
import { empty, take } from "./items.js";
import { Store } from "./lib.js";
import { connection } from "./rows.js";

// A longer history takes a while to arrive; its end is shown at once.
const LONG = 1000;
const TAIL = 100;

export class Live {
  constructor(id) {
    this.id = id;
    this.store = new Store(empty());
    this.connection = new Store("connecting");
    this.gone = new Store(null);
    this.through = null; // the last number of the history that arrives
    this.ready = false;
    this.tail = null; // the last events, until the history has arrived
    // Asked for at once: the socket tells only later whether they are needed.
    this.asked = get(`${at`/api/conversations/${id}/events/search`}?limit=${TAIL}&sort_order=TIMESTAMP_DESC`);
    this.asked.catch(() => {});
    // The overview is never silent for long, so its loss tells of this connection, too.
    let lost = false;
    this.unfollow = connection.follow(() => {
      if (connection.value === "lost") lost = true;
      else if (connection.value === "open" && lost) {
        lost = false;
        if (this.connection.value === "open") this.socket.retry();
      }
    });
    this.socket = new Socket(`/sockets/session/${encodeURIComponent(id)}`, {
      query: () => ({ after_seq: this.store.value.lastSeq }),
      onFrame: (frame) => this.#take(frame),
      onState: (state) => this.connection.set(state),
      onEnd: (code) => this.gone.set(code),
    });
  }

  #take(frame) {
    const log = this.store.value;
    if (frame.type === "sync") {
      this.through = frame.through_seq ?? null;
      if (this.through === null) this.ready = true;
      else if (!this.ready && this.through - frame.from_seq > LONG) this.#showTail();
      // What streamed before is sent again from its start, or has become an event.
      for (const item of log.items) if (item.streaming) Object.assign(item, { streaming: false, order: -1, text: "", thought: "" });
    } else {
      take(log, frame);
      if (this.through !== null && log.lastSeq >= this.through) {
        this.through = null;
        this.ready = true;
        this.tail = null;
      }
    }
    if (this.ready) this.store.touch();
  }

  #showTail() {
    this.asked.then(
      ({ items }) => {
        if (this.ready) return;
        const tail = empty();
        for (const event of items.reverse()) take(tail, { type: "durable", seq: -1, event });
        tail.state = { ...tail.state, ...this.store.value.state };
        this.tail = tail;
        this.store.touch();
      },
      () => {}, // then the whole history is waited for
    );
  }

  close() {
    this.unfollow();
    this.socket.close();
  }
}
