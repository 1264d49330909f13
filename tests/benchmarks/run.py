"""Every comparison, one command: `run.py` writes results.json, growth.png and README.md beside it.

Each subject runs in a process of its own (`worker.py`); they take turns, A B C A B C ..., others asleep.
`--only S,L,growth` measures a part and keeps the rest of results.json, `--quick` tries everything out briefly
and writes nothing, `--report` writes README.md anew from results.json.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

import growth
import report
from worker import SUBJECTS

HERE = Path(__file__).parent
WORKLOADS = {
    "S": ["Train:S"],
    "M": ["Train:M"],
    "L": ["Train:L"],
    "XL": ["Train:XL"],
    "attention": ["Attention:128", "Attention:512", "Attention:2048"],
    "chain": ["Chain:10000"],
    "generate": ["Generate:L:63", "Generate:L:500"],
    "by-hand": ["ByHand"],
}
TOLERANCE = 1e-4  # relative, on losses, outputs and gradients, before anything is timed


class Worker:
    """A process that waits until it is asked for a number of steps."""

    def __init__(self, subject: str, spec: str, threads: int):
        variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        paths = [str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
        self.subject, self.log = subject, tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, HERE / "worker.py", subject, spec],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | dict.fromkeys(variables, str(threads)) | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        self.ready = self.answer()

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            return {"failed": (self.log.read().strip() or "died silently").rpartition("\n")[2]}
        return json.loads(line)

    def run(self, steps: int) -> dict:
        with contextlib.suppress(BrokenPipeError):  # answer() says why the worker died
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self.process.stdin.close()  # end of input ends the worker
        self.process.wait()
        self.log.close()


def agree(a: list, b: list) -> bool:
    """Whether two lists of (norm, projection) pairs, one per array and step, describe the same arrays."""
    pairs = list(zip(chain.from_iterable(a), chain.from_iterable(b), strict=True))
    return all(abs(x - y) <= TOLERANCE * max(abs(p[0]), 1e-12) for p, q in pairs for x, y in zip(p, q, strict=True))


def measure(spec: str, subjects: list[str], *, rounds: int, block: float, threads: int) -> dict[str, dict]:
    """Interleaved medians of one job: {subject: {seconds, phases, peak, ...} or {skipped: why}}."""
    workers, results = [], {}
    try:
        for subject in subjects:
            print(f"  {subject:22}", "starts", end="\r", flush=True)
            worker = Worker(subject, spec, threads)
            workers.append(worker)
            results[subject] = {k: worker.ready[k] for k in ("skipped", "failed") if k in worker.ready}
        running = [w for w in workers if not results[w.subject]]
        answers = {w.subject: w.ready["agree"] for w in running if any(w.ready["agree"])}
        reference = next(iter(answers.values()), None)
        for subject, answer in answers.items():
            if not agree(reference, answer):
                results[subject] = {"failed": f"disagrees: {answer} instead of {reference}"}
        running = [w for w in running if not results[w.subject]]

        blocks: dict[str, list] = {w.subject: [] for w in running}
        for turn in range(rounds):
            for w in running:
                if turn % 3 and w.ready["seconds"] > 10:  # whose steps take a minute gets a third of the rounds
                    continue
                steps = min(max(round(block / max(w.ready["seconds"], 1e-6)), 1), 1000)
                blocks[w.subject].append(w.run(steps))
        for w in running:
            results[w.subject] = summary(blocks[w.subject], w.ready["imported"])
    finally:
        for worker in workers:
            worker.close()
    return results


def summary(blocks: list[dict], imported: int) -> dict:
    if failed := next((b for b in blocks if "failed" in b), None):
        return failed
    seconds = [sum(b["phases"].values()) for b in blocks]
    low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    return {
        "seconds": statistics.median(seconds),
        "quartiles": [low, high],
        "phases": {p: statistics.median(b["phases"][p] for b in blocks) for p in blocks[0]["phases"]},
        "page_faults": statistics.median(b["page_faults"] for b in blocks),
        "peak": blocks[-1]["peak"],
        "imported": imported,
    }


def machine(threads: int) -> dict:
    import numpy as np

    def version(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    def first_line(path: str, start: str) -> str:
        lines = Path(path).read_text().splitlines() if Path(path).exists() else []
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(start)), "unknown")

    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    flags = first_line("/proc/cpuinfo", "flags").split()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": git.stdout.strip() or "unknown",
        "cpu": first_line("/proc/cpuinfo", "model name"),
        "vectors": next((v for v in ("avx512f", "avx2", "avx", "asimd") if v in flags), platform.machine()),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory": first_line("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        "numpy": f"{version('numpy')} ({blas['name']} {blas['version']})",
        "versions": {p: version(p) for p in ("torch", "jax", "autograd")},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of {','.join([*WORKLOADS, 'growth'])}")
    parser.add_argument("--subjects", help=f"some of {'; '.join(SUBJECTS)} (separated by semicolons)")
    parser.add_argument("--repeats", type=int, default=15, help="rounds in which every subject has one turn")
    parser.add_argument("--threads", type=int, default=2, help="for every subject; the cores beyond are not used")
    parser.add_argument("--quick", action="store_true", help="one short round without XL; nothing is written")
    parser.add_argument("--report", action="store_true", help="only write README.md from results.json")
    args = parser.parse_args()

    file = HERE / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    if args.report:
        report.write(results, HERE)
        return 0

    wanted = args.only.split(",") if args.only else [*WORKLOADS, "growth"]
    if unknown := set(wanted) - {*WORKLOADS, "growth"}:
        parser.error(f"unknown workload: {', '.join(sorted(unknown))}")
    if args.quick and not args.only:
        wanted.remove("XL")
    subjects = [s.strip() for s in args.subjects.split(";")] if args.subjects else list(SUBJECTS)
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5:
        print(f"the machine is busy (load {os.getloadavg()[0]:.1f}): expect noise", file=sys.stderr)
    if hasattr(os, "sched_setaffinity"):  # also bounds the pools that no environment variable reaches
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    options = {"threads": args.threads, "rounds": 1 if args.quick else args.repeats}
    options["block"] = 0.0 if args.quick else 0.3

    results["machine"] = machine(args.threads)
    for spec in (spec for name in wanted for spec in WORKLOADS.get(name, [])):
        print(spec, flush=True)
        results[spec] = measure(spec, subjects, **options)
        for subject, r in results[spec].items():
            said = f"{r['seconds'] * 1e3:9.2f} ms" if "seconds" in r else r
            print(f"  {subject:22}", said, flush=True)
        if not args.quick:
            file.write_text(json.dumps(results, indent=1) + "\n")
    if "growth" in wanted:
        results["growth"] = growth.measure(measure, quick=args.quick, **options)

    if not args.quick:
        file.write_text(json.dumps(results, indent=1) + "\n")
        report.write(results, HERE)
    measured = [r for spec, by in results.items() if spec.partition(":")[0][0].isupper() for r in by.values()]
    return int(any("failed" in r for r in measured))


if __name__ == "__main__":
    sys.exit(main())
