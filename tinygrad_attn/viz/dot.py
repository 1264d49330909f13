"""The two pictures: how values were computed, and the ladder of the backward pass beside it.

Both put the values of a `Trace` into boxes: a box of its own, that of a collapsed module call, or, in the
ladder, that of the only user of an unnamed value, whose formula then has it written out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from .backward import Backward, Step, expression_of, recorded_nodes, substitute, trace_backward
from .formula import Symbol
from .picture import BLUE, CALL, GREY, RED, Box, Edge, Picture, array_type, few, html, label, legend, small, table
from .trace import Node, Trace, trace

if TYPE_CHECKING:
    from .drawing import Drawing

RANKDIRS = ("TB", "BT", "LR", "RL")
STYLES = ("ladder", "graph")
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


DEFAULTS = Options(show_values=False, show_grads=False, show_shapes=True, show_formulas=True)
DEFAULTS |= Options(depth=None, max_nodes=400, rankdir="TB", legend=True, precision=3)


def to_dot(outputs: Any, *inputs: Any, names: Any = None, **options: Unpack[Options]) -> str:
    """The forward graph of `outputs` as DOT text; needs no Graphviz. Arguments as in `draw_graph`.

    >>> import tinygrad_attn as ta
    >>> x = ta.Tensor([1.0, 2.0], requires_grad=True, name="x")
    >>> "n0 -> n1" in to_dot(x * 3)
    True
    """
    full = _checked(options)
    return graph_picture(trace(outputs, *inputs, names=names), full).text()


def draw_graph(
    outputs: Any, *inputs: Any, names: Any = None, timeout: float = 60.0, **options: Unpack[Options]
) -> Drawing:
    """Draw how `outputs` were computed, as a `graphviz.Digraph` to save, render or show in a notebook.

    `outputs` is a tensor, a list, a dict (its keys become names), or a module followed by its inputs. `names`
    gives names to further tensors: a dict, or a module whose parameters then carry their path. See `Options`
    for the keywords: show_values, show_grads, show_shapes, show_formulas, depth, max_nodes, rankdir, legend,
    precision. Laying the picture out may take `timeout` seconds. Nothing is changed: no `.grad`, no graph.
    """
    from .drawing import Drawing

    return Drawing(to_dot(outputs, *inputs, names=names, **options), timeout=timeout)


def draw_backward(
    loss: Any,
    wrt: Any = None,
    style: str = "ladder",
    *,
    gradient: Any = None,
    names: Any = None,
    timeout: float = 60.0,
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
    if style not in STYLES:
        raise ValueError(f"style is one of {', '.join(STYLES)}, not {style!r}")
    backward = trace_backward(loss, wrt, gradient=gradient, names=names)
    picture = (ladder_picture if style == "ladder" else recorded_picture)(backward, full)
    return Drawing(picture.text(), timeout=timeout)


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
    clusters = forward.clusters()
    return Picture(boxes, forward.edges(numbered=True), clusters, attributes, ordered=forward.siblings())


class _Forward:
    """Forward values in boxes; `home` says which, None for a number that only stands in formulas."""

    def __init__(self, trace: Trace, options: Options) -> None:
        self.trace, self.options = trace, options
        self.chains: dict[int | None, list[int]] = {None: [], **{m.id: trace.module_chain(m.id) for m in trace.modules}}
        self.depth = options["depth"] if options["depth"] is not None else self._fitting_depth()
        self.home = {n.id: self._home(n, self.depth) for n in trace.nodes}
        self.calls = {int(home[1:]) for home in self.home.values() if home and home[0] == "m"}
        called = {i: trace.modules[int(h[1:])].path for i, h in self.home.items() if h and h[0] == "m"}
        self.expressions = {n.id: expression_of(trace, n, called) for n in trace.nodes if n.op is not None}
        self.folded: dict[int, int] = {}  # value -> the one user in whose formula it stands

    def _home(self, node: Node, depth: int | None) -> str | None:
        chain = self.chains[node.module]
        if depth is not None and len(chain) > depth:
            return f"m{chain[depth]}"
        return None if node.is_scalar_constant else f"n{node.id}"

    def _fitting_depth(self) -> int | None:
        best, count = None, len(self.trace.nodes)
        for depth in range(max(map(len, self.chains.values())), -1, -1):
            if self.options["max_nodes"] is None or count <= self.options["max_nodes"]:
                break
            if (boxes := len({self._home(n, depth) for n in self.trace.nodes})) < count:
                best, count = depth, boxes
        return best

    def fold(self, folded: dict[int, int]) -> None:
        """Give up the boxes of some values and write them out in their user's formula."""
        self.folded = folded
        for source, user in sorted(folded.items(), reverse=True):
            self.home[source] = self.home[user]
        self.expressions = {i: self.written_out(i) for i in self.expressions}

    def written_out(self, node: int) -> Symbol:
        """The formula of a value, with what is folded into it."""
        return substitute(self.expressions[node], lambda s: self.written_out(s.node) if s.node in self.folded else None)

    def boxes(self) -> list[Box]:
        groups: dict[str, list[Node]] = {}
        for node in self.trace.nodes:
            if (key := self.home[node.id]) is not None:
                groups.setdefault(key, []).append(node)
        return [(self._call if key[0] == "m" else self._value)(key, nodes) for key, nodes in groups.items()]

    def _call(self, key: str, nodes: list[Node]) -> Box:
        module = self.trace.modules[int(key[1:])]
        own = [n.name for n in nodes if n.kind == "parameter"]
        count = sum(n.kind == "operation" for n in nodes)
        details = [f"{count} operation{'s' * (count > 1)}", few(own)]
        text = label(module.path, module.kind, details) if module.path else label(module.kind, "", details)
        return Box(key, text, "module", self._clusters(module.parent), _classes(nodes), ", ".join(own))

    def _value(self, key: str, nodes: list[Node]) -> Box:
        node, options, tables = nodes[-1], self.options, []
        formula, full, word = "", "", node.kind + " "
        if node.op is not None:
            full, word = self.expressions[node.id].text("math"), ""
            if options["show_formulas"] and full != node.name:  # an unnamed transpose is called Kᵀ already
                formula = _short(full, node.op, [self.trace.nodes[i].name for i in node.operands])
        if options["show_shapes"]:
            word += _type(node)
        if options["show_values"] and isinstance(node.tensor.data, np.ndarray):
            tables.append(table("value", node.tensor.data, options["precision"]))
        if options["show_grads"] and node.requires_grad:
            tables.append(_gradient(node, options["precision"]))
        kind = "output" if node.is_output and node.op is not None else node.kind
        text = label(node.name, formula, [word], tables)
        return Box(key, text, kind, self._clusters(node.module), _classes(nodes), f"{node.name} = {full}")

    def _clusters(self, module: int | None) -> tuple[str, ...]:
        return tuple(f"m{m}" for m in self.chains[module])

    def clusters(self) -> dict[str, dict[str, str]]:
        title = {m.id: f"{html(m.path)}{'  ' * bool(m.path)}<B>{html(m.kind)}</B>" for m in self.trace.modules}
        return {f"m{i}": {**CALL, "label": f"<{text}>", "class": f"m{i}"} for i, text in title.items()}

    def edges(self, numbered: bool) -> list[Edge]:
        """One per operand; between collapsed calls one in all. Numbers where operand order matters."""
        edges: dict[Any, Edge] = {}
        for node in self.trace.nodes:
            target = self.home[node.id]
            sources = [self.home[s] for s in node.operands]
            several = len(sources) - sources.count(None) > 1
            ordered = numbered and several and node.op not in COMMUTATIVE
            for i, source in enumerate(sources):
                if source is None or target is None or source == target:
                    continue
                single = source[0] == target[0] == "n"
                mark = {"headlabel": str(i + 1), **OPERAND} if ordered and single else {}
                key = (node.id, i) if single else (source, target)
                edges.setdefault(key, (source, target, mark))
        return list(edges.values())

    def siblings(self) -> list[tuple[str, ...]]:
        """Named values made alike from the same value at the same depth (Q, K and V): side by side."""
        level: dict[int, int] = {}
        groups: dict[Any, list[str]] = {}
        for node in self.trace.nodes:
            level[node.id] = 1 + max((level[i] for i in node.operands), default=0)
            if (key := self.home[node.id]) == f"n{node.id}" and node.named and len(node.operands) > 1:
                groups.setdefault((node.op, node.operands[0], node.module, level[node.id]), []).append(key)
        return [tuple(group) for group in groups.values() if len(group) > 1]

    def caption(self) -> str:
        values, boxes = len(self.trace.nodes), len(set(self.home.values()))
        return f"{values} values in {boxes} boxes: calls below depth {self.depth} are collapsed" * bool(self.calls)


