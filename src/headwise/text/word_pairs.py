"""Built-in lists of word pairs (a day and the next, a noun and its plural, ...), and lists from a
file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from headwise.core.errors import InputError

WordPair = tuple[str, str]  # source and target

CAPITALS = (
    ("France", "Paris"),
    ("Italy", "Rome"),
    ("Germany", "Berlin"),
    ("Spain", "Madrid"),
    ("Japan", "Tokyo"),
    ("China", "Beijing"),
    ("Russia", "Moscow"),
    ("England", "London"),
    ("Egypt", "Cairo"),
    ("Greece", "Athens"),
    ("Austria", "Vienna"),
    ("Poland", "Warsaw"),
    ("Portugal", "Lisbon"),
    ("Canada", "Ottawa"),
    ("Cuba", "Havana"),
    ("Ireland", "Dublin"),
    ("Norway", "Oslo"),
    ("Sweden", "Stockholm"),
    ("Hungary", "Budapest"),
    ("Turkey", "Ankara"),
)

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
MONTHS = "January February March April May June July August September October November December"
NUMBERS = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"
NUMBER_WORDS = "one two three four five six seven eight nine ten eleven twelve"
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth"
LETTERS = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
PLURALS = """
cat cats; dog dogs; car cars; book books; house houses; tree trees; friend friends; girl girls;
boy boys; day days; year years; name names; hand hands; eye eyes; window windows; child children;
man men; woman women; foot feet; city cities; country countries; story stories; bird birds;
game games; student students; river rivers; letter letters; table tables; word words; king kings
"""
PAST_TENSES = """
go went; see saw; eat ate; run ran; say said; take took; make made; come came; give gave; find found;
think thought; play played; walk walked; look looked; want wanted; work worked; call called;
ask asked; tell told; leave left; feel felt; keep kept; hold held; write wrote; meet met; jump jumped;
start started; help helped; live lived; open opened
"""
ANTONYMS = """
hot cold; big small; up down; left right; good bad; fast slow; high low; old young; day night;
in out; yes no; open closed; happy sad; light dark; rich poor; hard soft; early late; long short;
black white; win lose; true false; love hate; strong weak; first last; over under; wet dry;
full empty; north south; east west; life death
"""
COMPARATIVES = """
big bigger; small smaller; fast faster; slow slower; high higher; low lower; old older; young younger;
long longer; short shorter; strong stronger; weak weaker; great greater; hard harder; easy easier;
near nearer; good better; bad worse; large larger; wide wider; deep deeper; dark darker;
light lighter; cold colder; warm warmer; rich richer; poor poorer; cheap cheaper; clear clearer;
late later
"""
FEMININES = """
king queen; man woman; boy girl; father mother; son daughter; brother sister; husband wife;
uncle aunt; he she; his her; prince princess; actor actress; men women; boys girls; sons daughters;
gentleman lady
"""
UPPER_CASE = """
the The; and And; this This; when When; but But; for For; from From; with With; what What; how How;
who Who; where Where; why Why; if If; in In; on On; at At; after After; before Before; not Not;
all All; some Some; then Then; there There; now Now; new New; one One; two Two; if If; we We
"""
FRENCH = """
one un; two deux; three trois; four quatre; five cinq; ten dix; cat chat; dog chien; house maison;
water eau; day jour; night nuit; good bon; big grand; small petit; red rouge; black noir; white blanc;
king roi; love amour; life vie; world monde; time temps; sea mer; man homme; woman femme; city ville;
bread pain; milk lait; book livre
"""


def _successors(words: str) -> list[WordPair]:
    """Return each word of a sequence with the next one."""
    return list(pairwise(words.split()))


def _pairs(text: str) -> list[WordPair]:
    """Return the pairs of a text, without repetitions."""
    pairs = []
    for part in text.replace("\n", " ").split(";"):
        source, target = part.split()
        if (source, target) not in pairs:
            pairs.append((source, target))
    return pairs


# Sequences: the target is the next word. In a circle of days and months, the first follows the last.
SEQUENCES: dict[str, list[WordPair]] = {
    "days": [*_successors(DAYS), ("Sunday", "Monday")],
    "months": [*_successors(MONTHS), ("December", "January")],
    "numbers": _successors(NUMBERS),
    "number words": _successors(NUMBER_WORDS),
    "ordinals": _successors(ORDINALS),
    "letters": _successors(LETTERS),
}
RELATIONS: dict[str, list[WordPair]] = {
    "plural": _pairs(PLURALS),
    "past tense": _pairs(PAST_TENSES),
    "antonym": _pairs(ANTONYMS),
    "comparative": _pairs(COMPARATIVES),
    "feminine": _pairs(FEMININES),
    "capital": list(CAPITALS),
    "upper case": _pairs(UPPER_CASE),
    "French": _pairs(FRENCH),
}


def read_word_pairs(path: str | Path) -> dict[str, list[WordPair]]:
    """Return lists of pairs from a file with three columns: relation, source and target, with tabs
    between them.

    Empty lines and lines that begin with `#` are passed over.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a list of word pairs: {error}.") from error
    relations: dict[str, list[WordPair]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        columns = [column.strip() for column in line.split("\t")]
        if len(columns) != 3 or not all(columns):
            raise InputError(
                f"{path}, line {number}: expected relation, source and target with tabs between "
                f"them; the line is '{line}'."
            )
        name, source, target = columns
        relations.setdefault(name, []).append((source, target))
    if not relations:
        raise InputError(
            f"{path} has no word pairs; give relation, source and target in each line."
        )
    return relations
