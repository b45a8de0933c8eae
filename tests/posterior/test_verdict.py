"""The verdict on a posterior: its level, the first cause, and what mends it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases.posteriors import DOUBTED, TRUSTED, make_diagnostics

from silomix.posterior.verdict import Movement, PolishTrace, judge


def moving(by, rounds=50):
    """A polish whose worst cluster moved by so many standard errors at the last check."""
    checks = np.array([[4.0, 0.1, 1.0, 1.0], [float(rounds), 0.1, 1.0, by]])
    return PolishTrace({"movement": checks}, rounds, still_moving=by > 4)


SILOS_AGREE = "Trust it: in both silos the chains agree on the clusters"
ONE_AGREES = "Trust it: the silo's chains agree on the clusters"
UNCHECKED = "Whether the draws had settled was not checked:"
NO_CHECK = PolishTrace({"movement": np.empty((0, 4))}, 3, False)
UNMIXED = replace(DOUBTED, agreement=1.0)


@pytest.mark.parametrize(
    ("changes", "start", "end"),
    [
        (
            {"confidence": 0.97},
            f"{SILOS_AGREE}, it is clear which",
            "after 8 polish rounds.",
        ),
        ({"silos": {"a": TRUSTED}}, f"{ONE_AGREES}, and the draws", "after 8 polish rounds."),
        (
            {"polish": PolishTrace({}, 1, False)},
            f"{SILOS_AGREE}. {UNCHECKED} that",
            "takes more than 1 round.",
        ),
        ({"polish": NO_CHECK, "notes": ("Full.",)}, f"{SILOS_AGREE}. {UNCHECKED}", "rounds. Full."),
        ({"silos": {}, "polish": None, "chains": TRUSTED}, "Trust it: the chains over", " mixed."),
        # traces matter only where nothing polishes
        ({"silos": {"a": UNMIXED}}, ONE_AGREES, "after 8 polish rounds."),
    ],
)
def test_trust_gives_its_reasons(changes, start, end):
    diagnostics = make_diagnostics(**changes)
    assert (diagnostics.level, diagnostics.trusted, diagnostics.causes) == ("trust", True, ())
    assert diagnostics.verdict.startswith(start)
    assert diagnostics.verdict.endswith(end)


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"silos": {"a": replace(TRUSTED, agreement=0.7)}}, "care", "different clusters: a ("),
        ({"silos": {"a": replace(TRUSTED, agreement=0.4)}}, "distrust", "as 0.40, at least 0.8"),
        ({"confidence": 0.8}, "care", "0.80 for the least certain"),
        ({"confidence": 0.3}, "distrust", "which clusters of different silos are the same"),
        ({"polish": moving(10.0)}, "care", "still moving after 50 polish rounds"),
        ({"polish": moving(200.0)}, "distrust", "Set polish to 200"),
        ({"silos": {"a": replace(TRUSTED, full=0.97)}}, "care", "every component held rows: there"),
        ({"smallest": 12.0}, "care", "about 12 rows"),
        ({"smallest": 1.5}, "distrust", "about 2 rows"),
        (
            {"silos": {"a": UNMIXED}, "polish": None},
            "care",
            "the traces of a had not mixed, or are too short",
        ),
        ({"silos": {}, "polish": None, "chains": DOUBTED}, "care", "of all silos together had not"),
    ],
)
def test_each_cause_has_a_level_and_says_what_to_do(changes, level, words):
    diagnostics = make_diagnostics(**changes)
    assert diagnostics.level == level
    assert not diagnostics.trusted
    (cause,) = diagnostics.causes
    opening = {"care": "Use with care: ", "distrust": "Do not trust this result yet: "}[level]
    assert diagnostics.verdict.startswith(f"{opening}{cause.sentence}. {cause.advice}.")
    assert words in diagnostics.verdict
    assert diagnostics.verdict.count(opening) == 1


def test_movement_names_the_cluster_how_far_it_moved_and_what_more_rounds_cost():
    worst = Movement(2, 0.0123, "age", "mean", -1.25)
    polish = replace(moving(50.0), worst=worst, seconds=2.0)
    (cause,) = make_diagnostics(polish=polish).causes
    assert "cluster 2: its share of the rows by +1.2%, age (mean) by -1.2;" in cause.sentence + ";"
    assert cause.advice == "Set polish to 200 (polishing then takes about 5.0 min more)"
    (cause,) = make_diagnostics(polish=replace(polish, seconds=None, spent=True)).causes
    assert "after 50 polish rounds, all that most_bytes allows; most" in cause.sentence
    assert "about 4 times as long" in cause.advice


def test_rounds_are_advised_by_how_fast_the_movement_falls():
    def advised(*checks):
        table = np.array([[rounds, 0.1, 1.0, by] for rounds, by in checks])
        return PolishTrace({"movement": table}, checks[-1][0], still_moving=True).advised

    # halved in 20 rounds, three halvings above the limit of 6
    assert advised((20, 96.0), (40, 48.0)) == 100
    assert advised((20, 10.0), (40, 6.1)) == 60  # half as many again at the least
    assert advised((20, 50.0), (40, 49.9)) == 400  # ten times at the most
    assert advised((20, 50.0), (40, 60.0)) == advised((40, 60.0)) == 160


def test_the_cluster_that_moved_is_numbered_by_size():
    trace = replace(moving(50.0), worst=Movement(0, 0.1, "x", "1", 0.1))
    assert trace.renumbered(np.array([[0.2, 0.5, 0.3]])).worst.cluster == 2
    assert moving(50.0).renumbered(np.ones((1, 1))).worst is None


def test_the_worst_cause_comes_first_and_every_one_has_its_advice():
    diagnostics = make_diagnostics(confidence=0.8, polish=moving(200.0))
    first, second = diagnostics.causes
    assert (first.level, second.level) == ("distrust", "care")
    assert "still moving" in first.sentence
    assert diagnostics.verdict.endswith(f"Also, {second.sentence}. {second.advice}.")
    assert f"{first.sentence}. {first.advice}." in diagnostics.verdict


def test_many_silos_are_named_once():
    silos = {str(place): DOUBTED for place in range(10)}
    diagnostics = make_diagnostics(silos=silos)
    assert diagnostics.verdict.count("different clusters") == 1
    assert ": silo 0, silo 1, silo 2 and 7 more (" in diagnostics.verdict
    assert repr(diagnostics) == diagnostics.verdict


def test_what_was_not_found_speaks_for_nothing():
    assert judge(float("nan"), (0.9, 0.5)) == "trust"
    assert judge(float("nan"), (4.0, 60.0)) == "trust"
    assert [judge(x, (4.0, 60.0)) for x in (3, 5, 70)] == ["trust", "care", "distrust"]
