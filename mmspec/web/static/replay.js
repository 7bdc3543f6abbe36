// Plays what carries data-t (appears at that second), data-from and data-to (shown between), and data-until (a clock).
const still = matchMedia("(prefers-reduced-motion: reduce)");
let frame = 0;

function show(root, now) {
  for (const node of root.querySelectorAll("[data-t]")) node.classList.toggle("mm-later", +node.dataset.t > now);
  for (const node of root.querySelectorAll("[data-from]"))
    node.toggleAttribute("hidden", !(+node.dataset.from <= now && now < +node.dataset.to));
  for (const node of root.querySelectorAll(".mm-clock"))
    node.textContent = Math.min(now, +node.dataset.until).toFixed(2) + " s";
  const bar = root.querySelector(".mm-time");
  if (bar) bar.value = now;
}

function play(root) {
  cancelAnimationFrame(frame);
  const end = +root.dataset.replay;
  const began = performance.now();
  root.dataset.playing = "yes";
  const tick = () => {
    if (!root.isConnected) return;
    const pace = +(root.querySelector(".mm-pace")?.value || 1);
    const now = ((performance.now() - began) / 1000) * pace;
    show(root, Math.min(now, end));
    if (now < end) frame = requestAnimationFrame(tick);
    else root.dataset.playing = "no";
  };
  tick();
}

element.addEventListener("click", (event) => {
  if (!event.target.closest(".mm-replay")) return;
  play(event.target.closest("[data-replay]"));
});

watch("value", () => {
  const root = element.querySelector("[data-replay]");
  if (root && !still.matches) play(root);
});
