"""The commands of a live federation on NVIDIA FLARE: `silomix flare ...`."""
# annotations are evaluated here, since typer builds the options from them

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from silomix import options as opt
from silomix.cli.examples import EXAMPLES, epilog
from silomix.cli.once import OnceCommand
from silomix.progress import showing
from silomix.report.results_folder import check_free, posterior_files
from silomix.report.results_folder import write_posterior as write_results
from silomix.report.summary import posterior_record, posterior_view
from silomix.study import digest, read_study
from silomix.terminal import explaining, show
from silomix.transports.flare import enrol
from silomix.transports.flare.job import Manners
from silomix.transports.flare.kit import (
    ServerSettings,
    SiteSettings,
    kit_folder,
    site_name,
    write_json,
)
from silomix.transports.flare.launch import environment, server_command, site_command
from silomix.transports.flare.outcome import Outcome
from silomix.transports.flare.provision import (
    ADMIN,
    SERVER,
    provision,
    require_flare,
    root_fingerprint,
)
from silomix.transports.flare.session import run_live, stop_all
from silomix.transports.flare.site import open_site, without

RUN_FILE = "run.json"

StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file, study.toml.")]
Kit = Annotated[Path, typer.Argument(metavar="KIT", help="The start-up kit of this process.")]
AdminKit = Annotated[Path, typer.Option("--admin", help="The start-up kit `admin`.")]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="NAME",
        help="Go on without this silo: another study, in which every silo left has to agree.",
    ),
]


