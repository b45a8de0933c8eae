"""Saved posteriors: an exact round trip, and nothing in a file is believed."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from cases.posteriors import (
    SCHEMA,
    TRUSTED,
    pack,
    unpack,
    with_drift,
)
from federation.message_cases import assert_same
from numpy.testing import assert_array_equal

from silomix.errors import FileError
from silomix.posterior import saved_file
from silomix.posterior.saved_file import ARRAYS, SAVED, SHARED, load
from silomix.posterior.verdict import PosteriorDiagnostics, make_provenance
from silomix.study import make_study

OPTIONAL = {"correspondence.confidence", "diagnostics.elbo", "assignment.missing"}
# Those of which each silo has one are tried on the first silo's.
PATHS = {name: f"{name}.0" if "own_cluster" in ARRAYS[name].axes else name for name in ARRAYS}
TRACES = "diagnostics.polish.values"


@pytest.fixture
def saved(drifting, tmp_path):
    return drifting.save(tmp_path / "posterior.silomix")


def change(path, document=(), arrays=(), without=()):
    """Change a file: entries of the document by path of keys, and arrays by name."""
    said, held = unpack(path)
    for keys, value in dict(document).items():
        *outer, last = keys.split(".")
        inner = said
        for key in outer:
            inner = inner[key]
        inner[last] = value
    held |= dict(arrays)
    pack(path, said, {name: array for name, array in held.items() if name not in without})


def assert_refused(path, reason="is damaged"):
    with pytest.raises(FileError, match=reason) as refused:
        load(path)
    assert str(refused.value).startswith(str(path))


class TestRoundTrip:
    @pytest.mark.parametrize("point", [False, True])
    def test_everything(self, posterior, seed, point, tmp_path):
        whole = with_drift(posterior, np.random.default_rng(seed), point=point)
        path = whole.save(tmp_path / "whole")
        found = load(str(path))
        assert_same(found, whole)
        assert np.isinf(found.silo_profiles.kappa).any()
        assert found.weights.flags.writeable
        assert found.save(tmp_path / "again").read_bytes() == path.read_bytes()
        arrays = safetensors.numpy.load(gzip.decompress(path.read_bytes()))  # as anybody can
        assert_array_equal(arrays["weights"], posterior.weights)

    def test_in_a_folder_of_results(self, posterior, tmp_path):
        with pytest.raises(FileError, match=SAVED):
            load(tmp_path)
        posterior.save(tmp_path / SAVED)
        assert_same(load(tmp_path), posterior)

    def test_what_is_not_there_or_lies_otherwise_in_memory(self, posterior, tmp_path):
        bare = replace(
            posterior,
            weights=posterior.weights[::-1],
            profile_draws=np.asfortranarray(posterior.probabilities),
            correspondence=None,
            silo_weights=None,
            assignment=None,
            diagnostics=PosteriorDiagnostics({}, chains=TRUSTED, notes=("A note.", "Two.")),
            backend="polars",
        )
        assert_same(load(bare.save(tmp_path / "bare")), bare)
        wide = replace(posterior, weights=posterior.weights.astype(np.float64) + 1e-12)
        assert_array_equal(load(wide.save(tmp_path / "wide")).weights, posterior.weights)

    def test_what_silos_share_is_not_written_twice(self, posterior, seed, tmp_path):
        """All silos' weights, and the profiles of a variable in which they are alike."""
        everyone = np.repeat(posterior.weights[:, None], len(posterior.silos), axis=1)
        alike = replace(posterior, weights_by_silo=everyone)
        alike = with_drift(alike, np.random.default_rng(seed))
        path = alike.save(tmp_path / "shared")
        assert_same(load(path), alike)
        _, arrays = unpack(path)
        assert np.isnan(arrays["weights_by_silo"]).all()
        assert np.isnan(arrays["silo_profiles.parameters"][..., 2:5]).all()
        assert not np.isnan(arrays["silo_profiles.parameters"][..., 5:]).any()

    def test_every_setting_of_the_study(self, posterior, tmp_path):
        settings = {"matching": "ball", "solver": "psgd", "polish": 3, "alpha": 1, "absorb": 0}
        study = make_study(SCHEMA, ["nørd", "süd"], preset="paper", **settings)
        bare = replace(posterior, study=study, correspondence=None, silo_weights=None)
        other = replace(bare, provenance=make_provenance(study, [], {}, {}))
        assert load(other.save(tmp_path / "other")).study == study


def test_a_failure_leaves_the_old_file(posterior, saved, monkeypatch):
    before = saved.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left on device"):
        posterior.save(saved)
    assert saved.read_bytes() == before
    monkeypatch.undo()
    assert load(posterior.save(saved)).silo_profiles is None
    assert list(saved.parent.iterdir()) == [saved]
    with pytest.raises(FileError, match=r"absent.*cannot be written: No such file"):
        posterior.save(saved.parent / "absent" / "posterior")


class TestForeignFiles:
    @pytest.mark.parametrize("content", [b"", b"PK", b"a,b\n1,2\n", gzip.compress(b"{}", mtime=0)])
    def test_no_posterior_at_all(self, tmp_path, content):
        assert_refused(tmp_path / "x", "cannot be read: No such file")
        (tmp_path / "x").write_bytes(content)
        assert_refused(tmp_path / "x", "is not a saved posterior")

    def test_another_document_version_or_kind(self, saved):
        whole = saved.read_bytes()
        for text in ("", "{", "[]", "3", "[" * 100_000, "1" * 5000, '"\\ud800"'):
            pack(saved, text, {})
            assert_refused(saved, "is not a saved posterior")
        for head in ({"format": 3}, {"format": "4"}, {"kind": "silomix study"}):
            saved.write_bytes(whole)
            change(saved, head)
            assert_refused(saved, "it calls itself .* and this silomix reads")


