"""Data parallelism: every process differentiates its part of a batch, on weights and into gradients that all share.

Python runs one thread at a time, so threads of one process wait for each other; processes don't.
"""

from __future__ import annotations

import mmap
import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import reduce
from itertools import accumulate as running_sum
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from .autograd import Gradients, delivered, deposit
from .optim import Array, Batch, add_gradients, shares
from .tensor import Tensor


class Workers:
    """`n` processes that share the batches of `ta.optim.accumulate` among them.

    Each is a copy of this process as it is now (a fork), with the same `mean_loss(inputs, targets)`, the same modes
    and the same training switches; before every call it gets the present values of `params`, the leaves whose
    gradients come back. With one batch for each worker these are those of `ta.optim.accumulate`, bit by bit, where
    there was no gradient before; a worker with several batches adds its own first. NumPy's matrix products keep to
    one thread in each worker (by threadpoolctl). A random generator inside, such as dropout's, goes its own way.

    Leaving the ``with`` block ends the processes. Raises NotImplementedError where the system cannot fork, and
    RuntimeError once a worker has ended: make new ones then.

    >>> w = ta.Tensor([[1.0, 0.0]], requires_grad=True)
    >>> batches = [(np.ones((2, 1), np.float32), np.array([0, 1])), (np.ones((1, 1), np.float32), np.array([1]))]
    >>> with ta.parallel.Workers(lambda x, y: ta.cross_entropy(x @ w, y), [w], 2) as workers:
    ...     loss = workers.accumulate(batches)
    >>> round(loss, 4), w.grad.numpy().round(4)
    (0.9799, array([[ 0.3977, -0.3977]], dtype=float32))
    """

    def __init__(self, mean_loss: Callable[[Any, Array], Tensor], params: Iterable[Tensor], n: int) -> None:
        if n < 1:
            raise ValueError(f"Workers: needs at least one process, got n={n}")
        if "fork" not in multiprocessing.get_all_start_methods():
            raise NotImplementedError("Workers: this system cannot fork; ta.optim.accumulate works in one process")
        self.mean_loss, self.params = mean_loss, list({id(p): p for p in params}.values())
        self.values = self._shared()
        self.gradients = [self._shared() for _ in range(n)]
        self.pipes: list[Any] = []
        self.processes: list[Any] = []
        self._end = Finalize(self, _end, (self.pipes, self.processes), exitpriority=0)
        fork = multiprocessing.get_context("fork")
        for gradients in self.gradients:
            pipe, theirs = fork.Pipe()
            self.pipes.append(pipe)
            self.processes.append(fork.Process(target=self._serve, args=(theirs, gradients), daemon=True))
            self.processes[-1].start()
            theirs.close()

    def _shared(self) -> list[Array]:
        """Arrays like the parameters, in memory that stays common to processes forked later."""
        sizes = [-(-p.data.nbytes // 64) * 64 for p in self.params]  # each begins at a cache line
        memory = mmap.mmap(-1, max(sum(sizes), 1))
        starts = running_sum(sizes, initial=0)
        return [np.ndarray(p.shape, p.dtype, memory, start) for p, start in zip(self.params, starts)]

    def accumulate(self, batches: Iterable[Batch], ignore_index: int = -100) -> float:
        """Gradients and mean loss of several (inputs, targets) batches as if they were one."""
        batches = list(batches)
        for p, value in zip(self.params, self.values):
            if p.dtype != value.dtype or p.shape != value.shape:
                raise TypeError(
                    f"Workers: {p.name or 'a parameter'} was {value.dtype}{value.shape} when they were made"
                )
            np.copyto(value, p.data)
        jobs = list(zip(batches, shares(batches, ignore_index)))
        try:
            for i, pipe in enumerate(self.pipes):
                pipe.send(jobs[i :: len(self.pipes)])
            answers = [pipe.recv() for pipe in self.pipes]
        except (EOFError, OSError):
            raise RuntimeError("Workers: a process has ended, because it was closed, killed or out of memory") from None
        except BaseException:  # Ctrl-C, or what cannot be sent: answers that nobody reads must not stay behind
            self.close()
            raise
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        means, received = zip(*answers)
        found: Gradients = {}
        for i, p in enumerate(self.params):
            parts = [gradients[i] for gradients, has in zip(self.gradients, received) if has[i]]
            if parts:
                found[p] = reduce(np.add, parts)
        deposit(delivered(found))
        return float(sum(means))

    def _serve(self, pipe: Any, gradients: Sequence[Array]) -> None:
        """What a worker does, until it is told to stop or its parent is gone."""
        for other in self.pipes:  # those of the parent, so that they close when it ends
            other.close()
        for request in (signal.SIGINT, signal.SIGTERM):  # the parent answers them, and may finish its step first
            signal.signal(request, signal.SIG_IGN)
        threadpool_limits(1)
        with suppress(EOFError, OSError):
            while (jobs := pipe.recv()) is not None:
                try:
                    pipe.send(self._answer(jobs, gradients))
                except Exception as error:
                    error.add_note(f"In a worker process:\n{traceback.format_exc()}")
                    try:
                        pipe.send(error)
                    except (TypeError, AttributeError, pickle.PicklingError):
                        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))

    def _answer(self, jobs: list[tuple[Batch, float]], gradients: Sequence[Array]) -> tuple[float, list[bool]]:
        """This worker's part of the loss, and which parameters got a gradient."""
        for p, value in zip(self.params, self.values):
            p.data, p.grad = value, None
        mean = sum(add_gradients(self.mean_loss, batch, share) for batch, share in jobs)
        for p, gradient in zip(self.params, gradients):
            if p.grad is not None:
                np.copyto(gradient, p.grad.data)
        return mean, [p.grad is not None for p in self.params]

    def close(self) -> None:
        """End the processes; leaving the ``with`` block does so too, and so does the end of the program."""
        self._end()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(pipes: list[Any], processes: list[Any]) -> None:
    for pipe in pipes:
        with suppress(OSError):
            pipe.send(None)
        pipe.close()
    for process in processes:
        process.join(1)
        process.kill()  # one that is still busy
        process.join()
