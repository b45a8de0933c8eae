"""How a participant starts: a check of its kit, a folder made for FLARE, and the process in it.

A kit may come from somebody else, and FLARE runs what it finds in its folder: components named in
any configuration file, modules in ``local/custom``, handlers of the log. So FLARE never runs in a
kit. At each start ``run/`` is made anew inside it: configuration from the installed packages, and
from the kit only the certificates, the private key and the server's address. A kit that has more
is refused. The participant's settings and rules are in ``run/local``, where no job can set them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from silomix.errors import FileError, MissingDependency, SettingsError
from silomix.model.files import OWNERS_FOLDER, replace_file, writing
from silomix.model.sentences import cores
from silomix.silo.answer import check_allowed
from silomix.silo.local import Loaded, Silo, open_site
from silomix.silo.local import without as leave_out
from silomix.study import digest, read_study
from silomix.study.policy import find_policy

PROJECT = ORGANISATION = "silomix"
USER = "coordinator@silomix.org"
SCHEME = "grpc"
CONTROLLER = "silomix.transports.flare.controller.StudyController"
EXECUTOR = "silomix.transports.flare.executor.SiloExecutor"
RUN, PREVIOUS = "run", "run.previous"
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
    # no module is imported from the folder that a process runs in
    "PYTHONSAFEPATH": "1",
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
    check_allowed(plan, rules, name)  # before a store that another policy could not use
    where |= {"store": Path(store, digest(plan)[:16]), "ledger": ledger and Path(ledger)}
    silo, loaded = open_site(Path(data), plan, name, policy=rules, **where)
    return replace(silo, threads=cores(threads)), loaded


def require_flare() -> None:
    """Refuse at the door where NVIDIA FLARE is not installed."""
    if find_spec("nvflare") is None:
        raise MissingDependency("a live federation needs the package nvflare", extra="flare")


def build_kits(
    root: Path, host: str, port: int, silos: Sequence[str] = (), *, authority: Path | None = None
) -> Path:
    """Let FLARE build its own kits, from the templates of the installed package.

    Parameters
    ----------
    root : the folder that FLARE works in.
    authority : the folder whose key signs certificates; none are made when None.

    Returns
    -------
    The folder that has a folder for the server, named as its host, one for `USER`, and one for
    each silo.
    """
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner
    from nvflare.lighter.utils import load_private_key_file

    builders = [WorkspaceBuilder(), StaticFileBuilder(config_folder="config", scheme=SCHEME)]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            project = Project(PROJECT, PROJECT, props={"api_version": 3})
            if authority is not None:
                builders.append(CertBuilder())
                project.root_private_key = load_private_key_file(authority / "rootCA.key")
                project.serialized_root_cert = (authority / "rootCA.pem").read_bytes()
            project.set_server(host, ORGANISATION, {"fed_learn_port": port})
            project.add_admin(USER, ORGANISATION, {"role": "project_admin"})
            for silo in silos:
                project.add_client(silo, ORGANISATION, {"allow_log_streaming": False})
            done = Provisioner(str(root), builders).provision(project)
        except ValueError as error:
            raise SettingsError(f"FLARE cannot provision this federation: {error}") from error
    if done.get(CtxKey.BUILD_ERROR):
        raise SettingsError(f"FLARE cannot provision this federation: {printed.getvalue()[-300:]}")
    return root / PROJECT / Path(done[CtxKey.CURRENT_PROD_DIR]).name


def startup_files(kind: str) -> tuple[str, ...]:
    """Files of a kit, all in ``startup/``, of a "server" or a "client"."""
    return f"fed_{kind}.json", f"{kind}.crt", f"{kind}.key", "rootCA.pem"


def kit_folder(kit: Path, kind: str) -> Path:
    """Whole path of a kit, after a check that it is a "server", "client" or "admin"."""
    require_flare()
    if not (kit / "startup" / f"fed_{kind}.json").is_file():
        raise FileError(
            f"{kit} is not the start-up kit of a FLARE {kind}: it has no startup/fed_{kind}.json; "
            "give the folder that `silomix flare provision`, or `enrol` for a site, made for it"
        )
    return kit.resolve()


def check_kit(kit: Path, kind: str) -> str:
    """Owner of a kit, checked: a silo's name, or the server's host.

    Raises
    ------
    FileError
        When there is anything in it but certificates, a key and the server's address.
    """
    with tempfile.TemporaryDirectory() as scratch:
        return _rebuild(kit_folder(kit, kind), kind, Path(scratch)).name


def server_command(kit: Path, journals: Path | None = None) -> list[str]:
    """Make the folder of the server, with its rules, and return the command that starts it.

    Parameters
    ----------
    journals : folder of the silos' answers; in the kit when None.
    """
    run, resources = _make_run(kit, "server", CONTROLLER)
    resources["servers"][0]["heart_beat_timeout"] = DEAD_AFTER
    # FLARE's own places for these are outside the kit
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(run.parent / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(run.parent / "jobs")
    write_json(run / RESOURCES, resources)
    settings = {"journals": str((journals or run.parent / "journals").resolve())}
    write_json(run / "local" / SETTINGS_FILE, settings, private=True)
    return _command(run, "server", "nvflare.private.fed.app.server.server_train")


def site_command(kit: Path, settings: Mapping[str, Any]) -> list[str]:
    """Make the folder of a site, with its rules and settings, and return its start command.

    Parameters
    ----------
    settings : of `open_own_silo`.
    """
    run, resources = _make_run(kit, "client", EXECUTOR)
    resources["allow_log_streaming"] = False
    parts = resources["components"]
    resources["components"] = [part for part in parts if part["id"] != "site_log_streamer"]
    write_json(run / RESOURCES, resources)
    rules = read_json(run / "local" / "authorization.json.default")
    rules["permissions"] = {"project_admin": AT_A_SITE}
    write_json(run / "local" / "authorization.json", rules)
    write_json(run / "local" / SETTINGS_FILE, settings, private=True)
    name = read_json(run / "startup" / "fed_client.json")["client"]["fqsn"]
    more = f"uid={name}", f"heart_beat_interval={HEARTBEAT}"
    return _command(run, "client", "silomix.transports.flare.executor", *more)


def become(command: list[str]) -> None:
    """Turn this process into FLARE's, so that signals reach it."""
    # FLARE's logs and job folders may quote a row: they are their owner's alone
    os.umask(NOBODY_ELSE)
    os.execve(command[0], command, os.environ | VARIABLES)


