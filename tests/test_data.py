"""Text, tokens and batches: nothing is guessed, nothing depends on the locale, every error says where."""

import math
import os
import subprocess
import sys
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tinygrad_attn.data import (
    Batches,
    CharTokenizer,
    coreference,
    normalize_newlines,
    python_manual,
    read_text,
)

# ---------------------------------------------------------------------------------------------- tokens


@given(st.text(max_size=50))
def test_encode_then_decode_is_the_text(text):
    assert CharTokenizer(text).decode(CharTokenizer(text).encode(text)) == text


def test_the_vocabulary_is_sorted_so_ids_never_change():
    assert CharTokenizer("banana").vocab == "abn"
    assert CharTokenizer.fit("nab").encode("banana") == CharTokenizer("banana").encode("banana")
    assert len(CharTokenizer("abab")) == CharTokenizer("abab").vocab_size == 2


def test_D01_unknown_characters_are_all_named_with_the_first_position():
    with pytest.raises(ValueError, match=r"'cd'.*position 2"):
        CharTokenizer("abab").encode("abdc")


def test_D01_nothing_encodes_to_nothing():
    assert CharTokenizer("abab").encode("") == []
    assert CharTokenizer("abab").decode([]) == ""


@pytest.mark.parametrize("bad", [5, 2, -1])
def test_D01_an_id_outside_the_vocabulary_is_an_error_and_never_wraps(bad):
    with pytest.raises(IndexError, match=f"{bad} is outside 0..1"):
        CharTokenizer("abab").decode([0, bad])


def test_decode_takes_arrays_and_refuses_what_is_not_a_row_of_integers():
    tok = CharTokenizer("abc")
    assert tok.decode(np.array([2, 0])) == "ca"
    for bad in ([0.0, 1.0], [[0, 1]]):
        with pytest.raises(TypeError, match="1-d sequence of integers"):
            tok.decode(bad)


# ---------------------------------------------------------------------------------------------- text files


@pytest.fixture
def file(tmp_path):
    def write(raw: bytes):
        path = tmp_path / "text.txt"
        path.write_bytes(raw)
        return path

    return write


def test_D18_every_line_end_is_a_newline(file):
    assert read_text(file(b"a\r\nb\rc\nd")) == "a\nb\nc\nd"
    assert normalize_newlines("a\r\nb") == "a\nb"


def test_D18_the_byte_order_mark_is_no_token(file):
    assert read_text(file(b"\xef\xbb\xbf" + "你a".encode())) == "你a"


def test_D18_a_byte_that_is_not_utf8_is_named_with_its_position(file):
    with pytest.raises(ValueError, match=r"0xff at position 3 \(line 2\)"):
        read_text(file(b"ab\n\xff"))


def test_D18_an_empty_file_is_an_error(file):
    for nothing in (b"", b"\xef\xbb\xbf"):
        with pytest.raises(ValueError, match="empty"):
            read_text(file(nothing))


def test_D18_one_repeated_character_is_a_vocabulary_of_one(file):
    text = read_text(file(b"aaaa"))
    assert CharTokenizer(text).encode(text) == [0, 0, 0, 0]


def test_D18_the_locale_changes_nothing(file):
    path = file("你好, déjà vu".encode())
    code = f"from tinygrad_attn.data import read_text; print(ascii(read_text({str(path)!r})))"
    env = {**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ascii("你好, déjà vu")


def test_the_python_manual_is_real_text_and_the_same_each_time():
    manual = python_manual()
    assert manual == python_manual() and len(manual) > 300_000
    counts = np.array(list(Counter(manual).values()))
    entropy = -(counts / counts.sum() * np.log(counts / counts.sum())).sum()
    assert entropy == pytest.approx(3.25, abs=0.02)
    assert math.log(len(counts)) == pytest.approx(4.63, abs=0.05)


# ---------------------------------------------------------------------------------------------- batches


def batches(n=50, block=8, batch=4, seed=0):
    return Batches(np.arange(n), block, batch, np.random.default_rng(seed))


def test_targets_are_the_inputs_one_later(rng):
    for x, y in islice(batches(), 20):
        assert x.shape == y.shape == (4, 8) and x.dtype == np.int64
        assert (y == x + 1).all()


def test_every_position_is_reached_also_the_last_target():
    seen = {int(token) for _, y in islice(batches(n=10, block=8), 50) for token in y.ravel()}
    assert seen == set(range(1, 10))


def test_the_shortest_text_is_one_block_and_a_token():
    x, y = next(batches(n=9, block=8, batch=1))
    assert x.tolist() == [list(range(8))] and y.tolist() == [list(range(1, 9))]


def test_the_generator_is_the_position_in_the_data():
    run = batches()
    next(run)
    position = run.rng.bit_generator.state
    expected = next(run)
    other = batches(seed=99)
    other.rng.bit_generator.state = position
    assert all(np.array_equal(a, b) for a, b in zip(next(other), expected))


@pytest.mark.parametrize(
    "ids, block, batch, error, message",
    [
        (np.arange(8), 8, 1, ValueError, "8 tokens are too few for block_size 8"),
        (np.arange(9.0), 8, 1, TypeError, "1-d sequence of integers"),
        (np.arange(10).reshape(2, 5), 2, 1, TypeError, "1-d sequence of integers"),
        (np.arange(9), 0, 1, ValueError, "block_size 0"),
        (np.arange(9), 4, 0, ValueError, "batch_size 0"),
    ],
)
def test_what_cannot_make_a_batch_is_refused(ids, block, batch, error, message):
    with pytest.raises(error, match=message):
        Batches(ids, block, batch, np.random.default_rng(0))


def test_batches_want_an_explicit_generator():
    with pytest.raises(TypeError, match="Generator"):
        Batches(np.arange(9), 4, 1, 0)


# ---------------------------------------------------------------------------------------------- coreference


@pytest.mark.parametrize("language, pronouns", [("zh", "她他"), ("en", ("she", "he"))])
def test_coreference_points_at_the_pronoun_and_at_the_person_meant(language, pronouns, rng):
    examples = coreference(200, rng, language)
    for example in examples:
        assert example.tokens[example.pronoun] in pronouns
        assert example.antecedent < example.pronoun
    assert len({example.antecedent for example in examples}) == 2  # either person can be meant


def test_coreference_cannot_be_guessed_from_the_words_alone(rng):
    """The same bag of words (without the consequence) occurs with both consequences."""
    places = {}
    for example in coreference(20_000, rng, "zh"):
        places.setdefault(frozenset(example.tokens[:-1]), set()).add(example.tokens[-1])
    assert np.mean([len(p) for p in places.values()]) > 1.3


def test_coreference_is_the_same_for_the_same_seed_and_knows_its_languages(rng):
    assert coreference(5, np.random.default_rng(1)) == coreference(5, np.random.default_rng(1))
    with pytest.raises(ValueError, match=r"\['en', 'zh'\]"):
        coreference(1, rng, "fr")
