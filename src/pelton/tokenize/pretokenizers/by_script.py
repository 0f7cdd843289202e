"""Pre-tokenizers of byte-level BPE vocabularies that cut by script: data, and how ranges of characters are spelled."""

from pelton.tokenize.pretokenizer import Pretokenizer
from pelton.tokenize.pretokenizers.parts import (
    CASED_WORD_CONTRACTED,
    CONTRACTION,
    DIGIT,
    LEAD,
    MARKS,
    MARKS_AND_PATHS,
    SPACE,
    THREE_DIGITS,
    WORDS,
)


def _class(code_points: str) -> str:
    """Hexadecimal code points and ranges of them as they stand in the class of a regular expression."""
    ranges = (one.split("-") for one in code_points.split())
    return "".join("-".join(chr(int(end, 16)) for end in ends) for ends in ranges)


# Letters that are large or small, as DeepSeek lists them.
_CASED = _class(
    """
    b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c 38e-3a1 3a3-3f5
    3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a
    1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4
    1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128
    212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d
    a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f
    104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943
    """
)
_CHINESE_OR_KANA = rf"[{_class('4e00-9fa5 3040-309f 30a0-30ff')}]+"
_BEYOND_LATIN = rf"[{_class('4e00-9fa5 800-4e00 ac00-d7ff')}]+"
_ASCII_MARK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_MARKED_WORD = rf"{_ASCII_MARK}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"

DEEPSEEK_LLM = Pretokenizer(
    splits=(
        r"[\r\n]",
        rf"\s?[A-Za-z{_CASED}]+",
        rf"\s?[!-/:-~{_class('ff01-ff0f ff1a-ff5e 2018-201f 3000-3002')}]+",
        r"\s+$",
        _BEYOND_LATIN,
        DIGIT,
    )
)
DEEPSEEK_CODER = Pretokenizer(splits=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _BEYOND_LATIN, DIGIT))
DEEPSEEK_V3 = Pretokenizer(
    splits=(THREE_DIGITS, _CHINESE_OR_KANA, rf"{_MARKED_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACE}")
)
SPARK2_5 = Pretokenizer(
    splits=(
        THREE_DIGITS,
        _CHINESE_OR_KANA,
        rf"{_MARKED_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
        DIGIT,
    )
)

_NO_PUNCTUATION = rf" ?[^(\s|.,!?{_class('2026 3002 ff0c 3001 964 6d4 60c')})]+"
BLOOM = Pretokenizer(splits=(_NO_PUNCTUATION,))
VIKING = Pretokenizer(splits=(_NO_PUNCTUATION, DIGIT))

CHAMELEON = Pretokenizer(
    splits=(
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        DIGIT,
        r"[\p{P}!-/:-@\[-`{-~]",
        WORDS,
    ),
    add_bos=True,
)

_HAN = r"\p{Han}"
_UPPER = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^{_HAN}]]"
_LOWER = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^{_HAN}]]"
_CASED_NOT_HAN = rf"{LEAD}{_UPPER}*{_LOWER}+{CONTRACTION}?|{LEAD}{_UPPER}+{_LOWER}*{CONTRACTION}?"
KIMI_K2 = Pretokenizer(
    splits=(rf"{_HAN}+|{_CASED_NOT_HAN}|{THREE_DIGITS}|{MARKS}|{SPACE}",), ignore_merges=True, ranked=True
)

_EAST_ASIAN = (
    rf"[{_class('ac00-d7a3 3131-318e')}]+"
    rf"|[{_class('ff01 2026 201c 201d 2018 2019 2014 ff1a ff1b ff0c 3001-303f fe30-fe4f')}]+"
    rf"|[{_class('3105-312f')}]+|{_CHINESE_OR_KANA}"
)
YOUTU = Pretokenizer(splits=(_EAST_ASIAN, rf"{CASED_WORD_CONTRACTED}|{DIGIT}|{MARKS_AND_PATHS}"), ignore_merges=True)
