"""FLARE's start-up kits, one participant's folder each: made and signed, and how processes start.

`provision` makes the authority that signs, the kits of the server and of the coordinator's user,
and, unless each silo is to make its own private key, theirs. A silo that does calls
`request_certificate`, the authority `sign_request`, the silo `enrol_site`. What travels are FLARE's
own files: ``NAME.request.zip`` one way, ``NAME.signed.zip`` the other. Either might be swapped on
its way, so each receiver gives the fingerprint that it was told by another channel: of the silo's
key to sign, of the authority's certificate to enrol.

In a kit, ``startup/`` comes from provisioning or enrolment; ``local/`` is the participant's own.
Rules and settings are written there each time it starts, so that whoever provisioned cannot loosen
them, and a job cannot set them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from silomix.errors import FileError, MissingDependency, SettingsError, SilomixError
from silomix.messages.folder import check_target
from silomix.model.files import OWNERS_FOLDER, private_file, private_folder, replace_file
from silomix.silo.local import Loaded, Silo, open_site
from silomix.silo.local import without as leave_out
from silomix.study import digest, read_study
from silomix.study.policy import find_policy
from silomix.study.validation import cores

PROJECT = ORGANISATION = "silomix"
# Names of the folders that are no silo's.
SERVER, ADMIN, AUTHORITY = "server", "admin", "authority"
USER = "coordinator@silomix.org"
SCHEME = "grpc"
# How long certificates are valid, and their authority: FLARE's own number for kits.
DAYS = "360"
PROFILE, REQUEST = "profile.json", "request.json"
# Bytes of what a request says of itself; FLARE writes a few hundred.
LARGEST_REQUEST = 1 << 20
CONTROLLER = "silomix.transports.flare.controller.StudyController"
EXECUTOR = "silomix.transports.flare.executor.SiloExecutor"
SETTINGS_FILE = "silomix.json"
RESOURCES = "local/resources.json"
NOBODY_ELSE = 0o077
# Seconds of silence after which the server takes a site for dead.
DEAD_AFTER = 20
# Seconds between a site's signs of life, to the server and in a run.
HEARTBEAT = 2.0

RUN_JOBS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
# What the coordinator's user may do at a site: run and stop jobs; read no file, bring no code.
AT_A_SITE = dict.fromkeys(RUN_JOBS, "any") | {"shell_commands": "none", "byoc": "none"}

# Environment of FLARE's processes, which their children inherit.
VARIABLES = {
    # a dead site's outcome never comes: do not keep the job open for it
    "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "5",
    "NVFLARE_DEAD_CLIENT_GRACE_PERIOD": "1",
    "PYTHONUNBUFFERED": "1",
}


def open_own_silo(
    name: str,
    *,
    data: str,
    study: str,
    policy: str,
    store: str,
    without: Sequence[str] = (),
    threads: int | None = None,
    ledger: str | None = None,
    **where: Any,
) -> tuple[Silo, Loaded]:
    """Read what the site decided, and open its silo, with a store for each study.

    Returns the silo and its rows.

    Parameters
    ----------
    data, study, policy : paths of its table, the study it takes part in and its policy, which may
        also be the name of a preset.
    store : folder of what it keeps between questions.
    without : silos of the study that it agrees to do without.
    threads : cores it may use; all when None.
    ledger : the file of what left; as in `silomix.silo.ledger_file.find_ledger` when None.
    where : more of `silomix.silo.local.open_site`.

    Raises
    ------
    SilomixError
        When something does not fit; the text stays here.
    """
    plan, rules = leave_out(read_study(study), without), find_policy(policy)
    where |= {"store": Path(store, digest(plan)[:16]), "ledger": ledger and Path(ledger)}
    silo, loaded = open_site(Path(data), plan, name, policy=rules, **where)
    return replace(silo, threads=cores(threads)), loaded


def require_flare() -> None:
    """Refuse at the door where NVIDIA FLARE is not installed."""
    if find_spec("nvflare") is None:
        raise MissingDependency("a live federation needs the package nvflare", extra="flare")


def provision(
    silos: Sequence[str],
    out: Path,
    *,
    host: str = "localhost",
    port: int = 8002,
    by_request: bool = False,
) -> str:
    """Make the kits of a federation; return the fingerprint of its authority.

    Parameters
    ----------
    silos : the roster; each name becomes the name in a certificate.
    out : a new folder: ``server``, ``admin`` and one folder for each silo, to hand over, and
        ``authority``, which signs and stays with whoever provisions.
    host : name by which the sites reach the server; it is in the server's certificate.
    port : where the server listens.
    by_request : make no silo's key and no silo's kit: each makes its own.
    """
    check_names(silos, host)
    check_target(out)
    authority = out.resolve() / AUTHORITY
    authority.mkdir(parents=True, mode=0o700)  # the key that signs everyone's certificate
    profile = {"name": PROJECT, "scheme": SCHEME, "connection_security": "mtls"}
    write_json(authority / PROFILE, profile | {"server": {"host": host, "fed_learn_port": port}})
    folders = {host: SERVER, USER: ADMIN} | ({} if by_request else {name: name for name in silos})
    try:
        where = ("--profile", authority / PROFILE, "--output-dir", authority)
        _run_flare("cert", "init", *where, "--valid-days", DAYS)
        made = _make_kits(authority, [name for name in silos if name in folders], host, port)
    except SilomixError:
        shutil.rmtree(authority)
        raise
    for name, folder in folders.items():
        shutil.move(made / name, out / folder)
    for state in (authority / PROJECT).rglob("*.json"):
        private_file(state)  # FLARE keeps every key there that it made
    return str(read_json(authority / "ca.json")["rootCA_fingerprint"])


def request_certificate(silo: str, out: Path) -> tuple[Path, str]:
    """Make a silo's private key in a new folder, and the request to send from there.

    The key is ``NAME.key``, readable by its owner alone; the request has no part of it.

    Returns
    -------
    The request, and the fingerprint of the key, to tell by another channel.
    """
    check_target(out)
    private_folder(out)
    silos = [{"name": silo, "type": "client", "org": ORGANISATION, "allow_log_streaming": False}]
    with tempfile.TemporaryDirectory() as scratch:
        entry = Path(scratch) / "participant.json"  # JSON is YAML, which FLARE reads here
        write_json(entry, {"name": PROJECT, "participants": silos})
        made = _run_flare("cert", "request", "--participant", entry, "--out", out.resolve())
    key = read_json(out / REQUEST)["public_key_sha256"]
    return out / Path(made["request_zip"]).name, read_fingerprint(key)


def sign_request(
    request: Path, authority: Path, silo: str, *, key: str, out: Path, again: bool = False
) -> str:
    """Sign a silo's request with the authority's key; write what the silo enrols with.

    Parameters
    ----------
    authority : the folder that `provision` made.
    silo : whose request this is meant to be.
    key : fingerprint of the silo's key, told by another channel than the request came by.
    out : the file to send back.
    again : the silo may have a certificate already, which stays valid until it expires.

    Returns
    -------
    The fingerprint of the authority, to tell by another channel.
    """
    _check_request(request, silo, read_fingerprint(key))
    issued = authority / "issued" / f"{silo}.signed.zip"
    if issued.exists() and not again:
        raise SettingsError(
            f"the silo {silo!r} has a certificate already, {issued}, which stays valid until it "
            "expires; give --force if its hospital asks for another"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    signed_by = ("--ca-dir", authority.resolve(), "--profile", authority.resolve() / PROFILE)
    how = ("--valid-days", DAYS, "--out", out.resolve(), "--force")
    made = _run_flare("cert", "approve", request.resolve(), *signed_by, *how)
    private_folder(issued.parent)
    shutil.copyfile(out, issued)
    return str(made["rootca_fingerprint_sha256"])


def enrol_site(signed: Path, request: Path, out: Path, *, authority: str) -> tuple[str, str]:
    """Assemble a site's start-up kit from its own key and what the authority signed.

    Parameters
    ----------
    request : the folder that `request_certificate` made here.
    out : a new folder for the kit, for `silomix flare site`.
    authority : fingerprint of the authority's certificate, told by another channel.

    Returns
    -------
    Whose kit it is, and the server that it calls.
    """
    fingerprint = read_fingerprint(authority)
    check_target(out)
    if not signed.is_file():
        raise FileError(f"there is no file {signed}; give the one that was sent back")
    out.parent.mkdir(parents=True, exist_ok=True)
    # beside the kit: the key is never copied to another disk
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".enrol-") as scratch:
        copy = shutil.copyfile(signed, Path(scratch).resolve() / "site.signed.zip")
        own = ("--request-dir", request.resolve(), "--workspace", copy.parent)
        made = _run_flare("package", copy, *own, "--fingerprint", fingerprint)
        kit = Path(made["output_dir"])
        security = read_startup(kit, "client").get("connection_security")
        if security != "mtls":
            raise FileError(
                f"{signed} wants a connection with the security {security!r}, without "
                "certificates on both ends; ask who signed it"
            )
        kit.replace(out)
    return str(made["name"]), str(made["endpoint"])


def read_fingerprint(text: str) -> str:
    """Return a SHA-256 fingerprint as ``SHA256:AA:BB...``, however it was spelled."""
    require_flare()
    from nvflare.tool.cert.fingerprint import normalize_sha256_fingerprint

    found = str(normalize_sha256_fingerprint(text))
    if not found:
        raise SettingsError(f"{text!r} is not a SHA-256 fingerprint; give all its 64 digits")
    return found


def check_names(silos: Sequence[str], host: str) -> None:
    """Refuse silos whose names cannot stand in a certificate, or mean another folder."""
    taken = {SERVER, ADMIN, AUTHORITY, host.lower()}
    for name in silos:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) or name.lower() in taken:
            raise SettingsError(
                f"the silo {name!r} cannot have a kit by that name: FLARE allows letters without "
                "accents, digits, - and _, at most 60, and the server, its host, the admin, the "
                "authority and every other silo must have different names, whatever the case; "
                "rename it in the study, and in the silo column if there is one"
            )
        taken.add(name.lower())


def _make_kits(authority: Path, silos: Sequence[str], host: str, port: int) -> Path:
    """Let FLARE make kits that the authority has signed; return the folder that has them."""
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner
    from nvflare.lighter.utils import load_private_key_file

    static = StaticFileBuilder(config_folder="config", scheme=SCHEME)
    builders = [WorkspaceBuilder(), static, CertBuilder(), SignatureBuilder()]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            project = Project(PROJECT, PROJECT, props={"api_version": 3})
            project.root_private_key = load_private_key_file(authority / "rootCA.key")
            project.serialized_root_cert = (authority / "rootCA.pem").read_bytes()
            project.set_server(host, ORGANISATION, {"fed_learn_port": port})
            project.add_admin(USER, ORGANISATION, {"role": "project_admin"})
            for silo in silos:
                project.add_client(silo, ORGANISATION, {"allow_log_streaming": False})
            done = Provisioner(str(authority), builders).provision(project)
        except ValueError as error:
            raise SettingsError(f"FLARE cannot provision this federation: {error}") from error
    if done.get(CtxKey.BUILD_ERROR):
        raise SettingsError(f"FLARE cannot provision this federation: {printed.getvalue()[-300:]}")
    return authority / PROJECT / Path(done[CtxKey.CURRENT_PROD_DIR]).name


def _check_request(request: Path, silo: str, key: str) -> None:
    """Refuse what is not a silo's request, is another's, or has another key than was told.

    FLARE compares what the request says of itself with the request proper.
    """
    digits = key.removeprefix("SHA256:").replace(":", "").lower()
    expected = {"name": silo, "public_key_sha256": digits, "org": ORGANISATION}
    expected |= {"kind": "site", "cert_type": "client"}
    try:
        with zipfile.ZipFile(request) as members, members.open(REQUEST) as file:
            found = dict(json.loads(file.read(LARGEST_REQUEST)))
    except Exception as error:  # a stranger's file: zip, JSON and recursion fail in many ways
        raise FileError(
            f"{request} is not a request that `silomix flare request` made, or is damaged "
            f"({type(error).__name__})"
        ) from None
    for field, value in expected.items():
        if found.get(field) != value:
            raise FileError(
                f"{request} has the {field} {str(found.get(field))[:80]!r}, not {value!r}; sign "
                f"only what {silo} says that it sent, over a channel other than the request's"
            )


def _run_flare(*words: str | Path) -> dict[str, Any]:
    """Run a command of FLARE and return what it says of the result."""
    require_flare()
    # -P: a folder called nvflare in the working directory is not taken for the package
    start = [sys.executable, "-P", "-m", "nvflare.cli", "--format", "json"]
    command = [*start, *map(str, words)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8")
    answer = json.loads((done.stdout.splitlines() or ["{}"])[-1])
    if answer.get("status") != "ok":
        said = answer.get("message") or done.stderr[-300:] or "it does not say why"
        reason = said.replace("Invalid arguments. — ", "").strip().rstrip(".")
        raise FileError(
            f"FLARE refuses: {reason}; nothing was made. If somebody sent the file, ask for "
            "another, and compare fingerprints again"
        )
    return dict(answer["data"])


def kit_folder(kit: Path, kind: str) -> Path:
    """Return the whole path of a kit, after a check that it is a "server", "client" or "admin"."""
    require_flare()
    if not (kit / "startup" / f"fed_{kind}.json").is_file():
        raise FileError(
            f"{kit} is not the start-up kit of a FLARE {kind}: it has no startup/fed_{kind}.json; "
            "give the folder that `silomix flare provision`, or `enrol` for a site, made for it"
        )
    return kit.resolve()


def read_startup(kit: Path, kind: str) -> dict[str, Any]:
    """Return what a kit says of its participant: a site's name is its ``fqsn``."""
    return dict(read_json(kit_folder(kit, kind) / "startup" / f"fed_{kind}.json")[kind])


