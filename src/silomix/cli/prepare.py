"""Commands before a study: see the method work, draw a table to try it on, write the study file."""
# annotations are evaluated here, since the options are made from them

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer
from rich.console import Group
from rich.text import Text

from silomix.api import fit
from silomix.cli import command as cli
from silomix.families import make_family
from silomix.families.chains import Rows
from silomix.kernels.arrays import Ints
from silomix.messages.progress import showing
from silomix.model.files import finishing, writing
from silomix.model.metrics import adjusted_rand_index, highest_density_interval, pair_clusters
from silomix.model.reading import read_table
from silomix.model.schema import Prior, Schema
from silomix.model.sentences import listing, one_of
from silomix.model.spreadsheet import write_table
from silomix.model.table import load
from silomix.posterior import Posterior
from silomix.report.cluster_sections import sizes_frame
from silomix.report.display import as_text, frame_view
from silomix.report.results_folder import PAGE, check_free, write_posterior, write_text
from silomix.report.summary import json_lines, posterior_record, posterior_view
from silomix.simulate import DESIGNS, SILO_COLUMN, Truth, schema_of
from silomix.simulate import simulate as draw_table
from silomix.simulate.cohort import CONDITIONS, PUBLISHED_ROWS, planted, truth_files, write_cohort
from silomix.study import digest, write_study
from silomix.study.policy import exact_variables
from silomix.study.settings import VariableSettings

MOST_NAMES = 12
# The table of the demonstration, and what its silos are called.
DESIGN, SEPARABILITY, SEED = "non-nested", "easy", 1
COLUMN = "hospital"
# The one word of `simulate` that is no design: it writes `simulate_cohort` to Parquet.
COHORT = "cohort"

cli.WORDS["design"] = (*DESIGNS, COHORT)
cli.WORDS["separability"] = ("easy", "poor")


@cli.command()
def demo_command(*, out: Path, mixed: bool = False, quiet: bool = False) -> cli.Shown:
    """Cluster four simulated hospitals without pooling them; compare with the truth.

    Parameters
    ----------
    out : Folder for reports and tables; existing files are replaced.
    mixed : Categories, numbers and a count, with missing cells; otherwise only categories.

    Examples
    --------
    silomix demo --out demo-output
    """
    with showing(quiet=quiet) as report:
        return run_demo(out, mixed=mixed, progress=report or False)


def run_demo(folder: Path, *, mixed: bool = False, **settings: Any) -> cli.Shown:
    """Simulate the hospitals, fit, compare, and write everything to `folder`.

    `settings` go to `silomix.fit`.
    """
    variables = "mixed" if mixed else "categorical"
    table, truth = draw_table(DESIGN, separability=SEPARABILITY, variables=variables, seed=SEED)
    table = table.rename(columns={SILO_COLUMN: COLUMN})
    table[COLUMN] = table[COLUMN].str.replace("silo", COLUMN)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_table(table, folder / "table.csv")
    settings |= {"title": "The silomix demonstration", "kinds": truth.kinds if mixed else None}
    posterior = fit(table, COLUMN, seed=SEED, **settings)
    write_posterior(folder, posterior)
    shown = compare(posterior, table, truth, folder)
    write_text(as_text(shown.view), shown.record["comparison"])
    return shown


