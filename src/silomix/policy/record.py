"""The policy record, its presets and its digest."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from silomix.errors import SettingsError
from silomix.policy.limits import NO_LIMITS, Limits
from silomix.study.names import check_distinct, check_text
from silomix.study.problems import nearest, quote, rule
from silomix.study.record import Record

LARGEST_COUNT = 1_000_000
"""No rule asks for more people than this."""

UNLIMITED = 1_000_000_000
"""Exchanges that no study reaches."""

LONGEST_NAME = 60

DIGEST_LENGTH = 16


def _check_name(name: str) -> str:
    check_text(name)
    if len(name) > LONGEST_NAME or not name.isprintable():
        reason = f"it must be one line of at most {LONGEST_NAME} characters"
        raise rule(f"is {quote(name)}; {reason}")
    return name


Name = Annotated[str, AfterValidator(_check_name)]
Tiers = Annotated[tuple[Literal["summary", "draws"], ...], AfterValidator(check_distinct)]
Limit = Annotated[int, Field(ge=0, le=UNLIMITED)]


class Exchanges(Record):
    """How many questions of each kind may be answered in one study: `[exchanges]`; 0 for none.

    All but `assign` are answered with exact numbers, which no rule rounds: see `GIVES_AWAY`.

    Attributes
    ----------
    divergence : costs of a reference, made of other silos' releases, against the silo's rows; the
        silos that are asked later see this one's release.
    sharing : sets of releases, those of all silos, that gradients may be asked about; all silos
        see this one's release.
    gradients : points at which the log-likelihood and its gradient are told; a question is about
        as many as it has starting points times draws.
    distinct_rows : the distinct rows and how often each occurs.
    polish : sampled counts, one question a round; the exact strategy asks the same.
    assign : rows of each global cluster.
    """

    divergence: Limit = 0
    sharing: Limit = 0
    gradients: Limit = 0
    distinct_rows: Limit = 0
    polish: Limit = 0
    assign: Limit = 1


GIVES_AWAY: dict[str, str] = {
    "divergence": "exact sums over the rows for clusters that the coordinator chooses: one answer "
    "can tell the exact count of every level, whatever minimum_count and round_to say; and the "
    "silo's release to the silos that are asked later",
    "sharing": "the silo's release to every silo of the study; and it is what gradients are about, "
    "so with gradients of 0 it is good for nothing",
    "gradients": "exact sums over the rows at points that the coordinator chooses: their "
    "derivatives tell the exact number of rows, and enough points how often each distinct row "
    "occurs, to the last one, whatever minimum_count and round_to say",
    "distinct_rows": "the table but for the order of its rows, counts rounded, where every "
    "distinct row occurs at least minimum_count times",
    "polish": "counts of each level in each cluster, sampled anew for every chain: their mean is "
    "the exact count, whatever minimum_count and round_to say",
}
"""What each channel that no rule rounds tells, for whoever allows one."""


class Policy(Record):
    """What one silo lets out. The silo owns it, and every release says under which it was made.

    Attributes
    ----------
    name : what people call it; not part of the digest.
    minimum_count : the fewest rows that a released number may stand for; 0 for no such rule.
    round_to : counts leave as multiples of this; 1 for no rounding.
    tiers : the kinds of release that may leave.
    studies : how many may be answered from one table, unless the silo's owner allows another in
        its ledger (`silomix.ledger`). Runs inside one process have no ledger, and count none.
    exchanges : how many further questions may be answered.
    limits : what a study may set; one beyond them is refused before any work.

    Examples
    --------
    >>> policy = silomix.Policy(minimum_count=20, tiers=("summary", "draws"))
    >>> policy.has_rules, policy.round_to, policy.studies, policy.exchanges.gradients
    (True, 5, 1, 0)
    """

    name: Name = "default"
    minimum_count: Annotated[int, Field(ge=0, le=LARGEST_COUNT)] = 10
    round_to: Annotated[int, Field(ge=1, le=LARGEST_COUNT)] = 5
    tiers: Tiers = ("summary",)
    studies: Limit = 1
    exchanges: Exchanges = Exchanges()
    limits: Limits = Limits()

    @property
    def has_rules(self) -> bool:
        """Whether any count is changed on its way out."""
        return self.minimum_count > 0 or self.round_to > 1


OPEN = Policy(
    name="open",
    minimum_count=0,
    round_to=1,
    tiers=("summary", "draws"),
    studies=UNLIMITED,
    exchanges=Exchanges(**dict.fromkeys(Exchanges.model_fields, UNLIMITED)),
    limits=NO_LIMITS,
)
"""No rule at all: for rows that are in one hand already."""

PRESETS: dict[str, Policy] = {
    "default": Policy(),
    # OpenSAFELY redacts counts of 7 and fewer, then rounds to 5
    "opensafely": Policy(name="opensafely", minimum_count=8, round_to=5),
    "ukllc": Policy(name="ukllc", minimum_count=10, round_to=5),
    "omop": Policy(name="omop", minimum_count=5, round_to=1),
    "pcornet": Policy(name="pcornet", minimum_count=11, round_to=1),
    "open": OPEN,
}


def policy_named(word: str) -> Policy:
    """Return the preset of that name."""
    if word not in PRESETS:
        near = nearest(word, PRESETS)
        question = f"; did you mean {near!r}?" if near else ""
        raise SettingsError(
            f"there is no policy {quote(word)}; the presets are {', '.join(PRESETS)}{question}"
        )
    return PRESETS[word]


def echo(policy: Policy) -> dict[str, Any]:
    """Return the policy as the plain values that a release carries."""
    return policy.model_dump(mode="json")


def policy_digest(policy: Policy) -> str:
    """Return the start of the SHA-256, in hexadecimal, of everything but the name."""
    rules = policy.model_dump(mode="json", exclude={"name"})
    canonical = json.dumps(rules, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_LENGTH]
