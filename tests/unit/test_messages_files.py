"""Messages as folders of JSON and CSV: an exact round trip, whole or not at all."""

from __future__ import annotations

import csv
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from silomix.messages.tables import LARGEST_FILE, MOST_ROWS

from federation.message_cases import assert_same, exchanges, study_with
from federation.mutations import seal_document, seal_folder
from silomix.errors import MessageError
from silomix.messages import AssignReply, AssignRows, DistinctRows, DivergenceReply, Received
from silomix.messages.container import Envelope, digest
from silomix.messages.folder import MESSAGE, RELEASE, read, write

EXCHANGES = exchanges()
CASES = {
    f"{name}: {type(record).__name__}": (exchange, record)
    for name, exchange in EXCHANGES.items()
    for record in exchange.records
}
each_case = pytest.mark.parametrize(("exchange", "record"), list(CASES.values()), ids=list(CASES))
STUDY = study_with()


def put(folder, record):
    return write(folder, Envelope("", "north", 1, type(record).__name__), record, study=STUDY)


def get(folder, **options):
    return read(folder, study=STUDY, **options)[1]


def refused(folder, match, **options):
    with pytest.raises(MessageError, match=match) as caught:
        get(folder, **options)
    assert str(folder) in str(caught.value)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def change(folder, edit, *, seal=seal_folder):
    """Edit what `message.json` says, and make its checksums again."""
    document = json.loads((folder / MESSAGE).read_text(encoding="utf-8"))
    del document["sha256"]
    edit(document)
    seal(folder, document)


