"""A live federation on NVIDIA FLARE: separate processes, mutual TLS."""
# annotations are evaluated here, since the options are made from them

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from silomix.cli import command as cli
from silomix.messages.progress import showing
from silomix.model.files import finishing
from silomix.report.results_folder import check_free, posterior_files, write_posterior
from silomix.silo.local import place_in
from silomix.study import digest, read_study
from silomix.transports.flare import participant, session, startup_kit

RUN_FILE = "run.json"


@cli.command()
def provision_command(
    study: Path, *, out: Path, host: str = "localhost", port: int = 8002, trial: bool = False
) -> cli.Shown:
    """Make an authority that signs certificates, and start-up kits for server and coordinator.

    Parameters
    ----------
    out : A new folder for the start-up kits.
    host : Name by which the sites reach the server.
    port : Port on which the server listens.
    trial : Make every silo's private key and kit, too. You could then pose as each of them.

    Examples
    --------
    silomix flare provision study.toml --host server.example --out kits
    """
    silos = read_study(study).silos
    fingerprint = startup_kit.provision(silos, out, host=host, port=port, trial=trial)
    made = [out / name for name in (startup_kit.SERVER, startup_kit.ADMIN)]
    text = "Sign the silos' requests with authority/, and tell the silos its fingerprint."
    if trial:
        made += [out / name for name in silos]
        text = (
            "This is a trial: you have every silo's private key, and can pose as each of them. "
            "Otherwise leave out --trial: silos make their own keys (silomix flare request)."
        )
    view = Text(f"{len(made)} kits. {text} Keep authority/ to yourself.")
    last = "\n".join([*map(str, made), f"Fingerprint of the authority: {fingerprint}"])
    return cli.Shown({"kits": made, "fingerprint": fingerprint}, view, last)


@cli.command()
def request_command(study: Path, *, silo: str, out: Path) -> cli.Shown:
    """Make this silo's private key, which stays here, and a request for its certificate.

    Parameters
    ----------
    silo : This silo's name in the study.
    out : A new folder for the key, which stays, and the request.

    Examples
    --------
    silomix flare request study.toml --silo north --out north-request
    """
    place_in(read_study(study), silo)
    file, key = startup_kit.request_certificate(silo, out)
    view = Text(
        "Send the request to whoever signs, and tell them the fingerprint of the key over "
        "another channel. The key stays here."
    )
    last = f"Request: {file}\nFingerprint of the key: {key}"
    return cli.Shown({"request": file, "fingerprint": key}, view, last)


@cli.command()
def sign_command(
    study: Path,
    request: Path,
    *,
    silo: str,
    authority: Path,
    fingerprint: str,
    out: Path,
    force: bool = False,
) -> cli.Shown:
    """Sign a silo's request, after checking that it comes from that silo.

    Parameters
    ----------
    request : What a silo sent: the .request.zip of silomix flare request.
    silo : The silo's name in the study.
    authority : The folder `authority` that provision made.
    fingerprint : Fingerprint of the silo's key, received separately from the file.
    out : The signed request to send back, such as north.signed.zip.

    Examples
    --------
    silomix flare sign study.toml north.request.zip --silo north --authority kits/authority
    --fingerprint SHA256:0F:... --out north.signed.zip
    """
    place_in(read_study(study), silo)
    check_free([out], force=force)
    signer = startup_kit.sign_request(
        request, authority, silo, key=fingerprint, out=out, again=force
    )
    text = f"Send it back to {silo}, and tell them the fingerprint over another channel."
    last = f"Signed: {out}\nFingerprint of the authority: {signer}"
    return cli.Shown({"signed": out, "fingerprint": signer}, Text(text), last)