def compare(posterior: Posterior, table: pd.DataFrame, truth: Truth, folder: Path) -> cli.Shown:
    """Compare a fit with what its table was drawn from; `folder` is where that will stand."""
    clusters = {"true_clusters": len(truth.weights), "clusters": posterior.n_clusters}
    pairs = pair_clusters(truth.labels, posterior.labels, **clusters)
    shares = sizes_frame(posterior).rename(columns={"mean": "share"})[["share", "lower", "upper"]]
    # a line for each planted cluster, with the one found that shares most rows with it, if any
    rows = np.bincount(truth.labels, minlength=len(truth.weights))
    planted = pd.DataFrame({"weight": truth.weights, "rows": rows, "found": pairs})
    planted["found"] = planted["found"].where(pairs >= 0).astype("Int64")
    planted = planted.join(shares, on="found")
    # of the labels found, and of those that the true parameters would give
    agreement = adjusted_rand_index(truth.labels, posterior.labels)
    mixed = bool(posterior.study.table_schema.numbers)
    schema = schema_of("mixed" if mixed else "categorical")
    best = adjusted_rand_index(truth.labels, best_labels(table, truth, schema))
    drawn = f"{DESIGN}, {SEPARABILITY}{', mixed' if mixed else ''}"
    names = ["not found" if pd.isna(c) else f"cluster {c}" for c in planted["found"]]
    heads = {"weight": "weight in the paper", "rows": "rows drawn", "found": "found as"}
    heads |= {"lower": "95% from", "upper": "to"}
    shown = planted.assign(found=names).rename(columns=heads).rename_axis("planted")
    view = Group(
        Text(
            f"Four simulated hospitals ({drawn}, seed {SEED}) and {len(planted)} "
            "clusters; no hospital has all of them. Each clustered its own rows; the coordinator "
            f"matched and combined what they released, and found {posterior.n_clusters} clusters."
        ),
        Text(
            f"Adjusted Rand index with the planted clusters: {agreement:.3f}; the true parameters "
            f"would give {best:.3f} (1 means identical, 0 is chance)."
        ),
        *_numbers_view(posterior, truth, planted),
        frame_view(shown.reset_index()),
        posterior_view(posterior),
    )
    comparison, page = folder / "comparison.txt", folder / PAGE
    record = posterior_record(posterior) | {
        "ari": agreement,
        "best_ari": best,
        "planted": json_lines(planted),
        "comparison": comparison,
        "report": page,
    }
    return cli.Shown(record, view, f"Against the truth: {comparison}\nReport: {page}")


def best_labels(table: pd.DataFrame, truth: Truth, schema: Schema) -> Ints:
    """Most probable cluster of each row under the true parameters: (row,).

    Parameters
    ----------
    schema : the variables in the units of the truth's parameters, which are the table's own.
    """
    shard, places = load(table, schema=schema), pd.factorize(table[COLUMN])[0]
    labels = np.empty(len(table), dtype=np.int64)
    for place, weights in enumerate(truth.weights_by_silo):
        rows = Rows(shard.some(places == place), make_family(shard.schema, Prior()))
        share = rows.membership(weights[None], truth.probabilities[None]).membership
        labels[places == place] = share.argmax(axis=1)
    return labels


def _numbers_view(posterior: Posterior, truth: Truth, planted: pd.DataFrame) -> Iterator[Text]:
    """Yield a sentence on how many true means, spreads and rates are in their intervals."""
    pairs = planted["found"].dropna().astype(int)
    is_number = np.array([truth.kinds[name] != "categorical" for name, _ in truth.levels])
    if is_number.any() and len(pairs):
        lower, upper = highest_density_interval(posterior.parameters[:, pairs][:, :, is_number])
        true = truth.probabilities[pairs.index][:, is_number]
        inside = ((lower <= true) & (true <= upper)).sum()
        yield Text(
            f"Of {true.size} true means, standard deviations and rates of these clusters, {inside} "
            f"are in their 95% intervals ({0.95 * true.size:.0f} expected)."
        )


