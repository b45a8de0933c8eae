"""The page's sections on the run and on the silos.

What was done, whether to trust it, and how to do it again; which silo holds which cluster, how the
silos differ, and what left each.
"""

from __future__ import annotations

from inspect import getdoc
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from silomix.model.diagnostics import PRIOR_DRAWS_ALLOWED, fewest_draws, rhat_words, worst_rhat
from silomix.model.metrics import INTERVAL
from silomix.model.sentences import ABSENT, amount, listing, percent, plural, probability, span
from silomix.posterior import Posterior, PosteriorDiagnostics, verdict
from silomix.posterior.characterise import spread
from silomix.posterior.frames import no_drift
from silomix.report import display
from silomix.report.display import Cell, Picture, Table, from_lines, heat_lines, make_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.kernels.arrays import Floats, Reals
    from silomix.messages import ReleasedDiagnostics
    from silomix.study import Study
    from silomix.study.methods import Method

# Lines of the table under a trace.
MOST_TRACED = 40
# By name: title, what the places are, and what the values are.
TRACES = {
    "elbo": ("Objective of the aggregation", "step", "relaxed ELBO"),
    "log_likelihood": ("Log-likelihood over the polish", "polish round", "log-likelihood"),
}
SHORTEST = f"Each interval is the shortest that contains {INTERVAL:.0%} of the draws."
# Variables whose missing cells are shown: those with most.
MOST_MISSING = 100
# Columns of that table in a terminal: the variable, all rows and a few silos.
NARROW = 6
# Confidence of a match that is not worth a word.
SURE = 0.995
DISTINCT_ROWS = (
    "with their counts they are the table, except for its order; the oracle 'federated' sends sums "
    "of log-likelihoods and gradients instead"
)
# What a silo sends, by kind of reply in the order of the method: a name, and what it is.
REPLIES = {
    "Release": ("release", "the silo's own posterior: its draws, or a summary of them"),
    "DivergenceReply": ("matching costs", "how far its clusters are from reference clusters"),
    "Received": ("a receipt", "confirms that it did what it was asked to; nothing about its rows"),
    "DistinctRows": ("distinct rows", DISTINCT_ROWS),
    "LogLikelihoodReply": ("gradients", "log-likelihoods of its rows, with gradients"),
    "PolishReply": ("counts", "of cells by cluster, in each polish round and chain"),
}
REPLY_NAMES = {kind: name for kind, (name, _) in REPLIES.items()}

# Below this probability of being alike, at odds of 4 to 1, silos are said to differ in a variable.
DIFFERENT = 0.2
# A difference between two silos' probabilities below this rounds to no percentage point. It is a
# hundredth of the standard deviation of a level that half of the rows have.
SMALLEST = 0.005


def steps(posterior: Posterior) -> Iterator[tuple[str, str, str]]:
    """Yield the steps of the run, in order: a name, a sentence, and the meaning of its words."""
    study, rounds = posterior.study, posterior.diagnostics.rounds
    schedule, sums = study.schedule, "sums" if study.table_schema.numbers else "counts"
    dropped = "half" if 2 * schedule.burn_in == schedule.iterations else f"{schedule.burn_in:,}"
    sampled = (
        f"{study.model.components} components, {plural(schedule.chains, 'chain')} of "
        f"{'at most ' if schedule.adaptive else ''}{plural(schedule.iterations, 'sweep')}, the "
        f"first {dropped} dropped"
    )
    if study.strategy == "exact":
        yield "Sample", f"Sampled over all silos at once: {sampled}; only {sums} travelled.", ""
    else:
        combined = f"The silos' draws were combined by {study.aggregation.method!r}"
        if oracle := getattr(study.aggregation, "oracle", None):
            combined += f", with the oracle {oracle!r}"
        origin = f" sampled the posterior of its own rows: {sampled}"
        origin = "'s mixture was fitted elsewhere" if study.table_schema.of_parameters else origin
        yield "Sample", f"{'Each' if len(posterior.silos) > 1 else 'The'} silo{origin}.", ""
        if len(posterior.silos) > 1:
            matched = f"Clusters of different silos were matched by {study.matching.method!r}."
            yield "Match", matched, _meaning(study.matching)
            yield "Aggregate", f"{combined}.", _meaning(study.aggregation)
        if rounds:
            gibbs = plural(rounds, "exact Gibbs round")
            yield "Polish", f"{gibbs} over the silos, in which only {sums} travelled.", ""
    if study.table_schema.of_parameters:
        return
    if study.assign == "posterior":
        yield "Assign", "Each silo found the most probable cluster of each row.", ""
    else:
        yield "Assign", "Each row got the cluster that its local cluster was matched to.", ""