@cli.command()
def enrol_command(signed: Path, *, request: Path, fingerprint: str, out: Path) -> cli.Shown:
    """Make this silo's start-up kit from its own key and the signed request.

    Parameters
    ----------
    signed : What came back: the .signed.zip of silomix flare sign.
    request : The folder that silomix flare request made here.
    fingerprint : Fingerprint of the authority, received separately from the file.
    out : A new folder for the start-up kit.

    Examples
    --------
    silomix flare enrol north.signed.zip --request north-request --fingerprint SHA256:A3:...
    --out north-kit
    """
    silo, server = startup_kit.enrol_site(signed, request, out, authority=fingerprint)
    text = f"{silo} connects to the server {server}. The kit has a copy of the key in {request}."
    return cli.Shown({"kit": out, "silo": silo, "server": server}, Text(text), f"Kit: {out}")


@cli.command()
def server_command(kit: Path, *, journals: Path | None = None) -> None:
    """Run the coordinator's server until it is stopped.

    Parameters
    ----------
    kit : The start-up kit of this process.
    journals : Folder for the answers; in KIT by default.

    Examples
    --------
    silomix flare server kits/server
    """
    participant.become(participant.server_command(kit, journals))


@cli.command(settings=cli.WHERE | {"without": list[str], "threads": int}, hides_cells=True)
def site_command(
    kit: Path,
    *,
    data: Path,
    study: Path,
    policy: str | None = None,
    store: Path | None = None,
    **where: Any,
) -> None:
    """Run a silo's site until it is stopped: it answers the questions of this one study.

    Parameters
    ----------
    kit : The start-up kit of this process.
    store : Folder for what stays here; in KIT by default.
    without : Leave out the silo of this name: a new study, to which all remaining silos must agree.

    Examples
    --------
    silomix flare site kits/north --data north.csv --study study.toml
    """
    rules = Path(policy or "default")
    where |= {"data": data, "study": study, "store": store or kit / "store"}
    where["policy"] = rules if rules.suffix else str(rules)  # a file, or the name of a preset
    # the site runs in a folder of its own
    paths = {name: str(path.resolve()) for name, path in where.items() if isinstance(path, Path)}
    settings = where | paths
    silo, _ = participant.open_own_silo(participant.check_kit(kit, "client"), **settings)
    line = f"{silo.shard.rows:,} rows, policy {silo.policy.name}, study {digest(silo.study)}"
    typer.echo(f"{silo.name}: {line}", err=True)
    participant.become(participant.site_command(kit, settings))


@cli.command(settings={"without": list[str], "deadline": float, "retries": int, "wait": float})
def run_command(
    study: Path, *, admin: Path, out: Path, force: bool = False, quiet: bool = False, **asking: Any
) -> cli.Shown:
    """Run a study over the connected sites, and write its results.

    Parameters
    ----------
    admin : The start-up kit `admin`.
    deadline : Seconds for each question (default 3600); all sampling is one question.
    retries : How many times to retry after a failure (default 2).
    without : Leave out the silo of this name: a new study, to which all remaining silos must agree.
    wait : Seconds to wait for the silos to connect (default 120).

    Examples
    --------
    silomix flare run study.toml --admin kits/admin --out results
    """
    files = [*posterior_files(out), out / RUN_FILE]
    check_free(files, force=force)
    plan = read_study(study)
    with showing(quiet=quiet) as report:
        asking["left_out"] = asking.pop("without", ())
        posterior, outcome = session.run_live(plan, admin, report=report, **asking)
    first = ""
    if not any(asked["sent"] for asked in outcome.asked):
        first = (
            "All answers were in the journal of an earlier run: no silo was asked again. To ask "
            "again, delete the study's folder in the server's journals.\n"
        )
    with finishing(files):
        written = write_posterior(out, posterior)
        participant.write_json(out / RUN_FILE, asdict(outcome))
    return cli.show_results(out, posterior, [*written, out / RUN_FILE], first)


@cli.command()
def stop_command(*, admin: Path) -> cli.Shown:
    """Stop the federation: its runs, its sites and its server.

    Parameters
    ----------
    admin : The start-up kit `admin`.

    Examples
    --------
    silomix flare stop --admin kits/admin
    """
    session.stop_all(admin)
    view = Text("Runs, sites and server are stopping.")
    return cli.Shown({"stopped": True}, view, f"Federation: {admin}")
