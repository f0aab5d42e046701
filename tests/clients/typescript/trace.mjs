// Calls through the clients' objects, written down: which methods were called, and what came of each step.

const UUID = /\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b/gi;
const HEX = /\b[0-9a-f]{32}\b/gi;
const SHA = /\b[0-9a-f]{40}\b/gi;
const RECORDED = /\/\S*\/ostler-record-[^/]+/g; // the home of a peer that is recorded
const SCRIPTED = /scripted-[0-9a-f]+/g;
const TIME = /\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:?\d{2})?/g;
const VOLATILE = /^(uptime|idle_time|timestamp|latency|cost_timestamp|installed_at|created_at|updated_at|size|short_sha)$/;

export const BYTES = 'bytes';

// Whether what is compared stays the same when every value of the answer is another one.
async function blind(shape, value, compared, trace) {
  if (value === undefined || value instanceof Blob || value instanceof ArrayBuffer || value?.value === BYTES) return true;
  if (value?.http && value.value === null) return false; // an answer without a body: its status is all there is
  let changed;
  try {
    changed = trace.plain(await shape(other(JSON.parse(JSON.stringify(value)))));
  } catch {
    return false; // it depends on them
  }
  return JSON.stringify(changed) === JSON.stringify(compared);
}

function other(value) {
  if (Array.isArray(value)) return value.map(other);
  if (value && typeof value === 'object') return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, name === 'http' ? item : other(item)]));
  return typeof value === 'string' ? `other ${value}` : typeof value === 'number' ? value + 1 : typeof value === 'boolean' ? !value : value;
}

export class Trace {
  constructor(places, command) {
    this.places = places; // pairs of a text and the name it gets
    this.command = command.join('\0');
    this.argumentsOf = command.slice(1).join('\0');
    this.called = new Set();
    this.steps = [];
    this.requests = [];
    const fetched = globalThis.fetch;
    globalThis.fetch = async (resource, options = {}) => {
      const asked = new URL(resource?.url ?? String(resource));
      const method = (options.method ?? resource?.method ?? 'GET').toUpperCase();
      const answer = await fetched(resource, options);
      // Which routes the steps are about, and whether they succeed: what `docs/compatibility.md` calls proven.
      this.requests.push(`${method} ${asked.pathname} ${answer.status}`);
      return answer;
    };
  }

  // The object, with every call of a public method written down under the class's name.
  watch(object) {
    const name = object.constructor.name;
    return new Proxy(object, {
      get: (target, key) => {
        const called = () => typeof key === 'string' && this.called.add(`${name}.${key}`);
        const value = Reflect.get(target, key, target);
        if (typeof value !== 'function' || key === 'constructor') {
          called();
          return value;
        }
        return (...all) => {
          called();
          return value.apply(target, all);
        };
      },
    });
  }

  // Runs one step; returns what it gave, or undefined if it failed. `shape` makes of it what is to be compared.
  // Where that is the same for other values, the step compares fields alone: it says so (`fields`), and proves no more.
  async step(label, run, shape = (value) => value) {
    let outcome;
    let value;
    this.requests = [];
    const begin = Date.now();
    try {
      value = await run();
      outcome = { value: this.plain(await shape(value)) };
      if (await blind(shape, value, outcome.value, this)) outcome.fields = true;
    } catch (error) {
      const status = error?.status ?? null;
      const body = status === null ? String(error?.message ?? error) : error.response;
      outcome = { status, error: this.plain(body ?? null) };
    }
    this.steps.push({ label, requests: [...new Set(this.requests)].map((each) => this.text(each)), ...outcome });
    if (process.env.TRACE) console.error(label, Date.now() - begin, JSON.stringify(outcome).slice(0, 300));
    return value;
  }

  plain(value, key = '') {
    if (typeof value === 'string') return key === 'short_sha' ? '<sha>' : this.text(value);
    if (typeof value === 'number') return VOLATILE.test(key) ? '<number>' : value;
    if (value === undefined || value === null) return null;
    if (Array.isArray(value)) {
      const words = value.join('\0');
      if (value.length && words === this.command) return '<command>';
      if (value.length && words === this.argumentsOf) return '<arguments>';
      return value.map((item) => this.plain(item));
    }
    if (typeof value === 'object') {
      const pairs = Object.entries(value).filter(([, item]) => item !== undefined);
      return Object.fromEntries(pairs.map(([name, item]) => [this.text(name), this.plain(item, name)]).sort());
    }
    return value;
  }

  text(value) {
    let text = value;
    for (const [from, to] of this.places) text = text.split(from).join(to);
    text = text.replace(RECORDED, '<peer>');
    text = text.replace(UUID, '<id>').replace(SHA, '<sha>').replace(HEX, '<id>').replace(SCRIPTED, '<session>');
    return text.replace(TIME, '<time>');
  }
}
