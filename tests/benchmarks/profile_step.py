"""Where a step of ours goes: `profile_step.py --workload L` prints time, NumPy calls and bytes per primitive.

Forward functions and rules are wrapped from outside. One pass measures time, another hands the primitives
arrays that count: every ufunc call, every other NumPy function that makes a new array, and the bytes they
read and wrote. (Copies by methods, `astype` or `x[index]`, are not seen.) An
operation that shares intermediates with its rule counts two calls forward.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--workload", default="L", help="S, M, L, XL, or a job such as Attention:512 or Chain:10000")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--default-malloc", action="store_true", help="without ta.tune_allocator()")
args = parser.parse_args()
for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[pool] = str(args.threads)  # before NumPy is imported
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np  # noqa: E402
import ours  # noqa: E402
import workloads as wl  # noqa: E402

import tinygrad_attn as ta  # noqa: E402


@dataclass
class Cost:
    calls: int = 0
    seconds: float = 0.0
    numpy_calls: int = 0
    bytes: int = 0


class Counted(np.ndarray):
    """An array whose NumPy calls are charged to `Counted.cost`."""

    cost = Cost()

    @classmethod
    def charge(cls, arrays) -> None:
        cls.cost.numpy_calls += 1
        cls.cost.bytes += sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        given = {"out": tuple(map(plain, out))} if out else {}
        result = getattr(ufunc, method)(*map(plain, inputs), **given, **map_values(plain, kwargs))
        self.charge([*inputs, *(result if isinstance(result, tuple) else (result,))])
        return out[0] if out and method == "__call__" and len(out) == 1 else counted(result)

    def __array_function__(self, function, types, args, kwargs):
        before = self.cost.numpy_calls
        result = super().__array_function__(function, types, args, kwargs)
        operands = list(flat([*args, *kwargs.values()]))
        is_new = isinstance(result, np.ndarray) and not any(np.may_share_memory(result, a) for a in operands)
        if is_new and self.cost.numpy_calls == before:  # not made of ufuncs that were charged already
            self.charge([*operands, result])
        return result


def flat(values):
    for v in values:
        if isinstance(v, np.ndarray):
            yield v
        elif isinstance(v, (tuple, list)):
            yield from flat(v)


def map_values(f, mapping: dict) -> dict:
    return {k: f(v) for k, v in mapping.items()}


def over_arrays(f):
    def mapped(value):
        if isinstance(value, np.ndarray):
            return f(value)
        return type(value)(map(mapped, value)) if type(value) in (tuple, list) else value

    return mapped


plain = over_arrays(lambda a: a.view(np.ndarray))
counted = over_arrays(lambda a: a.view(Counted))


class Profile:
    """Costs per (primitive, direction); what a primitive calls inside belongs to the outermost one."""

    def __init__(self) -> None:
        self.costs: dict[tuple[str, str], Cost] = defaultdict(Cost)
        self.counting = self.inside = False

    def wrap(self, function, name: str, direction: str):
        def wrapped(*args):
            if self.inside:
                return function(*args)
            self.inside, cost = True, self.costs[name, direction]
            try:
                if self.counting:
                    Counted.cost = cost
                    return plain(function(*map(counted, args)))
                start = time.perf_counter()
                result = function(*args)
                cost.seconds += time.perf_counter() - start
                cost.calls += 1
                return result
            finally:
                self.inside = False

        return wrapped

    def install(self) -> None:
        for op in ta.PRIMITIVES.values():
            op.forward = self.wrap(op.forward, op.name, "forward")
            if op.saves:
                op.saves = self.wrap(op.saves, op.name, "forward")
            op.by_position = tuple(rule and self.wrap(rule, op.name, "backward") for rule in op.by_position)
            if op.joint:
                op.joint = self.wrap(op.joint, op.name, "backward")


def run(job, steps: int) -> dict[str, float]:
    seconds = dict.fromkeys(job.phases, 0.0)
    for _ in range(steps):
        for phase in job.phases:
            start = time.perf_counter()
            getattr(job, phase)()
            seconds[phase] += (time.perf_counter() - start) / steps
    return seconds


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def main() -> None:
    if not args.default_malloc:
        ta.tune_allocator()
    spec = f"Train:{args.workload}" if args.workload in wl.SIZES else args.workload
    kind, *arguments = spec.split(":")
    job, profile = getattr(ours, kind)(*arguments), Profile()
    run(job, 3)  # warm up
    before = faults()
    untouched = run(job, args.steps)
    per_step = (faults() - before) / args.steps
    profile.install()
    seconds = run(job, args.steps)
    profile.counting = True
    run(job, 1)

    total, profiled = sum(untouched.values()), sum(seconds.values())
    print(f"{spec}: {total * 1e3:.3f} ms per step, {per_step:,.0f} page faults per step, {args.threads} threads")
    for phase, t in untouched.items():
        print(f"  {phase:10} {t * 1e3:9.3f} ms")
    if "backward" in untouched:
        print(f"  backward / forward = {untouched['backward'] / untouched['forward']:.2f}")
    head = ("primitive", "", "calls", "ms", "share", "NumPy calls", "MB touched", "GB/s")
    print("\n{:18}{:10}{:>7}{:>10}{:>8}{:>13}{:>12}{:>8}".format(*head))
    for (name, direction), c in sorted(profile.costs.items(), key=lambda item: -item[1].seconds):
        ms = c.seconds / args.steps * 1e3
        print(
            f"{name:18}{direction:10}{c.calls / args.steps:7.0f}{ms:10.3f}{ms / 1e3 / profiled:8.1%}"
            f"{c.numpy_calls:13,}{c.bytes / 1e6:12.2f}{c.bytes / 1e6 / max(ms, 1e-9):8.1f}"
        )
    for direction in ("forward", "backward"):
        inside = sum(c.seconds for (_, d), c in profile.costs.items() if d == direction) / args.steps
        numpy_calls = sum(c.numpy_calls for (_, d), c in profile.costs.items() if d == direction)
        calls = sum(c.calls for (_, d), c in profile.costs.items() if d == direction) / args.steps
        print(
            f"{direction}: {calls:,.0f} calls of primitives, {numpy_calls:,} NumPy calls, {inside * 1e3:.3f} ms in them"
        )
        if direction in seconds:
            around = (seconds[direction] - inside) * 1e3
            print(f"{'':10}{around:.3f} ms around them (engine, modules, this profile)")


if __name__ == "__main__":
    main()
