#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
An OpenAI client, and a policy and a name for each request.

    vllm serve MODEL --served-model-name m --kv-transfer-config '{"kv_connector": "SparseKVConnector", "kv_role": "kv_both"}'
    openai_client.py [URL]                    (default: http://127.0.0.1:8000/v1)

Three requests at once: dense, and under two policies. Then a dialogue whose second turn computes what is new in it alone,
also when the server was killed and started again in between.
"""
import asyncio
import sys

from openai import AsyncOpenAI

QUESTION = "Name three things that are in a kitchen."


async def ask(client, messages, **ours):
    """The answer, and what the engine says of its sequence."""
    answer = await client.chat.completions.create(
        model="m", messages=messages, max_tokens=48, temperature=0, extra_body={"kv_transfer_params": {"sparsekv": ours}}
    )
    said = (answer.model_extra or {}).get("kv_transfer_params") or {}
    return answer.choices[0].message.content, said.get("sparsekv", {})


async def main():
    client = AsyncOpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1", api_key="none")
    policies = ["full", "sketch", "streaming?budget=0.25"]
    user = [{"role": "user", "content": QUESTION}]
    for policy, (text, _) in zip(policies, await asyncio.gather(*(ask(client, user, policy=policy) for policy in policies))):
        print(f"--- {policy}\n{text}")
    text, _ = await ask(client, user, name="kitchen")
    turns = [*user, {"role": "assistant", "content": text}, {"role": "user", "content": "And which of them is the oldest?"}]
    text, said = await ask(client, turns, name="kitchen")
    print(f"--- a second turn, of which {said.get('cached_tokens')} tokens were there\n{text}")


if __name__ == "__main__":
    asyncio.run(main())
