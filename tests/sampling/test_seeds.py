"""Seeds of requests that bring none."""

from pelton.core.params import SamplingParams
from pelton.sampling.seeds import fresh_seed, seed_source


def test_a_given_seed_makes_them_repeatable() -> None:
    first, second, other = ([fresh_seed(source) for _ in range(5)] for source in map(seed_source, (7, 7, 8)))
    assert first == second
    assert not set(first) & set(other)


def test_the_systems_seeds_differ() -> None:
    source = seed_source(None)
    assert len({fresh_seed(source) for _ in range(100)} | {fresh_seed() for _ in range(100)}) == 200


def test_seeds_are_valid_and_survive_fp64() -> None:
    source = seed_source(1)
    for _ in range(1000):
        seed = fresh_seed(source)
        assert int(float(seed)) == seed
        SamplingParams(seed=seed)


def test_the_source_is_asked_for_bits() -> None:
    asked: list[int] = []
    assert fresh_seed(lambda bits: asked.append(bits) or 12) == 12
    assert asked == [53]
