"""Rates of phrases and names that used to be much more frequent than in similar projects are limited."""

import re

import pytest

from tests.wording.rates import EXCEPTIONS, NAMES, PHRASES, rates, texts, variables


@pytest.mark.parametrize("table", [rates, variables])
def test_rates(table):
    assert [row for row in table() if row.rate > row.limit] == []


def test_limits():
    """The limits follow the rule in rates.py, and all texts listed as exceptions still exist."""
    assert {row.name: row.limit for row in [*rates(), *variables()] if row.limit > 1} == pytest.approx({
        "what is, what it, what a, what the": 4.2, "of which, to which, in which": 8.85, "whose": 9.9, "others": 2.7,
        "so many, as many": 1.5, "beside, besides": 1.8, "tell, tells, told": 1.35})
    assert set(NAMES) == {"found", "given", "one", "place", "mine", "others"}
    every = {text.content.strip() for text in texts()}
    assert all(text in every and reason for text, reason in EXCEPTIONS.items())


def test_kinds():
    """All kinds of texts are counted, and each pattern matches the phrases in its name."""
    kinds = {}
    for text in texts():
        kinds[text.kind] = kinds.get(text.kind, 0) + len(text.content)
    assert kinds.keys() == {"docstring", "comment", "page", "help"}
    assert min(kinds.values()) > 5000
    for name, (pattern, _) in PHRASES.items():
        assert all(re.fullmatch(pattern, phrase) for phrase in name.split(", ")), name
