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

`lifecycle topic describe NAME` shows each effective value with its place. `lifecycle topic create|alter` prints the settings that change,
their old and new values, and how much a run would remove with the new ones. Unknown names and wrong values are errors.

After you tighten a setting with *asks*, the first run that would remove something needs an approval.

| setting | server file | topic | allowed | default | what it does |
|---|---|---|---|---|---|
"""


def reference() -> str:
    """Return the whole page."""
    return _HEAD + "".join(_row(setting) for setting in SETTINGS)


def _row(setting: Setting) -> str:
    default = "unset" if setting.default is None else str(setting.default).lower() if setting.kind == "bool" else str(setting.default)
    asks = " *asks*" if setting.tightness is not None else ""
    place = f"`[{setting.section}] {setting.key}`" if setting.section else ""
    on_topic = "yes" if setting.on_topic else ""
    return f"| `{setting.name}` | {place} | {on_topic} | {setting.allowed} | {default}: {setting.reason} | {setting.help}{asks} |\n"


if __name__ == "__main__":
    print(reference(), end="")
