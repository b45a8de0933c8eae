"""Commands beside a silo's rows: sample them, write what may leave, explain it, count it."""
# annotations are evaluated here, since the options are made from them

import hashlib
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from silomix.cli import command as cli
from silomix.messages import Release
from silomix.messages.folder import check_target, read_release, write_release
from silomix.messages.progress import showing
from silomix.messages.release_explained import explain
from silomix.model.draws import LocalPosterior
from silomix.model.files import finishing
from silomix.model.reading import read_table
from silomix.model.schema import Schema
from silomix.model.sentences import cores, printable
from silomix.report.display import frame_view
from silomix.report.results_folder import check_free, silo_files, write_silo
from silomix.report.run_sections import REPLY_NAMES
from silomix.report.summary import silo_record, silo_view
from silomix.silo import ledger as ledgers
from silomix.silo.ledger_file import Table, find_ledger, read_ledger, refuse_old
from silomix.silo.local import Silo, open_site, release_of, sample_locally
from silomix.silo.release import check_tier, outgoing
from silomix.study import digest, read_study
from silomix.study.policy import check_study, find_policy
from silomix.transports.combination import sum_up_draws

# Name of the one silo of a table that is not split.
ALL_ROWS = "all rows"

# Settings of a study that one silo's posterior depends on.
SCHEDULE = ("iterations", "burn_in", "chains", "thin", "seed")
OF_ONE_SILO = ("components", *SCHEDULE, "partition", "relabel")
DIGEST = re.compile("[0-9a-f]{64}", re.ASCII)
SHOWN = 16


@cli.command(settings={"silos": int} | cli.COLUMNS | cli.settings_of(*OF_ONE_SILO))
def sample_command(
    table: Path,
    *,
    out: Path,
    study: Path | None = None,
    silo_column: str | None = None,
    silo: str | None = None,
    threads: int | None = None,
    checkpoint: Path | None = None,
    keep_draws: bool = False,
    force: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> cli.Shown:
    """Cluster the rows of one silo: sample its posterior, partition, summarise.

    Parameters
    ----------
    study : Study file with all the settings; needs --silo. Every iteration is run, adaptive or not.
    silo_column : Column that names each row's silo; needs --silo.
    silo : The silo to sample; without it, all rows are one silo.
    silos : Number of silos (default 1), this one included: sets its share of the prior.
    keep_draws : Write draws.npz too, for summaries of your own.

    Examples
    --------
    silomix sample north.csv --study study.toml --silo north --out north-results
    """
    if silo is None and (study or silo_column):
        raise typer.BadParameter("--study and --silo-column need --silo NAME: which silo is it?")
    if silo is not None and not (study or silo_column):
        raise typer.BadParameter("--silo needs --silo-column COLUMN, to find its rows, or --study")
    files, frequency = silo_files(out, keep_draws=keep_draws), settings.pop("frequency", None)
    check_free(files, force=force)
    frame = read_table(table)
    if study is not None and settings:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in settings)
        raise typer.BadParameter(f"{study} has every setting; leave out {options}")
    if silo_column is not None and "silos" in settings:
        raise typer.BadParameter("--silo-column says how many silos there are; leave out --silos")
    if study is not None:
        plan = read_study(study)
    else:
        others = [f"silo {number}" for number in range(2, settings.pop("silos", 1) + 1)]
        names = None if silo_column else [ALL_ROWS, *others]
        plan = cli.study_of(frame, silo_column, names, frequency=frequency, **settings)
    # the draws are the result here, so they are all made
    fixed = plan.schedule.model_copy(update={"adaptive": False})
    plan = plan.model_copy(update={"schedule": fixed})
    name, where = silo or ALL_ROWS, {"silo_column": silo_column, "frequency": frequency}
    opened, _ = open_site(frame, plan, name, is_counted=False, **where)
    posterior = sample_rows(replace(opened, checkpoint=checkpoint), threads, quiet=quiet)
    with finishing(files):
        write_silo(out, name, posterior, keep_draws=keep_draws)
    record = silo_record(name, posterior) | {"files": files}
    last = [*cli.tell_checkpoint(checkpoint), f"Results: {out}"]
    return cli.Shown(record, silo_view(name, posterior), "\n".join(last))


