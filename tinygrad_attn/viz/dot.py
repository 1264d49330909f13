"""The two pictures: how values were computed, and the ladder of the backward pass beside it.

Both put the values of a `Trace` into boxes: a box of its own, that of a collapsed module call, or, in the
ladder, that of the only user of an unnamed value, whose formula then has it written out.
"""

from __future__ import annotations

import difflib
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from .backward import Backward, Step, expression_of, trace_backward
from .formula import Symbol
from .picture import BLUE, CALL, GREY, RED, Box, Edge, Picture, html, label, legend, small, table, type_of
from .trace import Node, Trace, trace

if TYPE_CHECKING:
    from .drawing import Drawing

Item = TypeVar("Item", Node, Step)
RANKDIRS = ("TB", "BT", "LR", "RL")
FLOW = {"dir": "back", "color": RED}  # a gradient, from the lower box to the upper one
READ = {"style": "dotted", "color": "#6b7787", "penwidth": "1.3", "arrowhead": "none"}
READ |= {"constraint": "false", "class": "reads"}  # must not move the boxes
OPERAND = {"labeldistance": "1.5", "labelangle": "30", "fontcolor": GREY}  # the number at an edge
COMMUTATIVE = {"add", "multiply", "maximum", "minimum"}
WRAP, LONGEST = 54, 100  # characters of a formula in one line, and in all: a longer one is named instead
FOLD_FORWARD, FOLD_BACKWARD = 30, 42  # an unnamed value is written out in its user's formula up to this length


class Options(TypedDict, total=False):
    """What every drawing function understands.

    show_values, show_grads   small arrays as tables, larger ones as a line of statistics
    show_shapes, show_formulas
    depth       module calls nested deeper than this are collapsed to one box each (0: all of them)
    max_nodes   collapse as far as it takes to have at most so many boxes; None draws everything
    rankdir     TB, BT, LR or RL: where the graph flows
    legend      explain shapes and colours under the picture
    precision   digits after the decimal point
    timeout     seconds that laying out the picture may take
    """

    show_values: bool
    show_grads: bool
    show_shapes: bool
    show_formulas: bool
    depth: int | None
    max_nodes: int | None
    rankdir: str
    legend: bool
    precision: int
    timeout: float


DEFAULTS = Options(show_values=False, show_grads=False, show_shapes=True, show_formulas=True)
DEFAULTS |= Options(depth=None, max_nodes=400, rankdir="TB", legend=True, precision=3, timeout=60.0)


def to_dot(outputs: Any, *inputs: Any, names: Any = None, **options: Unpack[Options]) -> str:
    """The forward graph of `outputs` as DOT text; needs no Graphviz. Arguments as in `draw_graph`.

    >>> import tinygrad_attn as ta
    >>> x = ta.Tensor([1.0, 2.0], requires_grad=True, name="x")
    >>> "n0 -> n1" in to_dot(x * 3)
    True
    """
    full = _checked(options)
    return graph_picture(trace(outputs, *inputs, names=names), full).text()


def draw_graph(outputs: Any, *inputs: Any, names: Any = None, **options: Unpack[Options]) -> Drawing:
    """Draw how `outputs` were computed, as a `graphviz.Digraph` to save, render or show in a notebook.

    `outputs` is a tensor, a list, a dict (its keys become names), or a module followed by its inputs. `names`
    gives names to further tensors: a dict, or a module whose parameters then carry their path. See `Options`
    for the keywords: show_values, show_grads, show_shapes, show_formulas, depth, max_nodes, rankdir, legend,
    precision, timeout. Nothing is changed: no `.grad`, no graph.
    """
    from .drawing import Drawing

    full = _checked(options)
    return Drawing(to_dot(outputs, *inputs, names=names, **full), timeout=full["timeout"])


def draw_backward(
    loss: Any,
    wrt: Any = None,
    style: str = "ladder",
    *,
    gradient: Any = None,
    names: Any = None,
    **options: Unpack[Options],
) -> Drawing:
    """Draw the backward pass of `loss`: every gradient by name, with the formula its rule prints.

    style "ladder": forward on the left, backward on the right at the same height, dotted lines from the
    forward values that each rule reads. style "graph": the operations that the engine recorded while it ran
    the rules, boxed under the forward operation they belong to. `wrt`, `gradient` as in `trace_backward`,
    keywords as in `draw_graph`.
    """
    from .drawing import Drawing

    full = _checked(options)
    pictures = {"ladder": ladder_picture, "graph": recorded_picture}
    if style not in pictures:
        raise ValueError(f"style is one of {', '.join(pictures)}, not {style!r}")
    picture = pictures[style](trace_backward(loss, wrt, gradient=gradient, names=names), full)
    return Drawing(picture.text(), timeout=full["timeout"])


