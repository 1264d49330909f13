"""Look inside a run of train_next_token.py: everything is drawn from what its directory holds.

    python demos/plot_run.py runs/manual

writes into the run: `loss.png` (of training and of held-out text), `gradients.png` (gradient norm of every
layer), `attention.png` (all heads now), and the same sentence while training went on as a film strip and an
animation, `attention_film.png` and `attention.gif`.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np


def read_log(run):
    """The lines of log.jsonl; a last line that was cut off by a kill is left out."""
    path, lines = run / "log.jsonl", []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        try:
            lines.append(json.loads(line))
        except ValueError:
            if line.endswith("\n"):
                raise ValueError(f"{path}: line {number} is damaged") from None
    return lines


def read_result(run):
    """The held-out loss before and after training, and what knowing nothing would cost."""
    return json.loads((run / "result.json").read_text(encoding="utf-8"))


def series(log, key):
    """(steps, values) where `key` was logged."""
    points = [(line["step"], line[key]) for line in log if key in line]
    return np.array([step for step, _ in points]), [value for _, value in points]


def smoothed(values, width):
    """Mean over up to `width` values around each."""
    window = np.ones(min(width, len(values)))
    sums, counts = (np.convolve(x, window, "same") for x in (values, np.ones(len(values))))
    return sums / counts


def plot_loss(run):
    """Loss of training and of held-out text, beside what knowing nothing would cost."""
    from matplotlib.figure import Figure

    log, result = read_log(run), read_result(run)
    figure = Figure(figsize=(8, 4.5), layout="constrained", dpi=120)
    ax = figure.subplots()
    steps, losses = series(log, "train_loss")
    ax.plot(steps, losses, color="#9ecae1", linewidth=0.6, label="training, each step")
    ax.plot(steps, smoothed(losses, max(1, len(losses) // 40)), color="#2171b5", label="training, smoothed")
    steps, losses = series(log, "val_loss")
    ax.plot([0, *steps], [result["before"], *losses], "o-", color="#d94801", markersize=4, label="held-out text")
    for key, style, words in (
        ("uniform", ":", "all characters alike, ln V ="),
        ("unigram", "--", "knowing their frequencies,"),
    ):
        label = f"{words} {result[key]:.2f}"
        ax.axhline(result[key], color="#666666", linestyle=style, linewidth=1, label=label)
    ax.set(xlabel="step", ylabel="loss, nats per character", title=f"Loss of {run.name}")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False)
    ax.grid(alpha=0.25)
    figure.savefig(run / "loss.png")


def plot_gradients(run):
    """Gradient norm per layer before clipping, from the input (dark) to the output (light)."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    steps, norms = series(read_log(run), "layer_grad_norms")
    layers = sorted(norms[0], key=depth)
    figure = Figure(figsize=(8, 4.5), layout="constrained", dpi=120)
    ax = figure.subplots()
    for i, layer in enumerate(layers):
        color = colormaps["viridis"](i / len(layers))
        ax.semilogy(steps, smoothed([norm[layer] for norm in norms], 5), color=color, label=layer)
    ax.set(xlabel="step", ylabel="gradient norm", title=f"Gradient norm of each layer of {run.name}")
    ax.legend(frameon=False, ncols=math.ceil(len(layers) / 10), loc="center left", bbox_to_anchor=(1, 0.5))
    ax.grid(alpha=0.25)
    figure.savefig(run / "gradients.png")


def depth(layer):
    """Sorts layers as the signal passes them: embeddings, blocks, the last norm."""
    kind, _, number = layer.partition(".")
    return ("wte", "wpe", "h", "ln_f").index(kind), int(number or 0)


def read_attention(run):
    """(tokens, steps, weights): weights[i] is (n_layer, n_head, T, T) after steps[i] updates."""
    tokens = json.loads((run / "attention" / "tokens.json").read_text(encoding="utf-8"))
    files = sorted((run / "attention").glob("*.npy"))
    return tokens, [int(file.stem) for file in files], [np.load(file).astype(float) for file in files]


