"""Optimizers on flat buffers: parameters become views into one long array, so a step is a few calls on it.

Dozens of parameters would cost dozens of small NumPy calls each; one array is worked through in pieces that
stay in the processor's cache, so that the passes of an update don't travel to main memory and back.
"""

from __future__ import annotations

import math
from bisect import bisect, bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .autograd import constant
from .nn import Parameter
from .tensor import Tensor

Array = NDArray[Any]
Batch = tuple[Any, Array]  # inputs and targets

__all__ = ["SGD", "AdamW", "Optimizer", "accumulate", "clip_grad_norm", "warmup_cosine"]

CHUNK = 1 << 16  # elements worked on at a time: values, gradients and two moments in float32 make 1 MB


class _Group:
    """Parameters of one dtype, laid end to end in `values`, those that decay first; their moments likewise."""

    def __init__(self, params: list[Tensor], moments: Iterable[str]) -> None:
        self.params = params = sorted(params, key=_is_spared)
        self.decaying = sum(p.size for p in params if not _is_spared(p))
        self.steps = np.zeros(len(params), np.int64)  # how many updates each parameter has had
        self.values = np.concatenate([p.data.reshape(-1) for p in params])
        self.gathered = np.empty_like(self.values[:CHUNK])
        self.moments = {name: np.zeros_like(self.values) for name in moments}
        self.bounds = [0, *np.cumsum([p.size for p in params]).tolist()]
        pieces = np.split(self.values, self.bounds[1:-1])
        self.views = [piece.reshape(p.shape) for piece, p in zip(pieces, params)]
        for p, view in zip(params, self.views):
            p.data = view

    def prepare(self) -> None:
        """See to it that what has a gradient lives in the flat buffer and may be written."""
        for p, view in zip(self.params, self.views):
            if p.grad is None:
                continue
            if p.dtype != view.dtype:
                was = f"step: {_describe(p)} was {view.dtype} when the optimizer was made and is {p.dtype} now"
                raise TypeError(f"{was}; make a new optimizer after converting a model")
            if not view.flags.writeable:
                needed = f"step: {_describe(p)} is still needed by a live graph, whose gradients would be wrong"
                raise RuntimeError(f"{needed}; run backward() on the loss first, or delete it")
            if p.data is not view:  # somebody assigned another array
                view[...] = p.data
                p.data = view

    def pieces(self) -> Iterator[tuple[int, slice, Array]]:
        """(Which update, where, copies of the gradients) for each piece whose parameters are at the same update."""
        updates = [0 if p.grad is None else t + 1 for p, t in zip(self.params, self.steps.tolist())]
        grads: list[Any] = [None if p.grad is None else p.grad.data.reshape(-1) for p in self.params]
        last = 0
        for update, neighbours in groupby(updates):
            first, last = last, last + len(list(neighbours))
            if update:
                self.steps[first:last] = update
                for low in range(self.bounds[first], self.bounds[last], CHUNK):
                    piece = slice(low, min(low + CHUNK, self.bounds[last]))
                    inside = range(bisect(self.bounds, low) - 1, bisect_left(self.bounds, piece.stop))
                    parts = [grads[i][max(low - self.bounds[i], 0) : piece.stop - self.bounds[i]] for i in inside]
                    yield update, piece, np.concatenate(parts, out=self.gathered[: piece.stop - low])


