"""Cases of long lists that run each time show every kind."""

from __future__ import annotations

import itertools

from tests.sampling import covering


def test_every_value_of_every_parameter_is_shown() -> None:
    cases = [
        set(case) for case in itertools.product(["inner", "left", "right", "full"], ["tumbling", "sliding"])
    ]
    for seed in range(50):
        chosen = covering(cases, 4, seed)
        assert len(chosen) == 4
        assert set().union(*(cases[place] for place in chosen)) == set().union(*cases)


def test_there_are_more_where_a_kind_would_be_left_out() -> None:
    cases = [{mode, kind} for mode in ("append", "update") for kind in range(5)]
    assert len(covering(cases, 2, seed=1)) == 5


def test_cases_of_which_each_is_its_own_kind_stay_as_many_as_were_asked_for() -> None:
    assert len(covering([{place} for place in range(20)], 8, seed=1)) == 8


def test_odd_cases_come_after_what_several_have() -> None:
    cases: list[set[str]] = [
        {"odd 1", "odd 2", "inner"},
        {"left", "a"},
        {"left", "b"},
        {"inner", "a"},
        {"inner", "b"},
    ]
    shown = set().union(*(cases[place] for place in covering(cases, 2, seed=1)))
    assert shown >= {"inner", "left", "a", "b"}


def test_the_choice_is_the_same_each_time() -> None:
    cases = [{place % 3, f"of {place % 5}"} for place in range(15)]
    assert covering(cases, 6, seed=7) == covering(cases, 6, seed=7)
