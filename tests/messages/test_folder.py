"""Messages as folders of JSON and CSV: an exact round trip, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from federation.message_cases import EXCHANGES, assert_same, each_case, study_with, write
from federation.mutations import seal_folder
from safetensors.numpy import load, save

from silomix.errors import FileError, MessageError
from silomix.messages import AssignRows, DistinctRows, DivergenceReply
from silomix.messages.container import HEAD, Envelope, digest_record
from silomix.messages.folder import ARRAYS, LARGEST_FILE, MOST_LINES, read

pytestmark = pytest.mark.usefixtures("without_pictures")

STUDY = study_with()


def put(folder, record):
    return write(folder, Envelope("", "north", 1, type(record).__name__), record, study=STUDY)


def get(folder):
    return read(folder, study=STUDY)[1]


def refused(folder, match=None):
    with pytest.raises(MessageError, match=match) as caught:
        get(folder)
    assert str(folder) in str(caught.value)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def change(folder, edit=lambda document: None):
    """Edit what `message.json` says, and make its checksums and its digest again."""
    document = json.loads((folder / HEAD).read_text(encoding="utf-8"))
    edit(document)
    seal_folder(folder, document, content=True)


def change_table(path, old, new):
    """Replace text in a table, and everything that says what it was."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    change(path.parent)


@pytest.fixture
def folder(tmp_path):
    record = DistinctRows(np.array([[0, 1], [2, 1]], np.uint8), np.array([20, 3]))
    return put(tmp_path / "rows", record)


@pytest.fixture
def costs(tmp_path):
    return put(tmp_path / "costs", DivergenceReply(np.array([[1.5, -2.25], [0.5, 4.0]])))


def uneven_share():
    """Releases of which the first has one cluster and four draws, the others more."""
    share = EXCHANGES["share"].query
    first, *others = share.releases
    by_cluster = ("sizes", "known", "mean", "concentration")
    small = replace(
        first,
        **{name: getattr(first, name)[:1] for name in by_cluster},
        weights=np.ones_like(first.weights[:4, :1]),
        parameters=first.parameters[:4, :1],
    )
    return replace(share, releases=(small, *others), groups=(np.array([0]), *share.groups[1:]))


class TestRoundTrip:
    @each_case
    def test_every_record(self, exchange, record, tmp_path):
        envelope = exchange.envelope(record)
        made = write(tmp_path / "message", envelope, record, study=exchange.study)
        found = read(str(made), study=exchange.study)
        assert found[0] == envelope
        assert_same(found[1], record)
        assert digest_record(found[1]) == digest_record(record)
        assert names_in(tmp_path) == ["message"]

    def test_any_bits(self, tmp_path, rng):
        wide = rng.integers(0, 2**64, (40, 50), dtype=np.uint64).view(np.float64)
        wide = np.where(np.abs(wide) < 1e100, wide, -0.0)
        record = DivergenceReply(wide)
        assert_same(get(put(tmp_path / "wide", record)), record)
        narrow = rng.random((40, 50), np.float32)
        narrow /= narrow.sum(axis=1, keepdims=True)
        record = AssignRows(narrow, narrow[:, :, None].repeat(2, axis=2))
        assert_same(get(put(tmp_path / "narrow", record)), record)

    def test_whole_numbers_to_the_last(self, tmp_path):
        for place, record in enumerate((
            DistinctRows(np.array([[0], [1]], np.uint8), np.array([1, 10**9 - 1])),
            DistinctRows(np.array([[2**32 - 1]], np.uint32), np.array([10**9])),
        )):  # fmt: skip
            assert_same(get(put(tmp_path / str(place), record)), record)

    def test_silos_with_other_numbers_of_clusters(self, tmp_path):
        record = uneven_share()
        made = put(tmp_path / "share", record)
        first = float(record.releases[0].weights[0, 0])
        lines = (made / "releases.weights.csv").read_text().splitlines()
        assert lines[:2] == ["silo,draw,cluster_0,cluster_1", f"0,0,{first!r},"]
        assert_same(get(made), record)
        change_table(made / "releases.weights.csv", ",\n", ",5\n")
        refused(made, r"releases\.weights\.csv")


