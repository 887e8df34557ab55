"use strict";
// Fetches the page anew and takes over what has changed, so that scroll position, focus and
// selection stay. Without it the page reloads itself.
(() => {
  const PERIOD = 2000;
  const PATIENCE = 10000;
  const note = document.getElementById("link");
  let since = null;

  const same = (one, other) =>
    one.nodeType === other.nodeType && one.nodeName === other.nodeName;

  function takeOver(old, fresh) {
    if (!same(old, fresh)) {
      old.replaceWith(fresh);
    } else if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
    } else {
      takeOverAttributes(old, fresh);
      takeOverChildren(old, fresh);
    }
  }

  function takeOverAttributes(old, fresh) {
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    }
  }

  function takeOverChildren(old, fresh) {
    const before = [...old.childNodes];
    const after = [...fresh.childNodes];
    after.forEach((node, at) => {
      if (at < before.length) takeOver(before[at], node);
      else old.append(node);
    });
    before.slice(after.length).forEach((node) => node.remove());
  }

  async function refresh() {
    const options = { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) };
    const reply = await fetch(location.href, options);
    if (!reply.ok) throw new Error(`the exporter answers ${reply.status}`);
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    if (page.documentElement.dataset.build !== document.documentElement.dataset.build) {
      location.reload(); // another version of the exporter
      return;
    }
    document.title = page.title;
    for (const part of ["header", "main", "footer"]) {
      takeOver(document.querySelector(part), page.querySelector(part));
    }
  }

  function tell(reachable) {
    document.body.classList.toggle("stale", !reachable);
    if (reachable) {
      since = null;
      note.hidden = true;
    } else if (since === null) {
      since = new Date();
      note.textContent =
        `The exporter has not been reachable since ${since.toLocaleTimeString()}; ` +
        "what is below is from before. Trying again.";
      note.hidden = false;
    }
  }

  async function turn() {
    if (!document.hidden) {
      try {
        await refresh();
        tell(true);
      } catch {
        tell(false);
      }
    }
    setTimeout(turn, PERIOD);
  }

  setTimeout(turn, PERIOD);
})();
