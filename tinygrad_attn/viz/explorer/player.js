// The page: one step index, the keys and buttons that move it, and the address that remembers it.

class Player {
  constructor(page, data) {
    this.page = page;
    this.data = data;
    this.digits = data.precision;
    this.tensors = data.tensors.map((record, index) => new TensorView(record, index));
    nameAxes(this.tensors, data.axes, data.tokens);
    this.steps = data.steps;
    this.slice = new Map();
    this.at = 0;
    this.cell = null;
    this.pace = 1;
    this.checks = true;
    this.numbers = true;
    this.level = data.level ?? 0;
    this.stepByTensor = new Map(this.steps.map((step, i) => [step.tensor, i]));
    this.language = new Language(data.language ?? (navigator.language.startsWith("zh") ? "zh" : "en"));
    this.setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    this.readAddress();
    this.build();
    this.listen();
  }

  find(selector) { return this.page.querySelector(selector); }
  get step() { return this.steps[this.at]; }
  get drawing() { return this.data.ladders[this.level]; }

  // ---- building what stays while steps come and go

  build() {
    const t = (key, values) => this.language.text(key, values);
    document.documentElement.lang = this.language.code === "zh" ? "zh-Hans" : "en";
    const loss = this.tensors[this.data.loss];
    this.find(".title").textContent = this.data.title;
    this.find(".loss").textContent = t("loss", { name: loss.name, value: formatNumber(loss.values[0], this.digits + 1) });
    this.buildTools();
    this.buildTransport();
    const ladder = this.find(".ladder");
    ladder.setAttribute("aria-label", t("ladder"));
    this.ladder = new Ladder(ladder, this.tensors, this.steps, this.language, (tensor) => this.visit(tensor));
    ladder.replaceChildren(this.ladderTools());
    this.ladder.show(this.drawing);
    this.stops = this.findStops();
    this.card = new Card(this.find(".card"), this);
    this.timeline = new Timeline(this.find(".time"), this.steps, this.tensors, this.language, (i) => this.go(i));
    this.buildSearch();
    this.buildHelp();
    this.show();
  }

  button(key, label, action, hint = "") {
    const text = this.language.text(key);
    return make("button", { type: "button", "data-action": key, title: hint ? `${text} (${hint})` : text, "aria-label": text, onclick: action },
      make("span", { class: "label" }, label), hint ? make("kbd", {}, hint) : null);
  }

  buildTools() {
    const t = (key) => this.language.text(key);
    const switches = (key, label, hint, on) => {
      const button = this.button(key, label, () => this.flip(key), hint);
      button.setAttribute("aria-pressed", String(on));
      return button;
    };
    const tools = this.find(".tools");
    tools.setAttribute("aria-label", t("toolbar"));
    tools.replaceChildren(
      this.button("twin", t("twin"), () => this.twin(), "b"), this.button("search", t("search"), () => this.openSearch(), "/"),
      switches("checks", t("checksShort"), "g", this.checks), switches("numbers", t("numbersShort"), "n", this.numbers),
      this.button("language", t("language"), () => this.switchLanguage()),
      this.button("theme", "◐", () => { this.setTheme(this.theme === "dark" ? "light" : "dark"); this.show(); }),
      this.button("print", t("printShort"), () => print()), this.button("help", "?", () => this.openHelp()));
  }

  buildTransport() {
    const speed = make("select", { "aria-label": this.language.text("speed"), onchange: (event) => this.setPace(Number(event.target.value)) });
    for (const [pace, label] of [[0.5, "½×"], [1, "1×"], [2, "2×"], [4, "4×"]]) speed.append(make("option", { value: pace }, label));
    speed.value = String(this.pace);
    this.playButton = this.button("play", "▶", () => this.toggle(), "␣");
    const transport = this.find(".transport");
    transport.setAttribute("aria-label", this.language.text("transport"));
    transport.replaceChildren(this.button("back", "❘◀", () => this.move(-1), "←"), this.playButton,
      this.button("forward", "▶❘", () => this.move(1), "→"), speed);
  }

