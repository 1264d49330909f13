// What the axes of a tensor are called: by its name, as its value (for a gradient), or after what it was made from.

const AXES = { // the last two
  scores: ["query", "key"], masked: ["query", "key"], weights: ["query", "key"], mask: ["query", "key"],
  Q: ["T", "d_k"], K: ["T", "d_k"], V: ["T", "d_k"], output: ["T", "d_k"],
  X: ["T", "d_model"], x: ["T", "d_model"],
  W_Q: ["d_model", "d_k"], W_K: ["d_model", "d_k"], W_V: ["d_model", "d_k"],
};
const LEADING = { 3: ["batch"], 4: ["batch", "head"] };
const TOKEN_AXES = new Set(["T", "query", "key"]); // axes that count tokens carry their text

/** Gives every tensor `axes` (a name or null each) and `ticks` (the tokens or null each); operands come before results. */
function nameAxes(tensors, given, tokens) {
  for (const tensor of tensors) {
    const names = axesOf(tensor, tensors, given);
    const ndim = tensor.shape.length;
    tensor.axes = ndim ? [...Array(ndim).fill(null), ...names].slice(-ndim) : [];
    tensor.ticks = tensor.axes.map((axis, i) => (TOKEN_AXES.has(axis) && tokens?.length === tensor.shape[i] ? tokens : null));
  }
}

function axesOf(tensor, tensors, given) {
  const value = tensors[tensor.of];
  if (value && String(value.shape) === String(tensor.shape)) return value.axes;
  if (Object.hasOwn(given, tensor.name)) return given[tensor.name];
  if (Object.hasOwn(AXES, tensor.name)) return [...(LEADING[tensor.shape.length] ?? []), ...AXES[tensor.name]];
  const operands = Object.values(tensor.args ?? {}).filter((arg) => "t" in arg).map((arg) => tensors[arg.t]);
  if (!operands.length) return [];
  const [first, second] = operands;
  if (tensor.op === "matmul") {
    const axes = [...first.axes.slice(0, -1), second.axes.at(-1)];
    return String(axes.slice(-2)) === "T,T" ? [...axes.slice(0, -2), "query", "key"] : axes;
  }
  const order = axisOrder(tensor, first);
  if (order) return order.map((_, i) => first.axes[order.indexOf(i)]);
  return operands.find((operand) => String(operand.shape) === String(tensor.shape))?.axes ?? [];
}
