"""Commands for draws that were made elsewhere: put silos' releases of them together."""
# annotations are evaluated here, since the options are made from them

from pathlib import Path
from typing import Any

import typer

from silomix.cli.command import by_column, command, settings_of
from silomix.cli.terminal import Shown
from silomix.report.results_folder import check_free, posterior_files, write_posterior
from silomix.report.summary import posterior_record, posterior_view
from silomix.transports.combination import combine_releases


@command(settings=settings_of("matching", "drift", "alpha", "seed", "title"))
def combine_command(
    folders: list[Path],
    *,
    out: Path,
    aggregation: str = "product",
    transform: list[str] | None = None,
    prior: list[str] | None = None,
    force: bool = False,
    **settings: Any,
) -> Shown:
    """Combine mixtures that silos fitted elsewhere, from their release folders.

    Parameters
    ----------
    folders : One from each silo, written by release --draws.
    aggregation : product, cmc or uniform.
    transform : sd=log, logit or none; by the range of the draws if left out. Repeatable.
    prior : sd=0,1.5, mean and sd of the silos' prior, transformed; wide if left out. Repeatable.
    alpha : Concentration of the weights' prior in the silos (default 1).

    Examples
    --------
    silomix combine release-of-north release-of-south --out results
    """
    check_free(posterior_files(out), force=force)
    settings["transforms"] = by_column("--transform", transform)
    settings["prior"] = {n: _pair(law) for n, law in by_column("--prior", prior).items()}
    posterior = combine_releases(folders, aggregation=aggregation, **settings)
    written = write_posterior(out, posterior)
    record = posterior_record(posterior) | {"files": written}
    return Shown(record, posterior_view(posterior), f"Results: {out}")


def _pair(law: str) -> list[float]:
    """Return the two numbers in a prior's MEAN,SD."""
    try:
        mean, sd = map(float, law.split(","))
    except ValueError:
        text = f"{law!r} is not MEAN,SD, such as 0,1.5"
        raise typer.BadParameter(text, param_hint="--prior") from None
    return [mean, sd]
