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


if __name__ == "__main__":
    main()