class TestDamagedFiles:
    def test_truncated_anywhere(self, saved):
        whole = saved.read_bytes()
        for length in range(0, len(whole), len(whole) // 40):
            saved.write_bytes(whole[:length])
            assert_refused(saved, "truncated")
        saved.write_bytes(whole + b"\0")
        assert_refused(saved, "truncated")

    def test_random_bytes_changed_are_refused_or_harmless(self, drifting, saved, seed):
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
                assert_same(found, drifting)
        assert refused > 250

    @pytest.mark.parametrize(
        ("keys", "value", "reason"),
        [
            ("backend", "spark", "'posterior.backend': Input should be 'pandas'"),
            ("more", 1, "'posterior.more': Unexpected keyword"),
            ("diagnostics", None, ""),
            ("correspondence", None, ""),
            ("correspondence.silos", ["north"], "other silos than its Correspondence names"),
            ("provenance.silos", ["a", "b"], "other silos than its Provenance names"),
            ("correspondence.groups", [None], "other silos than its study's"),
            ("correspondence.sizes", [None], "other silos than its study's"),
            ("diagnostics.silos.north.rhat", 1, "'posterior.diagnostics.silos.north.rhat'"),
            ("study", {}, ""),
            ("study.seed", 8, "its study has another digest"),
            ("diagnostics.notes", ["\ud800"], ""),
        ],
    )
    def test_a_document_that_makes_no_sense(self, saved, keys, value, reason):
        change(saved, {keys: value})
        assert_refused(saved, f"is damaged.*{reason}")

    def test_a_bomb_of_compressed_zeros(self, saved, monkeypatch):
        """It would unfold to a thousand times its length."""
        monkeypatch.setattr(saved_file, "ALWAYS", 1_000_000)
        saved.write_bytes(gzip.compress(bytes(50_000_000)))
        assert_refused(saved, "claims to hold more than it does")

    @pytest.mark.parametrize(
        "header",
        [
            {"weights": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]}},
            {"weights": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}},
            {"weights": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
            {"weights": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}},
            {"__metadata__": {"other": ""}},
            {},
        ],
    )
    def test_a_container_that_promises_what_it_has_not(self, saved, header):
        text = json.dumps(header).encode()
        content = len(text).to_bytes(8, "little") + text + bytes(8 if "weights" in header else 0)
        saved.write_bytes(gzip.compress(content))
        assert_refused(saved)


class TestArraysThatDoNotFit:
    def test_an_array_too_many_or_too_few(self, saved):
        whole = saved.read_bytes()
        for name in (
            "../../evil",
            "weights.0",
            "weights.more",
            "assignment",
            "correspondence.groups",
        ):
            change(saved, arrays={name: np.zeros(2)})
            assert_refused(saved)
            saved.write_bytes(whole)
        for name in ARRAYS.keys() - OPTIONAL:
            change(saved, without=[PATHS[name]])
            assert_refused(saved)
            saved.write_bytes(whole)

    @pytest.mark.parametrize("name", sorted(ARRAYS))
    def test_another_shape_or_type(self, saved, name):
        """An axis more, none at all, another type, or twice as many along an axis that is fixed."""
        array, before = unpack(saved)[1][PATHS[name]], saved.read_bytes()
        free = {"step", "kappa_draw", "silo_draw", "round", "check"}
        axes = [axis for axis, of in enumerate(ARRAYS[name].axes) if of not in free]
        longer = [np.repeat(array, 2, axis) for axis in axes]
        for wrong in (array[None], array.ravel()[0], array.astype(np.float16), *longer):
            change(saved, arrays={PATHS[name]: wrong})
            assert_refused(saved)
            saved.write_bytes(before)

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("weights", (0, 3)),
            ("silo_profiles.kappa", (20, 3)),
            ("silo_profiles.parameters", (51, 2, 3, 7)),
            (f"{TRACES}.movement", (2, 3)),
        ],
    )
    def test_lengths_that_cannot_be(self, saved, name, shape):
        change(saved, arrays={name: np.full(shape, 0.5, ARRAYS[name].dtypes[0])})
        assert_refused(saved)

    def test_a_silo_without_clusters(self, saved):
        lists = ("correspondence.groups.0", "correspondence.sizes.0")
        change(saved, arrays=dict.fromkeys(lists, np.zeros(0, np.int64)))
        assert_refused(saved, "cannot have the lengths")

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            *((name, (-0.5, 1.5, np.inf)) for name in SHARED),
            *((name, (-0.5, 1.5, np.inf, np.nan)) for name in SHARED.values()),
            ("silo_profiles.kappa", (0.0, -1.0, np.nan)),
            ("assignment.membership", (10_001,)),
            ("assignment.silos", (-1, 2)),
            ("correspondence.groups", (9,)),
            ("correspondence.confidence", (1.5,)),
            ("silo_weights.profiles", (-0.1,)),
        ],
    )
    def test_values_that_cannot_be(self, saved, name, values):
        array = unpack(saved)[1][PATHS[name]]
        for value in values:
            array.ravel()[7 % array.size] = value
            change(saved, arrays={PATHS[name]: array})
            assert_refused(saved, f"its array '{PATHS[name]}' has values from .*outside of")
