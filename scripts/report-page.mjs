// What scripts/report-page.sh looks at in a browser: node report-page.mjs CHROMIUM URL REPORT.html
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [executablePath, url, report] = process.argv.slice(2);
const origin = new URL(url).origin;
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const wrong = [];

/** A page that notes what it must not do. */
async function open(address, options, allowed) {
  const page = await browser.newPage(options);
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) wrong.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => wrong.push(`error: ${error}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(allowed) && !request.url().startsWith("data:")) wrong.push(`asked ${request.url()}`);
  });
  await page.goto(address);
  return page;
}

const fits = (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);

try {
  for (const width of [400, 1600]) {
    for (const colorScheme of ["light", "dark"]) {
      const page = await open(url, { viewport: { width, height: 900 }, colorScheme }, origin);
      await page.waitForFunction(() => document.querySelectorAll("#rows tr").length > 0);
      assert.ok(await fits(page), `the live page is wider than ${width}`);
      await page.close();
    }
  }
  const page = await open(url, { viewport: { width: 1200, height: 900 } }, origin);
  await page.waitForFunction(() => document.querySelectorAll("#rows tr").length > 0);
  // A paused page stands still, and its numbers are those of a frame.
  const rows = () => page.$$eval("#rows tr", (all) => all.map((row) => row.children[0].textContent));
  const names = await rows();
  const frame = await (await page.request.get(url.replace("/?", "/frame?"))).json();
  assert.deepEqual(names, frame.servers.map((server) => server.name));
  await page.keyboard.press("Space");
  assert.equal(await page.textContent("#state"), "paused");
  const time = await page.textContent("#time");
  await page.waitForTimeout(3000);
  assert.equal(await page.textContent("#time"), time);
  await page.keyboard.press("Space");
  await page.waitForFunction((before) => document.getElementById("time").textContent !== before, time);
  // Arrows select, escape does not; r turns the order; s sorts by the next column.
  await page.keyboard.press("ArrowDown");
  const chosen = () =>
    page.$$eval("#rows tr[aria-selected=true]", (all) => all.map((row) => row.children[0].textContent));
  assert.deepEqual(await chosen(), [names[0]]);
  assert.ok(await page.isVisible("#one-words"));
  await page.keyboard.press("Escape");
  assert.deepEqual(await chosen(), []);
  await page.keyboard.press("r");
  assert.deepEqual(await rows(), [...names].reverse());
  await page.keyboard.press("r");
  await page.keyboard.press("s");
  assert.equal(await page.$eval("th[aria-sort]", (head) => head.textContent), "state");
  await page.close();
  // The report, without scripts.
  for (const width of [400, 1600]) {
    const address = pathToFileURL(report).href;
    const page = await open(address, { viewport: { width, height: 900 }, javaScriptEnabled: false }, address);
    assert.ok((await page.textContent("h1")).startsWith("job "));
    assert.ok((await page.$$("svg path")).length > 4);
    await page.close();
  }
  assert.deepEqual(wrong, []);
  console.log("the pages are as they should be");
} finally {
  await browser.close();
}