  ladderTools() {
    const several = this.data.ladders.length > 1;
    return make("div", { class: "ladder-tools", role: "group", "aria-label": this.language.text("ladder") },
      several ? this.button("collapse", "⊟", () => this.setLevel(this.level - 1)) : null,
      several ? this.button("open", "⊞", () => this.setLevel(this.level + 1)) : null,
      this.button("zoomOut", "−", () => this.ladder.zoom(1 / 1.4)), this.button("zoomIn", "+", () => this.ladder.zoom(1.4)),
      this.button("fit", "⤢", () => this.ladder.fit(), "f"));
  }

  // ---- moving

  /** With modules collapsed, a run of steps inside one of them is a single stop: its last step. */
  findStops() {
    const box = (i) => (i < this.steps.length ? this.ladder.moduleBoxOf(this.steps[i].tensor) : null);
    return new Set(this.steps.map((_, i) => i).filter((i) => box(i) === null || box(i) !== box(i + 1)));
  }

  go(index, cell = null) {
    const at = Math.max(0, Math.min(this.steps.length - 1, index));
    if (at !== this.at) this.cell = cell;
    else if (cell !== null) this.cell = cell;
    this.at = at;
    this.show();
  }

  move(by) {
    let next = this.at + by;
    while (next > 0 && next < this.steps.length - 1 && !this.stops.has(next)) next += by;
    this.go(next);
  }

  moveModule(by) {
    const here = this.moduleKey(this.at);
    let next = this.at + by;
    while (next > 0 && next < this.steps.length - 1 && this.moduleKey(next) === here) next += by;
    this.go(next);
  }

  moduleKey(i) { return `${this.steps[i]?.lane} ${this.tensors[this.steps[i]?.tensor]?.module}`; }

  modulePath(tensor) { return this.data.modules[tensor.module]?.path ?? ""; }

  stepOf(tensorIndex) { return this.stepByTensor.get(tensorIndex) ?? -1; }

  visit(tensor) {
    const at = this.stepOf(tensor.index);
    if (at >= 0) this.go(at);
  }

  /** From a tensor to its gradient and back, keeping the cell. */
  twin() {
    const here = this.tensors[this.step.tensor];
    const other = here.isBackward ? here.of : here.grad;
    if (other === null || other === undefined) return;
    const same = this.tensors[other].size === here.size ? this.cell : null;
    this.go(this.stepOf(other), same);
  }

  play() {
    if (this.at === this.steps.length - 1) this.go(0);
    this.timer = setInterval(() => {
      if (this.at >= this.steps.length - 1) this.pause();
      else this.move(1);
    }, 1600 / this.pace);
    this.markPlaying();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.markPlaying();
  }

  toggle() { if (this.timer) this.pause(); else this.play(); }

  markPlaying() {
    const key = this.timer ? "pause" : "play";
    this.playButton.setAttribute("aria-label", this.language.text(key));
    this.playButton.querySelector(".label").textContent = this.timer ? "❚❚" : "▶";
  }

  // ---- choices

  setSlice(key, index) {
    this.cell = null;
    this.slice.set(key, index);
    const result = this.tensors[this.step.tensor];
    this.show(result.shape.slice(0, -2).some((_, axis) => axisKey(result, axis) === key)); // an operand's own axis moves alone
  }

  setLevel(level) {
    this.level = Math.max(0, Math.min(this.data.ladders.length - 1, level));
    this.ladder.show(this.drawing);
    this.stops = this.findStops();
    this.show();
  }

  setTheme(theme) {
    this.theme = theme;
    document.documentElement.dataset.theme = theme;
  }

  switchLanguage() {
    this.pause();
    this.language = this.language.other;
    this.build();
    this.find(".tools [data-action=language]").focus();
  }

  /** The switches: "checks" and "numbers". */
  flip(key) {
    this[key] = !this[key];
    this.find(`.tools [data-action=${key}]`).setAttribute("aria-pressed", String(this[key]));
    this.show();
  }

  setPace(pace) {
    this.pace = pace;
    if (this.timer) { this.pause(); this.play(); }
  }

  // ---- showing

  show(follow = true) {
    const { step } = this;
    const result = this.tensors[step.tensor];
    if (follow) this.followSlice(result);
    const lane = this.language.text(step.lane === "forward" ? "laneForward" : "laneBackward");
    this.card.show(step);
    this.spoken = this.language.text("spoken", { n: this.at + 1, total: this.steps.length, lane, name: result.name, what: this.card.what(step) });
    this.timeline.show(this.at, this.spoken, this.stops);
    this.find(".spoken").textContent = this.spoken;
    this.light(null);
    this.writeAddress();
  }

