"""The commands of a study by file: the coordinator's, and a silo's."""
# annotations are evaluated here, since the options are made from them

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from silomix.cli.command import Shown, command
from silomix.cli.silo_side import printable
from silomix.cli.terminal import exit_code
from silomix.coordinator.pipeline import run_study
from silomix.errors import PolicyRefusal, SettingsError, SiloError, StudyMismatch
from silomix.messages import REFUSALS
from silomix.messages.progress import showing
from silomix.model.files import private_file
from silomix.model.sentences import listing
from silomix.report.display import table_view
from silomix.report.results_folder import check_free, posterior_files, write_posterior
from silomix.report.run_sections import REPLY_NAMES
from silomix.report.summary import posterior_record, posterior_view
from silomix.silo.ledger import open_account
from silomix.silo.local import Silo, load_rows, open_silo, place_in
from silomix.study import Study, digest, read_study
from silomix.study.policy import echo, find_policy
from silomix.study.validation import cores
from silomix.transports.exchange_folder import (
    ANSWERS,
    asked_for,
    expected_questions,
    lies_in,
    read_exchange,
    silo_folder,
    spelled,
)
from silomix.transports.file_answers import Answered, answer_questions
from silomix.transports.file_exchange import FileExchange, Unanswered

STORE = "silomix-store"
LOG = "log.txt"


@command(
    exchange="Folder for questions and answers; made if there is none.",
    out="Folder for the results.",
)
def coordinate_command(
    study: Path,
    *,
    exchange: Path,
    out: Path,
    threads: int | None = None,
    force: bool = False,
    quiet: bool = False,
) -> Shown:
    """Ask the silos by file: read their answers, ask the next question, finish."""
    if lies_in(out, exchange):
        raise SettingsError(
            f"the results {out} would be inside the exchange {exchange}, which is carried to "
            "the silos; give another --out"
        )
    check_free(posterior_files(out), force=force)
    plan = read_study(study)
    silos = FileExchange(exchange, plan)
    try:
        with showing(quiet=quiet) as report:
            posterior = run_study(plan, silos, threads=cores(threads), report=report)
    except Unanswered as found:
        ended = found if found.missing else SiloError()  # nobody is left who will answer
        last = (
            f"In each silo: silomix answer {found.folder} --silo NAME --data TABLE --study STUDY "
            "--policy POLICY\nThen run this command again."
        )
        return Shown(_open_record(found), _open_view(found), last, exit_code(ended))
    files = write_posterior(out, posterior)
    record = posterior_record(posterior) | {
        "questions": silos.asked,
        "files": [str(file) for file in files],
    }
    last = f"Questions: {silos.asked}, all answered\nResults: {out}"
    return Shown(record, posterior_view(posterior), last)


@command(
    exchange="The folder that the coordinator made, or a copy of it.",
    silo="This silo's name in the study.",
    study="The study file you agreed to; questions of another are refused.",
    store="Folder for what stays here; next to the table by default.",
    again="Answer again what was refused, or cannot be read.",
    yes="Follow the study of the exchange where no --study was given.",
)
def answer_command(
    exchange: Path,
    *,
    silo: str,
    data: Path,
    silo_column: str | None = None,
    frequency: str | None = None,
    study: Path | None = None,
    policy: str | None = None,
    store: Path | None = None,
    ledger: Path | None = None,
    table_name: str | None = None,
    again: bool = False,
    yes: bool = False,
    threads: int | None = None,
    quiet: bool = False,
) -> Shown:
    """Answer a silo's open questions from its own table, as far as its policy allows."""
    plan = _agreed_study(exchange, study)
    place_in(plan, silo)
    own = silo_folder(plan.silos, silo)
    home = store or data.parent / STORE / f"{own}-{digest(plan)[:8]}"
    _check_inside(exchange, data, home, ledger)
    rules = find_policy(policy or "default")
    if study is None:
        _agree(plan, exchange, silo, yes=yes)
    loaded = load_rows(data, plan, silo, column=silo_column, frequency=frequency)
    named: dict[str, Any] = {
        "data": data,
        "column": silo_column,
        "table": table_name,
        "ledger": ledger,
    }
    account = open_account(loaded, plan, silo, policy=rules, **named)
    opened = open_silo(loaded.shard, plan, silo, policy=rules, store=home, account=account)
    with showing(quiet=quiet) as report, _logging_to(home / LOG):
        asked = replace(opened, threads=cores(threads), progress=report)
        done = list(answer_questions(exchange, asked, again=again))
        labels = asked.store.write_labels(loaded.rows)
    record = {
        "silo": silo,
        "study": digest(plan),
        "policy": echo(rules),
        "answers": [_answer_record(item) for item in done],
        "store": str(home),
        "labels": None if labels is None else str(labels),
        "ledger": str(account.path),
        "table": account.table,
    }
    last = [f"To the coordinator: {exchange / ANSWERS / own}", f"Stays here: {home}"]
    last += [f"Counted in: {account.path}"]
    last += [f"Clusters of the rows, which stay here too: {labels}"] if labels else []
    code = exit_code(SiloError()) if any(item.refused for item in done) else 0
    return Shown(record, _answers_view(asked, done, given=policy), "\n".join(last), code)


