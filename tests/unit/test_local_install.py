"""The first step of `make`: pins out of the lock, and one configuration for pip and uv."""

from __future__ import annotations

from pathlib import Path

from message_lifecycle.local.install import pinned, pip_settings, uv_environment

LOCK = """\
# made by a program
uv==0.13.9 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via -r requirements.in
uvicorn==0.54.0 \\
    --hash=sha256:cc
setuptools==84.2.1 ; python_version > '3' \\
    --hash=sha256:dd
"""


def test_only_the_asked_for_blocks_and_all_their_hashes() -> None:
    assert pinned(LOCK, ["uv", "setuptools"]) == (
        "uv==0.13.9 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nsetuptools==84.2.1 ; python_version > '3' \\\n    --hash=sha256:dd\n"
    )


def test_pips_configuration_by_rank() -> None:
    listing = ":env:.index-url='from-env'\nglobal.cert='/c'\nglobal.index-url='from-file'\ninstall.timeout='9'\nnot a setting\n"
    assert pip_settings(listing) == {"cert": "/c", "index-url": "from-env", "timeout": "9"}


def test_uv_is_told_what_pip_was_told(tmp_path: Path) -> None:
    found = uv_environment(
        {"index-url": "mirror", "extra-index-url": "more", "cert": "/c", "find-links": f"{tmp_path} /not/there", "quiet": "1"},
        {"HOME": "/h"},
    )
    assert found == {
        "UV_DEFAULT_INDEX": "mirror",
        "UV_INDEX": "more",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/c",
        "UV_FIND_LINKS": str(tmp_path),
        "HOME": "/h",
    }


def test_what_the_user_told_uv_itself_stays() -> None:
    assert uv_environment({"index-url": "pips"}, {"UV_DEFAULT_INDEX": "mine"}) == {"UV_DEFAULT_INDEX": "mine"}


def test_folders_that_are_not_there_leave_no_empty_setting() -> None:
    assert uv_environment({"find-links": "/not/there"}, {}) == {}
