"""The page's sections on the run: what was done, whether to trust it, and how to do it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.model.diagnostics import fewest_draws, rhat_words, worst_rhat
from silomix.model.sentences import plural
from silomix.report.display import ABSENT, Cell, Table, amount, make_pairs, make_table, number
from silomix.report.drawing import Picture, line_chart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from numpy.typing import NDArray

    from silomix.posterior import PolishTrace, Posterior, PosteriorDiagnostics
    from silomix.study import Study

# Lines of the table under a trace.
MOST_TRACED = 40
# By name: title, what the places are, and what the values are.
TRACES = {
    "elbo": ("Objective of the aggregation", "step", "relaxed ELBO"),
    "log_likelihood": (
        "Log-likelihood of all rows over the polish",
        "polish round",
        "log-likelihood",
    ),
}
MATCHINGS = {
    "evidence": "Clusters are joined when their rows are more probable under one profile than "
    "under several.",
    "ball": "Clusters are joined when one lies within a radius of the other, which shrinks with "
    "more rows.",
    "divergence": "Silos are matched one after the other to the mean of those before, so that rows "
    "stay as probable in the cluster they are given as in their own.",
    "hungarian": "Clusters are paired one to one with those of the silo that found most.",
}
AGGREGATIONS = {
    "vcmc": "Variational consensus Monte Carlo: weighted means of the draws, with weights that "
    "maximise a lower bound of the evidence (ELBO). The likelihood of all rows comes from the "
    "oracle: ",
    "cmc": "Consensus Monte Carlo: means of the draws, weighted by inverse variances.",
    "uniform": "Means of the draws, all of which count alike.",
    "product": "The product of densities that are fitted to the draws.",
}
ORACLES = {
    "contingency": "each silo reported, once, the count of each distinct row.",
    "federated": "each silo reported sums of log-likelihoods and their gradients, whenever asked.",
}
POLISH = (
    "The clusters of all rows are drawn once more, in every silo, and the parameters from the "
    "counts of all: after enough rounds the draws no longer depend on where they began."
)


def steps(posterior: Posterior) -> Iterator[tuple[str, str, str]]:
    """Yield what was done, in order: a name, a sentence, and what its words mean."""
    study, schedule = posterior.study, posterior.study.schedule
    dropped = "half" if 2 * schedule.burn_in == schedule.iterations else f"{schedule.burn_in:,}"
    sampled = (
        f"{study.model.components} components, {plural(schedule.chains, 'chain')} of "
        f"{'at most ' if schedule.adaptive else ''}{plural(schedule.iterations, 'sweep')}, the "
        f"first {dropped} dropped"
    )
    if study.strategy == "exact":
        yield "Sample", f"Sampled over all silos at once: {sampled}; only counts travelled.", ""
    else:
        matching, method = study.matching.method, study.aggregation.method
        oracle, rounds = study.aggregation.oracle, posterior.diagnostics.rounds
        using, source = "", ""
        if method == "vcmc":
            using, source = f", with the oracle {oracle!r}", ORACLES[oracle]
        how = f"Clusters of different silos were matched by {matching}."
        yield "Sample", f"Each silo sampled its own rows: {sampled}.", ""
        yield "Match", how, MATCHINGS[matching]
        how = f"The silos' draws were combined by {method}{using}."
        yield "Aggregate", how, AGGREGATIONS[method] + source
        if rounds:
            gibbs = plural(rounds, "exact Gibbs round")
            yield "Polish", f"{gibbs} over the silos, in which only counts travelled.", POLISH
        else:
            yield "Polish", "No polish: the draws are as the aggregation left them.", ""
    if study.assign == "posterior":
        yield "Assign", "Each silo found the most probable cluster of its own rows.", ""
    else:
        yield "Assign", "Each row went where the matching sent its silo's own cluster.", ""


def runs_table(diagnostics: PosteriorDiagnostics) -> Table:
    """Return a line for each run that was judged."""
    runs = dict(diagnostics.silos)
    if diagnostics.chains is not None:
        runs["all silos together"] = diagnostics.chains
    found = list(runs.values())
    rhats = [worst_rhat(run.rhat.values()) for run in found]
    columns = {
        "run": runs,
        "sweeps": [f"{run.sweeps:,}" if run.sweeps else ABSENT for run in found],
        # a policy with rules lets only bounds out, and no number of sweeps
        "agreement": [f"{'' if run.sweeps else '≥ '}{run.agreement:.2f}" for run in found],
        "R-hat": [ABSENT if np.isnan(rhat) else rhat_words(rhat, 3) for rhat in rhats],
        "effective draws": [number(fewest_draws(run.ess.values()), ".0f") for run in found],
        "prior draws": [f"{run.prior_draws:.1%}" for run in found],
    }
    return make_table("How each run mixed: its worst R-hat and fewest effective draws", columns)


def find_traces(diagnostics: PosteriorDiagnostics) -> dict[str, NDArray[np.floating]]:
    """Return the traces that left the silos, by their names in `TRACES`: (place,)."""
    polish = diagnostics.polish.values if diagnostics.polish else {}
    found = {"elbo": diagnostics.elbo, "log_likelihood": polish.get("log_likelihood")}
    return {name: values for name, values in found.items() if values is not None}


def trace_pictures(diagnostics: PosteriorDiagnostics) -> list[Picture]:
    """Return the traces of more than one value, drawn."""
    pictures = []
    drawn = {name: values for name, values in find_traces(diagnostics).items() if len(values) > 1}
    for name, values in drawn.items():
        title, along, what = TRACES[name]
        caption = f"{title}: {what} from {amount(values[0])} to {amount(values[-1])}."
        shown = np.unique(np.linspace(0, len(values) - 1, MOST_TRACED).astype(int))
        columns = {along: shown + 1, "value": map(amount, values[shown])}
        drawing = line_chart(values, name=caption, along=along)
        pictures.append(Picture(drawing, caption, make_table(title, columns)))
    return pictures


def checks_table(polish: PolishTrace) -> Table:
    """Return the checks whether the polish had come to rest."""
    rounds, *moved = np.transpose(polish.values["movement"])
    heads = ("log-likelihood", "means of the parameters", "their spreads")
    columns: dict[str, Any] = {"round": rounds.astype(int)}
    columns |= {head: map(number, values) for head, values in zip(heads, moved, strict=True)}
    return make_table("Whether the draws were still moving, at each check of the polish", columns)


def settings_table(study: Study) -> Table:
    """Return every setting of the study but its roster and variables."""
    settings = study.model_dump(mode="json", exclude={"silos", "variables", "title"})
    return make_pairs("Settings of the study", ("setting", "value"), dict(_flat(settings)))


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", value


def provenance_table(posterior: Posterior) -> Table:
    """Return version, seed and digests."""
    made, least, note = posterior.provenance, posterior.study.kept_draws, ""
    if posterior.n_draws > least:
        which = "the last rounds of the polish" if posterior.diagnostics.rounds else "all chains"
        note = f"all of {which}; the setting kept_draws, {least:,}, is the fewest there may be"
    lines = {
        "silomix": made.version,
        "seed": made.seed,
        "draws": Cell(f"{posterior.n_draws:,}", note=note),
        "digest of the study": made.study,
        **{f"digest of {silo}'s release": digest for silo, digest in made.releases.items()},
    }
    return make_pairs("Version, seed and digests", ("what", "value"), lines)


def variables_table(study: Study) -> Table:
    """Return the variables and their levels."""
    lines = {variable.name: ", ".join(variable.levels) for variable in study.variables}
    return make_pairs("Variables and their levels", ("variable", "levels"), lines)
