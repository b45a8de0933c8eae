"""The coordinator in FLARE's server: runs the study over the sites, and leaves the result."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply

from silomix.coordinator.pipeline import run_study
from silomix.errors import CheckpointError, MessageError, SiloError, SilomixError
from silomix.messages import REFUSALS, Query, Refused, by_silo
from silomix.messages.container import Envelope, decode, encode
from silomix.messages.message_checks import check_envelope, check_reply
from silomix.messages.progress import Progress
from silomix.model.files import private_folder, replace_file, writing
from silomix.study import Study, digest, read_study
from silomix.study.validation import cores
from silomix.transports.flare import session
from silomix.transports.flare.participant import SETTINGS_FILE, read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.signal import Signal


LOOK_EVERY = 0.005
# Seconds without a sign of life after which a site is away: in a run, and before its first. FLARE
# itself does not notice a site that is killed and back within seconds, in none of its runs.
SILENT_AFTER, START_WITHIN = 60.0, 120.0
WHY = REFUSALS | {
    session.DEADLINE: "it did not answer before the deadline",
    session.AWAY: "its site is not connected any more",
    session.STOPPED: "the run was stopped from outside",
}
log = logging.getLogger("silomix.coordinator")


class NoAnswer(SiloError):
    """A silo did not answer, or refused to.

    Attributes
    ----------
    silo : which.
    code : why: one of `WHY`.
    """

    def __init__(self, silo: str, code: str, question: str) -> None:
        self.silo, self.code = silo, code if code in WHY else "failed"
        super().__init__(
            f"{silo} has no answer to question {question}: {WHY[self.code]}; its own log says "
            "more. What was answered is kept: the same command continues from there, and --without "
            f"{silo} continues without it"
        )


@dataclass(frozen=True)
class RemoteSilos:
    """The silos of a study behind a channel; satisfies `silomix.messages.Silos`.

    Answers are kept on disk by question, so that a coordinator that was killed asks nobody twice:
    it is deterministic, and started again asks the same questions in the same order. A journal is
    a folder of messages, which only their owner may open: ``000007-2.reply`` is what the silo at
    place 2 of the roster answered to question 7, whose digest is in it.

    Attributes
    ----------
    channel : its `exchange` carries messages to the silos and back.
    journal : the folder.
    log : an entry for each question so far, as in `Outcome.asked`.
    """

    study: Study
    channel: StudyController
    journal: Path
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        """The roster, in order."""
        return self.study.silos

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask every silo one query, or each of the named silos its own.

        Raises
        ------
        NoAnswer
            When a silo does not answer. What others have answered by then is in the journal.
        """
        start, number, about = time.monotonic(), len(self.log) + 1, digest(self.study)
        queries = by_silo(query, self.names)
        replies = {name: self.find(number, name, one) for name, one in queries.items()}
        questions = {
            name: encode(Envelope(about, name, number), one)
            for name, one in queries.items()
            if replies[name] is None
        }
        received = 0
        for name, answer in self.channel.exchange(questions):
            replies[name] = self._accept(number, name, queries[name], answer)
            received += len(answer)
        self.log.append(
            {
                "number": number,
                "kind": type(next(iter(queries.values()))).__name__,
                "seconds": round(time.monotonic() - start, 4),
                "sent": sum(map(len, questions.values())),
                "received": received,
                "replayed": len(queries) - len(questions),
            }
        )
        return replies

    def find(self, number: int, silo: str, query: Query) -> Any:
        """Return a silo's answer to a question, or None where there is none yet.

        Raises
        ------
        CheckpointError
            When the question is not the one that was answered, or the file is damaged.
        """
        path = self._path(number, silo)
        if not path.exists():
            return None
        try:
            envelope, record = decode(path.read_bytes())
            check_envelope(envelope, self.study, silo, number, query)
        except MessageError as error:
            raise CheckpointError(
                f"{path} does not answer question {number} to {silo}, perhaps because another "
                f"version of silomix or of a package asked it ({error}); go on with that version, "
                f"or delete {self.journal} to ask everything again"
            ) from None
        return record

    def keep(self, number: int, silo: str, content: bytes) -> None:
        """Write a silo's encoded answer, whole or not at all."""
        with writing(self.journal, CheckpointError):
            private_folder(self.journal)
            replace_file(self._path(number, silo), content, alone=True, private=True)

    def _path(self, number: int, silo: str) -> Path:
        return self.journal / f"{number:06}-{self.names.index(silo)}.reply"

    def _accept(self, number: int, name: str, query: Query, answer: bytes | str) -> Any:
        """Check and keep one answer, and return it."""
        if isinstance(answer, bytes):
            envelope, reply = decode(answer)
            check_envelope(envelope, self.study, name, number, query)
            check_reply(reply, query, self.study, name)
            if not isinstance(reply, Refused):
                self.keep(number, name, answer)
                return reply
            answer = reply.code
        raise NoAnswer(name, answer, f"{number} ({type(query).__name__})")


