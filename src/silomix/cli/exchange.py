"""The commands of a study by file: the coordinator's, a silo's, and for releases of draws."""
# annotations are evaluated here, since the options are made from them

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import typer
from rich.console import Group
from rich.text import Text

from silomix.cli import command as cli
from silomix.cli import exit_code
from silomix.coordinator.pipeline import run_study
from silomix.errors import PolicyRefusal, SettingsError, SiloError, StudyMismatch
from silomix.messages import REFUSALS
from silomix.messages.progress import showing
from silomix.model.files import finishing, log_file
from silomix.model.sentences import cores, listing, printable, printable_lines
from silomix.posterior.saved_file import SAVED, as_bytes
from silomix.report import results_folder
from silomix.report.display import frame_view
from silomix.report.run_sections import reply
from silomix.report.summary import json_lines
from silomix.silo.ledger_file import find_ledger
from silomix.silo.local import Silo, open_site, place_in, write_labels
from silomix.study import Study, digest, read_study
from silomix.study.policy import echo, find_policy
from silomix.transports import exchange_folder
from silomix.transports.combination import combine_releases
from silomix.transports.exchange_folder import FileExchange, Unanswered
from silomix.transports.file_answers import Answered, answer_questions

STORE = "silomix-store"
LOG = "log.txt"


@cli.command()
def coordinate_command(
    study: Path,
    *,
    exchange: Path,
    out: Path,
    threads: int | None = None,
    force: bool = False,
    quiet: bool = False,
) -> cli.Shown:
    """Run a study by file: read the silos' answers, ask the next question, or finish.

    Parameters
    ----------
    exchange : Folder for questions and answers; created if missing.

    Examples
    --------
    silomix coordinate study.toml --exchange exchange --out results
    """
    _check_outside(exchange, out=out)
    plan, files = read_study(study), results_folder.posterior_files(out)
    is_done = not force and results_folder.has_results(out, plan)
    results_folder.check_free([] if is_done else files, force=force)
    silos = FileExchange(exchange, plan)
    try:
        with showing(quiet=quiet) as report:
            posterior = run_study(plan, silos, threads=cores(threads), report=report)
    except Unanswered as waiting:
        ended = waiting if waiting.missing else SiloError()  # nobody is left who will answer
        return _show_open(waiting, exit_code(ended))
    answered = f"Questions: {silos.encoded.asked}, all answered\n"
    if is_done:
        # other answers by now, or names that somebody gave
        if (out / SAVED).read_bytes() != as_bytes(posterior):
            results_folder.check_free(files, force=False)
        files = [file for file in files if file.exists()]
    else:
        with finishing(files):
            files = results_folder.write_posterior(out, posterior)
    return cli.show_results(out, posterior, files, answered, questions=silos.encoded.asked)


@cli.command(settings=cli.WHERE, hides_cells=True)
def answer_command(
    exchange: Path,
    *,
    silo: str,
    data: Path,
    study: Path | None = None,
    policy: str | None = None,
    store: Path | None = None,
    again: bool = False,
    yes: bool = False,
    threads: int | None = None,
    quiet: bool = False,
    **where: Any,
) -> cli.Shown:
    """Answer a silo's open questions from its own table, as far as its policy allows.

    Parameters
    ----------
    exchange : The folder that the coordinator made, or a copy of it.
    silo : This silo's name in the study.
    study : The study file you agreed to; questions from other studies are refused.
    store : Folder for what stays here; next to the table by default.
    again : Answer anew the questions that were refused, or whose answers cannot be read.
    yes : Accept the study of the exchange if no --study is given.

    Examples
    --------
    silomix answer exchange --silo north --data north.csv --study study.toml
    """
    plan = exchange_folder.read_exchange(exchange)
    if study is not None and digest(read_study(study)) != digest(plan):
        raise StudyMismatch(
            f"{exchange} is for a different study from {study}; ask the coordinator which one is "
            "meant, and answer only if you agree to it"
        )
    place_in(plan, silo)
    place = exchange_folder.silo_folder(plan.silos, silo)
    home = store or data.parent / STORE / f"{place}-{digest(plan)[:8]}"
    ledger = find_ledger(where.pop("ledger", None))
    _check_outside(exchange, data=data, store=home, ledger=ledger)
    rules = find_policy(policy or "default")
    if study is None:
        _agree(plan, exchange, silo, yes=yes)
    opened, loaded = open_site(data, plan, silo, policy=rules, store=home, ledger=ledger, **where)
    with showing(quiet=quiet) as report, _logging_to(home / LOG):
        asked = replace(opened, threads=cores(threads), progress=report)
        done = list(answer_questions(exchange, asked, again=again))
        labels = write_labels(asked, loaded)
    account = opened.account
    record = {
        "silo": silo,
        "study": digest(plan),
        "policy": echo(rules),
        "answers": [asdict(item) | {"folder": item.path} for item in done],
        "store": home,
        "labels": labels,
        "ledger": account and account.path,
        "table": account and account.table,
    }
    last = [] if opened.store.kept is None else cli.tell_checkpoint(opened.checkpoint)
    last.append(f"To the coordinator: {exchange / exchange_folder.ANSWERS / place}")
    last += [f"Stays here: {home}", f"Counted in: {record['ledger']}"]
    if labels:
        last.append(f"Clusters of the rows, which stay here too: {labels}")
    code, view = 0, _answers_view(asked, done, given=policy)
    if any(item.refused for item in done):
        code = exit_code(SiloError())
        last.append(f"Why a question was refused, in the silo's own log: {home / LOG}")
    return cli.Shown(record, view, "\n".join(last), code)