class Optimizer:
    """What optimizers share: groups, gathering of gradients, `zero_grad`, and the state dict.

    `params` are tensors; one that is named twice is updated once. A module's one-axis Parameters (biases,
    gains of a layer norm) are spared the weight decay; matrices, embeddings and tensors of your own get it.

    A parameter without a gradient is left alone: no decay, no step. Each parameter counts its own updates.
    """

    moment_names: tuple[str, ...] = ()

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        kind = type(self).__name__
        _within(math.inf, kind, lr=lr, weight_decay=weight_decay)
        self.lr = lr
        self.weight_decay = weight_decay
        alike: dict[Any, list[Tensor]] = {}
        for p in {id(p): p for p in params}.values():
            # A frozen Parameter may thaw later; until then it has no gradient, so no update.
            if not isinstance(p, Tensor) or p.op is not None or not (p.requires_grad or isinstance(p, Parameter)):
                raise TypeError(f"{kind}: a parameter is a leaf Tensor with requires_grad=True, got {p!r:.80}")
            alike.setdefault(p.dtype, []).append(p)
        if not alike:
            raise ValueError(f"{kind}: got no parameters")
        self.groups = [_Group(members, self.moment_names) for members in alike.values()]

    def zero_grad(self) -> None:
        for group in self.groups:
            for p in group.params:
                p.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient, in place. All are checked first."""
        for group in self.groups:
            group.prepare()
        for group in self.groups:
            for t, piece, gradient in group.pieces():
                moments = [moment[piece] for moment in group.moments.values()]
                p = group.values[piece]
                self.update(p, gradient, moments, t, p[: max(group.decaying - piece.start, 0)])

    def update(self, p: Array, g: Array, moments: list[Array], t: int, decaying: Array) -> None:
        """The rule, for the `t`-th update of one stretch of flat values `p`, whose first ones are `decaying`.

        It may overwrite the gradients `g`.
        """
        raise NotImplementedError

    def _arrays(self) -> dict[str, Array]:
        """What is remembered between steps: of each group the update counts and the flat moments."""
        states = [{"steps": group.steps, **group.moments} for group in self.groups]
        return {f"{i}.{name}": array for i, state in enumerate(states) for name, array in state.items()}

    def state_dict(self) -> dict[str, Any]:
        """The learning rate, and of each group copies of its update counts and moments: "0.steps", ..."""
        return {"lr": self.lr} | {name: array.copy() for name, array in self._arrays().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave. Checked first: on a mismatch nothing is loaded."""
        given, own = ({name: np.shape(value) for name, value in s.items()} for s in (state, self.state_dict()))
        if given != own:
            raise ValueError(f"{type(self).__name__}.load_state_dict: the state holds {given}, this needs {own}")
        self.lr = float(state["lr"])
        for name, array in self._arrays().items():
            array[...] = state[name]


class SGD(Optimizer):
    """Gradient descent: p -= lr * (g + weight_decay * p), with momentum p -= lr * u, u = momentum * u + g.

    >>> p = ta.Tensor([1.0], requires_grad=True)
    >>> sgd = ta.optim.SGD([p], lr=0.5)
    >>> (p * p).sum().backward()
    >>> sgd.step(); p.numpy()
    array([0.], dtype=float32)
    """

    def __init__(self, params: Iterable[Tensor], lr: float, *, momentum: float = 0, weight_decay: float = 0) -> None:
        _within(1, "SGD", momentum=momentum)
        self.momentum = momentum
        self.moment_names = ("momentum",) if momentum else ()
        super().__init__(params, lr, weight_decay)

    def update(self, p: Array, g: Array, moments: list[Array], t: int, decaying: Array) -> None:
        if self.weight_decay:
            g[: len(decaying)] += self.weight_decay * decaying
        for u in moments:
            u *= self.momentum
            u += g
            g = u
        p -= self.lr * g


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101; decay times lr, as PyTorch).

        m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
        p = p - lr (weight_decay p + m_hat / (sqrt(v_hat) + eps)),   m_hat = m / (1 - beta1^t), v_hat alike

    >>> p = ta.Tensor(np.array([1.0]), requires_grad=True)
    >>> adamw = ta.optim.AdamW([p], lr=0.1)
    >>> (0.5 * p).sum().backward()
    >>> adamw.step(); round(p.item(), 9)
    0.899000002
    """

    moment_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        for beta in betas:
            _within(1, "AdamW", betas=beta)
        _within(math.inf, "AdamW", eps=eps)
        self.betas, self.eps = betas, eps
        super().__init__(params, lr, weight_decay)

    def update(self, p: Array, g: Array, moments: list[Array], t: int, decaying: Array) -> None:
        (m, v), (beta1, beta2) = moments, self.betas
        g *= 1 - beta1
        m *= beta1
        m += g  # beta1 m + (1 - beta1) g
        g *= g
        g *= (1 - beta2) / (1 - beta1) ** 2
        v *= beta2
        v += g  # beta2 v + (1 - beta2) g^2
        unbias1, unbias2 = 1 - beta1**t, math.sqrt(1 - beta2**t)
        np.sqrt(v, out=g)
        g += self.eps * unbias2
        np.divide(m, g, out=g)
        g *= self.lr * unbias2 / unbias1  # lr m_hat / (sqrt(v_hat) + eps)
        if self.weight_decay:
            decaying *= 1 - self.lr * self.weight_decay
        p -= g


def clip_grad_norm(params: Iterable[Tensor] | Tensor, max_norm: float) -> float:
    """Scale all gradients so that their joint 2-norm is at most `max_norm`; returns the norm before that.

    Parameters without a gradient are skipped and a tied parameter counts once. Raises ValueError if
    `max_norm` is not positive, and FloatingPointError naming the parameter if a gradient is not finite (the
    gradients are then left as they were).

    >>> p = ta.Tensor([3.0, 4.0], requires_grad=True)
    >>> (p * p / 2).sum().backward()
    >>> ta.optim.clip_grad_norm([p], 1.0), p.grad.numpy().round(4)
    (5.0, array([0.6, 0.8], dtype=float32))
    """
    if not max_norm > 0:
        raise ValueError(f"clip_grad_norm: max_norm must be positive, got {max_norm}")
    params = [params] if isinstance(params, Tensor) else params  # its rows are not parameters
    owners = [p for p in {id(p): p for p in params}.values() if p.grad is not None]
    norms = [_norm(p.grad.data.reshape(-1)) for p in owners]
    for p, size in zip(owners, norms):
        if not math.isfinite(size):
            wrong = f"clip_grad_norm: the gradient of {_describe(p)} is not finite"
            raise FloatingPointError(f"{wrong}; run the step under ta.detect_anomaly() to find the operation")
    norm = math.hypot(*norms)
    if norm > max_norm:
        for p in owners:
            p.grad = constant(p.grad.data * p.grad.dtype.type(max_norm / norm))
    return norm


def _norm(g: Array) -> float:
    """The 2-norm of a flat array, also where the squares of its elements overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        norm = math.sqrt(np.dot(g, g))
        if math.isinf(norm):
            peak = np.abs(g).max()
            norm = float(peak) * math.sqrt(np.dot(g / peak, g / peak))
    return norm


