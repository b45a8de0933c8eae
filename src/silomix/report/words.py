"""The words of the first section that a new reader may not know, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.posterior import Posterior
    from silomix.study import Study

MATCHINGS = {
    "evidence": "clusters of different silos are joined when their rows are more probable under "
    "one profile than under several",
    "ball": "clusters are joined when one lies within a radius of the other, and the radius "
    "shrinks as rows become more",
    "divergence": "silos are matched one after the other to the mean of those before, so that rows "
    "stay as probable in the cluster they are given as in their own",
    "hungarian": "clusters are paired one to one with those of the silo that found most",
}
AGGREGATIONS = {
    "vcmc": "variational consensus Monte Carlo: weighted means of the silos' draws, with weights "
    "that maximise a lower bound of the evidence",
    "cmc": "consensus Monte Carlo: means of the silos' draws, weighted by inverse variances",
    "uniform": "means of the silos' draws, all of which count alike",
    "product": "the product of densities that are fitted to the silos' draws",
}
ORACLES = {
    "contingency": "each silo told once how often each of its distinct rows occurs",
    "federated": "each silo told sums of log-likelihoods and their gradients, whenever asked",
}
SWEEP = "one step of the sampler, in which every row and every parameter is drawn anew"
COMPONENT = "a place for a cluster; the mixture has more than needed, and spare ones empty out"
ENTROPY = (
    "how evenly the rows are spread over the components, −Σ share · log share; chains are compared "
    "in it, in the log-likelihood, in the largest weight and in the number of components that hold "
    "rows"
)
WEIGHT = (
    "its say in how large the clusters are: the factor of its draws in the weighted mean; those of "
    "all silos sum to one"
)
DRIFT = (
    "a cluster's profile may differ between silos, around the one that they share, by an amount "
    "that is learned for each variable, κ; a silo's rows are judged by its own profile"
)
POLISH = (
    "the clusters of all rows are drawn once more, in every silo, and the parameters from the "
    "counts of all: after enough rounds the draws no longer depend on where they began"
)


def words(posterior: Posterior) -> tuple[tuple[str, str], ...]:
    """Return the words that the section uses of this posterior, with their meanings."""
    return tuple(_words(posterior))


def _words(posterior: Posterior) -> Iterator[tuple[str, str]]:
    diagnostics = posterior.diagnostics
    yield "sweep", SWEEP
    yield "component", COMPONENT
    if diagnostics.silos or diagnostics.chains is not None:
        yield "allocation entropy", ENTROPY
    if posterior.study.strategy != "exact":
        yield from _consensus(posterior.study)
    if posterior.silo_weights is not None:
        yield "weight of a silo, λ", WEIGHT
    if posterior.silo_profiles is not None:
        yield "drift, κ", DRIFT
    if diagnostics.rounds:
        yield "polish, Gibbs round", POLISH


def _consensus(study: Study) -> Iterator[tuple[str, str]]:
    matching, aggregation = study.matching.method, study.aggregation
    yield f"matched by {matching}", MATCHINGS[matching]
    yield f"combined by {aggregation.method}", AGGREGATIONS[aggregation.method]
    if aggregation.method == "vcmc":
        oracle = aggregation.oracle
        yield f"oracle {oracle!r}", f"where the likelihood of all rows came from: {ORACLES[oracle]}"
