"""Explanation of a release for the people who must decide about it."""

from __future__ import annotations

import io
import warnings
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from textwrap import fill
from typing import TYPE_CHECKING, cast

from silomix.families.release_rounding import least_units
from silomix.messages.heat_map import draw_heat
from silomix.model.sentences import plural, printable_lines
from silomix.study.policy import GIVES_AWAY, UNLIMITED, Policy, policy_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.figure import Figure

    from silomix.kernels.arrays import Floats, Ints
    from silomix.messages import Release
    from silomix.model.schema import Schema

WIDTH = 88
LONGEST_LABEL = 40

FILES = {
    "README.txt": "this page",
    "message.json": "whose release this is, what the silo says about its run, and checksums",
    "arrays.txt": "for programs: the numbers of all tables, and nothing else",
    "cluster_sizes.csv": "rows of each cluster",
    "profile.csv": "for each cluster, what each variable is like: shares, means, spreads",
    "checks.csv": "the rules of the policy, and what they did",
    "not_included.txt": "what is kept in the silo",
    "profile.png": "the levels of profile.csv as a picture",
    "weights.csv": "posterior draws of the clusters' shares",
    "parameters.csv": "posterior draws of profile.csv",
}

NOT_INCLUDED_TEXT = """\
These never leave the silo in a release:

- rows of the table, or any value of a single row
- identifiers
- the cluster of any row
- any row's probabilities of its clusters
- matrices with a line for each row
- logs, and the text of error messages
"""


PURPOSE = (
    "One silo's part in a study that clusters the rows of several silos without pooling them. The "
    "rows were clustered inside the silo; only this folder is meant to leave it."
)

PERSONS = (
    "About a person known to be in this silo, some of whose values are known: which cluster is "
    "likely, and so how likely the other values are."
)

COMPARING = (
    "More than this by comparing with other tables or earlier releases of the same rows: rounding "
    "hides a count once, but not from someone who sees it rounded in several ways. No noise "
    "was added, and this is not differential privacy."
)

NO_RULES = "Nothing: the policy has no rule, and every number leaves as it is."
NO_QUESTIONS = "Nothing: here silomix has only draws made elsewhere, and no rows to ask about."


def explain(release: Release, schema: Schema) -> dict[str, list[str]]:
    """Sentences about a release and its disclosure, by heading."""
    policy = Policy(**release.policy)
    rules = [
        f"{check.rule} ({check.where}, threshold {check.threshold}, {check.cells} numbers): "
        f"{check.result}{', ' + plural(check.changed, 'time') if check.changed else ''}"
        f"{f'; {check.inside}' if check.inside else ''}"
        for check in release.checks
    ]
    further = [NO_QUESTIONS] if schema.of_parameters else further_questions(policy)
    return {
        "What this is": _what(release, schema, policy),
        "What the policy did": rules or [NO_RULES],
        "What a recipient could infer": inferences(schema, policy, release.tier),
        "What may still be asked": further,
    }


def readme(release: Release, schema: Schema, files: Iterable[str]) -> str:
    """Text of `README.txt`."""
    title = f"Release of the silo {release.silo}"
    bullet = partial(fill, width=WIDTH, initial_indent="- ", subsequent_indent="  ")
    names = FILES.keys() & {"README.txt", "message.json", *files}
    sections = {
        heading: [bullet(sentence) for sentence in sentences]
        for heading, sentences in explain(release, schema).items()
    }
    sections["Files"] = [f"  {name:<20} {text}" for name, text in FILES.items() if name in names]
    parts = [title, "=" * len(title), ""]
    for heading, lines in sections.items():
        parts += [heading, "-" * len(heading), *lines, ""]
    version = f"Made by silomix {metadata.version('silomix')}.\n"
    return printable_lines("\n".join([*parts, version]))


def _what(release: Release, schema: Schema, policy: Policy) -> list[str]:
    content = "the size and the profile of each cluster, and how certain they are"
    if release.tier == "draws":
        content = "posterior draws of the clusters' shares and profiles, and summaries of them"
    rounded = ", rounded" if policy.round_to > 1 else ""
    variables = plural(len(schema.variables), "variable")
    policy_name = f"policy {policy.name!r}, digest {policy_digest(policy)}"
    return [
        PURPOSE,
        f"It holds {content}, for {variables}. It has no line about a single row.",
        f"{plural(release.clusters, 'cluster')}, {release.rows:,} rows in all{rounded}.",
        f"Study {release.study[:16]}; tier {release.tier!r}; {policy_name}.",
        release.diagnostics.verdict,
    ]