@cli.command(settings=cli.settings_of("seed"), design=f"One of {', '.join(cli.WORDS['design'])}.")
def simulate_command(
    design: str,
    *,
    out: Path,
    separability: str | None = None,
    rows: int | None = None,
    silos: int | None = None,
    force: bool = False,
    **seed: Any,
) -> cli.Shown:
    """Simulate a table whose clusters are known, to try things out.

    Parameters
    ----------
    out : The table: t.csv, or t.parquet for a cohort; the truth is written beside it.
    separability : easy (default), or poor for clusters that overlap.
    rows : Rows in total (default 4000; 50000 in appendix-b, 289821 in cohort).
    silos : Number of silos (default 4; 10 in appendix-b).

    Examples
    --------
    silomix simulate non-nested --seed 1 --out table.csv
    """
    cohort = design == COHORT
    if cohort and (separability is not None or silos is not None):
        raise typer.BadParameter(
            f"{COHORT} has its own clusters and no silos: leave out --separability and --silos"
        )
    one_of("design", design, cli.WORDS["design"])
    suffix = ".parquet" if cohort else ".csv"
    if out.suffix != suffix:
        raise typer.BadParameter(f"{out} does not end in {suffix}", param_hint="--out")
    files = [out, *(truth_files(out) if cohort else [out.with_suffix(".truth.csv")])]
    check_free(files, force=force)
    if cohort:
        rows = PUBLISHED_ROWS if rows is None else rows
        with finishing(files):
            write_cohort(out, rows=rows, **seed)
        clusters, has = len(planted().weights), {"conditions": list(CONDITIONS)}
    else:
        table, truth = draw_table(design, separability=separability, rows=rows, silos=silos, **seed)
        labels = pd.DataFrame({SILO_COLUMN: table[SILO_COLUMN], "cluster": truth.labels})
        with finishing(files):
            write_table(table, out)
            write_table(labels, files[1])
        rows, clusters, has = len(table), len(truth.weights), {"silos": list(truth.silos)}
    record = {"design": design, "rows": rows, **has, "clusters": clusters, "files": files}
    [(noun, names)] = has.items()
    text = f"{design}: {rows:,} rows, {len(names)} {noun}, {clusters} clusters"
    words = ("Table", "True clusters", "Their parameters")
    last = [f"{word}: {file}" for word, file in zip(words, files, strict=False)]
    return cli.Shown(record, Text(text), "\n".join(last))


@cli.command(settings=cli.settings_of() | cli.COLUMNS | {"preset": str, "other": str})
def study_command(
    table: Path,
    *,
    out: Path,
    silo: str | None = None,
    silos: str | None = None,
    rows: list[str] | None = None,
    force: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> cli.Shown:
    """Write a study file: every setting of a study, for all silos to work from.

    Parameters
    ----------
    out : The study file, such as study.toml.
    silos : Names of the silos, as a,b,c, if no column has them.
    rows : north=1500: about how many rows a silo has; other releases are refused. Repeatable.
    other : Level for values that are not among a variable's levels, instead of an error.

    Examples
    --------
    silomix study codebook.csv --silos north,south --preset files --out study.toml
    """
    if (silo is None) == (silos is None):
        raise typer.BadParameter("give --silo COLUMN, or --silos with the names: not both")
    check_free([out], force=force)
    if rows:
        settings["rows"] = cli.counts_of("--rows", rows)
    study = cli.study_of(read_table(table), silo, cli.split(silos), **settings)
    with finishing([out]):
        write_study(study, out)
    record = {
        "digest": digest(study),
        "silos": list(study.silos),
        "variables": {v.name: v.levels or v.model_dump(exclude={"name"}) for v in study.variables},
        "settings": study.model_dump(mode="json", exclude={"silos", "variables"}),
        "files": [out],
    }
    lines = [(variable.name, _in_short(variable)) for variable in study.variables]
    head = "levels, or kind and units" if study.table_schema.numbers else "levels"
    exact = exact_variables(study)
    refused = f"{listing(exact)} can only leave as exact sums: policies that round refuse the study"
    view = Group(
        Text(f"{len(study.silos)} silos: {listing(study.silos, MOST_NAMES)}"),
        frame_view(pd.DataFrame(lines, columns=["variable", head])),
        *map(Text, cli.tell_guess(study, settings.get("kind"), quiet=quiet)),
        *([Text(refused)] if exact else []),
        Text(f"Digest: {digest(study)}"),
    )
    return cli.Shown(record, view, f"Study: {out}")


def _in_short(variable: VariableSettings) -> str:
    if variable.levels is not None:
        return listing(variable.levels, MOST_NAMES)
    kind = f"{variable.kind},"
    if variable.transform == "log":
        kind = f"log-{kind} the logarithm"
    return f"{kind} about {variable.location:g} with scale {variable.scale:g}"