def trust_sentences(posterior: Posterior) -> Iterator[str]:
    """Yield the verdict, and what was done."""
    yield from verdict.sentences(posterior.diagnostics)
    done, made = " ".join(what for _, what, _ in steps(posterior)), posterior.provenance
    yield f"{done} Seed {made.seed}, study {made.study[:12]}, silomix {made.version}. {SHORTEST}"


def _meaning(method: Method) -> str:
    """Meaning of a method: the first line of its docstring, which begins with a verb."""
    line = str(getdoc(method)).partition("\n")[0]
    return f"This {line[0].lower()}{line[1:]}"


def runs_table(posterior: Posterior) -> Table:
    """Mixing of each run that was judged."""

    def line(name: str, run: ReleasedDiagnostics) -> Iterator[str]:
        # a policy with rules lets only bounds out, and no number of sweeps
        least, most = ("", "") if run.sweeps else ("≥ ", "≤ ")
        rhat, ess = worst_rhat(run.rhat.values()), fewest_draws(run.ess.values())
        yield name
        yield f"{run.sweeps:,}" if run.sweeps else ABSENT
        yield f"{least}{run.agreement:.2f}"
        yield ABSENT if np.isnan(rhat) else rhat_words(rhat, 3)
        yield ABSENT if np.isnan(ess) else f"{least}{ess:.0f}"
        yield f"{most}{max(run.prior_draws, 0 if run.sweeps else PRIOR_DRAWS_ALLOWED):.1%}"

    heads = ("run", "sweeps", "agreement", "R-hat", "effective draws", "prior draws")
    caption = "How each run mixed: its worst R-hat and fewest effective draws"
    lines = (line(*run) for run in posterior.diagnostics.runs.items())
    return from_lines(caption, heads, lines, kind="whole-names")


def find_traces(diagnostics: PosteriorDiagnostics) -> dict[str, Reals]:
    """Return the traces that left the silos, by their names in `TRACES`: (place,)."""
    polish = diagnostics.polish.values if diagnostics.polish else {}
    traces = {"elbo": diagnostics.elbo, "log_likelihood": polish.get("log_likelihood")}
    return {name: values for name, values in traces.items() if values is not None}


def trace_picture(name: str, posterior: Posterior) -> Picture | None:
    """Return a trace of more than one value, drawn."""
    values = find_traces(posterior.diagnostics).get(name)
    if values is None or len(values) < 2:
        return None
    title, along, what = TRACES[name]
    caption = f"{title}: {what} from {amount(values[0])} to {amount(values[-1])}."
    shown = np.unique(np.linspace(0, len(values) - 1, MOST_TRACED).astype(int))
    columns = {along: shown + 1, "value": map(amount, values[shown])}
    drawing = display.line_chart(values, name=caption, along=along)
    return Picture(drawing, caption, make_table(title, columns))


def settings_table(posterior: Posterior) -> Table:
    """Return every setting of the study but its roster and variables."""
    settings = posterior.study.model_dump(mode="json", exclude={"silos", "variables", "title"})
    (flat,) = pd.json_normalize(settings).to_dict("records")
    known = {name: value for name, value in flat.items() if value is not None}
    columns = {"setting": known, "value": known.values()}
    return make_table("Settings of the study", columns, left=(0, 1), kind="tall")


def provenance_table(posterior: Posterior) -> Table:
    """Return seed and digests."""
    made = posterior.provenance
    lines = {
        "seed": made.seed,
        "digest of the study": made.study,
        **{f"digest of {silo}'s release": digest for silo, digest in made.releases.items()},
    }
    columns = {"what": lines, "value": lines.values()}
    return make_table("Seed and digests", columns, left=(0, 1), kind="tall")


def rows_by_silo(posterior: Posterior) -> list[int] | None:
    """Return the rows of each silo, as far as its policy says; None where nobody knows."""
    if posterior.assignment is not None:
        return np.bincount(posterior.assignment.silos, minlength=len(posterior.silos)).tolist()
    if posterior.correspondence is not None:
        return [int(sizes.sum()) for sizes in posterior.correspondence.sizes]
    return None


def about(posterior: Posterior) -> str:
    """Word before a number of rows, which policies may have rounded elsewhere: "about " or ""."""
    return "about " if posterior.assignment is None else ""