def _checked(options: Options) -> Options:
    for name in options:
        if name not in DEFAULTS:
            near = difflib.get_close_matches(name, DEFAULTS, 1, 0)[0]
            raise TypeError(f"no option {name!r}; did you mean {near!r}? There are: {', '.join(DEFAULTS)}")
    full = Options(**{**DEFAULTS, **options})
    if full["rankdir"] not in RANKDIRS:
        raise ValueError(f"rankdir is one of {', '.join(RANKDIRS)}, not {full['rankdir']!r}")
    return full


# ------------------------------------------------------------------------------------------- forward graph


def graph_picture(trace: Trace, options: Options) -> Picture:
    """The forward graph (or any recorded graph) as boxes and edges."""
    forward = _Forward(trace, options)
    boxes = forward.boxes()
    notes = [forward.caption(), "" if boxes else "nothing to draw: no tensors were given"]
    if options["show_grads"]:
        notes.append("no gradient yet: call backward(); an operation keeps its gradient after retain_grad()")
    attributes = {"rankdir": options["rankdir"], **legend(boxes, options["legend"], notes)}
    return Picture(boxes, forward.edges(numbered=True), forward.clusters(), attributes, ordered=forward.siblings())


class _Forward:
    """Forward values in boxes; `home` says which, None for a number that only stands in formulas."""

    def __init__(self, trace: Trace, options: Options) -> None:
        self.trace, self.nodes, self.modules, self.options = trace, trace.nodes, trace.modules, options
        self.depth = options["depth"] if options["depth"] is not None else self._fitting_depth()
        self.home = {n.id: self._home(n, self.depth) for n in self.nodes}
        paths = {i: self.modules[int(key[1:])].path for i, key in self.home.items() if key and key[0] == "m"}
        self.expressions = {n.id: expression_of(trace, n, paths) for n in self.nodes if n.op is not None}

    def _home(self, node: Node, depth: int | None) -> str | None:
        chain = self.trace.module_chain(node.module)
        if depth is not None and len(chain) > depth:
            return f"m{chain[depth]}"
        return None if node.is_scalar_constant else f"n{node.id}"

    def _fitting_depth(self) -> int | None:
        """The deepest that gives at most `max_nodes` boxes, else the one that gives fewest."""
        deepest, most = max((len(m.chain) for m in self.modules), default=0), self.options["max_nodes"]
        count: dict[int | None, int] = {
            d: len({self._home(n, d) for n in self.nodes}) for d in (None, *range(deepest, -1, -1))
        }
        fitting: list[int | None] = [d for d in count if most is None or count[d] <= most]
        return fitting[0] if fitting else min(count, key=lambda d: count[d])

    def boxes(self) -> list[Box]:
        groups = _grouped(self.nodes, self.home).items()
        return [self._call(key, nodes) if key[0] == "m" else self._value(key, nodes) for key, nodes in groups]

    def _call(self, key: str, nodes: list[Node]) -> Box:
        module = self.modules[int(key[1:])]
        own = [n for n in nodes if n.kind == "parameter"]
        count = sum(n.kind == "operation" for n in nodes)
        details = [f"{count} operation{'s' * (count > 1)}", _few(own)]
        text = label(module.path or module.kind, module.kind * bool(module.path), details)
        return Box(key, text, "module", self._clusters(module.parent), [f"n{n.id}" for n in nodes], _few(own, len(own)))

    def _value(self, key: str, nodes: list[Node]) -> Box:
        node, options, tables = nodes[-1], self.options, []
        if options["show_values"] and node.dtype != "tuple":
            tables.append(table("value", node.tensor.data, options["precision"]))
        if options["show_grads"] and node.requires_grad:
            why = small("gradient") + "<BR/>" + small("— no gradient yet" if node.op is None else "— not kept", RED)
            grad = node.tensor.grad
            tables.append(why if grad is None else table("gradient", grad.data, options["precision"]))
        kind = "output" if node.is_output and node.op is not None else node.kind
        instead, word = (
            f"{node.op} of {_few(self.nodes[i] for i in node.operands)}",
            f"{node.kind} " * (node.op is None),
        )
        text, tooltip = self._text(node, self.expressions.get(node.id), instead, word, tables)
        return Box(key, text, kind, self._clusters(node.module), [f"n{n.id}" for n in nodes], tooltip)

    def _text(
        self, item: Node | Step, formula: Symbol | None, instead: str, word: str, tables: list[str]
    ) -> tuple[str, str]:
        """Label and tooltip of one value: name, formula (`instead` if it is too long), type and arrays."""
        full = formula.text("math") if formula is not None else ""
        short = instead if len(full) > LONGEST else full
        if WRAP < len(full) <= LONGEST:
            short = "\n".join(textwrap.wrap(full, WRAP, break_long_words=False, break_on_hyphens=False))
        shown = self.options["show_formulas"] and full != item.name  # an unnamed transpose is called Kᵀ already
        detail = word + type_of(item.tensor.data) * self.options["show_shapes"]
        text = label(item.name, short if shown else "", [detail], tables)
        return text, f"{item.name} = {full}"

    def _clusters(self, module: int | None) -> tuple[str, ...]:
        return tuple(f"m{m}" for m in self.trace.module_chain(module))

    def clusters(self) -> dict[str, dict[str, str]]:
        title = {m.id: f"{html(m.path)}{'  ' * bool(m.path)}<B>{html(m.kind)}</B>" for m in self.modules}
        return {f"m{i}": {**CALL, "label": f"<{text}>", "class": f"m{i}"} for i, text in title.items()}

    def edges(self, numbered: bool) -> list[Edge]:
        """One per operand; between collapsed calls one in all. Numbers where operand order matters."""
        edges: dict[Any, Edge] = {}
        for node in self.nodes:
            target, sources = self.home[node.id], [self.home[s] for s in node.operands]
            ordered = numbered and len(sources) - sources.count(None) > 1 and node.op not in COMMUTATIVE
            for i, source in enumerate(sources):
                if source and target and source != target:
                    single = source[0] == target[0] == "n"
                    mark = {"headlabel": str(i + 1), **OPERAND} if ordered and single else {}
                    edges.setdefault((node.id, i) if single else (source, target), (source, target, mark))
        return list(edges.values())

    def siblings(self) -> list[tuple[str, ...]]:
        """Named values made alike from the same value at the same depth (Q, K and V): side by side."""
        level: dict[int, int] = {}
        groups: dict[Any, list[str]] = {}
        for node in self.nodes:
            level[node.id] = 1 + max((level[i] for i in node.operands), default=0)
            if (key := self.home[node.id]) == f"n{node.id}" and node.named and len(node.operands) > 1:
                groups.setdefault((node.op, node.operands[0], node.module, level[node.id]), []).append(key)
        return [tuple(group) for group in groups.values() if len(group) > 1]

    def caption(self) -> str:
        boxes = set(self.home.values())
        collapsed = any(key and key[0] == "m" for key in boxes)
        return (
            f"{len(self.nodes)} values in {len(boxes)} boxes: calls below depth {self.depth} are collapsed" * collapsed
        )


