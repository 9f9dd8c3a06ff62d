// What the live page of many servers takes of its thread, and of memory: node crowded-page.mjs CHROMIUM URL MINUTES
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const [executablePath, url, minutes] = process.argv.slice(2);
const UPDATE_MS_MAX = 50;
const MEMORY_GROWTH_MAX = 1.1;
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });

try {
  const page = await browser.newPage({ viewport: { width: 1600, height: 1000 } });
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Performance.enable");
  await page.goto(url);
  await page.waitForFunction(() => document.querySelectorAll("#rows tr").length > 0);
  const servers = await page.$$eval("#rows tr", (rows) => rows.length);
  // By requests, so that rows change their places.
  for (let times = 0; times < 5; times += 1) await page.keyboard.press("s");

  const metrics = async () => {
    await devtools.send("HeapProfiler.collectGarbage");
    const { metrics } = await devtools.send("Performance.getMetrics");
    return Object.fromEntries(metrics.map(({ name, value }) => [name, value]));
  };
  // Updates that come one after the other, each with all that the thread does until the next: script, style, layout.
  async function watched(seconds) {
    await page.evaluate(() => {
      window.longest = [];
      window.observer = new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) window.longest.push(entry.duration);
      });
      window.observer.observe({ type: "longtask" });
    });
    const before = await metrics();
    await page.waitForTimeout(seconds * 1000);
    const after = await metrics();
    const longest = await page.evaluate(() => {
      window.observer.disconnect();
      return window.longest;
    });
    const took = (name) => (1000 * (after[name] - before[name])) / seconds;
    const [task, script, layout] = ["TaskDuration", "ScriptDuration", "LayoutDuration"].map(took);
    return { longest, task, script, layout, after };
  }

  // The picture is full after two minutes, but nothing of it is kept on the page before.
  await page.waitForTimeout(10000);
  const seconds = Math.max(minutes * 60, 20);
  const first = await watched(seconds / 10);
  const rest = await watched(seconds * 0.9);
  const longest = Math.max(0, ...first.longest, ...rest.longest);
  const heap = [first.after.JSHeapUsedSize, rest.after.JSHeapUsedSize];
  const shown = (value) => value.toFixed(1);
  console.log(
    `${servers} servers: ${shown(rest.task)} ms of the thread a second (script ${shown(rest.script)}, layout ` +
      `${shown(rest.layout)}), longest task ${longest === 0 ? `below ${UPDATE_MS_MAX}` : shown(longest)} ms; ` +
      `${rest.longest.length} of ${Math.round(seconds)} s had longer ones; memory ${shown(heap[0] / 1048576)} to ` +
      `${shown(heap[1] / 1048576)} MiB, ${first.after.Nodes} to ${rest.after.Nodes} nodes`,
  );
  assert.ok(longest <= UPDATE_MS_MAX, `an update took ${longest} ms`);
  assert.ok(heap[1] <= heap[0] * MEMORY_GROWTH_MAX, "memory grows");
} finally {
  await browser.close();
}
