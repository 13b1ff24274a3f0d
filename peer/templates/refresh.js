// Fetches this page again and shows its new content; what the reader has opened stays open.
addEventListener("DOMContentLoaded", async () => {
  const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
  for (;;) {
    await pause(3000);
    if (document.hidden) continue;
    const stale = document.getElementById("stale");
    try {
      const answer = await fetch(location.pathname, { cache: "no-store" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      if (!fresh) throw new Error(answer.statusText);
      document.querySelectorAll("details[id]").forEach(old => {
        const same = fresh.querySelector(`details[id="${CSS.escape(old.id)}"]`);
        if (same) same.open = old.open;
      });
      document.querySelector("main").replaceWith(document.adoptNode(fresh));
      stale.hidden = true;
    } catch {
      stale.hidden = false;
    }
  }
});
