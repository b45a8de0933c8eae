"""One start-up kit for the server, each silo and the coordinator's user, with certificates."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

from silomix.errors import MissingDependency, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROJECT = "silomix"
SERVER, ADMIN, AUTHORITY = "server", "admin", "authority"
"""Names of the folders that are no silo's."""
USER = "coordinator@silomix.org"
ORGANISATION = "silomix"
LONGEST = 60
BUILDERS = "nvflare.lighter.impl."


def provision(
    silos: Sequence[str], out: Path, *, host: str = "localhost", port: int = 8002
) -> Path:
    """Make the kits of a federation under `out`; return that folder.

    Parameters
    ----------
    silos : the roster; each name becomes the name in a certificate.
    out : a new folder: ``server``, ``admin`` and one folder for each silo, to hand over, and
        ``authority``, which signs and stays with whoever provisions.
    host : name by which the sites reach the server; it is in the server's certificate.
    port : where the server listens.
    """
    require_flare()
    check_names(silos)
    if out.exists() and any(out.iterdir()):
        raise SettingsError(f"{out} is not empty; give a new folder for the start-up kits")
    authority = out / AUTHORITY
    authority.mkdir(parents=True, mode=0o700)  # the key that signs everyone's certificate
    try:
        made = _build(_project(silos, host, port), authority)
    except SettingsError:
        shutil.rmtree(authority)
        raise
    shutil.move(made / host, out / SERVER)
    shutil.move(made / USER, out / ADMIN)
    for name in silos:
        shutil.move(made / name, out / name)
    made.rmdir()
    return out


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
    site = {"type": "client", "org": ORGANISATION, "allow_log_streaming": False}
    return {
        "api_version": 3,
        "name": PROJECT,
        "description": PROJECT,
        "participants": [
            {"name": host, "type": "server", "org": ORGANISATION, "fed_learn_port": port},
            *({"name": name, **site} for name in silos),
            {"name": USER, "type": "admin", "org": ORGANISATION, "role": "project_admin"},
        ],
        "builders": [
            {
                "path": f"{BUILDERS}workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            {
                "path": f"{BUILDERS}static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "grpc"},
            },
            {"path": f"{BUILDERS}cert.CertBuilder"},
            {"path": f"{BUILDERS}signature.SignatureBuilder"},
        ],
    }


def _build(project: dict[str, Any], root: Path) -> Path:
    """Let FLARE make the kits; return the folder that has them."""
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.provision import prepare_builders, prepare_packager, prepare_project
    from nvflare.lighter.provisioner import Provisioner

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            maker = Provisioner(str(root), prepare_builders(project), prepare_packager(project))
            context = maker.provision(prepare_project(project))
        except ValueError as error:
            raise SettingsError(f"FLARE cannot provision this federation: {error}") from error
    if context.get(CtxKey.BUILD_ERROR):
        last = said.getvalue().strip().splitlines()[-1:]
        raise SettingsError(f"FLARE cannot provision this federation: {' '.join(last)}")
    return root / PROJECT / str(context[CtxKey.CURRENT_PROD_DIR]).rpartition("/")[2]
