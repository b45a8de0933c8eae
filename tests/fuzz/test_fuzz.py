"""Files made wrong in many ways: refused in a sentence, or as good as any other.

Studies, policies, saved posteriors, tables, and draws made elsewhere; `messages/test_fuzz.py` has
messages, and `test_release_folder.py` releases. A few hundred of each are always tried. `make slow`
tries 120,000 in all, in numbered blocks of a thousand: `pytest -m slow -k "study-block7-"` tries
one again.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import signal
import traceback
import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
import tomli_w
import xarray as xr
from cases.posteriors import SCHEMA, SILOS, make_posterior, pack, unpack, with_drift
from federation.mutations import (
    CELLS,
    JUNK,
    NUMBERS,
    edit_csv,
    edit_tree,
    extend,
    flip_bits,
    pick,
    splice,
    time_limit,
    truncate,
    wrong_array,
)

from silomix.errors import DataError, FileError, SettingsError
from silomix.model.table import load as load_table
from silomix.posterior import load as load_posterior
from silomix.study import make_study, read_study, write_study
from silomix.study.policy import PRESETS, read_policy, write_policy
from silomix.transports.combination import combine

SECONDS = 10.0
"""For one case; a few thousandths are usual."""
BLOCK = 1000
LONGEST_MESSAGE = 20_000

RAW = [flip_bits, truncate, extend, splice]


def refused(error):
    """Hold a refusal to what a person can read."""
    text = str(error)
    assert text.replace("\n", "").isprintable()
    assert len(text) < LONGEST_MESSAGE


def plain(value):
    """Return what TOML can say of a tree of values, the rest as text."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value if isinstance(value, str | bool | int | float) else str(value)


def edit_toml(text, rng):
    """Break TOML as text: keys twice, depth, many digits, tables again, any character."""
    place = int(rng.integers(len(text)))
    deep = pick(rng, [10, 100, 30_000])
    lines = text.split("\n")
    line = int(rng.integers(len(lines)))
    return pick(
        rng,
        [
            "\n".join(lines[:line] + lines[line + 1 :]),
            "\n".join(lines[: line + 1] + lines[line:]),
            "\n".join([*lines[:line], "[" + pick(rng, ["limits", "exchanges", "a", ""]) + "]",
                       *lines[line:]]),
            text + "\na" + ".a" * deep + " = 1\n",
            text + "\n['a'" + ". 'a'" * deep + "]\n",
            "a = " + "[" * deep + "\n" + text,
            "a = " + "{a = " * deep + "\n" + text,
            text.replace(" = ", " = " + "7" * deep, 1),
            text.replace(" = ", " = " + pick(rng, ["nan", "inf", "1e999", "0x_", "1979-05-27"]), 1),
            text[:place] + pick(rng, list("{}[]\"'=#\\\x00é.,-\n\r")) + text[place:],
            text[:place] + text[place + 1 :],
            text[:place] + pick(rng, CELLS) + text[place:],
            "\ufeff" + text,
            "",
        ],
    )  # fmt: skip


def wrong_settings(document, text, rng):
    """Return the bytes of a settings file made wrong."""
    kind = int(rng.integers(5))
    if kind == 0:
        return pick(rng, RAW)(text.encode(), [text.encode()], rng)
    if kind == 1:
        return edit_toml(text, rng).encode("utf-8", "surrogatepass")
    changed = json.loads(json.dumps(document))
    edit_tree(changed, rng)
    return tomli_w.dumps(plain(changed)).encode("utf-8", "surrogatepass")


@cache
def good_studies():
    settings = [{}, {"preset": "files"}, {"strategy": "exact", "title": "Zoë's"}]
    return [make_study(SCHEMA, SILOS, seed=3, **some) for some in settings]