def server_command(kit: Path, journals: Path | None = None) -> list[str]:
    """Write the server's rules into its kit, and return the command that starts it.

    Parameters
    ----------
    journals : folder of the silos' answers; in the kit when None.
    """
    folder, resources = _open_kit(kit, "server", CONTROLLER)
    resources["servers"][0]["heart_beat_timeout"] = DEAD_AFTER
    # FLARE's own places for these are outside the kit
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(folder / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(folder / "jobs")
    write_json(folder / RESOURCES, resources)
    settings = {"journals": str((journals or folder / "journals").resolve())}
    write_json(folder / "local" / SETTINGS_FILE, settings, private=True)
    return _command(folder, "server", "server_train")


def site_command(kit: Path, settings: Mapping[str, Any]) -> list[str]:
    """Write a site's rules and settings into its kit, and return the command that starts it.

    Parameters
    ----------
    settings : of `open_own_silo`.
    """
    folder, resources = _open_kit(kit, "client", EXECUTOR)
    resources["allow_log_streaming"] = False
    parts = resources["components"]
    resources["components"] = [part for part in parts if part["id"] != "site_log_streamer"]
    write_json(folder / RESOURCES, resources)
    local = folder / "local"
    rules = read_json(local / "authorization.json.default")
    rules["permissions"] = {"project_admin": AT_A_SITE}
    write_json(local / "authorization.json", rules)
    write_json(local / SETTINGS_FILE, settings, private=True)
    name = read_startup(folder, "client")["fqsn"]
    beat = f"heart_beat_interval={HEARTBEAT}"
    return _command(folder, "client", "client_train", f"uid={name}", beat)


def become(command: list[str]) -> None:
    """Turn this process into FLARE's, so that signals reach it."""
    # FLARE's logs and job folders may quote a row: they are their owner's alone
    os.umask(NOBODY_ELSE)
    os.execve(command[0], command, os.environ | VARIABLES)


def read_json(path: Path) -> dict[str, Any]:
    """Return what a JSON file holds."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def write_json(path: Path, content: Mapping[str, Any], *, private: bool = False) -> None:
    """Write a mapping as JSON, whole or not at all; `private` for its owner alone."""
    replace_file(path, json.dumps(content, indent=1, default=str).encode(), private=private)


def _open_kit(kit: Path, kind: str, allowed: str) -> tuple[Path, dict[str, Any]]:
    """Keep everybody else out of a kit: it has a private key, logs and settings.

    Returns
    -------
    The kit's folder, and its resources, with the one class that a job may name.
    """
    folder = kit_folder(kit, kind)
    with contextlib.suppress(PermissionError):  # one that is shared stays as its owner made it
        folder.chmod(OWNERS_FOLDER)
    for log in filter(Path.is_file, folder.glob("*log*")):
        private_file(log)
    (folder / "transfer").mkdir(exist_ok=True)
    return folder, read_json(folder / f"{RESOURCES}.default") | {"class_allow_list": [allowed]}


def _command(folder: Path, kind: str, module: str, *more: str) -> list[str]:
    program = [sys.executable, "-m", f"nvflare.private.fed.app.{kind}.{module}"]
    settings = ["secure_train=true", f"org={ORGANISATION}", "config_folder=config", *more]
    return [*program, "-m", str(folder), "-s", f"fed_{kind}.json", "--set", *settings]
