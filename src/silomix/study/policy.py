"""A silo's disclosure policy, `policy.toml`, which no coordinator can override."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, Field

from silomix.errors import PolicyRefusal, SettingsError
from silomix.families import KINDS
from silomix.model.sentences import did_you_mean, listing
from silomix.study.study_file import read_toml, write_toml
from silomix.study.validation import Record, check_distinct, check_text, digest, rule, validate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.study.settings import Study

# Largest minimum count and rounding base.
LARGEST_COUNT = 1_000_000

# A number of exchanges that no study reaches.
UNLIMITED = 1_000_000_000

# Upper end of every limit.
LARGEST = 2**62

LONGEST_NAME = 60
DIGEST_LENGTH = 16
WIDTH = 100

HEADER = """\
# A silomix policy: what this silo lets out. The silo owns it; no study can override it.
# minimum_count: fewest rows behind a released number (0: no rule). round_to: 1 for no rounding.
# studies: how many may be answered from one table; `silomix ledger` shows them, and allows more.
# [exchanges]: questions of each kind that may be answered in one study, 0 for none.
# [limits]: the most that a study may set, and minutes and gigabytes that it may take, estimated;
# one beyond them is refused before any work.
"""


def _check_name(name: str) -> str:
    if len(check_text(name)) > LONGEST_NAME or not name.isprintable():
        raise rule(f"is {name!r:.60}; it must be one line of at most {LONGEST_NAME} characters")
    return name


Limit = Annotated[int, Field(ge=0, le=UNLIMITED)]
Most = Annotated[int, Field(ge=1, le=LARGEST)]
Concentration = Annotated[float, Field(gt=0, le=LARGEST)]


class Exchanges(Record):
    """Most questions of each kind that are answered in one study: `[exchanges]`; 0 for none.

    All but `distinct_rows` are answered with exact numbers, which no rule rounds, and each is
    described here by what it gives away: policy files and explained releases say the same. The
    units: for `divergence`, references made of other silos' releases; for `polish`, rounds, also
    those of the exact strategy; for `gradients`, points at which the log-likelihood and its
    gradient are evaluated: starting points × draws in each question; for `sharing`, sets of the
    releases of all silos.

    Attributes
    ----------
    divergence : exact sums over the rows for clusters that the coordinator chooses: one answer can
        tell the exact counts or sums of every variable, whatever minimum_count and round_to say;
        and the silo's release to the silos that are asked later.
    sharing : the silo's release to every silo of the study; only useful together with gradients.
    gradients : exact sums over the rows at points that the coordinator chooses: their derivatives
        tell the exact number of rows, and enough points how often each distinct row occurs, to the
        last one, whatever minimum_count and round_to say.
    distinct_rows : the table except for the order of its rows, counts rounded, where every distinct
        row occurs at least minimum_count times.
    polish : counts or sums of every variable in each cluster, sampled anew for every chain: their
        means are the exact ones, whatever minimum_count and round_to say.
    """

    divergence: Limit = 0
    sharing: Limit = 0
    gradients: Limit = 0
    distinct_rows: Limit = 0
    polish: Limit = 0


# What each exchange, which no rule rounds, gives away: a warning in policy files.
GIVES_AWAY: dict[str, str] = {
    name: str(field.description).removesuffix(".") for name, field in Exchanges.model_fields.items()
}


class Limits(Record):
    """Limits on what a study may ask of a silo: `[limits]`.

    Attributes
    ----------
    components : the most components of the silo's sampler.
    minutes : the longest that sampling, or one question about every row, may take; of a polish, all
        rounds. The silo estimates it before any work (`silomix.silo.cost`).
    gigabytes : the most memory that these may take, estimated in the same way.
    smallest_prior : lower bound of alpha and beta.
    largest_prior : upper bound of alpha and beta.
    """

    components: Most = 100
    minutes: Most = 240
    gigabytes: Most = 8
    smallest_prior: Concentration = 0.1
    largest_prior: Concentration = 1.0


class Policy(Record):
    """Disclosure policy of one silo. The silo owns it, and every release names it.

    Attributes
    ----------
    name : its name for people; not part of the digest.
    minimum_count : the fewest rows that a released number may stand for; 0 for no such rule.
    round_to : counts leave as multiples of this; 1 for no rounding.
    tiers : the kinds of release that may leave.
    studies : how many may be answered from one table, unless the silo's owner allows another in
        its ledger (`silomix.silo.ledger`). Runs inside one process have no ledger, and count none.
    exchanges : how many further questions may be answered.
    limits : what a study may set; one beyond them is refused before any work.

    Examples
    --------
    >>> policy = silomix.Policy(minimum_count=20, tiers=("summary", "draws"))
    >>> policy.has_rules, policy.round_to, policy.studies, policy.exchanges.gradients
    (True, 5, 1, 0)
    """

    name: Annotated[str, AfterValidator(_check_name)] = "default"
    minimum_count: Annotated[int, Field(ge=0, le=LARGEST_COUNT)] = 10
    round_to: Annotated[int, Field(ge=1, le=LARGEST_COUNT)] = 5
    tiers: Annotated[tuple[Literal["summary", "draws"], ...], AfterValidator(check_distinct)] = (
        "summary",
    )
    studies: Limit = 1
    exchanges: Exchanges = Exchanges()
    limits: Limits = Limits()

    @property
    def has_rules(self) -> bool:
        """Whether any released count is changed."""
        return self.minimum_count > 0 or self.round_to > 1


# No rules: for rows that one owner has already.
OPEN = Policy(
    name="open",
    minimum_count=0,
    round_to=1,
    tiers=("summary", "draws"),
    studies=UNLIMITED,
    exchanges=Exchanges(**dict.fromkeys(Exchanges.model_fields, UNLIMITED)),
    limits=Limits.model_validate(
        dict.fromkeys(Limits.model_fields, LARGEST) | {"smallest_prior": 1e-12}
    ),
)

PRESETS: dict[str, Policy] = {
    "default": Policy(),
    # OpenSAFELY redacts counts of 7 and fewer, then rounds to 5
    "opensafely": Policy(name="opensafely", minimum_count=8, round_to=5),
    "ukllc": Policy(name="ukllc", minimum_count=10, round_to=5),
    "omop": Policy(name="omop", minimum_count=5, round_to=1),
    "pcornet": Policy(name="pcornet", minimum_count=11, round_to=1),
    "open": OPEN,
}


def find_policy(policy: Policy | str | Path) -> Policy:
    """A policy: itself, the preset of that name, or the one in the file at that path."""
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, str) and policy in PRESETS:
        return PRESETS[policy]
    # a word with neither folder nor suffix was meant to be a preset
    if Path(policy).name == policy and not Path(policy).suffix:
        hint, presets = did_you_mean(policy, PRESETS), ", ".join(PRESETS)
        raise SettingsError(f"there is no policy {policy!r}{hint}; the presets are {presets}")
    return read_policy(policy)


def echo(policy: Policy) -> dict[str, Any]:
    """The policy as plain values, as a release carries it."""
    return policy.model_dump(mode="json")


def policy_digest(policy: Policy) -> str:
    """Start of the SHA-256, in hexadecimal, of everything but the name."""
    return digest(policy, without="name")[:DIGEST_LENGTH]


def exact_variables(study: Study) -> list[str]:
    """Names of the variables whose sums no rule can round."""
    return [v.name for v in study.table_schema.variables if not KINDS[v.kind].has_rules]


def check_study(study: Study, policy: Policy, silo: str) -> None:
    """Refuse a study whose settings exceed the silo's policy, before any work is done."""
    limits = policy.limits
    exact = exact_variables(study)
    if exact and policy.has_rules:
        raise PolicyRefusal(
            f"{silo}: {listing(exact)} can only leave as exact sums, and its policy "
            f"{policy.name!r} rounds; make the study with --preset files and declare them "
            "gaussian, or counts poisson; or let the policy's owner choose one without rules, "
            "such as --policy open"
        )
    bounds = {
        "components": (study.model.components, 0, limits.components),
        "alpha": (study.model.alpha, limits.smallest_prior, limits.largest_prior),
        "beta": (study.model.beta, limits.smallest_prior, limits.largest_prior),
    }
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            allowed = f"{least:g} to {most:g}" if least else f"at most {most:,}"
            raise PolicyRefusal(
                f"{silo}: the study sets {name} to {value:,} and the silo's policy allows "
                f"{allowed}; change the study, or let the policy's owner change [limits]"
            )