def _type(node: Node) -> str:
    return f"{node.shape[0]} arrays" if node.dtype == "tuple" else array_type(node.dtype, node.shape)


def _classes(nodes: list[Node]) -> list[str]:
    return [f"n{n.id}" for n in nodes]


def _gradient(node: Node, precision: int) -> str:
    if (grad := node.tensor.grad) is not None:
        return table("gradient", grad.data, precision)
    return small("gradient") + "<BR/>" + small("— no gradient yet" if node.op is None else "— not kept", RED)


def _short(text: str, what: str, reads: Iterable[str]) -> str:
    """A formula in lines that fit a box; one that is too long is replaced by what it is made from."""
    if len(text) > LONGEST:
        return f"{what} of {few(list(dict.fromkeys(reads)))}"
    lines = [""]
    for word in re.split(r"(?<= )", text):
        if len(lines[-1]) + len(word) > WRAP:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


# ------------------------------------------------------------------------------------------ backward pass


def ladder_picture(backward: Backward, options: Options) -> Picture:
    """Forward on the left, backward on the right at the same height; dotted, what each rule reads."""
    ladder = _Ladder(backward, options)
    forward, modules = ladder.forward, backward.forward.modules
    boxes = [*forward.boxes(), *ladder.boxes()]
    for box in boxes:  # a single module call around everything would say nothing
        calls = box.clusters if len(modules) > 1 else ()
        box.clusters = ("backward",) if box.key[0] in "sM" else ("forward", *calls)
    notes = [forward.caption(), "" if backward.steps else _nothing(backward)]
    lines = [(BLUE, "→ values"), (RED, "→ gradients"), (GREY, "┄┄ values that a rule reads")]
    half = {"style": "rounded,filled", "fontsize": "13", "labeljust": "c"}
    clusters = forward.clusters()
    looks = {"forward": ("#f3f7fd", "#c9d8ec", BLUE), "backward": ("#fdf4f3", "#f0cfcc", RED)}
    for side, (fill, border, text) in looks.items():
        clusters[side] = {**half, "label": side, "fillcolor": fill, "color": border, "fontcolor": text}
    return Picture(
        boxes,
        [*forward.edges(numbered=False), *ladder.edges()],
        clusters,
        {"rankdir": options["rankdir"], "nodesep": "0.3", **legend(boxes, options["legend"], notes, lines)},
        ladder.rows(),
        [*forward.siblings(), *ladder.siblings()],
        [(forward.home[step.target] or "", ladder.home[step.id]) for step in backward.steps[:1]],
    )


