"""Commands for draws that were made elsewhere: put silos' releases of them together."""
# annotations are evaluated here, since the options are made from them

from pathlib import Path
from typing import Any

from silomix.cli.command import command, settings_of
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
    force: bool = False,
    **settings: Any,
) -> Shown:
    """Put together mixtures that silos fitted elsewhere, from their release folders.

    Parameters
    ----------
    folders : One of each silo, as release --draws wrote it.
    aggregation : product, cmc or uniform.
    alpha : Concentration of the weights' prior in the silos (default 1).

    Examples
    --------
    silomix combine release-of-north release-of-south --out results
    """
    check_free(posterior_files(out), force=force)
    posterior = combine_releases(folders, aggregation=aggregation, **settings)
    written = write_posterior(out, posterior)
    record = posterior_record(posterior) | {"files": written}
    return Shown(record, posterior_view(posterior), f"Results: {out}")