def found_table(posterior: Posterior) -> Table | None:
    """Silos that found each cluster; the confidence is that of the least certain match."""
    if posterior.correspondence is None:
        return None
    frame: pd.DataFrame = posterior.correspondence_frame(frame_like="pandas")
    lines = []
    for cluster, confidences in frame.groupby("cluster")["confidence"]:
        least = confidences.groupby(frame["silo"], sort=False).min()
        named = [
            f"{name} ({sure:.2f})" if sure < SURE else str(name) for name, sure in least.items()
        ]
        lowest = "" if least.isna().all() else f"{least.min():.2f}"
        silos = f"{len(named)} of {len(posterior.silos)}"
        lines.append((posterior.cluster_names[int(str(cluster))], silos, lowest, listing(named)))
    heads = ("cluster", "silos", "confidence", "found by")
    caption = "Which silos found which cluster in their own rows"
    return from_lines(caption, heads, lines, left=(0, 3), kind="tall")


def shares_table(posterior: Posterior) -> Table:
    """Return each cluster's share of each silo's rows."""
    shares = posterior.weights_by_silo.mean(axis=0, dtype=np.float64)
    # a mean of draws that never quite reach zero says no more than that it is small
    lines = heat_lines(posterior.silos, shares, lambda x: "<0.1%" if x < 0.001 else percent(x))
    heads = ["silo", *posterior.cluster_names]
    return from_lines("Each cluster's share of each silo's rows", heads, lines, kind="grid tall")


def silos_table(posterior: Posterior) -> Table:
    """Return the silos: their rows, the clusters they found, and λ, as far as these are known."""
    rows, match, shares = rows_by_silo(posterior), posterior.correspondence, posterior.silo_weights
    columns: dict[str, Any] = {"silo": posterior.silos}
    if rows is not None:
        columns[f"{about(posterior)}rows"] = [f"{size:,}" for size in rows]
    if match is not None:
        columns["clusters found"] = [len(group) for group in match.groups]
    if shares is not None:
        columns["λ"] = [f"{weight:.3f}" for weight in shares.weights]
        columns[""] = [display.bar(weight) for weight in shares.weights / shares.weights.max()]
    caption = "The silos" if shares is None else "The silos; λ: their influence on clusters' sizes"
    return make_table(caption, columns, kind="tall")


def influence_table(posterior: Posterior) -> Table | None:
    """Return μ, each silo's influence on each cluster's profile; None without weights."""
    influence = posterior.silo_weights
    if influence is None:
        return None
    lines = heat_lines(influence.silos, influence.profiles, "{:.2f}".format)
    caption = "μ: each silo's influence on each cluster's profile; a column sums to one"
    return from_lines(caption, ["silo", *posterior.cluster_names], lines, kind="grid tall")


def missing_shares(posterior: Posterior) -> pd.DataFrame | None:
    """Return the share of missing cells, a line per variable, most first: all rows, then each silo.

    None where it is not known; variables without missing cells are left out.
    """
    assignment = posterior.assignment
    if assignment is None or assignment.missing is None:
        return None
    rows = np.maximum(np.bincount(assignment.silos, minlength=len(posterior.silos)), 1)
    names = [variable.column for variable in posterior.family.variables]
    counts = pd.DataFrame(assignment.missing.T, names, list(posterior.silos))
    # a number that is a spike is missing to one of its column's two variables only
    counts = counts.groupby(level=0, sort=False).min()
    shares = counts.div(rows)
    if len(rows) == 1:
        shares = shares.iloc[:, :0]
    shares.insert(0, "all rows", counts.sum(axis=1) / rows.sum())
    return shares[shares["all rows"] > 0].sort_values("all rows", ascending=False, kind="stable")


def missing_table(posterior: Posterior) -> Table | None:
    """Return the shares of missing cells, coloured."""
    shares = missing_shares(posterior)
    if shares is None or shares.empty:
        return None
    shown = shares.head(MOST_MISSING)
    lines = heat_lines(shown.index, shown.to_numpy(), percent)
    each = " and in each silo" if shown.shape[1] > 1 else ""
    caption = f"Missing cells by variable, most first, in all rows{each}"
    heads = ["variable", *shares.columns]
    return from_lines(caption, heads, lines, kind="grid tall", narrow=NARROW)


def _sent_kinds(posterior: Posterior) -> list[str]:
    """Return the kinds of replies that were sent, in the order of the method; none is empty."""
    sent = posterior.provenance.sent.values()
    kinds = dict.fromkeys(chain.from_iterable(sent))
    return [kind for kind in kinds if any(silo.get(kind) for silo in sent)]


def reply(kind: str, study: Study) -> tuple[str, str]:
    """Name and explanation of a kind of reply in a study."""
    if kind == "PolishReply" and study.table_schema.numbers:
        return "sums", "over the cells of each cluster, in each polish round and chain"
    return REPLIES.get(kind, (kind, kind))


