"""Writes docs/numerics-vectors.json: inputs and the bits that order 1 gives for them.

    python tools/make_vectors.py [--draw]

The inputs are those in the file; with --draw those of tests/numerics/inputs.py.
Not for everyday: a vector that changes is a new version of the order (docs/numerics.md). Nothing is written unless the
kernels of every instruction set here and the plain Python of tests/numerics/order1.py agree to the bit.
"""

import ctypes
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.native.library import build, find_compiler, supported_probes  # noqa: E402
from tests.numerics.by_kernel import Isa, every_isa  # noqa: E402
from tests.numerics.cases import PATH, RULE, Case, encode, read  # noqa: E402
from tests.numerics.inputs import inputs  # noqa: E402
from tests.numerics.vectors import KINDS  # noqa: E402

NOTE = (
    "Vectors of order 1 (numerics.md). Floats are hexadecimal; in product, attention and norms they are fp32, which "
    f"bf16 and fp16 numbers are too. A case with count has {RULE} for i below count. An edit is [token, bias, count, "
    "1 if seen + 2 if allowed]; flags 1 of a wish: only allowed tokens. Changed bits are a new order."
)


def vectors(isas: list[Isa], given: dict[str, list[Case]]) -> dict[str, list[object]]:
    """All cases with what came out, encoded. Exits where two ways disagree."""
    made: dict[str, list[object]] = {}
    for kind, cases in given.items():
        by_kernel, by_page = KINDS[kind]
        made[kind] = []
        for number, case in enumerate(cases):
            wanted = encode(by_page(case))
            for isa in isas:
                if (found := encode(by_kernel(isa, case))) != wanted:
                    raise SystemExit(f"make_vectors: {kind}[{number}]: {isa} gives {found}, the page {wanted}")
            made[kind].append({**encode(case), "out": wanted})  # type: ignore[dict-item]
    return made


def text(made: dict[str, list[object]]) -> str:
    """JSON with one line for each case."""
    kinds = (
        f'    "{kind}": [\n' + ",\n".join(f"      {json.dumps(case)}" for case in cases) + "\n    ]"
        for kind, cases in made.items()
    )
    head = f'{{\n  "order": 1,\n  "note": {json.dumps(NOTE)},\n  "vectors": {{\n'
    return head + ",\n".join(kinds) + "\n  }\n}\n"


def main() -> int:
    compiler = find_compiler()
    if compiler is None:
        raise SystemExit("make_vectors: no C++ compiler")
    library = ctypes.CDLL(str(build(compiler)))
    isas = every_isa(library, supported_probes(library))
    known = {} if "--draw" in sys.argv[1:] else read()
    kept = {kind: [{k: v for k, v in case.items() if k != "out"} for case in cases] for kind, cases in known.items()}
    made = text(vectors(isas, kept or inputs()))
    changed = not PATH.exists() or PATH.read_text(encoding="utf-8") != made
    PATH.write_text(made, encoding="utf-8")
    print(f"make_vectors: {', '.join(map(str, isas))} agree; {PATH.name} is {'new' if changed else 'unchanged'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
