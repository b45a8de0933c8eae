"""What a coordinator may ask and a silo may answer: the records, and how they travel."""

from __future__ import annotations

from silomix.messages.questions import (
    REFUSALS,
    REPLIES,
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
    Query,
    Received,
    Refused,
    SampleLocally,
    ShareReleases,
    Silos,
)

__all__ = [
    "REFUSALS",
    "REPLIES",
    "AssignReply",
    "AssignRows",
    "CountDistinctRows",
    "DistinctRows",
    "DivergenceCost",
    "DivergenceReply",
    "LogLikelihood",
    "LogLikelihoodReply",
    "PolishReply",
    "PolishRound",
    "Query",
    "Received",
    "Refused",
    "SampleLocally",
    "ShareReleases",
    "Silos",
]
