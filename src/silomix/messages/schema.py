"""What may travel: the fields of every query and reply, in one table. Nothing else does.

Both forms of a message, `silomix.messages.binary` and `silomix.messages.files`, are made of what
`pack` returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from silomix.disclosure import Check
from silomix.errors import MessageError, SettingsError
from silomix.messages.documents import canonical, shorten
from silomix.messages.fields import (
    CODES,
    COUNTS,
    FLOATS,
    INT64,
    Array,
    Flag,
    Inner,
    Many,
    Maybe,
    Named,
    Number,
    Place,
    Text,
    Whole,
    expect,
    listing,
)
from silomix.messages.records import (
    AssignReply,
    AssignRows,
    CountDistinctRows,
    DistinctRows,
    DivergenceCost,
    DivergenceReply,
    LogLikelihood,
    LogLikelihoodReply,
    PolishReply,
    PolishRound,
    Received,
    Refused,
    SampleLocally,
    ShareReleases,
)
from silomix.release import Release, ReleasedDiagnostics
from silomix.study.policy import Policy, echo

if TYPE_CHECKING:
    from silomix.messages.fields import Arrays, Take

MOST_SILOS = 10_000


@dataclass(frozen=True)
class PolicyEcho:
    """The plain values of a `silomix.study.policy.Policy`."""

    def pack(self, value: Any, place: Place, _: Arrays) -> Any:
        """Return it as JSON holds it."""
        expect(value, Mapping, "a policy", place)
        try:
            return echo(Policy(**value))
        except SettingsError as error:
            first = str(error).split("\n  - ")[1]
            raise MessageError(f"{place} is no policy of this silomix: {first}") from None

    def unpack(self, plain: Any, place: Place, _: Take) -> Any:
        """Return it."""
        return self.pack(plain, place, [])


DIAGNOSTICS = Inner(
    ReleasedDiagnostics,
    {
        "verdict": Text(),
        "trusted": Flag(),
        "rhat": Named(Number(finite=False)),
        "ess": Named(Number(finite=False)),
        "prior_draws": Number(),
        "agreement": Number(),
        "full": Number(),
        "sweeps": Whole(),
    },
)

CHECK = Inner(
    Check,
    {
        "rule": Text(),
        "where": Text(),
        "threshold": Whole(),
        "cells": Whole(),
        "changed": Maybe(Whole()),
        "result": Text(),
        "inside": Text(longest=0),  # what only the silo may see
    },
)

RELEASE = Inner(
    Release,
    {
        "silo": Text(),
        "place": Whole(),
        "rows": Whole(),
        "sizes": Array(("cluster",), INT64),
        "medians": Array(("cluster", "level")),
        "mean": Array(("cluster", "level")),
        "concentration": Array(("cluster", "variable")),
        "effective_counts": Array(("cluster", "level")),
        "tier": Text(),
        "weights": Maybe(Array(("draw", "cluster"), FLOATS)),
        "probabilities": Maybe(Array(("draw", "cluster", "level"), FLOATS)),
        "diagnostics": DIAGNOSTICS,
        "study": Text(),
        "policy": PolicyEcho(),
        "checks": Many(CHECK, "check"),
    },
)

RECORDS: dict[str, Inner] = {
    spec.kind.__name__: spec
    for spec in (
        Inner(SampleLocally, {}),
        RELEASE,
        Inner(
            DivergenceCost,
            {
                "releases": Many(RELEASE, "silo", MOST_SILOS),
                "groups": Many(Array(("cluster",), INT64), "silo", MOST_SILOS),
                "round": Whole(),
            },
        ),
        Inner(DivergenceReply, {"cost": Array(("local_cluster", "reference_cluster"))}),
        Inner(
            ShareReleases,
            {
                "releases": Many(RELEASE, "silo", MOST_SILOS),
                "groups": Many(Array(("cluster",), INT64), "silo", MOST_SILOS),
                "draws": Whole(),
            },
        ),
        Inner(Received, {}),
        Inner(
            LogLikelihood,
            {
                "shared": Text(),
                "first": Whole(),
                "last": Whole(),
                "weights": Array(("start", "silo")),
                "profiles": Array(("start", "silo", "cluster")),
            },
        ),
        Inner(
            LogLikelihoodReply,
            {
                "value": Array(("start",)),
                "weights": Array(("start", "silo")),
                "profiles": Array(("start", "silo", "cluster")),
            },
        ),
        Inner(CountDistinctRows, {}),
        Inner(
            DistinctRows,
            {
                "codes": Array(("distinct_row", "variable"), CODES),
                "counts": Array(("distinct_row",), INT64),
            },
        ),
        Inner(
            PolishRound,
            {
                "round": Whole(),
                "weights": Array(("chain", "cluster")),
                "probabilities": Array(("chain", "cluster", "level")),
                "alpha": Maybe(Number()),
                "inner_sweeps": Whole(),
            },
        ),
        Inner(
            PolishReply,
            {
                "least": Array(("cluster", "level"), COUNTS),
                "above": Array(("chain", "cluster", "level"), COUNTS),
                "members": Array(("chain", "cluster"), COUNTS),
                "weights": Array(("chain", "cluster")),
                "log_likelihood": Array(("chain",)),
            },
        ),
        Inner(
            AssignRows,
            {
                "weights": Array(("draw", "cluster"), FLOATS),
                "probabilities": Array(("draw", "cluster", "level"), FLOATS),
                "groups": Maybe(Array(("local_cluster",), INT64)),
            },
        ),
        Inner(AssignReply, {"sizes": Array(("cluster",), INT64)}),
        Inner(Refused, {"code": Text()}),
    )
}
"""The fields of every record that travels. `matched` and `known_as` of a sharing stay behind."""


def pack(record: Any) -> tuple[dict[str, Any], Arrays]:
    """Return a record's fields as plain values, and its arrays in order.

    Raises
    ------
    MessageError
        When the record, or something in it, is not in the table.
    """
    name = type(record).__name__
    spec = RECORDS.get(name)
    if spec is None or type(record) is not spec.kind:
        raise MessageError(f"a {name} is no record that travels; those are {listing(RECORDS)}")
    arrays: Arrays = []
    return spec.pack(record, Place(), arrays), arrays


def unpack(kind: str, fields: Any, take: Take) -> Any:
    """Return the record of this kind; undoes `pack`.

    Parameters
    ----------
    fields : the plain values.
    take : called for each array in the order of `pack`.

    Raises
    ------
    MessageError
        When the fields are not those of the kind.
    """
    if kind not in RECORDS:
        raise MessageError(f"{shorten(kind)} is no record that travels")
    return RECORDS[kind].unpack(fields, Place(), take)


def content_bytes(kind: str, fields: Mapping[str, Any], arrays: Arrays) -> list[bytes]:
    """Return a record's content in the one way that its digest is taken over."""
    head = canonical({"kind": kind, "fields": fields})
    return [head, *(array.tobytes() for _, array in arrays)]
