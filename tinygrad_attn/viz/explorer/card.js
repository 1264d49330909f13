// The current step in words, symbols and numbers: formula, matrices, and the one cell that is looked at.

class Card {
  constructor(root, player) {
    this.root = root;
    this.player = player;
    this.explainer = new CellExplainer(player.tensors);
    this.matrices = [];
    root.addEventListener("pointermove", (event) => this.point(event));
    root.addEventListener("pointerleave", () => this.select(this.player.cell, false));
    root.addEventListener("click", (event) => this.point(event, true));
    root.addEventListener("focusin", (event) => this.point(event, true));
  }

  text(key, values) { return this.player.language.text(key, values); }
  tensor(index) { return this.player.tensors[index]; }

  show(step) {
    this.step = step;
    this.result = this.tensor(step.tensor);
    this.cellBox = make("div", { class: "cell" });
    const focused = this.root.contains(document.activeElement) ? document.activeElement : null;
    const inCells = focused?.closest("td, .heat");
    this.root.classList.toggle("lane-backward", step.lane === "backward");
    this.root.classList.toggle("lane-forward", step.lane === "forward");
    this.root.replaceChildren(
      this.heading(), this.formula(), make("p", { class: "say" }, this.sentence()),
      ...[this.badge(), this.slicer(), this.figures(), this.cellBox, this.foot()].filter(Boolean));
    this.select(this.player.cell, false);
    if (inCells) this.enterCells(); // what had the focus is gone
    else if (focused) this.root.focus({ preventScroll: true });
  }

  heading() {
    const { result, step, player } = this;
    const axes = result.shape.map((n, axis) => [result.axes?.[axis], n].filter((x) => x !== null && x !== undefined).join(" "));
    const module = player.modulePath(result);
    const facts = [
      this.what(step),
      this.text("stepOf", { n: player.at + 1, total: player.steps.length }),
      result.shape.length ? `${this.text("shape")} (${axes.join(", ")})` : this.text("scalar"),
      module && this.text("inModule", { module }),
    ];
    return make("h2", {}, make("span", { class: "name" }, result.name), " ", make("small", {}, facts.filter(Boolean).join(" · ")));
  }

  what(step) {
    const kind = `kind${step.kind[0].toUpperCase()}${step.kind.slice(1)}`;
    const result = this.tensor(step.tensor);
    const op = step.kind === "rule" ? this.tensor(step.rule).op : result.op;
    const role = this.text(`role${result.role[0].toUpperCase()}${result.role.slice(1)}`);
    return this.text(kind, { op, role });
  }

  formula() {
    const { step, result } = this;
    const line = make("p", { class: "formula" }, this.link(result));
    if (step.kind === "leaf") return line;
    line.append(" = ", ...this.linked(step.formula));
    return line;
  }

  linked(formula) { // "⟦3⟧ @ ⟦4⟧": tensor numbers in marked brackets become links
    return formula.split(/⟦(\d+)⟧/).map((part, i) => (i % 2 ? this.link(this.tensor(Number(part))) : part));
  }

  link(tensor) {
    const lane = tensor.isBackward ? "lane-backward" : "lane-forward";
    const light = (on) => { this.player.light(on ? tensor : null); };
    return make("button", { type: "button", class: `symbol ${lane}`, onclick: () => this.player.visit(tensor),
      onpointerenter: () => light(true), onpointerleave: () => light(false),
      onfocus: () => light(true), onblur: () => light(false) }, tensor.name);
  }

  sentence() {
    const { step, player } = this;
    if (step.kind !== "op" && step.kind !== "rule") return this.text(`say_${step.kind}`);
    const op = step.kind === "rule" ? this.tensor(step.rule).op : this.result.op;
    const same = { square: "power", vecdot: "matmul" }[op] ?? op;
    const family = MOVING.has(op) && !player.language.has(`say_${op}`) ? "move" : same;
    const ending = step.kind === "rule" ? "_back" : "";
    const key = player.language.has(`say_${family}`) ? `say_${family}` : "say_elementwise";
    return key === "say_elementwise" && !ELEMENTWISE.has(op) ? "" : this.text(key + ending);
  }

  badge() { // why there is no gradient, or when it comes
    const { result, player } = this;
    const none = (why) => make("p", { class: "badge" }, make("b", {}, this.text("noGradient")), ": ", this.text(`why_${why}`));
    if (result.isBackward) {
      const blocked = player.blocked(result);
      return blocked && Array.from(result.values ?? [0]).every((_, flat) => blocked(flat)) ? none("masked") : null;
    }
    if (result.grad === null || result.grad === undefined) return none(result.nograd);
    const at = player.stepOf(result.grad);
    return make("p", { class: "badge later" }, this.text("notYet", { n: at + 1 }), " ",
      make("button", { type: "button", class: "plain", onclick: () => player.go(at) }, this.text("goThere")));
  }

