"""What is installed is what is pinned, and what is pinned is what was asked for."""

from __future__ import annotations

import re
from importlib.metadata import distributions, entry_points, version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.files import ROOT

PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)(?: ; ([^\\]+?))? \\$", re.MULTILINE)


def asked_for() -> list[Requirement]:
    lines = (ROOT / "requirements.in").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pins() -> dict[str, tuple[str, str | None]]:
    """Name -> version and condition."""
    return {
        name: (pinned, condition or None)
        for name, pinned, condition in PIN.findall((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    }


def test_spark_and_its_client_are_one_version() -> None:
    # Both own the same folder: of two versions, the files of one would overwrite half of the other's, in any order.
    assert version("pyspark") == version("pyspark-client")


@pytest.mark.parametrize("requirement", asked_for(), ids=lambda requirement: requirement.name)
def test_the_lock_has_what_was_asked_for(requirement: Requirement) -> None:
    found = pins().get(canonicalize_name(requirement.name))
    assert found is not None, f"{requirement.name} is not in requirements.txt: make lock"
    assert requirement.specifier.contains(found[0], prereleases=True), f"{requirement} is not what is pinned ({found[0]}): make lock"


def test_every_pin_has_a_hash() -> None:
    lock = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    blocks = re.split(r"(?m)^(?=[a-z0-9])", lock)[1:]
    assert len(blocks) == len(pins())
    assert [block.split("==")[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_what_is_installed_is_what_is_pinned() -> None:
    wanted = {name: pinned for name, (pinned, _) in pins().items()}
    installed = {canonicalize_name(found.metadata["Name"]): found.version for found in distributions()}
    # pip comes with every virtual environment, and the project is no dependency of itself.
    strange = {name for name in installed if wanted.get(name) != installed[name]} - {"pip", "message-lifecycle"}
    assert strange == set(), "make install"


def test_the_command_is_installed() -> None:
    (command,) = entry_points(group="console_scripts", name="lifecycle")
    assert command.value == "message_lifecycle.app.cli:program"
    assert callable(command.load())
