// How one cell of a result was made: a small expression tree over the cells that were read.
//
// The tree follows the recorded operations, so a gradient rule of several operations unfolds into one line of numbers.
// Nothing here computes a gradient: the numbers are the ones Python wrote, looked up by index.

/** One tensor of the page: its description and its numbers in row-major order. */
class TensorView {
  constructor(record, index) {
    Object.assign(this, record);
    this.index = index;
    this.size = this.shape.reduce((product, n) => product * n, 1);
    this.strides = this.shape.map((_, axis) => this.shape.slice(axis + 1).reduce((product, n) => product * n, 1));
    this.isBackward = ["seed", "gradient", "contribution"].includes(this.role);
    this.isInner = this.role === "inner"; // a step inside a rule: never shown by itself
  }

  get values() {
    if (this.decoded === undefined) this.decoded = this.data === undefined ? null : decode(this.data, Float32Array);
    return this.decoded;
  }

  /** Where each cell came from, for operations that only move numbers; null when it is the same flat position. */
  get origin() {
    if (this.decodedMap === undefined) this.decodedMap = this.map ? decode(this.map, Int32Array) : null;
    return this.decodedMap;
  }

  /** {min, mean, max} of all numbers, and the largest finite magnitude, which sets a colour scale. */
  get range() {
    if (this.measured === undefined) {
      let [min, max, total, largest] = [Infinity, -Infinity, 0, 0];
      for (const value of this.values ?? []) {
        if (value < min) min = value;
        if (value > max) max = value;
        total += value;
        if (Number.isFinite(value) && Math.abs(value) > largest) largest = Math.abs(value);
      }
      this.measured = { min, max, mean: total / this.size, largest };
    }
    return this.measured;
  }

  flat(index) { return index.reduce((sum, i, axis) => sum + i * this.strides[axis], 0); }

  unravel(flat) { return this.strides.map((stride, axis) => Math.floor(flat / stride) % this.shape[axis]); }

  label(index) { // [妈妈, 0]: the names of the ticks where they are known
    return index.map((i, axis) => this.ticks?.[axis]?.[i] ?? i).join(", ");
  }
}

function decode(base64, Type) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return new Type(bytes.buffer);
}

/** 3 decimals where they say enough, scientific where they do not; a true minus sign. */
function formatNumber(value, digits = 3) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (size >= 1e5) text = value.toExponential(2).replace("e+", "e");
  else if (size < 0.5 * 10 ** -digits) text = value.toExponential(1);
  else text = value.toFixed(size >= 1000 ? Math.max(digits - 2, 0) : digits);
  return text.replace(/-/g, "−");
}

// Expression trees: {ref, index} a cell of a tensor, {number}, {operator, terms}, {call, terms}, {sum: letter, body, terms}.

const MOVING = new Set(["transpose", "swapaxes", "reshape", "expand_dims", "squeeze", "broadcast_to", "getitem", "flip",
  "roll", "concatenate", "stack", "split", "part", "tril", "triu", "take_along_axis", "embedding", "scatter_add"]);
const ELEMENTWISE = new Set(["negative", "exp", "log", "sqrt", "tanh", "sin", "cos", "abs", "relu", "sigmoid", "silu", "gelu", "clip",
  "maximum", "minimum", "where", "masked_fill"]);
const INFIX = { add: "+", subtract: "−", multiply: "·", divide: "/", power: "^" };
const REDUCING = new Set(["sum", "mean", "max", "min", "prod", "var", "logsumexp", "norm", "cumsum"]);
const LETTERS = ["k", "m", "n", "p", "r"];
const STRENGTH = { "+": 1, "−": 1, "·": 2, "/": 2, "^": 3 };

class CellExplainer {
  constructor(tensors) { this.tensors = tensors; }

  /** The tree of `tensor[index]`, one recorded operation deep, and deeper through the operations inside a rule. */
  explain(tensor, index) {
    this.depth = 0;
    return this.expand(tensor, index);
  }

  operand(arg, index) {
    if (!("t" in arg)) return { number: asNumber(arg.v), name: arg.name };
    const tensor = this.tensors[arg.t];
    return tensor.isInner ? this.expand(tensor, index) : { ref: tensor, index };
  }

