"""Enrolment by certificate request: keys stay where they are made, and wrong papers are refused."""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import warnings
import zipfile
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="the extra flare is not installed")

import nvflare.cli
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from nvflare.lighter.utils import sign_content

from silomix import cli
from silomix.errors import FileError, SettingsError
from silomix.model.schema import Schema, Variable
from silomix.study import make_study, write_study
from silomix.transports.flare import startup_kit
from silomix.transports.flare.participant import check_kit, startup_files
from silomix.transports.flare.startup_kit import (
    enrol_site,
    provision,
    request_certificate,
    sign_request,
)

STUDY = make_study(Schema((Variable("a", ("no", "yes")),)), ["north", "south"], seed=1)
KEYS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL
)


def run_here(command, **_):
    """Stand in for `subprocess.run` of FLARE's command, whose start takes seconds."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(sys, "argv", command[command.index("nvflare.cli") :])
        patch.setattr(sys, "path", [*sys.path])
        with redirect_stdout(said), redirect_stderr(None), suppress(SystemExit):
            nvflare.cli.main()
    return SimpleNamespace(stdout=said.getvalue(), stderr="")


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    """FLARE in this process, its records of the kits in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(startup_kit, "subprocess", SimpleNamespace(run=run_here, DEVNULL=None))
        yield


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """A federation that signs, another, and north's request signed by each: made once."""
    root = tmp_path_factory.mktemp("enrol")
    made, foreign = root / "kits", root / "foreign"
    signed, strange = root / "north.signed.zip", root / "strange.zip"
    before = os.umask(0)  # a careless one: what is private is so whatever it says
    try:
        told = provision(STUDY.silos, made)
        provision(STUDY.silos, foreign, trial=True)
        asked, key = request_certificate("north", root / "north")
        other, other_key = request_certificate("north", root / "other")
        fingerprint = sign_request(asked, made / "authority", "north", key=key, out=signed)
        sign_request(asked, foreign / "authority", "north", key=key, out=strange)
        enrolled = enrol_site(signed, root / "north", root / "kit", authority=fingerprint)
    finally:
        os.umask(before)
    return SimpleNamespace(
        kits=made, foreign=foreign, request=root / "north", asked=asked, key=key, other=other,
        other_key=other_key, signed=signed, strange=strange, fingerprint=fingerprint, told=told,
        enrolled=enrolled, kit=root / "kit",
    )  # fmt: skip


@pytest.fixture
def authority(papers, tmp_path):
    """An authority of one's own, to spoil, which has signed nothing yet."""
    folder = shutil.copytree(papers.kits / "authority", tmp_path / "authority")
    shutil.rmtree(folder / "issued")
    return folder


def key_of(path):
    return load_pem_private_key(path.read_bytes(), password=None)


def certificate_of(content):
    return x509.load_pem_x509_certificate(content)


def public(key):
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def private_keys(folder):
    """Every private key in the files of a folder, as its public half."""
    found = set()
    for path in filter(Path.is_file, folder.rglob("*")):
        text = path.read_bytes().decode("latin-1").replace("\\n", "\n")
        keys = (load_pem_private_key(key.encode(), password=None) for key in KEYS.findall(text))
        found |= {public(key) for key in keys}
    return found


def contents(file):
    with zipfile.ZipFile(file) as members:
        return {name: members.read(name) for name in members.namelist()}


def changed(file, path, changes):
    """Write a copy of a zip file with some members changed: to bytes, or in fields of JSON."""
    members = contents(file)
    for name, change in changes.items():
        if isinstance(change, dict):
            change = json.dumps(json.loads(members[name]) | change).encode()
        members[name] = change
    with zipfile.ZipFile(path, "w") as written:
        for name, content in members.items():
            written.writestr(name, content)
    return path


