// A conversation as it is now: its log over the session socket, resumed where it broke off.

import { Socket } from "./api.js";
import { empty, take } from "./items.js";
import { Store } from "./lib.js";

export class Live {
  constructor(id) {
    this.id = id;
    this.store = new Store(empty());
    this.connection = new Store("connecting");
    this.gone = new Store(null);
    this.through = null; // the last number of the history that arrives
    this.ready = false;
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
      // What streamed before is sent again from its start, or has become an event.
      for (const item of log.items) if (item.streaming) Object.assign(item, { streaming: false, order: -1, text: "", thought: "" });
    } else {
      take(log, frame);
      if (this.through !== null && log.lastSeq >= this.through) {
        this.through = null;
        this.ready = true;
      }
    }
    if (this.ready) this.store.touch();
  }

  close() {
    this.socket.close();
  }
}