def _nothing(backward: Backward) -> str:
    name = backward.forward.nodes[backward.forward.outputs[0]].name
    return f"no backward pass: {name} depends on nothing that wants a gradient"


class _Ladder:
    """The steps of the backward pass in boxes: `s5` for step 5, `M3` for those of the collapsed call 3."""

    def __init__(self, backward: Backward, options: Options) -> None:
        self.steps, self.nodes, self.gradients = backward.steps, backward.forward.nodes, backward.gradients
        self.modules, self.options = backward.forward.modules, options
        self.forward = _Forward(backward.forward, options)
        self.steps_of: dict[int | None, list[Step]] = {}
        for step in self.steps:
            self.steps_of.setdefault(step.of, []).append(step)
        self.forward.fold(self._foldable())
        self.expressions = {step.id: self.composed(step) for step in self.steps}
        self.home = {step.id: self._home(step) for step in self.steps}
        self.visible = [s for s in self.steps if not self._is_folded(s)]

    def _foldable(self) -> dict[int, int]:
        """The unnamed values that read well written out in the formula of their only user."""
        users: dict[int, list[int]] = {}
        for node in self.nodes:
            for source in node.operands:
                users.setdefault(source, []).append(node.id)
        members: dict[int, set[int]] = {}  # box -> values folded into it
        folded, home = self.forward.folded, self.forward.home
        for node in self.nodes:
            mine = users.get(node.id, [])
            if node.named or node.op in (None, "part", "split") or len(mine) != 1:
                continue
            (user,) = mine
            apart = home[node.id] != f"n{node.id}" or home[user] != f"n{user}"
            if apart or self.nodes[user].module != node.module:
                continue
            folded[node.id] = user
            inside = {node.id} | members.get(node.id, set())
            if self._reads_well(user, inside):
                members[user] = members.get(user, set()) | inside
            else:
                del folded[node.id]
        return folded

    def _reads_well(self, user: int, inside: set[int]) -> bool:
        if any(step.role == "unbroadcast" and step.target in inside for step in self.steps):
            return False
        affected = [step for i in (user, *inside) for step in self.steps_of.get(i, ())]
        formulas = [(self.composed(step).text("math"), FOLD_BACKWARD) for step in affected]
        formulas.append((self.forward.written_out(user).text("math"), FOLD_FORWARD))
        return all(len(text) <= most and ", where" not in text for text, most in formulas)

    def composed(self, step: Step) -> Symbol:
        """The formula of a step, with values and gradients written out that have no box of their own."""
        folded = self.forward.folded
        inner = {self.steps[o].name: self.steps[o] for o in step.operands if self.steps[o].target in folded}

        def replacement(leaf: Any) -> Symbol | None:
            if leaf.node is None:
                return self.composed(inner[leaf.args[0]]) if leaf.args[0] in inner else None
            return self.forward.written_out(leaf.node) if leaf.node in folded else None

        return substitute(step.expression, replacement)

    def _home(self, step: Step) -> str:
        target = self.forward.home[step.target]
        owner = target if step.of is None else self.forward.home[step.of]
        return f"M{owner[1:]}" if owner and owner[0] == "m" and step.role != "seed" else f"s{step.id}"

    def _is_folded(self, step: Step) -> bool:
        return self.home[step.id][0] == "s" and step.target in self.forward.folded

    def boxes(self) -> list[Box]:
        groups: dict[str, list[Step]] = {}
        for step in self.visible:
            groups.setdefault(self.home[step.id], []).append(step)
        return [self._call(key, steps) if key[0] == "M" else self._step(key, steps[0]) for key, steps in groups.items()]

    def _call(self, key: str, steps: list[Step]) -> Box:
        module = self.modules[int(key[1:])]
        own = [s.name for s in steps if self.nodes[s.target].kind == "parameter" and self.gradients[s.target] == s.id]
        text = label(f"d {module.path or module.kind}", "", [f"{len(steps)} steps backward", few(own)])
        return Box(key, text, "module", (), [f"s{s.id}" for s in steps], ", ".join(own))

    def _step(self, key: str, step: Step) -> Box:
        options, array = self.options, step.tensor.data
        reads = [*(self.steps[o].name for o in step.operands), *(self.nodes[n].name for n in step.reads)]
        rule = "" if step.of is None else f"rule of {self.nodes[step.of].op}"
        full = self.expressions[step.id].text("math")
        formula = _short(full, rule, reads) if options["show_formulas"] else ""
        detail = array_type(array.dtype.name, array.shape) if options["show_shapes"] else ""
        tables = [table("gradient", array, options["precision"])] if options["show_values"] else []
        kind = "sum" if step.role in ("accumulate", "unbroadcast") else "gradient"
        text = label(step.name, formula, [detail], tables)
        return Box(key, text, kind, (), [f"s{step.id}"], f"{step.name} = {full}")

    def edges(self) -> list[Edge]:
        """Gradients flow up, from the step that made one to those that take it; dotted, what a rule reads."""
        gradients: dict[tuple[str, str], None] = {}
        reads: dict[tuple[str, str], None] = {}
        for step in self.visible:
            key = self.home[step.id]
            gradients |= {(key, self.home[o]): None for o in self._taken(step) if self.home[o] != key}
            read_nodes = [leaf.node for leaf in self.expressions[step.id].leaves() if leaf.node is not None]
            reads |= {(home, key): None for n in read_nodes if (home := self.forward.home[n])}
        return [(*pair, FLOW) for pair in gradients] + [(*pair, READ) for pair in reads]

    def _taken(self, step: Step) -> Iterable[int]:
        """The steps whose gradients a box takes, looking through those that are folded."""
        for operand in step.operands:
            yield from (self._taken(self.steps[operand]) if self._is_folded(self.steps[operand]) else (operand,))

    def rows(self) -> list[tuple[str, ...]]:
        """Each whole gradient on the row of its value, each call's on the row of the call."""
        pairs = [(f"n{node}", f"s{step}") for node, step in self.gradients.items()]
        pairs += [(f"m{call}", f"M{call}") for call in sorted(self.forward.calls)]
        shown = {*self.forward.home.values(), *(self.home[s.id] for s in self.visible)}
        folded = {f"n{node}" for node in self.forward.folded}
        return [pair for pair in pairs if pair[0] not in folded and shown.issuperset(pair)]

    def siblings(self) -> list[tuple[str, ...]]:
        """The gradients of values that stand side by side do so too, mirrored: Q K V and dV dK dQ."""
        shown = {self.home[s.id] for s in self.visible}
        rows = [[f"s{self.gradients.get(int(key[1:]))}" for key in reversed(row)] for row in self.forward.siblings()]
        mirrored = (tuple(key for key in row if key in shown) for row in rows)
        return [row for row in mirrored if len(row) > 1]


