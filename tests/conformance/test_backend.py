"""Every backend: the protocol of Backend, Executable and BlockOps, on a tiny model."""

from dataclasses import replace

import numpy as np
import pytest
from registry_entries import entries
from tests.oracle.driver import BLOCK, Driver, sampling
from tests.oracle.tiny import prompt
from tests.program import expected
from tests.program.one_op import TOKENS, Bench, Numbers
from tests.program.sources import dense

from pelton.backends import BACKENDS
from pelton.backends.backend import (
    ALLOWED,
    COPY,
    EDIT,
    FAULT_NO_TOKEN,
    LOAD,
    ONLY_ALLOWED,
    SAVE,
    SCRUB,
    SEEN,
    CompileOptions,
)
from pelton.program.module import Module
from pelton.program.ops.head import GROUP
from pelton.program.states import KVSpec

VOCAB = 96


def tiny(spec: KVSpec = KVSpec(2, 16, 16)) -> Module:  # noqa: B008 - a frozen record
    """Two layers of attention over embedded rows, then a head of VOCAB."""
    bench = Bench()
    x, _ = bench.rows(64)
    for layer in range(2):
        (k, _), (v, _) = bench.rows(32), bench.rows(32)
        group, _ = bench.builder.state(spec)
        bench.builder.op("kv_write", (k, v), state=group, attrs={"layer": layer})
        attrs = {"layer": layer, "heads": 4, "scale": 0.3, "softcap": 0.0}
        bench.builder.op("attend", (x,), (f"y{layer}",), state=group, attrs=attrs)
        (x,) = bench.builder.op("add", (f"y{layer}", x), (f"x{layer}",))
    matrix, _ = bench.matrix(VOCAB, 64, "Q8_0")
    bench.builder.op("head", (x,), weights=(matrix,))
    return bench.finished(VOCAB)


def two_groups() -> tuple[Module, Numbers]:
    """Layers of two geometries in turns, 0 and 2 with a window; and the logits of TOKENS."""
    bench = Bench()
    x, numbers = bench.rows(64)
    for layer, spec in enumerate((KVSpec(2, 16, 16, 20), KVSpec(4, 16, 16), KVSpec(2, 16, 16, 20))):
        (k, keys), (v, values) = bench.rows(16 * spec.heads), bench.rows(16 * spec.heads)
        group, place = bench.builder.state(spec)
        bench.builder.op("kv_write", (k, v), state=group, attrs={"layer": place})
        attrs = {"layer": place, "heads": 4, "scale": 0.3, "softcap": 0.0}
        bench.builder.op("attend", (x,), (f"y{layer}",), state=group, attrs=attrs)
        mixed = expected.attention(numbers, keys, values, spec.heads, 0.3, window=spec.window)
        (x,) = bench.builder.op("add", (f"y{layer}", x), (f"x{layer}",))
        numbers = numbers + mixed
    return bench.seen(x, 64), numbers