def sent_sentences(posterior: Posterior) -> Iterator[str]:
    """Yield the explanation of each kind of reply."""
    for name, meaning in (reply(kind, posterior.study) for kind in _sent_kinds(posterior)):
        yield f"{name[0].upper()}{name[1:]}: {meaning}."


def sent_table(posterior: Posterior) -> Table:
    """Bytes that left each silo, by kind of reply."""
    silos, made = posterior.silos, posterior.provenance

    def cell(silo: str, kind: str) -> Cell:
        answers = made.answered.get(silo, {}).get(kind, 0)
        note = f"in {plural(answers, 'answer')}" if answers > 1 else ""
        return Cell(f"{made.sent.get(silo, {}).get(kind, 0):,}", note=note)

    columns: dict[str, Any] = {"silo": silos}
    for kind in _sent_kinds(posterior):
        columns[reply(kind, posterior.study)[0]] = [cell(silo, kind) for silo in silos]
    columns["total"] = [f"{sum(made.sent.get(silo, {}).values()):,}" for silo in silos]
    caption = "Bytes of the messages that left each silo, by kind of reply"
    return make_table(caption, columns, kind="tall")


def silos_differ(posterior: Posterior) -> bool:
    """Whether some draw of the spread of the silos' profiles is not zero."""
    profiles = posterior.silo_profiles
    return profiles is not None and bool(np.isfinite(profiles.kappa).any())


def drift_sentences(posterior: Posterior) -> Iterator[str]:
    """Yield the variables in which the silos differ, or the reason why this is not known."""
    profiles = posterior.silo_profiles
    if profiles is None:
        yield f"This is not known: {no_drift(posterior)}."
    elif not silos_differ(posterior):
        yield "The silos do not seem to differ: no spread of their profiles was found."
    elif len(profiles.kappa) == 1:
        yield (
            "How much the silos differ was estimated once, by the matching, and for all variables "
            "together; there was no polish to learn it for each variable, with intervals."
        )
    else:
        frame = posterior.drift(INTERVAL, frame_like="pandas").sort_values("same", kind="stable")
        differ = frame.loc[frame["same"] < DIFFERENT, "variable"].tolist()
        if differ:
            yield (
                f"The silos differ in {len(differ):,} of {plural(len(frame), 'variable')}, with a "
                f"probability of at least {1 - DIFFERENT:.0%} each: {listing(differ)}."
            )
        else:
            least = frame.iloc[0]
            yield (
                "No variable clearly shows that the silos differ: the probability that they are "
                f"alike is lowest for {least['variable']}, {least['same']:.2f}; "
                "a priori it is 0.50."
            )


def drift_table(posterior: Posterior) -> Table | None:
    """Spread of the silos in each variable, and their largest difference; None without drift."""
    if not silos_differ(posterior):
        return None
    frame: pd.DataFrame = posterior.drift(INTERVAL, frame_like="pandas")
    family, names = posterior.family, posterior.cluster_names
    variables = {variable.name: variable for variable in family.variables}
    shares = dict(zip((name for name, _ in family.names()), family.shares(), strict=True))
    draws = len(posterior.silo_profiles.kappa) if posterior.silo_profiles else 0
    # the larger κ, the smaller the spread; a point value has no interval
    spreads = spread(frame[["kappa", "upper", "lower"]].to_numpy())
    largest = max(np.nanmax(spreads), 1e-11)
    of_all = ", points" if family.shares().all() else ""
    # of a level that half of the rows have, in percentage points; of a number, in its sds
    of_level, of_number = (100, ".1f", " points", percent), (2, ".2f", " sd", amount)

    def line(row: Any, ends: Floats) -> Iterator[object]:
        is_share = shares[row.variable]
        size, form, word, written = of_level if is_share else of_number
        least = SMALLEST * (1 if is_share else 2 * variables[row.variable].scale)
        at, low, high = size * ends
        yield row.variable
        yield probability(row.same, draws)
        note = "κ ∞" if np.isinf(row.kappa) else f"κ {row.kappa:,.3g}"
        yield Cell(f"{at:{form}}{'' if of_all else word}", note=note)
        yield span(low, high, form)
        yield display.bar(*ends / largest)
        where = f"{row.level_name} in cluster {names[row.cluster]}: "
        where += f"{written(row.highest)} in {row.highest_silo}, "
        where += f"{written(row.lowest)} in {row.lowest_silo}"
        yield ABSENT if row.difference < least else where

    known = ("variable", "silos alike", f"spread{of_all}", f"{INTERVAL:.0%} interval", "")
    heads = (*known, "largest difference between two silos")
    lines = map(line, frame.itertuples(), spreads)
    caption = "How much the silos differ in each variable"
    return from_lines(caption, heads, lines, left=(0, 5), kind="tall")
