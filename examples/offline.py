"""Several prompts at once from Python: they share each step, and each gets the tokens it would get alone.

python examples/offline.py [MODEL]
"""

import sys

from pelton import LLM, SamplingParams

PROMPTS = [
    "The capital of France is",
    "Water turns a wheel, and the wheel",
    "def fibonacci(n):",
]


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    with LLM(model) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=24)
        for output in llm.generate(PROMPTS, params):
            answer = output.outputs[0]
            print(f"{output.prompt!r}\n  -> {answer.text!r} ({answer.finish_reason})")

        # A conversation, drawn with a seed: the same seed gives the same answer, whoever else is being served.
        messages = [{"role": "user", "content": "Name three rivers."}]
        drawn = SamplingParams(temperature=0.7, top_p=0.9, seed=7, max_tokens=48)
        (output,) = llm.chat(messages, drawn)
        print(f"\n{messages[0]['content']}\n  -> {output.outputs[0].text!r}")

        # Three answers to it: its prompt was computed above and is found again; the first answer is the one above.
        several = SamplingParams(n=3, temperature=0.7, top_p=0.9, seed=7, max_tokens=48)
        (output,) = llm.chat(messages, several)
        print(f"\n{output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens were there already")
        for answer in output.outputs:
            print(f"  {answer.index}: {answer.text!r}")

        # How likely is a text? Nothing is generated, the prompt's own tokens are scored.
        (output,) = llm.generate(PROMPTS[0], SamplingParams(max_tokens=0, prompt_logprobs=0))
        for token, place in zip(output.prompt_token_ids, output.prompt_logprobs or [], strict=True):
            if place is not None:
                print(f"{place[token].decoded_token!r:>12} {place[token].logprob:8.3f}")


if __name__ == "__main__":
    main()