@pytest.mark.parametrize("backend", entries("backend"))
def test_groups_in_any_chunks_and_among_others(backend: str) -> None:
    module, wanted = two_groups()
    assert [(state.layers, state.spec.window) for state in module.states.values()] == [(2, 20), (1, None)]
    whole = Driver(backend, module).chunked(TOKENS, len(TOKENS))
    for chunk in (len(TOKENS), 1, 31):
        got = Driver(backend, module, seed=chunk).chunked(TOKENS, chunk)
        assert np.abs(got - wanted).max() < 1e-5 * wanted.std(), chunk
        if backend != "reference":  # whose sums may come in another order
            np.testing.assert_array_equal(got, whole)
    driver = Driver(backend, module)
    for at in (0, 30, 60):
        pieces = {"b": TOKENS[at : at + 3], "a": TOKENS[at : at + 30], "c": TOKENS[:1]}
        assert np.abs(driver.logits(pieces)["a"] - wanted[at : at + 30]).max() < 1e-5 * wanted.std()


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("exact", [True, False])
def test_groups_have_their_own_blocks(backend: str, exact: bool) -> None:
    """Tables, sizes and operations are a group's own; traces look into it, wherever its blocks lie."""
    module, _ = two_groups()
    driver, other = Driver(backend, module, exact=exact), Driver(backend, module, exact=exact, seed=1)
    size = BLOCK * 16 * 2 * (4 if exact else 2)
    assert driver.executable.block_bytes == (2 * 2 * size, 4 * size)
    traces = [one.executable.run(replace(one.inputs({"a": TOKENS}), trace=True)).trace for one in (driver, other)]
    np.testing.assert_array_equal(traces[0], traces[1])  # type: ignore[arg-type]
    assert driver.table("a", 0) != driver.table("a", 1) != other.table("a", 1)
    blocks = driver.executable.blocks()
    first, second = driver.table("a", 0)[0], driver.table("a", 0)[1]
    content = [blocks.export_canonical(group, first, BLOCK) for group in (0, 1)]
    assert [data.shape for data in content] == [(2, 2, 2, BLOCK, 16), (1, 2, 4, BLOCK, 16)]
    free = next(block for block in range(1, 64) if block not in (first, second))
    ops = np.array([(COPY, 0, first, free), (SCRUB, 0, first, first)], np.int32)
    driver.executable.run(replace(driver.inputs({"u": TOKENS[:1]}), block_ops=ops))
    np.testing.assert_array_equal(blocks.export_canonical(0, free, BLOCK), content[0])
    np.testing.assert_array_equal(blocks.export_canonical(1, first, BLOCK), content[1])
    assert not blocks.export_canonical(0, first, BLOCK).any()


@pytest.mark.parametrize("backend", entries("backend"))
def test_the_null_block_stands_for_what_is_hidden(backend: str) -> None:
    """Places of a table that no token of the step sees may hold block 0, whose content is not looked at."""
    module, wanted = two_groups()
    driver = Driver(backend, module, seed=2)
    driver.logits({"a": TOKENS[:70]})
    for group in (0, 1):
        assert 0 not in driver.table("a", group)
        content = driver.executable.blocks().export_canonical(group, 0, BLOCK)
        driver.executable.blocks().import_canonical(group, 0, np.full_like(content, np.nan))
    inputs = driver.inputs({"a": TOKENS[70:]})
    assert (70 - 19) // BLOCK == 1
    inputs.tables[0, 0] = 0
    logits = driver.executable.run(inputs).logits
    assert logits is not None and np.abs(logits - wanted[70:]).max() < 1e-5 * wanted.std()


@pytest.mark.parametrize("backend", entries("backend"))
def test_machine_is_described(backend: str) -> None:
    machine = BACKENDS.get(backend)().machine()
    assert machine.name
    assert machine.isa
    assert machine.threads >= 1


@pytest.mark.parametrize("backend", entries("backend"))
def test_nothing_of_a_model_is_refused(backend: str) -> None:
    made = BACKENDS.get(backend)()
    assert [made.refuses(op) for op in tiny().entries["target"].ops if made.refuses(op)] == []


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("exact", [True, False])
def test_block_bytes(backend: str, exact: bool) -> None:
    driver = Driver(backend, tiny(), exact=exact)
    assert driver.executable.block_bytes == (BLOCK * 2 * 2 * 32 * (4 if exact else 2),)


@pytest.mark.parametrize("backend", entries("backend"))
def test_greedy_choice_and_logprobs(backend: str) -> None:
    out = Driver(backend, tiny()).step({"a": TOKENS}, logprobs=5)
    assert out.logits is not None
    logprobs = out.logits - np.log(np.exp(out.logits.astype(np.float64)).sum(-1, keepdims=True))
    order = np.argsort(-out.logits, axis=-1, kind="stable")
    np.testing.assert_array_equal(out.tokens, order[:, 0])
    np.testing.assert_array_equal(out.ranks, 1)
    np.testing.assert_array_equal(out.faults, 0)
    np.testing.assert_array_equal(out.top_ids, order[:, :5])
    np.testing.assert_allclose(out.logprobs, logprobs.max(-1), atol=1e-5)
    np.testing.assert_allclose(out.top_logprobs, np.take_along_axis(logprobs, order[:, :5], -1), atol=1e-5)