def sample_rows(silo: Silo, threads: int | None, *, quiet: bool) -> LocalPosterior:
    """Local posterior of one silo's rows.

    The apply step of Fendler et al. (2026), section 4.2: sample, partition, relabel.
    """
    with showing(quiet=quiet) as report:
        return sample_locally(replace(silo, threads=cores(threads), progress=report))


@cli.command(settings={"ledger": Path, "table_name": str}, hides_cells=True)
def release_command(
    table: Path | None = None,
    *,
    study: Path | None = None,
    silo: str,
    draws: Path | None = None,
    rows: int | None = None,
    weights: str = "weights",
    parameters: str | None = None,
    transform: list[str] | None = None,
    policy: str | None = None,
    out: Path | None = None,
    silo_column: str | None = None,
    frequency: str | None = None,
    threads: int | None = None,
    checkpoint: Path | None = None,
    dry_run: bool = False,
    force: bool = False,
    quiet: bool = False,
    **counted: Any,
) -> cli.Shown:
    """Cluster one silo's rows and write what its policy releases, for its data officer.

    Columns that the study does not name are ignored. With --draws, write what the policy releases
    from a posterior that was sampled elsewhere.

    Parameters
    ----------
    silo : This silo's name in the study.
    draws : Instead of a table and a study: an ArviZ netCDF file with draws of a mixture.
    rows : With --draws, the number of rows that were fitted.
    weights : With --draws, the variable with the components' weights.
    parameters : With --draws, the variables with the components' parameters, as a,b,c.
    transform : With --draws: sigma=log, logit or none; by default the draws decide. Repeatable.
    out : Folder for the release: what the data officer reads.
    dry_run : Show what would leave, and what each rule did; write no files.

    Examples
    --------
    silomix release north.csv --study study.toml --silo north --dry-run
    """
    if (out is None) != dry_run:
        raise typer.BadParameter("give --out DIR for the release, or --dry-run to see it first")
    rules, last, account = find_policy(policy or "default"), [], None
    if out is not None:
        check_target(out, force=force)
    if draws is not None:
        if rows is None:
            raise typer.BadParameter("give --rows N too: the number of rows that were fitted")
        where = weights, cli.split(parameters), None
        tier = "draws" if "draws" in rules.tiers else "summary"
        stated: dict[str, Any] = {"rows": {silo: rows}, "prior": {}}
        stated["transforms"] = cli.by_column("--transform", transform)
        plan, (made,), _ = sum_up_draws({silo: draws}, where, policy=rules, tier=tier, **stated)
        if not dry_run:  # the draws are their own table
            cells = hashlib.sha256(draws.read_bytes()).hexdigest()
            digests = ledgers.Digests(cells, cells, {"draws": cells})
            account = ledgers.open_account(digests, plan, silo, rules, draws, **counted)
    elif table is not None and study is not None:
        counted |= {"silo_column": silo_column, "frequency": frequency}
        plan = read_study(study)
        # refused before hours of sampling
        check_study(plan, rules, silo)
        check_tier(plan.tier, rules, silo)
        opened, _ = open_site(table, plan, silo, policy=rules, is_counted=not dry_run, **counted)
        sampler = replace(opened, checkpoint=checkpoint)
        made = release_of(sampler, sample_rows(sampler, threads, quiet=quiet), inside=True)
        account, last = opened.account, cli.tell_checkpoint(checkpoint)
    else:
        raise typer.BadParameter("give TABLE and --study STUDY, or --draws FILE")
    if out is None or account is None:
        last.append("Nothing was written. Details above may name counts that must not leave.")
        return _show_release(made, plan.table_schema, "\n".join(last))
    leaving = replace(made, checks=outgoing(made.checks))
    ledgers.note_left(account, Release.__name__)
    files = write_release(leaving, out, plan.table_schema, force=force)
    last += [f"Release: {out}", f"Counted in: {account.path}"]
    return _show_release(leaving, plan.table_schema, "\n".join(last), files=files)


