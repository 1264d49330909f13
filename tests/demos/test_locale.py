"""A plain ASCII locale changes nothing: Chinese text comes in and goes out as UTF-8."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import tinygrad_attn as ta

DEMOS = Path(__file__).parents[2] / "demos"


def printed(demo, *arguments):
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONPATH": str(DEMOS.parent)}
    done = subprocess.run([sys.executable, DEMOS / demo, *arguments], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_chinese_tokens_are_printed_in_any_locale():
    assert "开心" in printed("attention_by_hand.py")


def test_D18_a_chinese_prompt_is_read_and_continued_in_any_locale(tmp_path):
    tokenizer = ta.data.CharTokenizer("你好😀")
    config = {"block_size": 4, "vocab_size": 3, "n_layer": 1, "n_head": 1, "n_embd": 4}
    model = ta.nn.GPT(ta.nn.GPTConfig(**config), rng=np.random.default_rng(0))
    ta.checkpoint.save(tmp_path, model, config=config, tokenizer=tokenizer)
    text = printed("sample.py", "--checkpoint", tmp_path, "--prompt", "你好", "--tokens", "20").rstrip(os.linesep)
    assert text.startswith("你好") and len(text) == 22 and set(text) <= set(tokenizer.vocab)
