"""Answers on disk by question, so that a coordinator that was killed asks nobody twice.

The coordinator is deterministic: started again it asks the same questions in the same order. A
journal is a folder of messages: ``000007-2-<digest>.reply`` is what the silo at place 2 of the
roster answered to question 7; the digest is the question's. Only their owner may open them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from silomix.errors import CheckpointError, MessageError
from silomix.messages.container import decode
from silomix.messages.container import digest as digest_question
from silomix.messages.door import check_envelope
from silomix.model.files import private_folder, replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from silomix.messages import Query
    from silomix.study import Study

# Characters of a question's digest in the name of a file.
SHOWN = 16


class Journal:
    """What the silos of one study have answered so far.

    Raises
    ------
    CheckpointError
        When its folder cannot be made.
    """

    def __init__(self, folder: Path, study: Study) -> None:
        self.folder, self._study = folder, study
        try:
            private_folder(folder)
        except OSError as error:
            raise CheckpointError(
                f"the journal in {folder} cannot be opened: {error}; give another folder"
            ) from None

    def find(self, number: int, silo: str, query: Query) -> Any:
        """Return a silo's answer to a question, or None where there is none yet.

        Raises
        ------
        CheckpointError
            When the question is not the one that was answered, or the file is damaged.
        """
        path = self._path(number, silo, digest_question(query)[:SHOWN])
        if not path.exists():
            for other in self.folder.glob(self._path(number, silo, "*").name):
                raise CheckpointError(
                    f"question {number} to {silo} is not the one that {other} answers "
                    f"({path.name} would): another version of silomix or of a package asked it; go "
                    f"on with that version, or delete {self.folder} to ask everything again"
                )
            return None
        try:
            envelope, record = decode(path.read_bytes())
            check_envelope(envelope, self._study, silo, number, query)
        except MessageError as error:
            raise CheckpointError(
                f"{path} is not the answer it should be ({error}); delete it, and {silo} is asked "
                "again, or give this study a folder of its own"
            ) from None
        return record

    def keep(self, number: int, silo: str, query: Query, content: bytes) -> None:
        """Write a silo's encoded answer, whole or not at all."""
        path = self._path(number, silo, digest_question(query)[:SHOWN])
        replace_file(path, content, alone=True, private=True)

    def _path(self, number: int, silo: str, question: str) -> Path:
        place = self._study.silos.index(silo)
        return self.folder / f"{number:06}-{place}-{question}.reply"
