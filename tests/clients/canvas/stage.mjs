// A browser with one page, the toasts and failed requests of it, and steps that are written down.

import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const NEVER_OUT = '--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1';
const STEP_MS = 20000;
const QUIET_MS = 700; // without a request
const LOUD_MS = 6000; // a page that polls or waits is taken as it is then
const LOST_MS = 5000; // a click that led to nothing within it is repeated

// Runs in the page: keeps the text of every toast that is ever shown.
function watchToasts() {
  window.seenToasts = [];
  const look = () => {
    for (const node of document.querySelectorAll('[data-rht-toaster] [role="status"]')) {
      const text = node.innerText?.trim().replace(/127\.0\.0\.1:\d+/g, '<address>');
      if (text && node.dataset.seen !== text) {
        node.dataset.seen = text;
        window.seenToasts.push(text);
      }
    }
  };
  new MutationObserver(look).observe(document, { childList: true, subtree: true, characterData: true });
}

export class Stage {
  constructor(url, shots) {
    this.url = url;
    this.shots = shots;
    this.steps = [];
    this.failed = [];
    this.away = false; // the server is not there: what is refused then tells nothing
    mkdirSync(shots, { recursive: true });
  }

  async open(packages, executable) {
    const { chromium } = createRequire(join(packages, 'package.json'))('playwright-core');
    const args = ['--no-sandbox', '--disable-dev-shm-usage', NEVER_OUT];
    this.browser = await chromium.launch({ executablePath: executable, args });
    await this.fresh({});
  }

  // A browser that was never here, or one with these entries in its storage.
  async fresh(storage) {
    await this.context?.close();
    this.context = await this.browser.newContext({ viewport: { width: 1500, height: 950 }, acceptDownloads: true, reducedMotion: 'reduce' });
    this.context.setDefaultTimeout(STEP_MS);
    await this.context.addInitScript(watchToasts);
    await this.context.addInitScript((entries) => {
      for (const [key, value] of Object.entries(entries)) {
        if (localStorage.getItem(key) === null) localStorage.setItem(key, value);
      }
    }, storage);
    this.page = await this.context.newPage();
    if (process.env.TRACE) this.page.on('request', (one) => one.method() !== 'GET' && console.error(one.method(), one.url(), one.postData()?.slice(0, 500)));
    this.asked = 0; // requests without an answer
    this.heard = Date.now(); // when the last one began or ended
    this.page.on('request', () => this.hear(1));
    for (const end of ['requestfinished', 'requestfailed']) this.page.on(end, () => this.hear(-1));
    this.page.on('response', (response) => {
      if (this.away || response.status() < 400 || !response.url().startsWith(this.url)) return;
      const path = new URL(response.url()).pathname.replace(/[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}/g, '<id>');
      this.failed.push(`${response.status()} ${response.request().method()} ${path}`);
    });
    // A question about telemetry may cover the page at any moment.
    const consent = this.page.getByTestId('confirm-telemetry-preferences');
    await this.page.addLocatorHandler(consent, async () => {
      const box = this.page.getByTestId('telemetry-consent-form').getByRole('checkbox');
      if (await box.count() && await box.first().isChecked()) await box.first().uncheck({ force: true }).catch(() => {});
      await consent.click({ timeout: 2000 }).catch(() => {});
      await consent.waitFor({ state: 'hidden', timeout: 5000 }).catch(() => {});
    }, { noWaitAfter: true });
  }

  async go(path) {
    await this.page.goto(this.url + path, { waitUntil: 'domcontentloaded' });
  }

  hear(more) {
    this.asked = Math.max(0, this.asked + more);
    this.heard = Date.now();
  }

  // The page has got what it asked for, and asks for nothing more.
  async quiet() {
    const end = Date.now() + LOUD_MS;
    while (Date.now() < end && (this.asked > 0 || Date.now() - this.heard < QUIET_MS)) await this.page.waitForTimeout(50);
  }

  id(name) {
    return this.page.getByTestId(name).filter({ visible: true }).first();
  }

  async click(name) {
    await this.id(name).click();
  }

  // The first click after a dialog is sometimes lost: a person clicks again. `happened` is a promise with a
  // time limit of its own.
  async clickUntil(locator, happened) {
    const took = happened.then(() => true);
    for (let clicks = 0; clicks < 3; clicks += 1) {
      await locator.click({ timeout: LOST_MS }).catch(() => {});
      if (await Promise.race([took, this.page.waitForTimeout(LOST_MS).then(() => false)])) return;
    }
    await took;
  }

  async says(text, within = 'root-layout') {
    await this.page.getByTestId(within).getByText(text).filter({ visible: true }).first().waitFor();
  }

  // One step of the walk: what failed in it, which toasts were shown, which requests were refused.
  async step(name, run) {
    this.failed = [];
    const begin = Date.now();
    let error = null;
    let value = null;
    try {
      value = (await run()) ?? null;
    } catch (caught) {
      error = String(caught?.message ?? caught).split('\n').slice(0, 12).join('\n');
    }
    const toasts = await this.page.evaluate(() => window.seenToasts.splice(0)).catch(() => []);
    const number = String(this.steps.length).padStart(2, '0');
    await this.page.screenshot({ path: join(this.shots, `${number}-${name.replaceAll(/[^a-z0-9]+/gi, '-')}.png`) }).catch(() => {});
    const refused = [...new Set(this.failed)].sort();
    this.steps.push({ name, error, value, toasts: [...new Set(toasts)], refused });
    console.error(`${Date.now() - begin} ms ${name}${error ? ` FAILED ${error}` : ''} ${JSON.stringify(toasts)} ${JSON.stringify(refused)}`);
  }
}
