"""The anchor run: nanoGPT's recipe for a CPU, by this project and by PyTorch, one after the other.

    python tests/benchmarks/anchor_run.py tinyshakespeare.txt --seeds 3

Both start from the same weights and see the same batches, so what differs is who computes. For each seed: the
held-out loss, a mean over the same 200 batches, and seconds of training without evaluation and saving. That
takes about four minutes a seed; leave the machine alone meanwhile. With `--preset` this project runs another
preset of the training demo, and PyTorch the recipe.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

DEMOS = Path(__file__).parents[2] / "demos"
sys.path[:0] = [str(DEMOS), str(DEMOS.parent)]


def ours(text, seed, preset, processes):
    import plot_run
    import train_next_token as demo

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        flags = ["--preset", preset, "--seed", str(seed), "--processes", str(processes)]
        demo.main([*flags, "--text", str(text), "--out", str(run)])
        loss = json.loads((run / "result.json").read_text())["val_loss"]
        config = json.loads((run / "config.json").read_text())
        tokens = config["batch_size"] * config["block_size"] * config["grad_accumulation"]
        log = plot_run.read_log(run)
    return {
        "loss": loss,
        "seconds": sum(tokens / line["tokens_per_s"] for line in log if "tokens_per_s" in line),
    }


def pytorch(text, seed, preset, _):
    """The same recipe in eager PyTorch, with its fused attention and its fused AdamW."""
    import peer_torch
    import torch
    import train_next_token as demo
    import workloads

    from tinygrad_attn.data import Batches
    from tinygrad_attn.optim import warmup_cosine

    s = replace(demo.PRESETS[preset], text=str(text), seed=seed)
    run = demo.Run(Path("unused"), s)
    size = workloads.Size(s.block_size, s.batch_size, s.n_layer, s.n_head, s.n_embd, len(run.tokenizer))
    model = peer_torch.GPT(size)
    linear = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    weights = run.model.state_dict().items()
    model.load_state_dict({name: torch.tensor(w.T if name in linear else w) for name, w in weights})
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": s.weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, s.beta2), fused=True)
    schedule = {
        "max_lr": s.learning_rate,
        "min_lr": s.min_lr,
        "warmup": s.warmup_iters,
        "total": s.max_iters,
    }

    def loss_of(batch):
        return model(*(torch.from_numpy(np.ascontiguousarray(ids)) for ids in batch))[1]

    began = time.perf_counter()
    for step, batch in zip(range(s.max_iters), run.batches):
        for group in optimizer.param_groups:
            group["lr"] = warmup_cosine(step, **schedule)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, s.grad_clip)
        optimizer.step()
        loss.item()
    seconds = time.perf_counter() - began
    held_out = Batches(run.val_ids, s.block_size, s.batch_size, np.random.default_rng(s.seed))
    with torch.no_grad():
        losses = [loss_of(batch).item() for batch in islice(held_out, demo.FINAL_EVAL_ITERS)]
    return {"loss": float(np.mean(losses)), "seconds": seconds}


WHO = {"ours": ours, "pytorch": pytorch}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="the plays, as one UTF-8 file")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many seeds (default: 3)")
    parser.add_argument("--preset", default="shakespeare", help="what this project runs (default: shakespeare)")
    parser.add_argument("--processes", default="1", metavar="N", help="how many share a batch of ours (default: 1)")
    parser.add_argument("--only", choices=WHO, help="run one of the two")
    parser.add_argument("--child", type=int, metavar="SEED", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        preset = args.preset if args.only == "ours" else "shakespeare"
        print(json.dumps(WHO[args.only](args.text, args.child, preset, args.processes)))
        return
    results = {who: [] for who in WHO if args.only in (None, who)}
    for seed in range(args.seeds):
        for who in results:  # each in a process of its own
            command = [sys.executable, __file__, str(args.text), "--preset", args.preset]
            command += ["--only", who, "--child", str(seed), "--processes", args.processes]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            results[who].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"seed {seed}  {who:<8}  " + line(results[who][-1]), flush=True)
    for who, runs in results.items():
        print(f"mean    {who:<8}  " + line({key: np.mean([run[key] for run in runs]) for key in runs[0]}))


def line(result):
    return f"held-out loss {result['loss']:.4f}   {result['seconds']:6.1f} s of training"


if __name__ == "__main__":
    main()
