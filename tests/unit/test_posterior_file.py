"""Saved posteriors: an exact round trip, and nothing in a file is believed."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal, assert_equal

import silomix.posterior.loading
from silomix.errors import FileError, SilomixError
from silomix.posterior import PolishTrace, PosteriorDiagnostics, load, make_provenance
from silomix.posterior.format import DRAWS, MANIFEST, TYPES
from silomix.study import make_study
from unit.posteriors import (
    DOUBTED,
    SCHEMA,
    TRUSTED,
    make_diagnostics,
    make_posterior,
    with_drift,
)


@pytest.fixture
def posterior(seed):
    return make_posterior(np.random.default_rng(seed))


@pytest.fixture
def saved(posterior, tmp_path):
    return posterior.save(tmp_path / "posterior.zip")


def assert_same(found, expected):
    """Compare two records to the last bit, types included."""
    assert type(found) is type(expected)
    if is_dataclass(expected):
        for field in fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    else:
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)
        assert_equal(found, expected)


def read_members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def keep_names(read, function):
    """Let a method of an archive note which members it is asked for."""

    def noting(archive, member, *rest):
        read.append(getattr(member, "filename", member))
        return function(archive, member, *rest)

    return noting


def change_manifest(path, change):
    """Let `change` edit the manifest in place."""
    members = read_members(path)
    manifest = json.loads(members[MANIFEST])
    change(manifest)
    write_members(path, members | {MANIFEST: json.dumps(manifest)})


def change_array(path, name, array):
    """Put another array in the place of one, and say so in the manifest."""
    content = io.BytesIO()
    np.lib.format.write_array(content, array, version=(1, 0))
    write_members(path, read_members(path) | {f"{name}.npy": content.getvalue()})
    declared = {"dtype": array.dtype.str, "shape": list(array.shape)}
    change_manifest(path, lambda manifest: manifest["arrays"].update({name: declared}))


class TestRoundTrip:
    def test_everything(self, posterior, saved):
        found = load(saved)
        assert_same(found, posterior)
        assert found.study.title == "made up"
        assert repr(found) == repr(posterior)

    def test_bare(self, posterior, tmp_path):
        bare = replace(
            posterior,
            correspondence=None,
            silo_weights=None,
            assignment=None,
            diagnostics=PosteriorDiagnostics({}, chains=TRUSTED, notes=("A note.", "Two.")),
            backend="polars",
        )
        assert_same(load(bare.save(tmp_path / "bare.zip")), bare)

    @pytest.mark.parametrize("point", [False, True])
    def test_profiles_of_each_silo(self, posterior, seed, point, tmp_path):
        drifting = with_drift(posterior, np.random.default_rng(seed), point=point)
        found = load(drifting.save(tmp_path / "drift.zip"))
        assert_same(found, drifting)
        assert np.isinf(found.silo_profiles.kappa).any()
        assert found.silo_profiles.probabilities.dtype == np.float32

    def test_no_confidence(self, posterior, tmp_path):
        unsure = replace(
            posterior, correspondence=replace(posterior.correspondence, confidence=None)
        )
        assert_same(load(unsure.save(tmp_path / "unsure.zip")), unsure)

    def test_views(self, posterior, tmp_path):
        turned = replace(
            posterior,
            weights=posterior.weights[::-1],
            probabilities=np.asfortranarray(posterior.probabilities),
        )
        assert_same(load(turned.save(tmp_path / "turned.zip")), turned)

    def test_draws_in_float64_are_rounded(self, posterior, seed, tmp_path):
        weights = np.random.default_rng(seed).dirichlet(np.ones(3), posterior.n_draws)
        found = load(replace(posterior, weights=weights).save(tmp_path / "wide.zip"))
        assert_array_equal(found.weights, weights.astype(np.float32))

    def test_what_silos_share_is_not_written_twice(self, posterior, seed, tmp_path):
        """All silos' weights, and the profiles of a variable in which they are alike."""
        rng = np.random.default_rng(seed)
        everyone = np.repeat(posterior.weights[:, None], len(posterior.silos), axis=1)
        drifting = with_drift(replace(posterior, weights_by_silo=everyone), rng)
        path = drifting.save(tmp_path / "shared.zip")
        assert_same(load(path), drifting)
        with np.load(path) as arrays:
            assert np.isnan(arrays["weights_by_silo"]).all()
            stage = np.isnan(arrays["silo_probabilities"][..., 2:5])
            assert stage.all()
            assert not np.isnan(arrays["silo_probabilities"][..., 5:]).any()
        with zipfile.ZipFile(path) as archive:
            assert archive.getinfo("weights_by_silo.npy").compress_size < 200

    def test_summaries_are_the_same(self, posterior, seed, tmp_path):
        drifting = with_drift(posterior, np.random.default_rng(seed))
        found = load(drifting.save(tmp_path / "drift.zip"))
        for ask in ("summary", "cluster_sizes", "drift", "correspondence_frame"):
            assert getattr(found, ask)().equals(getattr(drifting, ask)())

    def test_traces_by_any_name(self, posterior, tmp_path):
        values = {
            "../../evil": np.arange(3.0),
            "ELBO, log": np.zeros((2, 2)),
            "": np.ones(0),
            "a number": np.array(2.5),
            "rounds": np.arange(3),
            "moving": np.array([True, False]),
        }
        odd = replace(posterior, diagnostics=make_diagnostics(polish=PolishTrace(values, 3, True)))
        assert_same(load(odd.save(tmp_path / "odd.zip")), odd)

    def test_numbers_of_numpy_become_plain_ones(self, posterior, tmp_path):
        run = replace(DOUBTED, trusted=np.False_, prior_draws=np.float32(0.5))
        polish = PolishTrace({}, np.int64(4), np.False_)
        odd = replace(
            posterior,
            diagnostics=make_diagnostics(silos={"north": run}, polish=polish),
            provenance=replace(posterior.provenance, sent={"north": {"Release": np.int64(3)}}),
        )
        found = load(odd.save(tmp_path / "odd.zip"))
        assert found.diagnostics.silos["north"] == run
        assert found.diagnostics.rounds == 4
        assert found.provenance == odd.provenance

    def test_every_setting_of_the_study(self, posterior, tmp_path):
        settings = {"matching": "ball", "solver": "psgd", "polish": 3, "alpha": 1, "absorb": 0}
        study = make_study(SCHEMA, ["nørd", "süd"], preset="paper", **settings)
        other = replace(posterior, study=study, provenance=make_provenance(study, [], {}, {}))
        assert load(other.save(tmp_path / "other.zip")).study == study

    def test_the_same_posterior_makes_the_same_bytes(self, posterior, saved, tmp_path):
        again = load(saved).save(tmp_path / "again.zip")
        assert again.read_bytes() == saved.read_bytes()

    def test_loaded_arrays_can_be_written_to(self, saved):
        assert load(str(saved)).weights.flags.writeable

    def test_numpy_alone_can_read_the_arrays(self, posterior, saved):
        with np.load(saved, allow_pickle=False) as arrays:
            assert_array_equal(arrays["weights"], posterior.weights)


