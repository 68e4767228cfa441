"""What the questions of bench/tuned_data.py are made of: tables of packages, and lists of words.

Countries are those of which two packages tell the same capital: `country-capitals` (public domain)
and `countryinfo` (MIT); elements are those of `periodictable` (public domain). Lists of opposites,
plurals, past tenses and plain facts stand here.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Codes of ISO 639-1 that the table of countries has most.
LANGUAGES = {
    **{"ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "cs": "Czech", "da": "Danish"},
    **{"de": "German", "el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian"},
    **{"fa": "Persian", "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi"},
    **{"hr": "Croatian", "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian"},
    **{"is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "km": "Khmer"},
    **{"ko": "Korean", "lo": "Lao", "lt": "Lithuanian", "lv": "Latvian", "mk": "Macedonian"},
    **{"mn": "Mongolian", "mt": "Maltese", "ms": "Malay", "my": "Burmese", "ne": "Nepali"},
    **{"nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian"},
    **{"ru": "Russian", "sk": "Slovak", "sl": "Slovenian", "so": "Somali", "sq": "Albanian"},
    **{"sr": "Serbian", "sv": "Swedish", "sw": "Swahili", "th": "Thai", "tr": "Turkish"},
    **{"uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese", "zh": "Chinese"},
}
_ARTICLE = re.compile(
    "^United|Islands$|Republic$|^(Netherlands|Philippines|Bahamas|Gambia|Maldives|Comoros|Seychelles)"
)
CONTINENTS = {"Americas": ("America",)}  # other regions are asked for as they are told

OPPOSITES = (
    "hot cold, big small, up down, left right, day night, black white, old young, rich poor, "
    "fast slow, hard soft, high low, long short, open closed, early late, happy sad, strong weak, "
    "light dark, full empty, wet dry, clean dirty, deep shallow, thick thin, loud quiet, "
    "heavy light, sweet sour, near far, true false, right wrong, good bad, in out, inside outside, "
    "above below, before after, first last, start end, begin end, push pull, win lose, buy sell, "
    "give take, love hate, laugh cry, arrive leave, remember forget, find lose, rise fall, "
    "increase decrease, expand shrink, attack defend, accept refuse, allow forbid, arrive depart, "
    "alive dead, asleep awake, brave cowardly, cheap expensive, dangerous safe, easy difficult, "
    "generous selfish, guilty innocent, ancient modern, wide narrow, rough smooth, sharp blunt, "
    "simple complex, tight loose, tall short, warm cool, wild tame, wise foolish, public private, "
    "polite rude, patient impatient, possible impossible, visible invisible, north south, "
    "east west, maximum minimum, positive negative, success failure, victory defeat, war peace, "
    "question answer, friend enemy, male female, summer winter, sunrise sunset, top bottom"
)
PLURALS = (
    "mouse mice, child children, foot feet, tooth teeth, goose geese, man men, woman women, "
    "person people, leaf leaves, knife knives, wolf wolves, city cities, baby babies, box boxes, "
    "bus buses, church churches, tomato tomatoes, potato potatoes, hero heroes, thief thieves, "
    "wife wives, life lives, shelf shelves, story stories, party parties, dish dishes, "
    "fox foxes, half halves, lady ladies, country countries"
)
PASTS = (
    "go went, eat ate, see saw, run ran, take took, give gave, come came, write wrote, "
    "drive drove, sing sang, swim swam, begin began, break broke, buy bought, bring brought, "
    "catch caught, choose chose, drink drank, fall fell, fly flew, forget forgot, get got, "
    "know knew, make made, speak spoke, teach taught, think thought, throw threw, wear wore, "
    "win won"
)
# A question, and what its answer must have one of.
FACTS = (
    ("How many legs does a spider have?", ("eight", "8")),
    ("How many legs does an insect have?", ("six", "6")),
    ("How many days are there in a week?", ("seven", "7")),
    ("How many months are there in a year?", ("twelve", "12")),
    ("How many minutes are there in an hour?", ("sixty", "60")),
    ("How many hours are there in a day?", ("twenty-four", "24")),
    ("How many sides does a triangle have?", ("three", "3")),
    ("How many sides does a hexagon have?", ("six", "6")),
    ("How many continents are there?", ("seven", "7")),
    ("How many planets are there in the solar system?", ("eight", "8")),
    ("How many strings does a violin have?", ("four", "4")),
    ("How many letters are there in the English alphabet?", ("twenty-six", "26")),
    ("What color is the sky on a clear day?", ("blue",)),
    ("What color is fresh snow?", ("white",)),
    ("What color is a ripe banana?", ("yellow",)),
    ("What color do you get when you mix blue and yellow?", ("green",)),
    ("What color do you get when you mix red and white?", ("pink",)),
    ("Which planet is closest to the sun?", ("Mercury",)),
    ("Which planet is the largest in the solar system?", ("Jupiter",)),
    ("Which planet is known as the red planet?", ("Mars",)),
    ("Which planet is famous for its rings?", ("Saturn",)),
    ("What is the largest ocean on Earth?", ("Pacific",)),
    ("What is the tallest mountain in the world?", ("Everest",)),
    ("What is the largest animal on Earth?", ("blue whale",)),
    ("What is the fastest land animal?", ("cheetah",)),
    ("What is frozen water called?", ("ice",)),
    ("What gas do plants take in from the air?", ("carbon dioxide", "CO2")),
    ("What gas do humans need to breathe?", ("oxygen",)),
    ("What is the chemical formula of water?", ("H2O",)),
    ("What is the boiling point of water in degrees Celsius?", ("100",)),
    ("At what temperature does water freeze in degrees Celsius?", ("0", "zero")),
    ("Which organ pumps blood through the body?", ("heart",)),
    ("Which organ do we use to think?", ("brain",)),
    ("Which sense do we use our ears for?", ("hearing", "hear")),
    ("What do bees make?", ("honey",)),
    ("What do cows drink?", ("water",)),
    ("What is a baby dog called?", ("puppy", "pup")),
    ("What is a baby cat called?", ("kitten",)),
    ("What is a baby cow called?", ("calf",)),
    ("What is a baby sheep called?", ("lamb",)),
    ("Who wrote Romeo and Juliet?", ("Shakespeare",)),
    ("Who painted the Mona Lisa?", ("Leonardo", "Vinci")),
    ("Who was the first president of the United States?", ("Washington",)),
    ("Who developed the theory of relativity?", ("Einstein",)),
    ("Who was the first person to walk on the moon?", ("Armstrong",)),
    ("In which year did World War II end?", ("1945",)),
    ("Which month comes after March?", ("April",)),
    ("Which month comes before December?", ("November",)),
    ("Which day comes after Monday?", ("Tuesday",)),
    ("Which day comes before Sunday?", ("Saturday",)),
    ("Which season comes after winter?", ("spring",)),
    ("Which metal is liquid at room temperature?", ("mercury",)),
    ("What is the hardest natural substance?", ("diamond",)),
    ("What force pulls things toward the ground?", ("gravity", "gravitation")),
    ("What is the star at the center of our solar system called?", ("sun",)),
    ("What do we call a person who flies a plane?", ("pilot",)),
    ("What do we call a person who teaches at a school?", ("teacher",)),
    ("What do we call a doctor for animals?", ("veterinarian", "vet")),
)


@dataclass(frozen=True)
class Country:
    """What is asked of a country.

    languages: none where the table has one that is not in LANGUAGES.
    """

    code: str
    name: str
    capital: str
    languages: tuple[str, ...]
    region: str


def countries(tables: Path) -> list[Country]:
    """Countries with one city as their capital in both tables, by their codes."""
    capitals = json.loads((tables / "country_capitals/capitals.json").read_bytes())
    found: dict[str, Country] = {}
    for path in sorted((tables / "countryinfo/data").glob("*.json")):
        told = json.loads(path.read_bytes())
        code = told.get("ISO", {}).get("alpha3", "").upper()
        capital = capitals.get(code, "")
        if not capital or folded(capital) != folded(told.get("capital", "")):
            continue
        languages = tuple(LANGUAGES.get(each, "") for each in told["languages"])
        languages = languages if all(languages) else ()
        name = f"the {told['name']}" if _ARTICLE.search(told["name"]) else told["name"]
        found[code] = Country(code, name, capital, languages, told.get("region", ""))
    return [found[code] for code in sorted(found)]


def elements(tables: Path) -> list[tuple[str, str]]:
    """Names and symbols of the elements, by number."""
    text = (tables / "periodictable/core.py").read_text(encoding="utf-8")
    found = re.findall(r"^\s+(\d+): \('(\w+)',\s+'(\w+)'", text, re.MULTILINE)
    return [(name.lower(), symbol) for number, name, symbol in found if int(number) > 0]


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """Two words each."""
    for each in text.split(", "):
        left, right = each.split(" ")
        yield left, right


def is_held_out(key: str) -> bool:
    """Half of all things: a function of the name alone. What people try first is never learned."""
    if key in ("FRA", "ITA", "ESP", "DEU", "USA", "GBR", "JPN", "CHN"):
        return True
    return hashlib.sha256(key.encode()).digest()[0] % 2 == 0


def folded(text: str) -> str:
    """Without accents, case and signs."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", " ", plain).strip()
