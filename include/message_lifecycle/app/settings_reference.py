"""The policy reference, written from the settings themselves: `python -m message_lifecycle.app.settings_reference > docs/settings.md`."""

from __future__ import annotations

from message_lifecycle.model.setting_list import SETTINGS, Setting

_HEAD = """# Settings

On this page you can look up every setting: the place where you set it, the allowed values, the default and the reason for it.

`python -m message_lifecycle.app.settings_reference` writes this page from the code, and a test compares the two.

A setting can have a value in three places. The first place that has one counts:

1. the topic: `lifecycle topic create|alter --set name=value`. The table property `lifecycle.<name>` stores it.
2. the server file: `include/lifecycle.toml`, or the file that `LIFECYCLE_CONFIG` names
3. the built-in default

The file `include/lifecycle.toml` of this project sets two other values than the built-in ones: `[message_cleaner] interval` is 600 (ten
minutes), and `[system.segment] max_seconds` is 86400 (a day).

`lifecycle topic describe NAME --all` shows each effective value with its place. `lifecycle topic create|alter` prints the settings that
change, their old and new values, and how much a run would remove with the new ones. Unknown names and wrong values are errors.

After you tighten a setting with *asks*, the first run that would remove something needs an approval.

| setting | server file | topic | allowed | default | what it does |
|---|---|---|---|---|---|
"""

_VARIABLES = """
## Environment variables

`make up` sets those of the embedded default. For [your own lake](clusters.md) you set them, in the same way for every process.

| variable | names | default |
|---|---|---|
| `LIFECYCLE_LEDGER_URL` | the ledger's database. If it is set, the program reads nothing of the embedded default | the embedded default's |
| `LIFECYCLE_CONFIG` | the server file | `include/lifecycle.toml` |
| `LIFECYCLE_ERASURE_SECRET_FILE` | the file with the secret of erasures and of seals | `secrets/erasure` in `LIFECYCLE_HOME` |
| `LIFECYCLE_REDIS_URL` | the Redis server of a backend that names none | the embedded Redis |
| `LIFECYCLE_REDIS_PASSWORD_FILE` | the file with the password of that server | no password |
| `LIFECYCLE_DEBUG` | `1`: an error shows its trace | off |
| `LIFECYCLE_HOME` | the state folder of the embedded default | `.lifecycle` |
| `LIFECYCLE_STACK` | `disk`, or `cluster` for the embedded cluster | `disk` |
| `LIFECYCLE_TOOLS` | a folder of jars that several state folders share | `LIFECYCLE_HOME` |
| `LIFECYCLE_JARS` | a folder with the jars, for a machine without a network | the jars are fetched |
| `LIFECYCLE_PYTHON` | on an executor: its own Python, for the archive of `lifecycle cluster pack` | `python3.11`, the driver's minor version |
| `PYICEBERG_HOME` | the folder of `.pyiceberg.yaml` | PyIceberg's own search |
| `PYICEBERG_CATALOG__LAKE__NAME` | the setting `name` of the catalog `lake`, for Python | the value in `.pyiceberg.yaml` |
| `SPARK_CONF_DIR` | the folder of `spark-defaults.conf` | `conf` in `SPARK_HOME` |
| `SPARK_HOME` | the installation of Spark | the package `pyspark` |
| `JAVA_HOME` | the installation of Java | `java` on the `PATH` |
| `PGPASSFILE` | the password file of PostgreSQL | `~/.pgpass` |
| `REQUESTS_CA_BUNDLE` | a private certificate authority, for Python | the public ones |
| `TMPDIR` | the folder for temporary files | `/tmp` |
| `AIRFLOW_HOME` | Airflow's folder. `lifecycle doctor` asks Airflow only if it is set | the project's folder with `make up` |
"""


def reference() -> str:
    """Return the whole page."""
    return _HEAD + "".join(_row(setting) for setting in SETTINGS) + _VARIABLES


def _row(setting: Setting) -> str:
    default = "unset" if setting.default is None else str(setting.default).lower() if setting.kind == "bool" else str(setting.default)
    asks = " *asks*" if setting.tightness is not None else ""
    place = f"`[{setting.section}] {setting.key}`" if setting.section else ""
    on_topic = "yes" if setting.on_topic else ""
    return f"| `{setting.name}` | {place} | {on_topic} | {setting.allowed} | {default}: {setting.reason} | {setting.help}{asks} |\n"


if __name__ == "__main__":
    print(reference(), end="")
