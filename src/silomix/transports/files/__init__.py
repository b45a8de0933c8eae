"""Silos that answer by file: a folder that is carried, by hand or otherwise, between them."""

from __future__ import annotations

from silomix.transports.files.exchange_folder import (
    ANSWERS,
    asked_for,
    expected_questions,
    lies_in,
    read_exchange,
    silo_folder,
    spelled,
)
from silomix.transports.files.file_answers import Answered, answer_questions
from silomix.transports.files.file_exchange import FileExchange, Open, Unanswered

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
    "read_exchange",
    "silo_folder",
    "spelled",
]
