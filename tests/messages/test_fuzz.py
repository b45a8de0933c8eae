"""Hostile messages: refused in a sentence, or as good as any other; never a traceback or a hang."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from federation.message_cases import exchanges, write
from federation.mutations import TooLong, mutate_folder, mutate_message, time_limit

from silomix.errors import MessageError
from silomix.messages import REPLIES
from silomix.messages import folder as files
from silomix.messages.container import decode, digest_record, encode
from silomix.messages.message_checks import check_envelope, check_query, check_reply

pytestmark = pytest.mark.usefixtures("without_pictures")

CASES = [(exchange, record) for exchange in exchanges().values() for record in exchange.records]
MESSAGES = [encode(exchange.envelope(record), record) for exchange, record in CASES]
SECONDS = 5.0
"""For one case; a few thousandths are usual."""

ENDINGS = ("it could not be read", "it did not fit", "it was as good as any")


def judge(read, exchange):
    """Read a message and check it as its receiver would; return how it ended."""
    try:
        with time_limit(SECONDS):
            envelope, record = read()
    except MessageError as error:
        assert str(error).replace("\n", "").isprintable()
        assert len(str(error)) < 1500
        return ENDINGS[0]
    try:
        with time_limit(SECONDS):
            if type(record) in REPLIES:
                check_envelope(envelope, exchange.study, exchange.silo, 7)
                check_query(record, exchange.study, exchange.silo)
            else:
                check_envelope(envelope, exchange.study, exchange.silo, 7, exchange.query)
                check_reply(record, exchange.query, exchange.study, exchange.silo)
    except MessageError:
        return ENDINGS[1]
    again = decode(encode(envelope, record))
    assert again[0] == envelope
    assert digest_record(again[1]) == digest_record(record)
    return ENDINGS[2]


def attack_bytes(first, last):
    endings = dict.fromkeys(ENDINGS, 0)
    for number in range(first, last):
        rng = np.random.default_rng([20, number])
        place = int(rng.integers(len(CASES)))
        wrong = mutate_message(MESSAGES[place], MESSAGES, rng)
        endings[judge(lambda wrong=wrong: decode(wrong), CASES[place][0])] += 1
    return endings


def attack_folders(first, last, folder):
    good = [
        write(folder / str(n), exchange.envelope(record), record, study=exchange.study)
        for n, (exchange, record) in enumerate(CASES)
    ]
    endings = dict.fromkeys(ENDINGS, 0)
    for number in range(first, last):
        rng = np.random.default_rng([21, number])
        place = int(rng.integers(len(CASES)))
        exchange = CASES[place][0]
        wrong = folder / "wrong"
        shutil.copytree(good[place], wrong)
        mutate_folder(wrong, good, rng)

        def read(wrong=wrong, exchange=exchange):
            envelope, record = files.read(wrong, study=exchange.study)
            # what is read is what a person sees there
            again = files.message_files(envelope, record, exchange.study.table_schema)
            for path in wrong.glob("*.csv"):
                assert path.read_bytes() == again[path.name]
            return envelope, record

        endings[judge(read, exchange)] += 1
        shutil.rmtree(wrong)
    return endings


def test_bytes():
    assert min(attack_bytes(0, 400).values()) > 0


def test_folders(tmp_path):
    endings = attack_folders(0, 200, tmp_path)
    assert endings["it could not be read"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("block", range(1, 31), ids="block{}-".format)
def test_a_thousand_in_bytes(block):
    endings = attack_bytes(1000 * block, 1000 * (block + 1))
    assert sum(endings.values()) == 1000


@pytest.mark.slow
@pytest.mark.parametrize("block", range(1, 11), ids="block{}-".format)
def test_a_thousand_folders(block, tmp_path):
    endings = attack_folders(1000 * block, 1000 * (block + 1), tmp_path)
    assert sum(endings.values()) == 1000


def test_a_case_that_hangs_fails():
    with pytest.raises(TooLong, match=r"more than 0\.05 s"), time_limit(0.05):
        while True:
            pass
