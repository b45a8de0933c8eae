"""What was done, whether to trust it, and the traces that say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.diagnostics import fewest_draws, rhat_words, worst_rhat
from silomix.posterior.diagnosis import sentences
from silomix.report.drawing import line_chart, thin
from silomix.report.records import ABSENT, Picture, Table, amount, cells, decimal, signed
from silomix.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from silomix.posterior import Posterior

MOST_TOLD = 40
"""Lines of the table under a trace."""

TRACES = {
    "elbo": ("Objective of the aggregation", "step", "the relaxed evidence lower bound (ELBO)"),
    "log_likelihood": (
        "Log-likelihood over the polish",
        "round",
        "the log-likelihood of all rows, mean over the chains",
    ),
}
"""By name: title, what the places are, and what is drawn."""


@dataclass(frozen=True)
class Trust:
    """Whether to trust it.

    Attributes
    ----------
    mark : "trust", "care", "distrust" or "unknown".
    verdict : sentences.
    steps : what was done, in order: name and sentence.
    runs : a line for each run that was judged; None when none was.
    """

    mark: str
    verdict: tuple[str, ...]
    steps: tuple[tuple[str, str], ...]
    runs: Table | None


def trust(posterior: Posterior) -> Trust:
    """Say what was done and whether to trust it."""
    diagnostics = posterior.diagnostics
    judged = bool(diagnostics.silos or diagnostics.chains)
    mark = diagnostics.level if judged else "unknown"
    return Trust(mark, tuple(sentences(diagnostics)), tuple(_steps(posterior)), _runs(posterior))


def _steps(posterior: Posterior) -> Iterator[tuple[str, str]]:
    study, schedule = posterior.study, posterior.study.schedule
    dropped = "half" if 2 * schedule.burn_in == schedule.iterations else f"{schedule.burn_in:,}"
    sampled = (
        f"{plural(schedule.chains, 'chain')} of {'at most ' if schedule.adaptive else ''}"
        f"{plural(schedule.iterations, 'sweep')}, the first {dropped} dropped, of a mixture with "
        f"{study.model.components} components"
    )
    if study.strategy == "exact":
        yield "Sample", f"Chains over all silos at once: {sampled}; only counts travelled."
    else:
        yield "Sample", f"Each silo sampled its own rows: {sampled}."
        yield "Match", f"Clusters of different silos were matched by {study.matching.method}."
        yield (
            "Aggregate",
            f"The silos' draws were combined by {study.aggregation.method}"
            + (
                f", with the oracle {study.aggregation.oracle!r}."
                if study.aggregation.method == "vcmc"
                else "."
            ),
        )
        yield "Polish", _polishing(posterior.diagnostics.rounds)
    yield (
        "Assign",
        "Each silo found the most probable cluster of its own rows."
        if study.assign == "posterior"
        else "Each row went where the matching sent its silo's own cluster.",
    )


def _polishing(rounds: int) -> str:
    if not rounds:
        return "None: the draws are as the aggregation left them."
    return f"{plural(rounds, 'exact Gibbs round')} over the silos, in which only counts travelled."


def _runs(posterior: Posterior) -> Table | None:
    diagnostics = posterior.diagnostics
    runs = dict(diagnostics.silos)
    if diagnostics.chains is not None:
        runs["all silos together"] = diagnostics.chains
    if not runs:
        return None
    return Table(
        "Each run: sweeps, agreement of its chains' clusters, worst R-hat, fewest effective draws",
        ("run", "sweeps", "agreement", "R-hat", "effective draws", "prior draws"),
        tuple(
            cells(
                name,
                f"{run.sweeps:,}" if run.sweeps else ABSENT,
                # a policy with rules lets only bounds out, and no number of sweeps
                f"{'' if run.sweeps else '≥ '}{run.agreement:.2f}",
                ABSENT if np.isnan(rhat := worst_rhat(run.rhat.values())) else rhat_words(rhat, 3),
                decimal(fewest_draws(run.ess.values()), 0),
                f"{run.prior_draws:.1%}",
            )
            for name, run in runs.items()
        ),
        frozenset({0}),
    )


def traces(posterior: Posterior) -> tuple[Picture, ...]:
    """Return the traces that left the silos, drawn."""
    diagnostics = posterior.diagnostics
    found: dict[str, NDArray[np.floating]] = {}
    if diagnostics.elbo is not None:
        found["elbo"] = diagnostics.elbo
    if diagnostics.polish is not None:
        found |= {name: v for name, v in diagnostics.polish.values.items() if name != "movement"}
    return tuple(_trace(name, values) for name, values in found.items() if len(values) > 1)


def checks_table(posterior: Posterior) -> Table | None:
    """Return the checks whether the polish had come to rest; None if there were none."""
    polish = posterior.diagnostics.polish
    checks = polish.values.get("movement") if polish else None
    if checks is None or len(checks) == 0:
        return None
    return Table(
        "Whether the draws were still moving, at each check of the polish",
        ("round", "log-likelihood", "means of the parameters", "their spreads"),
        tuple(
            cells(f"{made:.0f}", signed(likelihood), decimal(means), decimal(spreads))
            for made, likelihood, means, spreads in checks
        ),
    )


def _trace(name: str, values: NDArray[np.floating]) -> Picture:
    title, along, what = TRACES.get(name, (name, "place", name))
    lines = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    caption = f"{title}: {what}."
    if lines.shape[1] == 1:
        caption = f"{title}: {what}, from {amount(lines[0, 0])} to {amount(lines[-1, 0])}."
    heads = (along, *(["value"] if lines.shape[1] == 1 else map(str, range(lines.shape[1]))))
    rows = tuple(
        cells(str(place + 1), *(amount(value) for value in lines[place]))
        for place in thin(len(lines), MOST_TOLD)
    )
    return Picture(line_chart(lines, name=caption, along=along), caption, Table(title, heads, rows))