@cli.command(settings=cli.settings_of("matching", "drift", "alpha", "seed", "title"))
def combine_command(
    folders: list[Path],
    *,
    out: Path,
    aggregation: str = "product",
    transform: list[str] | None = None,
    prior: list[str] | None = None,
    force: bool = False,
    **settings: Any,
) -> cli.Shown:
    """Combine mixtures that silos fitted elsewhere, from their release folders.

    Parameters
    ----------
    folders : One from each silo, written by release --draws.
    aggregation : product, cmc or uniform.
    transform : sigma=log, logit or none; chosen by the range of the draws if left out. Repeatable.
    prior : sigma=0,1.5: mean and sd of the silos' prior, transformed; wide if left out. Repeatable.
    alpha : Concentration of the weights' prior in the silos (default 1).

    Examples
    --------
    silomix combine release-of-north release-of-south --out results
    """
    results_folder.check_free(results_folder.posterior_files(out), force=force)
    settings["transforms"] = cli.by_column("--transform", transform)
    laws = cli.by_column("--prior", prior)
    settings["prior"] = {name: law.split(",") for name, law in laws.items()}
    posterior = combine_releases(folders, aggregation=aggregation, **settings)
    with finishing(results_folder.posterior_files(out)):
        return cli.show_results(out, posterior, results_folder.write_posterior(out, posterior))


def _agree(plan: Study, exchange: Path, silo: str, *, yes: bool) -> None:
    """Show which study a silo is about to follow, and ask where nobody has agreed to it.

    Raises
    ------
    PolicyRefusal
        When the answer is no.
    """
    questions = exchange_folder.expected_questions(plan)
    asks = f"at most {questions}" if questions else "as many as it takes"
    lines = (
        f"No --study was given. {silo!r} is about to take part in the study of {exchange}:",
        f"  title: {printable(plan.title or 'none')}",
        f"  digest: {digest(plan)}",
        f"  silos: {', '.join(plan.silos)}",
        f"  variables: {listing([variable.name for variable in plan.variables])}",
        f"  questions: {asks}. As far as the policy allows, it asks for",
        *(f"    - {line}" for line in exchange_folder.asked_for(plan)),
    )
    typer.echo(printable_lines("\n".join(lines)), err=True)
    if yes:
        return
    if not _at_a_terminal():
        raise typer.BadParameter(
            "nobody has agreed to the study above: give --study and the file that was agreed to, "
            "or --yes to take part in this one"
        )
    with suppress(typer.Abort):
        if typer.confirm(f"Take part as {silo!r}?", err=True):
            return
    raise PolicyRefusal(f"{silo!r} did not agree to this study; nothing was read or answered")


def _at_a_terminal() -> bool:
    """Whether somebody can read a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _check_outside(exchange: Path, **paths: Path | None) -> None:
    """Refuse to leave rows, or what was made of them, in a folder that is carried away."""
    for option, path in paths.items():
        if path is not None and path.resolve().is_relative_to(exchange.resolve()):
            raise SettingsError(
                f"{{{option}}} is inside the exchange {exchange}, which is carried between the "
                "coordinator and the silos; keep it elsewhere",
                **{option: str(path)},
            )


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Keep what went wrong in a file of the silo."""
    logger, handler = logging.getLogger("silomix.silo.answer"), log_file(path)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _show_open(waiting: Unanswered, code: int) -> cli.Shown:
    """What each silo must do before the coordinator can go on."""
    lines = [(name, waiting.refused.get(name), *todo) for name, *todo in waiting.todo()]
    silos = pd.DataFrame(lines, columns=["silo", "refused", "state", "do"])
    record = {"question": waiting.number, "about": waiting.about, "kind": waiting.kind}
    shown = silos.drop(columns="refused").rename(columns={"do": "what to do"})
    table = frame_view(shown, left=["state", "what to do"])
    last = (
        f"In each silo: silomix answer {waiting.folder} --silo NAME --data TABLE --study STUDY "
        "--policy POLICY\nThen run this command again."
    )
    view = Group(Text(waiting.heading.capitalize(), style="bold"), table)
    return cli.Shown(record | {"silos": json_lines(silos)}, view, last, code)


def _answers_view(silo: Silo, done: Sequence[Answered], given: str | None) -> Group:
    chosen = "" if given else " (no --policy was given)"
    rules = (
        f"{silo.name}: policy {silo.policy.name!r}{chosen}, minimum count "
        f"{silo.policy.minimum_count}, counts rounded to {silo.policy.round_to}"
    )
    if not done:
        none_open = "No question is open. To answer a refused one again: --again."
        return Group(Text(rules), Text(none_open))
    lines = []
    for item in done:
        refused = item.refused and f"refused: {REFUSALS[item.refused]}"
        leaves = refused or reply(item.reply, silo.study)[0]
        lines.append((item.number, exchange_folder.spelled(item.question), leaves, item.bytes))
    table = pd.DataFrame(lines, columns=["question", "asked", "leaves", "bytes in files"])
    verdict = silo.store.verdict and f"The silo's own run: {silo.store.verdict}"
    return Group(Text(rules), frame_view(table, left=["asked", "leaves"]), Text(verdict))