class TestForPeople:
    def test_names_and_columns(self, folder):
        assert names_in(folder) == [ARRAYS, "counts.csv", HEAD, "rows.csv"]
        rows = (folder / "rows.csv").read_text()
        assert rows == "distinct_row,variable_0,variable_1\n0,0,1\n1,2,1\n"
        assert (folder / "counts.csv").read_text() == "distinct_row,counts\n0,20\n1,3\n"
        document = json.loads((folder / HEAD).read_text())
        assert (document["kind"], document["number"]) == ("DistinctRows", 1)
        assert document["arrays"]["rows"] == ["uint8", [2, 2]]

    def test_long_tables_go_on(self, tmp_path):
        record = DivergenceReply(np.arange(2.0 * MOST_LINES)[:, None])
        made = put(tmp_path / "costs", record)
        assert names_in(made) == [ARRAYS, "cost.csv", "cost_2.csv", "cost_3.csv", HEAD]
        assert_same(get(made), record)
        for path in made.glob("*.csv"):
            assert path.read_bytes().count(b"\n") <= MOST_LINES
            assert path.stat().st_size <= LARGEST_FILE
        change_table(made / "cost_2.csv", "7000,7000.0\n", "")
        refused(made)
        (made / "cost_2.csv").unlink()
        refused(made, r"cost_2\.csv' is missing")

    def test_a_name_that_is_too_long_is_refused(self, tmp_path):
        refused(tmp_path / ("a" * 300), "cannot be read")

    def test_wide_tables_go_on(self, tmp_path, monkeypatch):
        monkeypatch.setattr("silomix.messages.folder.LARGEST_FILE", 3000)
        record = DivergenceReply(np.full((200, 3), 1 / 3))
        made = put(tmp_path / "cost", record)
        assert len(list(made.glob("cost*.csv"))) > 1
        assert len(list(made.glob("arrays*.txt"))) > 1
        assert all(path.stat().st_size <= 3000 for path in made.iterdir())
        assert_same(get(made), record)
        monkeypatch.setattr("silomix.messages.folder.LARGEST_FILE", 60)
        with pytest.raises(MessageError):
            put(tmp_path / "long", record)


class Killed(BaseException):
    """Stands for a signal that no writer can handle."""


def kill_after(steps):
    """Return a wrapper for functions of which `steps` calls come through, all together."""
    left = iter(range(steps))

    def wrap(function):
        def call(*args, **options):
            if next(left, None) is None:
                raise Killed
            return function(*args, **options)

        return call

    return wrap


class TestWriting:
    def test_a_killed_writer_leaves_no_message(self, tmp_path, monkeypatch):
        """Killed at every step, without a chance to clean up, until it gets through."""
        exchange = EXCHANGES["sample"]
        reply, target = exchange.reply, tmp_path / "answer"
        for steps in range(20):
            with monkeypatch.context() as patch:
                killer = kill_after(steps)
                patch.setattr(os, "fsync", killer(os.fsync))
                patch.setattr(Path, "rename", killer(Path.rename))
                patch.setattr(shutil, "rmtree", killer(shutil.rmtree))
                with suppress(Killed):
                    write(target, exchange.envelope(reply), reply, study=exchange.study)
            if target.exists():
                break
            for left in tmp_path.iterdir():
                with pytest.raises(MessageError, match="left by a writer that did not finish"):
                    read(left, study=exchange.study)
        assert steps > 3
        assert names_in(tmp_path) == ["answer"]
        assert_same(read(target, study=exchange.study)[1], reply)

    def test_a_failed_writer_cleans_up(self, tmp_path, monkeypatch):
        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(FileError, match="cannot be written: No space left on device"):
            put(tmp_path / "message", DivergenceReply(np.ones((1, 3))))
        assert not names_in(tmp_path)


def edit_counts(folder):
    path = folder / "counts.csv"
    path.write_text(path.read_text().replace("20", "21"))


def unlist(folder):
    (folder / "counts.csv").unlink()
    change(folder, lambda d: d["files"].pop("counts.csv"))


def list_foreign(folder):
    (folder / "notes.csv").write_text("a\n1\n")
    change(folder, lambda d: d["files"].update({"notes.csv": ""}))


def take_from_another(folder, *, sealed):
    other = put(folder.with_name("other"), DivergenceReply(np.array([[20.0], [3.0]])))
    (folder / "counts.csv").write_bytes((other / "cost.csv").read_bytes())
    if sealed:
        change(folder)


def instead(make):
    def replace_counts(folder):
        (folder / "counts.csv").unlink()
        make(folder / "counts.csv")

    return replace_counts


