"""Other programs: how each is run on a table, and the numbers it gave when it was last run."""

from __future__ import annotations

import io
import shutil
import subprocess
import warnings
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
NUMBERS = HERE / "numbers.csv"
KEYS = ["table", "kind", "classes", "program"]
COLUMNS = [*KEYS, "version", "script", "quantity", "cluster", "value", "error"]
PACKAGES = {
    "poLCA": "poLCA",
    "mclust": "mclust",
    "flexmix": "flexmix",
    "telescope": "telescope",
    "BayesLCA": "BayesLCA",
    "JAGS": "rjags",
}
"""Programs in R, each run by `<name in small letters>.R`, and the package they need."""
STARTS = 20


@cache
def installed(program):
    """Tell whether a program can be run here."""
    if program not in PACKAGES:
        return find_spec("stepmix" if program == "StepMix" else "sklearn") is not None
    if shutil.which("Rscript") is None:
        return False
    asked = f"quit(status = !requireNamespace('{PACKAGES[program]}', quietly = TRUE))"
    return subprocess.run(["Rscript", "-e", asked], capture_output=True).returncode == 0


def run(program, table, kind, classes, units):
    """Run a program; return the lines of `NUMBERS` that it gives, without the keys.

    Parameters
    ----------
    units : location and scale of each variable of numbers, in which silomix's prior is stated.
    """
    if program not in PACKAGES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # starts that end before they are at rest
            if program == "StepMix":
                lines = pd.DataFrame(run_stepmix(table, classes))
            else:
                lines = pd.DataFrame(run_sklearn(program, table, kind, classes, units))
        found = version("stepmix" if program == "StepMix" else "scikit-learn")
        return lines.assign(version=found, script="programs.py", error=np.nan)
    is_scaled = program == "JAGS" and kind in {"gaussian", "gaussian-full", "student-t"}
    locations, scales = np.array(units).reshape(-1, 2).T
    if is_scaled:
        table = (table - locations) / scales
    script = f"{program.lower()}.R"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        table.to_csv(path, index=False)
        words = [path, classes, kind, ",".join(map(str, locations))]
        done = subprocess.run(
            ["Rscript", HERE / script, *map(str, words)], capture_output=True, text=True
        )
    if done.returncode:
        raise SystemExit(f"{script} failed on a table of {len(table)} rows:\n{done.stderr}")
    names = ["quantity", "cluster", "value", "error"]
    lines = pd.read_csv(io.StringIO(done.stdout), names=names, dtype={"value": str})
    is_version = lines["quantity"] == "version"
    (found,) = lines.loc[is_version, "value"]
    lines = lines[~is_version].astype({"value": float}).assign(version=found, script=script)
    if is_scaled:
        is_density = lines["quantity"] == "mean log likelihood"
        lines.loc[is_density, "value"] -= len(table) * np.log(scales).sum()
    return lines


def as_codes(table):
    """Return the levels of each variable, and each cell's place among them, nan if missing."""
    levels = [sorted(table[name].dropna().unique()) for name in table]
    codes = [table[name].map(dict(zip(own, range(len(own)), strict=True)))
             for name, own in zip(table, levels, strict=True)]  # fmt: skip
    return levels, np.column_stack(codes).astype(float)


def run_stepmix(table, classes):
    """Yield the numbers of StepMix (Morin et al., 2025)."""
    from stepmix.stepmix import StepMix

    levels, codes = as_codes(table)
    fit = StepMix(
        classes, n_init=STARTS, random_state=1, abs_tol=1e-10, rel_tol=0, max_iter=20_000,
        measurement="categorical_nan" if np.isnan(codes).any() else "categorical", progress_bar=0,
    ).fit(codes)  # fmt: skip
    found = fit.get_parameters()
    yield {"quantity": "log likelihood", "value": fit.score(codes) * len(table)}
    # each variable has as many columns as the one with the most levels
    profiles = found["measurement"]["pis"].reshape(classes, len(levels), -1)
    for k in range(classes):
        yield {"quantity": "weight", "cluster": k + 1, "value": found["weights"][k]}
        for q, name in enumerate(table):
            for place, level in enumerate(levels[q]):
                quantity = f"{name}={level}"
                yield {"quantity": quantity, "cluster": k + 1, "value": profiles[k, q, place]}


def run_sklearn(program, table, kind, classes, units):
    """Yield the numbers of scikit-learn: a maximum, or a variational posterior.

    The latter is under silomix's prior.
    """
    from sklearn import mixture

    shape = {"gaussian": "diag", "gaussian-full": "full"}[kind]
    cells = table.to_numpy(float)
    settings = {"tol": 1e-10, "max_iter": 20_000, "n_init": STARTS, "random_state": 1}
    settings |= {"n_components": classes, "covariance_type": shape}
    if program == "scikit-learn":
        fit = mixture.GaussianMixture(**settings).fit(cells)
        yield {"quantity": "log likelihood", "value": fit.score(cells) * len(cells)}
    else:
        locations, scales = np.array(units).T
        fit = mixture.BayesianGaussianMixture(
            **settings, weight_concentration_prior_type="dirichlet_distribution",
            weight_concentration_prior=0.5, mean_precision_prior=0.01, mean_prior=locations,
            degrees_of_freedom_prior=len(scales) + 2, covariance_prior=np.diag(scales**2) / 2,
        ).fit(cells)  # fmt: skip
    for k in range(classes):
        yield {"quantity": "weight", "cluster": k + 1, "value": fit.weights_[k]}
        of_k = fit.covariances_[k] if shape == "full" else np.diag(fit.covariances_[k])
        for i, name in enumerate(table):
            yield {"quantity": f"mean {name}", "cluster": k + 1, "value": fit.means_[k, i]}
            for j, other in enumerate(table.columns[: i + 1]):
                if i == j or shape == "full":
                    quantity = f"covariance {name} {other}"
                    yield {"quantity": quantity, "cluster": k + 1, "value": of_k[i, j]}
