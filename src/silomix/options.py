"""The options of the commands: each says in one line which value to choose, and why."""

from pathlib import Path
from typing import Annotated

import typer
from typer.models import ArgumentInfo, OptionInfo

from silomix.simulate import DESIGNS

TABLE, SAMPLER, METHOD, OUTPUT = "The table", "The sampler", "The coordinator", "Output"
"""Panels of the help pages."""


def _option(panel: str, name: str, text: str) -> OptionInfo:
    return typer.Option(name, help=text, rich_help_panel=panel, show_default=False)


def _argument(metavar: str, text: str) -> ArgumentInfo:
    return typer.Argument(help=text, metavar=metavar, show_default=False)


TableFile = Annotated[
    Path,
    _argument("TABLE", "CSV, TSV (or their .gz) or Parquet: a row per unit, columns as variables."),
]
SavedPosterior = Annotated[
    Path, _argument("POSTERIOR", "A posterior.silomix that fit wrote, or Posterior.save.")
]
Design = Annotated[str, _argument("DESIGN", f"One of {', '.join(DESIGNS)}.")]

DemoOut = Annotated[Path, _option(OUTPUT, "--out", "Folder for reports and tables; replaced.")]
SimulateOut = Annotated[
    Path, _option(OUTPUT, "--out", "The table, such as t.csv; the truth goes to t.truth.csv.")
]
StudyOut = Annotated[Path, _option(OUTPUT, "--out", "The study file, such as study.toml.")]
AssignOut = Annotated[
    Path, _option(OUTPUT, "--out", "The labels, such as labels.csv: a line for each row.")
]
ResultsOut = Annotated[Path, _option(OUTPUT, "--out", "Folder for the results.")]
Title = Annotated[
    str | None, _option(OUTPUT, "--title", "A line for people; not part of the digest.")
]
KeepDraws = Annotated[
    bool, _option(OUTPUT, "--keep-draws", "Write draws.npz too, for summaries of your own.")
]
Force = Annotated[bool, _option(OUTPUT, "--force", "Replace files that exist already.")]
Json = Annotated[bool, _option(OUTPUT, "--json", "Print the result as JSON and nothing else.")]
Debug = Annotated[
    bool, _option(OUTPUT, "--debug", "Show the traceback of an error, for a fault report.")
]

Separability = Annotated[
    str | None,
    _option(TABLE, "--separability", "easy (default), or poor for clusters that overlap."),
]
Rows = Annotated[
    int | None,
    _option(TABLE, "--rows", "Rows in all; 4000, or 50000 in appendix-b, by default."),
]
SilosToDraw = Annotated[
    int | None, _option(TABLE, "--silos", "Silos; 4, or 10 in appendix-b, by default.")
]
Column = Annotated[
    str | None,
    _option(TABLE, "--silo", "Column that says whose row it is: its values are silos."),
]
FitColumn = Annotated[
    str | None,
    _option(TABLE, "--silo", "Column that says whose row it is; without it, one silo."),
]
AssignColumn = Annotated[
    str | None,
    _option(TABLE, "--silo", "Column that says whose row it is, or the silo all rows are of."),
]
Shards = Annotated[
    int | None,
    _option(TABLE, "--shards", "Split the rows at random into N silos instead, to go faster."),
]
Names = Annotated[
    str | None,
    _option(TABLE, "--silos", "Names of the silos, as a,b,c, where no column has them."),
]
StudyFile = Annotated[
    Path | None, _option(TABLE, "--study", "Study file with all the settings; needs --silo.")
]
SiloColumn = Annotated[
    str | None,
    _option(TABLE, "--silo-column", "Column that says whose row it is; needs --silo."),
]
Silo = Annotated[
    str | None,
    _option(TABLE, "--silo", "The silo to sample; without it, all rows are one silo."),
]
Silos = Annotated[
    int | None,
    _option(
        TABLE,
        "--silos",
        "Silos in all (default 1), if this table is one: sets its share of the prior.",
    ),
]
Variables = Annotated[
    str | None,
    _option(TABLE, "--variables", "Columns to use, as a,b,c; all others by default."),
]
Missing = Annotated[
    str | None,
    _option(
        TABLE,
        "--missing",
        "marginalise (default) skips missing cells; level if being missing means something.",
    ),
]
Frequency = Annotated[
    str | None,
    _option(TABLE, "--frequency", "Column of counts, if rows stand for many equal ones."),
]

Preset = Annotated[
    str | None,
    _option(SAMPLER, "--preset", "paper for the published method; options win over it."),
]
Components = Annotated[
    int | None,
    _option(
        SAMPLER,
        "--components",
        "More than the clusters you expect (default 15); spare ones stay empty.",
    ),
]
Iterations = Annotated[
    int | None,
    _option(SAMPLER, "--iterations", "Sweeps a chain (default 20000); more if the verdict asks."),
]
BurnIn = Annotated[
    int | None, _option(SAMPLER, "--burn-in", "Sweeps dropped at the start; half by default.")
]
Chains = Annotated[
    int | None,
    _option(SAMPLER, "--chains", "Chains (default 2); with one, a mode missed goes unnoticed."),
]
Thin = Annotated[
    int | None,
    _option(
        SAMPLER, "--thin", "Keep one sweep in N; by default so that about 2000 draws are kept."
    ),
]
Seed = Annotated[
    int | None,
    _option(SAMPLER, "--seed", "A whole number (default 0); same seed, same result."),
]
PartitionMethod = Annotated[
    str | None,
    _option(
        SAMPLER,
        "--partition",
        "linkage (default), or pam, the paper's, which needs the extra pam.",
    ),
]
Relabel = Annotated[
    str | None,
    _option(
        SAMPLER,
        "--relabel",
        "match (default), or average, the paper's, whose intervals are too narrow.",
    ),
]
Threads = Annotated[
    int | None,
    _option(SAMPLER, "--threads", "Cores to use (default all); the result is the same."),
]
Checkpoint = Annotated[
    Path | None,
    _option(SAMPLER, "--checkpoint", "Folder to go on from after a stop: for long runs."),
]

Matching = Annotated[
    str | None,
    _option(
        METHOD,
        "--matching",
        "evidence (default); ball, divergence; hungarian if one silo has every cluster.",
    ),
]
Aggregation = Annotated[
    str | None,
    _option(METHOD, "--aggregation", "vcmc (default); product, cmc or uniform for a comparison."),
]
Oracle = Annotated[
    str | None,
    _option(
        METHOD,
        "--oracle",
        "contingency (default) sends distinct rows; federated sums only; pooled.",
    ),
]
Solver = Annotated[
    str | None,
    _option(
        METHOD, "--solver", "lbfgs (default); psgd, the paper's; few-rounds for slow exchanges."
    ),
]
Polish = Annotated[
    str | None,
    _option(
        METHOD, "--polish", "until the draws settle (default), or a number of rounds; 0 for none."
    ),
]
Strategy = Annotated[
    str | None,
    _option(
        METHOD, "--strategy", "consensus (default), or exact, with an exchange for every sweep."
    ),
]
Assign = Annotated[
    str | None,
    _option(METHOD, "--assign", "Label rows by posterior (default), or matching, the paper's way."),
]
Tier = Annotated[
    str | None,
    _option(METHOD, "--tier", "What a silo releases: draws (default) or a summary of them."),
]