def inferences(schema: Schema, policy: Policy, tier: str) -> list[str]:
    """Possible inferences of the holder of a release folder."""
    is_exact = tier == "draws" or not policy.has_rules
    names = ", ".join(variable.name for variable in schema.numbers)
    sums = (
        f"Of {names}, the mean in each cluster, and, except for counts, the spread. They are sums "
        "of values first moved to within bounds that the study knows, and those of fewer rows "
        "than the minimum at either end to the next one; they are rounded so coarsely that no "
        "single row, whatever its value, moves a sum by more than one step. Very small spreads "
        "are raised to a fixed minimum."
    )
    if is_exact:
        sums = (
            f"The sum of {names} over the rows of each cluster, and of the squares, nearly "
            "exactly. One value far from the others shows in them, and so does a column without "
            "any spread."
        )
    if schema.of_parameters:
        sums = (
            f"What the silo's rows say about {names} in each cluster, and how certain that is. How "
            "much a single row shows in it depends on a model that silomix does not know; whoever "
            "owns the rows must judge it."
        )
    base, least = policy.round_to, least_units(policy) * policy.round_to
    width = f"to the nearest {base}" if base > 1 else "exactly"
    counts = (
        f"How many rows of a cluster have each level, {width}: mean times known rows. The size of "
        "each cluster, too."
    )
    if is_exact:
        counts = (
            "The count behind every probability, usually to within one: its mean times the "
            "cluster's size is the number of rows with that level. Small counts can point to "
            "individual people. Rounded sizes do not prevent this if the draws are released too."
        )
    smallest = (
        "That a level shown with the smallest possible count has few rows in the cluster: anything "
        f"from none to about {least + base // 2}. The folder does not say how many."
    )
    of_levels = [counts, *([smallest] if tier == "summary" and least else [])]
    sizes = f"How many rows each cluster has, {width}."
    return [
        *([sums] if schema.numbers else []),
        *(of_levels if schema.categories else [sizes]),
        "Which values go together: what each cluster is like, and which are common in the silo.",
        PERSONS,
        COMPARING,
    ]


def further_questions(policy: Policy) -> list[str]:
    """Questions that the policy still allows a coordinator."""
    sentences = []
    for kind, question in QUESTIONS.items():
        limit: int = getattr(policy.exchanges, kind)
        noun = "point" if kind == "gradients" else "time"
        times = "once" if (limit, noun) == (1, "time") else plural(limit, noun)
        often = "without limit" if limit >= UNLIMITED else f"{times} in one study"
        sentences.append(f"{question}: {often if limit else 'never'}.")
        if limit and kind in GIVES_AWAY:
            sentences.append(f"That gives away {GIVES_AWAY[kind]}.")
    verb = "may" if policy.exchanges.sharing or policy.exchanges.divergence else "may not"
    return [*sentences, f"This release {verb} be shown to other silos of the study."]


QUESTIONS: dict[str, str] = {
    "divergence": "How well other clusters fit the rows (divergence)",
    "sharing": "All silos' releases shown to this one, to compute gradients (sharing)",
    "gradients": "The rows' log-likelihood and its gradient (gradients)",
    "distinct_rows": "Distinct rows and their counts, where every count is large (distinct rows)",
    "polish": "Sampled counts or sums over the rows of each cluster (polish)",
}


def draw_profiles(mean: Floats, sizes: Ints, schema: Schema) -> bytes | None:
    """PNG of the categories' profiles; None without categories or matplotlib.

    It shows released numbers only, and equal numbers give equal bytes.

    Parameters
    ----------
    mean : (cluster, statistic); sizes : (cluster,)
    """
    if find_spec("matplotlib") is None or not schema.categories:
        return None
    names = [f"{variable} = {level}"[:LONGEST_LABEL] for variable, level in schema.levels]
    clusters = [f"{cluster} ({rows:,} rows)" for cluster, rows in enumerate(sizes)]
    # the levels of categories come first
    shares, words = mean[:, : len(names)].T, ("probability", "Probability of each level")
    figure = cast("Figure", draw_heat(None, shares, names, clusters, words).figure)
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters the font lacks become boxes
        figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()