def _few(items: Iterable[Node | Step], most: int = 4) -> str:
    """The names of the first few."""
    names = [item.name for item in dict.fromkeys(items)]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _grouped(items: Iterable[Item], home: Mapping[int, str | None]) -> dict[str, list[Item]]:
    """What stands in each box."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        if (key := home[item.id]) is not None:
            groups.setdefault(key, []).append(item)
    return groups


# ------------------------------------------------------------------------------------------ backward pass


def ladder_picture(backward: Backward, options: Options) -> Picture:
    """Forward on the left, backward on the right at the same height; dotted, what each rule reads."""
    ladder = _Ladder(backward, options)
    forward_boxes, backward_boxes = ladder.boxes(), ladder.step_boxes()
    for box in forward_boxes:  # a single module call around everything would say nothing
        box.clusters = ("forward", *(box.clusters if len(ladder.modules) > 1 else ()))
    boxes = forward_boxes + backward_boxes
    lines = [(BLUE, "→ values"), (RED, "→ gradients"), (GREY, "┄┄ values that a rule reads")]
    clusters = ladder.clusters()
    looks = {"forward": ("#f3f7fd", "#c9d8ec", BLUE), "backward": ("#fdf4f3", "#f0cfcc", RED)}
    for side, (fill, border, text) in looks.items():
        half = {"style": "rounded,filled", "fontsize": "13", "labeljust": "c", "label": side}
        clusters[side] = {**half, "fillcolor": fill, "color": border, "fontcolor": text}
    explained = legend(boxes, options["legend"], [ladder.caption(), _nothing(backward)], lines)
    return Picture(
        boxes,
        [*ladder.edges(numbered=False), *ladder.step_edges()],
        clusters,
        {"rankdir": options["rankdir"], "nodesep": "0.3", **explained},
        ladder.rows({box.key for box in boxes}),
        [*ladder.siblings(), *ladder.step_siblings({box.key for box in backward_boxes})],
        [(ladder.home[step.target] or "", ladder.place[step.id] or "") for step in backward.steps[:1]],
    )


def _nothing(backward: Backward) -> str:
    name = backward.forward.nodes[backward.forward.outputs[0]].name
    return "" if backward.steps else f"no backward pass: {name} depends on nothing that wants a gradient"


class _Ladder(_Forward):
    """Beside the forward boxes the steps of the backward pass: `s5` for step 5, `M3` for those of collapsed call 3.

    To keep the ladder short, an unnamed value has no box where it reads well written out in its user's formula;
    neither has its gradient.
    """

    def __init__(self, backward: Backward, options: Options) -> None:
        super().__init__(backward.forward, options)
        self.steps, self.gradients = backward.steps, backward.gradients
        self.folded: dict[int, int] = {}  # value -> the one user in whose formula it stands
        self._fold()
        self.place = {step.id: self._place(step) for step in self.steps}
        self.formulas = {s.id: self.composed(s) for s in self.steps if self.place[s.id]}

    def _fold(self) -> None:
        users: dict[int, list[int]] = defaultdict(list)
        steps_of: dict[int | None, list[Step]] = defaultdict(list)
        inside: dict[int, set[int]] = defaultdict(set)  # box -> values written out in it
        for node in self.nodes:
            for source in node.operands:
                users[source].append(node.id)
        for step in self.steps:
            steps_of[step.of].append(step)
        apart = {s.target for s in self.steps if s.role == "unbroadcast"}
        for node in self.nodes:
            if node.named or node.op in (None, "part", "split") or node.id in apart or len(users[node.id]) != 1:
                continue
            (user,) = users[node.id]
            if (f"n{node.id}", f"n{user}") != (self.home[node.id], self.home[user]) or self.nodes[
                user
            ].module != node.module:
                continue
            self.folded[node.id] = user
            members = {node.id} | inside[node.id]
            steps = [step for i in (user, *members) for step in steps_of[i]]
            formulas = [(self.written_out(user), FOLD_FORWARD), *((self.composed(s), FOLD_BACKWARD) for s in steps)]
            texts = [(formula.text("math"), most) for formula, most in formulas]
            if all(len(text) <= most and ", where" not in text for text, most in texts):
                inside[user] |= members
            else:
                del self.folded[node.id]
        self.expressions = {i: self.written_out(i) for i in self.expressions}
        for source, user in sorted(self.folded.items(), reverse=True):
            self.home[source] = self.home[user]

    def written_out(self, node: int) -> Symbol:
        """The formula of a value, with what is folded into it."""
        return self.expressions[node].substitute(lambda s: self.written_out(s.node) if s.node in self.folded else None)

    def composed(self, step: Step) -> Symbol:
        """The formula of a step, with values and gradients written out that have no box of their own."""
        inner = {self.steps[o].name: self.steps[o] for o in step.operands if self.steps[o].target in self.folded}

        def replacement(leaf: Symbol) -> Symbol | None:
            if leaf.node in self.folded:
                return self.written_out(leaf.node)
            return self.composed(inner[leaf.args[0]]) if leaf.node is None and leaf.args[0] in inner else None

        return step.expression.substitute(replacement)

    def _place(self, step: Step) -> str | None:
        owner = self.home[step.target if step.of is None else step.of]
        if owner and owner[0] == "m" and step.role != "seed":
            return f"M{owner[1:]}"
        return None if step.target in self.folded else f"s{step.id}"

    def step_boxes(self) -> list[Box]:
        groups = _grouped(self.steps, self.place).items()
        return [self._calls(key, steps) if key[0] == "M" else self._step(key, steps[0]) for key, steps in groups]

    def _calls(self, key: str, steps: list[Step]) -> Box:
        module = self.modules[int(key[1:])]
        own = [s for s in steps if self.nodes[s.target].kind == "parameter" and self.gradients[s.target] == s.id]
        text = label(f"d {module.path or module.kind}", "", [f"{len(steps)} steps backward", _few(own)])
        return Box(key, text, "module", ("backward",), [f"s{s.id}" for s in steps], _few(own, len(own)))

    def _step(self, key: str, step: Step) -> Box:
        rule = "" if step.of is None else f"rule of {self.nodes[step.of].op} of "
        rule += _few([*(self.steps[o] for o in step.operands), *(self.nodes[n] for n in step.reads)])
        tables = [table("gradient", step.tensor.data, self.options["precision"])] * self.options["show_values"]
        text, tooltip = self._text(step, self.formulas[step.id], rule, "", tables)
        kind = "sum" if step.role in ("accumulate", "unbroadcast") else "gradient"
        return Box(key, text, kind, ("backward",), [f"s{step.id}"], tooltip)

    def step_edges(self) -> list[Edge]:
        """Gradients flow up, from the step that made one to those that take it; dotted, what a rule reads."""
        flows = [(self.place[i], self.place[o]) for i in self.formulas for o in self._taken(self.steps[i])]
        leaves = [(leaf.node, i) for i, formula in self.formulas.items() for leaf in formula.leaves()]
        reads = [(self.home[node], self.place[i]) for node, i in leaves if node is not None]
        looks = ((flows, FLOW), (reads, READ))
        return [(a, b, look) for pairs, look in looks for a, b in dict.fromkeys(pairs) if a and b and a != b]

    def _taken(self, step: Step) -> Iterable[int]:
        """The steps whose gradients a box takes, looking through those that are folded."""
        for operand in step.operands:
            yield from (self._taken(self.steps[operand]) if self.place[operand] is None else (operand,))

    def rows(self, shown: set[str]) -> list[tuple[str, str]]:
        """Each whole gradient on the row of its value, each call's on the row of the call."""
        pairs = [(f"n{node}", f"s{step}") for node, step in self.gradients.items()]
        pairs += [(f"m{m.id}", f"M{m.id}") for m in self.modules]
        return [pair for pair in pairs if shown.issuperset(pair)]

    def step_siblings(self, shown: set[str]) -> list[tuple[str, ...]]:
        """The gradients of values that stand side by side do so too, mirrored: Q K V and dV dK dQ."""
        rows = [[f"s{self.gradients.get(int(key[1:]))}" for key in reversed(row)] for row in self.siblings()]
        mirrored = (tuple(key for key in row if key in shown) for row in rows)
        return [row for row in mirrored if len(row) > 1]


