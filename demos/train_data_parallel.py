"""The same training on several processes: each takes a part of the batch, and the gradients are averaged.

    mpirun -n 2 python demos/train_data_parallel.py

Every rank holds the whole model, begins with the same weights and makes the same update, so the weights never
need to be sent; only gradients are, once per step, by MPI's Allreduce. One rank gives the same losses.
"""

import argparse

import numpy as np
from mpi4py import MPI

from tinygrad_attn.data import Batches, CharTokenizer, python_manual
from tinygrad_attn.nn import GPT, GPTConfig
from tinygrad_attn.optim import AdamW, clip_grad_norm

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=100, help="updates of the weights (default: 100)")
parser.add_argument("--batch-size", type=int, default=16, help="sequences in the joint batch (default: 16)")
args = parser.parse_args()

world = MPI.COMM_WORLD
if args.batch_size % world.size:
    parser.error(f"--batch-size {args.batch_size} can't be shared equally by {world.size} processes")

text = python_manual()
tokenizer = CharTokenizer(text)
config = GPTConfig(block_size=32, vocab_size=len(tokenizer), n_layer=2, n_head=2, n_embd=64, bias=False)
model = GPT(config, rng=np.random.default_rng(0)).to(np.float64)  # the same seed: the same weights everywhere
optimizer = AdamW(model.parameters(), lr=2e-3)
batches = Batches(tokenizer.encode(text), config.block_size, args.batch_size, np.random.default_rng(1))

for step, (x, y) in zip(range(args.steps), batches):
    mine = slice(world.rank, None, world.size)  # every rank draws the joint batch and takes its own rows
    optimizer.zero_grad()
    _, loss = model(x[mine], y[mine])
    loss.backward()
    gradients = np.concatenate([p.grad.data.ravel() for p in model.parameters()] + [np.ravel(loss.data)])
    world.Allreduce(MPI.IN_PLACE, gradients)  # the sum over all ranks, on every rank
    *averages, mean_loss = np.split(gradients / world.size, np.cumsum([p.size for p in model.parameters()]))
    for p, average in zip(model.parameters(), averages):
        p.grad = average.reshape(p.shape)
    clip_grad_norm(model.parameters(), 1.0)
    optimizer.step()
    if world.rank == 0:
        print(f"{step:4} {mean_loss.item():.9f}", flush=True)