  expand(tensor, index) {
    const args = Object.values(tensor.args ?? {});
    const op = tensor.op;
    if (op === null || op === undefined) return { ref: tensor, index };
    if (tensor.map !== undefined || tensor.moved) return this.move(tensor, index, args);
    if (tensor.lands) return this.landed(tensor, index, args[0]);
    if (op === "matmul") return this.matmul(index, args);
    if (op === "vecdot") return this.rowDot(index, args);
    if (op === "softmax" || op === "log_softmax") return this.softmax(tensor, index);
    if (op === "masked_fill") return this.maskedFill(tensor, index);
    if (op === "where") return this.where(index, args);
    if (op === "layer_norm") return this.layerNorm(tensor, index);
    if (REDUCING.has(op)) return this.reduce(tensor, index);
    if (op === "negative") return { operator: "−", terms: [this.operand(args[0], this.stretch(args[0], index))] };
    if (op === "square") return { operator: "^", terms: [this.operand(args[0], index), { number: 2 }] };
    if (op in INFIX) return { operator: INFIX[op], terms: args.slice(0, 2).map((a) => this.operand(a, this.stretch(a, index))) };
    if (ELEMENTWISE.has(op)) {
      const operands = args.filter((a) => "t" in a || typeof a.v === "number");
      return { call: op, terms: operands.map((a) => this.operand(a, this.stretch(a, index))) };
    }
    return { whole: op, tensors: this.outerOperands(tensor) };
  }

  /** The tensors that a result reads, seen through the operations inside its rule. */
  outerOperands(tensor, found = new Set()) {
    for (const arg of Object.values(tensor.args ?? {}).flatMap((a) => a.list ?? [a])) {
      if (!("t" in arg)) continue;
      const operand = this.tensors[arg.t];
      if (operand.isInner) this.outerOperands(operand, found);
      else found.add(operand);
    }
    return [...found];
  }

  stretch(arg, index) { // the operand's index under broadcasting
    if (!("t" in arg)) return index;
    const shape = this.tensors[arg.t].shape;
    return shape.map((n, axis) => (n === 1 ? 0 : index[index.length - shape.length + axis]));
  }

  move(tensor, index, args) {
    const sources = args.flatMap((a) => ("t" in a ? [a] : a.list ?? []));
    const symbolic = index.some((i) => typeof i === "string");
    if (symbolic) {
      const source = this.tensors[sources[0].t];
      const order = axisOrder(tensor, source);
      return order ? this.operand(sources[0], order.map((axis) => index[axis])) : { hidden: source };
    }
    let flat = tensor.flat(index);
    if (tensor.origin) flat = tensor.origin[flat];
    if (flat < 0) return { number: 0 };
    for (const arg of sources) {
      const source = this.tensors[arg.t];
      if (flat < source.size) return this.operand(arg, source.unravel(flat));
      flat -= source.size;
    }
    return { number: 0 };
  }

  /** Everything that was added at this cell: several rows where a token occurs several times, none where it does not. */
  landed(tensor, index, arg) {
    if (index.some((i) => typeof i === "string")) return { hidden: this.tensors[arg.t] };
    tensor.landing ??= decode(tensor.lands, Int32Array);
    const [flat, source] = [tensor.flat(index), this.tensors[arg.t]];
    const terms = [];
    tensor.landing.forEach((place, from) => { if (place === flat) terms.push(this.operand(arg, source.unravel(from))); });
    return terms.length > 1 ? { sum: "", terms } : terms[0] ?? { number: 0 };
  }

  sum(count, makeTerm) {
    const letter = LETTERS[this.depth++ % LETTERS.length];
    const terms = Array.from({ length: count }, (_, i) => makeTerm(i));
    const body = count > 1 ? makeTerm(letter) : terms[0];
    this.depth--;
    return count > 1 ? { sum: letter, body, terms } : terms[0] ?? { number: 0 };
  }

  matmul(index, [a, b]) {
    const [left, right] = [this.tensors[a.t], this.tensors[b.t]];
    const vector = { left: left.shape.length === 1, right: right.shape.length === 1 };
    const rest = [...index];
    const column = vector.right ? undefined : rest.pop();
    const row = vector.left ? undefined : rest.pop();
    const batch = (tensor) => {
      const shape = tensor.shape.slice(0, -2);
      return shape.map((n, axis) => (n === 1 ? 0 : rest[rest.length - shape.length + axis]));
    };
    const inner = left.shape[left.shape.length - 1];
    return this.sum(inner, (k) => ({
      operator: "·",
      terms: [
        this.operand(a, vector.left ? [k] : [...batch(left), row, k]),
        this.operand(b, vector.right ? [k] : [...batch(right), k, column]),
      ],
    }));
  }

  rowDot(index, args) { // Σ a·b over the last axis
    const width = this.tensors[args[0].t].shape.at(-1);
    return this.sum(width, (k) => ({ operator: "·", terms: args.map((a) => this.operand(a, this.stretch(a, [...index, k]))) }));
  }

