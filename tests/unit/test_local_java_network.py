"""Proxy and trust, as Java wants them told."""

from __future__ import annotations

import base64
import hashlib
import struct
from pathlib import Path

from message_lifecycle.local.java import PASSWORD, SALT, key_store, proxy_options, trust_options, trusted_here


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
    assert trusted_here({"SSL_CERT_FILE": str(bundle(tmp_path, *certificates))}) == certificates


def test_the_store_holds_them_in_javas_format() -> None:
    store = key_store((b"one", b"three"))
    assert struct.unpack(">III", store[:12]) == (0xFEEDFEED, 2, 2)
    assert b"\0\x05X.509" + struct.pack(">I", 3) + b"one" in store
    assert store[-20:] == hashlib.sha1(PASSWORD.encode("utf-16-be") + SALT + store[:-20]).digest()


def test_options_name_the_store(tmp_path: Path) -> None:
    options = trust_options(tmp_path, {"SSL_CERT_FILE": str(bundle(tmp_path, b"one"))})
    assert options[0] == f'"-Djavax.net.ssl.trustStore={tmp_path / "trusted.jks"}"'
    assert (tmp_path / "trusted.jks").is_file()
