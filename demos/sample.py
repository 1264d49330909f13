"""Continue a prompt with a trained model, character by character as it writes.

    python demos/sample.py --checkpoint runs/manual --prompt "The import statement" --tokens 300

Without a prompt the model begins on a line of its own. Equal seeds give equal text.
"""

import argparse
import os
import sys
from io import TextIOWrapper
from pathlib import Path

import numpy as np

import tinygrad_attn as ta
from tinygrad_attn.data import CharTokenizer, normalize_newlines
from tinygrad_attn.nn import GPT, GPTConfig

if isinstance(sys.stdout, TextIOWrapper):  # any text can be printed, whatever the locale
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def load_model(run):
    """The model and the vocabulary in a run's directory, or in the checkpoint itself."""
    saved = ta.checkpoint.load(run / "checkpoint" if (run / "checkpoint").is_dir() else run)
    try:
        model, tokenizer = GPT(GPTConfig(**saved["config"])), CharTokenizer(saved["tokenizer"])
        model.load_state_dict(saved["model"]["parameters"])
    except KeyError as missing:
        raise ValueError(f"{run}: this checkpoint holds no {missing}; it is not one of train_next_token.py") from None
    return model.eval(), tokenizer


def start_of_text(tokenizer):
    """The prompt where none is given: a line end if the model knows one, else its first character."""
    return "\n" if "\n" in tokenizer.vocab else tokenizer.vocab[0]


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="RUN", help="the directory of a run")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="what to continue")
    parser.add_argument("--tokens", type=int, default=500, metavar="N", help="characters to write (default: 500)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="X",
        help="below 1 safer, above 1 wilder, 0 always the likeliest (default: 0.8)",
    )  # fmt: skip
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest only (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the draws (default: 0)")
    args = parser.parse_args(argv)
    ta.tune_allocator()
    try:
        prompt = normalize_newlines(os.fsencode(args.prompt).decode())  # UTF-8, whatever the locale
        model, tokenizer = load_model(args.checkpoint)
        ids = tokenizer.encode(prompt or start_of_text(tokenizer))
        rng = np.random.default_rng(args.seed)
        tokens = model.stream(ids, args.tokens, temperature=args.temperature, top_k=args.top_k, rng=rng)
        print(prompt, end="", flush=True)
        for token in tokens:
            print(tokenizer.decode(token), end="", flush=True)
        print()
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader, `head` say, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        parser.error(str(error))
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