class TestFiles:
    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (edit_counts, "'counts.csv' was changed after it was written"),
            (partial(take_from_another, sealed=False), "'counts.csv' was changed after"),
            (partial(take_from_another, sealed=True), r"damaged|counts\.csv"),
            (lambda folder: (folder / "notes.txt").touch(), "'notes.txt' is not part of this"),
            (lambda folder: (folder / "counts.csv").unlink(), "'counts.csv' is missing"),
            (lambda folder: (folder / HEAD).unlink(), f"{HEAD} is missing"),
            (lambda folder: folder.rename(folder.with_name("away")), "No such file or directory"),
            (unlist, "damaged|counts"),
            (list_foreign, r"notes\.csv"),
            (instead(os.mkfifo), "'counts.csv' is not a file"),
            (instead(os.mkdir), "'counts.csv' is not a file"),
            (instead(lambda path: path.symlink_to("/dev/zero")), "'counts.csv' is not a file"),
        ],
    )
    def test_that_are_not_as_they_were_written(self, folder, damage, words):
        damage(folder)
        refused(folder, words)

    @pytest.mark.parametrize(
        ("limit", "most"), [("LARGEST_MESSAGE", 100), ("LARGEST_FILE", 9), ("MOST_FILES", 2)]
    )
    def test_too_many_or_too_large(self, folder, monkeypatch, limit, most):
        monkeypatch.setattr(f"silomix.messages.folder.{limit}", most)
        refused(folder, "more files or bytes")


class TestMessageFile:
    def test_changed(self, folder):
        path = folder / HEAD
        text = path.read_text()
        for wrong in ("{", text.replace('"uint8"', '"uint16"')):
            path.write_text(wrong)
            refused(folder)

    @pytest.mark.parametrize(
        "edit",
        [
            lambda d: d.update(version=4),
            lambda d: d.pop("files"),
            lambda d: d.update(more=1),
            lambda d: d.update(files=[]),
            lambda d: d["files"].update({"../x": ""}),
            lambda d: d["fields"].pop("rows"),
            lambda d: d.update(arrays={}),
            lambda d: d["arrays"].update(rows=["uint8", [3, 2]]),
            lambda d: d["arrays"].update(rows=["uint8", [10**9, 0]]),
            lambda d: d["arrays"].update(rows=["uint8", [0, 10**9]], counts=["int64", [0]]),
            lambda d: d["arrays"].update(rows=["uint8", [10**9, 10**9]]),
            lambda d: d["arrays"].update(rows=["object", [2, 2]]),
            lambda d: d["arrays"].update(rows=["uint8", [-1, 2]]),
        ],
    )
    def test_lies(self, folder, edit):
        change(folder, edit)
        refused(folder)


class TestTables:
    """What is read in the tables is what leaves: nothing in the arrays is anything else."""

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("0,1.5,", "1,1.5,"),
            ("1.5", "1.25"),
            ("1.5", "1.50"),
            ("1.5", " 1.5"),
            ("1.5", "nan"),
            ("local_cluster", "cluster"),
            ("4.0\n", "4.0\r\n"),
            ("1,0.5,4.0\n", ""),
        ],
    )
    def test_a_table_that_says_something_else_is_refused(self, costs, old, new):
        change_table(costs / "cost.csv", old, new)
        refused(costs, r"cost\.csv")

    def test_arrays_that_say_something_else_are_refused(self, costs):
        for least in (np.nextafter(1.5, 2), -0.0, 7.0):
            other = DivergenceReply(np.array([[1.5, -2.25], [0.5, 4.0]]))
            other.cost[0, 0] = least
            (costs / ARRAYS).write_bytes(
                (put(costs.parent / str(least), other) / ARRAYS).read_bytes()
            )
            change(costs)
            refused(costs, r"cost\.csv")

    def test_bytes_beside_the_numbers_are_refused(self, costs):
        whole = (costs / ARRAYS).read_bytes()
        arrays = load(b64decode(whole))
        more = arrays | {"more": np.ones(1)}
        for content in (
            whole + b"\n",
            whole[:-4],
            b64encode(save(arrays, {"hidden": "word"})),
            b64encode(save(more)),
            b64encode(save({"cost": arrays["cost"].astype(np.float32)})),
            b64encode(save({"cost": arrays["cost"][:0]})),
        ):
            (costs / ARRAYS).write_bytes(content)
            change(costs)
            refused(costs)

    def test_spaces_in_the_head_are_refused(self, costs):
        text = (costs / HEAD).read_text()
        for wrong in (text + " ", text.replace('": ', '":  ', 1), json.dumps(json.loads(text))):
            (costs / HEAD).write_text(wrong)
            refused(costs, HEAD)

    def test_what_was_changed_without_the_digest(self, costs):
        other = put(costs.with_name("other"), DivergenceReply(np.array([[1.0, 2.0], [0.5, 4.0]])))
        (costs / ARRAYS).write_bytes((other / ARRAYS).read_bytes())
        seal_folder(costs, json.loads((costs / HEAD).read_text()))
        refused(costs, "digest")
