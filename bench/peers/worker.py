"""One engine in its own process and Python, told over standard input what to ask it: for engines without a server.

python worker.py ENGINE MODEL_FILE TOKENIZER_FOLDER [ACTIVATIONS]

A line of JSON comes in, {"prompts": [...], "output": N, "concurrency": N}, and one goes out behind MARK: {"requests":
[[sent, first piece, ..., last piece], ...]} in seconds, or {"rates": [...]} of engines that tell only a rate of
decoding. It imports nothing of this folder: most of these engines' environments have no Pelton.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "@@ "
CACHE_GIB = 3  # of keys and values; what OpenVINO's own figures were measured with

Answer = dict[str, Any]
Ask = Callable[[list[str], int, int], Answer]


def pelton(model: Path, tokenizer: Path, *activations: str) -> Ask:
    """One prompt after the other."""
    from pelton import LLM, SamplingParams

    llm = LLM(str(model), **({"activations": activations[0]} if activations else {}))

    def ask(prompts: list[str], output: int, concurrency: int) -> Answer:
        params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
        requests = []
        for prompt in prompts:
            stamps = [time.perf_counter()]
            for piece in llm.stream(prompt, params):
                stamps += [time.perf_counter()] * len(piece.token_ids)
            requests.append(stamps)
        return {"requests": requests}

    return ask


def openvino(model: Path, tokenizer: Path) -> Ask:
    """Its continuous batching, with its own default precision for what it computes in."""
    import openvino_genai  # type: ignore[import-not-found]

    settings = openvino_genai.SchedulerConfig()
    settings.cache_size = CACHE_GIB
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(model), settings, "CPU", {})
    number = 0

    def ask(prompts: list[str], output: int, concurrency: int) -> Answer:
        nonlocal number
        wish = openvino_genai.GenerationConfig()
        wish.max_new_tokens, wish.ignore_eos, wish.do_sample = output, True, False
        wish.apply_chat_template = False
        waiting = list(range(len(prompts)))[::-1]
        under_way: dict[int, Any] = {}
        requests: list[list[float]] = [[] for _ in prompts]
        while waiting or under_way:
            while waiting and len(under_way) < concurrency:
                place = waiting.pop()
                requests[place].append(time.perf_counter())
                under_way[place] = pipeline.add_request(number, prompts[place], wish)
                number += 1
            pipeline.step()
            for place, handle in list(under_way.items()):
                while handle.can_read():
                    for result in handle.read().values():
                        requests[place] += [time.perf_counter()] * len(result.generated_ids)
                if len(requests[place]) > output:
                    del under_way[place]
        return {"requests": requests}

    return ask


def mistralrs(model: Path, tokenizer: Path) -> Ask:
    """It tells its own rate of decoding; answers may end early, which does not change it."""
    from mistralrs import CompletionRequest, Runner, Which  # type: ignore[import-not-found]

    runner = Runner(
        which=Which.GGUF(
            tok_model_id=str(tokenizer), quantized_model_id=str(model.parent), quantized_filename=model.name
        )
    )

    def ask(prompts: list[str], output: int, concurrency: int) -> Answer:
        rates = []
        for prompt in prompts:
            wish = CompletionRequest(model="default", prompt=prompt, max_tokens=output, temperature=0.0)
            rates.append(runner.send_completion_request(wish).usage.avg_compl_tok_per_sec)
        return {"rates": rates}

    return ask


ENGINES: dict[str, Callable[..., Ask]] = {"pelton": pelton, "openvino": openvino, "mistralrs": mistralrs}


def main() -> None:
    engine, model, tokenizer, *activations = sys.argv[1:]
    ask = ENGINES[engine](Path(model), Path(tokenizer), *activations)
    print(f"{MARK}{{}}", flush=True)  # it is ready
    for line in sys.stdin:
        wish = json.loads(line)
        print(f"{MARK}{json.dumps(ask(wish['prompts'], wish['output'], wish['concurrency']))}", flush=True)


if __name__ == "__main__":
    main()