def plot_attention(run):
    """Every head's attention in the watched sentence, as it is now."""
    from tinygrad_attn.viz.heatmap import attention_heatmap

    tokens, steps, weights = read_attention(run)
    n_layer, n_head, T, _ = weights[-1].shape
    titles = [f"layer {layer}, head {head}" for layer in range(n_layer) for head in range(n_head)]
    future = ~np.tri(T, dtype=bool)  # a weight that was not blocked may still be recorded as 0
    figure = attention_heatmap(weights[-1].reshape(-1, T, T), tokens, titles=titles, mask=future)
    figure.suptitle(f"Attention of {run.name} after {steps[-1]:,} steps")
    figure.savefig(run / "attention.png")


def plot_film(run, columns=7):
    """One row per head, time from left to right: one sees heads form."""
    from matplotlib.figure import Figure

    tokens, steps, weights = read_attention(run)
    n_layer, n_head = weights[0].shape[:2]
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(columns, len(steps))).round().astype(int))
    figure = Figure(figsize=(1.1 + 1.1 * len(chosen), 0.6 + 1.1 * n_layer * n_head), layout="constrained", dpi=100)
    panels = figure.subplots(n_layer * n_head, len(chosen), squeeze=False)
    for row, (layer, head) in enumerate(np.ndindex(n_layer, n_head)):
        for column, i in enumerate(chosen):
            draw_head(panels[row, column], weights[i][layer, head])
        panels[row, 0].set_ylabel(f"layer {layer}\nhead {head}", fontsize=8)
    for column, i in enumerate(chosen):
        panels[0, column].set_title(f"step {steps[i]:,}", fontsize=9)
    sentence = "".join(tokens)
    caption = f"{sentence!r}\n" if sentence.isascii() else ""  # other glyphs may be missing in the font
    figure.suptitle(f"{caption}row: who looks, column: who is looked at", fontsize=9, parse_math=False)
    figure.savefig(run / "attention_film.png")


def animate(run):
    """The same as an animation: all heads, a frame for each evaluation."""
    from matplotlib.animation import FuncAnimation, PillowWriter
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    _, steps, weights = read_attention(run)
    n_layer, n_head = weights[0].shape[:2]
    figure = Figure(figsize=(0.6 + 1.4 * n_head, 0.7 + 1.4 * n_layer), layout="constrained", dpi=80)
    FigureCanvasAgg(figure)
    panels = figure.subplots(n_layer, n_head, squeeze=False)
    images = {at: draw_head(panels[at], weights[0][at]) for at in np.ndindex(n_layer, n_head)}
    for layer in range(n_layer):
        panels[layer, 0].set_ylabel(f"layer {layer}", fontsize=8)
    for head in range(n_head):
        panels[0, head].set_title(f"head {head}", fontsize=8)

    def frame(i):
        figure.suptitle(f"step {steps[i]:,}", fontsize=10)
        for at, image in images.items():
            image.set_data(without_future(weights[i][at]))

    frames = [*range(len(steps)), *[len(steps) - 1] * 3]  # the last one stays a while
    FuncAnimation(figure, frame, frames=frames).save(run / "attention.gif", writer=PillowWriter(fps=2))


def draw_head(ax, weights):
    from matplotlib.colors import PowerNorm

    ax.set(xticks=[], yticks=[], facecolor="#eeeeee")
    # the square root shows small weights too, of which there are many in the beginning
    return ax.imshow(without_future(weights), cmap="Blues", norm=PowerNorm(0.5, 0, 1))


def without_future(weights):
    return np.ma.masked_array(weights, np.triu(np.ones(weights.shape, bool), 1))


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("run", type=Path, help="the directory of a run")
    run = parser.parse_args(argv).run
    try:
        if not read_log(run):
            raise ValueError(f"{run}: nothing is logged yet")
    except (OSError, ValueError) as error:
        parser.error(str(error))
    plot_loss(run)
    plot_gradients(run)
    plot_attention(run)
    plot_film(run)
    animate(run)
    for name in ("loss.png", "gradients.png", "attention.png", "attention_film.png", "attention.gif"):
        print(run / name)


if __name__ == "__main__":
    main()
