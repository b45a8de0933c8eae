from __future__ import annotations

import numpy as np
import pytest
from cases.families import Asked
from numpy.testing import assert_allclose

from silomix.families.gaussian import Gaussian
from silomix.model.schema import Variable


@pytest.mark.parametrize("kappa", [50.0, np.inf])
def test_a_cluster_without_rows_says_nothing_though_its_sums_are_not_quite_zero(kappa):
    family = Asked(Gaussian((Variable("x", kind="gaussian"),)))
    parameters = np.array([[[0.3, 0.8]]])  # (chain, cluster, parameter)
    sums = np.array([[[[0.0, -7.7e-8, 0.0]]], [[[20.0, 5.0, 18.0]]]])  # the first silo has none
    value = family.log_marginal(sums, parameters, np.array([kappa]))
    assert_allclose(value[0], 0.0, atol=1e-12)
    kappas = np.array([[kappa]])
    rng = np.random.default_rng(0)
    both = family.shared_posterior(sums, parameters, kappas, rng)
    assert_allclose(both, family.shared_posterior(sums[1:], parameters, kappas, rng), rtol=1e-6)
    current = np.zeros((1, 1), dtype=np.int64)
    drawn = [
        family.draw_kappa(part, parameters, current, np.zeros(1), np.random.default_rng(1))
        for part in (sums, sums[1:])
    ]
    assert drawn[0] == drawn[1]
