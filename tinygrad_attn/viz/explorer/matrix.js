// One tensor as a real table of numbers, or as a heat map with a read-out where a table would be too large.

const LARGEST_TABLE = 12;      // rows and columns; beyond that a heat map
const LARGEST_HIDDEN_TABLE = 4096; // cells of the table that stands behind a heat map

/** Small helper for building elements: make("td", {class: "x"}, child, "text"). Text is always text, never markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Blue for negative, orange for positive, the paper in between; `unit` is a scale from 0 to 1 in one hue. */
class Scale {
  constructor(limit, unit = false) {
    this.limit = limit || 1;
    this.unit = unit;
  }

  static around(tensors) { return new Scale(Math.max(0, ...tensors.map((tensor) => tensor.range.largest))); }

  mix(value, palette) {
    const share = Math.max(-1, Math.min(1, value / this.limit));
    const end = this.unit || share < 0 ? palette.negative : palette.positive;
    const amount = Math.abs(share) ** 0.8;
    return palette.zero.map((from, i) => Math.round(from + (end[i] - from) * amount));
  }

  colour(value, palette) {
    const rgb = this.mix(value, palette);
    const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    const light = 0.2126 * r + 0.7152 * g + 0.0722 * b;
    return { paper: `rgb(${rgb.join(" ")})`, ink: light > 0.179 ? "#000" : "#fff" };
  }

  describe(language, digits) {
    return this.unit ? language.text("scaleUnit") : language.text("scaleAround", { limit: formatNumber(this.limit, Math.min(digits, 2)) });
  }
}

/** The colours of the current theme, read from the style sheet so that they are stated once. */
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
  return { negative: rgb("--heat-negative"), positive: rgb("--heat-positive"), zero: rgb("--heat-zero"), ink: style.getPropertyValue("--ink").trim() };
}

class Matrix {
  /** `options`: caption, scale, slice (axis key -> index), palette, language, digits, numbers, blocked (flat -> bool). */
  constructor(tensor, options) {
    this.tensor = tensor;
    Object.assign(this, options);
    const shape = tensor.shape;
    this.rows = shape.length > 1 ? shape.at(-2) : 1;
    this.columns = shape.length ? shape.at(-1) : 1;
    this.leading = shape.slice(0, -2).map((n, axis) => Math.min(this.slice.get(axisKey(tensor, axis)) ?? 0, n - 1));
    this.base = this.leading.reduce((sum, i, axis) => sum + i * tensor.strides[axis], 0);
    this.cells = new Map();
    if (/^(bool|u?int)/.test(tensor.dtype)) this.digits = 0;
    this.element = this.build();
  }

  flatAt(row, column) { return this.base + row * this.columns + column; }
  holds(flat) { return flat >= this.base && flat < this.base + this.rows * this.columns; }
  tick(axis, i) { return this.tensor.ticks?.[this.tensor.shape.length + axis]?.[i] ?? String(i); }
  axisName(axis) { return this.tensor.axes?.[this.tensor.shape.length + axis] ?? ""; }

  build() {
    const caption = make("figcaption", {}, make("b", { class: "name" }, this.tensor.name), " ", make("span", {}, this.caption));
    const figure = make("figure", { class: "matrix" }, caption);
    if (!this.tensor.values) figure.append(this.summary());
    else if (this.isTable) figure.append(make("div", { class: "scroll" }, this.table(true)));
    else {
      figure.classList.add("heated");
      figure.append(this.heatmap());
    }
    return figure;
  }

  get isTable() { return this.rows <= LARGEST_TABLE && this.columns <= LARGEST_TABLE; }

  table(interactive) {
    const table = make("table", { class: interactive ? "cells" : "cells plain", role: interactive ? "grid" : null,
      "aria-label": `${this.tensor.name}, ${this.caption}` });
    table.classList.toggle("colours-only", interactive && !this.numbers);
    if (this.tensor.shape.length) {
      const corner = [this.tensor.shape.length > 1 && this.axisName(-2) ? `${this.axisName(-2)} ↓` : "", this.axisName(-1) ? `${this.axisName(-1)} →` : ""];
      const head = make("tr", {}, make("td", { class: "corner" }, corner.filter(Boolean).join("\n")));
      for (let column = 0; column < this.columns; column++) head.append(make("th", { scope: "col" }, this.tick(-1, column)));
      table.append(make("thead", {}, head));
    }
    const body = make("tbody");
    for (let row = 0; row < this.rows; row++) {
      const line = make("tr");
      if (this.tensor.shape.length > 1) line.append(make("th", { scope: "row" }, this.tick(-2, row)));
      else if (this.tensor.shape.length) line.append(make("td", { class: "corner" }));
      for (let column = 0; column < this.columns; column++) line.append(this.cell(this.flatAt(row, column), interactive));
      body.append(line);
    }
    table.append(body);
    return table;
  }

  cell(flat, interactive) {
    const value = this.tensor.values[flat];
    const cell = make("td", {}, make("span", {}, formatNumber(value, this.digits)));
    if (interactive) {
      cell.tabIndex = -1;
      cell.dataset.flat = flat;
      this.cells.set(flat, cell);
    }
    if (this.blocked?.(flat) || !Number.isFinite(value)) {
      cell.classList.add("hatched");
      if (this.blocked?.(flat)) cell.append(make("span", { class: "unseen" }, ` ${this.language.text("masked")}`));
    } else {
      const { paper, ink } = this.scale.colour(value, this.palette);
      cell.style.setProperty("background-color", paper);
      cell.style.setProperty("color", ink);
    }
    return cell;
  }

