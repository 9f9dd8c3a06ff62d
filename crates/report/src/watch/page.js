// The live page: frames come as server-sent events; all that they hold is put in as text, never as markup.
"use strict";

(() => {
  const HISTORY_MAX = 120;
  const token = new URLSearchParams(location.search).get("token") || "";
  const byId = (id) => document.getElementById(id);
  const sizeUnits = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

  function bytes(value) {
    let unit = 0;
    while (value >= 1024 && unit < sizeUnits.length - 1) {
      value /= 1024;
      unit += 1;
    }
    return `${unit === 0 ? value.toFixed(0) : value.toFixed(1)} ${sizeUnits[unit]}`;
  }
  const rate = (value) => `${bytes(value)}/s`;
  const number = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3));
  function time(micros) {
    if (micros < 1e3) return `${number(micros)} us`;
    return micros < 1e6 ? `${number(micros / 1e3)} ms` : `${number(micros / 1e6)} s`;
  }
  const percent = (share) => `${(100 * share).toFixed(0)} %`;
  const word = (text) => text;

  // Key in a frame, words above the column, how it is shown.
  const columns = [
    ["name", "server", word], ["state", "state", word], ["wait", "wait", time], ["depth", "qdepth", number],
    ["active", "active", number], ["requests", "requests/s", number], ["read", "read", rate],
    ["written", "written", rate], ["busy", "busy", percent], ["used", "used", percent],
  ];

  let frame = null;
  let history = [];
  let paused = false;
  let sortColumn = 0;
  let turned = false;
  let chosen = null;
  const rowsByName = new Map();

  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function compare(one, other) {
    const key = columns[sortColumn][0];
    // Names come in their order from the server.
    if (key === "name") return 0;
    const [a, b] = [one[key], other[key]];
    if (a === b) return 0;
    if (a === null) return 1;
    if (b === null) return -1;
    return a < b ? 1 : -1;
  }

  function sorted() {
    const servers = [...frame.servers].sort(compare);
    return turned ? servers.reverse() : servers;
  }

  function makeHeads() {
    columns.forEach(([, words], index) => {
      const head = document.createElement("th");
      head.scope = "col";
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = words;
      button.addEventListener("click", () => {
        turned = index === sortColumn ? !turned : false;
        sortColumn = index;
        draw();
      });
      head.append(button);
      byId("heads").append(head);
    });
  }

  function rowOf(name) {
    let row = rowsByName.get(name);
    if (!row) {
      row = document.createElement("tr");
      columns.forEach(() => row.append(document.createElement("td")));
      row.addEventListener("click", () => choose(name));
      rowsByName.set(name, row);
    }
    return row;
  }

  function drawTable() {
    const body = byId("rows");
    const servers = sorted();
    servers.forEach((server, place) => {
      const row = rowOf(server.name);
      columns.forEach(([key, , show], index) => {
        const value = server[key];
        setText(row.children[index], value === null ? "-" : show(value));
      });
      row.classList.toggle("silent", server.state !== "up");
      row.setAttribute("aria-selected", String(server.name === chosen));
      if (body.children[place] !== row) body.insertBefore(row, body.children[place] || null);
    });
    while (body.children.length > servers.length) {
      const last = body.lastChild;
      rowsByName.delete(last.children[0].textContent);
      last.remove();
    }
    [...byId("heads").children].forEach((head, index) => {
      const order = turned ? "ascending" : "descending";
      if (index === sortColumn) head.setAttribute("aria-sort", order);
      else head.removeAttribute("aria-sort");
    });
  }

  const burden = (server) => (server.depth === null ? server.wait : server.depth);

  function mixed(low, high, share) {
    const part = (text, at) => parseInt(text.slice(at, at + 2), 16);
    const channel = (at) => Math.round(part(low, at) + (part(high, at) - part(low, at)) * share);
    return `rgb(${channel(1)},${channel(3)},${channel(5)})`;
  }

  function colour(name) {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    return text.length === 4 ? `#${text[1]}${text[1]}${text[2]}${text[2]}${text[3]}${text[3]}` : text;
  }

  function drawHeat() {
    const canvas = byId("heat");
    const context = canvas.getContext("2d");
    const names = frame.servers.map((server) => server.name);
    const isDepth = frame.servers.some((server) => server.depth !== null);
    setText(byId("heat-measure"), isDepth ? "requests that wait" : "time that requests wait");
    let most = 0;
    for (const column of history) {
      for (const value of Object.values(column.values)) if (value > most) most = value;
    }
    const [low, high, unknown, mark] = ["--low", "--high", "--unknown", "--mark"].map(colour);
    context.fillStyle = unknown;
    context.fillRect(0, 0, canvas.width, canvas.height);
    const width = canvas.width / HISTORY_MAX;
    // Of more servers than the picture has lines, some share one: the worst of them is shown.
    const lines = Math.min(names.length, canvas.height);
    const height = canvas.height / Math.max(lines, 1);
    const steps = Array.from({ length: 33 }, (_, step) => mixed(low, high, step / 32));
    history.forEach((column, index) => {
      const left = Math.floor((HISTORY_MAX - history.length + index) * width);
      const right = Math.floor((HISTORY_MAX - history.length + index + 1) * width);
      for (let line = 0; line < lines; line += 1) {
        const first = Math.floor((line * names.length) / lines);
        const last = Math.floor(((line + 1) * names.length) / lines);
        let value = null;
        for (let at = first; at < last; at += 1) {
          const next = column.values[names[at]];
          if (next !== null && next !== undefined && (value === null || next > value)) value = next;
        }
        if (value === null) continue;
        context.fillStyle = steps[most > 0 ? Math.round((value / most) * 32) : 0];
        context.fillRect(left, Math.floor(line * height), right - left, Math.ceil(height));
      }
    });
    if (chosen !== null) {
      const at = Math.floor((names.indexOf(chosen) * lines) / Math.max(names.length, 1));
      context.strokeStyle = mark;
      context.strokeRect(0.5, Math.floor(at * height) + 0.5, canvas.width - 1, Math.max(height - 1, 1));
    }
    const seconds = history.length > 1 ? history[history.length - 1].time - history[0].time : 0;
    setText(byId("heat-span"), `The last ${Math.round(seconds)} s, newest on the right.`);
    const shown = isDepth ? number(most) : time(most);
    setText(byId("heat-most"), `Darkest, or brightest on a dark page: ${shown}. Grey: not known.`);
  }

  function drawList(list, items, words) {
    while (list.children.length > Math.max(items.length, 1)) list.lastChild.remove();
    const texts = items.length === 0 ? [[words, ""]] : items;
    texts.forEach(([strong, rest], index) => {
      let item = list.children[index];
      if (!item) {
        item = document.createElement("li");
        item.append(document.createElement("b"), document.createElement("span"));
        list.append(item);
      }
      setText(item.children[0], items.length === 0 ? "" : strong);
      setText(item.children[1], items.length === 0 ? words : rest);
    });
  }

  function draw() {
    if (frame === null) return;
    setText(byId("time"), frame.utc);
    const sum = (key) => frame.servers.reduce((all, server) => all + (server[key] || 0), 0);
    const silent = frame.servers.filter((server) => server.state !== "up").length;
    const count = `${frame.servers.length} servers${silent > 0 ? `, ${silent} of them silent` : ""}`;
    const rates = `read ${rate(sum("read"))}, written ${rate(sum("written"))}`;
    setText(byId("sums"), `${count}: ${number(sum("requests"))} requests/s, ${rates}`);
    drawTable();
    drawHeat();
    const hints = frame.advice.map((hint) => [`${hint.rule}: `, `${hint.words}. ${hint.change}.`]);
    drawList(byId("advice"), hints, "No rule has anything to say.");
    drawList(byId("jobs"), frame.jobs.map((job) => {
      const who = [job.name, job.user].filter((text) => text !== null).join(", ");
      const done = job.read === null ? "" : `: read ${rate(job.read)}, written ${rate(job.written)}`;
      return [job.id, `${who ? ` (${who})` : ""}${done}`];
    }), "None is known: servers of Tabane do not count by job yet.");
    drawList(byId("events"), [...frame.events].reverse().map((event) => ["", event.words]), "None.");
    const server = frame.servers.find((one) => one.name === chosen);
    byId("one").hidden = !server;
    if (server) {
      setText(byId("one-head"), `One server: ${server.name}`);
      const values = history.map((column) => column.values[chosen]);
      const seen = values.filter((value) => value !== null && value !== undefined);
      const show = server.depth === null ? time : number;
      const span = () => `from ${show(Math.min(...seen))} to ${show(Math.max(...seen))} waiting`;
      const words = seen.length > 0 ? span() : "nothing is known of its waiting";
      const used = server.used === null ? "" : `, ${percent(server.used)} of its space used`;
      setText(byId("one-words"), `In the time of the picture ${words}${used}.`);
    }
  }

  function choose(name) {
    chosen = chosen === name ? null : name;
    draw();
  }

  function move(step) {
    if (frame === null || frame.servers.length === 0) return;
    const names = sorted().map((server) => server.name);
    const at = names.indexOf(chosen);
    const next = at < 0 ? (step > 0 ? 0 : names.length - 1) : Math.min(Math.max(at + step, 0), names.length - 1);
    chosen = names[next];
    draw();
    rowOf(chosen).scrollIntoView({ block: "nearest" });
  }

  function pause() {
    paused = !paused;
    byId("pause").setAttribute("aria-pressed", String(paused));
    setText(byId("state"), paused ? "paused" : "");
    if (!paused && waiting !== null) take(waiting);
  }

  let waiting = null;
  function take(next) {
    frame = next;
    waiting = null;
    draw();
  }

  function turn() {
    turned = !turned;
    draw();
  }

  function nextSort() {
    sortColumn = (sortColumn + 1) % columns.length;
    turned = false;
    draw();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const onButton = event.target instanceof HTMLButtonElement;
    const keys = {
      s: nextSort, r: turn, ArrowDown: () => move(1), ArrowUp: () => move(-1),
      Escape: () => { chosen = null; draw(); },
    };
    // A button that has the focus is pressed by the space bar.
    if (!onButton) keys[" "] = pause;
    const action = keys[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });
  byId("pause").addEventListener("click", pause);
  byId("sort").addEventListener("click", nextSort);
  byId("turn").addEventListener("click", turn);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  makeHeads();

  const source = new EventSource(`events?token=${encodeURIComponent(token)}`);
  source.addEventListener("history", (event) => {
    history = JSON.parse(event.data).columns;
    // Its last column comes again with its frame.
    history.pop();
  });
  source.addEventListener("message", (event) => {
    const next = JSON.parse(event.data);
    const values = Object.fromEntries(next.servers.map((server) => [server.name, burden(server)]));
    history.push({ time: next.time, values });
    if (history.length > HISTORY_MAX) history.shift();
    if (!paused) {
      setText(byId("state"), "");
      take(next);
    } else {
      waiting = next;
    }
  });
  source.addEventListener("error", () => setText(byId("state"), "the connection is gone; it is tried again"));
})();