class TestSaving:
    def test_a_folder_that_is_not_there(self, posterior, tmp_path):
        target = tmp_path / "absent" / "posterior.zip"
        with pytest.raises(FileError, match=r"absent.*cannot be written: No such file"):
            posterior.save(target)

    def test_a_failure_leaves_the_old_file(self, posterior, saved, monkeypatch):
        before = saved.read_bytes()

        def full(_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(FileError, match=r"No space left on device; choose a folder"):
            replace(posterior, assignment=None).save(saved)
        assert saved.read_bytes() == before
        assert list(saved.parent.iterdir()) == [saved]

    def test_a_file_is_replaced(self, posterior, saved):
        replace(posterior, assignment=None).save(saved)
        assert load(saved).assignment is None
        assert list(saved.parent.iterdir()) == [saved]


class TestForeignFiles:
    def test_no_file(self, tmp_path):
        with pytest.raises(FileError, match=r"x\.zip cannot be read: No such file.*check the path"):
            load(tmp_path / "x.zip")

    def test_a_folder(self, tmp_path):
        with pytest.raises(FileError, match="cannot be read: Is a directory"):
            load(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"PK", b"a,b\n1,2\n", b"PK\x05\x06" + bytes(18)])
    def test_no_posterior_at_all(self, tmp_path, content):
        (tmp_path / "x.zip").write_bytes(content)
        with pytest.raises(FileError, match="is no saved posterior"):
            load(tmp_path / "x.zip")

    @pytest.mark.parametrize("content", ["[]", "{}", '{"kind": "silomix study"}', "3"])
    def test_another_kind(self, saved, content):
        write_members(saved, {MANIFEST: content})
        with pytest.raises(FileError, match="does not say 'silomix posterior'"):
            load(saved)

    @pytest.mark.parametrize("version", [1, 0, None, "2", [2] * 50])
    def test_another_version(self, saved, version):
        change_manifest(saved, lambda manifest: manifest.update(format=version))
        with pytest.raises(FileError, match=r"of format .*reads format 2; use the version"):
            load(saved)

    def test_an_error_is_a_silomix_error(self, tmp_path):
        with pytest.raises(SilomixError):
            load(tmp_path / "absent")