class StudyController(Controller):
    """Runs `silomix.coordinator.pipeline.run_study` over the sites of a job.

    Parameters
    ----------
    deadline : seconds for each question.
    """

    def __init__(self, deadline: float) -> None:
        super().__init__(task_check_period=0.05)
        self._deadline = deadline
        self._asked: list[dict[str, Any]] = []
        self._progress = Progress("sampling", 0, 0)
        self._start, self._seen = time.monotonic(), dict[str, float]()
        self._abort: Any = None
        self._fl_ctx: Any = None

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Hear the sites' signs of life, and let the coordinator's user ask how far the run is."""
        engine = fl_ctx.get_engine()
        engine.register_app_command(session.PROGRESS_TOPIC, lambda *_: asdict(self._progress))
        engine.register_aux_message_handler(session.ALIVE_TOPIC, self._hear)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left to stop."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the study; unless the run is stopped, say in its outcome what came of it."""
        self._abort, self._fl_ctx, self._start = abort_signal, fl_ctx, time.monotonic()
        workspace = fl_ctx.get_workspace()
        folder = Path(workspace.get_run_dir(fl_ctx.get_job_id()))
        try:
            config = Path(workspace.get_app_config_dir(fl_ctx.get_job_id()))
            local = read_json(Path(workspace.get_site_config_dir()) / SETTINGS_FILE)
            study = read_study(config / session.STUDY_FILE)
            journal = Path(local["journals"], digest(study)[:16])
            silos = RemoteSilos(study, self, journal, self._asked)
            report = partial(setattr, self, "_progress")
            posterior = run_study(study, silos, threads=cores(None), report=report)
            posterior.save(folder / session.POSTERIOR_FILE)
            outcome = session.Outcome()
        except Exception as error:
            log.exception("the study failed")
            kind = type(error).__name__
            told = f"{kind} at the coordinator; the server's log says more"
            message = str(error) if isinstance(error, SilomixError) else told
            outcome = session.Outcome(getattr(error, "code", kind), message)
        seconds = round(time.monotonic() - self._start, 3)
        outcome = replace(outcome, seconds=seconds, asked=self._asked)
        write_json(folder / session.OUTCOME_FILE, asdict(outcome))

    def exchange(self, questions: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | str]]:
        """Send each silo its question as a task; yield answers, or codes of why there is none."""
        present = {client.name for client in self._fl_ctx.get_engine().get_clients()}
        tasks: dict[str, Task] = {}
        try:
            for name, question in questions.items():
                if name not in present:
                    yield name, session.AWAY
                content = Shareable({session.PAYLOAD: question})
                tasks[name] = task = Task(session.TASK, content, timeout=math.ceil(self._deadline))
                self.broadcast(task, self._fl_ctx, targets=[name], min_responses=1)
            while tasks:
                for name, task in list(tasks.items()):
                    answer = self._look(name, task)
                    if answer is not None:
                        del tasks[name]
                        yield name, answer
                time.sleep(LOOK_EVERY)
        finally:
            if tasks:
                self.cancel_all_tasks(fl_ctx=self._fl_ctx)

    def _look(self, name: str, task: Task) -> bytes | str | None:
        """Return what has come of a task so far: an answer, a code, or nothing yet."""
        if self._abort.triggered:
            return session.STOPPED
        for client_task in task.client_tasks:
            if client_task.result_received_time is not None:
                answer = client_task.result.get(session.PAYLOAD)
                return answer if isinstance(answer, bytes | str) else "failed"
        seen = self._seen.get(name)
        latest = self._start + START_WITHIN if seen is None else seen + SILENT_AFTER
        if time.monotonic() > latest or task.completion_status == TaskCompletionStatus.CLIENT_DEAD:
            return session.AWAY
        return None if task.completion_status is None else session.DEADLINE

    def _hear(self, fl_ctx: FLContext, **_: object) -> Shareable:
        """Note a site's sign of life."""
        self._seen[fl_ctx.get_peer_context().get_identity_name()] = time.monotonic()
        return make_reply(ReturnCode.OK)
