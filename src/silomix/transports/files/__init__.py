"""Silos that answer by file: a folder that is carried, by hand or otherwise, between them."""

from __future__ import annotations

from silomix.transports.files.answering import Answered, answer_questions
from silomix.transports.files.asking import FileExchange, Open, Unanswered, expected_questions
from silomix.transports.files.layout import ANSWERS, lies_in, silo_folder, spelled
from silomix.transports.files.opening import asked_for, open_exchange, read_exchange

__all__ = [
    "ANSWERS",
    "Answered",
    "FileExchange",
    "Open",
    "Unanswered",
    "answer_questions",
    "asked_for",
    "expected_questions",
    "lies_in",
    "open_exchange",
    "read_exchange",
    "silo_folder",
    "spelled",
]
