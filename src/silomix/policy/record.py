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

    Attributes
    ----------
    divergence : costs of a reference against the silo's rows.
    sharing : sets of releases, those of all silos, that gradients may be asked about.
    gradients : log-likelihood and gradient at aggregation weights.
    distinct_rows : the distinct rows and how often each occurs.
    polish : sampled counts, one question a round; the exact strategy asks the same.
    assign : rows of each global cluster.
    """

    divergence: Limit = 3
    sharing: Limit = 1
    gradients: Limit = 3
    distinct_rows: Limit = 1
    polish: Limit = 0
    assign: Limit = 1


class Policy(Record):
    """What one silo lets out. The silo owns it, and every release says under which it was made.

    Attributes
    ----------
    name : what people call it; not part of the digest.
    minimum_count : the fewest rows that a released number may stand for; 0 for no such rule.
    round_to : counts leave as multiples of this; 1 for no rounding.
    tiers : the kinds of release that may leave.
    share : whether the release may be shown to the other silos, as the federated oracle needs.
    exchanges : how many further questions may be answered.
    limits : what a study may set; one beyond them is refused before any work.

    Examples
    --------
    >>> policy = silomix.Policy(minimum_count=20, tiers=("summary", "draws"))
    >>> policy.has_rules, policy.round_to, policy.exchanges.gradients
    (True, 5, 3)
    """

    name: Name = "default"
    minimum_count: Annotated[int, Field(ge=0, le=LARGEST_COUNT)] = 10
    round_to: Annotated[int, Field(ge=1, le=LARGEST_COUNT)] = 5
    tiers: Tiers = ("summary",)
    share: bool = True
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
    share=True,
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