  heatmap() {
    const size = Math.max(3, Math.min(14, Math.floor(300 / Math.max(this.rows, this.columns))));
    this.cellSize = size;
    this.canvas = make("canvas", { width: this.columns * size, height: this.rows * size, "aria-hidden": "true" });
    const shape = `${this.rows} × ${this.columns}`;
    const name = this.language.text("heatmap", { name: this.tensor.name, shape });
    const box = make("div", { class: "heat", tabindex: "0", role: "group", "aria-label": name }, this.canvas);
    const numbers = make("details", {}, make("summary", {}, this.language.text("asTable")));
    numbers.addEventListener("toggle", () => {
      if (numbers.open && numbers.children.length === 1 && this.rows * this.columns <= LARGEST_HIDDEN_TABLE) {
        numbers.append(make("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": name }, this.table(false)));
      }
    });
    this.paint();
    this.isPlain = true;
    return make("div", {}, make("div", { class: "scroll" }, box), make("p", { class: "statistics" }, this.statistics()), numbers);
  }

  /** The picture without marks: one pixel per cell, to be stretched. */
  picture() {
    const image = new ImageData(this.columns, this.rows);
    this.hatched = [];
    for (let i = 0; i < this.rows * this.columns; i++) {
      const flat = this.base + i;
      const value = this.tensor.values[flat];
      if (!Number.isFinite(value) || this.blocked?.(flat)) this.hatched.push(i);
      else image.data.set([...this.scale.mix(value, this.palette), 255], 4 * i);
    }
    const canvas = make("canvas", { width: this.columns, height: this.rows });
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  paint(lit = new Set(), selected = null) {
    const context = this.canvas.getContext("2d");
    const size = this.cellSize;
    const place = (i) => [(i % this.columns) * size, Math.floor(i / this.columns) * size];
    this.drawn ??= this.picture();
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.drawn, 0, 0, this.canvas.width, this.canvas.height);
    context.strokeStyle = "#8888";
    context.beginPath();
    for (const i of this.hatched) {
      const [x, y] = place(i);
      context.moveTo(x, y + size);
      context.lineTo(x + size, y);
    }
    context.stroke();
    context.strokeStyle = this.palette.ink;
    const marked = lit === "all" ? [] : [...lit].filter((flat) => this.holds(flat));
    for (const flat of selected === null || !this.holds(selected) ? marked : [...marked, selected]) {
      const [x, y] = place(flat - this.base);
      context.lineWidth = flat === selected ? 2 : 1;
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    }
    if (lit === "all") context.strokeRect(0.5, 0.5, this.canvas.width - 1, this.canvas.height - 1);
  }

  statistics() { return this.describe(this.tensor.range); }

  describe({ min, mean, max }) {
    const [low, middle, high] = [min, mean, max].map((value) => formatNumber(value, this.digits));
    return this.language.text("summary", { count: this.tensor.size, min: low, mean: middle, max: high });
  }

  summary() { // numbers too many to ship
    const stats = this.tensor.stats;
    const tallest = Math.max(...stats.counts, 1);
    const bars = stats.counts.map((count) => {
      const bar = make("span", { class: "bin" });
      bar.style.setProperty("height", `${(100 * count) / tallest}%`);
      return bar;
    });
    const range = { min: formatNumber(stats.min, this.digits), max: formatNumber(stats.max, this.digits) };
    return make("div", { class: "summary" },
      make("p", {}, this.language.text("tooLarge"), " ", this.describe(stats)),
      make("div", { class: "histogram", role: "img", "aria-label": this.language.text("histogram", range) }, ...bars),
      make("p", { class: "range" }, make("span", {}, range.min), make("span", {}, range.max)));
  }

  /** Marks the cells that were read and the selected one. */
  mark(lit, selected) {
    if (this.canvas) {
      const plain = !lit && selected === null;
      if (!plain || !this.isPlain) this.paint(lit ?? new Set(), selected);
      this.isPlain = plain;
      return;
    }
    for (const [flat, cell] of this.cells) {
      cell.classList.toggle("lit", lit === "all" || Boolean(lit?.has(flat)));
      const chosen = flat === selected;
      if (cell.classList.contains("selected") !== chosen) {
        cell.classList.toggle("selected", chosen);
        cell.setAttribute("aria-selected", String(chosen));
      }
    }
  }

  /** The flat position under a pointer event, or null. */
  under(event) {
    if (this.canvas) {
      const box = this.canvas.getBoundingClientRect();
      const column = Math.floor(((event.clientX - box.left) / box.width) * this.columns);
      const row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
      return row >= 0 && column >= 0 && row < this.rows && column < this.columns ? this.flatAt(row, column) : null;
    }
    const cell = event.target.closest("td[data-flat]");
    return cell ? Number(cell.dataset.flat) : null;
  }

  focus(flat) { (this.cells.get(flat) ?? this.element.querySelector(".heat"))?.focus(); }
}

/** Axes of one name slice together; an axis without a name goes by its place from the right. */
function axisKey(tensor, axis) { return tensor.axes?.[axis] ?? `axis −${tensor.shape.length - axis}`; }