def provision_command(
    study: StudyPath,
    *,
    out: Annotated[Path, typer.Option("--out", help="A new folder for the start-up kits.")],
    host: Annotated[
        str, typer.Option("--host", help="Name by which the sites reach the server.")
    ] = "localhost",
    port: Annotated[int, typer.Option("--port", help="Where the server listens.")] = 8002,
    by_request: opt.ByRequest = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Make certificates and a start-up kit for the server, each silo and the coordinator."""
    with explaining(debug=debug):
        silos = read_study(study).silos
        provision(silos, out, host=host, port=port, by_request=by_request)
        kits = [str(out / name) for name in (SERVER, ADMIN, *(() if by_request else silos))]
        record: dict[str, object] = {"kits": kits}
        last = "\n".join(kits)
        told = (
            f"{len(kits)} kits. Hand each silo its own, by a channel you trust: it holds a private "
            "key. Keep authority/ to yourself."
        )
        if by_request:
            record["fingerprint"] = fingerprint = root_fingerprint(out)
            told = (
                "The coordinator's kits. The silos make their own keys: sign their requests with "
                "authority/, keep it to yourself, and tell them its fingerprint."
            )
            last += f"\nFingerprint of the authority: {fingerprint}"
        show(record, Text(told), as_json=as_json, last=last)


def request_command(
    study: StudyPath,
    *,
    silo: opt.Enrolling,
    out: opt.RequestOut,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Make this silo's private key, which stays here, and a request for its certificate."""
    with explaining(debug=debug):
        enrol.check_roster(read_study(study), silo)
        made = enrol.request_certificate(silo, out)
        told = (
            "Send the request to whoever signs, and tell them the fingerprint of the key by "
            "another channel. The key stays here."
        )
        record = {"request": str(made.file), "fingerprint": made.fingerprint}
        last = f"Request: {made.file}\nFingerprint of the key: {made.fingerprint}"
        show(record, Text(told), as_json=as_json, last=last)


def sign_command(
    study: StudyPath,
    request: opt.RequestFile,
    *,
    silo: opt.Enrolling,
    authority: opt.Authority,
    fingerprint: opt.KeyFingerprint,
    out: opt.SignedOut,
    force: opt.Force = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Sign a silo's request, after a check that it is the silo's."""
    with explaining(debug=debug):
        enrol.check_roster(read_study(study), silo)
        check_free([out], force=force)
        made = enrol.sign_request(request, authority, silo, key=fingerprint, out=out, again=force)
        told = (
            f"Send it back to {silo}, and tell them the fingerprint of the authority by another "
            "channel."
        )
        record = {"signed": str(made.file), "fingerprint": made.fingerprint}
        last = f"Signed: {made.file}\nFingerprint of the authority: {made.fingerprint}"
        show(record, Text(told), as_json=as_json, last=last)


def enrol_command(
    signed: opt.SignedFile,
    *,
    request: opt.RequestFolder,
    fingerprint: opt.AuthorityFingerprint,
    out: opt.KitOut,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Make this silo's start-up kit from its own key and what was signed."""
    with explaining(debug=debug):
        made = enrol.enrol_site(signed, request, out, authority=fingerprint)
        told = (
            f"The kit of {made.silo}, which calls the server {made.server}. It has a copy of the "
            f"key: {request} is not needed any more."
        )
        record = {"kit": str(made.kit), "silo": made.silo, "server": made.server}
        show(record, Text(told), as_json=as_json, last=f"Kit: {made.kit}")


def server_command_line(
    kit: Kit,
    *,
    journals: Annotated[
        Path | None,
        typer.Option("--journals", help="Folder of the answers; in the kit by default."),
    ] = None,
    debug: opt.Debug = False,
) -> None:
    """Run the coordinator's server, until it is stopped."""
    with explaining(debug=debug):
        require_flare()
        folder = kit_folder(kit, "server")
        place = journals.resolve() if journals else folder / "journals"
        _become(server_command(folder, ServerSettings(str(place))))


def site_command_line(
    kit: Kit,
    *,
    data: Annotated[Path, typer.Option("--data", help="The silo's table.")],
    study: Annotated[Path, typer.Option("--study", help="The study it takes part in.")],
    policy: Annotated[
        str, typer.Option("--policy", help="Its policy file, or the word of a preset.")
    ] = "default",
    store: Annotated[
        Path | None,
        typer.Option("--store", help="Folder of what it keeps; in the kit by default."),
    ] = None,
    silo_column: Annotated[
        str | None,
        typer.Option("--silo-column", help="Column that says whose row it is, if there is one."),
    ] = None,
    frequency: opt.Frequency = None,
    ledger: opt.LedgerFile = None,
    table_name: opt.TableName = None,
    without_silos: Without = None,
    threads: opt.Threads = None,
    debug: opt.Debug = False,
) -> None:
    """Run a silo's site, until it is stopped: it answers the questions of this one study."""
    with explaining(debug=debug):
        require_flare()
        folder = kit_folder(kit, "client")
        settings = SiteSettings(
            data=str(data.resolve()),
            study=str(study.resolve()),
            policy=str(Path(policy).resolve()) if Path(policy).suffix else policy,
            store=str((store or folder / "store").resolve()),
            silo_column=silo_column,
            frequency=frequency,
            without=tuple(without_silos or ()),
            threads=threads,
            ledger=str(ledger.resolve()) if ledger else None,
            table=table_name,
        )
        silo, _ = open_site(settings, site_name(folder))
        typer.echo(
            f"{silo.name}: {silo.shard.rows:,} rows, policy {silo.policy.name}, "
            f"study {digest(silo.study)}",
            err=True,
        )
        _become(site_command(folder, settings))


def run_command(
    study: StudyPath,
    *,
    admin: AdminKit,
    out: opt.ResultsOut,
    deadline: Annotated[
        float, typer.Option("--deadline", help="Seconds for each question; sampling is one.")
    ] = Manners.deadline,
    retries: Annotated[
        int, typer.Option("--retries", help="How often to ask again after a failure.")
    ] = Manners.retries,
    without_silos: Without = None,
    wait: Annotated[
        float, typer.Option("--wait", help="Seconds to wait for the silos to be connected.")
    ] = 120.0,
    force: opt.Force = False,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Run a study over the connected sites, and write its results."""
    with explaining(debug=debug):
        require_flare()
        check_free([*posterior_files(out), out / RUN_FILE], force=force)
        left_out = tuple(without_silos or ())
        plan = without(read_study(study), left_out)
        manners = Manners(deadline, retries, left_out)
        with showing(quiet=quiet) as report:
            posterior, outcome = run_live(plan, admin, manners, wait=wait, report=report)
        files = [*write_results(out, posterior), out / RUN_FILE]
        write_json(out / RUN_FILE, asdict(outcome))
        record = posterior_record(posterior) | {"files": [str(file) for file in files]}
        last = f"{_replayed(outcome)}Results: {out}"
        show(record, posterior_view(posterior), as_json=as_json, last=last)


def _replayed(outcome: Outcome) -> str:
    """Say so where no silo was asked anything anew."""
    if any(asked.sent for asked in outcome.asked):
        return ""
    return (
        "All answers were in the journal of an earlier run: no silo was asked again. To ask again, "
        "delete the study's folder in the server's journals.\n"
    )


def stop_command(*, admin: AdminKit, as_json: opt.Json = False, debug: opt.Debug = False) -> None:
    """Stop the federation: its runs, its sites and its server."""
    with explaining(debug=debug):
        require_flare()
        stop_all(admin)
        told = Text("Runs, sites and server are told to stop.")
        show({"stopped": True}, told, as_json=as_json, last=f"Federation: {admin}")


def _become(command: list[str]) -> None:
    """Turn this process into another, so that signals reach it."""
    os.execve(command[0], command, environment())


flare_app = typer.Typer(
    help="A live federation on NVIDIA FLARE: separate processes, mutual TLS.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
LIVE: dict[str, Callable[..., None]] = {
    "provision": provision_command,
    "request": request_command,
    "sign": sign_command,
    "enrol": enrol_command,
    "server": server_command_line,
    "site": site_command_line,
    "run": run_command,
    "stop": stop_command,
}
EXAMPLES |= {
    "flare request": "silomix flare request study.toml --silo north --out north-request",
    "flare sign": "silomix flare sign study.toml north.request.zip --silo north --authority "
    "kits/authority --fingerprint SHA256:0F:... --out north.signed.zip",
    "flare enrol": "silomix flare enrol north.signed.zip --request north-request --fingerprint "
    "SHA256:A3:... --out north-kit",
}
for name, command in LIVE.items():
    flare_app.command(name, cls=OnceCommand, epilog=epilog(f"flare {name}"))(command)