def attack_settings(folder, number, good, read, write):
    rng = np.random.default_rng([number, len(good)])
    record = pick(rng, good)
    path = folder / "settings.toml"
    text = write(record, path).read_text(encoding="utf-8")
    path.write_bytes(wrong_settings(record.model_dump(mode="json"), text, rng))
    try:
        with time_limit(SECONDS):
            found = read(path)
    except SettingsError as error:
        refused(error)
        return False
    assert read(write(found, path)) == found
    return True


def attack_study(folder, number):
    return attack_settings(folder, number, good_studies(), read_study, write_study)


def attack_policy(folder, number):
    return attack_settings(folder, number, list(PRESETS.values()), read_policy, write_policy)


@cache
def good_posteriors():
    rng = np.random.default_rng(5)
    whole = make_posterior(rng, draws=12, rows=4)
    bare = make_posterior(rng, draws=3, clusters=1, assignment=None, correspondence=None)
    return [whole, bare, with_drift(whole, rng, silo_draws=5)]


def wrong_content(document, arrays, rng):
    """Return the document and the arrays of a saved posterior made wrong in one of them."""
    name = pick(rng, list(arrays))
    if (kind := int(rng.integers(4))) == 0:
        edit_tree(document, rng)
    elif kind == 1:
        arrays[name] = wrong_array(arrays[name], rng)
    elif kind == 2:
        other = pick(rng, ["more", "silo_profiles.kappa", "diagnostics.elbo", "../x"])
        arrays[other] = arrays[name]
    else:
        del arrays[name]
    return json.dumps(document), arrays


def attack_posterior(folder, number):
    rng = np.random.default_rng([number, 7])
    path = pick(rng, good_posteriors()).save(folder / "posterior.silomix")
    kind = rng.random()
    if kind < 0.15:
        path.write_bytes(pick(rng, RAW)(path.read_bytes(), [path.read_bytes()], rng))
    elif kind < 0.3:  # the container inside, its checksum right
        inside = gzip.decompress(path.read_bytes())
        path.write_bytes(gzip.compress(pick(rng, RAW)(inside, [inside], rng), mtime=0))
    else:
        pack(path, *wrong_content(*unpack(path), rng))
    try:
        with time_limit(SECONDS):
            found = load_posterior(path)
    except FileError as error:
        refused(error)
        return False
    with np.errstate(all="raise", under="ignore"):
        use_posterior(found, folder, thorough=number % 20 == 0)
    return True


def use_posterior(posterior, folder, *, thorough):
    """Do with it what people do: no part of it may be such that this fails."""
    assert str(posterior)
    assert posterior.diagnostics.verdict
    assert len(posterior.cluster_sizes()) == posterior.n_clusters
    posterior.profiles()
    if posterior.correspondence is not None:
        posterior.correspondence_frame()
    if posterior.silo_profiles is not None:
        posterior.drift()
    load_posterior(posterior.save(folder / "again.silomix"))
    if thorough:
        posterior.report(folder / "report.html")


@cache
def good_tables():
    rng = np.random.default_rng(6)
    frame = pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], 30),
            "stage": rng.choice(["I", "II", "=1+1"], 30),
            "Zoë's, code": rng.choice(["01", "1", None], 30),
            "number": rng.integers(0, 3, 30),
        }
    )
    text = frame.to_csv(index=False)
    parquet = io.BytesIO()
    frame.astype({"sex": "category"}).to_parquet(parquet)
    return {
        "table.csv": text.encode(),
        "table.tsv": text.replace(",", "\t").encode(),
        "table.csv.gz": gzip.compress(text.encode(), mtime=0),
        "table.parquet": parquet.getvalue(),
    }


def attack_table(folder, number):
    rng = np.random.default_rng([number, 8])
    name = pick(rng, [*good_tables(), "table.csv", "table.parquet"])
    content = good_tables()[name]
    if rng.random() < 0.5 and name != "table.parquet":
        text = gzip.decompress(content) if name.endswith("gz") else content
        wrong = edit_csv(text.decode(), rng).encode("utf-8", "surrogatepass")
        content = gzip.compress(wrong, mtime=0) if name.endswith("gz") else wrong
    else:
        content = pick(rng, RAW)(content, list(good_tables().values()), rng)
    path = folder / name
    path.write_bytes(content)
    try:
        with time_limit(SECONDS):
            shard = load_table(path)
    except DataError as error:
        refused(error)
        return False
    assert (shard.codes <= shard.schema.sizes).all()
    return True


