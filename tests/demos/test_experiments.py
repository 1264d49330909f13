"""Each claim about attention holds when it is measured: the demos assert their own, here for several seeds."""

import importlib
from pathlib import Path

import pytest

DEMOS = Path(__file__).parents[2] / "demos"
NAMES = ["context_changes_meaning", "who_is_she", "why_these_parts", "where_gradients_go"]


@pytest.fixture
def demo(monkeypatch):
    """The module of a demo, by name; demos import what they share from their own folder."""
    monkeypatch.syspath_prepend(str(DEMOS))
    return importlib.import_module


def test_a_word_gets_its_meaning_from_its_sentence(demo, tmp_path, capsys):
    demo("context_changes_meaning").main(pictures=str(tmp_path))
    assert "cosine of the two embeddings                         1.000   1.000" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["银行_1.png", "银行_2.png"]


def test_a_pronoun_finds_the_person_it_means(demo, tmp_path, capsys):
    demo("who_is_she").main(picture=str(tmp_path / "she.png"))
    assert f"Who looks at whom: {tmp_path / 'she.png'}" in capsys.readouterr().out
    assert (tmp_path / "she.png").stat().st_size > 0


def test_each_part_is_missed_where_it_is_taken_out(demo):
    demo("why_these_parts").main()


def test_the_ways_of_a_gradient_add_up_to_all_of_it(demo):
    demo("where_gradients_go").main()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", NAMES)
def test_the_claim_holds_for_every_seed(demo, name, seed):
    demo(name).main(seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", [name for name in NAMES if name != "why_these_parts"])
def test_the_claim_holds_in_english(demo, name, seed):
    demo(name).main(seed=seed, language="en")