class TestDamagedFiles:
    def test_truncated_anywhere(self, saved):
        whole = saved.read_bytes()
        for length in range(0, len(whole), len(whole) // 40):
            saved.write_bytes(whole[:length])
            with pytest.raises(FileError, match=r"no saved posterior|damaged"):
                load(saved)

    def test_a_bit_flipped_anywhere_in_the_arrays(self, posterior, saved):
        write_members(saved, read_members(saved), zipfile.ZIP_STORED)
        assert_same(load(saved), posterior)
        whole = bytearray(saved.read_bytes())
        place = whole.find(np.ascontiguousarray(posterior.probabilities).tobytes())
        assert place > 0
        whole[place + 5] ^= 0x10
        saved.write_bytes(whole)
        with pytest.raises(FileError, match="damaged"):
            load(saved)

    def test_random_bytes_changed_are_refused_or_harmless(self, posterior, saved, seed):
        """No exception but our own; what is still read is what was saved."""
        whole, rng = saved.read_bytes(), np.random.default_rng(seed)
        refused = 0
        for _ in range(300):
            broken = bytearray(whole)
            for place in rng.integers(0, len(whole), rng.integers(1, 4)):
                broken[place] = rng.integers(0, 256)
            saved.write_bytes(broken)
            try:
                found = load(saved)
            except FileError:
                refused += 1
            else:
                assert_same(found, posterior)
        assert refused > 100

    @pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "1" * 5000, "\xff"])
    def test_a_manifest_that_is_no_json(self, saved, text):
        write_members(saved, {MANIFEST: text.encode("latin-1")})
        with pytest.raises(FileError, match=r"no saved posterior|nested too deeply"):
            load(saved)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"backend": "spark"}, "posterior.json, backend: Input should be 'pandas'"),
            ({"more": 1}, "posterior.json, more: Extra inputs are not permitted"),
            ({"diagnostics": None}, "posterior.json, diagnostics: "),
            ({"study": {}}, "damaged, or of another version: its study cannot be used"),
        ],
    )
    def test_a_manifest_that_makes_no_sense(self, saved, change, message):
        change_manifest(saved, lambda manifest: manifest.update(change))
        with pytest.raises(FileError, match=message):
            load(saved)

    def test_a_text_that_no_file_can_hold(self, saved):
        change_manifest(saved, lambda manifest: manifest["diagnostics"].update(notes=["\ud800"]))
        with pytest.raises(FileError, match=r"is damaged: posterior\.json, its text"):
            load(saved)

    def test_settings_that_were_changed_by_hand(self, saved):
        change_manifest(saved, lambda manifest: manifest["study"].update(seed=8))
        with pytest.raises(FileError, match=r"its study has the digest \w+, and its provenance"):
            load(saved)

    def test_a_manifest_that_is_too_large(self, saved, monkeypatch):
        monkeypatch.setattr(silomix.posterior.loading, "LARGEST_MANIFEST", 1000)
        with pytest.raises(FileError, match=r"a posterior\.json larger than 0 MB, too large"):
            load(saved)

    def test_a_member_too_few(self, saved):
        members = read_members(saved)
        del members["elbo.npy"]
        write_members(saved, members)
        with pytest.raises(FileError, match=r"it lacks the member 'elbo\.npy'"):
            load(saved)

    @pytest.mark.parametrize("name", ["../../evil.npy", "/etc/evil", "C:\\evil", "evil.py", "a/"])
    def test_a_member_too_many(self, saved, name, tmp_path):
        write_members(saved, read_members(saved) | {name: b"evil"})
        with pytest.raises(FileError, match="it has the unknown member "):
            load(saved)
        assert list(tmp_path.iterdir()) == [saved]

    def test_an_array_under_an_unknown_name(self, saved):
        change_array(saved, "../../evil", np.zeros(2))
        with pytest.raises(FileError, match=r"its array '\.\./\.\./evil' has the shape"):
            load(saved)

    def test_two_members_of_one_name(self, saved):
        members = read_members(saved)
        with zipfile.ZipFile(saved, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("weights.npy", members["weights.npy"])
        with pytest.raises(FileError, match="claims to hold more than it does"):
            load(saved)

    def test_a_bomb_of_compressed_zeros(self, saved, monkeypatch):
        """It unfolds to a thousand times its length."""
        monkeypatch.setattr(silomix.posterior.loading, "ALWAYS", 1_000_000)
        write_members(saved, read_members(saved) | {"weights.npy": bytes(50_000_000)})
        with pytest.raises(FileError, match="claims to hold more than it does"):
            load(saved)

    def test_a_small_bomb_is_not_unfolded(self, saved, monkeypatch):
        """What is longer than its array is refused before it is read."""
        write_members(saved, read_members(saved) | {"weights.npy": bytes(50_000_000)})
        read = []
        monkeypatch.setattr(zipfile.ZipFile, "read", keep_names(read, zipfile.ZipFile.read))
        with pytest.raises(
            FileError, match=r"weights\.npy has 50,000,000 bytes for an array of 600"
        ):
            load(saved)
        assert read == [MANIFEST]

    def test_a_member_longer_than_it_says(self, saved):
        """The directory says 728 bytes; zlib would give fifty million."""
        size = len(read_members(saved)["weights.npy"])
        write_members(saved, read_members(saved) | {"weights.npy": bytes(50_000_000)})
        whole = bytearray(saved.read_bytes())
        entry = whole.rfind(b"PK\x01\x02", 0, whole.rfind(b"weights.npy"))
        whole[entry + 24 : entry + 28] = struct.pack("<I", size)
        saved.write_bytes(whole)
        with pytest.raises(FileError, match="damaged"):
            load(saved)

    def test_compressed_in_another_way(self, saved):
        write_members(saved, read_members(saved), zipfile.ZIP_LZMA)
        with pytest.raises(FileError, match="compressed in another way than a saved posterior is"):
            load(saved)

    def test_a_bomb_of_members_that_share_their_bytes(self, saved):
        """The directory names one stretch of the file many times over."""
        with zipfile.ZipFile(saved, "a") as archive:
            longest = max(archive.infolist(), key=lambda info: info.file_size)
            for copy in range(20):
                other = zipfile.ZipInfo(f"polish_{copy + 5}.npy")
                for name in ("header_offset", "file_size", "compress_size", "CRC"):
                    setattr(other, name, getattr(longest, name))
                archive.filelist.append(other)
                archive.NameToInfo[other.filename] = other
            archive._didModify = True
        with pytest.raises(FileError, match="claims to hold more than it does"):
            load(saved)

    def test_an_encrypted_member(self, saved):
        whole = bytearray(saved.read_bytes())
        whole[whole.find(b"PK\x01\x02") + 8] |= 1
        saved.write_bytes(whole)
        with pytest.raises(FileError, match="encrypted, or compressed in another way"):
            load(saved)


class TestArraysThatDoNotFit:
    def test_a_shape_that_the_manifest_does_not_say(self, saved):
        content = io.BytesIO()
        np.lib.format.write_array(content, np.zeros((75, 2), dtype=np.float32))
        write_members(saved, read_members(saved) | {"weights.npy": content.getvalue()})
        with pytest.raises(
            FileError, match=r"weights\.npy is of type <f4 and shape \(75, 2\), and posterior\.json"
        ):
            load(saved)

    def test_columns_first(self, saved, posterior):
        change_array(saved, "weights", np.asfortranarray(posterior.weights))
        with pytest.raises(FileError, match=r"is damaged: weights\.npy is of type"):
            load(saved)

    def test_fewer_bytes_than_the_shape_needs(self, saved):
        """A header alone must not make us set aside memory for what it promises."""
        short = read_members(saved)["weights.npy"][:-8]
        write_members(saved, read_members(saved) | {"weights.npy": short})
        with pytest.raises(FileError, match=r"weights\.npy has 592 bytes for an array of 600"):
            load(saved)
        write_members(saved, read_members(saved) | {"weights.npy": short[:300]})
        with pytest.raises(FileError, match=r"weights\.npy has 300 bytes for an array of 600"):
            load(saved)

    def test_a_huge_promise(self, saved):
        header = io.BytesIO()
        shape = (2**40,)
        np.lib.format.write_array_header_1_0(
            header, {"descr": "<f4", "fortran_order": False, "shape": shape}
        )
        write_members(saved, read_members(saved) | {"elbo.npy": header.getvalue()})
        declared = {"dtype": "<f4", "shape": list(shape)}
        change_manifest(saved, lambda manifest: manifest["arrays"].update(elbo=declared))
        with pytest.raises(FileError, match=r"elbo\.npy has 128 bytes for an array of 4,39"):
            load(saved)

    @pytest.mark.parametrize("header", ["-" * 9_000 + "1", "(" * 9_000, "[" * 300, "{", "1\n 2"])
    def test_a_header_that_no_parser_takes(self, saved, header):
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
        content += bytes(600)
        write_members(saved, read_members(saved) | {"weights.npy": content})
        with pytest.raises(FileError, match=r"weights\.npy is no array"):
            load(saved)

    def test_no_array(self, saved):
        write_members(saved, read_members(saved) | {"weights.npy": b"not an array" * 60})
        with pytest.raises(FileError, match=r"weights\.npy is no array"):
            load(saved)

    def test_pickled_objects(self, saved):
        change_array(saved, "elbo", np.array([{"a": 1}], dtype=object))
        with pytest.raises(FileError, match=r"posterior\.json, arrays\.elbo\.dtype"):
            load(saved)

    def test_pickled_objects_declared_as_numbers(self, saved):
        change_array(saved, "elbo", np.array([{"a": 1}], dtype=object))
        declared = {"dtype": "<f8", "shape": [1]}
        change_manifest(saved, lambda manifest: manifest["arrays"].update(elbo=declared))
        with pytest.raises(FileError, match=r"elbo\.npy is of type \|O and shape \(1,\)"):
            load(saved)

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("weights", (50, 4)),
            ("weights_by_silo", (50, 3, 3)),
            ("probabilities", (50, 3, 8)),
            ("correspondence_sizes", (7,)),
            ("correspondence_confidence", (8, 7)),
            ("silo_weights", (3,)),
            ("silo_profiles", (2, 4)),
            ("membership", (12, 4)),
            ("row_silos", (11,)),
            ("membership", ()),
        ],
    )
    def test_arrays_that_do_not_fit_each_other(self, saved, name, shape):
        change_array(saved, name, np.zeros(shape, dtype=TYPES.get(name, "<f8")))
        with pytest.raises(FileError, match=r"is damaged: its array '\w+' has the shape"):
            load(saved)

    @pytest.mark.parametrize("shape", [(50,), (0, 3), (50, 0)])
    def test_no_weights(self, saved, shape):
        change_array(saved, "weights", np.zeros(shape))
        with pytest.raises(FileError, match="it has no weights"):
            load(saved)

    def test_an_array_too_few(self, saved):
        members = read_members(saved)
        del members["membership.npy"]
        write_members(saved, members)
        change_manifest(saved, lambda manifest: manifest["arrays"].pop("membership"))
        with pytest.raises(FileError, match=r"its array 'membership' has the shape None"):
            load(saved)

    @pytest.mark.parametrize("dtype", ["f8", ">f8", "<f4x", "<f4\n", "<U4", "|O", "<f16"])
    def test_types_that_no_saved_array_has(self, saved, dtype):
        declared = {"dtype": dtype, "shape": [3]}
        change_manifest(saved, lambda manifest: manifest["arrays"].update(elbo=declared))
        with pytest.raises(FileError, match=r"posterior\.json, arrays\.elbo\.dtype: String should"):
            load(saved)

    @pytest.mark.parametrize(
        ("name", "shape"),
        [("row_silos", (12,)), ("membership", (12, 3)), ("weights", (50, 3))],
    )
    def test_an_array_of_another_type(self, saved, name, shape):
        change_array(saved, name, np.zeros(shape))
        with pytest.raises(FileError, match=f"its array '{name}' cannot be of type <f8"):
            load(saved)

    def test_a_membership_of_more_than_one(self, saved):
        change_array(saved, "membership", np.full((12, 3), 10_001, dtype=np.uint16))
        with pytest.raises(FileError, match="'membership' has 10001, and is in parts of 10000"):
            load(saved)

    @pytest.mark.parametrize(
        ("name", "size", "value"),
        [
            ("row_silos", 12, -1),
            ("row_silos", 12, 2),
            ("correspondence_groups", 8, 9),
        ],
    )
    def test_numbers_of_what_does_not_exist(self, saved, name, size, value):
        numbers = np.zeros(size, dtype=np.int64)
        numbers[3] = value
        change_array(saved, name, numbers)
        with pytest.raises(FileError, match=f"its array '{name}' goes from .*must stay within 0"):
            load(saved)


