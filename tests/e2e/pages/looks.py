"""What can be checked of a page's looks: nothing sticks out, nothing is empty, words have contrast."""

_WIDER = """() => {
  const wide = document.documentElement.clientWidth;
  const held = (node) => { // inside something that scrolls or cuts by itself
    for (let at = node.parentElement; at && at !== document.body; at = at.parentElement)
      if (getComputedStyle(at).overflowX !== "visible") return true;
    return false;
  };
  const out = Array.from(document.querySelectorAll("body *")).filter((node) => {
    if (node.closest("#js-plotly-tester")) return false; // plotly measures text there, out of sight
    const box = node.getBoundingClientRect();
    return box.width > 0 && (box.right > wide + 1 || box.left < -1) && !held(node);
  });
  return [document.documentElement.scrollWidth - wide, out.slice(0, 5).map((node) => node.outerHTML.slice(0, 120))];
}"""
_EMPTY = """() => Array.from(document.querySelectorAll("section, figure, .table, .facts > div"))
  .filter((node) => !node.closest("[hidden]") && (node.getBoundingClientRect().height < 20 || !node.textContent.trim()))
  .map((node) => node.outerHTML.slice(0, 120))"""
_UNDRAWN = """() => Array.from(document.querySelectorAll(".plot")).filter((plot) =>
  !plot.querySelector(".scatterlayer path, .barlayer path, .boxlayer path, .heatmaplayer image, .scatterlayer .point"))
  .map((plot) => plot.getAttribute("aria-label"))"""
_CUT = """() => Array.from(document.querySelectorAll(".plot")).flatMap((plot) => {
  const frame = plot.getBoundingClientRect();
  return Array.from(plot.querySelectorAll("svg.main-svg text")).filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width > 0 && text.textContent && (box.left < frame.left - 2 || box.right > frame.right + 2 ||
      box.top < frame.top - 2 || box.bottom > frame.bottom + 2);
  }).map((text) => plot.getAttribute("aria-label") + ": " + text.textContent);
})"""
_OVERLAPPING = """() => Array.from(document.querySelectorAll(".plot")).flatMap((plot) => {
  const found = [];
  const words = ".xtick text, .ytick text, .x2tick text, .y2tick text, .legendtext, .annotation-text, " +
    ".g-xtitle text, .g-ytitle text";
  const texts = Array.from(plot.querySelectorAll(words))
    .map((text) => [text.textContent, text.getBoundingClientRect(), text])
    .filter(([, box, text]) => box.width > 0 && !/rotate/.test(text.getAttribute("transform") || ""));
  texts.forEach(([words, a], at) => texts.slice(at + 1).forEach(([others, b]) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 2 && down > 4) found.push(`${plot.getAttribute("aria-label")}: "${words}" on "${others}"`);
  }));
  return found;
})"""
_FAINT = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((part) => {
      const share = colour.startsWith("color(") ? part : part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$|^transparent$/.test(colour) && !/rgba\\(.*, 0?\\.\\d+\\)/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = [];
  const words = "h1, h2, p, li, a, dt, dd, th, td, figcaption, button, label, output, footer, svg text";
  const others = "#js-plotly-tester, .disabled, .hoverlayer, .dtcc-dropdown, .modebar, .bartext";
  for (const node of document.querySelectorAll(words)) {
    const box = node.getBoundingClientRect();
    if (!box.width || !node.textContent.trim() || node.closest(others)) continue;
    const inSvg = node instanceof SVGElement;
    const style = getComputedStyle(node);
    const ink = light(inSvg ? style.fill : style.color), paper = light(behind(inSvg ? node.closest(".plot") : node));
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (contrast < 4.5) faint.push(`${contrast.toFixed(1)}: ${node.tagName} ${node.textContent.trim().slice(0, 40)}`);
  }
  return faint.slice(0, 5);
}"""


_DRESSED = "dark => document.documentElement.classList.contains('dark') === dark"
SIZES = {"wide": (1280, 900), "narrow": (375, 800)}


def flaws(page):
    """Return what is wrong with how a page looks, wide and narrow, light and dark; nothing where all is well."""
    found = []
    for size, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_function("width => document.documentElement.clientWidth <= width", arg=width)
        page.wait_for_timeout(300)  # plotly draws anew a moment after the window has changed
        found += [f"{size}: {flaw}" for flaw in _flaws(page)]
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_function(_DRESSED, arg=scheme == "dark")
            found += [f"{size}, {scheme}: faint: {one}" for one in page.evaluate(_FAINT)]
    return found


def _flaws(page):
    more, wider = page.evaluate(_WIDER)
    found = [f"the page scrolls sideways by {more} pixels"] if more > 0 else []
    found += [f"sticks out: {node}" for node in wider]
    for what, script in (
        ("empty", _EMPTY), ("not drawn", _UNDRAWN), ("cut off", _CUT), ("overlapping", _OVERLAPPING),
    ):  # fmt: skip
        found += [f"{what}: {one}" for one in page.evaluate(script)]
    return found
