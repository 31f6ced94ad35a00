"""Which Java is taken, what the shim before it takes away, and proxy and trust as Java wants them told."""

from __future__ import annotations

import base64
import hashlib
import struct
import subprocess
from pathlib import Path

import pytest

from lifecycle_local.java import (
    PASSWORD,
    SALT,
    SPARK_MODULE_OPTION,
    build_trust_store,
    find_java,
    parse_major,
    parse_version,
    proxy_options,
    shim_script,
    trust_options,
    trusted_certificates,
)
from lifecycle_local.layout import Layout
from tests.errors import raises

DEBIAN = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)\n'


@pytest.mark.parametrize(
    ("answer", "major"),
    [
        (DEBIAN, 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "22-ea"', 22),
        ("bash: java", None),
    ],
)
def test_the_feature_release(answer: str, major: int | None) -> None:
    assert parse_major(answer) == major


def test_the_build_tells_two_runtimes_of_one_release_apart() -> None:
    assert parse_version(DEBIAN) == "17.0.15+6-Debian-1deb12u1"


def fake_java(home: Path, version: str, *, has_module: bool = True) -> Path:
    """A runtime that says what it is told to say."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    refusal = "" if has_module else f'for a in "$@"; do [ "$a" = {SPARK_MODULE_OPTION} ] && exit 1; done\n'
    command.write_text(f"#!/bin/sh\n{refusal}echo 'openjdk version \"{version}\"' >&2\n")
    command.chmod(0o755)
    return home


def layout_in(folder: Path) -> Layout:
    return Layout(project=folder, state=folder / ".lifecycle")


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    named, on_path = fake_java(tmp_path / "named", "17.0.1"), fake_java(tmp_path / "path", "21.0.1")
    environ = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert find_java(layout_in(tmp_path), environ).runtime == named
    assert find_java(layout_in(tmp_path), {"PATH": str(on_path / "bin")}).runtime == on_path


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_402", "23.0.1", "25"])
def test_a_java_that_spark_cannot_use_is_passed_over(tmp_path: Path, version: str) -> None:
    unfit, fit = fake_java(tmp_path / "unfit", version), fake_java(tmp_path / "fit", "17.0.1")
    assert find_java(layout_in(tmp_path), {"JAVA_HOME": str(unfit), "PATH": str(fit / "bin")}).runtime == fit


def test_what_each_candidate_answered_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with raises("JavaMissing", match="is Java 11, Spark needs 17 to 22"):
        find_java(layout_in(tmp_path), {"JAVA_HOME": str(fake_java(tmp_path / "old", "11.0.2")), "PATH": "/nowhere"})
    with raises("JavaMissing", match="JAVA_HOME and PATH name none"):
        find_java(layout_in(tmp_path), {"PATH": "/nowhere"})


def test_the_shim_is_never_taken_for_a_runtime(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    first = find_java(layout, {"JAVA_HOME": str(fake_java(tmp_path / "j", "17.0.1")), "PATH": "/nowhere"})
    assert first.home == layout.java
    second = find_java(layout, {"JAVA_HOME": str(layout.java), "PATH": str(tmp_path / "j" / "bin")})
    assert second == first


def through_shim(tmp_path: Path, *arguments: str, conf: str = "/my state/spark") -> list[str]:
    """What reaches Java."""
    java = tmp_path / "a java"
    java.write_text('#!/bin/sh\nfor a do echo "[$a]"; done\n')
    java.chmod(0o755)
    shim = tmp_path / "shim"
    shim.write_text(shim_script(java, conf=Path(conf)))
    answer = subprocess.run(["/bin/sh", str(shim), *arguments], capture_output=True, text=True, check=True)
    return [line[1:-1] for line in answer.stdout.splitlines()]


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("/j/a.jar:/my state/spark/:/jars/*", "/j/a.jar:/jars/*"),
        ("/my state/spark/:/jars/*", "/jars/*"),
        ("/jars/*:/my state/spark/", "/jars/*"),
        ("/jars/*", "/jars/*"),
        ("/other/my state/spark/:/jars/*", "/other/my state/spark/:/jars/*"),
    ],
)
def test_the_configuration_folder_leaves_the_class_path(tmp_path: Path, given: str, left: str) -> None:
    command = ["-Xmx1g", "-cp", given, "Main", "an argument with spaces", "$HOME", ""]
    assert through_shim(tmp_path, *command) == ["-Xmx1g", "-cp", left, *command[3:]]


def test_only_the_class_path_is_touched(tmp_path: Path) -> None:
    assert through_shim(tmp_path, "Main", "a:/my state/spark/:b") == ["Main", "a:/my state/spark/:b"]


def test_a_module_that_java_would_warn_of_at_every_start_is_not_asked_for(tmp_path: Path) -> None:
    command = [SPARK_MODULE_OPTION, "--add-modules=java.sql", "-cp", "/my state/spark/:/a.jar", "Main"]
    assert through_shim(tmp_path, *command) == ["--add-modules=java.sql", "-cp", "/a.jar", "Main"]


def test_a_runtime_without_the_module_is_taken_behind_the_shim(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    find_java(layout, {"JAVA_HOME": str(fake_java(tmp_path / "j", "17.0.1", has_module=False)), "PATH": "/nowhere"})
    answer = subprocess.run([layout.java / "bin" / "java", SPARK_MODULE_OPTION, "-version"], capture_output=True, check=False)
    assert answer.returncode == 0


def test_a_proxy_of_the_environment_becomes_options() -> None:
    assert proxy_options({}) == ()
    found = proxy_options({"https": "http://user:secret@proxy.example:3128", "http": "http://proxy.example"})
    assert found == (
        "-Dhttp.proxyHost=proxy.example",
        "-Dhttp.proxyPort=80",
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
    )


def bundle(folder: Path, *certificates: bytes) -> Path:
    """A bundle as distributions write it, remarks between the certificates."""
    file = folder / "bundle.crt"
    blocks = [
        f"# number {n}\n-----BEGIN CERTIFICATE-----\n{base64.encodebytes(der).decode()}-----END CERTIFICATE-----\n"
        for n, der in enumerate(certificates)
    ]
    file.write_text("".join(blocks))
    return file


def test_every_certificate_of_the_machine_is_found(tmp_path: Path) -> None:
    certificates = (b"first" * 40, b"second" * 40)
    assert trusted_certificates({"SSL_CERT_FILE": str(bundle(tmp_path, *certificates))}) == certificates


def test_the_store_holds_them_in_javas_format() -> None:
    store = build_trust_store((b"one", b"three"))
    assert struct.unpack(">III", store[:12]) == (0xFEEDFEED, 2, 2)
    assert b"\0\x05X.509" + struct.pack(">I", 3) + b"one" in store
    assert store[-20:] == hashlib.sha1(PASSWORD.encode("utf-16-be") + SALT + store[:-20]).digest()


def test_options_name_the_store(tmp_path: Path) -> None:
    options = trust_options(tmp_path, {"SSL_CERT_FILE": str(bundle(tmp_path, b"one"))})
    assert options[0] == f'"-Djavax.net.ssl.trustStore={tmp_path / "trusted.jks"}"'
    assert (tmp_path / "trusted.jks").is_file()
