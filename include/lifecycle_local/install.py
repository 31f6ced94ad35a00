"""Fill the virtual environment with exactly the packages of requirements.txt. `make` runs this before anything of the project is installed.

Standard library only. Every environment has pip. pip installs uv and the build backend by their pinned hashes, and uv installs the rest,
from the index in the user's settings of pip: one configuration, not two.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from compileall import compile_dir
from pathlib import Path

PACKAGE = Path("include")
REQUIREMENTS = Path("requirements.txt")
FIRST = ("uv", "setuptools")
SUITES = Path("tests/json_patch")
SUITES_SECONDS = 60
STEPS = 4
SETTING = re.compile(r"^(global|install|:env:)\.([a-z-]+)=(.*)$")
# pip's setting -> uv's variable that means the same.
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}


def extract_pins(lock: str, names: Iterable[str]) -> str:
    """The blocks of these packages, pin and hashes, out of a compiled lock."""
    blocks = [re.search(rf"^{re.escape(name)}==(?:.*\\\n)*.*$", lock, re.MULTILINE) for name in names]
    return "\n".join(block.group(0) for block in blocks if block) + "\n"


def pip_settings(listing: str) -> dict[str, str]:
    """Return the settings in the output of `pip config list`. The environment overrides `install`, which overrides the general section."""
    ranked: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        if found := SETTING.match(line):
            section, name, value = found.groups()
            ranked[section][name] = str(ast.literal_eval(value))
    return ranked["global"] | ranked["install"] | ranked[":env:"]


def uv_environment(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for uv; what the user has set for uv itself stays."""
    wanted = {UV_NAMES[name]: value for name, value in settings.items() if name in UV_NAMES}
    if "UV_FIND_LINKS" in wanted:
        # pip passes over a folder that is not there, uv stops.
        places = [place for place in wanted["UV_FIND_LINKS"].split() if "://" in place or Path(place).is_dir()]
        wanted["UV_FIND_LINKS"] = ",".join(places)
    if "UV_INDEX" in wanted:
        # pip takes the best of all indexes; harmless here, for only pinned hashes are accepted.
        wanted["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {name: value for name, value in wanted.items() if value} | dict(environ)


def fetch_suites(folder: Path) -> str | None:
    """Fetch the test suites that the folder's lock pins, by npm, from the registry in the user's settings.

    Returns:
        The reason why npm failed, or None. A failure is no error, because only the suites' own tests need them.
    """
    npm = shutil.which("npm")
    if npm is None:
        return "there is no npm on this machine"
    quietly = ["--ignore-scripts", "--no-audit", "--no-fund", "--silent", "--no-update-notifier"]
    try:
        ran = subprocess.run([npm, "ci", *quietly], cwd=folder, capture_output=True, text=True, check=False, timeout=SUITES_SECONDS)
    except subprocess.TimeoutExpired:
        return f"npm did not end within {SUITES_SECONDS} s"
    return None if ran.returncode == 0 else f"npm ended with status {ran.returncode}"


def count_packages(lock: str) -> int:
    """Count the packages in a compiled lock."""
    return len(re.findall(r"^[A-Za-z0-9][\w.-]*(?:\[[^]]*\])?==", lock, re.MULTILINE))


def say(step: int, what: str) -> None:
    """Print one line when a step begins: the installation takes a minute, and uv prints nothing without a terminal."""
    print(f"  {step}/{STEPS}  {what} ...", flush=True)


def main() -> int:
    """Install, and say each step as it begins; the first tool that fails says why and its status is ours."""
    python = [sys.executable, "-m"]
    lock = REQUIREMENTS.read_text(encoding="utf-8")
    say(1, f"pip brings {' and '.join(FIRST)}")
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first.txt"
        first.write_text(extract_pins(lock, FIRST), encoding="utf-8")
        quietly = ["--quiet", "--disable-pip-version-check"]
        status = subprocess.run(
            [*python, "pip", "install", *quietly, "--require-hashes", "--no-deps", "-r", str(first)], check=False
        ).returncode
    if status:
        return status
    listing = subprocess.run([*python, "pip", "config", "list"], capture_output=True, text=True, check=False).stdout
    environment = uv_environment(pip_settings(listing), os.environ)
    uv = [*python, "uv", "pip"]
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    # Without isolation a source distribution is built by the pinned backend, not by whatever is newest.
    for step, what, command in (
        (
            2,
            f"uv brings up to {count_packages(lock)} packages and compiles them; this takes longest",
            ["sync", *quiet, "--compile-bytecode", "--require-hashes", "--no-build-isolation", str(REQUIREMENTS)],
        ),
        (3, "the project itself", ["install", "--quiet", "--no-build-isolation", "--no-deps", "--editable", "."]),
    ):
        say(step, what)
        if status := subprocess.run([*uv, *command], env=environment, check=False).returncode:
            return status
    # Compile our code as the packages are compiled. If Python may write no byte code, every process would otherwise compile our code again.
    compile_dir(PACKAGE, quiet=1)
    say(STEPS, "npm brings a suite that only tests need")
    if reason := fetch_suites(SUITES):
        print(f"The official JSON Patch suite was not fetched, its tests will be skipped: {reason}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
