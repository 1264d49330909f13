// The graph: the SVG that Graphviz laid out, zoomed and panned by its viewBox and marked by CSS classes.

class Ladder {
  /** `choose(tensor)` is called when a node is clicked or activated. */
  constructor(root, tensors, steps, language, choose) {
    this.root = root;
    this.tensors = tensors;
    this.steps = steps;
    this.choose = choose;
    this.language = language;
    this.nodes = new Map(); // tensor index -> the SVG groups (or buttons) that stand for it
    this.edges = [];
    this.marked = [];
    this.view = null;
  }

  /** Shows one drawing; without an SVG, a list. A box of the SVG has the class of every tensor that it shows. */
  show(drawing) {
    this.nodes.clear();
    this.edges = [];
    this.marked = [];
    this.root.querySelector(".drawing")?.remove();
    const element = drawing ? this.fromSvg(drawing) : this.fromList();
    this.root.prepend(element);
    if (this.svg) this.centre();
    this.fit();
  }

  fromSvg(drawing) {
    const parsed = new DOMParser().parseFromString(drawing, "image/svg+xml").documentElement;
    const svg = document.importNode(parsed, true);
    svg.classList.add("drawing");
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", this.language.text("ladder"));
    const shown = new Map(this.tensors.filter((tensor) => tensor.box).map((tensor) => [tensor.box, tensor]));
    const boxes = new Map(); // DOT id -> what its box shows
    const edges = [];
    for (const group of svg.querySelectorAll("g")) {
      const title = group.querySelector(":scope > title");
      title?.remove();
      if (group.classList.contains("cluster")) group.classList.add(title.textContent.replace("cluster_", ""));
      if (group.classList.contains("edge")) edges.push([group, title.textContent]);
      else if (group.classList.contains("node")) boxes.set(title.textContent, this.adoptNode(group, shown));
    }
    for (const [group, title] of edges) {
      const [tail, head] = title.split("->").map((end) => boxes.get(end.split(":")[0]) ?? []);
      this.edges.push({ group, ends: [tail, head] });
    }
    this.placeFolded();
    this.translate(svg);
    for (const link of svg.querySelectorAll("a")) link.replaceWith(...link.childNodes);
    this.home = svg.viewBox.baseVal.width ? [...svg.getAttribute("viewBox").split(/[\s,]+/).map(Number)] : [0, 0, 100, 100];
    this.svg = svg;
    this.listenToPointer(svg);
    return svg;
  }