@pytest.mark.parametrize("backend", entries("backend"))
def test_rows_may_ask_for_different_numbers_of_logprobs(backend: str) -> None:
    driver = Driver(backend, tiny())
    out = driver.step({"a": TOKENS[:3]}, logprobs=np.array([-1, 2, 0]))  # type: ignore[arg-type]
    assert out.top_ids.shape == (3, 2)
    assert (out.top_ids[[0, 2]] == -1).all()
    assert np.isneginf(out.top_logprobs[[0, 2]]).all()
    assert (out.top_ids[1] >= 0).all()


@pytest.mark.parametrize("backend", entries("backend"))
def test_no_logits_unless_asked(backend: str) -> None:
    driver = Driver(backend, tiny())
    inputs = driver.inputs({"a": TOKENS[:2]})
    assert driver.executable.run(inputs).logits is not None
    assert driver.executable.run(replace(inputs, want_logits=False)).logits is None


@pytest.mark.parametrize("backend", entries("backend"))
def test_a_step_may_have_no_logit_rows(backend: str) -> None:
    """Chunks of a prompt are computed without a row that needs logits; what they cached counts later."""
    module = tiny()
    whole = Driver(backend, module).logits({"a": TOKENS})["a"]
    driver = Driver(backend, module)
    inputs = driver.inputs({"a": TOKENS[:40]})
    out = driver.executable.run(
        replace(inputs, logit_rows=np.zeros(0, np.int32), sampling=sampling(0), want_logits=False)
    )
    assert out.tokens.shape == (0,)
    rest = driver.logits({"a": TOKENS[40:]})["a"]
    np.testing.assert_allclose(rest, whole[40:], atol=1e-5)


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_faults_hit_their_own_row(backend: str, bad: float) -> None:
    bench = Bench()
    table = np.ones((40, 32))
    table[7, 3] = bad
    bench._tensors["table"] = dense("table", table)
    weights = (bench.builder.gather("table", 40, 32),)
    bench.builder.op("embed", ("ids",), ("x",), weights=weights, attrs={"scale": 1.0})
    out = Driver(backend, bench.seen("x", 32)).step({"a": [1, 7, 2]})
    np.testing.assert_array_equal(out.faults != 0, [False, True, False])


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("exact", [True, False])
def test_blocks_travel_in_canonical_form(backend: str, exact: bool) -> None:
    """Exported from one executable and imported into another, blocks give the same logits; so do copied ones."""
    module = tiny()
    source, target = Driver(backend, module, exact=exact), Driver(backend, module, exact=exact, seed=1)
    source.logits({"a": TOKENS[:64]})
    target.logits({"a": prompt(64, vocab=40)})
    for mine, theirs in zip(source.table("a"), target.table("a"), strict=True):
        exported = source.executable.blocks().export_canonical(0, mine, BLOCK)
        assert exported.shape == (2, 2, 2, BLOCK, 16)
        target.executable.blocks().import_canonical(0, theirs, exported)
        again = target.executable.blocks().export_canonical(0, theirs, BLOCK)
        np.testing.assert_array_equal(again, exported)
    rest = TOKENS[64:]
    np.testing.assert_array_equal(target.logits({"a": rest})["a"], source.logits({"a": rest})["a"])


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("exact", [True, False])
def test_blocks_travel_as_their_bytes(backend: str, exact: bool) -> None:
    """What one executable tells of its blocks another of the same settings takes."""
    module = tiny()
    source, target = Driver(backend, module, exact=exact), Driver(backend, module, exact=exact, seed=1)
    source.logits({"a": TOKENS[:64]})
    target.logits({"a": prompt(64, vocab=40)})
    for mine, theirs in zip(source.table("a"), target.table("a"), strict=True):
        data = source.executable.blocks().content(0, mine).tobytes()
        assert len(data) == source.executable.block_bytes[0]
        target.executable.blocks().write(0, theirs, data)
        assert target.executable.blocks().content(0, theirs).tobytes() == data
    rest = TOKENS[64:]
    np.testing.assert_array_equal(target.logits({"a": rest})["a"], source.logits({"a": rest})["a"])
    for wrong in (b"", data[:-1], data + b"\0"):
        with pytest.raises(ValueError):
            target.executable.blocks().write(0, theirs, wrong)


