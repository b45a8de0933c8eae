"""The options of the commands: each says in one line which value to choose, and why."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.models import ArgumentInfo, OptionInfo

from silomix.simulate import DESIGNS

TABLE, SAMPLER, METHOD, OUTPUT = "The table", "The sampler", "The coordinator", "Output"
"""Panels of the help pages."""


def _option(panel: str, name: str, text: str, words: Sequence[str] = ()) -> OptionInfo:
    """Return an option; `words` are what a shell offers to complete its value with."""
    return typer.Option(
        name,
        help=text,
        rich_help_panel=panel,
        show_default=False,
        autocompletion=(lambda: list(words)) if words else None,
    )


def _flag(panel: str, name: str, text: str) -> OptionInfo:
    """Return an option without a value, and without a type on the help page."""
    return typer.Option(name, help=text, rich_help_panel=panel, show_default=False, metavar="")


def _argument(metavar: str, text: str, words: Sequence[str] = ()) -> ArgumentInfo:
    return typer.Argument(
        help=text,
        metavar=metavar,
        show_default=False,
        autocompletion=(lambda: list(words)) if words else None,
    )


TableFile = Annotated[
    Path,
    _argument("TABLE", "CSV, TSV (or their .gz) or Parquet: a row per unit, columns as variables."),
]
Results = Annotated[
    Path, _argument("DIR", "Folder that fit wrote with --out, or a saved posterior.")
]
SharedStudy = Annotated[Path, _argument("STUDY", "The study file, such as study.toml.")]
ExchangeFolder = Annotated[
    Path, _argument("EXCHANGE", "The folder that the coordinator made, or a copy of it.")
]
ReleaseFolder = Annotated[
    Path, _argument("DIR", "A release folder, as release wrote it or as another silo sent it.")
]
ALL_DESIGNS = (*DESIGNS, "cohort")
Design = Annotated[str, _argument("DESIGN", f"One of {', '.join(ALL_DESIGNS)}.", ALL_DESIGNS)]

DemoOut = Annotated[Path, _option(OUTPUT, "--out", "Folder for reports and tables; replaced.")]
SimulateOut = Annotated[
    Path,
    _option(
        OUTPUT, "--out", "The table: t.csv, or t.parquet of a cohort; the truth is put beside."
    ),
]
ReportOut = Annotated[
    Path | None,
    _option(OUTPUT, "--out", "The page; report.html next to the posterior when left out."),
]
StudyOut = Annotated[Path, _option(OUTPUT, "--out", "The study file, such as study.toml.")]
AssignOut = Annotated[
    Path, _option(OUTPUT, "--out", "The labels, such as labels.csv: a line for each row.")
]
ResultsOut = Annotated[Path, _option(OUTPUT, "--out", "Folder for the results.")]
ReleaseOut = Annotated[
    Path | None, _option(OUTPUT, "--out", "Folder for the release: what the data officer reads.")
]
DryRun = Annotated[
    bool, _flag(OUTPUT, "--dry-run", "Show what would leave, and what each rule did; no files.")
]
Title = Annotated[
    str | None, _option(OUTPUT, "--title", "A line for people; not part of the digest.")
]
KeepDraws = Annotated[
    bool, _flag(OUTPUT, "--keep-draws", "Write draws.npz too, for summaries of your own.")
]
Exchange = Annotated[
    Path, _option(OUTPUT, "--exchange", "Folder for questions and answers; made if there is none.")
]
PolicyFile = Annotated[
    str | None,
    _option(OUTPUT, "--policy", "What may leave: policy.toml, or a preset; default if left out."),
]
StoreFolder = Annotated[
    Path | None,
    _option(OUTPUT, "--store", "Folder for what stays here; next to the table by default."),
]
LedgerFile = Annotated[
    Path | None,
    _option(
        OUTPUT, "--ledger", "File that counts what left; silomix-ledger.json beside the table."
    ),
]
TableName = Annotated[
    str | None,
    _option(
        OUTPUT,
        "--table-name",
        "What the ledger calls the table, however it grows or moves; its path by default.",
    ),
]
CountedTable = Annotated[
    Path | None,
    _option(TABLE, "--data", "The table; its ledger lies beside it, or in this folder."),
]
AllowStudy = Annotated[
    str | None,
    _option(
        OUTPUT, "--allow", "Let this study be answered from the table too: its file, or its digest."
    ),
]
NewVersion = Annotated[
    bool,
    _flag(OUTPUT, "--new-version", "The table has other rows from now on: count its studies anew."),
]
Again = Annotated[
    bool, _flag(OUTPUT, "--again", "Answer again what was refused, or cannot be read.")
]
Yes = Annotated[
    bool, _flag(OUTPUT, "--yes", "Follow the study of the exchange where no --study was given.")
]
Force = Annotated[bool, _flag(OUTPUT, "--force", "Replace files that exist already.")]
Json = Annotated[bool, _flag(OUTPUT, "--json", "Print the result as JSON and nothing else.")]
Quiet = Annotated[bool, _flag(OUTPUT, "--quiet", "Do not show how far the work is.")]
Debug = Annotated[
    bool, _flag(OUTPUT, "--debug", "Show the traceback of an error, for a fault report.")
]

Separability = Annotated[
    str | None,
    _option(
        TABLE,
        "--separability",
        "easy (default), or poor for clusters that overlap.",
        ("easy", "poor"),
    ),
]
OutsideRows = Annotated[
    Path | None,
    _option(
        TABLE, "--table", "The rows, if --outside asks for variables that the posterior lacks."
    ),
]
OutsideColumns = Annotated[
    str | None,
    _option(
        TABLE,
        "--outside",
        "Columns to compare the clusters in, not to cluster: age,sex,ward=levels.",
    ),
]
OutsideMethod = Annotated[
    str | None,
    _option(
        TABLE,
        "--outside-method",
        "averaged (default) allows for unsure rows; labels, the paper's, does not.",
        ("averaged", "labels"),
    ),
]
Rows = Annotated[
    int | None,
    _option(TABLE, "--rows", "Rows in all; 4000, 50000 in appendix-b, 289821 in cohort."),
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
AgreedStudy = Annotated[
    Path | None,
    _option(TABLE, "--study", "The study file you agreed to; questions of another are refused."),
]
OwnName = Annotated[str, _option(TABLE, "--silo", "This silo's name in the study.")]
OwnTable = Annotated[
    Path,
    _option(TABLE, "--data", "This silo's table: CSV, TSV (or their .gz) or Parquet."),
]
ReleaseStudy = Annotated[
    Path, _option(TABLE, "--study", "Study file, the same that all silos have.")
]
ReleaseColumn = Annotated[
    str | None,
    _option(TABLE, "--silo-column", "Column that says whose row it is, if others' are in it too."),
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
IdColumn = Annotated[
    str | None,
    _option(TABLE, "--id", "A column that names each row, such as a number: kept with its label."),
]
Exclude = Annotated[
    str | None,
    _option(TABLE, "--exclude", "Columns to leave out, as a,b: identifiers, dates, numbers."),
]
Missing = Annotated[
    str | None,
    _option(
        TABLE,
        "--missing",
        "marginalise (default) skips missing cells; level if being missing means something.",
        ("marginalise", "level"),
    ),
]
Frequency = Annotated[
    str | None,
    _option(TABLE, "--frequency", "Column of counts, if rows stand for many equal ones."),
]

Preset = Annotated[
    str | None,
    _option(
        SAMPLER,
        "--preset",
        "paper, the published method; files, to go by file; network, silos online; options win.",
        ("paper", "files", "network"),
    ),
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
    _option(
        SAMPLER, "--iterations", "Most sweeps a chain (default 20000); more if the verdict asks."
    ),
]
Alpha = Annotated[
    float | None,
    _option(SAMPLER, "--alpha", "Prior of cluster sizes (default 0.5); less for fewer clusters."),
]
Beta = Annotated[
    float | None,
    _option(SAMPLER, "--beta", "Prior of levels (default 0.5); 1 is uniform, more is smoother."),
]
Drift = Annotated[
    str | None,
    _option(
        SAMPLER,
        "--drift",
        "learn how far the silos' profiles differ (default), or none, the paper's.",
        ("learn", "none"),
    ),
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
        ("linkage", "pam"),
    ),
]
Relabel = Annotated[
    str | None,
    _option(
        SAMPLER,
        "--relabel",
        "match (default), or average, the paper's, whose intervals are too narrow.",
        ("match", "average"),
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
Transport = Annotated[
    str | None,
    _option(
        SAMPLER,
        "--transport",
        "in-process (default), or joblib, with a process per core.",
        ("in-process", "joblib"),
    ),
]

Matching = Annotated[
    str | None,
    _option(
        METHOD,
        "--matching",
        "evidence (default); ball, divergence; hungarian if one silo has every cluster.",
        ("evidence", "ball", "divergence", "hungarian"),
    ),
]
Absorb = Annotated[
    int | None,
    _option(
        METHOD,
        "--absorb",
        "Fold clusters that do not differ only if they have fewer rows; 0 folds none.",
    ),
]
Aggregation = Annotated[
    str | None,
    _option(
        METHOD,
        "--aggregation",
        "vcmc (default); product by file under policies that round; cmc, uniform.",
        ("vcmc", "product", "cmc", "uniform"),
    ),
]
Oracle = Annotated[
    str | None,
    _option(
        METHOD,
        "--oracle",
        "contingency (default) sends distinct rows; federated sums only; pooled.",
        ("contingency", "federated", "pooled"),
    ),
]
Solver = Annotated[
    str | None,
    _option(
        METHOD,
        "--solver",
        "lbfgs (default); psgd, the paper's; few-rounds for slow exchanges.",
        ("lbfgs", "psgd", "few-rounds"),
    ),
]
Polish = Annotated[
    str | None,
    _option(
        METHOD,
        "--polish",
        "until the draws settle (default), or a number of rounds; 0 for none.",
        ("until", "0", "3"),
    ),
]
Strategy = Annotated[
    str | None,
    _option(
        METHOD,
        "--strategy",
        "consensus (default), or exact, with an exchange for every sweep.",
        ("consensus", "exact"),
    ),
]
Assign = Annotated[
    str | None,
    _option(
        METHOD,
        "--assign",
        "Label rows by posterior (default), or matching, the paper's way.",
        ("posterior", "matching"),
    ),
]
Tier = Annotated[
    str | None,
    _option(
        METHOD,
        "--tier",
        "What a silo releases: draws (default) or a summary of them.",
        ("draws", "summary"),
    ),
]
FitPolicy = Annotated[
    str | None,
    _option(METHOD, "--policy", "What a silo lets out: policy.toml, or a preset; open by default."),
]

CERTIFICATE = "The certificate"
ByRequest = Annotated[
    bool,
    _flag(
        CERTIFICATE, "--by-request", "Make no silo's key: each makes its own, and has it signed."
    ),
]
RequestFile = Annotated[
    Path, _argument("REQUEST", "What a silo sent: the .request.zip of silomix flare request.")
]
SignedFile = Annotated[
    Path, _argument("SIGNED", "What came back: the .signed.zip of silomix flare sign.")
]
Enrolling = Annotated[
    str, _option(CERTIFICATE, "--silo", "The silo whose certificate it is: a name of the study.")
]
Authority = Annotated[
    Path,
    _option(CERTIFICATE, "--authority", "The folder authority that provision --by-request made."),
]
RequestFolder = Annotated[
    Path, _option(CERTIFICATE, "--request", "The folder that silomix flare request made here.")
]
KeyFingerprint = Annotated[
    str,
    _option(
        CERTIFICATE, "--fingerprint", "Of the silo's key, told by another channel than the file."
    ),
]
AuthorityFingerprint = Annotated[
    str,
    _option(
        CERTIFICATE, "--fingerprint", "Of the authority, told by another channel than the file."
    ),
]
RequestOut = Annotated[
    Path, _option(OUTPUT, "--out", "A new folder for the key, which stays, and the request.")
]
SignedOut = Annotated[
    Path, _option(OUTPUT, "--out", "The signed request to send back, such as north.signed.zip.")
]
KitOut = Annotated[Path, _option(OUTPUT, "--out", "A new folder for the start-up kit.")]
