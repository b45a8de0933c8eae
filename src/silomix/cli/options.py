"""Options of the commands `silomix ehr` and `silomix flare`, as annotations of their functions."""

from pathlib import Path
from typing import Annotated

import typer
from typer.models import ArgumentInfo, OptionInfo

# Panels of the help pages.
TABLE, SAMPLER, OUTPUT, CERTIFICATE = "The table", "The sampler", "Output", "The certificate"


def _option(panel: str, name: str, text: str) -> OptionInfo:
    return typer.Option(name, help=text, rich_help_panel=panel, show_default=False)


def _flag(panel: str, name: str, text: str) -> OptionInfo:
    """Return an option without a value, and without a type on the help page."""
    return typer.Option(name, help=text, rich_help_panel=panel, show_default=False, metavar="")


def _argument(metavar: str, text: str) -> ArgumentInfo:
    return typer.Argument(help=text, metavar=metavar, show_default=False)


SharedStudy = Annotated[Path, _argument("STUDY", "The study file, such as study.toml.")]
OwnTable = Annotated[
    Path, _option(TABLE, "--data", "This silo's table: CSV, TSV (or their .gz) or Parquet.")
]
ReleaseStudy = Annotated[
    Path, _option(TABLE, "--study", "Study file, the same that all silos have.")
]
SiloColumn = Annotated[
    str | None, _option(TABLE, "--silo-column", "Column that says whose row it is; needs --silo.")
]
PolicyFile = Annotated[
    str | None,
    _option(OUTPUT, "--policy", "What may leave: policy.toml, or a preset; default if left out."),
]
ResultsOut = Annotated[Path, _option(OUTPUT, "--out", "Folder for the results.")]
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
Force = Annotated[bool, _flag(OUTPUT, "--force", "Replace files that exist already.")]
Json = Annotated[bool, _flag(OUTPUT, "--json", "Print the result as JSON and nothing else.")]
Quiet = Annotated[bool, _flag(OUTPUT, "--quiet", "Do not show how far the work is.")]
Debug = Annotated[
    bool, _flag(OUTPUT, "--debug", "Show the traceback of an error, for a fault report.")
]
Frequency = Annotated[
    str | None,
    _option(TABLE, "--frequency", "Column of counts, if rows stand for many equal ones."),
]
Threads = Annotated[
    int | None,
    _option(SAMPLER, "--threads", "Cores to use (default all); the result is the same."),
]
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