def recorded_picture(backward: Backward, options: Options) -> Picture:
    """What the engine recorded during the backward pass, boxed under the forward operation it serves.

    The forward values that it reads stand outside the boxes, without how they were made.
    """
    graph = backward.graph
    recorded = recorded_nodes(backward.forward, graph) if graph.nodes else []
    made = {f"n{n.id}": n.tensor.origin for n in recorded}
    made |= {f"n{n.id}": None for n in graph.nodes if n.tensor is backward.steps[0].tensor}
    forward = _Forward(graph, options | Options(depth=None, max_nodes=None))
    edges = [(a, b, {**more, **({"color": RED} if a in made else {"style": "dotted"})})
             for a, b, more in forward.edges(numbered=True) if b in made]  # fmt: skip
    drawn = made.keys() | {a for a, _, _ in edges}
    boxes = [box for box in forward.boxes() if box.key in drawn]
    number = {id(n.tensor): n for n in backward.forward.nodes}
    clusters: dict[str, dict[str, str]] = {}
    for box in boxes:
        box.clusters = ()
        if box.key in made:
            box.kind = "gradient"
            if (origin := made[box.key]) is not None:
                served = number[id(origin.of)]
                box.kind = "sum" if origin.role in ("accumulate", "unbroadcast") else "gradient"
                box.clusters = (f"o{served.id}",)
                clusters[f"o{served.id}"] = {**CALL, "label": f"<backward of <B>{html(served.name)}</B>>"}
    notes = ["" if boxes else _nothing(backward)]
    lines = [(RED, "→ gradients"), (GREY, "┄┄ forward values")]
    attributes = {"rankdir": options["rankdir"], **legend(boxes, options["legend"], notes, lines)}
    return Picture(boxes, edges, clusters, attributes)
