"use strict";
// Fetches the page and applies only the changes, which keeps scroll position, focus and selection.
// Without this script the page reloads itself.
(() => {
  const PERIOD = 2000; // ms
  const PATIENCE = 10000; // ms
  const note = document.getElementById("link");
  let since = null;

  // A node's first class names its part of the page, unless it is a colour (c-*), which changes.
  const part = (node) => (node.classList?.[0] ?? "").replace(/^c-.*/, "");
  const same = (one, other) =>
    one.nodeName === other.nodeName && part(one) === part(other) && one.dataset?.key === other.dataset?.key;

  function takeOver(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
    } else {
      takeOverAttributes(old, fresh);
      takeOverChildren(old, fresh);
    }
  }

  function takeOverAttributes(old, fresh) {
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value && !isOpen(old, name)) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !isOpen(old, name)) old.removeAttribute(name);
    }
  }

  // Whether details are open is up to the reader.
  function isOpen(node, name) {
    return name === "open" && node.nodeName === "DETAILS";
  }

  function closed(node) {
    for (const details of node.querySelectorAll?.("details") ?? []) details.open = false;
    return node;
  }

  // When a part appears or disappears, those after it keep their nodes: one may have the focus.
  function takeOverChildren(old, fresh) {
    let next = old.firstChild;
    const keyed = new Map([...old.children].map((node) => [node.dataset.key, node]));
    for (const node of [...fresh.childNodes]) {
      const known = node.dataset?.key && keyed.get(node.dataset.key);
      if (known && known !== next) { // a GPU that has another place now
        old.insertBefore(known, next);
        takeOver(known, node);
        continue;
      }
      let match = next;
      while (match && !same(match, node)) match = match.nextSibling;
      if (match) {
        removeFrom(next, match);
        next = match.nextSibling;
        takeOver(match, node);
      } else {
        old.insertBefore(closed(node), next);
      }
    }
    removeFrom(next, null);
  }

  function removeFrom(node, end) {
    while (node !== end) {
      const after = node.nextSibling;
      node.remove();
      node = after;
    }
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
    keepingPlace(() => {
      for (const part of ["header", "main", "footer"]) {
        takeOver(document.querySelector(part), page.querySelector(part));
      }
    });
  }

  // A card that changes its rank takes the reader along; a moved node loses the focus.
  function keepingPlace(change) {
    const focused = document.activeElement;
    const top = (node) => node.getBoundingClientRect().top;
    const read = [...document.querySelectorAll("main [data-key], main section")]
      .filter((part) => part.dataset.key || !part.querySelector("[data-key]"))
      .find((part) => part.getBoundingClientRect().bottom > 0);
    const place = read && top(read);
    change();
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    if (read?.isConnected && scrollY > 0) scrollBy(0, top(read) - place);
  }

  // Buttons ask the exporter for something that a later page shows.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-post]");
    if (!button) return;
    button.disabled = true;
    try {
      await fetch(button.dataset.post, { method: "POST", signal: AbortSignal.timeout(PATIENCE) });
    } catch {
      tell(false);
    }
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy);
    let copied = true;
    try {
      await navigator.clipboard.writeText(text.textContent);
    } catch { // allowed over HTTPS only
      text.hidden = false;
      getSelection().selectAllChildren(text);
      copied = document.execCommand("copy");
      getSelection().removeAllRanges();
      text.hidden = true;
    }
    button.textContent = copied ? "Copied" : "The browser refuses"; // until the next refresh
  });

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

  document.documentElement.classList.add("live"); // buttons work
  document.documentElement.style.overflowAnchor = "none"; // see keepingPlace
  closed(document);
  setTimeout(turn, PERIOD);
})();