def _agreed_study(exchange: Path, agreed: Path | None) -> Study:
    """Return the exchange's study, refused unless it is the one that was agreed to."""
    plan = read_exchange(exchange)
    if agreed is not None and digest(read_study(agreed)) != digest(plan):
        raise StudyMismatch(
            f"{exchange} asks for another study than {agreed}; ask the coordinator which one is "
            "meant, and answer only if you agree to it"
        )
    return plan


def _agree(plan: Study, exchange: Path, silo: str, *, yes: bool) -> None:
    """Say which study a silo is about to follow, and ask where nobody has agreed to it.

    Raises
    ------
    PolicyRefusal
        When the answer is no.
    """
    typer.echo(_about(plan, exchange, silo), err=True)
    if yes:
        return
    if not _at_a_terminal():
        raise typer.BadParameter(
            "nobody has agreed to the study above: give --study and the file that was agreed to, "
            "or --yes to follow this one"
        )
    try:
        agreed = typer.confirm(f"Follow it as {silo!r}?", err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        raise PolicyRefusal(f"{silo!r} does not follow this study; nothing was read or answered")


def _at_a_terminal() -> bool:
    """Tell whether somebody can read a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _about(plan: Study, exchange: Path, silo: str) -> str:
    """Return what a study is and asks of a silo, for people."""
    title = printable(plan.title or "none")
    questions = expected_questions(plan)
    asks = f"at most {questions}" if questions else "as many as it takes"
    lines = [
        f"No --study was given. {silo!r} is about to follow the study of {exchange}:",
        f"  title: {title}",
        f"  digest: {digest(plan)}",
        f"  silos: {', '.join(plan.silos)}",
        f"  variables: {listing([variable.name for variable in plan.variables])}",
        f"  questions: {asks}. As far as the policy allows, it asks for",
        *(f"    - {line}" for line in asked_for(plan)),
    ]
    return "\n".join(lines)


def _check_inside(exchange: Path, data: Path, store: Path, ledger: Path | None) -> None:
    """Refuse to leave rows, or what was made of them, in a folder that is carried away."""
    for path, what in ((data, "the table"), (store, "the store"), (ledger, "the ledger")):
        if path is not None and lies_in(path, exchange):
            raise SettingsError(
                f"{what} {path} is inside the exchange {exchange}, which is carried out of the "
                f"silo; keep {what} elsewhere"
            )


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Keep what went wrong in a file of the silo: it may quote a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    private_file(path)
    logger = logging.getLogger("silomix.silo.answer")
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    spread, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = spread
        handler.close()


def _open_record(found: Unanswered) -> dict[str, Any]:
    return {
        "question": found.number,
        "about": found.about,
        "kind": found.kind,
        "silos": [
            {"silo": name, "refused": found.refused.get(name), "state": state, "do": do}
            for name, (state, do) in found.todo().items()
        ],
    }


def _open_view(found: Unanswered) -> RenderableType:
    table = table_view("silo", "state", "what to do", left=("state", "what to do"))
    for name, told in found.todo().items():
        table.add_row(Text(name), *told)
    return Group(Text(found.heading.capitalize(), style="bold"), table)


def _answer_record(item: Answered) -> dict[str, Any]:
    fields = ("number", "question", "reply", "refused", "bytes")
    return {name: getattr(item, name) for name in fields} | {"folder": str(item.path)}


def _answers_view(silo: Silo, done: Sequence[Answered], given: str | None) -> RenderableType:
    chosen = "" if given else " (no --policy was given)"
    rules = (
        f"{silo.name}: policy {silo.policy.name!r}{chosen}, minimum count "
        f"{silo.policy.minimum_count}, counts rounded to {silo.policy.round_to}"
    )
    if not done:
        return Group(Text(rules), Text("No question is open."))
    table = table_view("question", "asked", "leaves", "bytes", left=("asked", "leaves"))
    for item in done:
        leaves = f"refused: {REFUSALS[item.refused]}" if item.refused else REPLY_NAMES[item.reply]
        table.add_row(str(item.number), spelled(item.question), leaves, f"{item.bytes:,}")
    return Group(Text(rules), table)
