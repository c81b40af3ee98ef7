"""Formulas in text."""

from __future__ import annotations

import pytest

from nextpolicy.studies import mathml
from nextpolicy.studies.four_rooms import exact


def test_formulas_become_elements_and_words_are_escaped():
    assert mathml.inline("a < b") == "a &lt; b"
    assert mathml.inline("is $V^{pi_k}$.") == (
        "is <math><msup><mi>V</mi><mrow><msub><mi>π</mi><mi>k</mi></msub></mrow></msup></math>."
    )
    sign = '<mo stretchy="false">{}</mo>'.format
    assert mathml.formula("1 - q >= .5") == f"<math><mn>1</mn>{sign('−')}<mi>q</mi>{sign('≥')}<mn>.5</mn></math>"
    assert mathml.formula("max_s V^*") == (
        f"<math><msub><mi>max</mi><mi>s</mi></msub><msup><mi>V</mi>{sign('*')}</msup></math>"
    )


def test_words_without_formulas_for_labels():
    assert mathml.plain("$V^{pi_k}(s_0)$ of 3") == "V^pi_k(s_0) of 3"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5 $", "every \\$ to have a partner"),
        ("$V^{pi$", "expected '}', got its end"),
        ("$^2$", "a symbol before '\\^'"),
    ],
)
def test_broken_formulas_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        mathml.inline(text)


def test_every_column_can_be_written():
    for words in exact.COLUMNS.values():
        assert "$" not in mathml.inline(words)