def recorded_picture(backward: Backward, options: Options) -> Picture:
    """What the engine recorded during the backward pass, boxed under the forward operation it serves.

    The forward values that it reads stand outside the boxes, without how they were made.
    """
    graph, served = backward.graph, {n.tensor: n for n in backward.forward.nodes}
    last = max(t.index for t in served)
    made = {f"n{n.id}": n.tensor.origin for n in graph.nodes if n.tensor.index > last}
    made |= {f"n{n.id}": None for n in graph.nodes if n.tensor is backward.steps[0].tensor}
    forward = _Forward(graph, options | Options(depth=None, max_nodes=None))
    edges = [(a, b, more | ({"color": RED} if a in made else {"style": "dotted"}))
             for a, b, more in forward.edges(numbered=True) if b in made]  # fmt: skip
    drawn = made.keys() | {a for a, _, _ in edges}
    boxes = [box for box in forward.boxes() if box.key in drawn]
    clusters: dict[str, dict[str, str]] = {}
    for box in boxes:
        box.clusters = ()
        if box.key in made:
            box.kind = "gradient"
        if origin := made.get(box.key):
            node = served[origin.of]  # type: ignore[index]
            box.kind = "sum" if origin.role in ("accumulate", "unbroadcast") else "gradient"
            box.clusters = (f"o{node.id}",)
            clusters[f"o{node.id}"] = {**CALL, "label": f"<backward of <B>{html(node.name)}</B>>"}
    lines = [(RED, "→ gradients"), (GREY, "┄┄ forward values")]
    attributes = {"rankdir": options["rankdir"], **legend(boxes, options["legend"], [_nothing(backward)], lines)}
    return Picture(boxes, edges, clusters, attributes)
