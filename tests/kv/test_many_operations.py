"""A million operations on one pool: nothing is lost on the way, and everything is free at the end."""

from collections import Counter
from random import Random

from pelton.kv.pool import NULL_BLOCK, BlockPool

OPERATIONS, BLOCKS = 1_000_000, 500


def test_a_million_operations_leave_no_block_behind() -> None:
    draw, pool = Random(5), BlockPool(BLOCKS + 1)
    held: list[tuple[int, ...]] = []
    done: Counter[str] = Counter()
    references = 0
    for number in range(OPERATIONS):
        kind = draw.random()
        if kind < 0.35 or not held:
            blocks = pool.alloc(draw.randrange(1, 9))
            done["alloc" if blocks else "refused"] += 1
            if blocks:
                assert NULL_BLOCK not in blocks
                held.append(blocks)
                references += len(blocks)
        elif kind < 0.5:
            blocks = held[draw.randrange(len(held))]
            pool.share(blocks)
            held.append(blocks)
            references += len(blocks)
            done["share"] += 1
        else:
            place = draw.randrange(len(held))
            held[place], held[-1] = held[-1], held[place]
            blocks = held.pop()
            pool.release(reversed(blocks))
            references -= len(blocks)
            done["release"] += 1
        if number % 50_000 == 0:
            pool.check()
            counted = Counter(block for blocks in held for block in blocks)
            assert counted.total() == references
            assert all(pool.references(block) == count for block, count in counted.items())
            assert pool.used == len(counted)
    for blocks in held:
        pool.release(blocks)
    pool.check()
    assert pool.free == pool.total == BLOCKS
    assert min(done[kind] for kind in ("alloc", "refused", "share", "release")) > 1000, done
