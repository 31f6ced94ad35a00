"""What Java must be told of this machine's network that other programs find by themselves: the proxy, and whom the machine trusts."""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

# Java's own format for trusted certificates: published, and simple enough to write (JavaKeyStore: magic, version, entries, digest).
MAGIC, VERSION, TRUSTED = 0xFEEDFEED, 2, 2
PASSWORD = "changeit"
SALT = b"Mighty Aphrodite"
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


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
