"""Messages in bytes: an exact round trip, and nothing in them is believed."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from federation.message_cases import STAYING, assert_same, exchanges, make_release, study_with
from federation.mutations import join_message, reseal, split_message
from silomix.disclosure import Check
from silomix.errors import MessageError
from silomix.messages import (
    AssignReply,
    AssignRows,
    DistinctRows,
    DivergenceReply,
    LogLikelihoodReply,
    PolishRound,
    Received,
    Refused,
    SampleLocally,
    ShareReleases,
)
from silomix.messages.binary import PREFIX, decode, digest, encode
from silomix.messages.documents import DEEPEST, LARGEST_DOCUMENT
from silomix.messages.envelope import Envelope
from silomix.messages.schema import RECORDS
from silomix.study.policy import PRESETS, echo
from silomix.types import MatchedDraws

EXCHANGES = exchanges()
CASES = {
    f"{name}: {type(record).__name__}": (exchange, record)
    for name, exchange in EXCHANGES.items()
    for record in exchange.records
}
each_case = pytest.mark.parametrize(("exchange", "record"), list(CASES.values()), ids=list(CASES))
STUDY = "0f" * 32


def envelope_of(record, **changes):
    return replace(Envelope(STUDY, "north", 1, type(record).__name__), **changes)


def sent(record, **changes):
    return encode(envelope_of(record, **changes), record)


def edited(record, change):
    """The message of a record with a head that `change` edited, sealed again."""
    head, body = split_message(sent(record))
    document = json.loads(head)
    change(document)
    return join_message(json.dumps(document), body)


def refused(data, match, **options):
    with pytest.raises(MessageError, match=match) as caught:
        decode(data, **options)
    assert str(caught.value).startswith("the message cannot be read: ")
    assert str(caught.value).endswith("; have it sent again")


class TestTable:
    def test_every_field_of_every_record_is_in_it(self):
        for spec in [*RECORDS.values(), RECORDS["Release"].fields["diagnostics"]]:
            travels = {f.name for f in fields(spec.kind)} - STAYING
            assert set(spec.fields) == travels, spec.kind

    def test_every_record_has_a_case(self):
        assert {type(record).__name__ for _, record in CASES.values()} == set(RECORDS)

    def test_kinds_are_the_names_of_the_records(self):
        assert all(name == spec.kind.__name__ for name, spec in RECORDS.items())

    def test_the_page_names_them(self):
        page = Path(__file__).parents[2] / "docs" / "formats-messages.md"
        words = set(re.findall(r"`(\w+)`", page.read_text(encoding="utf-8")))
        for name, spec in RECORDS.items():
            assert {name, *spec.fields} <= words, name


class TestRoundTrip:
    @each_case
    def test_every_record(self, exchange, record):
        envelope = exchange.envelope(record)
        data = encode(envelope, record)
        found = decode(data)
        assert found[0] == envelope
        assert_same(found[1], record)
        assert encode(*found) == data

    @given(st.data())
    def test_any_finite_numbers(self, data):
        starts = data.draw(st.integers(0, 5))
        numbers = st.floats(allow_nan=False, allow_infinity=False)

        def draw(*shape):
            return data.draw(arrays.arrays(np.float64, shape, elements=numbers))

        record = LogLikelihoodReply(draw(starts), draw(starts, 3), draw(starts, 3, 2))
        assert_same(decode(sent(record))[1], record)

    def test_numbers_that_are_easily_lost(self):
        odd = np.array([[-0.0, 5e-324], [1.7976931348623157e308, 0.1 + 0.2]])
        assert_same(decode(sent(DivergenceReply(odd)))[1], DivergenceReply(odd))

    @pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32])
    def test_the_type_of_codes_is_kept(self, kind):
        record = DistinctRows(np.array([[1, 2]], kind), np.array([3]))
        assert_same(decode(sent(record))[1], record)

    def test_no_rows(self):
        record = DistinctRows(np.zeros((0, 3), np.uint8), np.zeros(0, np.int64))
        assert_same(decode(sent(record))[1], record)

    def test_views_and_other_byte_orders(self):
        weights = np.random.default_rng(0).dirichlet(np.ones(3), 4)
        usual = AssignRows(weights, np.ones((4, 3, 2)))
        swapped = weights.astype(">f8")
        for odd in (weights.T.copy().T, swapped, np.repeat(weights, 2, axis=0)[::2]):
            assert digest(replace(usual, weights=odd)) == digest(usual)
            assert_same(decode(sent(replace(usual, weights=odd)))[1], usual)

    def test_arrays_can_be_written_to(self):
        sizes = decode(sent(AssignReply(np.array([1, 2]))))[1].sizes
        sizes[0] = 5

    def test_numbers_of_numpy_become_plain_ones(self):
        record = PolishRound(np.int64(3), np.ones((1, 1)), np.ones((1, 1, 2)), np.float64(1), 1)
        found = decode(sent(record))[1]
        assert (type(found.round), type(found.alpha)) == (int, float)

    @pytest.mark.parametrize("policy", PRESETS.values(), ids=list(PRESETS))
    def test_policies(self, policy):
        release = replace(make_release(study_with(), 0), policy=echo(policy))
        assert_same(decode(sent(release))[1], release)

    def test_what_was_matched_stays(self):
        share = EXCHANGES["share"].query
        matched = MatchedDraws(np.zeros((1, 1, 1)), np.zeros((1, 1, 1, 1)), np.ones((1, 1), bool))
        found = decode(sent(replace(share, matched=matched)))[1]
        assert found.matched is None
        assert digest(found) == digest(share)
        assert found.key == share.key

    def test_of_anything_that_holds_bytes(self):
        data = sent(Received())
        assert decode(bytearray(data)) == decode(memoryview(data)) == decode(data)


class TestDigest:
    def test_of_equal_records(self):
        again = exchanges()
        for name, exchange in EXCHANGES.items():
            assert digest(exchange.query) == digest(again[name].query)
            assert digest(exchange.reply) == digest(again[name].reply)

    def test_of_different_records(self):
        records = {sent(record): record for _, record in CASES.values()}
        assert len({digest(record) for record in records.values()}) == len(records)
        one = AssignReply(np.array([1, 2]))
        assert digest(one) != digest(AssignReply(np.array([2, 1])))
        assert digest(SampleLocally()) != digest(Received())

    def test_of_the_envelope_it_knows_nothing(self):
        record = EXCHANGES["polish"].reply
        one, other = sent(record), sent(record, silo="south", number=9)
        assert digest(decode(one)[1]) == digest(decode(other)[1])

    def test_is_fixed(self):
        # digests are kept in ledgers: another number here needs another version
        assert digest(Refused("policy")) == FIXED


FIXED = "68fdc24c155eafd9a383803208f092f7453c06599339577d373efed44f858b25"


class TestSending:
    @pytest.mark.parametrize(
        ("record", "match"),
        [
            ({"rows": [1]}, "a dict cannot be sent: a dict is no record that travels; those are"),
            (AssignReply([1, 2]), "sizes is a list instead of an array"),
            (AssignReply(np.array([1.5])), "sizes is of type '<f8' instead of int64"),
            (AssignReply(np.array([None])), "sizes is of type '|O' instead of int64"),
            (AssignReply(np.ones((1, 1), int)), "sizes has 2 axes instead of 1: cluster"),
            (
                DistinctRows(np.zeros((2, 1), np.uint8), np.ones(3, int)),
                "counts has 3 entries along 'distinct_row' where others have 2",
            ),
            (
                DivergenceReply(np.array([[0.0, np.nan]])),
                "cost is nan at local_cluster 0, reference_cluster 1; it must be finite",
            ),
            (
                PolishRound(-1, np.ones((1, 1)), np.ones((1, 1, 1)), None, 1),
                "round is -1 instead of a whole number from 0 on",
            ),
            (
                PolishRound(True, np.ones((1, 1)), np.ones((1, 1, 1)), None, 1),
                "round is True instead of a whole number",
            ),
            (
                PolishRound(1, np.ones((1, 1)), np.ones((1, 1, 1)), np.inf, 1),
                "alpha is inf instead of a finite number",
            ),
            (
                PolishRound(1, np.ones((1, 1)), np.ones((1, 1, 1)), "a", 1),
                "alpha is 'a' instead of a number",
            ),
            (Refused(None), "code is None instead of text"),
            (Refused("a\x1b[2J"), "code has control characters, which no text here may have"),
            (Refused("\ud800"), "code has control characters"),
            (Refused("x" * 10_001), "code has 10,001 characters; at most 10,000"),
            (ShareReleases(5, (), 1), "releases is 5 instead of a list"),
            (
                ShareReleases((Received(),), (), 1),
                r"releases\[0\] is a Received instead of a Release",
            ),
            (
                ShareReleases((), (np.zeros(1, int),) * 10_001, 1),
                "groups has 10,001 entries; at most 10,000 are read",
            ),
        ],
    )
    def test_only_what_the_table_has(self, record, match):
        with pytest.raises(MessageError, match=match):
            sent(record)

    def test_details_of_a_check_stay_inside(self):
        release = make_release(study_with(), 0)
        check = Check("rule", "sizes", 5, 2, None, "applied", inside="cluster 3 had 7 rows")
        with pytest.raises(MessageError, match=r"checks\[0\]\.inside has 20 characters; at most 0"):
            sent(replace(release, checks=(check,)))

    def test_a_policy_is_a_policy(self):
        release = replace(make_release(study_with(), 0), policy={"minimum_count": -1})
        with pytest.raises(
            MessageError, match="policy is no policy of this silomix: minimum_count is -1"
        ):
            sent(release)
        with pytest.raises(MessageError, match="policy is 1 instead of a policy"):
            sent(replace(release, policy=1))

    def test_numbers_by_name(self):
        release = make_release(study_with(), 0)
        wrong = replace(release.diagnostics, rhat={"a": None})
        with pytest.raises(MessageError, match=r"rhat\.a is None instead of a number"):
            sent(replace(release, diagnostics=wrong))
        wrong = replace(release.diagnostics, trusted="yes")
        with pytest.raises(MessageError, match="trusted is 'yes' instead of true or false"):
            sent(replace(release, diagnostics=wrong))

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"kind": "Refused"}, "a Received cannot be sent as a 'Refused'"),
            ({"study": "abc"}, "a Received cannot be sent: its study is 'abc', which is no digest"),
            ({"answers": "abc"}, "its question is 'abc', which is no digest"),
            ({"silo": "a\nb"}, r"its silo is 'a\\nb', which is no name of a silo"),
            ({"silo": "x" * 61}, "which is no name of a silo"),
            ({"number": 0}, "its number is 0; questions are numbered from 1"),
            ({"number": True}, "its number is True; questions"),
        ],
    )
    def test_envelopes(self, changes, match):
        with pytest.raises(MessageError, match=match):
            sent(Received(), **changes)

    def test_a_head_too_long(self, monkeypatch):
        monkeypatch.setattr("silomix.messages.binary.LARGEST_DOCUMENT", 100)
        with pytest.raises(MessageError, match="its head would have 199 bytes, and at most 100"):
            sent(Received())


class TestReading:
    def test_too_large(self):
        data = sent(Received())
        decode(data, largest=len(data))
        refused(data, "at most 100 are read here", largest=100)

    @pytest.mark.parametrize("data", [b"", b"silomix\n", b"PK\x03\x04" + b"\0" * 100])
    def test_something_else(self, data):
        refused(data, "it is no silomix message")

    @each_case
    def test_every_truncation(self, exchange, record):
        data = encode(exchange.envelope(record), record)
        for length in {*range(0, len(data), 97), len(data) - 1}:
            refused(data[:length], "no silomix message|of .* bytes")

    @each_case
    def test_a_flipped_bit_anywhere(self, exchange, record):
        data = encode(exchange.envelope(record), record)
        for place in {*range(0, len(data), 61), len(data) - 1}:
            wrong = bytearray(data)
            wrong[place] ^= 1
            refused(bytes(wrong), "checksum|no silomix message|version|bytes")

    def test_another_version(self):
        head, body = split_message(sent(Received()))
        refused(
            join_message(head, body, version=5),
            "of version 5 and this silomix reads version 4; use the same silomix on both sides",
        )
        refused(edited(Received(), lambda d: d.update(version=True)), "of version True")

    def test_lengths_of_a_bomb(self):
        data = sent(Received())
        magic, version, head, length = PREFIX.unpack(data[: PREFIX.size])
        rest = data[PREFIX.size : -32]
        refused(reseal(PREFIX.pack(magic, version, head, 2**60) + rest), "of 1,152,921,504,")
        refused(
            reseal(PREFIX.pack(magic, version, 2**32 - 1, length) + rest),
            "its head claims 4,294,967,295 bytes, more than there are",
        )

    @pytest.mark.parametrize(
        ("head", "match"),
        [
            ("[]", "its head is no table of JSON"),
            ("{", "its head is no JSON in UTF-8"),
            ("\ud800", "its head is no JSON in UTF-8"),
            ('{"a": 1, "a": 2}', "its head says 'a' twice"),
            ('{"a": ' + "[" * DEEPEST + "]" * DEEPEST + "}", f"nests more than {DEEPEST}"),
            ('{"a": ' + "[" * 10**6 + "]" * 10**6 + "}", "nests more than"),
            ('{"a": "' + "[" * 10**6 + '"}', "it says None instead of 'silomix message'"),
            ('{"a": ' + "1" * 10**6 + "}", "its head has a number of very many digits"),
            ('{"a": NaN}', "its head has NaN, which is no JSON"),
            ('{"a": 1e999}', "its head has '1e999', which no number can hold"),
            (" " * (LARGEST_DOCUMENT + 1), "at most 8,000,000 are read"),
        ],
        ids=range(11),
    )
    def test_heads(self, head, match):
        refused(join_message(head, b""), match)

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda d: d.pop("silo"), "it does not say its silo"),
            (lambda d: d.update(kind=["Received"]), "its kind is a list, which is no name of a"),
            (lambda d: d.update(kind="Silo"), "'Silo' is no record that travels"),
            (lambda d: d.update(study=10**19), "its study is 10000000000000000000, which is no"),
            (lambda d: d.pop("fields"), "its head lacks 'fields'"),
            (lambda d: d.update(more=1), "its head has 'more', which does not belong there"),
            (lambda d: d.update(fields=[]), "the record is a list instead of a table"),
            (lambda d: d["fields"].pop("cost"), "the record lacks 'cost'"),
            (lambda d: d["fields"].update(code="a"), "the record has 'code', which does not"),
            (
                lambda d: d["fields"].update(cost=[1]),
                "cost is a list instead of the type and shape",
            ),
            (lambda d: d["fields"]["cost"].pop("dtype"), "cost lacks 'dtype'"),
            (lambda d: d["fields"]["cost"].update(dtype="|O"), "of type '|O' instead of float64"),
            (lambda d: d["fields"]["cost"].update(dtype={}), "of type a table instead of float64"),
            (lambda d: d["fields"]["cost"].update(shape=4), "cost is 4 instead of a shape"),
            (lambda d: d["fields"]["cost"].update(shape=[4]), "cost has 1 axes instead of 2"),
            (
                lambda d: d["fields"]["cost"].update(shape=[-1, 2]),
                "has -1 as the length of an axis",
            ),
            (lambda d: d["fields"]["cost"].update(shape=[2.0, 2]), "has 2.0 as the length of an"),
            (
                lambda d: d["fields"]["cost"].update(shape=[10**6, 10**6]),
                r"cost of shape \(1000000, 1000000\) takes 8,000,000,000,000 bytes and 32 are left",
            ),
            (
                lambda d: d["fields"]["cost"].update(shape=[0, 2**31 - 1]),
                "32 bytes are left over after its arrays",
            ),
            (
                lambda d: d["fields"]["cost"].update(shape=[2**31 - 1, 2**31 - 1]),
                "cost claims more than 1,099,511,627,776 numbers",
            ),
            (lambda d: d["fields"]["cost"].update(shape=[1, 2]), "16 bytes are left over"),
        ],
    )
    def test_heads_that_lie(self, change, match):
        refused(edited(DivergenceReply(np.eye(2)), change), match)

    def test_numbers_that_are_not(self):
        head, body = split_message(sent(DivergenceReply(np.ones((1, 2)))))
        wrong = body[:8] + np.array([-np.inf]).tobytes()
        refused(join_message(head, wrong), "cost is -inf at local_cluster 0, reference_cluster 1")

    def test_values_of_the_wrong_sort(self):
        polish = EXCHANGES["polish"].query
        refused(edited(polish, lambda d: d["fields"].update(alpha="nan")), "alpha is 'nan' instead")
        refused(
            edited(polish, lambda d: d["fields"].update(alpha=1)), "alpha is 1 instead of a num"
        )
        release = EXCHANGES["sample"].reply
        refused(edited(release, many_numbers), "rhat has 1,003 entries; at most 1,000 are read")


def many_numbers(document):
    document["fields"]["diagnostics"]["rhat"] |= {str(number): 0.5 for number in range(1001)}
