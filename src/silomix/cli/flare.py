"""The commands of a live federation on NVIDIA FLARE: `silomix flare ...`."""
# annotations are evaluated here, since typer builds the options from them

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from silomix.cli import options as opt
from silomix.cli.command import OnceCommand
from silomix.cli.examples import EXAMPLES, epilog
from silomix.cli.terminal import explaining, show
from silomix.messages.progress import showing
from silomix.report.results_folder import check_free, posterior_files, write_posterior
from silomix.report.summary import posterior_record, posterior_view
from silomix.study import digest, read_study
from silomix.transports.flare import provision as kits
from silomix.transports.flare import session, startup_kit
from silomix.transports.flare.job import AskingRules, check_roster, without
from silomix.transports.flare.worker import open_site

RUN_FILE = "run.json"


def _option(name: str, text: str, metavar: str | None = None) -> typer.models.OptionInfo:
    return typer.Option(name, help=text, metavar=metavar)


AGREE = "Go on without this silo: another study, in which every silo left has to agree."
Kit = Annotated[Path, typer.Argument(metavar="KIT", help="The start-up kit of this process.")]
AdminKit = Annotated[Path, _option("--admin", "The start-up kit `admin`.")]
KitsOut = Annotated[Path, _option("--out", "A new folder for the start-up kits.")]
Host = Annotated[str, _option("--host", "Name by which the sites reach the server.")]
Port = Annotated[int, _option("--port", "Where the server listens.")]
Journals = Annotated[Path | None, _option("--journals", "Folder of answers; in KIT by default.")]
Store = Annotated[Path | None, _option("--store", "Folder of what it keeps; in KIT by default.")]
LeftOut = Annotated[list[str] | None, _option("--without", AGREE, "NAME")]
Deadline = Annotated[float, _option("--deadline", "Seconds for each question; sampling is one.")]
Retries = Annotated[int, _option("--retries", "How often to ask again after a failure.")]
Wait = Annotated[float, _option("--wait", "Seconds to wait for the silos to be connected.")]