  light(extra) {
    const { step } = this;
    const lit = new Set(extra ? [extra.index] : [...step.reads, ...(step.parts ?? [])]);
    this.ladder.mark(new Set([step.tensor]), lit, (index) => this.stepOf(index) <= this.at);
  }

  /** Turns the slices to the selected cell, and those of the operands to what the result's slice was made from. */
  followSlice(tensor) {
    const leading = (t) => t.shape.slice(0, -2).map((n, axis) => ({ n, axis, key: axisKey(t, axis) }));
    const turn = (t, flat, taken) => {
      const index = t.unravel(flat);
      for (const { n, axis, key } of leading(t)) if (n > 1 && !taken.has(key)) this.slice.set(key, index[axis]);
    };
    if (this.cell !== null && this.cell < tensor.size) turn(tensor, this.cell, new Set());
    const own = leading(tensor);
    const first = own.reduce((flat, { n, axis, key }) => flat + Math.min(this.slice.get(key) ?? 0, n - 1) * tensor.strides[axis], 0);
    const read = cellsRead(this.card.explainer.explain(tensor, tensor.unravel(this.cell ?? first)));
    for (const [operand, cells] of read) {
      if (cells !== "all") turn(operand, Math.min(...cells), new Set(own.map(({ key }) => key)));
    }
  }

  /** Which cells of a tensor a mask took out: in the masked value, in the softmax of it, and in their gradients. */
  blocked(tensor) {
    tensor.blockedBy ??= { test: this.findBlocked(tensor) };
    return tensor.blockedBy.test;
  }

  findBlocked(tensor) {
    if (tensor.isBackward) {
      const step = this.steps[this.stepOf(tensor.index)];
      const owner = step?.kind === "rule" ? this.tensors[step.rule] : null;
      if (owner?.op === "masked_fill") return this.maskOf(owner);
      const target = this.tensors[tensor.of];
      return target && target.size === tensor.size ? this.blocked(target) : null;
    }
    if (tensor.op === "masked_fill") return this.maskOf(tensor);
    const source = tensor.op === "softmax" ? this.tensors[firstTensor(tensor).t] : null;
    return source ? this.blocked(source) : null;
  }

  maskOf(filled) {
    const arg = Object.values(filled.args)[1];
    const mask = arg && "t" in arg ? this.tensors[arg.t] : null;
    if (!mask?.values) return null;
    return (flat) => {
      const index = filled.unravel(flat);
      return mask.values[mask.flat(mask.shape.map((n, axis) => (n === 1 ? 0 : index[index.length - mask.shape.length + axis])))] !== 0;
    };
  }

  // ---- the address: #step=17&cell=2,1

  keepCell(flat) {
    if (this.cell === flat) return;
    this.cell = flat;
    this.writeAddress();
  }