def read_policy(path: str | Path) -> Policy:
    """Read a policy file.

    With `preset = "..."` the file changes single values of a preset; without, it states every
    value, since a default may differ between versions. A changed preset without a name of its
    own is called "changed from ...".

    Raises
    ------
    SettingsError
        With all problems of the file, by the names it uses.

    Examples
    --------
    >>> path = silomix.write_policy(silomix.Policy(minimum_count=20), "policy.toml")
    >>> silomix.read_policy(path).minimum_count
    20
    """
    document = read_toml(path, "a policy file")
    if "preset" not in document:
        try:
            return validate(Policy, document, source=str(path), complete=True)
        except SettingsError as error:
            advice = 'to state only what differs from a preset, begin with preset = "default"'
            raise SettingsError(f"{error}\n{advice}") from None
    preset = document.pop("preset")
    if not isinstance(preset, str) or preset not in PRESETS:
        presets = ", ".join(map(repr, PRESETS))
        raise SettingsError(f"{path}: preset is {preset!r:.60}; it must be one of {presets}")
    values = echo(PRESETS[preset])
    for table in ("exchanges", "limits"):
        if isinstance(document.get(table), dict):
            document[table] = values[table] | document[table]
    policy = validate(Policy, values | document, source=str(path))
    if policy == PRESETS[preset] or "name" in document:
        return policy
    return policy.model_copy(update={"name": f"changed from {preset}"})


def write_policy(policy: Policy, path: str | Path) -> Path:
    """Write the policy file atomically, and return its path.

    Above each exchange that it allows, which no rule rounds, the file says what that gives away.

    Examples
    --------
    >>> silomix.write_policy(silomix.Policy(name="ours"), "policy.toml").name
    'policy.toml'
    """
    return write_toml(path, HEADER + "\n".join(_with_warnings(policy)) + "\n")


def _with_warnings(policy: Policy) -> Iterator[str]:
    """Yield the lines of a policy file, with a warning above each exchange it allows."""
    for line in tomli_w.dumps(echo(policy)).splitlines():
        key, _, value = line.partition(" = ")
        if key in GIVES_AWAY and value != "0":
            warning = f"{key} gives away {GIVES_AWAY[key]}"
            yield from wrap(warning, WIDTH, initial_indent="# ", subsequent_indent="# ")
        yield line
