"""Commands at the silo's door: write what may leave, and explain what has."""
# annotations are evaluated here, since typer builds the options from them

from dataclasses import asdict, replace
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from silomix import options as opt
from silomix.airlock import check_target, explain, read_contents, write_release
from silomix.apply import apply_to
from silomix.disclosure import check_tier, outgoing
from silomix.ledger import note_left
from silomix.policy import find_policy
from silomix.progress import showing
from silomix.release import Release, prepare_release
from silomix.report.display import table_view
from silomix.site import load_rows, open_account
from silomix.study import digest, read_study
from silomix.terminal import explaining, show
from silomix.types import Schema


def release_command(
    table: opt.TableFile,
    *,
    study: opt.ReleaseStudy,
    silo: opt.OwnName,
    policy: opt.PolicyFile = None,
    out: opt.ReleaseOut = None,
    silo_column: opt.ReleaseColumn = None,
    frequency: opt.Frequency = None,
    ledger: opt.LedgerFile = None,
    table_name: opt.TableName = None,
    threads: opt.Threads = None,
    checkpoint: opt.Checkpoint = None,
    dry_run: opt.DryRun = False,
    force: opt.Force = False,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Cluster one silo's rows and write what its policy lets out, for its data officer to read.

    Columns that the study does not name are ignored.
    """
    with explaining(debug=debug):
        if (out is None) != dry_run:
            raise typer.BadParameter("give --out DIR for the release, or --dry-run to see it first")
        plan, rules = read_study(study), find_policy(policy or "default")
        check_tier(plan.tier, rules, silo)  # before hours of sampling
        if out is not None:
            check_target(out, force=force)
        loaded = load_rows(table, plan, silo, column=silo_column, frequency=frequency)
        account = None
        if out is not None:
            account = open_account(
                loaded,
                plan,
                silo,
                policy=rules,
                data=table,
                column=silo_column,
                table=table_name,
                ledger=ledger,
            )
        with showing(quiet=quiet) as report:
            local = apply_to(
                loaded.shard,
                plan,
                silo,
                threads=threads,
                checkpoint=checkpoint,
                progress=report or False,
            )
        made = prepare_release(
            local,
            silo=silo,
            place=plan.silos.index(silo),
            study=digest(plan),
            tier=plan.tier,
            policy=rules,
        )
        schema = plan.table_schema
        if out is None or account is None:
            last = "Nothing was written. Details above may name counts that must not leave."
            show(_record(made, schema), _view(made, schema), as_json=as_json, last=last)
            return
        leaving = replace(made, checks=outgoing(made.checks))
        note_left(account, Release.__name__)
        files = write_release(leaving, out, schema, force=force)
        record = _record(leaving, schema) | {"files": [str(file) for file in files]}
        last = f"Release: {out}\nCounted in: {account.path}"
        show(record, _view(leaving, schema), as_json=as_json, last=last)


def inspect_command(
    folder: opt.ReleaseFolder, as_json: opt.Json = False, debug: opt.Debug = False
) -> None:
    """Explain a release in plain words, and what a recipient could infer from it."""
    with explaining(debug=debug):
        contents = read_contents(folder)
        release, schema = contents.release(), contents.schema
        last = "Every file fits its checksum, and no number breaks the policy it names."
        show(_record(release, schema), _view(release, schema), as_json=as_json, last=last)


def _record(release: Release, schema: Schema) -> dict[str, Any]:
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


def _view(release: Release, schema: Schema) -> RenderableType:
    sizes = table_view("cluster", "rows")
    for cluster, size in enumerate(release.sizes):
        sizes.add_row(str(cluster), f"{size:,}")
    parts: list[RenderableType] = [Text(f"Release of {release.silo}", style="bold"), sizes]
    for heading, sentences in explain(release, schema).items():
        parts += [Text(heading, style="bold"), *(Text(f"- {each}") for each in sentences), Text()]
    return Group(*parts)
