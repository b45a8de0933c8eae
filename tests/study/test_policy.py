from __future__ import annotations

import re

import numpy as np
import pytest

from silomix.errors import PolicyRefusal, SettingsError
from silomix.messages import SampleLocally
from silomix.model.schema import Schema, Shard, Variable
from silomix.silo.answer import answer
from silomix.silo.cost import check_cost, sampling_cost
from silomix.silo.local import Silo
from silomix.study import make_study
from silomix.study.policy import (
    GIVES_AWAY,
    OPEN,
    PRESETS,
    Exchanges,
    Limits,
    Policy,
    check_study,
    find_policy,
    policy_digest,
    read_policy,
    write_policy,
)

SCHEMA = Schema((Variable("smoker", ("no", "yes")),))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("word", "minimum", "base"),
    [
        ("default", 10, 5),
        ("opensafely", 8, 5),
        ("ukllc", 10, 5),
        ("omop", 5, 1),
        ("pcornet", 11, 1),
    ],
)
def test_presets_release_rounded_summaries_alone(word, minimum, base):
    policy = find_policy(word)
    assert (policy.name, policy.minimum_count, policy.round_to) == (word, minimum, base)
    assert policy.has_rules
    assert (policy.tiers, policy.studies) == (("summary",), 1)
    assert set(policy.exchanges.model_dump().values()) == {0}


@pytest.mark.parametrize("word", PRESETS)
def test_a_file_reads_back(tmp_path, word):
    path = write_policy(PRESETS[word], tmp_path / "policy.toml")
    assert find_policy(str(path)) == read_policy(path) == PRESETS[word]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_says_what_each_exact_channel_that_it_allows_gives_away(tmp_path):
    path = tmp_path / "policy.toml"
    strict = write_policy(Policy(name="[exchanges]"), path).read_text()
    assert "gives away" not in strict
    allowed = Policy(exchanges=Exchanges(gradients=60_000, sharing=1))
    lines = write_policy(allowed, path).read_text().splitlines()
    assert max(map(len, lines)) <= 100
    for key in ("gradients", "sharing"):
        place = next(n for n, line in enumerate(lines) if line.startswith(f"{key} = "))
        first = next(n for n, line in enumerate(lines) if line.startswith(f"# {key} gives away "))
        told = " ".join(line.removeprefix("# ") for line in lines[first:place])
        assert told == f"{key} gives away {GIVES_AWAY[key]}"
    assert not any(line.startswith("# polish gives") for line in lines)
    assert read_policy(path) == allowed
    every = write_policy(OPEN, path).read_text()
    assert all(f"# {key} gives away " in every for key in GIVES_AWAY)
    assert set(GIVES_AWAY) == set(Exchanges.model_fields) - {"assign"}


def test_a_file_may_change_a_preset(tmp_path):
    text = 'preset = "opensafely"\nminimum_count = 20\n[exchanges]\npolish = 2\n'
    policy = read_policy(write(tmp_path / "p.toml", text))
    assert policy.minimum_count == 20
    assert policy.round_to == 5
    assert policy.exchanges == Exchanges(polish=2)
    assert policy.name == "changed from opensafely"
    same = read_policy(write(tmp_path / "p.toml", 'preset = "opensafely"\n'))
    assert same == find_policy("opensafely")
    named = read_policy(write(tmp_path / "p.toml", f'name = "ours"\n{text}[limits]\nminutes = 2\n'))
    assert (named.name, named.limits) == ("ours", Limits(minutes=2))


def test_a_file_without_preset_states_everything(tmp_path):
    with pytest.raises(SettingsError, match='begin with preset = "default"') as error:
        read_policy(write(tmp_path / "p.toml", "minimum_count = 20\n"))
    missing = set(re.findall(r"- (\S+) is missing", str(error.value)))
    assert missing == set(Policy.model_fields) - {"minimum_count"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('preset = "strict"', r"preset is 'strict'; it must be one of 'default', 'opensafely'"),
        ('preset = "default"\nminimum = 3', "minimum is not a setting .*'minimum_count'"),
        ('preset = "default"\nminimum_count = -1', "minimum_count is -1; it must be at least 0"),
        ('preset = "default"\ntiers = []', "tiers is empty"),
        ('preset = "default"\ntiers = ["rows"]', "tiers.1 is 'rows'; it must be 'summary'"),
        ('preset = "default"\nexchanges = 3', "exchanges is 3; it must be a table"),
        ('preset = "default"\n[exchanges]\npolis = 3', r"exchanges.polis is not a setting"),
        ('preset = "default"\nname = "a\\nb"', "name is 'a.nb'; it must"),
        (f'name = "{"x" * 61}"\npreset = "default"', "name is .* one line of at most 60 charact"),
        (f"preset = {'[' * 10_000}", "nests tables or lists too deeply"),
    ],
)
def test_a_wrong_file_is_refused_in_its_own_words(tmp_path, text, complaint):
    path = write(tmp_path / "p.toml", text)
    with pytest.raises(SettingsError, match=complaint) as error:
        read_policy(path)
    assert str(path) in str(error.value)


def test_a_word_or_a_path_that_is_no_policy(tmp_path):
    with pytest.raises(SettingsError, match=r"no policy 'opensafley' .*'opensafely'"):
        find_policy("opensafley")
    with pytest.raises(SettingsError, match=r"absent\.toml cannot be read"):
        find_policy("absent.toml")
    with pytest.raises(SettingsError, match="cannot be written"):
        write_policy(OPEN, tmp_path / "absent" / "p.toml")


def test_a_digest_is_of_the_rules_alone():
    default = PRESETS["default"]
    digests = {policy_digest(policy) for policy in PRESETS.values()}
    assert len(digests) == len(PRESETS) - 1  # default and ukllc have the same rules
    assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in digests)
    assert policy_digest(Policy(name="ours")) == policy_digest(default)
    for change in ({"studies": 2}, {"exchanges": Exchanges(polish=1)}, {"round_to": 10}):
        assert policy_digest(Policy(**change)) != policy_digest(default)


def study(**settings):
    return make_study(SCHEMA, ["north", "south"], **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"beta": 12.0}, "beta to 12.0 and the silo's policy allows 0.1 to 1"),
        ({"beta": 0.01}, "beta to 0.01"),
        ({"alpha": 16.0}, "alpha to 16.0"),
        ({"components": 101}, "components to 101 and the silo's policy allows at most 100"),
    ],
)
def test_a_study_beyond_the_limits_is_refused_by_name(settings, words):
    for policy in PRESETS.values():
        if policy.has_rules:
            with pytest.raises(PolicyRefusal, match="north: the study sets") as caught:
                check_study(study(**settings), policy, "north")
            assert words in str(caught.value)
    check_study(study(**settings), OPEN, "north")


def test_the_defaults_and_the_paper_s_settings_are_within_them():
    codes = np.zeros((1_000_000, 1), np.uint8)
    for settings in ({}, {"preset": "paper"}, {"preset": "files"}):
        own = study(**settings)
        check_study(own, Policy(), "north")
        silo = Silo("north", 0, Shard(SCHEMA, codes), own, policy=Policy())
        check_cost(sampling_cost(silo), silo, "sampling")


def test_nothing_is_sampled_first():
    """The silo has no rows to sample: only a refusal comes before they are asked for."""
    silo = Silo("north", 0, None, study(beta=12.0), policy=Policy())
    with pytest.raises(PolicyRefusal, match="beta"):
        answer(SampleLocally(), silo)
