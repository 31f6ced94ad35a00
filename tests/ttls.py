"""TTL strings of every kind, their lifetimes, and a second form of the rules, in fractions (TTL-1 to TTL-3)."""

from __future__ import annotations

import string
from fractions import Fraction
from itertools import product
from math import ceil, floor

from hypothesis import strategies as st

from message_lifecycle.model.instants import INT64_MAX

SECOND = 1_000_000
NEVER, NONE, INVALID = "never", "none", "invalid"
AFTER_THE_LAST_NS = 2**63

# Values of the header, and their lifetimes by TTL-1 to TTL-3.
VALUES: dict[str, int | str] = {
    "1": SECOND, "01": SECOND, "1s": SECOND, "1000ms": SECOND, "1h30m5s": 5405 * SECOND, ".5h": 1800 * SECOND, "1.999s": 1_999_000,
    "9223372036854775807": INT64_MAX, "9" * 30: INT64_MAX, "NEVER": NEVER, "nEvEr": NEVER, "0": NONE, "0s": NONE,
    "-1": INVALID, "-10s": INVALID, "+1": INVALID, "1.5": INVALID, "1e3": INVALID, "500ms": INVALID, "999ms": INVALID, "1d": INVALID,
    "1 s": INVALID, "60 ": INVALID, "PT1H": INVALID, "something": INVALID, "invalid!": INVALID,
    # Go's grammar
    "+5s": 5 * SECOND, "1.s": SECOND, "1s1s": 2 * SECOND, "5s1h": 3605 * SECOND, "1500000us": 1_500_000, "1500000\u00b5s": 1_500_000,
    "1500000\u03bcs": 1_500_000, "1500000000ns": 1_500_000, "1s500ms": 1_500_000, "001.50s": 1_500_000, "999.9ms.1ms": SECOND,
    ".s": INVALID, "s": INVALID, "1.": INVALID, "++1s": INVALID, "1s-1s": INVALID, "1S": INVALID, "1..5s": INVALID,
    "1s1": INVALID, "1_000s": INVALID, "1,5s": INVALID, "\u0661s": INVALID, "\u0661": INVALID, "1hm": INVALID, "Inf": INVALID,
    # zero, a sign allowed
    "00": NONE, "-0": NONE, "+0": NONE, "-0s": NONE, "0h0m0s": NONE, "0.0s": NONE, "0" * 5000: NONE, "0.1ns": NONE,
    # spaces
    "  5s": 5 * SECOND, "   7": 7 * SECOND, " never": NEVER, "\t5s": INVALID, "5s ": INVALID, "never ": INVALID, "5s\n": INVALID,
    "\n5": INVALID, "": INVALID, "  ": INVALID,
    # limits; parts of a microsecond count as a whole one, what a nanosecond cannot say is cut off as Go cuts it
    "999.999999ms": INVALID, "999999999ns": INVALID, "1000000000ns": SECOND, "1000000001ns": SECOND + 1, "1.0000009s": SECOND + 1,
    "1.0000000009s": SECOND, "9223372036854775807ns": 9223372036854776, "9223372036854775808ns": INVALID,
    "2562047h47m16.854775807s": 9223372036854776, "2562047h47m16.854775808s": INVALID, "-2562047h47m16.854775808s": INVALID,
    "2562048h": INVALID, "99999999999999999999s": INVALID, "0" * 99 + "1s": SECOND, "1." + "0" * 999 + "1s": SECOND,
    "9223372036854": 9223372036854 * SECOND, "9223372036855": INT64_MAX, "9" * 5000: INT64_MAX,
    # Go reads a fraction in floating point: eighteen nines are a whole second there.
    "0." + "9" * 9 + "s": INVALID, "0." + "9" * 18 + "s": SECOND,
}  # fmt: skip

UNITS = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "\u00b5s": 10**3, "\u03bcs": 10**3, "ns": 1}


def oracle(text: str) -> int | str:
    """Apply the rules in a second form, by splitting at the units and in fractions.

    The result is exact if ten to the number of given decimals divides the unit."""
    text = text.lstrip(" ")
    if text in {"".join(letters) for letters in _spellings("never")}:
        return NEVER
    sign, body = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    digits = set(body) <= set(string.digits) and body != ""
    if digits and int(body) == 0:
        return NONE
    if digits:
        return INVALID if sign else min(int(body) * SECOND, INT64_MAX)
    total = 0
    while body:
        number = body[: len(body) - len(body.lstrip(string.digits + "."))]
        rest = body[len(number) :]
        unit = rest[: len(rest) - len(rest.lstrip("".join(set(rest) - set(string.digits + "."))))]
        if unit not in UNITS or number.count(".") > 1 or not number.strip("."):
            return INVALID
        body = rest[len(unit) :]
        total += floor(Fraction(number.strip(".") if number.endswith(".") else "0" + number) * UNITS[unit])
    if not text or text in "+-":
        return INVALID
    if total == 0:
        return NONE
    return INVALID if sign == "-" or not 10**9 <= total < AFTER_THE_LAST_NS else ceil(Fraction(total, 1000))


def _spellings(word: str) -> list[tuple[str, ...]]:
    return list(product(*((letter, letter.upper()) for letter in word)))


WHOLE = st.one_of(st.integers(0, 100), st.integers(0, 10**10), st.sampled_from([2**63, 2**63 - 1, 2**63 + 1, 10**19])).map(str)


@st.composite
def components(draw: st.DrawFn) -> str:
    unit = draw(st.sampled_from(list(UNITS)))
    # As many decimals as the unit has whole nanoseconds for: beyond them Go's floating point decides.
    decimals = draw(st.text("0123456789", max_size=len(str(UNITS[unit])) - 1))
    whole = draw(st.one_of(WHOLE, st.just(""))) or ("" if decimals else "0")
    return (
        draw(st.sampled_from(["", "0"])) * bool(whole) + whole + ("." + decimals if decimals else draw(st.sampled_from(["", "."]))) + unit
    )


DURATIONS = st.builds(
    lambda sign, parts: sign + "".join(parts), st.sampled_from(["", "", "+", "-"]), st.lists(components(), min_size=1, max_size=4)
)
TTLS = st.one_of(
    DURATIONS,
    st.builds(lambda sign, number: sign + number, st.sampled_from(["", "", "+", "-"]), WHOLE),
    st.sampled_from(_spellings("never")).map("".join),
    st.text("0123456789.hmsnu\u00b5+-e ", max_size=8),
    st.text(max_size=6),
)