  reduce(tensor, index) {
    const arg = firstTensor(tensor);
    const source = this.tensors[arg.t];
    const axes = reducedAxes(tensor, source);
    if (tensor.op === "cumsum") return { whole: tensor.op, tensors: this.outerOperands(tensor) };
    const kept = tensor.shape.length === source.shape.length ? index : null;
    const place = (inside) => {
      let next = 0;
      const position = Array.isArray(inside) ? [...inside] : null;
      return source.shape.map((_, axis) => {
        if (axes.includes(axis)) return position ? position.shift() : inside;
        return kept ? kept[axis] : index[next++];
      });
    };
    const sizes = axes.map((axis) => source.shape[axis]);
    const count = sizes.reduce((product, n) => product * n, 1);
    const at = (k) => {
      if (typeof k === "string") return this.operand(arg, place(axes.map((_, i) => (i === 0 ? k : LETTERS[this.depth - 1 + i] ?? "z"))));
      const inside = [];
      let left = k;
      for (let i = sizes.length - 1; i >= 0; i--) { inside.unshift(left % sizes[i]); left = Math.floor(left / sizes[i]); }
      return this.operand(arg, place(inside));
    };
    const sum = this.sum(count, at);
    if (tensor.op === "sum") return sum;
    if (tensor.op === "mean") return { operator: "/", terms: [sum, { number: count, exact: true }] };
    return { call: tensor.op, terms: sum.terms ?? [sum] };
  }

  softmax(tensor, index) {
    const arg = firstTensor(tensor);
    const source = this.tensors[arg.t];
    const axis = positive(tensor.args.axis?.v ?? -1, source.shape.length);
    const at = (k) => this.operand(arg, index.map((i, n) => (n === axis ? k : i)));
    const exp = (term) => ({ call: "exp", terms: [term] });
    const total = this.sum(source.shape[axis], (k) => exp(at(k)));
    if (tensor.op === "softmax") return { operator: "/", terms: [exp(at(index[axis])), total] };
    return { operator: "−", terms: [at(index[axis]), { call: "log", terms: [total] }] };
  }

  maskedFill(tensor, index) {
    const [x, mask, value] = Object.values(tensor.args);
    const blocks = "t" in mask ? this.tensors[mask.t] : null;
    const at = this.stretch(mask, index);
    if (index.some((i) => typeof i === "string") || !blocks?.values) return this.operand(x, index);
    const note = { ref: blocks, index: at };
    const filling = "t" in value ? this.operand(value, this.stretch(value, index)) : { number: asNumber(value.v), exact: true };
    return blocks.values[blocks.flat(at)]
      ? { ...filling, because: "masked", also: [note] }
      : { ...this.operand(x, index), also: [note] };
  }

  where(index, [condition, yes, no]) {
    const test = "t" in condition ? this.tensors[condition.t] : null;
    const at = this.stretch(condition, index);
    if (index.some((i) => typeof i === "string") || !test?.values) {
      return { call: "where", terms: [condition, yes, no].map((a) => this.operand(a, this.stretch(a, index))) };
    }
    const chosen = test.values[test.flat(at)] ? yes : no;
    return { ...this.operand(chosen, this.stretch(chosen, index)), also: [{ ref: test, index: at }] };
  }

  layerNorm(tensor, index) {
    const [x, ...rest] = Object.values(tensor.args);
    const source = this.tensors[x.t];
    const row = [...index.slice(0, -1)];
    const terms = Array.from({ length: source.shape.at(-1) }, (_, k) => this.operand(x, [...row, k]));
    const own = this.operand(x, index);
    const normal = { operator: "/", terms: [
      { operator: "−", terms: [own, { call: "mean", terms }] }, { call: "std", terms }] };
    const [weight, bias] = rest.filter((a) => "t" in a).map((a) => this.operand(a, this.stretch(a, index)));
    const scaled = weight ? { operator: "·", terms: [normal, weight] } : normal;
    return bias ? { operator: "+", terms: [scaled, bias] } : scaled;
  }
}

function firstTensor(tensor) { return Object.values(tensor.args).find((a) => "t" in a); }

function asNumber(value) {
  if (value === "-inf") return -Infinity;
  if (value === "inf") return Infinity;
  return typeof value === "number" ? value : NaN;
}

function positive(axis, ndim) { return axis < 0 ? axis + ndim : axis; }

function reducedAxes(tensor, source) {
  const axis = tensor.args.axis?.v ?? null;
  if (axis === null) return source.shape.map((_, i) => i);
  return [].concat(axis).map((a) => positive(a, source.shape.length)).sort((a, b) => a - b);
}

