"""Estimator in scikit-learn's interface for `silomix.fit`; extra "sklearn"."""

from __future__ import annotations

from inspect import signature
from numbers import Integral
from typing import Any, Self

import narwhals as nw
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from silomix import api
from silomix.errors import MissingDependency, SettingsError
from silomix.kernels.arrays import Array, Floats, Ints
from silomix.study.keywords import meant, show_keywords

try:
    from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
    from sklearn.utils import Tags, check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data

except ImportError:
    raise MissingDependency("FederatedMixture needs scikit-learn", extra="sklearn") from None


OWN = {"table", "silo", "components", "seed", "progress", "variables", "frequency", "checkpoint"}
# Parameters that go to `silomix.fit` as they are, unless they are None.
PASSED_ON = tuple(name for name in signature(api.fit).parameters if name not in OWN)


class FederatedMixture(TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Bayesian clustering of rows, within and across silos.

    Text values are levels, and so are numbers with at most ten distinct values, all whole; other
    numbers are normal within a cluster. `kinds` and `bins` override this, by column; those of an
    array are called x0, x1 and so on. NaN and None are missing cells. A level that `fit` has not
    seen is refused by `predict`.

    Parameters
    ----------
    components : the most clusters a silo can have, 15 by default; choose more than you expect:
        empty ones do no harm.
    silo : the column of X that names each row's silo: a name for a frame, an index for an
        array. Left out, all rows are one silo. `predict` needs the column too; rows of a silo
        that `fit` has not seen get the weights over all silos.
    random_state : a seed, or a `RandomState` to draw one from; None is 0.
    verbose : whether to show progress on a terminal.
    settings : the other keywords of `silomix.fit`; None leaves them to the preset, or to its
        defaults.

    Attributes
    ----------
    posterior_ : the `silomix.posterior.Posterior`.
    labels_ : (row,), the cluster of each row of X, from 0, the largest cluster first.
    n_clusters_ : number of clusters.
    n_features_in_ : columns of X, that of the silos included.
    feature_names_in_ : their names, if X is a frame with names.

    Examples
    --------
    >>> model = silomix.FederatedMixture(
    ...     components=8, silo="silo", iterations=1000, random_state=1
    ... ).fit(table)
    >>> model.n_clusters_, model.labels_.shape
    (5, (400,))
    >>> model.predict_proba(table.head(3)).shape
    (3, 5)
    """

    def __init__(
        self,
        components: int | None = None,
        *,
        silo: str | int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
        **settings: Any,
    ) -> None:
        self.components = components
        self.silo = silo
        self.random_state = random_state
        self.verbose = verbose
        for name in PASSED_ON:
            setattr(self, name, settings.pop(name, None))
        parameters = ("components", "silo", "random_state", "verbose", *PASSED_ON)
        if settings:
            unknown = ", ".join(f"{name}{meant(name, parameters)}" for name in settings)
            raise TypeError(f"FederatedMixture has no parameter {unknown}")

    # scikit-learn reads the parameters from here
    show_keywords(__init__, dict.fromkeys(PASSED_ON))

    def fit(self, X: Any, y: object = None) -> Self:  # noqa: ARG002
        """Find the clusters of the rows.

        Parameters
        ----------
        X : a frame, with the silo column if there is one, or a two-dimensional array.
        y : ignored.
        """
        table, silo = _read(self, X, reset=True)
        seed = self.random_state or 0
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(2**31 - 1)
        settings = {name: getattr(self, name) for name in ("components", *PASSED_ON)}
        self.posterior_ = api.fit(
            table,
            silo=silo,
            seed=int(seed),
            progress=None if self.verbose else False,
            **{name: value for name, value in settings.items() if value is not None},
        )
        self.labels_ = self.posterior_.labels
        self.n_clusters_ = self.posterior_.n_clusters
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Return P(cluster | row), averaged over draws: (row, cluster)."""
        check_is_fitted(self)
        table, silo = _read(self, X, reset=False)
        return self.posterior_.membership(table, silo, threads=self.threads)

    def predict(self, X: Any) -> Ints:
        """Return the most probable cluster of each row: (row,)."""
        return self.predict_proba(X).argmax(axis=1)

    def transform(self, X: Any) -> Floats:
        """Return P(cluster | row) as features: (row, cluster)."""
        return self.predict_proba(X)

    def score(self, X: Any, y: ArrayLike | None = None) -> float:  # noqa: ARG002
        """Return the mean over rows of the log predictive density."""
        check_is_fitted(self)
        table, silo = _read(self, X, reset=False)
        density = self.posterior_.log_predictive_density(table, silo, threads=self.threads)
        return float(density.mean())

    def get_feature_names_out(self, input_features: object = None) -> Array:  # noqa: ARG002
        """Return the names of what `transform` returns: (cluster,); the argument is ignored."""
        check_is_fitted(self)
        names = [f"cluster{cluster}" for cluster in range(self.n_clusters_)]
        return np.array(names, dtype=object)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        return tags


def _read(estimator: FederatedMixture, X: Any, *, reset: bool) -> tuple[Any, str | None]:
    """Check the columns of X as scikit-learn does; return a frame, and its silo column if any."""
    silo = estimator.silo
    if nw.dependencies.is_into_dataframe(X):
        checked = X if reset else _with_unused(estimator, X)
        validate_data(estimator, checked, reset=reset, skip_check_array=True)
        if silo is None or isinstance(silo, str):
            return X, silo
        raise SettingsError(f"silo is {silo!r} and X is a frame: give the column's name")
    least = 2 if reset else 1
    allowed: Any = {"dtype": None, "ensure_all_finite": "allow-nan", "ensure_min_samples": least}
    array = validate_data(estimator, X, reset=reset, **allowed)
    table = pd.DataFrame({f"x{place}": column for place, column in enumerate(array.T)})
    if silo is None:
        return table, None
    n = len(table.columns)
    if isinstance(silo, Integral) and 0 <= silo < n:
        return table, f"x{int(silo)}"
    raise SettingsError(
        f"silo is {silo!r} and X is an array of {n} columns: give the index of one; in a pipeline, "
        'set_output(transform="pandas") on the earlier steps keeps names'
    )


def _with_unused(estimator: FederatedMixture, X: Any) -> Any:
    """The frame with the columns that `fit` left out, which new rows need not have."""
    frame, names = nw.from_native(X), getattr(estimator, "feature_names_in_", ())
    variables = estimator.posterior_.study.table_schema.variables
    used = {estimator.silo, *(variable.column for variable in variables)}
    unused = [name for name in names if name not in used and name not in frame.columns]
    if not unused:
        return X
    whole = frame.with_columns(nw.lit(None).alias(name) for name in unused)
    # what fit has not seen goes last, for scikit-learn to name
    expected = [name for name in names if name in whole.columns]
    return whole.select(dict.fromkeys([*expected, *whole.columns])).to_native()