  readAddress() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    const step = Number(wanted.get("step"));
    if (Number.isInteger(step) && step >= 1) this.at = Math.min(step, this.steps.length) - 1;
    const tensor = this.tensors[this.step.tensor];
    const index = (wanted.get("cell") ?? "").split(",").map(Number);
    const fits = wanted.has("cell") && index.length === tensor.shape.length && index.every((i, axis) => Number.isInteger(i) && i >= 0 && i < tensor.shape[axis]);
    this.cell = fits ? tensor.flat(index) : null;
  }

  writeAddress() {
    const parts = [`step=${this.at + 1}`];
    const tensor = this.tensors[this.step.tensor];
    if (this.cell !== null && this.cell < tensor.size) parts.push(`cell=${tensor.unravel(this.cell).join(",")}`);
    try { history.replaceState(null, "", `#${parts.join("&")}`); } catch { /* a sandboxed frame has no address of its own */ }
  }

  // ---- search and help

  buildSearch() {
    const dialog = this.find(".search");
    const input = make("input", { type: "search", "aria-label": this.language.text("searchLabel"), placeholder: this.language.text("searchLabel"), autocomplete: "off" });
    const found = make("div", { class: "found" });
    const fill = () => {
      const wanted = input.value.trim().toLowerCase();
      const hits = this.steps.map((step, i) => [i, this.tensors[step.tensor]])
        .filter(([, tensor]) => `${tensor.name} ${this.modulePath(tensor)}`.toLowerCase().includes(wanted));
      hits.sort(([, a], [, b]) => a.name.toLowerCase().indexOf(wanted) - b.name.toLowerCase().indexOf(wanted) || a.name.length - b.name.length);
      found.replaceChildren(...hits.slice(0, 40).map(([i, tensor]) => make("button", { type: "button",
        class: tensor.isBackward ? "lane-backward" : "lane-forward",
        onclick: () => { dialog.close(); this.go(i); } },
        make("b", {}, tensor.name), " ", make("small", {}, [this.card.what(this.steps[i]), this.modulePath(tensor)].filter(Boolean).join(" · ")))));
      if (!hits.length) found.append(make("p", { class: "hint" }, this.language.text("nothingFound")));
    };
    input.addEventListener("input", fill);
    input.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); found.querySelector("button")?.click(); } });
    dialog.onkeydown = (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const stops = [input, ...found.querySelectorAll("button")];
      stops[Math.max(0, Math.min(stops.length - 1, stops.indexOf(document.activeElement) + by))].focus();
    };
    dialog.setAttribute("aria-label", this.language.text("searchLabel"));
    dialog.replaceChildren(input, found);
    this.openSearch = () => { input.value = ""; fill(); dialog.showModal(); input.focus(); };
  }

  buildHelp() {
    const dialog = this.find(".help");
    const rows = [["← →", "helpArrows"], ["⇧← ⇧→", "helpModule"], ["Home End", "helpEnds"], ["␣", "helpSpace"], ["b", "helpTwin"], ["/", "helpSearch"],
      ["c", "helpCollapse"], ["f", "helpFit"], ["g", "helpCheck"], ["n", "helpNumbers"], ["↵", "helpCell"], ["?", "helpHelp"]];
    const list = make("dl", {}, ...rows.map(([key, text]) => make("div", {}, make("dt", {}, make("kbd", {}, key)), make("dd", {}, this.language.text(text)))));
    dialog.setAttribute("aria-label", this.language.text("help"));
    dialog.replaceChildren(make("h2", {}, this.language.text("helpTitle")), list, make("p", {}, this.language.text("helpColours")),
      make("button", { type: "button", onclick: () => dialog.close() }, this.language.text("close")));
    this.openHelp = () => dialog.showModal();
  }

  // ---- keys, address, theme, print

  listen() {
    const keys = {
      ArrowRight: () => this.move(1), ArrowLeft: () => this.move(-1), j: () => this.move(1), k: () => this.move(-1),
      Home: () => this.go(0), End: () => this.go(this.steps.length - 1), " ": () => this.toggle(), b: () => this.twin(),
      "/": () => this.openSearch(), "?": () => this.openHelp(), f: () => this.ladder.fit(), g: () => this.flip("checks"), n: () => this.flip("numbers"),
      c: () => this.setLevel(this.level ? 0 : this.data.ladders.length - 1), Enter: () => this.card.enterCells(),
    };
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
      const isControl = event.target.closest("button, select, summary, input[type=search]");
      if (isControl && (event.key === " " || event.key === "Enter" || event.target.tagName === "SELECT")) return;
      const action = event.shiftKey && { ArrowRight: () => this.moveModule(1), ArrowLeft: () => this.moveModule(-1) }[event.key] || keys[event.key];
      if (!action) return;
      event.preventDefault();
      if (event.key !== " ") this.pause();
      action();
    });
    addEventListener("hashchange", () => { this.readAddress(); this.show(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => { this.setTheme(event.matches ? "dark" : "light"); this.show(); });
    addEventListener("beforeprint", () => this.fillHandout());
    addEventListener("afterprint", () => this.find(".handout").replaceChildren());
  }

  /** On paper: every stop with its formula, its sentence and its matrices. */
  fillHandout() {
    const [theme, at, cell] = [this.theme, this.at, this.cell];
    this.setTheme("light");
    const pages = [...this.stops].map((i) => {
      this.at = i;
      this.cell = null;
      const page = make("article", { class: "card" });
      const card = new Card(page, this);
      card.show(this.steps[i]);
      return page;
    });
    this.at = at;
    this.cell = cell;
    this.setTheme(theme);
    this.find(".handout").replaceChildren(...pages);
  }
}

new Player(document.body, JSON.parse(document.querySelector("script.data").textContent));