class TestKeys:
    @pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
    def test_only_its_owner_may_read_a_key(self, papers):
        for made in (papers.kits, papers.foreign):
            authority = made / "authority"
            keys = [authority / "rootCA.key", authority / "silomix" / "state" / "cert.json"]
            keys += [papers.request / "north.key", papers.kit / "startup" / "client.key"]
            modes = [
                stat.S_IMODE(path.stat().st_mode) for path in (papers.request, authority, *keys)
            ]
            assert modes == [0o700] * 2 + [0o600] * 4

    def test_the_coordinator_has_no_key_of_a_silo(self, papers):
        own = public(key_of(papers.request / "north.key"))
        held = private_keys(papers.kits)
        assert own not in held
        named = ["authority/rootCA.key", "server/startup/server.key", "admin/startup/client.key"]
        assert held == {public(key_of(papers.kits / name)) for name in named}
        assert {path.name for path in papers.kits.iterdir()} == {"admin", "authority", "server"}
        assert private_keys(papers.kit) == {own}
        provisioned = public(key_of(papers.foreign / "north" / "startup" / "client.key"))
        assert provisioned in private_keys(papers.foreign / "authority")  # the other way

    def test_nothing_that_is_sent_has_a_key(self, papers):
        for file in (papers.asked, papers.signed):
            assert not any(b"PRIVATE" in content for content in contents(file).values())

    def test_the_kit_is_the_silos_and_trusts_the_authority(self, papers):
        assert papers.enrolled == ("north", "grpc://localhost:8002")
        assert papers.fingerprint == papers.told
        assert check_kit(papers.kit, "client") == "north"
        root = (papers.kits / "authority" / "rootCA.pem").read_bytes()
        startup = papers.kit / "startup"
        assert (startup / "rootCA.pem").read_bytes() == root
        certificate = certificate_of((startup / "client.crt").read_bytes())
        certificate.verify_directly_issued_by(certificate_of(root))