  adoptNode(group, shown) {
    const members = [...group.classList].map((name) => shown.get(name)).filter(Boolean);
    if (!members.length) return [];
    const last = members.at(-1);
    group.classList.add(last.isBackward ? "lane-backward" : "lane-forward");
    group.setAttribute("role", "button");
    group.setAttribute("tabindex", "-1");
    group.setAttribute("aria-label", last.name);
    group.dataset.last = last.index;
    for (const member of members) this.nodes.set(member.index, [...(this.nodes.get(member.index) ?? []), group]);
    const activate = () => this.choose(last);
    group.addEventListener("click", () => { if (!this.dragged) activate(); });
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.stopPropagation(); activate(); }
    });
    return members.map((member) => member.index);
  }

  /** The few words of the drawing that are no names. */
  translate(svg) {
    for (const text of svg.querySelectorAll(".cluster.forward > text, .cluster.backward > text, .node text:not([font-weight])")) {
      const words = text.textContent.trim();
      const [, names, more] = /^(.*) and (\d+) more$/.exec(words) ?? [];
      const [, count, word] = /^(?:(\d+) )?([a-z ]+)$/.exec(words) ?? [];
      const key = more ? "drawing_more" : `drawing_${word?.replaceAll(" ", "_")}`;
      if (this.language.has(key)) text.textContent = this.language.text(key, { names, count: more ?? count });
    }
  }

  /** The font here may be narrower than the one that Graphviz measured: lines of one text go to the middle of their box. */
  centre() {
    for (const group of this.svg.querySelectorAll(".node")) {
      const texts = [...group.querySelectorAll("text")];
      const lines = new Set(texts.map((text) => text.getAttribute("y")));
      if (lines.size < texts.length) continue;
      const box = group.querySelector("path, polygon, ellipse").getBBox();
      for (const text of texts) {
        text.setAttribute("text-anchor", "middle");
        text.setAttribute("x", box.x + box.width / 2);
      }
    }
  }

  /** A value that is folded into the formula of its only reader has no box of its own: that reader's box stands for it. */
  placeFolded() {
    for (const step of [...this.steps].reverse()) {
      if (this.nodes.has(step.tensor)) continue;
      const reader = this.steps.find((other) => other.reads.includes(step.tensor) && this.nodes.has(other.tensor));
      if (reader) this.nodes.set(step.tensor, this.nodes.get(reader.tensor));
    }
  }

  /** The box of the collapsed module that hides a tensor, or null. */
  moduleBoxOf(index) { return this.nodes.get(index)?.find((group) => group.classList.contains("module")) ?? null; }

  fromList() { // no dot when the page was written: values left, their gradients right, on one row
    this.svg = null;
    const list = make("div", { class: "drawing list" });
    const button = (tensor, lane) => {
      if (!tensor) return make("span");
      const element = make("button", { type: "button", class: `${lane} role-${tensor.role}`, onclick: () => this.choose(tensor) }, tensor.name);
      this.nodes.set(tensor.index, [element]);
      return element;
    };
    for (const tensor of this.tensors) {
      if (tensor.isBackward || tensor.isInner) continue;
      list.append(button(tensor, "lane-forward"), button(this.tensors[tensor.grad], "lane-backward"));
    }
    return make("div", { class: "drawing listed" }, make("p", {}, this.language.text("noDrawing")), list);
  }

  /** current: tensor indices marked; lit: the operands; reached(index): whether time has come to it. */
  mark(current, lit, reached) {
    for (const element of this.marked) element.classList.remove("current", "lit");
    this.marked = [];
    const put = (element, name) => { element.classList.add(name); this.marked.push(element); };
    for (const [index, groups] of this.nodes) {
      for (const group of groups) {
        if (Number(group.dataset.last ?? index) === index) group.classList.toggle("ahead", !reached(index));
        if (current.has(index)) put(group, "current");
        else if (lit.has(index)) put(group, "lit");
      }
    }
    for (const { group, ends: [tail, head] } of this.edges) {
      group.classList.toggle("ahead", [tail, head].some((end) => end.length && !end.some(reached)));
      const into = (from, to) => from.some((i) => lit.has(i)) && to.some((i) => current.has(i));
      if (into(tail, head) || into(head, tail)) put(group, "lit");
    }
    this.keepVisible();
  }

  // ---- zoom and pan: `view` is [x, y, width, height] in the drawing's own units

  fit() {
    if (!this.svg) return;
    this.view = [...this.home];
    this.fitted = true;
    this.apply();
  }

  apply() { this.svg?.setAttribute("viewBox", this.view.map((n) => n.toFixed(2)).join(" ")); }

  zoom(factor, at = [this.view[0] + this.view[2] / 2, this.view[1] + this.view[3] / 2]) {
    if (!this.svg) return;
    const width = Math.max(this.home[2] / 40, Math.min(this.home[2] * 2, this.view[2] / factor));
    const real = this.view[2] / width;
    this.view = [at[0] - (at[0] - this.view[0]) / real, at[1] - (at[1] - this.view[1]) / real, width, this.view[3] / real];
    this.fitted = false;
    this.apply();
  }

  pan(dx, dy) {
    this.view[0] -= dx;
    this.view[1] -= dy;
    this.fitted = false;
    this.apply();
  }

  /** Screen to drawing. */
  locate(event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
    return [point.x, point.y];
  }

  listenToPointer(svg) {
    const pointers = new Map();
    const spread = () => {
      const [a, b] = [...pointers.values()];
      return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
    };
    svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(1.0015 ** -event.deltaY, this.locate(event));
    }, { passive: false });
    svg.addEventListener("pointerdown", (event) => { pointers.set(event.pointerId, event); this.dragged = false; });
    svg.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const moved = Math.hypot(event.clientX - before.clientX, event.clientY - before.clientY);
      if (!this.dragged && moved < 4) return; // a click may tremble
      if (!this.dragged) svg.setPointerCapture(event.pointerId);
      this.dragged = true;
      if (pointers.size === 1) {
        const [from, to] = [this.locate(before), this.locate(event)];
        this.pan(to[0] - from[0], to[1] - from[1]);
        pointers.set(event.pointerId, event);
      } else {
        const old = spread();
        pointers.set(event.pointerId, event);
        this.zoom(spread() / old, this.locate(event));
      }
    });
    for (const name of ["pointerup", "pointercancel", "pointerleave"]) {
      svg.addEventListener(name, (event) => pointers.delete(event.pointerId));
    }
  }

  /** When zoomed in, follow the marked node. */
  keepVisible() {
    if (!this.svg || this.fitted) return;
    const group = this.marked.find((element) => element.classList.contains("current"));
    if (!group) return;
    const [frame, box] = [this.svg.getBoundingClientRect(), group.getBoundingClientRect()];
    const shift = (low, high, from, to) => (from < low ? from - low : to > high ? to - high : 0);
    const dx = shift(frame.left + 16, frame.right - 16, box.left, box.right);
    const dy = shift(frame.top + 16, frame.bottom - 16, box.top, box.bottom);
    const scale = this.svg.getScreenCTM().a;
    if (dx || dy) {
      this.view[0] += dx / scale;
      this.view[1] += dy / scale;
      this.apply();
    }
  }
}
