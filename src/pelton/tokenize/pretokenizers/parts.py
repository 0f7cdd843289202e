"""Regular expressions that many pre-tokenizers are put together from, as the engine of `tokenizers` reads them."""

DIGIT, THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"

# The early form: contractions, words, numbers and other marks, each with at most one space before; then white space.
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# The later form: contractions in either case, any one mark may lead a word, line ends stay with the marks before them.
LEAD = r"[^\r\n\p{L}\p{N}]?"
LED_WORD = rf"{LEAD}\p{{L}}+"
MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
BY_ONE = rf"{CONTRACTION}|{LED_WORD}|{DIGIT}|{MARKS}|{SPACE}"
BY_THREE = rf"{CONTRACTION}|{LED_WORD}|{THREE_DIGITS}|{MARKS}|{SPACE}"

# The latest form: a word is cut before a capital that follows a small letter, and keeps its contraction.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED_WORD = rf"{LEAD}{_UPPER}*{_LOWER}+|{LEAD}{_UPPER}+{_LOWER}*"
CASED_WORD_CONTRACTED = rf"{LEAD}{_UPPER}*{_LOWER}+{CONTRACTION}?|{LEAD}{_UPPER}+{_LOWER}*{CONTRACTION}?"
MARKS_AND_PATHS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACE}"
CASED_BY_THREE = rf"{CASED_WORD_CONTRACTED}|{THREE_DIGITS}|{MARKS_AND_PATHS}"
