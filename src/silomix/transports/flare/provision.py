"""One start-up kit for the server, each silo and the coordinator's user, with certificates."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

from silomix.atomic import private_file
from silomix.errors import MissingDependency, SettingsError, SilomixError
from silomix.transports.flare.kit import write_json
from silomix.transports.flare.tool import run_tool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROJECT = "silomix"
SERVER, ADMIN, AUTHORITY = "server", "admin", "authority"
"""Names of the folders that are no silo's."""
USER = "coordinator@silomix.org"
ORGANISATION = "silomix"
SCHEME = "grpc"
ROOT, ROOT_KEY, PROFILE = "rootCA.pem", "rootCA.key", "profile.json"
"""In an authority that signs requests: its certificate, its key, the server's address."""
DAYS = 360
"""How long certificates are valid, and their authority: FLARE's own number, for both ways."""
LONGEST = 60
BUILDERS = "nvflare.lighter.impl."


def provision(
    silos: Sequence[str],
    out: Path,
    *,
    host: str = "localhost",
    port: int = 8002,
    by_request: bool = False,
) -> Path:
    """Make the kits of a federation under `out`; return that folder.

    Parameters
    ----------
    silos : the roster; each name becomes the name in a certificate.
    out : a new folder: ``server``, ``admin`` and one folder for each silo, to hand over, and
        ``authority``, which signs and stays with whoever provisions.
    host : name by which the sites reach the server; it is in the server's certificate.
    port : where the server listens.
    by_request : make no silo's key and no silo's kit: each silo makes its own and asks
        ``authority`` for a certificate (`silomix.transports.flare.enrol`).
    """
    require_flare()
    check_names(silos)
    if host in silos:
        raise SettingsError(
            f"the silo {host!r} has the name of the server's host; rename it in the study"
        )
    check_new(out, "the start-up kits")
    authority = out / AUTHORITY
    authority.mkdir(parents=True, mode=0o700)  # the key that signs everyone's certificate
    made_here = () if by_request else silos
    try:
        if by_request:
            _found(authority, host, port)
        made = _build(_project(made_here, host, port), authority)
    except SilomixError:
        shutil.rmtree(authority)
        raise
    shutil.move(made / host, out / SERVER)
    shutil.move(made / USER, out / ADMIN)
    for name in made_here:
        shutil.move(made / name, out / name)
    made.rmdir()
    for state in (authority / PROJECT).rglob("*.json"):
        private_file(state)  # FLARE keeps every key there that it made
    return out


def check_new(out: Path, what: str) -> None:
    """Refuse a folder that has something in it already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SettingsError(f"{out} is not empty, or no folder; give a new one for {what}")


def root_fingerprint(out: Path) -> str:
    """Return the fingerprint of the authority that `provision` made for requests."""
    from cryptography.x509 import load_pem_x509_certificate
    from nvflare.tool.cert.fingerprint import cert_fingerprint_sha256

    root = load_pem_x509_certificate((out / AUTHORITY / ROOT).read_bytes())
    return str(cert_fingerprint_sha256(root))


def site_entry(silo: str) -> dict[str, Any]:
    """Return a silo's entry in FLARE's description of a project."""
    return {"name": silo, "type": "client", "org": ORGANISATION, "allow_log_streaming": False}


def require_flare() -> None:
    """Refuse at the door where NVIDIA FLARE is not installed."""
    try:
        import_module("nvflare")
    except ImportError:
        raise MissingDependency(
            "a live federation needs the package nvflare: pip install 'silomix[flare]'"
        ) from None


def check_names(silos: Sequence[str]) -> None:
    """Refuse silos whose names cannot stand in a certificate, or mean another folder."""
    for name in silos:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or len(name) > LONGEST:
            raise SettingsError(
                f"the silo {name!r} cannot have a certificate by that name: FLARE allows "
                f"letters without accents, digits, - and _, at most {LONGEST}; rename it in the "
                "study, and in the silo column if there is one"
            )
        if name.lower() in {SERVER, ADMIN, AUTHORITY}:
            raise SettingsError(
                f"the silo {name!r} has the name of another folder of the federation; rename it "
                "in the study"
            )
    folded = [name.lower() for name in silos]
    twice = next((name for name in silos if folded.count(name.lower()) > 1), None)
    if twice is not None:
        raise SettingsError(
            f"the silo {twice!r} and another differ only in capitals, and so would their "
            "folders; rename one in the study"
        )


def _project(silos: Sequence[str], host: str, port: int) -> dict[str, Any]:
    return {
        "api_version": 3,
        "name": PROJECT,
        "description": PROJECT,
        "participants": [
            {"name": host, "type": "server", "org": ORGANISATION, "fed_learn_port": port},
            *map(site_entry, silos),
            {"name": USER, "type": "admin", "org": ORGANISATION, "role": "project_admin"},
        ],
        "builders": [
            {
                "path": f"{BUILDERS}workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            {
                "path": f"{BUILDERS}static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": SCHEME},
            },
            {"path": f"{BUILDERS}cert.CertBuilder", "args": {"root_valid_days": DAYS}},
            {"path": f"{BUILDERS}signature.SignatureBuilder"},
        ],
    }


def _found(authority: Path, host: str, port: int) -> None:
    """Let FLARE make an authority of the kind that approves requests."""
    server = {"host": host, "fed_learn_port": port}
    profile = {"name": PROJECT, "scheme": SCHEME, "connection_security": "mtls", "server": server}
    write_json(authority / PROFILE, profile)
    place = ("--profile", (authority / PROFILE).resolve(), "--output-dir", authority.resolve())
    run_tool("cert", "init", *place, "--valid-days", str(DAYS), advice="see to the folder")


def _use_root(project: Any, authority: Path) -> None:
    """Let the authority that is there already sign, instead of one that FLARE makes."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = (authority / ROOT_KEY).read_bytes()
    project.root_private_key = load_pem_private_key(key, password=None)
    project.serialized_root_cert = (authority / ROOT).read_bytes()


def _build(described: dict[str, Any], root: Path) -> Path:
    """Let FLARE make the kits; return the folder that has them."""
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.provision import prepare_builders, prepare_packager, prepare_project
    from nvflare.lighter.provisioner import Provisioner

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            project = prepare_project(described)
            if (root / ROOT_KEY).exists():
                _use_root(project, root)
            builders, packager = prepare_builders(described), prepare_packager(described)
            context = Provisioner(str(root), builders, packager).provision(project)
        except ValueError as error:
            raise SettingsError(f"FLARE cannot provision this federation: {error}") from error
    if context.get(CtxKey.BUILD_ERROR):
        last = said.getvalue().strip().splitlines()[-1:]
        raise SettingsError(f"FLARE cannot provision this federation: {' '.join(last)}")
    return root / PROJECT / str(context[CtxKey.CURRENT_PROD_DIR]).rpartition("/")[2]
