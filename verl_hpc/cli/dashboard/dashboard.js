// Asks for each part of the page again, and puts it in place if it has changed.
"use strict";

const EVERY_MS = 2000;
const parts = [...document.querySelectorAll("[data-src]")];
const connection = document.getElementById("connection");

async function refresh(part) {
  const answer = await fetch(part.dataset.src, { cache: "no-cache" });
  if (!answer.ok) throw new Error(answer.status === 403 ? "another dashboard answers" : "error");
  const text = await answer.text();
  if (text !== part.shown) {
    const closed = [...part.querySelectorAll("details")].map((item) => !item.open);
    const chosen = [...part.querySelectorAll("input:checked")].map((item) => item.value);
    part.innerHTML = text; // made by our own server, which escapes what runs say
    part.querySelectorAll("details").forEach((item, i) => { item.open = !closed[i]; });
    part.querySelectorAll("input").forEach((item) => { item.checked = chosen.includes(item.value); });
    part.shown = text;
    part.querySelectorAll(".log").forEach((log) => { log.scrollTop = log.scrollHeight; });
  }
}

async function refreshAll() {
  if (!document.hidden) {
    try {
      await Promise.all(parts.map(refresh));
      connection.textContent = "page up to date";
      connection.className = "";
    } catch (error) {
      connection.textContent = "no answer: has the dashboard ended?";
      connection.className = "lost";
    }
  }
  setTimeout(refreshAll, EVERY_MS);
}

refreshAll();
