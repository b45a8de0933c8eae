"""Enrolment by certificate request: a site's private key is made at the site and stays there.

`request_certificate` at the site, `sign_request` where the authority is, `enrol_site` at the site.
What travels are FLARE's own files: ``NAME.request.zip`` one way, ``NAME.signed.zip`` the other.
Either might be swapped on its way, so each receiver gives the fingerprint that it was told by
another channel: of the site's key to sign, of the authority's certificate to enrol.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silomix.atomic import private_folder, replace_file
from silomix.errors import FileError, SettingsError
from silomix.transports.flare.kit import read_json, write_json
from silomix.transports.flare.provision import (
    DAYS,
    ORGANISATION,
    PROFILE,
    PROJECT,
    check_names,
    check_new,
    require_flare,
    site_entry,
)
from silomix.transports.flare.tool import run_tool

if TYPE_CHECKING:
    from silomix.study import Study

REQUEST, ISSUED = "request.json", "issued"
DAMAGED = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, RuntimeError, EOFError)
"""What reading a file raises that is no request: RuntimeError for encryption and nesting too."""
LARGEST = 1 << 20
"""Bytes of a request or of a signed one; FLARE's have a few thousand."""


@dataclass(frozen=True)
class Letter:
    """A file to send, and the fingerprint to tell its receiver by another channel."""

    file: Path
    fingerprint: str


@dataclass(frozen=True)
class Enrolled:
    """A kit that a site made for itself: whose, where, and which server it calls."""

    silo: str
    kit: Path
    server: str


def check_roster(study: Study, silo: str) -> None:
    """Refuse a silo that the study does not have."""
    if silo not in study.silos:
        raise SettingsError(
            f"the study has no silo {silo!r}; its roster is {', '.join(map(repr, study.silos))}: "
            "correct the name"
        )


def request_certificate(silo: str, out: Path) -> Letter:
    """Make a silo's private key in a new folder, and the request to send from there.

    The key is ``NAME.key``, readable by its owner alone; the request has no part of it.
    """
    require_flare()
    check_names([silo])
    check_new(out, "the key and the request")
    private_folder(out)
    with tempfile.TemporaryDirectory() as scratch:
        entry = Path(scratch) / "participant.json"  # JSON is YAML, which FLARE reads here
        write_json(entry, {"name": PROJECT, "participants": [site_entry(silo)]})
        words = ("cert", "request", "--participant", entry, "--out", out.resolve())
        made = run_tool(*words, advice="correct what it names and give a new folder")
    key = read_json(out / REQUEST)["public_key_sha256"]
    return Letter(out / Path(made["request_zip"]).name, fingerprint(key))


def sign_request(
    request: Path, authority: Path, silo: str, *, key: str, out: Path, again: bool = False
) -> Letter:
    """Sign a silo's request with the authority's key; write what the site enrols with.

    Parameters
    ----------
    authority : the folder that `provision` made with ``by_request``.
    silo : whose request this is meant to be.
    key : fingerprint of the silo's key, told by another channel than the request came by.
    again : the silo may have a certificate already, which stays valid until it expires.
    """
    require_flare()
    told = fingerprint(key)
    check_names([silo])
    if not (authority / PROFILE).is_file():
        raise FileError(
            f"{authority} is no authority that signs requests: it has no {PROFILE}; give the "
            "folder that `silomix flare provision --by-request` made"
        )
    content = _read(request)
    _check_request(request, _described(content, request), silo, told)
    issued = authority / ISSUED / f"{silo}.crt"
    if issued.exists() and not again:
        raise SettingsError(
            f"the silo {silo!r} has a certificate already, {issued}, which stays valid until it "
            "expires; give --force if its hospital asks for another"
        )
    with tempfile.TemporaryDirectory() as scratch:
        copy, signed = (Path(scratch) / f"{silo}.{word}.zip" for word in ("request", "signed"))
        copy.write_bytes(content)  # what was checked is what is signed
        place = ("--ca-dir", authority.resolve(), "--profile", (authority / PROFILE).resolve())
        days = ("--valid-days", str(DAYS))
        advice = f"{request} is not signed: ask for another request, or mend the authority"
        words = ("cert", "approve", copy, *place, *days, "--out", signed)
        made = run_tool(*words, advice=advice)
        approved = signed.read_bytes()
    with zipfile.ZipFile(io.BytesIO(approved)) as members:
        certificate = members.read(f"{silo}.crt")
    private_folder(issued.parent)
    replace_file(issued, certificate)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, approved)
    return Letter(out, str(made["rootca_fingerprint_sha256"]))