@cache
def good_draws():
    """Draws of a mixture as arrays, and as a netCDF file has them."""
    rng = np.random.default_rng(9)
    weights = rng.dirichlet([50, 30], (2, 15))
    rate = np.exp(0.1 * rng.standard_normal((2, 15, 2)))
    means = np.array([[0.0, 0.0], [5.0, 1.0]]) + 0.1 * rng.standard_normal((2, 15, 2, 2))
    group = xr.Dataset(
        {
            "weights": (("chain", "draw", "k"), weights),
            "mu": (("chain", "draw", "k", "of"), means),
            "rate": (("chain", "draw", "k"), rate),
        },
        coords={"of": ["age", "dose"]},
    )
    return {"weights": weights, "parameters": {"mu": means, "rate": rate}}, group


@cache
def good_files(folder):
    """Return the bytes of netCDF files: with a group, without, compressed."""
    _, group = good_draws()
    tree, paths = xr.DataTree.from_dict({"/posterior": group}), [folder / f"{n}.nc" for n in "abc"]
    tree.to_netcdf(paths[0])
    group.to_netcdf(paths[1], engine="h5netcdf")
    squeezed = {name: {"zlib": True, "shuffle": True} for name in group.data_vars}
    group.to_netcdf(paths[2], engine="h5netcdf", encoding=squeezed)
    assert all(try_draws({"north": path}) for path in paths)  # imports what children need, too
    return [path.read_bytes() for path in paths]


def wrong_group(group, rng):
    """Return a group of draws with other dimensions, types, names or values."""
    name = pick(rng, [*group.data_vars, *group.coords])
    dims = list(group[name].dims)
    return pick(
        rng,
        [
            lambda: group.drop_vars(name),
            lambda: group.rename({name: pick(rng, ["weights ", "posterior", "chain_", "é\u202e"])}),
            lambda: group.isel({pick(rng, dims): 0}),
            lambda: group.isel({pick(rng, dims): slice(0, int(rng.integers(3)))}),
            lambda: group.transpose(*rng.permutation(list(group.dims))),
            lambda: group.rename_dims({pick(rng, dims): "draws"}),
            lambda: group.assign(
                {name: group[name].astype(pick(rng, ["U9", "M8[ns]", "i1", "f4"]))}
            ),
            lambda: group.assign({name: group[name].astype("f8") * pick(rng, [*NUMBERS])}),
            lambda: group.assign({name: pick(rng, [0.0, "text", np.nan])}),
            lambda: group.assign_attrs({"units": pick(rng, ["days since 1", "s", 3])}),
        ],
    )()


def attack_netcdf(folder, number):
    rng = np.random.default_rng([number, 10])
    path, (_, group) = folder / "draws.nc", good_draws()
    files = good_files(folder)
    path.unlink(missing_ok=True)
    if rng.random() < 0.3:
        try:
            wrong_group(group, rng).to_netcdf(path, engine="h5netcdf")
        except Exception:  # no netCDF file is so wrong
            return False
    else:
        path.write_bytes(pick(rng, [*RAW, flip_bits, flip_bits])(pick(rng, files), files, rng))
    return in_a_child(lambda: try_draws({"north": path}), folder / "error.txt")


def in_a_child(run, log):
    """Run in a process of its own: from one damaged file in thousands, HDF5 itself never returns.

    What Python raises there is raised here; a library that is killed or crashes is not ours.
    """
    child = os.fork()
    if not child:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            taken = run()
        except BaseException:
            log.write_text(traceback.format_exc())
            os._exit(2)
        os._exit(taken)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code < 2, log.read_text()
    return code == 1