  /** What is drawn, in order: [tensor, caption key, sign before it]. */
  cast() {
    const { step, result } = this;
    const target = result.isBackward ? this.tensor(result.of) : null;
    if (step.kind === "accumulate") {
      const parts = step.parts.map((i, n) => [this.tensor(i), "contributionPart", n ? "+" : ""]);
      return [...parts, [result, step.done ? "total" : "result", "="], [target, "value", ""]];
    }
    const reads = [...new Set(step.reads)].filter((i) => i !== result.index).map((i) => this.tensor(i));
    const operands = reads.filter((t) => t !== target).map((t) => [t, t.isBackward ? "incoming" : "operand", ""]);
    const own = target ? [[target, "value", ""]] : [];
    return [...operands, ...own, [result, step.kind === "leaf" ? "value" : "result", ""]];
  }

  figures() {
    const { player } = this;
    const cast = this.cast();
    const unit = new Scale(1, true);
    const isUnit = (tensor) => !tensor.isBackward && (tensor.op === "softmax" || tensor.dtype === "bool");
    const scales = {
      values: Scale.around(cast.map(([t]) => t).filter((t) => !t.isBackward && !isUnit(t))),
      gradients: Scale.around(cast.map(([t]) => t).filter((t) => t.isBackward)),
    };
    const palette = readPalette();
    const row = make("div", { class: `figures ${this.step.kind}` });
    this.matrices = cast.map(([tensor, key, sign]) => {
      const scale = isUnit(tensor) ? unit : tensor.isBackward ? scales.gradients : scales.values;
      const caption = `${this.text(key)}, ${scale.describe(player.language, player.digits)}`;
      const matrix = new Matrix(tensor, { caption, scale, palette, slice: player.slice, language: player.language,
        digits: player.digits, numbers: player.numbers, blocked: player.blocked(tensor) });
      matrix.element.classList.add(tensor.isBackward ? "lane-backward" : "lane-forward");
      matrix.element.classList.toggle("result", tensor === this.result);
      matrix.element.addEventListener("keydown", (event) => this.walk(event, matrix));
      const first = matrix.cells.values().next().value;
      if (first) first.tabIndex = 0; // one stop of the tab key per matrix; arrows go on from there
      if (sign) row.append(make("span", { class: "sign", "aria-hidden": "true" }, sign));
      row.append(matrix.element);
      return matrix;
    });
    this.main = this.matrices.find((matrix) => matrix.tensor === this.result);
    return row;
  }

  slicer() {
    const axes = new Map();
    for (const [tensor] of this.cast()) {
      tensor.shape.slice(0, -2).forEach((n, axis) => {
        const key = axisKey(tensor, axis);
        if (n > 1 && (axes.get(key)?.n ?? 0) < n) axes.set(key, { n, ticks: tensor.ticks?.[axis] });
      });
    }
    if (!axes.size) return null;
    const box = make("div", { class: "slicer", role: "group", "aria-label": this.text("slice") });
    for (const [key, { n, ticks }] of axes) {
      const select = make("select", { onchange: (event) => this.player.setSlice(key, Number(event.target.value)) });
      for (let i = 0; i < n; i++) select.append(make("option", { value: i }, ticks?.[i] ?? String(i)));
      select.value = String(Math.min(this.player.slice.get(key) ?? 0, n - 1));
      box.append(make("label", {}, key, " ", select));
    }
    return box;
  }

  foot() {
    return this.result.source ? make("p", { class: "source" }, this.text("source", { source: "" }), make("code", {}, this.result.source)) : null;
  }

  // ---- one cell

  matrixOf(element) { return this.matrices.find((matrix) => matrix.element.contains(element)); }

  point(event, keep = false) {
    const matrix = this.matrixOf(event.target);
    if (!matrix) return;
    const flat = matrix.under(event);
    if (flat === null || Number.isNaN(flat)) return;
    this.looking = matrix;
    const isTwin = matrix.tensor.size === this.result.size && matrix.tensor.index === this.result.of;
    if (matrix === this.main || isTwin) this.select(flat, keep);
    else {
      this.select(null, false);
      matrix.mark(new Set(), flat);
      this.readOut(matrix.tensor, flat);
    }
  }

  /** Explains cell `flat` of the result; `keep` writes it into the address. */
  select(flat, keep) {
    if (keep) this.player.keepCell(flat);
    const twin = this.result.isBackward ? this.result.of : null;
    if (flat === null || flat >= this.result.size || !this.result.values) {
      for (const matrix of this.matrices) matrix.mark(null, null);
      this.cellBox.replaceChildren(make("p", { class: "hint" }, this.text("pickCell")));
      this.check(null);
      return;
    }
    const index = this.result.unravel(flat);
    const tree = this.explainer.explain(this.result, index);
    const read = cellsRead(tree);
    for (const part of this.step.parts ?? []) read.set(this.tensor(part), new Set([flat])); // all that has arrived so far
    for (const matrix of this.matrices) {
      const own = matrix.tensor === this.result || (matrix.tensor.index === twin && matrix.tensor.size === this.result.size);
      matrix.mark(matrix === this.main ? null : read.get(matrix.tensor) ?? null, own ? flat : null);
    }
    this.cellBox.replaceChildren(...this.working(flat, index, tree));
    this.check(flat);
  }