def reissued(certificate, authority):
    """The same certificate, signed by the authority for last year."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(certificate.subject)
        .issuer_name(certificate_of((authority / "rootCA.pem").read_bytes()).subject)
        .public_key(certificate.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=400))
        .not_valid_after(now - datetime.timedelta(days=40))
    )
    for extension in certificate.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    return builder.sign(key_of(authority / "rootCA.key"), hashes.SHA256()).public_bytes(
        Encoding.PEM
    )


class TestSigning:
    def refused(self, papers, authority, words, request=None, silo="north", key=None):
        out = authority.parent / "signed.zip"
        with pytest.raises((FileError, SettingsError), match=words):
            sign_request(request or papers.asked, authority, silo, key=key or papers.key, out=out)
        assert not out.exists() and not (authority / "issued").exists()

    def test_a_request_in_another_name_or_with_another_key(self, papers, authority):
        self.refused(papers, authority, "has the name 'north', not 'south'", silo="south")
        self.refused(papers, authority, "has the public_key_sha256", papers.other)
        for text in ("-", "12:34", "SHA256:" + "0" * 63, "g" * 64):
            self.refused(papers, authority, "is not a SHA-256 fingerprint", key=text)

    def test_a_request_changed_on_the_way(self, papers, authority, tmp_path):
        other = contents(papers.other)["north.csr"]
        der = x509.load_pem_x509_csr(contents(papers.asked)["north.csr"]).public_bytes(Encoding.DER)
        flipped = der[:-1] + bytes([der[-1] ^ 1])
        forged = x509.load_der_x509_csr(flipped).public_bytes(Encoding.PEM)

        def rehashed(csr):
            hashed = {"csr_sha256": hashlib.sha256(csr).hexdigest()}
            return {"north.csr": csr, "request.json": hashed}

        for words, change in (
            ("CSR hash does not match", {"north.csr": other}),
            ("CSR public key hash does not match", rehashed(other)),
            (".*CSR", rehashed(forged)),
        ):
            request = changed(papers.asked, tmp_path / "r.zip", change)
            self.refused(papers, authority, f"FLARE refuses: {words}", request)
        renamed = changed(papers.asked, tmp_path / "r.zip", {"request.json": {"name": "south"}})
        self.refused(papers, authority, "FLARE refuses", renamed, silo="south")

    def test_only_silos_are_enrolled(self, papers, authority, tmp_path):
        for said in (
            {"kind": "server", "cert_type": "server"},
            {"kind": "user", "cert_type": "lead"},
            {"cert_type": "project_admin"},
            {"org": "elsewhere"},
        ):
            request = changed(papers.asked, tmp_path / "r.zip", {"request.json": said})
            self.refused(papers, authority, "sign only what", request)

    def test_a_damaged_request(self, papers, authority, tmp_path):
        request, good = tmp_path / "r.zip", papers.asked.read_bytes()
        self.refused(papers, authority, "or is damaged", request)
        for said in (b"[" * 100_000, b" " * (2 << 20) + b"{}", b"[]", b"1"):
            changed(papers.asked, request, {"request.json": said})
            self.refused(papers, authority, "or is damaged|sign only what", request)
        for content in (
            b"",
            bytes(1 << 21),
            good[: len(good) // 2],
            good.replace(b"request.json", b"request.jsan"),
            good[:60] + b"\xff" * 40 + good[100:],
        ):
            request.write_bytes(content)
            self.refused(papers, authority, "or is damaged", request)

    def test_an_authority_that_has_expired_or_is_none(self, papers, authority, tmp_path):
        root = certificate_of((authority / "rootCA.pem").read_bytes())
        (authority / "rootCA.pem").write_bytes(reissued(root, authority))
        (authority / "ca.json").write_text(json.dumps({"project": "silomix"}))
        self.refused(papers, authority, "FLARE refuses: .*CA certificate expired")
        self.refused(papers, tmp_path / "absent", "FLARE refuses")

    def test_a_second_certificate_is_given_on_purpose_only(self, papers, authority, tmp_path):
        out = tmp_path / "signed.zip"
        found = sign_request(papers.asked, authority, "north", key=papers.key, out=out)
        assert found == papers.fingerprint
        other = {"key": papers.other_key, "out": out}
        with pytest.raises(SettingsError, match=r"has a certificate already, .*stays valid until"):
            sign_request(papers.other, authority, "north", **other)
        assert sign_request(papers.other, authority, "north", again=True, **other)


class TestEnrolling:
    def refused(self, papers, folder, words, *, signed=None, request=None):
        out = folder / "site" / "kit"
        papers_of_the_site = (signed or papers.signed, request or papers.request)
        with pytest.raises(FileError, match=words):
            enrol_site(*papers_of_the_site, out, authority=papers.fingerprint)
        assert not out.parent.exists() or not list(out.parent.iterdir())

    def test_an_answer_changed_on_the_way(self, papers, tmp_path):
        strange = contents(papers.strange)
        server = {"host": "evil.example", "fed_learn_port": 8002, "admin_port": 8002}
        for words, change in (
            ("signature is invalid", {"rootCA.pem": strange["rootCA.pem"]}),
            ("signature is invalid", {"signed.json": {"server": server}}),
            ("Hash mismatch for cert", {"north.crt": strange["north.crt"]}),
        ):
            signed = changed(papers.signed, tmp_path / "s.zip", change)
            self.refused(papers, tmp_path, f"FLARE refuses: .*{words}", signed=signed)
        words = "FLARE refuses: Root CA SHA256 fingerprint does not match"
        self.refused(papers, tmp_path, words, signed=papers.strange)

    def test_what_the_authority_should_not_have_signed(self, papers, tmp_path):
        """A certificate that has expired, and connections without certificates."""
        authority, sent = papers.kits / "authority", contents(papers.signed)
        old = reissued(certificate_of(sent["north.crt"]), authority)
        hashed = json.loads(sent["signed.json"])["hashes"]
        hashed |= {"certificate_sha256": hashlib.sha256(old).hexdigest()}
        for words, said, more in (
            ("FLARE refuses: .*expired", {"hashes": hashed}, {"north.crt": old}),
            ('"connection_security": "clear"', {"default_connection_security": "clear"}, {}),
            ("s.zip/startup/.* no kit needs: .*http", {"scheme": "http"}, {}),
        ):
            content = json.dumps(json.loads(sent["signed.json"]) | said).encode()
            signature = sign_content(content, key_of(authority / "rootCA.key")).encode()
            changes = {"signed.json": content, "signed.json.sig": signature} | more
            signed = changed(papers.signed, tmp_path / "s.zip", changes)
            self.refused(papers, tmp_path, words, signed=signed)

    def test_the_authority_brings_no_code(self, papers, tmp_path):
        """Its builders are not ours: of what it signs, certificates and the address are kept."""
        authority, sent = papers.kits / "authority", contents(papers.signed)
        marker, out = tmp_path / "marker", tmp_path / "kit"
        evil = {"path": "subprocess.Popen", "args": {"args": ["touch", str(marker)]}}
        site = sent["site.yaml"] + f"builders: [{json.dumps(evil)}]\ncomponents: [1]\n".encode()
        content = json.loads(sent["signed.json"])
        content["hashes"]["site_yaml_sha256"] = hashlib.sha256(site).hexdigest()
        content = json.dumps(content).encode()
        signature = sign_content(content, key_of(authority / "rootCA.key")).encode()
        changes = {"signed.json": content, "signed.json.sig": signature, "site.yaml": site}
        signed = changed(papers.signed, tmp_path / "s.zip", changes)
        enrol_site(signed, papers.request, out, authority=papers.fingerprint)
        kept = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
        assert kept == {f"startup/{name}" for name in startup_files("client")}
        assert json.loads((out / "startup" / "fed_client.json").read_text()).keys() == {
            "format_version",
            "servers",
            "client",
        }
        assert not marker.exists()
        with zipfile.ZipFile(signed, "a") as written:
            written.writestr("local/custom/evil.py", "")
        self.refused(papers, tmp_path, "Invalid path in signed zip", signed=signed)

    def test_another_request_or_key_than_was_signed(self, papers, tmp_path):
        other = papers.other.parent
        self.refused(papers, tmp_path, "does not match the signed zip request_id", request=other)
        folder = shutil.copytree(papers.request, tmp_path / "request")
        shutil.copy(other / "north.key", folder)
        words = "The local private key does not match the signed certificate"
        self.refused(papers, tmp_path, words, request=folder)
        self.refused(papers, tmp_path, "FLARE refuses", request=tmp_path)
        self.refused(papers, tmp_path, "there is no file", signed=tmp_path / "absent.zip")


def run(*words):
    return CliRunner().invoke(cli.app, ["flare", *(str(word) for word in words)])


def done(*words):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_page_works_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_study(STUDY, Path("study.toml"))
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "flare.md").read_text("utf-8")
    section = page.partition("## Who makes the keys")[2].partition("\n### ")[0]
    printed = re.findall(r"^\$ silomix flare (.*)$", section, re.MULTILINE)
    provisioning, requesting, signing, enrolling = lines = [*map(shlex.split, printed)]
    assert [line[0] for line in lines] == ["provision", "request", "sign", "enrol"]
    told = done(*provisioning)
    assert told["kits"] == ["kits/server", "kits/admin"]
    with monkeypatch.context() as patch:
        patch.setattr(startup_kit, "subprocess", subprocess)  # one of them as it is
        asked = done(*requesting)
    shutil.copy(asked["request"], tmp_path)  # all that is sent
    signing[signing.index("SHA256:...")] = asked["fingerprint"]
    assert done(*signing)["fingerprint"] == told["fingerprint"]
    enrolling[enrolling.index("SHA256:...")] = told["fingerprint"]
    server = "grpc://coordinator.example.org:8002"
    assert done(*enrolling) == {"kit": "north-kit", "silo": "north", "server": server}
    again = run(*signing)
    assert again.exit_code == 4
    assert "give --force to replace" in again.output
    shown = run(*signing, "--force")
    assert f"Fingerprint of the authority: {told['fingerprint']}" in shown.output.splitlines()
    stranger = run("request", "study.toml", "--silo", "east", "--out", "east")
    assert stranger.exit_code == 5


def test_a_trial_says_who_has_the_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_study(STUDY, Path("study.toml"))
    shown = run("provision", "study.toml", "--trial", "--out", "kits").output
    assert "This is a trial: you have every silo's private key" in " ".join(shown.split())
    assert len(private_keys(Path("kits/north"))) == 1


def test_a_host_that_is_no_name(tmp_path):
    with pytest.raises(SettingsError, match=r"FLARE cannot provision this federation: .*host"):
        provision(["north"], tmp_path / "kits", host="not a host")
    assert not list((tmp_path / "kits").iterdir())