def change_table(path, old, new):
    """Replace text in a table, and everything that says what it was."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    change(path.parent, lambda document: None)


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch):
    """A release has a picture where matplotlib is installed; it takes most of the time."""
    monkeypatch.setattr("silomix.messages.folder.draw_profiles", lambda *_: None)


@pytest.fixture
def folder(tmp_path):
    record = DistinctRows(np.array([[0, 1], [2, 1]], np.uint8), np.array([20, 3]))
    return put(tmp_path / "rows", record)


@pytest.fixture
def costs(tmp_path):
    return put(tmp_path / "costs", DivergenceReply(np.array([[1.5, -2.25], [0.5, 4.0]])))


@pytest.fixture
def released(tmp_path):
    exchange = EXCHANGES["sample"]
    envelope = exchange.envelope(exchange.reply)
    return write(tmp_path / "answer", envelope, exchange.reply, study=exchange.study)


def uneven_share():
    """Releases of which the first has one cluster and four draws, the others more."""
    share = EXCHANGES["share"].query
    first, *others = share.releases
    by_cluster = ("sizes", "medians", "mean", "concentration", "effective_counts")
    small = replace(
        first,
        **{name: getattr(first, name)[:1] for name in by_cluster},
        weights=first.weights[:4, :1],
        probabilities=first.probabilities[:4, :1],
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
        assert digest(found[1]) == digest(record)
        assert names_in(tmp_path) == ["message"]

    def test_any_bits(self, tmp_path, seed):
        rng = np.random.default_rng(seed)
        wide = rng.integers(0, 2**64, (40, 50), dtype=np.uint64).view(np.float64)
        record = DivergenceReply(np.where(np.isfinite(wide), wide, -0.0))
        assert_same(get(put(tmp_path / "wide", record)), record)
        narrow = rng.integers(0, 2**32, (40, 50), dtype=np.uint32).view(np.float32)
        narrow = np.where(np.isfinite(narrow), narrow, np.float32(0.1))
        record = AssignRows(narrow, narrow[:, :, None].repeat(2, axis=2))
        assert_same(get(put(tmp_path / "narrow", record)), record)

    def test_whole_numbers_to_the_last(self, tmp_path):
        record = AssignReply(np.array([-(2**63), 2**63 - 1, 0]))
        assert_same(get(put(tmp_path / "sizes", record)), record)

    def test_no_rows(self, tmp_path):
        record = DistinctRows(np.zeros((0, 3), np.uint8), np.zeros(0, np.int64))
        assert_same(get(put(tmp_path / "none", record)), record)

    def test_silos_with_other_numbers_of_clusters(self, tmp_path):
        record = uneven_share()
        made = put(tmp_path / "share", record)
        first = float(record.releases[0].weights[0, 0])
        lines = (made / "releases.weights.csv").read_text().splitlines()
        assert lines[:2] == ["silo,draw,cluster_0,cluster_1", f"0,0,{first!r},"]
        assert_same(get(made), record)

    def test_fast_enough(self, tmp_path):
        rng = np.random.default_rng(0)
        record = AssignRows(rng.dirichlet(np.ones(6), 2000), rng.random((2000, 6, 26)))
        begin = time.process_time()
        found = get(put(tmp_path / "draws", record))
        # about 0.8 s there and back
        assert time.process_time() - begin < 4
        assert_same(found, record)
        for path in (tmp_path / "draws").glob("*.csv"):
            assert path.read_bytes().count(b"\n") <= MOST_ROWS + 1
            assert path.stat().st_size <= LARGEST_FILE


class TestForPeople:
    def test_names_and_columns(self, folder):
        assert names_in(folder) == ["codes.csv", "counts.csv", MESSAGE]
        codes = list(csv.reader((folder / "codes.csv").read_text().splitlines()))
        assert codes == [
            ["distinct_row", "variable_0", "variable_1"],
            ["0", "0", "1"],
            ["1", "2", "1"],
        ]
        assert (folder / "counts.csv").read_text() == "distinct_row,counts\n0,20\n1,3\n"

    def test_what_the_message_says(self, folder):
        document = json.loads((folder / MESSAGE).read_text())
        assert document["kind"] == "DistinctRows"
        assert document["number"] == 1
        assert document["fields"]["codes"] == {"dtype": "|u1", "shape": [2, 2]}
        assert document["files"]["codes.csv"]["rows"] == 2

    def test_long_tables_go_on(self, tmp_path, monkeypatch):
        monkeypatch.setattr("silomix.messages.tables.MOST_ROWS", 3)
        record = AssignReply(np.arange(8))
        made = put(tmp_path / "sizes", record)
        assert names_in(made) == [MESSAGE, *(f"sizes_part{n}.csv" for n in (1, 2, 3))]
        assert_same(get(made), record)
        (made / "sizes_part2.csv").unlink()
        refused(made, "sizes_part2.csv is missing")

    def test_wide_tables_go_on(self, tmp_path, monkeypatch):
        monkeypatch.setattr("silomix.messages.tables.LARGEST_FILE", 200)
        record = DivergenceReply(np.full((6, 3), 1 / 3))
        made = put(tmp_path / "cost", record)
        assert len(list(made.glob("cost_part*.csv"))) > 1
        assert all(path.stat().st_size <= 200 for path in made.glob("*.csv"))
        assert_same(get(made), record)

    def test_a_release_is_a_folder_of_its_own(self, released):
        assert names_in(released) == [MESSAGE, RELEASE]
        assert (released / RELEASE / "README.txt").exists()


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
    def test_never_over_another(self, folder):
        with pytest.raises(
            MessageError, match="exists already, and a message is never overwritten"
        ):
            put(folder, Received())
        assert len(names_in(folder)) == 3

    def test_nowhere(self, tmp_path):
        with pytest.raises(MessageError, match="cannot be written: No such file or directory"):
            put(tmp_path / "absent" / "message", Received())

    def test_only_what_travels(self, tmp_path):
        with pytest.raises(MessageError, match="a dict is no record that travels"):
            put(tmp_path / "message", {})
        assert not names_in(tmp_path)

    def test_too_many_columns(self, tmp_path):
        with pytest.raises(MessageError, match="cost has 100,001 columns; a file may have 100,000"):
            put(tmp_path / "message", DivergenceReply(np.zeros((1, 100_001))))
        assert not names_in(tmp_path)

    def test_a_head_too_long(self, tmp_path, monkeypatch):
        monkeypatch.setattr("silomix.messages.files.LARGEST_DOCUMENT", 100)
        with pytest.raises(
            MessageError, match=r"its message\.json would have 3.. bytes, and at mo"
        ):
            put(tmp_path / "message", Received())
        assert not names_in(tmp_path)

    def test_a_row_too_long(self, tmp_path, monkeypatch):
        monkeypatch.setattr("silomix.messages.tables.LARGEST_FILE", 60)
        with pytest.raises(MessageError, match="a row of cost is too long for a file"):
            put(tmp_path / "message", DivergenceReply(np.full((1, 3), 1 / 3)))

    def test_a_release_that_cannot_be_written(self, tmp_path):
        exchange = EXCHANGES["sample"]
        long = tmp_path / ("x" * 200)
        with pytest.raises(MessageError, match="cannot be written"):
            write(
                long / "y", exchange.envelope(exchange.reply), exchange.reply, study=exchange.study
            )

    @pytest.mark.parametrize("name", ["polish", "sample"])
    def test_a_killed_writer_leaves_no_message(self, name, tmp_path, monkeypatch):
        """Killed at every step, without a chance to clean up, until it gets through."""
        exchange = EXCHANGES[name]
        reply, target = exchange.reply, tmp_path / "answer"
        for steps in range(10):
            with monkeypatch.context() as patch:
                killer = kill_after(steps)
                patch.setattr(Path, "write_bytes", killer(Path.write_bytes))
                patch.setattr(Path, "rename", killer(Path.rename))
                patch.setattr("silomix.messages.files.shutil.rmtree", lambda *_, **__: None)
                try:
                    write(target, exchange.envelope(reply), reply, study=exchange.study)
                    break
                except Killed:
                    assert not target.exists()
            for left in tmp_path.iterdir():
                with pytest.raises(MessageError, match="left by a writer that did not finish"):
                    read(left, study=exchange.study)
        assert len(names_in(tmp_path)) > steps > 1
        assert_same(read(target, study=exchange.study)[1], reply)

    def test_a_failed_writer_cleans_up(self, tmp_path, monkeypatch):
        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", fail)
        with pytest.raises(MessageError, match="cannot be written: No space left on device"):
            put(tmp_path / "message", AssignReply(np.arange(3)))
        assert not names_in(tmp_path)


class TestFiles:
    def test_changed(self, folder):
        path = folder / "counts.csv"
        path.write_text(path.read_text().replace("20", "21"))
        refused(
            folder, "counts.csv was changed after it was written; put that right, or get the wh"
        )

    def test_missing(self, folder):
        (folder / "counts.csv").unlink()
        refused(folder, "counts.csv is missing")

    def test_added(self, folder):
        (folder / "notes.txt").write_text("for later")
        refused(folder, "'notes.txt' is no part of this message")

    def test_listed_though_foreign(self, folder):
        (folder / "notes.csv").write_text("a\n1\n")
        change(folder, lambda d: d["files"].update({"notes.csv": {"sha256": "", "rows": 1}}))
        refused(folder, "notes.csv is no part of a DistinctRows")

    def test_not_listed(self, folder):
        (folder / "counts.csv").unlink()
        change(folder, lambda d: d["files"].pop("counts.csv"))
        refused(folder, "counts.csv is missing")

    def test_of_another_message(self, folder, tmp_path):
        other = put(tmp_path / "other", AssignReply(np.arange(3)))
        (folder / "counts.csv").write_bytes((other / "sizes.csv").read_bytes())
        refused(folder, "counts.csv was changed after it was written")
        change(folder, lambda document: None)
        refused(folder, "counts.csv must have the columns distinct_row, counts and end with a line")

    @pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
    def test_no_files(self, folder, make):
        (folder / "counts.csv").unlink()
        make(folder / "counts.csv")
        refused(folder, "'counts.csv' is no file")

    def test_folders(self, folder):
        (folder / "more").mkdir()
        refused(folder, "the folder 'more' is no part of this message")

    def test_too_many(self, folder, monkeypatch):
        monkeypatch.setattr("silomix.messages.files.MOST_FILES", 2)
        refused(folder, "it has more than 2 files; it is no message")

    def test_too_large(self, folder, monkeypatch):
        refused(folder, "bytes; at most 100 are read", largest=100)
        monkeypatch.setattr("silomix.messages.files.LARGEST_FILE", 20)
        refused(folder, "codes.csv has more than 20 bytes")

    def test_more_rows_than_an_airlock_takes(self, folder, monkeypatch):
        monkeypatch.setattr("silomix.messages.files.MOST_ROWS", 1)
        refused(folder, "codes.csv has 2 rows; message.json says 2, and 1 are the most")

    def test_no_message(self, folder, tmp_path):
        (folder / MESSAGE).unlink()
        refused(folder, "message.json is missing, without which it is no message")
        refused(tmp_path / "absent", "No such file or directory; check the path")
        refused(tmp_path / "a\0b", "no path has a null in it")


class TestMessageFile:
    def test_changed(self, folder):
        path = folder / MESSAGE
        path.write_text(path.read_text().replace('"number": 1', '"number": 2'))
        refused(folder, "message.json was changed after it was written")

    def test_no_json(self, folder):
        (folder / MESSAGE).write_text("{")
        refused(folder, "message.json: its head is no JSON in UTF-8")

    @pytest.mark.parametrize(
        ("edit", "match"),
        [
            (lambda d: d.update(version=5), "message.json: it is of version 5 and this silomix"),
            (lambda d: d.pop("content"), "message.json: it lacks 'content'"),
            (
                lambda d: d.update(more=1),
                "message.json: it has 'more', which does not belong there",
            ),
            (lambda d: d.update(files=[]), "message.json does not list the files of a message"),
            (lambda d: d["files"].update({"../x": {}}), "does not list the files of a message"),
            (
                lambda d: d["files"].update({"codes.csv": 1}),
                "message.json does not say the checksum and rows of codes.csv",
            ),
            (lambda d: d.update(content="0"), "does not have the digest of what is in the folder"),
            (lambda d: d["fields"].pop("codes"), "the record lacks 'codes'"),
            (lambda d: d["fields"]["codes"].update(shape=[3, 2]), "counts has 2 entries along"),
            (lambda d: d["fields"]["codes"].update(shape=[2, 10**6]), "has 1,000,000 columns"),
        ],
    )
    def test_lies(self, folder, edit, match):
        change(folder, edit, seal=seal_document)
        refused(folder, match)

    def test_rows_that_are_not_there(self, costs):
        for shape in ([10**9, 2], [3, 2]):
            change(costs, lambda d, shape=shape: d["fields"]["cost"].update(shape=shape))
            refused(costs, f"cost.csv has 2 rows instead of {shape[0]:,}")


class TestTables:
    @pytest.mark.parametrize(
        ("old", "new", "match"),
        [
            ("0,1.5,", "1,1.5,", "cost.csv: it should have a row 0 of 2 numbers there"),
            ("0,1.5,", "1.5,", "it should have a row 0 of 2 numbers there"),
            ("0,1.5,", "0,1.5,3.5,", "it should have a row 0 of 2 numbers there"),
            ("0,1.5,", "0,,", "row 0 has '0,,-2.25', not all numbers"),
            ("0,1.5,", "0,1.5.5,", "not all numbers"),
            ("0,1.5,", "0,1." + "5" * 40 + ",", "row 0 must have 2 numbers and 0 empty cells"),
            ("0,1.5,", "0,1e999,", "cost is inf at local_cluster 0, reference_cluster 0"),
            ("1.5", "nan", "cost.csv has characters that are no part of a number"),
            ("1.5", "1_5", "characters that are no part of a number"),
            ("1.5", "\u0661", "characters that are no part of a number"),
            ("1.5", "1.25", "message.json does not have the digest of what is in the folder"),
            ("local_cluster", "cluster", "cost.csv must have the columns local_cluster, reference"),
            ("4.0\n", "4.0", "and end with a line end"),
            ("1,0.5,4.0\n", "", "cost.csv has 1 rows instead of 2"),
        ],
    )
    def test_numbers(self, costs, old, new, match):
        change_table(costs / "cost.csv", old, new)
        refused(costs, match)

    @pytest.mark.parametrize(
        ("old", "new", "match"),
        [
            ("1,2,1", "1,256,1", "codes has a number too large for its type"),
            ("1,2,1", "1,-1,1", "codes has a number too large for its type"),
            ("1,2,1", "1,2.0,1", "not all numbers"),
        ],
    )
    def test_whole_numbers(self, folder, old, new, match):
        change_table(folder / "codes.csv", old, new)
        refused(folder, match)

    def test_rows_of_several_files(self, tmp_path, monkeypatch):
        monkeypatch.setattr("silomix.messages.tables.MOST_ROWS", 3)
        made = put(tmp_path / "sizes", AssignReply(np.arange(8)))
        change_table(made / "sizes_part2.csv", "4,4\n", "")
        refused(made, "sizes_part1.csv and others has 7 rows instead of 8")

    def test_empty_cells_stay_empty(self, tmp_path):
        made = put(tmp_path / "share", uneven_share())
        change_table(made / "releases.weights.csv", ",\n", ",5\n")
        refused(made, "row 0,0 must have 1 numbers and 1 empty cells")


class TestRelease:
    def read(self, folder):
        return read(folder, study=EXCHANGES["sample"].study)

    def test_damaged(self, released):
        path = released / RELEASE / "cluster_sizes.csv"
        path.write_text(path.read_text().replace("0,", "0,1", 1))
        with pytest.raises(MessageError, match=r"cluster_sizes\.csv was changed or damaged"):
            self.read(released)

    def test_of_another_silo(self, released):
        change(released, lambda d: d.update(silo="north"))
        with pytest.raises(MessageError, match="is a release of the silo 'süd', and it must be of"):
            self.read(released)

    def test_of_another_study(self, released):
        with pytest.raises(MessageError, match="is a release for the study"):
            read(released, study=study_with(tier="summary"))

    def test_missing(self, released):
        (released / RELEASE).rename(released.parent / "elsewhere")
        with pytest.raises(MessageError, match="the folder release is missing"):
            self.read(released)

    def test_beside_other_things(self, released):
        change(released, lambda d: d.update(fields={"rows": 3}))
        with pytest.raises(MessageError, match="fields or files that belong in the folder release"):
            self.read(released)

    def test_of_something_else(self, released):
        change(released, lambda d: d.update(content=digest(Received())))
        with pytest.raises(MessageError, match="does not have the digest of what is in the folder"):
            self.read(released)