def provision(
    study: opt.SharedStudy,
    *,
    out: KitsOut,
    host: Host = "localhost",
    port: Port = 8002,
    by_request: opt.ByRequest = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Make certificates and a start-up kit for the server, each silo and the coordinator."""
    with explaining(debug=debug):
        silos = read_study(study).silos
        kits.provision(silos, out, host=host, port=port, by_request=by_request)
        fingerprint = kits.authority_fingerprint(out)
        made = [str(out / name) for name in (kits.SERVER, kits.ADMIN)]
        told = "Sign the silos' requests with authority/, and tell them its fingerprint."
        if not by_request:
            made += [str(out / name) for name in silos]
            told = "Hand each silo its own, by a channel you trust: it holds a private key."
        view = Text(f"{len(made)} kits. {told} Keep authority/ to yourself.")
        last = "\n".join([*made, f"Fingerprint of the authority: {fingerprint}"])
        show({"kits": made, "fingerprint": fingerprint}, view, as_json=as_json, last=last)


def request(
    study: opt.SharedStudy,
    *,
    silo: opt.Enrolling,
    out: opt.RequestOut,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Make this silo's private key, which stays here, and a request for its certificate."""
    with explaining(debug=debug):
        check_roster(read_study(study), [silo])
        file, key = kits.request_certificate(silo, out)
        view = Text(
            "Send the request to whoever signs, and tell them the fingerprint of the key by "
            "another channel. The key stays here."
        )
        last = f"Request: {file}\nFingerprint of the key: {key}"
        show({"request": str(file), "fingerprint": key}, view, as_json=as_json, last=last)


def sign(
    study: opt.SharedStudy,
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
        check_roster(read_study(study), [silo])
        check_free([out], force=force)
        signer = kits.sign_request(request, authority, silo, key=fingerprint, out=out, again=force)
        told = f"Send it back to {silo}, and tell them the fingerprint by another channel."
        last = f"Signed: {out}\nFingerprint of the authority: {signer}"
        record = {"signed": str(out), "fingerprint": signer}
        show(record, Text(told), as_json=as_json, last=last)


def enrol(
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
        silo, server = kits.enrol_site(signed, request, out, authority=fingerprint)
        told = f"{silo} calls the server {server}. The kit has a copy of the key in {request}."
        record = {"kit": str(out), "silo": silo, "server": server}
        show(record, Text(told), as_json=as_json, last=f"Kit: {out}")


def server(kit: Kit, *, journals: Journals = None, debug: opt.Debug = False) -> None:
    """Run the coordinator's server, until it is stopped."""
    with explaining(debug=debug):
        startup_kit.become(startup_kit.server_command(kit, journals))


def site(
    kit: Kit,
    *,
    data: opt.OwnTable,
    study: opt.ReleaseStudy,
    policy: opt.PolicyFile = None,
    store: Store = None,
    silo_column: opt.SiloColumn = None,
    frequency: opt.Frequency = None,
    ledger: opt.LedgerFile = None,
    table_name: opt.TableName = None,
    without_silos: LeftOut = None,
    threads: opt.Threads = None,
    debug: opt.Debug = False,
) -> None:
    """Run a silo's site, until it is stopped: it answers the questions of this one study."""
    with explaining(debug=debug):
        rules = policy or "default"
        settings = startup_kit.SiteSettings(
            data=str(data.resolve()),
            study=str(study.resolve()),
            policy=str(Path(rules).resolve()) if Path(rules).suffix else rules,
            store=str((store or kit / "store").resolve()),
            silo_column=silo_column,
            frequency=frequency,
            without=without_silos or (),
            threads=threads,
            ledger=str(ledger.resolve()) if ledger else None,
            table=table_name,
        )
        silo, _ = open_site(settings, startup_kit.read_startup(kit, "client")["fqsn"])
        about = f"{silo.shard.rows:,} rows, policy {silo.policy.name}, study {digest(silo.study)}"
        typer.echo(f"{silo.name}: {about}", err=True)
        startup_kit.become(startup_kit.site_command(kit, settings))


def run(
    study: opt.SharedStudy,
    *,
    admin: AdminKit,
    out: opt.ResultsOut,
    deadline: Deadline = AskingRules.deadline,
    retries: Retries = AskingRules.retries,
    without_silos: LeftOut = None,
    wait: Wait = 120.0,
    force: opt.Force = False,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Run a study over the connected sites, and write its results."""
    with explaining(debug=debug):
        check_free([*posterior_files(out), out / RUN_FILE], force=force)
        rules = AskingRules(deadline, retries, without_silos or ())
        plan = without(read_study(study), rules.left_out)
        with showing(quiet=quiet) as report:
            posterior, outcome = session.run_live(plan, admin, rules, wait=wait, report=report)
        files = [*write_posterior(out, posterior), out / RUN_FILE]
        startup_kit.write_json(out / RUN_FILE, asdict(outcome))
        record = posterior_record(posterior) | {"files": [str(file) for file in files]}
        last = f"Results: {out}"
        if not any(asked["sent"] for asked in outcome.asked):
            last = (
                "All answers were in the journal of an earlier run: no silo was asked again. To "
                f"ask again, delete the study's folder in the server's journals.\n{last}"
            )
        show(record, posterior_view(posterior), as_json=as_json, last=last)


def stop(*, admin: AdminKit, as_json: opt.Json = False, debug: opt.Debug = False) -> None:
    """Stop the federation: its runs, its sites and its server."""
    with explaining(debug=debug):
        session.stop_all(admin)
        view = Text("Runs, sites and server are told to stop.")
        show({"stopped": True}, view, as_json=as_json, last=f"Federation: {admin}")


TITLE = "A live federation on NVIDIA FLARE: separate processes, mutual TLS."
flare_app = typer.Typer(help=TITLE, no_args_is_help=True, pretty_exceptions_enable=False)
EXAMPLES |= {
    "flare request": "silomix flare request study.toml --silo north --out north-request",
    "flare sign": "silomix flare sign study.toml north.request.zip --silo north --authority "
    "kits/authority --fingerprint SHA256:0F:... --out north.signed.zip",
    "flare enrol": "silomix flare enrol north.signed.zip --request north-request --fingerprint "
    "SHA256:A3:... --out north-kit",
}
for command in (provision, request, sign, enrol, server, site, run, stop):
    flare_app.command(cls=OnceCommand, epilog=epilog(f"flare {command.__name__}"))(command)
