"""What a study may set under a silo's policy: refused before any work, with the setting named."""

from __future__ import annotations

import pytest

from silomix.errors import PolicyRefusal
from silomix.messages import SampleLocally
from silomix.silo import Silo, answer
from silomix.study import FewRounds, make_study
from silomix.study.policy import (
    OPEN,
    PRESETS,
    Limits,
    Policy,
    check_study,
    read_policy,
    write_policy,
)
from silomix.types import Schema, Variable

SCHEMA = Schema((Variable("smoker", ("no", "yes")),))


def study(**settings):
    return make_study(SCHEMA, ["north", "south"], **settings)


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "open"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"beta": 12.0}, "beta to 12.0 and the silo's policy allows 0.1 to 1"),
        ({"beta": 0.01}, "beta to 0.01"),
        ({"alpha": 16.0}, "alpha to 16.0"),
        ({"components": 101}, "components to 101 and the silo's policy allows at most 100"),
        ({"iterations": 100_001}, "iterations to 100,001"),
        ({"chains": 10**9, "thin": 1}, "chains to 1,000,000,000"),
        ({"kept": 6000}, "kept draws to"),
        ({"oracle": "federated", "solver": "few-rounds"}, "starts to 300 and the silo's policy"),
    ],
)
def test_a_study_beyond_the_limits_is_refused_by_name(preset, settings, words):
    with pytest.raises(PolicyRefusal, match="north: the study sets") as caught:
        check_study(study(**settings), PRESETS[preset].limits, "north")
    assert words in str(caught.value)
    check_study(study(**settings), OPEN.limits, "north")


def test_the_defaults_and_the_paper_s_settings_are_within_them():
    weighed = {"oracle": "federated", "solver": FewRounds(starts=100)}
    for settings in ({}, {"preset": "paper"}, {"preset": "files"}, weighed):
        check_study(study(**settings), Policy().limits, "north")


def test_nothing_is_sampled_first():
    """The silo has no rows to sample: only a refusal comes before they are asked for."""
    silo = Silo("north", 0, None, study(beta=12.0), policy=Policy())
    with pytest.raises(PolicyRefusal, match="beta"):
        answer(SampleLocally(), silo)


def test_a_policy_file_states_them(tmp_path):
    policy = Policy(limits=Limits(components=20))
    path = write_policy(policy, tmp_path / "policy.toml")
    assert "[limits]" in path.read_text()
    assert read_policy(path) == policy
    path.write_text('preset = "default"\n[limits]\nchains = 2\n')
    assert read_policy(path).limits == Limits(chains=2)
