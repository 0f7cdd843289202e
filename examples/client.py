"""A server asked with OpenAI's client: one answer, a stream, and many questions at once.

pelton serve smollm2
python examples/client.py [http://localhost:8000/v1]
"""

import asyncio
import sys

from openai import AsyncOpenAI, OpenAI

QUESTIONS = ["What is the capital of France?", "What is a water wheel?", "What does a mill grind?"]
SYSTEM = "You guide people through a mill museum. " + "Answer in one short sentence and name the machine. " * 8


def one(client: OpenAI, model: str) -> None:
    """One answer, with the log-probability of its first token. The same seed gives the same answer."""
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": QUESTIONS[0]}],
        temperature=0.7,
        seed=7,
        max_tokens=24,
        logprobs=True,
        # What OpenAI's API does not have goes here: top_k, min_p, repetition_penalty, explain, ...
        extra_body={"top_k": 40, "repetition_penalty": 1.05},
    )
    choice = answer.choices[0]
    print(f"{QUESTIONS[0]}\n  -> {choice.message.content!r} ({choice.finish_reason})")
    if choice.logprobs is not None and choice.logprobs.content:
        print(f"  log-probability of {choice.logprobs.content[0].token!r}: {choice.logprobs.content[0].logprob:.3f}")


def stream(client: OpenAI, model: str) -> None:
    """Text as it comes. Leaving the loop early, or closing the stream, ends the request at the server too."""
    pieces = client.completions.create(
        model=model,
        prompt="Water turns",
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    print("\nWater turns", end="")
    for piece in pieces:
        for choice in piece.choices:
            print(choice.text, end="", flush=True)
        if piece.usage is not None:
            print(f"\n  {piece.usage.completion_tokens} tokens")


async def many(url: str, model: str) -> None:
    """Several at once share each step, and what their prompts have in common is computed once."""
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=model,
                    messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
                    temperature=0,
                    max_tokens=24,
                )
                for question in QUESTIONS
            )
        )
    for question, answer in zip(QUESTIONS, answers, strict=True):
        usage = answer.usage
        details = usage.prompt_tokens_details if usage is not None else None
        if usage is not None and details is not None:
            print(f"\n{question} ({details.cached_tokens} of {usage.prompt_tokens} prompt tokens were there)")
        print(f"  -> {answer.choices[0].message.content!r}")


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1"
    with OpenAI(base_url=url, api_key="none") as client:
        model = client.models.list().data[0].id
        one(client, model)
        stream(client, model)
    asyncio.run(many(url, model))


if __name__ == "__main__":
    main()