  readOut(tensor, flat) {
    const value = formatNumber(tensor.values[flat], this.player.digits + 1);
    this.cellBox.replaceChildren(make("p", { class: "working" }, `${tensor.name}[${tensor.label(tensor.unravel(flat))}] = `, make("b", {}, value)));
  }

  /** name[cell] = symbols, = numbers, = value. */
  working(flat, index, tree) {
    const { result, player } = this;
    const name = index.length ? `${result.name}[${result.label(index)}]` : result.name;
    const value = make("b", { class: "value" }, formatNumber(result.values[flat], player.digits + 1));
    const lines = [];
    const isItself = tree.ref === result;
    if (tree.whole) {
      lines.push(make("p", { class: "working" }, `${name} = `, value));
      lines.push(make("p", { class: "hint" }, this.text("readsAll", { names: tree.tensors.map((t) => t.name).join(", ") })));
    } else if (isItself) {
      lines.push(make("p", { class: "working" }, `${name} = `, value));
    } else {
      const symbols = writeTree(tree, "symbols", player.digits).map((piece) => (piece.tensor ? this.link(piece.tensor) : piece));
      const numbers = writeTree(tree, "numbers", player.digits).join("");
      lines.push(make("p", { class: "working" }, `${name} = `, ...symbols));
      const plain = numbers === formatNumber(result.values[flat], player.digits);
      lines.push(make("p", { class: "working numbers" }, plain ? "= " : `= ${numbers} = `, value));
    }
    if (player.blocked(result)?.(flat) && result.isBackward) lines.push(make("p", { class: "why" }, this.text("whyCellMasked")));
    return lines;
  }

  /** The numeric check of the step, for a cell where it was made cell by cell. */
  check(flat) {
    const { step, player, result } = this;
    if (step.lane !== "backward" || !player.checks) return;
    const check = step.check;
    const line = make("p", { class: "check" });
    const compare = (auto, finite, note) => {
      const close = Math.abs(auto - finite) <= 1e-4 * (1 + Math.abs(finite));
      const digits = player.digits + 1;
      line.append(`${this.text("autograd")} `, make("b", { class: "auto" }, formatNumber(auto, digits)), ` · ${this.text("finite")} `,
        make("b", { class: "finite" }, formatNumber(finite, digits)), " ",
        make("span", { class: close ? "agrees" : "differs" }, `${close ? "✓" : "✗"} ${this.text(close ? "checkAgrees" : "checkDiffers")}`), note ? ` (${note})` : "");
    };
    if (check?.each) {
      if (flat === null) return;
      compare(result.values[flat], decode(check.each, Float32Array)[flat]);
    } else if (check?.direction) compare(...check.direction.map(asNumber), this.text("direction"));
    else if (check?.why) line.append(this.text("notChecked", { why: this.text(`check_${check.why}`) }));
    const sum = flat === null ? null : this.rowSum(flat);
    if (sum !== null) line.append(" · ", `${this.text("rowSum")} `, make("b", { class: "row-sum" }, sum));
    if (line.childNodes.length) this.cellBox.append(line);
  }

  /** Rows that pass a softmax backwards sum to zero: shown where it is so by law. */
  rowSum(flat) {
    const owner = this.step.kind === "rule" ? this.tensor(this.step.rule).op : null;
    if (!["softmax", "masked_fill", "cross_entropy"].includes(owner) || !this.result.shape.length) return null;
    const width = this.result.shape.at(-1);
    const start = Math.floor(flat / width) * width;
    const row = this.result.values.slice(start, start + width);
    const sum = row.reduce((a, b) => a + b, 0);
    const largest = row.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
    return formatNumber(Math.abs(sum) < 1e-6 * largest ? 0 : sum, this.player.digits + 1); // below what the page's 32 bits hold
  }

  /** Arrows inside a matrix move the cell; escape hands them back to the steps. */
  walk(event, matrix) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === "Escape") { this.root.focus(); return; }
    if (!(event.key in moves) || event.shiftKey || event.ctrlKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const flat = this.looking === matrix && matrix.last !== undefined ? matrix.last : Number(event.target.dataset.flat ?? matrix.base);
    const [row, column] = [Math.floor((flat - matrix.base) / matrix.columns), (flat - matrix.base) % matrix.columns];
    const [down, right] = moves[event.key];
    const next = matrix.flatAt(Math.max(0, Math.min(matrix.rows - 1, row + down)), Math.max(0, Math.min(matrix.columns - 1, column + right)));
    matrix.focus(next);
    if (matrix.canvas) {
      this.looking = matrix;
      matrix.last = next;
      if (matrix === this.main) this.select(next, true);
      else { matrix.mark(new Set(), next); this.readOut(matrix.tensor, next); }
    }
  }

  /** Puts the keyboard into the result's cells. */
  enterCells() {
    const flat = this.player.cell ?? this.main?.base ?? 0;
    this.main?.focus(this.main.holds(flat) ? flat : this.main.base);
  }
}
