"""Names of people: how the ledger keeps them, and when two names mean one person (DEL-3).

Every command, task and page that takes a person's name uses `person_of`, and `is_same_person` compares two of them.
"""

from __future__ import annotations

import unicodedata

from message_lifecycle.model.errors import mixed_scripts, unnamed_person

# Unicode's Default_Ignorable_Code_Point outside the category Cf: fillers, joiners and variation selectors that print nothing.
_IGNORABLE = frozenset(
    [0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x3164, 0xFFA0]
    + [
        point
        for first, last in ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xFFF0, 0xFFF8), (0xE0000, 0xE0FFF))
        for point in range(first, last + 1)
    ]
)
# Scripts that one language mixes, by the first part of their letters' Unicode names.
_WRITTEN_TOGETHER = (
    frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC"}),
    frozenset({"CJK", "HANGUL"}),
    frozenset({"CJK", "BOPOMOFO"}),
)
# Letters that look like a Latin letter. UTS 39 calls such letters confusable.
_LOOKS_LIKE = str.maketrans(
    {}
    # Cyrillic
    | dict(
        zip(
            "\u0410\u0412\u0415\u0405\u0406\u0408\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u04ae"
            "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u04bb\u051b\u051d\u043a\u043c"
            "\u0442\u0432\u043d\u0433\u04af\u04cf",
            "ABESIJKMHOPCTYXYaeopcyxijsdhqwkmtbhryl",
            strict=True,
        )
    )
    # Greek
    | dict(
        zip(
            "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03b1\u03b5"
            "\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u03b3\u03b7\u03c9\u03b2",
            "ABEZHIKMNOPTYXaeikvoptuxynwb",
            strict=True,
        )
    )
    # Latin small capitals
    | dict(
        zip(
            "\u1d00\u0299\u1d04\u1d05\u1d07\u0262\u029c\u026a\u1d0a\u1d0b\u029f\u1d0d\u0274\u1d0f\u1d18\u0280"
            "\u1d1b\u1d1c\u1d20\u1d21\u028f\u1d22\u0131\u0251\u0261",
            "abcdeghijklmnoprtuvwyziag",
            strict=True,
        )
    )
)


def person_of(text: str) -> str:
    """Return the name as the ledger keeps it: without ignorable characters, and with single spaces.

    Raises:
        UnnamedPerson: The name has no letter and no digit.
        MixedScripts: The letters of the name belong to more than one script.
    """
    name = " ".join(_drop_ignorable(text).split())
    if not any(unicodedata.category(char)[0] in "LN" for char in name):
        raise unnamed_person(text)
    scripts = sorted({script for char in unicodedata.normalize("NFKC", name) if (script := _script_of(char))})
    if len(scripts) > 1 and not any(together.issuperset(scripts) for together in _WRITTEN_TOGETHER):
        raise mixed_scripts(text, scripts)
    return name


def is_same_person(one: str, other: str) -> bool:
    """Return True if a reader could take both names for one person's.

    Case, width, ignorable characters and spaces make no difference. Nor does a letter of another script that looks the same.
    """
    first, second = _drop_fillers(one), _drop_fillers(other)
    return _fold_case(first) == _fold_case(second) or _fold_case(first.translate(_LOOKS_LIKE)) == _fold_case(second.translate(_LOOKS_LIKE))


def _drop_ignorable(text: str) -> str:
    return "".join(char for char in text if not _is_ignorable(char))


def _is_ignorable(char: str) -> bool:
    return unicodedata.category(char) in ("Cf", "Cn", "Co", "Cs") or ord(char) in _IGNORABLE


def _drop_fillers(name: str) -> str:
    # A full-width form may normalise to a filler, so the fillers are removed after the normalisation.
    return "".join(_drop_ignorable(unicodedata.normalize("NFKC", _drop_ignorable(name))).split())


def _fold_case(name: str) -> str:
    return unicodedata.normalize("NFKC", name.casefold())


def _script_of(char: str) -> str | None:
    """Return the script of a letter, by its Unicode name; None for anything else.

    The standard library has no script property, but the name of each letter begins with its script.
    """
    if unicodedata.category(char)[0] != "L":
        return None
    first = unicodedata.name(char, "").partition(" ")[0]
    return None if first in ("MODIFIER", "MASCULINE", "FEMININE") else first or None
