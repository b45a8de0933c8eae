"""Commands beside a silo's rows: sample them, write what may leave, explain it, count it."""
# annotations are evaluated here, since the options are made from them

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from silomix.cli.command import Shown, columns_to_use, command, given, settings_of
from silomix.messages import Release
from silomix.messages.folder import check_target, read_release, write_release
from silomix.messages.progress import showing
from silomix.messages.release_notes import explain
from silomix.model.draws import LocalPosterior
from silomix.model.reading import read_table
from silomix.model.schema import Schema, Shard
from silomix.model.table import expand, infer_schema, load
from silomix.report.display import table_view
from silomix.report.results_folder import check_free, silo_files, write_silo
from silomix.report.run_sections import REPLY_NAMES
from silomix.report.summary import silo_record, silo_view
from silomix.silo.disclosure import check_tier, outgoing
from silomix.silo.ledger import (
    LEDGER,
    Ledger,
    Table,
    allow_study,
    begin_version,
    note_left,
    open_account,
    read_ledger,
)
from silomix.silo.local import Silo, load_rows, place_in, sample_locally
from silomix.silo.release import make_release
from silomix.study import Study, digest, make_study, read_study
from silomix.study.policy import check_study, find_policy
from silomix.study.roster import own_rows, read_roster
from silomix.study.validation import cores

# Name of the one silo of a table that is not split.
ALL_ROWS = "all rows"

SCHEDULE = ("iterations", "burn_in", "chains", "thin", "seed")
DIGEST = re.compile("[0-9a-f]{64}", re.ASCII)
SHOWN = 16
OWN_NAME = "This silo's name in the study."


@command(
    settings={"silos": int, "variables": str, "exclude": str, "missing": str}
    | settings_of("components", *SCHEDULE, "partition", "relabel"),
    out="Folder for the results.",
    study="Study file with all the settings; needs --silo.",
    silo_column="Column that says whose row it is; needs --silo.",
    silo="The silo to sample; without it, all rows are one silo.",
    silos="Silos in all (default 1), if this table is one: sets its share of the prior.",
    keep_draws="Write draws.npz too, for summaries of your own.",
)
def sample_command(
    table: Path,
    *,
    out: Path,
    study: Path | None = None,
    silo_column: str | None = None,
    silo: str | None = None,
    frequency: str | None = None,
    threads: int | None = None,
    checkpoint: Path | None = None,
    keep_draws: bool = False,
    force: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Shown:
    """Cluster the rows of one silo: sample its posterior, partition, summarise."""
    if silo is None and (study or silo_column):
        raise typer.BadParameter("--study and --silo-column need --silo NAME: which silo is it?")
    if silo is not None and not (study or silo_column):
        raise typer.BadParameter("--silo needs --silo-column COLUMN, to find its rows, or --study")
    if "silos" in settings and silo_column is not None:
        raise typer.BadParameter("--silo-column says how many silos there are; leave out --silos")
    if study is not None and settings:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in settings)
        raise typer.BadParameter(f"{study} has every setting; leave out {options}")
    check_free(silo_files(out, keep_draws=keep_draws), force=force)
    frame = read_table(table)
    if study is not None:
        plan = read_study(study)
    else:
        plan = _study_of_table(frame, silo_column, frequency, **settings)
    # the draws are the result here, so they are all made
    fixed = plan.schedule.model_copy(update={"adaptive": False})
    plan = plan.model_copy(update={"schedule": fixed})
    name = silo or ALL_ROWS
    place_in(plan, name)
    rows = own_rows(frame, silo_column, name, plan)
    shard = load(rows, schema=plan.table_schema, frequency=frequency, where=name)
    posterior = apply_to(shard, plan, name, threads=threads, checkpoint=checkpoint, quiet=quiet)
    files = write_silo(out, name, posterior, keep_draws=keep_draws)
    record = silo_record(name, posterior) | {"files": [str(file) for file in files]}
    return Shown(record, silo_view(name, posterior), f"Results: {out}")


def _study_of_table(
    frame: Any,
    column: str | None,
    frequency: str | None,
    *,
    silos: int = 1,
    variables: str | None = None,
    exclude: str | None = None,
    missing: str | None = None,
    **settings: Any,
) -> Study:
    """Return the study of a table that has no study file."""
    unnamed = [ALL_ROWS, *(f"silo {number}" for number in range(2, silos + 1))]
    names = unnamed if column is None else read_roster(frame, column).names
    used = columns_to_use(frame, variables, exclude, apart=[column, frequency])
    rows = expand(frame, frequency)
    schema = infer_schema(rows, silo=column, variables=used, **given(missing=missing))
    return make_study(schema, names, **settings)


def apply_to(
    shard: Shard,
    study: Study,
    silo: str,
    *,
    threads: int | None,
    checkpoint: Path | None,
    quiet: bool,
) -> LocalPosterior:
    """Return the local posterior of one silo's rows.

    The apply step of Fendler et al. (2026), section 4.2: sample, partition, relabel.
    """
    with showing(quiet=quiet) as report:
        return sample_locally(
            Silo(
                name=silo,
                place=place_in(study, silo),
                shard=shard,
                study=study,
                threads=cores(threads),
                checkpoint=checkpoint,
                progress=report,
            )
        )


