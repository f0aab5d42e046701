// An Ostler client: starts a conversation, follows it over lost connections, allows what the agent asks for.
// OSTLER_API_KEY=... node client.mjs http://127.0.0.1:8000 "Please write a file."
// Node.js 22 has WebSocket; Node.js 20 has it with --experimental-websocket. Browsers: the same, without process.
import { randomUUID } from "node:crypto";

const [url, prompt] = [process.argv[2].replace(/\/$/, ""), process.argv[3]];
const key = process.env.OSTLER_API_KEY ?? "";
const id = randomUUID();

async function rest(method, path, body) {
  const headers = { "Content-Type": "application/json", "X-Session-API-Key": key };
  const answer = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${answer.status}: ${JSON.stringify((await answer.json()).detail)}`);
  return answer.json();
}

function follow(seen) { // resolves to the status at the end, or to undefined when the connection is lost
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(`${url.replace("http", "ws")}/sockets/session/${id}?after_seq=${seen.seq}`);
    let status, through = -1; // what the server has beyond `through`, it sends as it happens
    socket.onopen = () => {
      socket.send(JSON.stringify({ type: "auth", session_api_key: key }));
      seen.pause = 250;
    };
    socket.onerror = () => resolve();
    socket.onclose = ({ code, reason }) => ([4001, 4004].includes(code) ? reject(new Error(reason)) : resolve());
    socket.onmessage = ({ data }) => {
      const { type, seq, event = {}, through_seq = -1 } = JSON.parse(data);
      if (type === "sync") through = through_seq;
      if (type === "durable") console.error(seen.seq = seq, event.kind, event.summary ?? event.detail ?? "");
      if (event.key === "full_state") status = event.value.execution_status;
      if (event.key === "execution_status") status = event.value;
      if (seen.seq < through) return; // still history: what it asks for may have been answered
      if (status === "waiting_for_confirmation") { // {accept: false, reason: "..."} refuses
        status = undefined;
        rest("POST", `/api/conversations/${id}/events/respond_to_confirmation`, { accept: true }).catch(() => socket.close());
      } else if (["finished", "error", "stuck"].includes(status)) {
        resolve(status);
        socket.close();
      }
    };
  });
}

await rest("POST", "/api/conversations", {
  conversation_id: id, workspace: { working_dir: process.cwd() }, confirmation_policy: { kind: "AlwaysConfirm" },
  initial_message: { content: [{ type: "text", text: prompt }] } });
const seen = { seq: -1, pause: 250 }; // the last sequence number, -1 asks for everything; milliseconds
let status;
while (!(status = await follow(seen))) {
  console.error(`lost after ${seen.seq}, trying again`);
  await new Promise((resolve) => setTimeout(resolve, seen.pause));
  seen.pause = Math.min(seen.pause * 2, 30_000);
}
console.log((await rest("GET", `/api/conversations/${id}/agent_final_response`)).response);
process.exit(status === "finished" ? 0 : 1);
