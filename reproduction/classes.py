"""Latent class analysis by maximum likelihood: our own EM, and StepMix where it is installed.

Both take all rows to one place, and have estimates without intervals. StepMix is no dependency:
`pip install stepmix` adds it to these scripts.
"""

from __future__ import annotations

import time
import warnings
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np

from silomix import rivals
from silomix.model.table import load

MOST_CLASSES = 10
STARTS = 10
PEER = "stepmix"


def installed(methods):
    """Return the methods that can run here; say so if StepMix is not one of them."""
    if PEER in methods and find_spec(PEER) is None:
        print("StepMix is left out: it is not installed (pip install stepmix)", flush=True)
        return [name for name in methods if name != PEER]
    return list(methods)


def best_classes(fit, table, *, silo, seed, threads):
    """Fit models of more and more classes; return the one of the smallest BIC.

    Parameters
    ----------
    fit : `our_classes` or `stepmix_classes`.
    """
    del threads
    best = None
    for classes in range(1, MOST_CLASSES + 1):
        found = fit(table, silo, classes=classes, seed=seed)
        if best is None or found.bic < best.bic:
            best = found
        elif found.weights.shape[1] > best.weights.shape[1] + 1:
            break
    return best


def our_classes(table, silo, *, classes, seed):
    """Run our EM from as many starts as StepMix."""
    return rivals.latent_classes(table, silo, classes=classes, starts=STARTS, seed=seed)


def stepmix_classes(table, silo, *, classes, seed):
    """Run StepMix (Morin et al., 2025) on the pooled rows; a missing cell is left out.

    Its steps, tolerance and starting values are its own.
    """
    from stepmix.stepmix import StepMix

    shard = load(table.drop(columns=silo))
    sizes = shard.schema.sizes
    codes = np.where(shard.codes < sizes, shard.codes, np.nan)
    model = StepMix(
        n_components=classes,
        measurement="categorical_nan" if np.isnan(codes).any() else "categorical",
        n_init=STARTS,
        random_state=seed,
        progress_bar=0,
    )
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # starts that end before they are at rest
        labels = model.fit(codes).predict(codes)
        bic = model.bic(codes)
    fitted = model.get_parameters()
    # each variable has as many columns as the one with the most levels
    wide = fitted["measurement"]["pis"].reshape(classes, len(sizes), -1)
    profiles = [wide[:, q, :size] for q, size in enumerate(sizes)]
    return SimpleNamespace(
        labels=labels,
        weights=fitted["weights"][None],
        probabilities=np.concatenate(profiles, axis=1)[None],
        n_clusters=len(np.unique(labels)),
        bic=bic,
        seconds={"local": time.process_time() - began},
        bytes_sent={
            name: {"rows": int(size) * shard.codes[0].nbytes}
            for name, size in table[silo].value_counts().items()
        },
    )
