// Behaviour of the messages pages: a virtual list that reads on, the live list, and copy buttons.
// Record content is only ever set as text.
(() => {
  "use strict";
  const find = (selector) => document.querySelector(selector);

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = !navigator.clipboard;
    button.addEventListener("click", async () => {
      try {
        const response = await fetch(button.dataset.copy);
        if (!response.ok) throw new Error(response.statusText);
        await navigator.clipboard.writeText(await response.text());
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not copied";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
  }

  const section = find("[data-messages]");
  if (!section) return;
  const list = section.querySelector("[data-rows]");
  const state = section.querySelector("[data-state]");
  const meter = section.querySelector("progress");
  const stop = section.querySelector("[data-stop]");
  const pause = section.querySelector("[data-pause]");
  const more = section.querySelector("[data-more]");
  const live = find("[data-live]");
  const KEPT = 100000;
  const BEYOND = 30;
  const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

  // Rows: elements of the page, or data that become elements when they are visible
  let rows = Array.from(list.children);
  const element = (row) => {
    if (row instanceof Element) return row;
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.className = "record";
    link.href = `${section.dataset.record}/${row.partition}/${row.offset}${section.dataset.formats}`;
    const cell = (name, text, isolated) => {
      const span = document.createElement("span");
      span.className = name;
      if (isolated) {
        const inner = document.createElement("bdi");
        inner.textContent = text;
        span.append(inner);
      } else {
        span.textContent = text;
      }
      link.append(span);
    };
    cell("place", `${row.partition} / ${row.offset}`);
    cell("time", row.time);
    cell(row.key_kind === "null" ? "key none" : "key", row.key, true);
    cell(row.value_kind === "null" ? "value none" : "value", row.value, true);
    cell("bytes", row.size);
    item.append(link);
    return item;
  };
  let drawn = [-1, -1];
  let height = 0;
  const draw = (again) => {
    if (again) drawn = [-1, -1];
    const first = list.firstElementChild;
    height = first ? first.getBoundingClientRect().height : height || 39;
    const top = list.getBoundingClientRect().top;
    const from = Math.max(0, Math.min(rows.length, Math.floor(-top / height)) - BEYOND);
    const to = Math.min(rows.length, from + Math.ceil(innerHeight / height) + 2 * BEYOND);
    if (from === drawn[0] && to === drawn[1]) return;
    const focused = document.activeElement?.closest?.("[data-rows] a")?.href;
    drawn = [from, to];
    list.replaceChildren(...rows.slice(from, to).map(element));
    list.style.setProperty("padding-top", `${from * height}px`);
    list.style.setProperty("padding-bottom", `${(rows.length - to) * height}px`);
    if (focused) Array.from(list.querySelectorAll("a")).find((link) => link.href === focused)?.focus({ preventScroll: true });
  };
  let waiting = false;
  const soon = (again) => {
    if (waiting && !again) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw(again);
      readOn();
    });
  };
  addEventListener("scroll", () => soon(false), { passive: true });
  addEventListener("resize", () => soon(true));

  // Reading on: the same list, continued from its cursor
  let next = more ? section.dataset.messages : "";
  let reading = null;
  const words = { found: "", end: "; this is the end", records: " until the limit of records", bytes: " until the limit of bytes", seconds: " until the time limit" };
  const say = (progress, done) => {
    const filtered = progress.found < progress.records;
    const searched = filtered ? `, ${count(searchedRecords, "record")} searched` : "";
    state.textContent = `${count(rows.length, "record")}${searched}${done ? words[done] : " …"}${done ? "." : ""}`;
    meter.value = progress.share;
  };
  let searchedRecords = 0;
  const read = async () => {
    reading = new AbortController();
    const before = searchedRecords;
    meter.hidden = stop.hidden = false;
    let stopped = "";
    try {
      const response = await fetch(next, { signal: reading.signal });
      if (!response.ok) throw new Error(`the broker responded with status ${response.status}`);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          const body = JSON.parse(line);
          if (body.error) throw new Error(body.error);
          if (body.rows) {
            for (const row of body.rows) rows.push(row);
            searchedRecords = before + body.progress.records;
            say(body.progress, "");
          }
          if (body.done) {
            stopped = body.done.stopped;
            searchedRecords = before + body.done.records;
            const url = new URL(next, location.href);
            url.searchParams.set("cursor", body.cursor);
            next = stopped === "end" || rows.length >= KEPT ? "" : url.pathname + url.search;
            say(body.done, stopped);
          }
        }
        soon(true);
      }
    } catch (error) {
      next = "";
      state.textContent = error.name === "AbortError" ? `Stopped; ${count(rows.length, "record")} found.` : `The search failed: ${error.message}`;
    }
    reading = null;
    meter.hidden = stop.hidden = true;
    more?.parentElement.toggleAttribute("hidden", Boolean(next) || stopped === "end");
    section.dataset.done = next ? "" : "true";
    soon(true);
  };
  const readOn = () => {
    if (reading || !next || tail) return;
    if (list.getBoundingClientRect().bottom < 2 * innerHeight) read();
  };
  stop.addEventListener("click", () => reading?.abort());
  addEventListener("pagehide", () => reading?.abort());

  // Live list
  let tail = null;
  let cursor = "";
  let received = 0;
  let left = 0;
  const SHOWN = 1000;
  const connect = () => {
    const url = new URL(section.dataset.liveUrl, location.href);
    if (cursor) url.searchParams.set("cursor", cursor);
    const source = new EventSource(url);
    source.addEventListener("records", (event) => {
      cursor = event.lastEventId;
      const body = JSON.parse(event.data);
      received += body.rows.length;
      left += body.left_out;
      rows = body.rows.concat(rows).slice(0, SHOWN);
      const missed = left ? ` ${count(left, "record")} left out, because they came too fast.` : "";
      state.textContent = `Live: ${count(received, "record")} received.${missed}`;
      soon(true);
    });
    source.addEventListener("failed", (event) => {
      state.textContent = `The live list ended: ${JSON.parse(event.data)}`;
      source.close();
    });
    source.addEventListener("error", () => {
      state.textContent = "No connection at the moment. The list connects again by itself.";
    });
    state.textContent = "Live: waiting for records …";
    return source;
  };
  if (live) {
    live.hidden = false;
    live.addEventListener("click", () => {
      if (tail) {
        location.assign(location.href);
        return;
      }
      reading?.abort();
      next = "";
      rows = [];
      more?.parentElement.setAttribute("hidden", "");
      live.setAttribute("aria-pressed", "true");
      pause.hidden = false;
      tail = connect();
      soon(true);
    });
    pause.addEventListener("click", () => {
      if (tail.readyState === EventSource.CLOSED) {
        pause.textContent = "Pause";
        tail = connect();
      } else {
        tail.close();
        pause.textContent = "Continue";
        state.textContent = `Paused; ${count(received, "record")} received.`;
      }
    });
  }
  if (more) more.parentElement.hidden = true;
  if (["records", "bytes", "seconds"].includes(section.dataset.stopped)) read();
  else soon(true);
})();