@pytest.mark.parametrize("backend", entries("backend"))
def test_exports_of_backends_agree(backend: str) -> None:
    """The canonical form is the same numbers on every backend: those that the reference caches."""
    module = tiny()
    driver, reference = Driver(backend, module), Driver("reference", module)
    for one in (driver, reference):
        one.logits({"a": TOKENS[:50]})
    for place, tokens in ((0, BLOCK), (1, 18)):
        got = driver.executable.blocks().export_canonical(0, driver.table("a")[place], tokens)
        wanted = reference.executable.blocks().export_canonical(0, reference.table("a")[place], tokens)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("backend", entries("backend"))
def test_scrubbed_and_copied_blocks(backend: str) -> None:
    driver = Driver(backend, tiny())
    driver.logits({"a": TOKENS[:64]})
    first, second = driver.table("a")
    blocks = driver.executable.blocks()
    before = blocks.export_canonical(0, first, BLOCK)
    blocks.copy(0, first, second)
    np.testing.assert_array_equal(blocks.export_canonical(0, second, BLOCK), before)
    blocks.scrub(0, first)
    assert not blocks.export_canonical(0, first, BLOCK).any()
    np.testing.assert_array_equal(blocks.export_canonical(0, second, BLOCK), before)


@pytest.mark.parametrize("backend", entries("backend"))
def test_windows_forget(backend: str) -> None:
    """A freed block behind the window may hold anything, also NaN."""
    driver = Driver(backend, tiny(KVSpec(2, 16, 16, window=20)))
    alone = Driver(backend, tiny(KVSpec(2, 16, 16, window=20)))
    for one in (driver, alone):
        one.logits({"a": TOKENS[:70]})
    poison = np.full((2, 2, 2, BLOCK, 16), np.nan, np.float32)
    driver.executable.blocks().import_canonical(0, driver.table("a")[0], poison)
    rest = {"a": TOKENS[70:]}
    np.testing.assert_array_equal(driver.logits(rest)["a"], alone.logits(rest)["a"])