def wrong_mapping(draws, rng):
    """Change one place of a silo's draws: a value, an array's type, shape or numbers, or a key."""
    place, key = draws, pick(rng, ["weights", "parameters"])
    if isinstance(place[key], dict) and rng.random() < 0.8:
        place = place[key]
        key = pick(rng, list(place))
    kind, value = int(rng.integers(6)), place[key]
    if kind == 0:
        del place[key]
    elif kind == 1:
        place[pick(rng, [0, None, "names", "", "a\nb", (1, 2), "mu[0]"])] = place.pop(key)
    elif kind == 2 or isinstance(value, dict):
        place[key] = copy.deepcopy(pick(rng, [*JUNK, {}, 1j, 10**400, object(), pd.NaT]))
    elif kind == 3:
        place[key] = wrong_array(value, rng)
    elif kind == 4:
        place[key] = pick(rng, [value.tolist(), value[..., None], value[0], value.ravel(), value.T])
    else:
        place[key] = value.astype(pick(rng, ["c16", "U5", "O", "i1", "?", "f2", "M8[s]"]))


def attack_combine(_, number):
    rng = np.random.default_rng([number, 11])
    good, _ = good_draws()
    silos = {name: copy.deepcopy(good) for name in ("north", "south")}
    how = {
        "rows": {"north": 80, "south": 60},
        "transforms": {"mu[0]": "none", "rate": "log"},
        "prior": {"rate": (0.0, 1.0)},
    }
    for one in silos.values():
        if rng.random() < 0.3:
            stacked = np.concatenate(
                [good["parameters"]["mu"], good["parameters"]["rate"][..., None]], -1
            )
            one |= {"parameters": stacked, "names": ["mu[0]", "mu[1]", "rate"]}
    target = pick(rng, ["draws", "draws", "draws", *how])
    if target == "draws":
        wrong_mapping(silos[pick(rng, [*silos])], rng)
    elif rng.random() < 0.2:
        how[target] = copy.deepcopy(pick(rng, JUNK))
    else:
        key = pick(rng, [*how[target], "west", None, 3])
        how[target][key] = copy.deepcopy(
            pick(rng, [*JUNK, (0, 0), ("a", 1), (0, 10**400), np.ones(2)])
        )
    return try_draws(silos, **how)


def try_draws(draws, **how):
    """Take draws as `combine` does, up to where the coordinator has releases."""
    try:
        with time_limit(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            combine(draws, **how)
    except (DataError, SettingsError) as error:
        refused(error)
        return False
    return True


ATTACKS = {
    "netcdf": (attack_netcdf, 10),
    "combine": (attack_combine, 10),
    "study": (attack_study, 15),
    "policy": (attack_policy, 15),
    "posterior": (attack_posterior, 10),
    "table": (attack_table, 10),
}
"""The attack on one numbered input, and how many blocks of them `make slow` tries."""


def attack(kind, first, last, folder):
    """Try the inputs of these numbers; return how many were as good as any other."""
    run, _ = ATTACKS[kind]
    taken = 0
    for number in range(first, last):
        try:
            taken += run(folder, number)
        except Exception as error:
            error.add_note(f"{kind} number {number}")
            raise
    return taken


@pytest.mark.filterwarnings("ignore::silomix.errors.DataWarning")
@pytest.mark.parametrize("kind", ATTACKS)
def test_a_few_hundred(kind, tmp_path):
    taken = attack(kind, 0, 200, tmp_path)
    assert 0 < taken < 170


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::silomix.errors.DataWarning")
@pytest.mark.parametrize(
    ("kind", "block"),
    [
        pytest.param(kind, block, id=f"{kind}-block{block}-")
        for kind, (_, blocks) in ATTACKS.items()
        for block in range(1, blocks + 1)
    ],
)
def test_a_thousand(kind, block, tmp_path):
    assert attack(kind, BLOCK * block, BLOCK * (block + 1), tmp_path) < BLOCK
