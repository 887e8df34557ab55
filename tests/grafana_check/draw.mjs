// node draw.mjs JOBS.json CHROMIUM: draws each job's dashboard, leaves pictures and report.json where it is started.
import { createReadStream } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';
import { bundle } from './build.mjs';

const HERE = path.dirname(fileURLToPath(import.meta.url));
const ICONS = path.join(HERE, 'node_modules/@grafana/ui/dist/public/img');
const TYPES = { '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml', '.woff2': 'font/woff2' };
const FONTS = path.join(HERE, 'node_modules/@fontsource/inter/files');
const WEIGHTS = { Regular: 400, Medium: 500 };
const NO_ICON = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'; // the packages lack some
const HTML = '<!DOCTYPE html><html><head><link rel="icon" href="data:,"><script>window.grafanaBootData = { settings: {}, user: {} }</script><link rel="stylesheet" href="/main.css"></head>'
  + '<body><div id="page"></div><script type="module" src="/main.js"></script></body></html>';
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync'];

async function main(jobsFile, executablePath) {
  const jobs = JSON.parse(await readFile(jobsFile));
  const bundled = await mkdtemp(path.join(tmpdir(), 'grafana-check-'));
  const browser = await chromium.launch({ executablePath, args: FLAGS });
  try {
    await bundle(bundled);
    const server = await served(bundled);
    const reports = [];
    for (const job of jobs) {
      reports.push(await drawn(browser, `http://127.0.0.1:${server.address().port}/`, job));
    }
    server.close();
    await writeFile('report.json', `${JSON.stringify(reports, null, 1)}\n`);
  } finally {
    await browser.close();
    await rm(bundled, { recursive: true });
  }
}

function served(bundled) {
  const server = createServer(async ({ url }, answer) => {
    const wanted = located(bundled, url);
    const file = await stat(wanted).catch(() => null);
    if (url === '/') {
      answer.writeHead(200, { 'Content-Type': 'text/html' }).end(HTML);
    } else if (!file && url.endsWith('.svg')) {
      answer.writeHead(200, { 'Content-Type': TYPES['.svg'] }).end(NO_ICON);
    } else if (!file?.isFile()) {
      answer.writeHead(404).end();
    } else {
      answer.writeHead(200, { 'Content-Type': TYPES[path.extname(wanted)] ?? 'application/octet-stream' });
      createReadStream(wanted).pipe(answer);
    }
  });
  return new Promise((resolve) => { server.listen(0, '127.0.0.1', () => resolve(server)); });
}

function located(bundled, url) {
  const font = /^\/public\/fonts\/inter\/Inter-(Regular|Medium)?(Italic)?\.woff2$/.exec(url);
  if (font) {
    return path.join(FONTS, `inter-latin-${WEIGHTS[font[1]] ?? 400}-${font[2] ? 'italic' : 'normal'}.woff2`);
  }
  return url.startsWith('/public/build/img/') ? path.join(ICONS, url.slice(18)) : path.join(bundled, url);
}

// Rows and panels, by the grid; a line of it is 30 pixels and a gap.
function height({ board: { panels }, expanded }) {
  const folded = panels.flatMap((one) => (expanded ? one.panels ?? [] : []));
  const lines = Math.max(...panels.map(bottom)) + new Set(folded.map(bottom)).size * 10;
  return 38 * lines + 250;
}

const bottom = ({ gridPos: { y, h } }) => y + h;

async function drawn(browser, address, job) {
  const page = await browser.newPage({ viewport: { width: job.width, height: height(job) }, locale: 'en-GB', timezoneId: 'UTC' });
  const errors = [];
  page.on('pageerror', (error) => errors.push(error.message));
  page.on('console', (said) => said.type() === 'error' && errors.push(said.text()));
  page.on('response', (one) => one.status() >= 400 && errors.push(`${one.status()} ${one.url()}`));
  try {
    await page.goto(address);
    await page.waitForFunction(() => window.draw);
    await page.evaluate((one) => window.draw(one), job);
    const settled = () => page.waitForFunction(() => window.settled(), null, { timeout: 120_000, polling: 500 });
    await settled();
    if (job.expanded) {
      await page.evaluate(() => window.expand());
      await page.waitForTimeout(1000);
      await settled();
    }
    await page.waitForTimeout(2000);
    await page.screenshot({ path: `${job.name}.png` });
    const report = await page.evaluate(() => window.report());
    await mkdir(job.name, { recursive: true });
    for (const panel of job.expanded ? report.panels : []) {
      const at = page.locator(`[data-viz-panel-key="panel-${panel.id}"]`);
      await at.screenshot({ path: path.join(job.name, `${panel.id}.png`) });
    }
    return { name: job.name, width: job.width, errors, ...report };
  } finally {
    await page.close();
  }
}

await main(...process.argv.slice(2));
