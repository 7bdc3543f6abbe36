// Replays elements with data-t (appear at that second), data-from and data-to (visible between) and data-until (a clock).
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

function copy(button) {
  const text = button.closest(".mm-code").querySelector("pre").textContent;
  const done = () => {
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy as Python"; }, 2000);
  };
  const byHand = () => { // without the clipboard of a secure page
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    done();
  };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, byHand);
  else byHand();
}

element.addEventListener("click", (event) => {
  const button = event.target.closest(".mm-copy");
  if (button) copy(button);
  if (!event.target.closest(".mm-replay")) return;
  play(event.target.closest("[data-replay]"));
});

watch("value", () => {
  const root = element.querySelector("[data-replay]");
  if (root && !still.matches) play(root);
});