@pytest.mark.parametrize("backend", entries("backend"))
def test_weight_bytes_do_not_depend_on_rows(backend: str) -> None:
    """One token or 256 in a step: the matrices are read once, the head's once per 32 logit rows."""
    module = tiny()
    head = module.storages[module.weights[module.entries["target"].ops[-1].weights[0]].storage].nbytes
    driver, read = Driver(backend, module), []
    for number, count in enumerate((1, 32, 33, 256)):
        before = driver.executable.counters().get("weight_bytes", 0)
        driver.logits({str(number): prompt(count, vocab=40)})
        read.append(driver.executable.counters()["weight_bytes"] - before)
    assert read[0] == read[1] > 0
    assert read[2] - read[1] == pytest.approx(head, rel=0.05)
    assert read[3] - read[1] == pytest.approx(head * (256 // GROUP - 1), rel=0.05)
    assert driver.executable.counters()["steps"] == 4


@pytest.mark.parametrize("backend", entries("backend"))
def test_edits_and_targets(backend: str) -> None:
    """Per row: none, the largest banned, another one lifted, all banned, a token that is only to be scored."""
    driver = Driver(backend, tiny())
    plain = driver.inputs({"a": TOKENS[:5]}, logprobs=2)
    before = driver.executable.run(plain)
    edits = np.zeros(VOCAB + 2, EDIT)
    edits[0] = (before.tokens[1], -np.inf, 0, 0)
    edits[1] = (9, 1000.0, 2, SEEN)
    edits["token"][2:], edits["bias"][2:] = np.arange(VOCAB), -np.inf
    records = plain.sampling.copy()
    records["repetition"], records["target"][4] = 2.0, 7
    given = replace(
        plain, sampling=records, edits=edits, edit_offsets=np.array([0, 0, 1, 2, 2 + VOCAB, 2 + VOCAB], np.int32)
    )
    after = driver.executable.run(given)
    assert after.logits is not None
    assert after.tokens.tolist() == [before.tokens[0], before.top_ids[1, 1], 9, 0, 7]
    assert after.faults.tolist() == [0, 0, 0, FAULT_NO_TOKEN, 0]
    exact = after.logits.astype(np.float64)
    logprobs = exact - np.logaddexp.reduce(exact, axis=-1, keepdims=True)
    for row in (0, 1, 2, 4):
        token = after.tokens[row]
        assert after.logprobs[row] == pytest.approx(logprobs[row, token], abs=1e-5)
        assert after.ranks[row] == 1 + (exact[row] > exact[row, token]).sum()
        assert after.top_ids[row].tolist() == before.top_ids[row].tolist()
    assert after.top_ids[3].tolist() == [-1, -1]


@pytest.mark.parametrize("backend", entries("backend"))
def test_only_allowed_tokens(backend: str) -> None:
    driver = Driver(backend, tiny())
    inputs = driver.inputs({"a": TOKENS[:2]}, flags=ONLY_ALLOWED)
    edits = np.array([(3, 0, 0, ALLOWED), (4, 500, 0, SEEN), (5, 1, 0, ALLOWED)], EDIT)
    out = driver.executable.run(replace(inputs, edits=edits, edit_offsets=np.array([0, 3, 3], np.int32)))
    assert out.logits is not None
    assert out.tokens[0] == (5 if out.logits[0, 5] + 1 > out.logits[0, 3] else 3)
    assert out.faults.tolist() == [0, FAULT_NO_TOKEN]


@pytest.mark.parametrize("backend", entries("backend"))
def test_block_operations_come_first_and_in_order(backend: str) -> None:
    driver = Driver(backend, tiny())
    driver.logits({"a": TOKENS[:64], "b": TOKENS[10:42]})
    (first, second), (third,) = driver.table("a"), driver.table("b")
    free = next(block for block in range(1, 64) if block not in (first, second, third))
    blocks = driver.executable.blocks()
    before = {block: blocks.export_canonical(0, block, BLOCK) for block in (first, third)}
    lines = [(COPY, 0, first, free), (COPY, 0, third, first), (SCRUB, 0, third, third), (COPY, 0, first, third)]
    ops = np.array(lines, np.int32)
    driver.executable.run(replace(driver.inputs({"c": TOKENS[:1]}), block_ops=ops))
    for block, wanted in ((free, first), (first, third), (third, third)):
        np.testing.assert_array_equal(blocks.export_canonical(0, block, BLOCK), before[wanted])


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("exact", [True, False])
def test_blocks_go_to_host_slots_and_come_back_as_they_were(backend: str, exact: bool) -> None:
    """Whatever the block holds since; slots are a group's own, and can be read and filled from here."""
    module, _ = two_groups()
    driver = Driver(backend, module, exact=exact)
    driver.logits({"a": TOKENS[:64]})
    blocks = driver.executable.blocks()
    blocks.reserve((2, 1))
    (first, second), other = driver.table("a", 0), driver.table("a", 1)[0]
    before = [blocks.export_canonical(0, block, BLOCK) for block in (first, second)]
    apart = blocks.export_canonical(1, other, BLOCK)
    raw = blocks.content(0, second).tobytes()
    lines = [(SAVE, 0, first, 1), (SAVE, 0, second, 0), (SAVE, 1, other, 0), (SCRUB, 0, first, first)]
    lines += [(LOAD, 0, 0, first), (LOAD, 0, 1, second), (SCRUB, 1, other, other)]
    driver.executable.run(replace(driver.inputs({"u": TOKENS[:1]}), block_ops=np.array(lines, np.int32)))
    np.testing.assert_array_equal(blocks.export_canonical(0, first, BLOCK), before[1])
    np.testing.assert_array_equal(blocks.export_canonical(0, second, BLOCK), before[0])
    assert not blocks.export_canonical(1, other, BLOCK).any()
    assert blocks.slot(0, 0).tobytes() == raw and len(blocks.slot(1, 0)) == driver.executable.block_bytes[1]
    blocks.slot(0, 1)[:] = blocks.slot(0, 0)
    lines = [(LOAD, 0, 1, second), (LOAD, 1, 0, other)]
    outputs = driver.executable.run(replace(driver.inputs({"u": TOKENS[1:2]}), block_ops=np.array(lines, np.int32)))
    np.testing.assert_array_equal(blocks.export_canonical(0, second, BLOCK), before[1])
    np.testing.assert_array_equal(blocks.export_canonical(1, other, BLOCK), apart)
    assert 0 < outputs.moving <= outputs.seconds


@pytest.mark.parametrize("backend", entries("backend"))
def test_traces_tell_which_op_differed(backend: str) -> None:
    """A token has the same hashes in chunks; a block that differs shows from the layer's attention on."""
    driver, other = Driver(backend, tiny()), Driver(backend, tiny(), seed=1)
    labels = driver.executable.labels()
    assert len(labels) == len(set(labels)) and labels[-1] == "head"
    assert [label for label in labels if "attend" in label] == ["layer 0 attend", "layer 1 attend"]
    whole = driver.executable.run(replace(driver.inputs({"a": TOKENS[:40]}), trace=True)).trace
    parts = [
        other.executable.run(replace(other.inputs({"a": piece}), trace=True)).trace
        for piece in (TOKENS[:7], TOKENS[7:40])
    ]
    assert whole is not None and whole.shape == (len(labels), 40) and whole.dtype == np.uint64
    assert driver.executable.run(driver.inputs({"b": TOKENS[:1]})).trace is None
    if backend != "reference":  # whose sums may come in another order
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)  # type: ignore[arg-type]
    same = driver.executable.run(replace(driver.inputs({"c": TOKENS[:40]}), trace=True)).trace
    np.testing.assert_array_equal(same, whole)
    again = driver.inputs({"c": TOKENS[40:41]})
    blocks, first = driver.executable.blocks(), driver.table("c")[0]
    content = blocks.export_canonical(0, first, BLOCK)
    good = driver.executable.run(replace(again, trace=True)).trace
    content[1, 1, 0, 3, 5] += 1.0  # a value of layer 1
    blocks.import_canonical(0, first, content)
    bad = driver.executable.run(replace(again, trace=True)).trace
    assert good is not None and bad is not None
    differs = (good != bad)[:, 0]
    assert labels[int(np.argmax(differs))] == "layer 1 attend" and differs[-1]


@pytest.mark.parametrize("backend", entries("backend"))
def test_working_memory_grows_with_the_step(backend: str) -> None:
    made = BACKENDS.get(backend)()
    small, large = (made.compile(tiny(), CompileOptions(tokens, 8, threads=1)) for tokens in (8, 256))
    assert 0 < small.memory.activations < large.memory.activations
    held = sum(storage.rows * storage.cols for storage in tiny().storages.values())
    assert held / 2 < small.memory.weights == large.memory.weights < 5 * held


@pytest.mark.parametrize("backend", entries("backend"))
def test_close_ends_it(backend: str) -> None:
    options = CompileOptions(max_tokens=8, max_rows=8, exact=True, threads=1)
    executable = BACKENDS.get(backend)().compile(tiny(), options)
    executable.allocate((2,))
    executable.close()
