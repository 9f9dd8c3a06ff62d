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
  let paused = false;
  let sortColumn = 0;
  let turned = false;
  let chosen = null;

  // What was seen of waiting: for each time a line of numbers, one for each server that was ever named, in a ring. It
  // has its room from the start, so that hours of it take no more than the first minute.
  const history = { places: new Map(), room: 0, values: new Float32Array(0), times: [], next: 0 };

  function makeRoom(count) {
    if (count <= history.room) return;
    const room = Math.max(16, 2 ** Math.ceil(Math.log2(count)));
    const values = new Float32Array(HISTORY_MAX * room).fill(NaN);
    for (let line = 0; line < HISTORY_MAX; line += 1) {
      values.set(history.values.subarray(line * history.room, (line + 1) * history.room), line * room);
    }
    [history.room, history.values] = [room, values];
  }

  function placeOf(name) {
    let place = history.places.get(name);
    if (place === undefined) {
      place = history.places.size;
      history.places.set(name, place);
      makeRoom(place + 1);
    }
    return place;
  }

  function note(at, named) {
    const values = named.map(([name, value]) => [placeOf(name), value]);
    const start = history.next * history.room;
    history.values.fill(NaN, start, start + history.room);
    for (const [place, value] of values) {
      if (value !== null && value !== undefined) history.values[start + place] = value;
    }
    history.times.push(at);
    if (history.times.length > HISTORY_MAX) history.times.shift();
    history.next = (history.next + 1) % HISTORY_MAX;
  }

  // The line of the ring with the time of this index.
  function lineOf(index) {
    return (history.next - history.times.length + index + 2 * HISTORY_MAX) % HISTORY_MAX;
  }

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

  // Rows stand where they are, all of one height; which server is in which changes. Of those out of sight nothing is
  // written until they come into it.
  const rows = [];
  let order = [];
  let longestName = 0;

  function addRow() {
    const place = rows.length;
    const row = document.createElement("tr");
    const texts = columns.map(() => {
      const cell = document.createElement("td");
      const text = document.createTextNode("");
      cell.append(text);
      row.append(cell);
      return text;
    });
    row.addEventListener("click", () => choose(order[place].name));
    byId("rows").append(row);
    rows.push({ row, texts, state: null, isChosen: null });
  }

  function writeRow(place) {
    const [server, shown] = [order[place], rows[place]];
    columns.forEach(([key, , show], index) => {
      const value = server[key];
      const words = value === null ? "-" : show(value);
      if (shown.texts[index].data !== words) shown.texts[index].data = words;
    });
    if (shown.state !== server.state) {
      shown.state = server.state;
      shown.row.classList.toggle("silent", server.state !== "up");
    }
    const isChosen = server.name === chosen;
    if (shown.isChosen !== isChosen) {
      shown.isChosen = isChosen;
      shown.row.setAttribute("aria-selected", String(isChosen));
    }
  }

  function writeRowsInSight() {
    if (rows.length === 0 || order.length !== rows.length) return;
    const { top, height } = rows[0].row.getBoundingClientRect();
    const first = Math.max(Math.floor(-top / height) - 8, 0);
    const end = Math.min(Math.ceil((innerHeight - top) / height) + 8, rows.length);
    for (let place = first; place < end; place += 1) writeRow(place);
  }

  function drawTable() {
    order = sorted();
    while (rows.length > order.length) rows.pop().row.remove();
    const old = rows.length;
    while (rows.length < order.length) addRow();
    for (let place = old; place < rows.length; place += 1) writeRow(place);
    const longest = order.reduce((most, server) => Math.max(most, server.name.length), 6);
    const heads = [...byId("heads").children];
    if (longest !== longestName) {
      longestName = longest;
      heads[0].style.width = `${Math.min(longest, 40) + 3}ch`;
    }
    writeRowsInSight();
    heads.forEach((head, index) => {
      const direction = turned ? "ascending" : "descending";
      if (index !== sortColumn) head.removeAttribute("aria-sort");
      else if (head.getAttribute("aria-sort") !== direction) head.setAttribute("aria-sort", direction);
    });
  }

  const burden = (server) => (server.depth === null ? server.wait : server.depth);

  function colour(name) {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const whole = text.length === 4 ? `#${text[1]}${text[1]}${text[2]}${text[2]}${text[3]}${text[3]}` : text;
    return [1, 3, 5].map((at) => parseInt(whole.slice(at, at + 2), 16));
  }

  // One point for each time and line, which the page's picture shows larger.
  const small = document.createElement("canvas");

  function drawHeat() {
    const canvas = byId("heat");
    const context = canvas.getContext("2d");
    const places = frame.servers.map((server) => placeOf(server.name));
    const isDepth = frame.servers.some((server) => server.depth !== null);
    setText(byId("heat-measure"), isDepth ? "requests that wait" : "time that requests wait");
    const [low, high, unknown, mark] = ["--low", "--high", "--unknown", "--mark"].map(colour);
    const count = history.times.length;
    // Of more servers than the picture has lines, some share one: the worst of them is shown.
    const lines = Math.max(Math.min(places.length, canvas.height), 1);
    const height = canvas.height / lines;
    const worst = new Float32Array(lines * HISTORY_MAX).fill(NaN);
    let most = 0;
    for (let index = 0; index < count; index += 1) {
      const start = lineOf(index) * history.room;
      const column = HISTORY_MAX - count + index;
      for (let at = 0; at < places.length; at += 1) {
        const value = history.values[start + places[at]];
        const point = Math.floor((at * lines) / places.length) * HISTORY_MAX + column;
        // Nothing is more than what is not known.
        if (value > worst[point] || Number.isNaN(worst[point])) worst[point] = value;
        if (value > most) most = value;
      }
    }
    if (small.width !== HISTORY_MAX || small.height !== lines) [small.width, small.height] = [HISTORY_MAX, lines];
    const points = new ImageData(HISTORY_MAX, lines);
    for (let point = 0; point < worst.length; point += 1) {
      const share = most > 0 ? worst[point] / most : 0;
      for (let channel = 0; channel < 3; channel += 1) {
        const shade = low[channel] + (high[channel] - low[channel]) * share;
        points.data[4 * point + channel] = Number.isNaN(worst[point]) ? unknown[channel] : shade;
      }
      points.data[4 * point + 3] = 255;
    }
    small.getContext("2d").putImageData(points, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
    const at = frame.servers.findIndex((server) => server.name === chosen);
    if (at >= 0) {
      const line = Math.floor((at * lines) / places.length);
      context.strokeStyle = `rgb(${mark.join()})`;
      context.strokeRect(0.5, Math.floor(line * height) + 0.5, canvas.width - 1, Math.max(height - 1, 1));
    }
    const seconds = count > 1 ? history.times[count - 1] - history.times[0] : 0;
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
      const place = placeOf(chosen);
      const values = history.times.map((_, index) => history.values[lineOf(index) * history.room + place]);
      const seen = values.filter((value) => !Number.isNaN(value));
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
    rows[names.indexOf(chosen)].row.scrollIntoView({ block: "nearest" });
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
  addEventListener("scroll", writeRowsInSight, { passive: true });
  addEventListener("resize", writeRowsInSight);
  makeHeads();

  const source = new EventSource(`events?token=${encodeURIComponent(token)}`);
  source.addEventListener("history", (event) => {
    [history.times, history.next] = [[], 0];
    // Its last column comes again with its frame.
    for (const column of JSON.parse(event.data).columns.slice(0, -1)) note(column.time, Object.entries(column.values));
  });
  source.addEventListener("message", (event) => {
    const next = JSON.parse(event.data);
    note(next.time, next.servers.map((server) => [server.name, burden(server)]));
    if (!paused) {
      setText(byId("state"), "");
      take(next);
    } else {
      waiting = next;
    }
  });
  source.addEventListener("error", () => setText(byId("state"), "the connection is gone; it is tried again"));
})();