@command(
    silo=OWN_NAME,
    out="Folder for the release: what the data officer reads.",
    dry_run="Show what would leave, and what each rule did; no files.",
)
def release_command(
    table: Path,
    *,
    study: Path,
    silo: str,
    policy: str = "default",
    out: Path | None = None,
    silo_column: str | None = None,
    frequency: str | None = None,
    ledger: Path | None = None,
    table_name: str | None = None,
    threads: int | None = None,
    checkpoint: Path | None = None,
    dry_run: bool = False,
    force: bool = False,
    quiet: bool = False,
) -> Shown:
    """Cluster one silo's rows and write what its policy lets out, for its officer.

    Columns that the study does not name are ignored.
    """
    if (out is None) != dry_run:
        raise typer.BadParameter("give --out DIR for the release, or --dry-run to see it first")
    plan, rules = read_study(study), find_policy(policy)
    # before hours of sampling
    check_study(plan, rules.limits, silo)
    check_tier(plan.tier, rules, silo)
    if out is not None:
        check_target(out, force=force)
    loaded = load_rows(table, plan, silo, column=silo_column, frequency=frequency)
    account = None
    if out is not None:
        named: dict[str, Any] = {
            "data": table,
            "column": silo_column,
            "table": table_name,
            "ledger": ledger,
        }
        account = open_account(loaded, plan, silo, policy=rules, **named)
    local = apply_to(loaded.shard, plan, silo, threads=threads, checkpoint=checkpoint, quiet=quiet)
    made = make_release(
        local,
        silo=silo,
        place=plan.silos.index(silo),
        study=digest(plan),
        tier=plan.tier,
        policy=rules,
        inside=True,
    )
    schema = plan.table_schema
    if out is None or account is None:
        last = "Nothing was written. Details above may name counts that must not leave."
        return Shown(_release_record(made, schema), _release_view(made, schema), last)
    leaving = replace(made, checks=outgoing(made.checks))
    note_left(account, Release.__name__)
    files = write_release(leaving, out, schema, force=force)
    record = _release_record(leaving, schema) | {"files": [str(file) for file in files]}
    last = f"Release: {out}\nCounted in: {account.path}"
    return Shown(record, _release_view(leaving, schema), last)


@command(folder="A release folder, as release wrote it or as another silo sent it.")
def inspect_command(folder: Path) -> Shown:
    """Explain a release in plain words, and what a recipient could infer from it."""
    release, schema = read_release(folder)
    last = "Every file fits its checksum, and no number breaks the policy it names."
    return Shown(_release_record(release, schema), _release_view(release, schema), last)


def _release_record(release: Release, schema: Schema) -> dict[str, Any]:
    return {
        "silo": release.silo,
        "study": release.study,
        "tier": release.tier,
        "rows": release.rows,
        "sizes": release.sizes.tolist(),
        "variables": {variable.name: list(variable.levels) for variable in schema.variables},
        "policy": dict(release.policy),
        "checks": [asdict(check) for check in release.checks],
        "trusted": release.diagnostics.trusted,
        "explanation": explain(release, schema),
    }


def _release_view(release: Release, schema: Schema) -> RenderableType:
    sizes = table_view("cluster", "rows")
    for cluster, size in enumerate(release.sizes):
        sizes.add_row(str(cluster), f"{size:,}")
    parts: list[RenderableType] = [Text(f"Release of {release.silo}", style="bold"), sizes]
    for heading, sentences in explain(release, schema).items():
        parts += [Text(heading, style="bold"), *(Text(f"- {each}") for each in sentences), Text()]
    return Group(*parts)


@command(
    data="The table; its ledger lies beside it, or in this folder.",
    allow="Let this study be answered from the table too: its file, or its digest.",
    new_version="The table has other rows from now on: count its studies anew.",
)
def ledger_command(
    *,
    ledger: Path | None = None,
    data: Path | None = None,
    table_name: str | None = None,
    allow: str | None = None,
    new_version: bool = False,
) -> Shown:
    """Show which studies were answered from a table, and let its owner allow another."""
    if allow is not None and new_version:
        raise typer.BadParameter("--allow and --new-version are two decisions; take one")
    path = ledger or (data.resolve().parent if data else Path()) / LEDGER
    name = table_name or (str(data.resolve()) if data else None)
    if allow is not None:
        study = allow if DIGEST.fullmatch(allow) else digest(read_study(allow))
        found = allow_study(path, study, name)
    elif new_version:
        found = begin_version(path, name)
    else:
        found = read_ledger(path)
    record = {"ledger": str(path), "tables": found.model_dump(mode="json")["tables"]}
    return Shown(record, _ledger_view(found), f"Ledger: {path}")


def _ledger_view(ledger: Ledger) -> RenderableType:
    if not ledger.tables:
        return Text("Nothing has left, as far as this ledger knows.")
    return Group(*(part for table in ledger.tables for part in _table_view(table)))


def _table_view(table: Table) -> list[RenderableType]:
    words = ("study", "title", "silo", "policy", "first", "what left")
    lines = table_view("version", *words, left=words)
    for number, version in enumerate(table.versions, start=1):
        for one in version.studies:
            left = ", ".join(REPLY_NAMES.get(record, record) for record in one.left)
            cells = (one.study[:SHOWN], one.title, one.silo, one.policy, one.since[:10], left)
            lines.add_row(str(number), *(Text(printable(cell)) for cell in cells))
    parts: list[RenderableType] = [Text(printable(table.name), style="bold")]
    if table.versions and not table.counted.studies:
        parts.append(Text("A new version begins with the next study that is answered."))
    parts += [Text(f"Allowed by its owner: {study[:SHOWN]}") for study in table.allowed]
    return [*parts, lines, Text()]


def printable(text: str) -> str:
    """Return text that cannot steer a terminal."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
