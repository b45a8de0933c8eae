"""Messages in bytes: an exact round trip, and nothing in them is believed."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from federation.message_cases import CASES, assert_same, each_case, make_release, study_with
from federation.mutations import join_message, seal_message, split_message

from silomix.errors import MessageError
from silomix.messages import (
    KINDS,
    AssignRows,
    Check,
    DistinctRows,
    DivergenceReply,
    PolishRound,
    Received,
    Refused,
    SampleLocally,
    ShareReleases,
)
from silomix.messages.container import (
    LARGEST_HEAD,
    LARGEST_INDEX,
    MOST_VALUES,
    Envelope,
    decode,
    digest_record,
    encode,
    read_json,
)
from silomix.study.policy import PRESETS, echo

ONE = np.ones((1, 1))
LEVELS = np.full((1, 1, 2), 0.5)


def sent(record, **changes):
    return encode(replace(Envelope("0f" * 32, "north", 1), **changes), record)


def edited(record, change):
    """The message of a record with a head that `change` edited, sealed again."""
    head, body = split_message(sent(record))
    document = json.loads(head)
    change(document)
    return seal_message(document, body)


def refused(data):
    with pytest.raises(MessageError):
        decode(data)


class TestDeclarations:
    def test_every_record_has_a_case(self):
        assert {type(record) for _, record in CASES.values()} == set(KINDS.values())

    def test_the_page_names_them(self):
        page = Path(__file__).parents[2] / "docs" / "formats-messages.md"
        words = set(re.findall(r"`(\w+)`", page.read_text(encoding="utf-8")))
        for name, kind in KINDS.items():
            assert {name, *(f.name for f in fields(kind))} <= words


class TestRoundTrip:
    @each_case
    def test_every_record(self, exchange, record):
        envelope = exchange.envelope(record)
        data = encode(envelope, record)
        found = decode(data)
        assert found[0] == envelope
        assert_same(found[1], record)
        assert encode(*found) == data

    @pytest.mark.parametrize(
        "record",
        [
            DivergenceReply(np.array([[-0.0, 5e-324], [1e100, 0.1 + 0.2]])),
            *(
                DistinctRows(np.array([[1, 2]], kind), np.array([3]))
                for kind in (np.uint8, np.uint16, np.uint32)
            ),
            DistinctRows(np.zeros((0, 3), np.uint8), np.zeros(0, np.int64)),
            *(
                replace(make_release(study_with(), 0), policy=echo(policy))
                for policy in PRESETS.values()
            ),
        ],
    )
    def test_what_is_easily_lost(self, record):
        assert_same(decode(sent(record))[1], record)

    def test_views_and_other_byte_orders(self):
        """Of a view, safetensors would send the memory between its numbers."""
        weights = np.random.default_rng(0).dirichlet(np.ones(3), 4)
        usual = AssignRows(weights, np.full((4, 3, 2), 0.5))
        swapped = weights.astype(">f8")
        for odd in (weights.T.copy().T, swapped, np.repeat(weights, 2, axis=0)[::2]):
            assert digest_record(replace(usual, weights=odd)) == digest_record(usual)
            assert_same(decode(sent(replace(usual, weights=odd)))[1], usual)

    def test_types_of_what_is_read(self):
        decode(sent(DivergenceReply(ONE)))[1].cost[0] = 5
        found = decode(sent(PolishRound(np.int64(3), ONE, LEVELS, np.float64(1), 1)))[1]
        assert (type(found.round), type(found.alpha)) == (int, float)


class TestDigest:
    def test_of_different_records(self):
        records = {sent(record): record for _, record in CASES.values()}
        assert len({digest_record(record) for record in records.values()}) == len(records)
        one, other = (DivergenceReply(np.array([costs])) for costs in ([1.0, 2.0], [2.0, 1.0]))
        assert digest_record(one) != digest_record(other)
        assert digest_record(SampleLocally()) != digest_record(Received())

    def test_is_fixed(self):
        # digests are kept in ledgers: another number here needs another version
        assert digest_record(AssignRows(ONE, LEVELS, np.array([0]))) == FIXED


FIXED = "ea46f8f8acfa3072aa0c1d3f5eb99b0abcb32dfdfe00a9765384a0d630ecf617"

RELEASE = make_release(study_with(), 0)
INSIDE = Check("rule", "sizes", 5, 2, None, "applied", inside="cluster 3 had 7 rows")


class TestSending:
    @pytest.mark.parametrize(
        "record",
        [
            {"rows": [1]},
            DivergenceReply([[1.0, 2.0]]),
            DivergenceReply(np.array([1.0])),
            DistinctRows(np.zeros((1, 1), np.uint8), np.array([1.5])),
            DistinctRows(np.zeros((2, 1), np.uint8), np.ones(3, int)),
            DivergenceReply(np.array([[0.0, np.nan]])),
            DivergenceReply(np.array([[0.0, np.inf]])),
            PolishRound(-1, ONE, LEVELS, None, 1),
            PolishRound(1, ONE, LEVELS, np.inf, 1),
            PolishRound(1, ONE, LEVELS, "a", 1),
            Refused(None),
            Refused("a\x1b[2J"),
            Refused("\ud800"),
            Refused("x" * 10_001),
            ShareReleases(5, (), 1),
            ShareReleases((Received(),), (), 1),
            ShareReleases((), (np.zeros(1, int),) * 10_001, 1),
            replace(RELEASE, checks=(INSIDE,)),  # its details stay inside
            replace(RELEASE, policy={"minimum_count": -1}),
            replace(RELEASE, diagnostics=replace(RELEASE.diagnostics, rhat={"a": None})),
            replace(RELEASE, diagnostics=replace(RELEASE.diagnostics, trusted="perhaps")),
        ],
        ids=lambda record: type(record).__name__,
    )
    def test_only_what_is_declared(self, record):
        with pytest.raises(MessageError):
            sent(record)

    @pytest.mark.parametrize(
        "changes",
        [
            {"study": "abc"},
            {"answers": "abc"},
            {"silo": "a\nb"},
            {"silo": "x" * 61},
            {"number": 0},
        ],
        ids=str,
    )
    def test_envelopes(self, changes):
        with pytest.raises(MessageError):
            sent(Received(), **changes)


class TestReading:
    def test_too_large_or_something_else(self, monkeypatch):
        data = sent(Received())
        monkeypatch.setattr("silomix.messages.container.LARGEST_MESSAGE", len(data) - 1)
        for wrong in (data, b"", b"PK\x03\x04" + b"\0" * 100):
            refused(wrong)

    @each_case
    def test_every_truncation_and_a_flipped_bit_anywhere(self, exchange, record):
        envelope = exchange.envelope(record)
        data = encode(envelope, record)
        for length in {*range(0, len(data), 197), len(data) - 1}:
            refused(data[:length])
        for place in {*range(0, len(data), 131), len(data) - 1}:
            wrong = bytearray(data)
            wrong[place] ^= 1
            with suppress(MessageError):
                assert decode(bytes(wrong))[0] != envelope  # which the door sees

    @pytest.mark.parametrize(
        "head",
        [
            "[]",
            "{",
            "\ud800",
            '{"a": ' + "[" * 10**6 + "]" * 10**6 + "}",
            '{"a": ' + "1" * 10**6 + "}",
            '{"a": NaN}',
            '{"a": 1e999}',
            " " * (LARGEST_HEAD + 1),
        ],
        ids=range(8),
    )
    def test_heads(self, head):
        refused(join_message(head, {}))

    def test_a_head_of_many_values_is_not_parsed(self, monkeypatch):
        monkeypatch.setattr("silomix.messages.container.from_json", None)
        with pytest.raises(MessageError, match="or has over 8,000,000 bytes or 200,000 values"):
            read_json(b"[" + b"0," * (MOST_VALUES + 1) + b"0]")

    def test_an_index_of_many_arrays_is_not_read(self, monkeypatch):
        monkeypatch.setattr("silomix.messages.container.load", None)
        refused((LARGEST_INDEX + 1).to_bytes(8, "little") + b"{" + b" " * LARGEST_INDEX)

    @pytest.mark.parametrize(
        "change",
        [
            lambda d: d.pop("silo"),
            lambda d: d.update(version=4),
            lambda d: d.update(kind=["Received"]),
            lambda d: d.update(kind="Silo"),
            lambda d: d.update(study=10**19),
            lambda d: d.pop("fields"),
            lambda d: d.update(more=1),
            lambda d: d.update(fields=[]),
            lambda d: d["fields"].pop("cost"),
            lambda d: d["fields"].update(code="a"),
            lambda d: d["fields"].update(cost=[1]),
        ],
    )
    def test_heads_that_lie(self, change):
        decode(edited(DivergenceReply(np.eye(2)), lambda d: None))
        refused(edited(DivergenceReply(np.eye(2)), change))

    @pytest.mark.parametrize(
        "changed",
        [
            {"cost": np.array([[-np.inf, 0.0]])},
            {"cost": np.ones((1, 2), np.float32)},
            {"cost": np.ones(2)},
            {"cost": np.ones((1, 2)), "more": np.ones(1)},
            {"fields.cost": np.ones((1, 2))},
            {},
        ],
        ids=lambda changed: " ".join(changed),
    )
    def test_other_arrays(self, changed):
        head, _ = split_message(sent(DivergenceReply(np.ones((1, 2)))))
        refused(seal_message(json.loads(head), changed))

    def test_what_was_changed_without_its_digest(self):
        head, _ = split_message(sent(DivergenceReply(np.ones((1, 2)))))
        refused(join_message(head, {"cost": np.zeros((1, 2))}))
