"""FLARE's start-up kits, one participant's folder each: made and signed.

`provision` makes the authority that signs, and the kits of the server and of the coordinator's
user. Each silo calls `request_certificate`, the authority `sign_request`, the silo `enrol_site`;
only in a trial does `provision` make the silos' private keys and kits, too. What travels are
FLARE's own files: ``NAME.request.zip`` one way, ``NAME.signed.zip`` the other. Either might be
swapped on its way, so each receiver gives the fingerprint that it was told by another channel: of
the silo's key to sign, of the authority's certificate to enrol.

The kit of a server or site is ``startup/`` with a certificate, its key, the authority's certificate
and the server's address: nothing that could run. `participant` makes the rest at each start.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from silomix.errors import FileError, SettingsError, SilomixError
from silomix.messages.folder import check_target
from silomix.model.files import private_file, private_folder
from silomix.transports.flare.participant import (
    ORGANISATION,
    PROJECT,
    SCHEME,
    USER,
    build_kits,
    check_kit,
    read_json,
    require_flare,
    startup_files,
    write_json,
)

# Names of the folders that are no silo's.
SERVER, ADMIN, AUTHORITY = "server", "admin", "authority"
# How long certificates are valid, and their authority: FLARE's own number for kits.
DAYS = "360"
PROFILE, REQUEST = "profile.json", "request.json"
# Bytes of what a request says of itself; FLARE writes a few hundred.
LARGEST_REQUEST = 1 << 20


def provision(
    silos: Sequence[str],
    out: Path,
    *,
    host: str = "localhost",
    port: int = 8002,
    trial: bool = False,
) -> str:
    """Make the kits of a federation; return the fingerprint of its authority.

    Parameters
    ----------
    silos : the roster; each name becomes the name in a certificate.
    out : a new folder: ``server``, ``admin``, and ``authority``, which signs and stays with
        whoever provisions.
    host : name by which the sites reach the server; it is in the server's certificate.
    port : where the server listens.
    trial : make every silo's private key and kit, too; whoever does can pose as each silo.
    """
    check_names(silos, host)
    check_target(out)
    authority = out.resolve() / AUTHORITY
    authority.mkdir(parents=True, mode=0o700)  # the key that signs everyone's certificate
    profile = {"name": PROJECT, "scheme": SCHEME, "connection_security": "mtls"}
    write_json(authority / PROFILE, profile | {"server": {"host": host, "fed_learn_port": port}})
    try:
        where = ("--profile", authority / PROFILE, "--output-dir", authority)
        _run_flare("cert", "init", *where, "--valid-days", DAYS)
        enrolled = silos if trial else ()
        made = build_kits(authority, host, port, enrolled, authority=authority)
    except SilomixError:
        shutil.rmtree(authority)
        raise
    _keep_identity(made / host, out / SERVER, "server")
    for name in enrolled:
        _keep_identity(made / name, out / name, "client")
    shutil.move(made / USER, out / ADMIN)
    shutil.rmtree(made)
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
    options = ("--valid-days", DAYS, "--out", out.resolve(), "--force")
    made = _run_flare("cert", "approve", request.resolve(), *signed_by, *options)
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
        local = ("--request-dir", request.resolve(), "--workspace", copy.parent)
        made = _run_flare("package", copy, *local, "--fingerprint", fingerprint)
        kit = copy.parent / "kit"
        _keep_identity(Path(made["output_dir"]), kit, "client")
        try:
            check_kit(kit, "client")
        except FileError as error:
            raise FileError(str(error).replace(str(kit), str(signed))) from None
        kit.replace(out)
    return str(made["name"]), str(made["endpoint"])


def read_fingerprint(text: str) -> str:
    """Normalise a SHA-256 fingerprint to ``SHA256:AA:BB...``."""
    require_flare()
    from nvflare.tool.cert.fingerprint import normalize_sha256_fingerprint

    normal = str(normalize_sha256_fingerprint(text))
    if not normal:
        raise SettingsError(f"{text!r} is not a SHA-256 fingerprint; give all its 64 digits")
    return normal


def check_names(silos: Sequence[str], host: str) -> None:
    """Refuse silos whose names cannot stand in a certificate, or mean another folder."""
    taken = {SERVER, ADMIN, AUTHORITY, host.lower()}
    for name in silos:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) or name.lower() in taken:
            raise SettingsError(
                f"the silo {name!r} cannot have a kit by that name: it must have at most 60 "
                "letters without accents, digits, - and _, and differ, whatever the case, from the "
                "server, its host, the admin, the authority and other silos; rename it in the study"
            )
        taken.add(name.lower())


def _keep_identity(made: Path, kit: Path, kind: str) -> None:
    """Move what is the participant's alone from what FLARE made into a new kit."""
    (kit / "startup").mkdir(parents=True)
    for name in startup_files(kind):
        (made / "startup" / name).replace(kit / "startup" / name)


def _check_request(request: Path, silo: str, key: str) -> None:
    """Refuse what is not a silo's request, is another's, or has another key than was told.

    FLARE compares what the request says of itself with the request proper.
    """
    digits = key.removeprefix("SHA256:").replace(":", "").lower()
    expected = {"name": silo, "public_key_sha256": digits, "org": ORGANISATION}
    expected |= {"kind": "site", "cert_type": "client"}
    try:
        with zipfile.ZipFile(request) as members, members.open(REQUEST) as file:
            stated = dict(json.loads(file.read(LARGEST_REQUEST)))
    except Exception as error:  # a stranger's file: zip, JSON and recursion fail in many ways
        raise FileError(
            f"{request} is not a request that `silomix flare request` made, or is damaged "
            f"({type(error).__name__})"
        ) from None
    for field, value in expected.items():
        if stated.get(field) != value:
            raise FileError(
                f"{request} has the {field} {str(stated.get(field))[:80]!r}, not {value!r}; sign "
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
        reason = answer.get("message") or done.stderr[-300:] or "it does not say why"
        reason = reason.replace("Invalid arguments. — ", "").strip().rstrip(".")
        raise FileError(
            f"FLARE refuses: {reason}; nothing was made. If somebody sent the file, ask for "
            "another, and compare fingerprints again"
        )
    return dict(answer["data"])
