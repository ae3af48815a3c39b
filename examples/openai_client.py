#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
An OpenAI client, and a policy and a name for each request.

    sparsekvd &                                 (or the system's; $SPARSEKV_SOCKET says where, if it is elsewhere)
    vllm serve MODEL --served-model-name m --kv-transfer-config '{"kv_connector": "SparseKVConnector", "kv_role": "kv_both"}'
    openai_client.py [URL]                      (default: http://127.0.0.1:8000/v1)

On CPU also --kv-cache-memory-bytes 67108864, and --enforce-eager where it is to start soon. Three requests at once: dense, and under
two policies; so short a prompt is attended to in whole under each, and the answers are the same. Then a dialogue whose second turn computes
what is new in it alone, also when the server was killed and started again in between. SmolLM2-135M-Instruct, bf16:

    --- full
    In a kitchen, there are several essential elements that make a home feel luxurious and indulgent. These include: [...]
    --- sketch
    In a kitchen, there are several essential elements that make a home feel luxurious and indulgent. These include: [...]
    --- streaming?budget=0.25
    In a kitchen, there are several essential elements that make a home feel luxurious and indulgent. These include: [...]
    --- a second turn, of which 86 tokens were there
    The oldest thing in a kitchen is actually a type of candle made from a traditional Japanese incense, known as [...]
"""
import asyncio
import sys

from openai import APIConnectionError, AsyncOpenAI

QUESTION = "Name three things that are in a kitchen."


async def ask(client, messages, **ours):
    """The answer, and what the engine says of its sequence."""
    answer = await client.chat.completions.create(
        model="m", messages=messages, max_tokens=48, temperature=0, extra_body={"kv_transfer_params": {"sparsekv": ours}}
    )
    said = (answer.model_extra or {}).get("kv_transfer_params") or {}
    return answer.choices[0].message.content, said.get("sparsekv", {})


async def main(url):
    client = AsyncOpenAI(base_url=url, api_key="none")
    policies = ["full", "sketch", "streaming?budget=0.25"]
    user = [{"role": "user", "content": QUESTION}]
    for policy, (text, _) in zip(policies, await asyncio.gather(*(ask(client, user, policy=policy) for policy in policies))):
        print(f"--- {policy}\n{text}")
    text, _ = await ask(client, user, name="kitchen")
    turns = [*user, {"role": "assistant", "content": text}, {"role": "user", "content": "And which of them is the oldest?"}]
    text, said = await ask(client, turns, name="kitchen")
    print(f"--- a second turn, of which {said.get('cached_tokens')} tokens were there\n{text}")


if __name__ == "__main__":
    server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    try:
        asyncio.run(main(server))
    except APIConnectionError:
        sys.exit(f"openai_client.py: no server at {server}; the docstring says how to start one")