def warmup_cosine(step: int, *, max_lr: float, min_lr: float, warmup: int, total: int) -> float:
    """Learning rate of `step` (from 0): linear up to `max_lr` over `warmup` steps, then a half cosine.

    It reaches `min_lr` at `total` and stays there (nanoGPT's schedule).

    >>> [round(warmup_cosine(s, max_lr=1.0, min_lr=0.1, warmup=2, total=6), 3) for s in range(8)]
    [0.333, 0.667, 1.0, 0.868, 0.55, 0.232, 0.1, 0.1]
    """
    if step < 0 or warmup < 0 or total < warmup:
        raise ValueError(f"warmup_cosine: wants step >= 0 and 0 <= warmup <= total, got {step}, {warmup}, {total}")
    if step < warmup:
        return max_lr * (step + 1) / (warmup + 1)
    if step >= total:
        return min_lr
    progress = (step - warmup) / (total - warmup)
    return min_lr + 0.5 * (1 + math.cos(math.pi * progress)) * (max_lr - min_lr)


def accumulate(mean_loss: Callable[[Any, Array], Tensor], batches: Iterable[Batch], ignore_index: int = -100) -> float:
    """Gradients and mean loss of several (inputs, targets) batches as if they were one.

    Calls `mean_loss(inputs, targets)` and differentiates it batch by batch, each weighted by the targets it uses
    (those that are not `ignore_index`): a mean of means would give tokens of short batches more weight.
    `ta.parallel.Workers` does the same in several processes.
    """
    batches = list(batches)
    return sum(add_gradients(mean_loss, *job) for job in zip(batches, shares(batches, ignore_index)))


def shares(batches: Sequence[Batch], ignore_index: int) -> list[float]:
    """The weight of each batch in the joint mean: its part of all the targets that are used."""
    used = np.array([np.count_nonzero(np.asarray(targets) != ignore_index) for _, targets in batches])
    share: list[float] = (used / max(used.sum(), 1)).tolist()
    return share


def add_gradients(mean_loss: Callable[[Any, Array], Tensor], batch: Batch, share: float) -> float:
    """Add the gradient of a batch with this share in the mean to every ``.grad``; its part of the loss."""
    loss = mean_loss(*batch)
    loss.backward(np.full(loss.shape, share))
    return float(loss.item() * share)


def _is_spared(p: Tensor) -> bool:
    """Whether weight decay leaves it alone: a module's bias or gain."""
    return isinstance(p, Parameter) and p.ndim == 1


def _within(limit: float, where: str, **values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < limit:
            raise ValueError(f"{where}: {name} must be in [0, {limit}), got {value}")


def _describe(p: Tensor) -> str:
    return f"{p.name or 'an unnamed parameter'} of shape {p.shape}"
