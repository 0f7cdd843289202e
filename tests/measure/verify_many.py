"""Many schedules of verify on a tiny random checkpoint in fp32, by hand.

python -m tests.measure.verify_many --schedules 20000 [--family qwen2] [--seed 0] [--minutes M] [--resume FILE]

From the root of the repository, with src on the path. Families: those with a toy. Ends with 1 if an answer differed or
if something that was to be tried did not happen.
"""

import argparse
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.measure.verify_parts import tiny_rig
from tests.oracle.tiny import TOYS, save
from transformers import PreTrainedModel

from pelton.measure.verify.kept import Kept, facts_of
from pelton.measure.verify.verify import Extent, dimensions, verify

WINDOW = 64  # tokens, two blocks: a smaller one leaves nothing of a block to be copied


def roomy(family: str) -> PreTrainedModel:
    """The family's toy, with a wider window if it has one."""
    toy = TOYS[family]
    return toy.made(**({"sliding_window": WINDOW} if toy.config.get("sliding_window") else {}))


def weights_of(folder: Path) -> bytes:
    """Digest of the checkpoint's weights."""
    return sha256(b"".join(file.read_bytes() for file in sorted(folder.glob("*.safetensors")))).digest()


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--schedules", type=int, default=20_000)
    flags.add_argument("--family", choices=sorted(TOYS), default="llama")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--minutes", type=float)
    flags.add_argument("--resume", type=Path)
    given = flags.parse_args()
    with TemporaryDirectory() as folder, tiny_rig(save(roomy(given.family), Path(folder))) as (rig, cases):
        kept = None
        if given.resume is not None:
            facts = facts_of(
                f"tiny {given.family}", "float32", "cpu", given.seed, cases, dimensions(), weights_of(Path(folder))
            )
            kept = Kept(given.resume, f"--resume {given.resume}", facts, rig.clock)
        extent = Extent(given.schedules, given.minutes)
        report = verify(rig, cases, extent, seed=given.seed, progress=sys.stderr.isatty(), kept=kept)
    print("\n".join(report.lines()))
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