class TestDriftThatDoesNotFit:
    @pytest.fixture
    def saved(self, posterior, seed, tmp_path):
        drifting = with_drift(posterior, np.random.default_rng(seed))
        return drifting.save(tmp_path / "posterior.zip")

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("kappa", (50, 2)),
            ("kappa", (20, 3)),
            ("kappa", (3,)),
            ("kappa", ()),
            ("silo_probabilities", (51, 2, 3, 7)),
            ("silo_probabilities", (0, 2, 3, 7)),
            ("silo_probabilities", (20, 1, 3, 7)),
            ("silo_probabilities", (20, 2, 4, 7)),
            ("silo_probabilities", (20, 2, 3, 8)),
            ("silo_probabilities", (20, 2, 3)),
        ],
    )
    def test_another_shape(self, saved, name, shape):
        change_array(saved, name, np.full(shape, 0.5))
        with pytest.raises(FileError, match=rf"is damaged: its array '{name}' has the shape"):
            load(saved)

    @pytest.mark.parametrize("name", ["kappa", "silo_probabilities"])
    def test_one_without_the_other(self, saved, name):
        members = read_members(saved)
        del members[f"{name}.npy"]
        write_members(saved, members)
        change_manifest(saved, lambda manifest: manifest["arrays"].pop(name))
        with pytest.raises(FileError, match=rf"its array '{name}' has the shape None"):
            load(saved)

    def test_whole_numbers(self, saved):
        change_array(saved, "kappa", np.ones((50, 3), dtype=np.int64))
        with pytest.raises(FileError, match="its array 'kappa' cannot be of type <i8"):
            load(saved)

    @pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
    def test_a_kappa_that_is_none(self, saved, value):
        kappa = np.full((50, 3), np.inf)
        kappa[7, 1] = value
        change_array(saved, "kappa", kappa)
        with pytest.raises(FileError, match=rf"'kappa' has {value}, and must be positive"):
            load(saved)

    @pytest.mark.parametrize("value", [-0.5, 1.5, np.inf])
    @pytest.mark.parametrize("name", sorted(DRAWS))
    def test_what_is_no_probability(self, saved, name, value):
        with np.load(saved) as arrays:
            draws = arrays[name]
        draws.ravel()[7] = value
        change_array(saved, name, draws)
        with pytest.raises(FileError, match=rf"'{name}' goes from .* within 0 to 1"):
            load(saved)

    @pytest.mark.parametrize("name", ["weights", "probabilities"])
    def test_nothing_is_left_out_of_what_is_shared(self, saved, name):
        with np.load(saved) as arrays:
            draws = arrays[name]
        draws.ravel()[7] = np.nan
        change_array(saved, name, draws)
        with pytest.raises(FileError, match=rf"'{name}' goes from nan to nan"):
            load(saved)