@cli.command()
def inspect_command(folder: Path) -> cli.Shown:
    """Explain a release in plain words, and what a recipient could infer from it.

    Parameters
    ----------
    folder : A release folder, as release wrote it or as another silo sent it.

    Examples
    --------
    silomix inspect release-of-north
    """
    last = "Every file matches its checksum, and no number breaks the release's own policy."
    return _show_release(*read_release(folder), last)


def _show_release(release: Release, schema: Schema, last: str, **more: object) -> cli.Shown:
    """A release and what follows from it, with `more` for programs."""
    notes = explain(release, schema)
    record = {
        "silo": release.silo,
        "study": release.study,
        "tier": release.tier,
        "rows": release.rows,
        "sizes": release.sizes.tolist(),
        "variables": {variable.name: list(variable.levels) for variable in schema.variables},
        "policy": dict(release.policy),
        "checks": [asdict(check) for check in release.checks],
        "trusted": release.diagnostics.trusted,
        "explanation": notes,
    }
    sizes = pd.DataFrame({"rows": release.sizes}).rename_axis("cluster").reset_index()
    parts: list[RenderableType] = [Text(f"Release of {release.silo}", style="bold")]
    parts.append(frame_view(sizes))
    for heading, sentences in notes.items():
        parts += [Text(heading, style="bold"), *(Text(f"- {each}") for each in sentences), Text()]
    return cli.Shown(record | more, Group(*parts), last)


@cli.command()
def ledger_command(
    *,
    ledger: Path | None = None,
    data: Path | None = None,
    table_name: str | None = None,
    allow: str | None = None,
    new_version: bool = False,
) -> cli.Shown:
    """Show which studies have used which tables, and let their owner allow another.

    Parameters
    ----------
    data : The table that --allow or --new-version is about.
    allow : Let another study use the table: the study's file or digest.
    new_version : The table now has new rows: start a new count of its studies.

    Examples
    --------
    silomix ledger --data north.csv --allow study.toml
    """
    if allow is not None and new_version:
        raise typer.BadParameter("--allow and --new-version are separate decisions; give one")
    path = find_ledger(ledger)
    if data is not None:
        refuse_old(data)
    name = table_name or (str(data.resolve()) if data else None)
    if allow is not None:
        study = allow if DIGEST.fullmatch(allow) else digest(read_study(allow))
        content = ledgers.allow_study(path, study, name)
    elif new_version:
        content = ledgers.begin_version(path, name)
    else:
        content = read_ledger(path)
    record = {"ledger": path, "tables": content.model_dump(mode="json")["tables"]}
    view = Group(*(part for table in content.tables for part in _table_view(table)))
    if not content.tables:
        view = Group(Text("Nothing has left, as far as this ledger knows."))
    return cli.Shown(record, view, f"Ledger: {path}")


def _table_view(table: Table) -> list[RenderableType]:
    heads = ["version", "study", "title", "silo", "policy", "first", "what left"]
    lines = [
        (number, entry.study[:SHOWN], entry.title, entry.silo, entry.policy, entry.since[:10],
         ", ".join(REPLY_NAMES.get(record, record) for record in entry.left))
        for number, version in enumerate(table.versions, start=1)
        for entry in version.studies
    ]  # fmt: skip
    parts: list[RenderableType] = [Text(printable(table.name), style="bold")]
    if table.versions and not table.counted.studies:
        parts.append(Text("A new version begins with the next study that is answered."))
    parts += [Text(f"Allowed by its owner: {study[:SHOWN]}") for study in table.allowed]
    for change in table.changes:
        settings = ", ".join(
            f"{key} {old} → {change.now[key]}" for key, old in change.before.items()
        )
        parts.append(Text(printable(f"{change.at[:10]}: its policy changed: {settings}")))
    return [*parts, frame_view(pd.DataFrame(lines, columns=heads), left=heads), Text()]
