"""Recognises personal data by its form, and where there is one by its check digits."""

import re
from collections.abc import Callable
from dataclasses import dataclass

# The countries whose IBANs have a length, from the public registry of IBAN formats.
IBAN_COUNTRIES = {
    15: "NO",
    16: "BE",
    18: "DK|FI|FO|GL|NL",
    19: "MK|SI",
    20: "AT|BA|EE|KZ|LT|LU|XK",
    21: "CH|CR|HR|LI|LV",
    22: "BG|BH|DE|GB|GE|IE|ME|RS|VA",
    23: "AE|GI|IL|IQ|TL",
    24: "AD|CZ|ES|MD|PK|RO|SA|SE|SK|TN|VG",
    25: "PT|ST",
    26: "IS|TR",
    27: "FR|GR|IT|MC|MR|SM",
    28: "AL|AZ|BY|CY|DO|GT|HU|LB|PL|SV",
    29: "BR|EG|PS|QA|UA",
    30: "JO|KW|MU",
    31: "MT|SC",
    32: "LC",
}


@dataclass(frozen=True)
class Detector:
    """Finds one kind of data: what looks like it, unless a check says it is not."""

    pattern: re.Pattern[str]
    is_real: Callable[[str], bool] = bool

    def redact(self, content: str, placeholder: str) -> tuple[str, int]:
        """The text with every find replaced, and how many there were."""
        found = 0

        def replace(match: re.Match[str]) -> str:
            nonlocal found
            if not self.is_real(match[0]):
                return match[0]
            found += 1
            return placeholder

        return self.pattern.sub(replace, content), found


def iban_pattern() -> re.Pattern[str]:
    forms = "|".join(
        rf"(?:{countries})[0-9]{{2}}(?:[ -]?[A-Z0-9]){{{length - 4}}}"
        for length, countries in IBAN_COUNTRIES.items()
    )
    return re.compile(rf"(?<![A-Z0-9])(?=[A-Z]{{2}}[0-9]{{2}})(?:{forms})(?![A-Z0-9])", re.IGNORECASE)


def is_iban(found: str) -> bool:
    """Returns True if the number an IBAN stands for leaves the remainder 1 when divided by 97 (ISO 7064)."""
    compact = re.sub(r"[ -]", "", found).upper()
    rearranged = compact[4:] + compact[:4]
    return int("".join(str(int(character, 36)) for character in rearranged)) % 97 == 1


def is_card_number(found: str) -> bool:
    """Returns True if the digits pass the Luhn check and are not all the same."""
    digits = digits_of(found)
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def is_phone_number(found: str) -> bool:
    return 7 <= len(digits_of(found)) <= 15


def digits_of(found: str) -> list[int]:
    return [int(character) for character in found if character.isdigit()]


EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]++@[\w-]++(?:\.[\w-]++)+")
CARD = re.compile(r"(?<![0-9])[0-9](?:[ -]?[0-9]){12,18}(?![0-9])")
# International (+49 30 …, 0049 …), national with a trunk zero (030 …) or brackets, or North American.
PHONE_START = r"(?:(?:\+|00?)[1-9]|\(0?[1-9][0-9]{1,4}\)[ -]?[0-9])"
NORTH_AMERICAN = r"[2-9][0-9]{2}[ .-][0-9]{3}[ .-][0-9]{4}"
PHONE = re.compile(rf"(?<![\w.,-])(?:{PHONE_START}(?:[ ()./-]{{0,3}}[0-9]){{5,13}}|{NORTH_AMERICAN})(?!\w)")

# In the order of how certain a find is, since what one detector replaces the next no longer sees.
DETECTORS = {
    "iban": Detector(iban_pattern(), is_iban),
    "card": Detector(CARD, is_card_number),
    "email": Detector(EMAIL),
    "phone": Detector(PHONE, is_phone_number),
}
