// The view that is shown is in the address, behind the `#`: back, reload and links lead to it.
//
//   #/                            the overview, with ?text= ?agent= ?state= ?workspace= ?sort=
//   #/c/ID                        a conversation, with ?pane= and ?event=
//   #/server  #/server/PART       the server

import { Store } from "./lib.js";

function read() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  let parts = [];
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    // No address of ours, as a link of an agent may have one: the overview is shown.
  }
  return { parts, query: new URLSearchParams(query) };
}

export const route = new Store(read());
addEventListener("hashchange", () => route.set(read()));

export function address(parts, query = {}) {
  const path = `#/${parts.map(encodeURIComponent).join("/")}`;
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export function go(parts, query) {
  location.hash = address(parts, query);
}

// Change the query of the present view, without another entry in the browser's history.
export function refine(query) {
  const { parts, query: present } = route.value;
  history.replaceState(null, "", address(parts, { ...Object.fromEntries(present), ...query }));
  route.set(read());
}