/** For a transposition: which axis of the result each axis of the source became; null for other moves. */
function axisOrder(tensor, source) {
  const ndim = source.shape.length;
  if (tensor.op === "swapaxes") {
    const order = source.shape.map((_, i) => i);
    const [i, j] = Object.values(tensor.args).filter((a) => "v" in a).map((a) => positive(a.v, ndim));
    [order[i], order[j]] = [order[j], order[i]];
    return order;
  }
  if (tensor.op === "transpose") {
    const axes = Object.values(tensor.args).find((a) => Array.isArray(a.v))?.v ?? source.shape.map((_, i) => ndim - 1 - i);
    const order = [];
    axes.forEach((axis, i) => { order[positive(axis, ndim)] = i; });
    return order;
  }
  return null;
}

/** Every cell the tree reads: Map from tensor to a Set of flat positions, or "all". */
function cellsRead(tree, found = new Map()) {
  const note = (tensor, value) => {
    if (value === "all") found.set(tensor, "all");
    else if (found.get(tensor) !== "all") {
      if (!found.has(tensor)) found.set(tensor, new Set());
      found.get(tensor).add(value);
    }
  };
  if (tree.ref && !tree.index.some((i) => typeof i === "string")) note(tree.ref, tree.ref.flat(tree.index));
  for (const tensor of tree.tensors ?? []) note(tensor, "all");
  for (const part of [...(tree.terms ?? []), ...(tree.also ?? [])]) cellsRead(part, found);
  return found;
}

const MOST_TERMS = 8; // a longer sum is shown by its first terms and its last one

/**
 * The tree as a list of pieces: strings, and {tensor, text} for a name that can be followed.
 * `mode` is "symbols" (names and indices) or "numbers" (the values in their place).
 */
function writeTree(tree, mode, digits = 3) {
  const number = (value, exact) => (exact && Number.isInteger(value) ? String(value).replace("-", "−") : formatNumber(value, digits));

  const write = (node, strength) => { // in brackets if it binds less strongly than its surroundings ask
    const name = (tensor) => (mode === "symbols" ? { tensor, text: tensor.name } : tensor.name);
    if (node.ref) {
      if (mode === "symbols") return [name(node.ref), node.index.length ? `[${node.ref.label(node.index)}]` : ""];
      const values = node.ref.values;
      if (!values) return ["·"];
      return bracket(number(values[node.ref.flat(node.index)]), strength);
    }
    if (node.hidden) return [name(node.hidden), "[…]"];
    if (node.name && mode === "symbols") return [node.name];
    if ("number" in node) return bracket(number(node.number, node.exact || Number.isInteger(node.number)), strength);
    if (node.whole) return [`${node.whole}(`, ...join(node.tensors.map((t) => [name(t)]), ", "), ")"];
    if (node.call) {
      if (node.call === "sqrt") return ["√", ...write(node.terms[0], 4)];
      return [`${node.call}(`, ...join(shorten(node.terms.map((t) => write(t, 0))), ", "), ")"];
    }
    if (node.sum !== undefined) {
      if (mode === "symbols" && node.body) return wrap([`Σ${subscript(node.sum)} `, ...write(node.body, 2)], strength > 1.5);
      return wrap(join(shorten(node.terms.map((t) => write(t, 1))), " + "), strength > 1);
    }
    const own = STRENGTH[node.operator];
    if (node.terms.length === 1) return wrap([node.operator, ...write(node.terms[0], 3)], strength > 1);
    const [a, b] = node.terms;
    const tight = node.operator === "^" ? "^" : ` ${node.operator} `;
    const ordered = node.operator === "−" || node.operator === "/" || node.operator === "^";
    return wrap([...write(a, own), tight, ...write(b, ordered ? own + 0.5 : own)], own < strength);
  };

  return merge(write(tree, 0));
}

function bracket(text, strength) { return strength > 0 && text.startsWith("−") ? [`(${text})`] : [text]; }
function wrap(pieces, needed) { return needed ? ["(", ...pieces, ")"] : pieces; }
function join(lists, separator) { return lists.flatMap((list, i) => (i ? [separator, ...list] : list)); }
function shorten(lists) {
  return lists.length <= MOST_TERMS ? lists : [...lists.slice(0, 3), [`… (${lists.length})`], lists.at(-1)];
}
function subscript(letter) { return { k: "ₖ", m: "ₘ", n: "ₙ", p: "ₚ", r: "ᵣ" }[letter] ?? letter; }
function merge(pieces) { // neighbouring strings become one
  const merged = [];
  for (const piece of pieces) {
    if (typeof piece === "string" && typeof merged.at(-1) === "string") merged[merged.length - 1] += piece;
    else if (piece !== "") merged.push(piece);
  }
  return merged;
}
