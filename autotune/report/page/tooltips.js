// A tooltip for elements with data-tip, at the pointer or at the focus.

const tooltip = document.getElementById("tooltip");

function showTip(words, x, y) {
  tooltip.textContent = words;
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const left = Math.max(4, Math.min(x + 14, innerWidth - width - 4));
  const top = y + 18 + height > innerHeight ? y - height - 10 : y + 18;
  tooltip.style.transform = `translate(${left}px, ${Math.max(4, top)}px)`;
}

function hideTip() {
  tooltip.hidden = true;
}

document.addEventListener("pointermove", event => {
  const element = event.target.closest("[data-tip]");
  if (element) showTip(element.dataset.tip, event.clientX, event.clientY);
  else if (!event.target.closest("[data-own-tip]")) hideTip();
});
document.addEventListener("focusin", event => {
  const element = event.target.closest("[data-tip]");
  if (!element) return hideTip();
  const box = element.getBoundingClientRect();
  showTip(element.dataset.tip, box.right, box.bottom);
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape") hideTip();
});
document.addEventListener("scroll", hideTip, { passive: true });
