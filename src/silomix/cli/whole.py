"""Commands of the whole method: fit, assign rows to what was found, demonstrate."""
# annotations are evaluated here, since typer builds the options from them

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from silomix import options as opt
from silomix.api import fit
from silomix.cli.parsing import columns_to_use, given, rounds, split
from silomix.cli.report import (
    OUTSIDE,
    check_outside_method,
    columns_of,
    find_posterior,
    outside_record,
    tell_outside,
    write_outside,
)
from silomix.data import expand, read_table
from silomix.demo import demo_record, demo_view, run_demo
from silomix.posterior import load
from silomix.posterior.outside import compare_outside, read_outside
from silomix.progress import StageClock, showing, tell_seconds
from silomix.report import write_report
from silomix.results import (
    PAGE,
    assign_rows,
    assigned_record,
    assigned_view,
    check_free,
    posterior_files,
    posterior_record,
    posterior_view,
    read_ids,
    with_ids,
    write_posterior,
    write_table,
)
from silomix.terminal import explaining, show


def demo_command(
    out: opt.DemoOut,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Cluster four simulated hospitals without pooling them, and compare with the truth."""
    with explaining(debug=debug):
        with showing(quiet=quiet) as report:
            found = run_demo(out, progress=report or False)
        record = demo_record(found)
        last = f"Against the truth: {record['comparison']}\nReport: {record['report']}"
        show(record, demo_view(found), as_json=as_json, last=last)


def fit_command(
    table: opt.TableFile,
    *,
    out: opt.ResultsOut,
    silo: opt.FitColumn = None,
    shards: opt.Shards = None,
    variables: opt.Variables = None,
    exclude: opt.Exclude = None,
    id_column: opt.IdColumn = None,
    outside: opt.OutsideColumns = None,
    outside_method: opt.OutsideMethod = None,
    missing: opt.Missing = None,
    frequency: opt.Frequency = None,
    preset: opt.Preset = None,
    components: opt.Components = None,
    alpha: opt.Alpha = None,
    beta: opt.Beta = None,
    drift: opt.Drift = None,
    iterations: opt.Iterations = None,
    burn_in: opt.BurnIn = None,
    chains: opt.Chains = None,
    thin: opt.Thin = None,
    seed: opt.Seed = None,
    partition: opt.PartitionMethod = None,
    relabel: opt.Relabel = None,
    threads: opt.Threads = None,
    checkpoint: opt.Checkpoint = None,
    transport: opt.Transport = None,
    matching: opt.Matching = None,
    absorb: opt.Absorb = None,
    aggregation: opt.Aggregation = None,
    oracle: opt.Oracle = None,
    solver: opt.Solver = None,
    polish: opt.Polish = None,
    strategy: opt.Strategy = None,
    assign: opt.Assign = None,
    tier: opt.Tier = None,
    policy: opt.FitPolicy = None,
    force: opt.Force = False,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Cluster the rows of all silos: each samples its own, a coordinator makes one result."""
    settings = given(
        shards=shards,
        missing=missing,
        frequency=frequency,
        preset=preset,
        components=components,
        alpha=alpha,
        beta=beta,
        drift=drift,
        iterations=iterations,
        burn_in=burn_in,
        chains=chains,
        thin=thin,
        seed=seed,
        partition=partition,
        relabel=relabel,
        threads=threads,
        checkpoint=checkpoint,
        transport=transport,
        matching=matching,
        absorb=absorb,
        aggregation=aggregation,
        oracle=oracle,
        solver=solver,
        polish=rounds(polish),
        strategy=strategy,
        assign=assign,
        tier=tier,
        policy=policy,
    )
    with explaining(debug=debug):
        if silo is not None and shards is not None:
            raise typer.BadParameter(
                "--silo and --shards both say how to split the rows; give one of them"
            )
        check_free([*posterior_files(out), out / OUTSIDE], force=force)
        check_outside_method(outside, outside_method)
        others = columns_of(outside) if outside is not None else {}
        taken = [*(split(variables) or []), silo, frequency]
        _check_apart(table, others, taken)
        named = _ids(table, id_column, [*taken, *others], frequency)
        alone = [*given(exclude=exclude).values(), *others, *given(id_column=id_column).values()]
        unwanted = exclude if variables else ",".join(alone)
        columns = columns_to_use(table, variables, unwanted or None, apart=[silo, frequency])
        with showing(quiet=quiet) as report:
            clock = StageClock(report=report)
            posterior = fit(table, silo, **settings, **given(variables=columns), progress=clock)
            seconds = clock.stop()
        files = write_posterior(out, posterior, named)
        (out / OUTSIDE).unlink(missing_ok=True)  # it would be another's
        found = None
        if others:
            frame = read_table(table)
            found = compare_outside(
                posterior,
                expand(frame, frequency) if frequency else frame,
                others,
                silo,
                labels=posterior.labels if outside_method == "labels" else None,
                **given(method=outside_method, threads=threads),
            )
            write_outside(found, out / OUTSIDE)
            write_report(posterior, out / PAGE, outside=found)
            files.append(out / OUTSIDE)
        record = posterior_record(posterior) | {"files": [str(file) for file in files]}
        record |= outside_record(found)
        record["seconds"] = {stage: round(took, 3) for stage, took in seconds.items()}
        last = [*tell_seconds(seconds), *tell_outside(found, out / OUTSIDE), f"Results: {out}"]
        show(record, posterior_view(posterior), as_json=as_json, last="\n".join(last))


def _check_apart(table: Path, others: dict[str, Any], taken: Sequence[str | None]) -> None:
    """Refuse, before the work, columns that cannot be compared or have another task."""
    for name in others:
        _check_free_of_tasks("--outside", name, taken)
    if others:
        read_outside(read_table(table), others)


def _ids(
    table: Path, column: str | None, taken: Sequence[str | None], frequency: str | None
) -> NDArray[np.object_] | None:
    """Return what the rows are called, if anything; refuse, before the work, a column in use."""
    if column is None:
        return None
    _check_free_of_tasks("--id", column, taken)
    return read_ids(table, column, frequency)


def _check_free_of_tasks(option: str, column: str, taken: Sequence[str | None]) -> None:
    if column in taken:
        raise typer.BadParameter(
            f"{option} names {column!r}, which another option gives a task; give it one"
        )


def assign_command(
    results: opt.Results,
    table: opt.TableFile,
    *,
    out: opt.AssignOut,
    silo: opt.AssignColumn = None,
    id_column: opt.IdColumn = None,
    threads: opt.Threads = None,
    force: opt.Force = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Find the cluster of each row of a table, old or new, under a saved posterior."""
    with explaining(debug=debug):
        check_free([out], force=force)
        found = load(find_posterior(results))
        named = None if id_column is None else read_ids(table, id_column)
        labels = with_ids(assign_rows(found, table, silo, threads), named)
        write_table(labels, out, private=True)
        record = assigned_record(found, labels) | {"files": [str(out)]}
        show(record, assigned_view(found, labels), as_json=as_json, last=f"Labels: {out}")
