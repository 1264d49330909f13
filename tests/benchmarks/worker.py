"""One subject and one job in a process of its own, run on demand: `worker.py SUBJECT KIND:ARGUMENTS`.

The parent writes a number of steps per line and reads one line of JSON each: seconds per step by phase.
A process of its own means that thread pools, malloc settings and peak memory belong to this subject alone.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

SUBJECTS = {  # name: (module, keyword arguments of its jobs, call ta.tune_allocator() first)
    "ours": ("ours", {}, True),
    "ours, two processes": ("ours_processes", {}, True),
    "ours, default malloc": ("ours", {}, False),
    "PyTorch eager": ("peer_torch", {}, False),
    "PyTorch compiled": ("peer_torch", {"compiled": True}, False),
    "PyTorch tuned": ("peer_torch", {"tuned": True}, True),
    "JAX jit": ("peer_jax", {}, False),
    "HIPS autograd": ("peer_autograd", {}, False),
    "floor": ("floor", {}, False),
}
SETTLE = 0.06  # seconds; threads of BLAS and OpenMP spin for up to ~30 ms after their last task


def peak_memory() -> int:
    """Bytes, processes forked by the subject added in full. VmHWM where there is one: ru_maxrss starts at the size of
    the parent that forked."""
    pids = ["self", *(process.pid for process in multiprocessing.active_children())]
    try:
        return sum(
            next(int(line.split()[1]) * 1024 for line in status(pid) if line.startswith("VmHWM")) for pid in pids
        )
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def status(pid) -> list[str]:
    return Path(f"/proc/{pid}/status").read_text().splitlines()


def timed_step(job, seconds: dict[str, float]) -> None:
    for phase in job.phases:
        start = time.perf_counter()
        getattr(job, phase)()
        seconds[phase] += time.perf_counter() - start


def fingerprint(a: np.ndarray) -> tuple[float, float]:
    """Norm and projection on a fixed random direction: equal arrays share them, others do not."""
    direction = np.random.default_rng(0).standard_normal(a.size)
    return float(np.linalg.norm(a)), float(direction @ a.ravel())


def build(subject: str, spec: str):
    """The job; raises ImportError or NotImplementedError where this subject has none."""
    module_name, options, tune = SUBJECTS[subject]
    kind, *arguments = spec.split(":")
    module = importlib.import_module(module_name)
    if module_name == "peer_torch":
        module.torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if tune:
        ta = importlib.import_module("tinygrad_attn")
        getattr(ta, "tune_allocator", lambda: None)()
    if not hasattr(module, kind):
        raise NotImplementedError("not part of this subject")
    imported = peak_memory()
    return getattr(module, kind)(*arguments, **options), imported


def main(subject: str, spec: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to stderr

    def answer(**fields) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    try:
        job, imported = build(subject, spec)
    except (ImportError, NotImplementedError) as reason:
        missing = isinstance(reason, ModuleNotFoundError)
        return answer(skipped=f"{reason.name} is not installed" if missing else str(reason))
    agree = []  # the first three steps: they compile, warm up, and say what must agree
    for _ in range(3 if spec.startswith("Train") else 1):
        last = dict.fromkeys(job.phases, 0.0)
        timed_step(job, last)
        agree.append([fingerprint(np.asarray(a, np.float64)) for a in job.result()])
    answer(agree=agree, seconds=sum(last.values()), imported=imported)
    for line in sys.stdin:
        steps = int(line)
        if sum(last.values()) < 0.5:  # bring this process's data back into the caches; a long step does so itself
            timed_step(job, dict.fromkeys(job.phases, 0.0))
        seconds, start = dict.fromkeys(job.phases, 0.0), resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(steps):
            timed_step(job, seconds)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start.ru_minflt
        time.sleep(SETTLE)
        answer(
            phases={phase: total / steps for phase, total in seconds.items()},
            page_faults=faults / steps,
            peak=peak_memory(),
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