def enrol_site(signed: Path, request: Path, out: Path, *, authority: str) -> Enrolled:
    """Assemble a site's start-up kit from its own key and what the authority signed.

    Parameters
    ----------
    request : the folder that `request_certificate` made here.
    out : a new folder for the kit, for `silomix flare site`.
    authority : fingerprint of the authority's certificate, told by another channel.
    """
    require_flare()
    told = fingerprint(authority)
    check_new(out, "the kit")
    if not (request / REQUEST).is_file():
        raise FileError(
            f"{request} is no folder of a request: it has no {REQUEST}; give the one that "
            "`silomix flare request` made"
        )
    content = _read(signed)
    out.parent.mkdir(parents=True, exist_ok=True)
    # beside the kit: the key is never copied to another disk
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".enrol-") as scratch:
        copy = Path(scratch) / "site.signed.zip"
        copy.write_bytes(content)
        place = ("--workspace", Path(scratch).resolve(), "--request-dir", request.resolve())
        advice = f"no kit is made of {signed}: ask who signed it, and compare fingerprints anew"
        made = run_tool("package", copy, *place, "--fingerprint", told, advice=advice)
        kit = Path(made["output_dir"])
        _check_security(kit, signed)
        if out.exists():
            out.rmdir()
        shutil.move(kit, out)
    return Enrolled(str(made["name"]), out, str(made["endpoint"]))


def fingerprint(text: str) -> str:
    """Return a SHA-256 fingerprint as ``SHA256:AA:BB...``, however it was spelled."""
    found = _spell(text)
    if not found:
        raise SettingsError(
            f"{text!r} is no SHA-256 fingerprint; give all 64 digits, as SHA256:AA:BB:... or alone"
        )
    return found


def _spell(text: object) -> str:
    from nvflare.tool.cert.fingerprint import normalize_sha256_fingerprint

    return str(normalize_sha256_fingerprint(text))


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise FileError(f"there is no file {path}; give the one that was sent to you")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise FileError(f"{path} is too large to be a request or a signed one; ask for another")
    return content


def _described(content: bytes, path: Path) -> dict[str, Any]:
    """Return what a request says of itself; FLARE compares it with the request proper."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as members, members.open(REQUEST) as file:
            said = json.loads(file.read(LARGEST))
    except DAMAGED:
        said = None
    if not isinstance(said, dict):
        raise FileError(f"{path} is no request that `silomix flare request` made, or is damaged")
    return said


def _check_request(path: Path, said: dict[str, Any], silo: str, told: str) -> None:
    """Refuse what is no silo's, is another's, or has another key than was told."""
    site = {"kind": "site", "cert_type": "client", "org": ORGANISATION}
    if any(said.get(field) != value for field, value in site.items()):
        raise FileError(f"{path} is no request of a silo; only silos are enrolled by request")
    if said.get("name") != silo:
        raise FileError(
            f"{path} asks for a certificate in the name {said.get('name')!r}, not {silo!r}; sign "
            "it only if its sender is that silo, with --silo"
        )
    found = _spell(said.get("public_key_sha256"))
    if found != told:
        raise FileError(
            f"the key in {path} has the fingerprint {found or 'of none'}, not the one given, "
            f"{told}; ask the silo, by another channel than the request came by"
        )


def _check_security(kit: Path, signed: Path) -> None:
    """Refuse to connect without certificates on both ends, whatever was signed."""
    security = read_json(kit / "startup" / "fed_client.json")["client"].get("connection_security")
    if security != "mtls":
        raise FileError(
            f"{signed} wants a connection with the security {security!r}, where silomix needs "
            "'mtls'; ask who signed it"
        )