def read_json(path: Path) -> dict[str, Any]:
    """Content of a JSON file."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def write_json(path: Path, content: Mapping[str, Any], *, private: bool = False) -> None:
    """Write a mapping as JSON, whole or not at all; `private` for its owner alone."""
    replace_file(path, json.dumps(content, indent=1, default=str).encode(), private=private)


def _make_run(kit: Path, kind: str, allowed: str) -> tuple[Path, dict[str, Any]]:
    """Make the folder that FLARE runs in; the one of the last start is kept, for its logs.

    Returns
    -------
    The folder, and its resources, with the one class that a job may name.
    """
    folder = kit_folder(kit, kind)
    with contextlib.suppress(PermissionError):  # one that is shared stays as its owner made it
        folder.chmod(OWNERS_FOLDER)  # it has a private key, logs and settings
    run, previous = folder / RUN, folder / PREVIOUS
    with writing(folder, FileError), tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = _rebuild(folder, kind, Path(scratch))
        for name in startup_files(kind)[1:]:
            shutil.copy(folder / "startup" / name, made / "startup")
        shutil.rmtree(previous, ignore_errors=True)
        if run.exists():
            run.rename(previous)
        made.rename(run)
    return run, read_json(run / f"{RESOURCES}.default") | {"class_allow_list": [allowed]}


def _rebuild(folder: Path, kind: str, scratch: Path) -> Path:
    """Refuse a kit that is more than it should be, and build it again, without certificates."""
    names, startup = startup_files(kind), folder / "startup"
    stray = [path for path in startup.iterdir() if path.name not in names or not path.is_file()]
    stray += (folder / "local").rglob("*")
    stray += (path for path in folder.rglob("*") if path.is_symlink())
    if stray:
        raise FileError(
            f"{min(stray)} does not belong in a start-up kit, and FLARE might run what it names; "
            f"nothing was started. A kit has {', '.join(names)} in startup/, no local/ and no "
            "symbolic links: ask who sent it what the file is for, and use a new kit"
        )
    file = startup / names[0]
    try:
        stated = read_json(file)
        host, _, port = stated["servers"][0]["service"]["target"].rpartition(":")
        silos = [stated["client"]["fqsn"]] if kind == "client" else []
        made = build_kits(scratch, host, int(port), silos) / (*silos, host)[0]
    except Exception as error:  # a stranger's file: JSON, types and names fail in many ways
        raise FileError(
            f"{file} does not say which server to connect to, and as whom "
            f"({type(error).__name__}: {str(error)[:200]}); use a new kit"
        ) from None
    expected = read_json(made / "startup" / names[0])
    if stated != expected:
        keys = sorted(key for key in stated | expected if stated.get(key) != expected.get(key))
        content = json.dumps({key: stated.get(key) for key in keys})
        raise FileError(
            f"{file} has settings that no kit needs: {content[:400]}; nothing was started. Ask "
            "who sent it what they are for, and use a new kit, made with this version of FLARE"
        )
    return made


def _command(run: Path, kind: str, module: str, *more: str) -> list[str]:
    settings = ["secure_train=true", f"org={ORGANISATION}", "config_folder=config", *more]
    options = ["-m", str(run), "-s", f"fed_{kind}.json", "--set", *settings]
    return [sys.executable, "-m", module, *options]
